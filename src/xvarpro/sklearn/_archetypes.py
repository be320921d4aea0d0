"""Archetypal analysis: atoms that are mixtures of samples, samples that are mixtures of atoms."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import numpy as np
from sklearn.utils import check_random_state

from xvarpro import lower, sets
from xvarpro.core.struct import Array
from xvarpro.errors import warn_caller
from xvarpro.problem.problem import separable
from xvarpro.sklearn._base import Factorisation, design, exact_codes, nonnegative, solved, whole


def archetypes(theta: Array, X: Array) -> Array:
    """``X B``: the atoms that the mixtures theta of samples, (n_samples, n), make of X, (n_features, n_samples)."""
    return X @ theta


@final
@dataclass(eq=False, repr=False)
class ArchetypalAnalysis(Factorisation):
    """Archetypal analysis, ``min 1/2 |S B X - X|^2`` with the rows of S and of B on the simplex (Cutler, Breiman 1994).

    Archetypes ``components_ = B X`` are convex combinations of samples, and the codes S of samples convex combinations
    of archetypes. S is eliminated exactly, and B found by `xvarpro.solve`, whose certificate the attributes hold.
    Blocks of accelerated projected gradient steps, in B and in S in turn, would take longer.

    Parameters
    ----------
    n_components : int
        Number of archetypes, >= 1; no more than samples, of which others would be copies.
    lam : float
        Ridge on the codes, >= 0, relative to the variance of X, so that codes are unique.
    random_state : int, RandomState or None
        Of the first sample to start from; others are those furthest from all before.
    max_iter, tol, backend, device
        As of `xvarpro.solve`; arrays in and out are NumPy's.

    Attributes
    ----------
    components_ : array, shape (n_components, n_features)
        Archetypes.
    mixtures_ : array, shape (n_components, n_samples)
        B.
    objective_, gap_, status_, n_iter_, n_features_in_, feature_names_in_
        As those of `ConstrainedDictionary`.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro.sklearn import ArchetypalAnalysis
    >>> draw = np.random.default_rng(0)
    >>> corners = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    >>> X = draw.dirichlet(np.ones(3) / 2, size=80) @ corners + 0.1 * draw.normal(size=(80, 2))
    >>> model = ArchetypalAnalysis(3, random_state=0).fit(X)
    >>> S = model.transform(X)
    >>> bool(abs(S.sum(axis=1) - 1).max() < 1e-12), bool(abs(model.mixtures_.sum(axis=1) - 1).max() < 1e-12)
    (True, True)
    """

    n_components: int = 4
    _: KW_ONLY
    lam: float = 1e-9
    max_iter: int = 300
    tol: float = 1e-2
    random_state: Any = None
    backend: Any = None
    device: Any = None

    def _codes(self, X: np.ndarray) -> np.ndarray:
        # moved as in the fit: shares of archetypes do not depend on the origin
        Y = np.ascontiguousarray((X - self._mean).T)
        problem = separable(design, Y, lam=self._ridge, W=lower.Simplex())
        return exact_codes(problem, self.components_ - self._mean, self.backend, self.device)

    def fit(self, X: Any, y: Any = None) -> ArchetypalAnalysis:
        """Find archetypes of the samples X, shape (n_samples, n_features)."""
        whole(self, "n_components")
        whole(self, "max_iter", least=0)
        nonnegative(self, "lam", "tol")
        X = self._checked(X, reset=True)
        if len(X) < self.n_components:
            copies = f"of {self.n_components} archetypes of {len(X)} samples some are copies, which take long"
            warn_caller(f"ArchetypalAnalysis: {copies}", UserWarning)
        self._mean = X.mean(axis=0)
        X = X - self._mean
        self._ridge = self.lam * float(np.mean(X**2) or 1.0)
        Y = np.ascontiguousarray(X.T)
        B = np.zeros((len(X), self.n_components))
        B[furthest(X, self.n_components, check_random_state(self.random_state)), np.arange(self.n_components)] = 1.0
        problem = separable(archetypes, Y, data=Y, lam=self._ridge, W=lower.Simplex())
        fit = solved(self, problem, B, sets.Columns(sets.Simplex()))
        self.mixtures_ = np.ascontiguousarray(fit.theta.T)
        self.components_ = self.mixtures_ @ X + self._mean
        self._keep(fit)
        return self


def furthest(X: np.ndarray, n: int, draw: np.random.RandomState) -> list[int]:
    """Indices of samples, each the furthest from those before; the first is furthest from one drawn at random."""
    found: list[int] = []
    near = np.sum((X - X[draw.randint(len(X))]) ** 2, axis=1)
    for _ in range(n):
        found.append(int(np.argmax(near)))
        off = np.sum((X - X[found[-1]]) ** 2, axis=1)
        near = off if len(found) == 1 else np.minimum(near, off)
    return found
