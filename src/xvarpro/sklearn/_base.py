"""What the estimators share: where they compute, what they warn of, how a factorisation transforms."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from xvarpro import backends
from xvarpro.backends.exchange import find_device
from xvarpro.core.checks import number
from xvarpro.core.status import Status
from xvarpro.driver.evaluate import solve_lower
from xvarpro.errors import ProblemError, warn_caller
from xvarpro.fit.result import Result
from xvarpro.fit.solve import solve
from xvarpro.problem.problem import Problem

ITERATIONS = 20  # of a solve after sweeps, by default


def design(theta: Any, data: Any) -> Any:
    """``M(theta) = D``, one function for all problems, so that a compiled loop is used again."""
    return theta


def whole(owner: object, *names: str, least: int = 1) -> None:
    """Refuse parameters that are no whole numbers >= `least`."""
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise ProblemError(f"{type(owner).__name__}: {name} must be a whole number >= {least}, got {value!r}")


def nonnegative(owner: object, *names: str) -> None:
    """Refuse parameters that are no finite numbers >= 0."""
    for name in names:
        value = getattr(owner, name)
        if not 0 <= number(value) < math.inf:
            raise ProblemError(f"{type(owner).__name__}: {name} must be a finite number >= 0, got {value!r}")


def computed(backend: Any, device: Any, fun: Callable[..., tuple[Any, ...]], *arrays: np.ndarray) -> tuple[Any, ...]:
    """What `fun` returns for the arrays on a backend, its arrays as NumPy's; float64."""
    on = backends.get(backend or "numpy")
    with on.scope("float64"):
        place = None if device is None else find_device(on, device)
        found = fun(*(on.asarray(np.asarray(x, dtype=np.float64), dtype="float64", device=place) for x in arrays))
        return tuple(np.array(on.to_numpy(x)) if hasattr(x, "shape") else x for x in found)


def solved(owner: Any, problem: Problem, theta0: Any, over: Any, algorithm: Any = None) -> Result:
    """The solve of an estimator, to its tolerance, where it computes; at most 20 iterations unless it says how many."""
    place = {"backend": owner.backend, "device": owner.device}
    max_iter = ITERATIONS if owner.max_iter is None else owner.max_iter
    return solve(problem, theta0, over, algorithm=algorithm, tol=owner.tol, max_iter=max_iter, progress=False, **place)


def exact_codes(problem: Problem, atoms: np.ndarray, backend: Any, device: Any) -> np.ndarray:
    """Codes, a row for each target of the problem, that are the exact minimiser for atoms, a row each."""
    return np.ascontiguousarray(solve_lower(problem, np.ascontiguousarray(atoms.T), backend=backend, device=device).w.T)


def warn_unless_converged(owner: object, status: Status, gap: float, value: float) -> None:
    """Warn as scikit-learn's estimators do, unless no certificate was asked for: then the gap is NaN."""
    if not status.success and not (status is Status.MAX_ITER and math.isnan(gap)):
        enough = f" or tol: {2 * gap / value:.1g} times the objective is more than the gap" if gap < 0.1 * value else ""
        advice = f"Raise max_iter{enough}." if status is Status.MAX_ITER else status.advice
        warn_caller(
            f"{type(owner).__name__}: {status.sentence} The gap is {gap:.2g}, the objective {value:.6g}. {advice}",
            ConvergenceWarning,
        )


class Factorisation(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of what approximates samples, the rows of X, by ``codes @ components_``.

    A subclass defines `_codes`, and in `fit` calls `_keep`.
    """

    nonnegative_data = False

    @abstractmethod
    def _codes(self, X: np.ndarray) -> np.ndarray:
        """Codes of samples, shape (n_samples, n_components)."""

    def transform(self, X: Any) -> np.ndarray:
        """Codes of samples, shape (n_samples, n_components)."""
        check_is_fitted(self)
        return self._codes(self._checked(X, reset=False))

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Samples that codes stand for, shape (n_samples, n_features)."""
        check_is_fitted(self)
        codes = np.asarray(X, dtype=self.components_.dtype)
        if codes.ndim != 2 or codes.shape[1] != len(self.components_):
            raise ProblemError(f"codes must have shape (n_samples, {len(self.components_)}); got {codes.shape}")
        return codes @ self.components_ + self._offset()

    def score(self, X: Any, y: Any = None) -> float:
        """Share of the sum of squares of X that is explained, ``1 - |X - inverse_transform(codes)|^2 / |X|^2``."""
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        total = np.sum(np.abs(X) ** 2)
        off = np.sum(np.abs(X - self.inverse_transform(self._codes(X))) ** 2)
        return float(1.0 - off / (total if total > 0 else 1.0))

    def _offset(self) -> np.ndarray | float:
        """What the code 0 stands for."""
        return 0.0

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]

    def _checked(self, X: Any, reset: bool) -> np.ndarray:
        X = validate_data(self, X, reset=reset, dtype=np.float64)
        if self.nonnegative_data and np.any(X < 0):
            raise ProblemError(
                f"Negative values in data passed to {type(self).__name__}, {X.min():.3g}: see MinMaxScaler(clip=True)"
            )
        return X

    def _keep(self, fit: Result) -> None:
        """The certificate of a solve, and a warning where it did not converge."""
        self._claim(float(fit.value), float(fit.gap), fit.status, fit.n_iter)

    def _claim(self, value: float, gap: float, status: Status, n_iter: int) -> None:
        self.objective_, self.gap_, self.status_, self.n_iter_ = value, gap, status, max(1, n_iter)
        warn_unless_converged(self, status, gap, value)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.nonnegative_data
        return tags
