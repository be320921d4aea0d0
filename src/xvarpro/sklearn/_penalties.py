"""Logistic regression whose penalties are learned."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from xvarpro.algorithms import ProjectedQuasiNewton
from xvarpro.core.checks import described
from xvarpro.core.trees import array_namespace
from xvarpro.driver.evaluate import solve_lower
from xvarpro.errors import ProblemError
from xvarpro.fit.solve import solve
from xvarpro.problem.problem import Level, bilevel, separable
from xvarpro.sets import Box
from xvarpro.sklearn._base import warn_unless_converged, whole
from xvarpro.sklearn._head import OfClasses, encoded

LOW, HIGH = np.log(1e-5), np.log(10.0)  # of logarithms of penalties


def penalties(theta: Any, data: Any) -> Any:
    """Of features from logarithms of those of groups, (n_features + 1, 1); none of the offset."""
    xp = array_namespace(theta)
    return data["scale"] * xp.exp(data["groups"] @ xp.expand_dims(theta, axis=1))


@final
@dataclass(eq=False, repr=False)
class LearnedPenaltyClassifier(OfClasses, BaseEstimator):
    """Logistic regression with a ridge for each feature, or group of features, learned from samples that are held out.

    Half of each class fits the weights, the cross-entropy of the others chooses the penalties, by its exact gradient;
    then all samples fit the weights. Feature j has ``1/2 n_samples c_j var(x_j) w_j^2``, c_j from 1e-5 to 10, whatever
    its units; the offset has no penalty. Many penalties fit the samples that choose them: group features.

    Parameters
    ----------
    groups : array of int, shape (n_features,), optional
        Numbers 0, 1, ... of groups of features, with one c each; None is a group for every feature.
    max_iter, tol
        Of the solve for c, as in `xvarpro.solve`.
    random_state : int, RandomState or None
        Of the halves.

    Attributes
    ----------
    penalties_ : array, shape (n_features,)
        The c_j.
    classes_, w_, objective_, gap_, status_, n_iter_, n_features_in_, feature_names_in_
        As those of `NeuralHeadClassifier`; the objective is the cross-entropy of the samples that chose, a sum.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro.sklearn import LearnedPenaltyClassifier
    >>> X = np.random.default_rng(0).normal(size=(200, 20))
    >>> y = X[:, 0] > 0.3 * X[:, 1]  # all other features say nothing
    >>> model = LearnedPenaltyClassifier(np.minimum(np.arange(20), 2), random_state=0).fit(X, y)
    >>> bool(model.penalties_[2] > 10 * model.penalties_[0]), model.predict_proba(X).shape
    (True, (200, 2))
    """

    groups: Any = None
    _: KW_ONLY
    max_iter: int = 100
    tol: float = 1e-3
    random_state: Any = None

    def fit(self, X: Any, y: Any) -> LearnedPenaltyClassifier:
        """Find penalties and weights for X, (n_samples, n_features), and labels y, (n_samples,)."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        whole(self, "max_iter", least=0)
        groups = np.arange(X.shape[1]) if self.groups is None else np.asarray(self.groups)
        if groups.shape != X.shape[1:] or groups.dtype.kind not in "iu" or groups.min() < 0:
            raise ProblemError(
                f"LearnedPenaltyClassifier: groups must hold a number 0, 1, ... for each of {X.shape[1]} features; got "
                f"{described(self.groups)}"
            )
        self.classes_, at, Y = encoded(self, y)
        if np.bincount(at).min() < 2:
            raise ProblemError("LearnedPenaltyClassifier: each class needs two samples or more; got one of some class")
        order = check_random_state(self.random_state).permutation(len(X))
        order = order[np.argsort(at[order], kind="stable")]  # class by class: every second sample is half of each
        A, var = _with_ones(X), np.append(np.var(X, axis=0), 0.0)[:, None]
        scale = np.where(var > 0, var, 1.0) * (np.arange(len(var)) < len(groups))[:, None]
        data = {
            "train": A[order[::2]],
            "validate": A[order[1::2]],
            "groups": np.eye(groups.max() + 1)[np.append(groups, 0)],
            "scale": len(order[::2]) * scale,
        }
        loss: Any = "logistic" if Y.ndim == 1 else "softmax"
        lower = Level(lambda theta, data: data["train"], Y[order[::2]], lam=penalties, loss=loss)
        upper = Level(lambda theta, data: data["validate"], Y[order[1::2]], loss=loss)
        fit = solve(
            bilevel(lower=lower, upper=upper, data=data),
            np.full(data["groups"].shape[1], 0.5 * (LOW + HIGH)),
            over=Box(LOW, HIGH),
            algorithm=ProjectedQuasiNewton(settle=0),
            max_iter=self.max_iter,
            tol=self.tol,
            progress=False,
        )
        lam = len(X) * scale * np.exp(data["groups"] @ fit.theta)[:, None]
        self.penalties_ = np.exp(fit.theta)[groups]
        self.w_ = np.array(solve_lower(separable(lambda theta, A: A, Y, data=A, lam=lam, loss=loss), fit.theta).w)
        self.objective_, self.gap_, self.status_ = float(fit.value), float(fit.gap), fit.status
        self.n_iter_ = max(1, fit.n_iter)
        warn_unless_converged(self, fit.status, self.gap_, self.objective_)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, (n_samples, n_classes)."""
        return self._probabilities(X)

    def _output(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        found: np.ndarray = _with_ones(validate_data(self, X, reset=False, dtype=np.float64)) @ self.w_
        return found


def _with_ones(X: np.ndarray) -> np.ndarray:
    return np.hstack([X, np.ones((len(X), 1))])
