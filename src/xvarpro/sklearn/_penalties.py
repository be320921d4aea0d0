"""Logistic regression whose penalties are learned."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from xvarpro.algorithms import ProjectedQuasiNewton
from xvarpro.core.struct import Array
from xvarpro.core.trees import array_namespace
from xvarpro.driver.evaluate import solve_lower
from xvarpro.errors import ProblemError
from xvarpro.fit.solve import solve
from xvarpro.problem.problem import Level, bilevel, separable
from xvarpro.sets import Box
from xvarpro.sklearn._base import warn_unless_converged, whole
from xvarpro.sklearn._head import OfClasses, encoded


def training(theta: Array, data: Any) -> Array:
    return data["train"]


def validation(theta: Array, data: Any) -> Array:
    return data["validate"]


def penalties(theta: Array, data: Any) -> Array:
    """Of features from logarithms of those of groups, (n_features + 1, 1); none of the offset."""
    xp = array_namespace(theta)
    return data["scale"] * xp.exp(data["groups"] @ xp.expand_dims(theta, axis=1))


@final
class LearnedPenaltyClassifier(OfClasses, BaseEstimator):
    """Logistic regression with a ridge for each feature, or group of features, learned from rows that are held out.

    Half of the samples of every class fit the weights, the cross-entropy of the others chooses the penalties, by its
    exact gradient; then all samples fit the weights. The penalty of feature j is ``1/2 n_samples c_j var(x_j) w_j^2``,
    whatever its units, with c_j in `bounds`; the offset has none. Two classes have one output, more have one each.

    Parameters
    ----------
    groups : array of int, shape (n_features,), optional
        Numbers 0, 1, ... of groups of features with one c each; None is a group for every feature.
    bounds : tuple of two floats
        Of all c_j, > 0.
    max_iter, tol
        Of the solve for c, as in `xvarpro.solve`.
    random_state : int, RandomState or None
        Of the halves.
    backend, device : str, optional
        Where to compute; arrays in and out are NumPy's.

    Attributes
    ----------
    classes_ : array
    penalties_ : array, shape (n_features,)
        The c_j.
    w_ : array, shape (n_features + 1,) or (n_features + 1, n_classes)
        The last row is the offset.
    objective_ : float
        Cross-entropy of the samples that chose, a sum.
    gap_, status_, n_iter_, n_features_in_, feature_names_in_
        As those of `ConstrainedDictionary`.

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

    def __init__(
        self,
        groups: Any = None,
        *,
        bounds: tuple[float, float] = (1e-5, 10.0),
        max_iter: int = 100,
        tol: float = 1e-3,
        random_state: Any = None,
        backend: Any = None,
        device: Any = None,
    ) -> None:
        self.groups = groups
        self.bounds = bounds
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.backend = backend
        self.device = device

    def fit(self, X: Any, y: Any) -> LearnedPenaltyClassifier:
        """Find penalties and weights for X, (n_samples, n_features), and labels y, (n_samples,)."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        whole(self, "max_iter", least=0)
        self.classes_, at, Y = encoded(self, y)
        first, second = _halves(self, at, check_random_state(self.random_state))
        groups = np.arange(X.shape[1]) if self.groups is None else np.asarray(self.groups)
        if groups.shape != (X.shape[1],) or groups.dtype.kind not in "iu" or groups.min() < 0:
            raise ProblemError(
                f"LearnedPenaltyClassifier: groups must hold a number 0, 1, ... for each of the {X.shape[1]} features, "
                f"got {self.groups!r}"
            )
        low, high = np.log(self.bounds)
        loss: Any = "logistic" if len(self.classes_) == 2 else "softmax"
        A, variance = _with_ones(X), np.var(X, axis=0)
        scale = np.append(np.where(variance > 0, variance, 1.0), 0.0)[:, None]
        data = {
            "train": A[first],
            "validate": A[second],
            "groups": np.eye(groups.max() + 1)[np.append(groups, 0)],
            "scale": len(first) * scale,
        }
        where = {"backend": self.backend, "device": self.device}
        fit = solve(
            bilevel(
                lower=Level(training, Y[first], lam=penalties, loss=loss),
                upper=Level(validation, Y[second], loss=loss),
                data=data,
            ),
            np.full(data["groups"].shape[1], 0.5 * (low + high)),
            over=Box(low, high),
            algorithm=ProjectedQuasiNewton(settle=0),
            max_iter=self.max_iter,
            tol=self.tol,
            progress=False,
            **where,
        )
        self.penalties_ = np.exp(fit.theta)[groups]
        lam = len(X) * scale * np.append(self.penalties_, 0.0)[:, None]
        self.w_ = np.array(
            solve_lower(separable(training, Y, data={"train": A}, lam=lam, loss=loss), fit.theta, **where).w
        )
        self.objective_, self.gap_, self.status_ = float(fit.value), float(fit.gap), fit.status
        self.n_iter_ = max(1, fit.n_iter)
        warn_unless_converged(self, fit.status, self.gap_, self.objective_)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, (n_samples, n_classes)."""
        return self._probabilities(X)

    def _output(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return _with_ones(validate_data(self, X, reset=False, dtype=np.float64)) @ self.w_


def _with_ones(X: np.ndarray) -> np.ndarray:
    return np.hstack([X, np.ones((len(X), 1))])


def _halves(owner: object, at: np.ndarray, draw: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two halves of the samples, with half of every class in each."""
    if np.bincount(at).min() < 2:
        raise ProblemError(f"{type(owner).__name__} needs two samples of each class or more; got one of some class")
    order = draw.permutation(len(at))
    order = order[np.argsort(at[order], kind="stable")]
    return np.sort(order[::2]), np.sort(order[1::2])
