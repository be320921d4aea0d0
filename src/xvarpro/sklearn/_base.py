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
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from xvarpro import backends
from xvarpro.backends.exchange import find_device
from xvarpro.core.checks import number
from xvarpro.core.status import Status
from xvarpro.driver.evaluate import solve_lower
from xvarpro.errors import ProblemError, warn_caller
from xvarpro.lower.weight_sets.interface import WeightSet
from xvarpro.problem.problem import Problem
from xvarpro.results.result import Result


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


def warn_unless_converged(owner: object, status: Status, gap: float, value: float) -> None:
    """Warn as scikit-learn's estimators do."""
    if not status.success:
        warn_caller(
            f"{type(owner).__name__}: {status.sentence} The gap is {gap:.2g}, the objective {value:.6g}. "
            "Raise max_iter or tol",
            ConvergenceWarning,
        )


class Factorisation(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of what approximates samples, the rows of X, by ``codes @ components_``.

    A subclass defines `_problem`, and in `fit` calls `_keep`.
    """

    nonnegative_data = False

    @abstractmethod
    def _weights(self) -> WeightSet | None:
        """Where codes may lie."""

    @abstractmethod
    def _problem(self, X: np.ndarray) -> Problem:
        """The problem whose design is theta, atoms as columns, and whose targets are the samples."""

    def transform(self, X: Any) -> np.ndarray:
        """Codes of samples: the exact minimiser of the lower level, shape (n_samples, n_components)."""
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        return self._codes(X)

    def _codes(self, X: np.ndarray) -> np.ndarray:
        atoms = np.ascontiguousarray(self.components_.T)
        return np.ascontiguousarray(solve_lower(self._problem(X), atoms, backend=self.backend, device=self.device).w.T)

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Samples that codes stand for, ``X @ components_``, shape (n_samples, n_features)."""
        check_is_fitted(self)
        return np.asarray(X, dtype=np.float64) @ self.components_

    def score(self, X: Any, y: Any = None) -> float:
        """Share of the sum of squares of X that is explained, ``1 - |X - codes @ components_|^2 / |X|^2``."""
        codes = self.transform(X)
        X = self._checked(X, reset=False)
        total = np.sum(X**2)
        return float(1.0 - np.sum((X - codes @ self.components_) ** 2) / (total if total > 0 else 1.0))

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]

    def _checked(self, X: Any, reset: bool) -> np.ndarray:
        X = validate_data(self, X, reset=reset, dtype=np.float64)
        if self.nonnegative_data:
            check_non_negative(X, type(self).__name__)
        return X

    def _keep(self, fit: Result, sweeps: int) -> None:
        """Attributes of a fit from the exact solve and the number of sweeps before it."""
        self.objective_, self.gap_, self.status_ = float(fit.value), float(fit.gap), fit.status
        self.n_sweeps_, self.n_iter_ = sweeps, sweeps + fit.n_iter
        warn_unless_converged(self, fit.status, self.gap_, self.objective_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.nonnegative_data
        return tags
