"""Any separable model as a regressor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from xvarpro.algorithms.interface import Algorithm
from xvarpro.core import trees
from xvarpro.core.struct import Array, Tree
from xvarpro.lower.weight_sets.interface import WeightSet
from xvarpro.operators.interface import as_operator
from xvarpro.problem.problem import Problem, separable
from xvarpro.sklearn._base import computed, solved, warn_unless_converged, whole


@final
@dataclass(eq=False, repr=False)
class VarProRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """A separable model ``y ~ M(theta, X) w``: curve fitting, in a Pipeline.

    Parameters
    ----------
    model : callable
        ``M(theta, X)`` -> design, shape (n_samples, n), with X of shape (n_samples, n_features); see
        `xvarpro.separable`. A function of a module can be pickled.
    theta0 : pytree of arrays, or callable
        Start, float64, or a function of X that returns it.
    over : Set or a tree of them, optional
        As in `xvarpro.solve`.
    lam : float or array
        Ridge on w, >= 0; one for each target, (n_targets,), as `sklearn.linear_model.Ridge` has them, for each entry of
        w, (n, 1), or both, (n, n_targets). An entry that is not to be shrunk, such as an intercept, has 0.
    W : WeightSet, optional
        Where w lies, such as ``xv.lower.Nonnegative()``.
    algorithm, max_iter, tol, backend, device
        As of `xvarpro.solve`; arrays in and out are NumPy's.

    Attributes
    ----------
    theta_ : pytree of arrays
    w_ : array, shape (n,) or (n, n_targets)
    result_ : xvarpro.Result
        Of the solve, with its certificate, and with standard errors by ``result_.statistics()``; a pickle of it has no
        problem: ``result_.attach(xv.separable(model, y, data=X, lam=lam, W=W, weights=sample_weight))``, all in
        float64, brings it back.
    n_iter_, n_features_in_, feature_names_in_
        As scikit-learn has them.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro.sklearn import VarProRegressor
    >>> def decays(theta, X):  # X has one feature, the time
    ...     return xv.array_namespace(theta).exp(-X * theta)
    >>> t = np.linspace(0.0, 2.0, 50)[:, None]
    >>> y = 2.0 * np.exp(-t[:, 0]) + np.exp(-5.0 * t[:, 0])
    >>> model = VarProRegressor(decays, np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 10.0), tol=1e-9).fit(t, y)
    >>> np.round(model.theta_, 3), np.round(model.w_, 3), round(model.score(t, y), 6)
    (array([1., 5.]), array([2., 1.]), 1.0)
    """

    model: Callable[[Tree, Any], Any]
    theta0: Any
    _: KW_ONLY
    over: Any = None
    lam: float | Array = 0.0
    W: WeightSet | None = None
    algorithm: Algorithm | None = None
    max_iter: int = 1000
    tol: float = 1e-6
    backend: Any = None
    device: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> VarProRegressor:
        """Find theta and w for X, (n_samples, n_features), and y, (n_samples,) or (n_samples, n_targets).

        `sample_weight`, (n_samples,), are weights of the squared residuals, such as ``1 / sigma^2``.
        """
        whole(self, "max_iter", least=0)
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=np.float64)
        theta0 = self.theta0(X) if callable(self.theta0) else self.theta0
        fit = solved(self, self._problem(X, y, weights), theta0, self.over, self.algorithm)
        self.result_, self.theta_, self.w_, self.n_iter_ = fit, fit.theta, np.asarray(fit.w), max(1, fit.n_iter)
        warn_unless_converged(self, fit.status, fit.gap, fit.value)
        return self

    def _problem(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> Problem:
        lam: Any = self.lam
        lam = np.asarray(lam)[None, :] if np.ndim(lam) == 1 else lam
        return separable(self.model, y, data=X, lam=lam, W=self.W, weights=weights)

    def predict(self, X: Any) -> np.ndarray:
        """``M(theta_, X) w_``, shape (n_samples,) or (n_samples, n_targets)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return product(self.model, self.theta_, self.w_, X, self.backend, self.device)


def product(
    model: Callable[[Tree, Any], Any], theta: Tree, w: np.ndarray, X: np.ndarray, backend: Any, device: Any
) -> np.ndarray:
    """``M(theta, X) w`` on a backend, as NumPy's array."""
    leaves, treedef = trees.flatten(theta)

    def moved(X: Array, w: Array, *leaves: Array) -> tuple[Array]:
        return (as_operator(model(trees.unflatten(treedef, leaves), X)).matvec(w),)

    (found,) = computed(backend, device, moved, X, w if w.ndim == 2 else w[:, None], *leaves)
    return found if w.ndim == 2 else found[:, 0]
