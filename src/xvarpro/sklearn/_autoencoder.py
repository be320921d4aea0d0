"""A sparse autoencoder that selects its latents; the linear decoder is eliminated."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import numpy as np
from sklearn.utils import check_random_state

from xvarpro.algorithms.interface import Algorithm
from xvarpro.core import trees
from xvarpro.core.checks import number
from xvarpro.core.struct import Array, Tree
from xvarpro.driver.outcome import DeadUnitsWarning
from xvarpro.errors import ProblemError
from xvarpro.problem.problem import separable
from xvarpro.sets import CappedSimplex
from xvarpro.sklearn._base import Factorisation, computed, nonnegative, solved, whole
from xvarpro.sklearn._head import check_widths, features, layers


def latents(theta: Tree, X: Array) -> Array:
    """``M(theta) = h(phi, X) diag(s)``, shape (n_samples, n_components)."""
    return features(theta["phi"], X) * theta["s"]


@final
@dataclass(eq=False, repr=False)
class SparseAutoencoder(Factorisation):
    """An autoencoder with tanh layers, a linear decoder that is solved for exactly, and gates that select latents.

    ``min 1/2 |h(phi, X) diag(s) components_ - X|^2 + n lam/2 |components_|^2`` over the decoder, the layers phi and
    gates ``s >= 0`` with ``sum s <= budget``, for the n rows of X without their mean. Latents share the budget, and the
    ridge makes a small gate expensive: some end at 0. (The paper's Example 1, in one level.)

    Parameters
    ----------
    n_components : int
        Latents at most, >= 1.
    hidden : int or tuple of int
        Widths of the layers before the latents, >= 1; ``()`` for none.
    budget : float
        Of the gates, > 0.
    lam : float
        Ridge on the decoder, per sample, > 0; with ``budget = b`` it acts as ``lam / b^2``.
    algorithm, max_iter, tol, backend, device
        As of `xvarpro.solve`; arrays in and out are NumPy's.
    random_state : int, RandomState or None
        Of the start.

    Attributes
    ----------
    components_ : array, shape (n_components, n_features)
        The decoder; rows of latents that are off are 0.
    gates_ : array, shape (n_components,)
        s.
    theta_ : dict
        ``"phi"``, the layers, and ``"s"``.
    mean_ : array, shape (n_features,)
    objective_, gap_, status_, n_iter_, n_features_in_, feature_names_in_
        As those of `ConstrainedDictionary`.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro.sklearn import SparseAutoencoder
    >>> draw = np.random.default_rng(0)
    >>> X = draw.normal(size=(80, 2)) @ draw.normal(size=(2, 6)) + 0.1 * draw.normal(size=(80, 6))
    >>> model = SparseAutoencoder(5, hidden=(), lam=1e-3, random_state=0).fit(X)
    >>> bool(model.score(X) > 0.9), bool(model.gates_.sum() <= 1 + 1e-12)
    (True, True)
    """

    n_components: int = 8
    _: KW_ONLY
    hidden: int | tuple[int, ...] = ()
    budget: float = 1.0
    lam: float = 1e-4
    algorithm: Algorithm | None = None
    max_iter: int = 500
    tol: float = 0.1
    random_state: Any = None
    backend: Any = None
    device: Any = None

    def fit(self, X: Any, y: Any = None) -> SparseAutoencoder:
        """Find layers, gates and decoder for the samples X, shape (n_samples, n_features)."""
        whole(self, "n_components")
        whole(self, "max_iter", least=0)
        nonnegative(self, "lam", "budget", "tol")
        if not number(self.lam) * number(self.budget) > 0:
            raise ProblemError(f"SparseAutoencoder: lam and budget must be > 0, got {self.lam!r} and {self.budget!r}")
        hidden = () if self.hidden == () else check_widths(self, self.hidden)
        X = self._checked(X, reset=True)
        self.mean_ = X.mean(axis=0)
        Y = X - self.mean_
        n = int(self.n_components)
        phi = layers((Y.shape[1], *hidden, n), check_random_state(self.random_state))
        # the range in which tanh is nearly linear, whatever the units of X
        phi["A0"] *= GAIN / (np.sqrt(np.mean(Y**2)) or 1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeadUnitsWarning)  # that is what gates are for
            problem, start = separable(latents, Y, data=Y, lam=self.lam * len(Y)), np.full(n, self.budget / n)
            fit = solved(self, problem, {"phi": phi, "s": start}, {"s": CappedSimplex(self.budget)}, self.algorithm)
        self.theta_, self.gates_, self.components_ = fit.theta, fit.theta["s"], np.ascontiguousarray(fit.w)
        self._keep(fit)
        return self

    def _codes(self, X: np.ndarray) -> np.ndarray:
        leaves, treedef = trees.flatten(self.theta_)
        (found,) = computed(
            self.backend,
            self.device,
            lambda X, *leaves: (latents(trees.unflatten(treedef, leaves), X),),
            *(X - self.mean_, *leaves),
        )
        return found

    def _offset(self) -> np.ndarray:
        return self.mean_


GAIN = 0.1  # of the first layer
