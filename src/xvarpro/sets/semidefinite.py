"""Sets of positive semidefinite matrices: the eigenvalues of a point lie in a set of vectors."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro.core import checks
from xvarpro.core.namespace import adjoint, device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._spectra import composed, eigh, hermitian, outer
from xvarpro.sets.interface import Set, check_matrix
from xvarpro.sets.k_largest import Hypersimplex
from xvarpro.sets.lanczos import Lanczos, LeadingSet
from xvarpro.sets.simplex import CappedSimplex, Simplex


class _OfEigenvalues(Set):
    """Symmetric or Hermitian matrices on the last two axes whose eigenvalues lie in `spectrum`.

    A gradient counts by its Hermitian part.
    """

    event_ndim = 2
    spectral = True
    takes_complex = True

    @property
    @abstractmethod
    def spectrum(self) -> Set:
        """The set of the eigenvalues, which does not depend on their order."""

    @property
    def size(self) -> float:
        """Size of an eigenvalue, to which an asymmetry is compared."""
        return 1.0

    def check(self, shape: tuple[int, ...]) -> None:
        check_matrix(self, shape, square=True)

    # Fan's trace inequality: the best matrix has the eigenvectors of the gradient, the nearest one those of the point

    def lmo(self, g: Array) -> Array:
        w, Q = eigh(g)
        return hermitian(composed(Q, self.spectrum.lmo(w), adjoint(Q)))

    def support(self, g: Array) -> Array:
        return self.spectrum.support(eigh(g)[0])

    def project(self, x: Array) -> Array:
        w, Q = eigh(x)
        return composed(Q, self.spectrum.project(w), adjoint(Q))

    def diameter(self, like: Array) -> float:
        return self.spectrum.diameter(np.empty(like.shape[-1]))

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        asymmetry = xp.max(xp.abs(0.5 * x - 0.5 * adjoint(x)), axis=(-2, -1)) / self.size
        return xp.maximum(self.spectrum.violation(eigh(x)[0]), asymmetry)

    def center(self, like: Array) -> Array:
        xp = namespace_of(like)
        entry = float(self.spectrum.center(np.empty(like.shape[-1]))[0])
        return xp.zeros_like(like) + entry * xp.eye(like.shape[-1], dtype=like.dtype, device=device(like))


@dataclass(frozen=True)
class _OfLowestEigenvector(LeadingSet, _OfEigenvalues):
    """A set whose vertices are ``radius q q^H``: its oracle needs one eigenvector, of the smallest eigenvalue."""

    radius: float = 1.0
    solver: Lanczos | None = None

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls(2.5)

    @property
    def size(self) -> float:
        return self.radius or 1.0

    def _vertex(self, value: Array, q: Array) -> Array:
        # of the spectrum the oracle needs the smallest eigenvalue only
        xp = namespace_of(q)
        weight = self.spectrum.lmo(xp.expand_dims(value, axis=-1))
        return xp.expand_dims(weight, axis=-1) * outer(q, q)

    def lmo(self, g: Array) -> Array:
        solver = self._solver(g)
        if solver is None:
            return _OfEigenvalues.lmo(self, g)
        found = solver.eigen(-g, certify=False)
        return self._vertex(-found.value, found.vector)

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        solver = self._solver(g)
        if solver is None:
            return self.lmo(g), None
        xp = namespace_of(g)
        found = solver.eigen(-g)
        value, bound = (xp.expand_dims(x, axis=-1) for x in (found.value, found.bound))
        return self._vertex(-found.value, found.vector), self.spectrum.support(bound) - self.spectrum.support(value)

    def support(self, g: Array) -> Array:
        solver = self._solver(g)
        if solver is None:
            return _OfEigenvalues.support(self, g)
        return self.spectrum.support(namespace_of(g).expand_dims(solver.eigen(g).bound, axis=-1))


@final
@dataclass(frozen=True)
class Spectraplex(_OfLowestEigenvector):
    """Spectraplex ``{X positive semidefinite, trace X = radius}`` of square matrices, symmetric or Hermitian.

    A gradient counts by its symmetric part.

    Parameters
    ----------
    radius : float
        The trace, >= 0.
    solver : Lanczos, optional
        Finds the eigenvector of large matrices without decomposing them; `certified` and `support` then come with its
        upper bound. The default decomposes.

    Notes
    -----
    LMO : ``radius q q^H``, q of the smallest eigenvalue of g; any q
    Cost : eigh; products with `Lanczos`
    Diameter : ``sqrt(2) radius``; 0 for n = 1
    Projection : eigh, values onto `Simplex`

    References
    ----------
    Hazan, "Sparse approximate solutions to semidefinite programs", LATIN 2008.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Spectraplex(2.0).lmo(np.diag([1.0, -1.0]))
    array([[0., 0.],
           [0., 2.]])
    """

    @property
    def spectrum(self) -> Set:
        return Simplex(self.radius)


@final
@dataclass(frozen=True)
class UnitSpectrahedron(_OfLowestEigenvector):
    """``{X positive semidefinite, trace X <= radius}`` of square matrices, symmetric or Hermitian.

    A gradient counts by its symmetric part.

    Parameters
    ----------
    radius : float
        Largest trace, >= 0.
    solver : Lanczos, optional
        As for `Spectraplex`.

    Notes
    -----
    LMO : that of `Spectraplex` if the eigenvalue is < 0, else 0
    Cost : eigh; products with `Lanczos`
    Diameter : ``sqrt(2) radius``; ``radius`` for n = 1
    Projection : eigh, values onto `CappedSimplex`

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.UnitSpectrahedron().project(np.diag([0.5, -1.0]))
    array([[0.5, 0. ],
           [0. , 0. ]])
    """

    @property
    def spectrum(self) -> Set:
        return CappedSimplex(self.radius)


@final
@dataclass(frozen=True)
class Fantope(_OfEigenvalues):
    """Fantope ``{0 <= X <= I, trace X = k}``: the convex hull of the projections on subspaces of dimension k.

    A gradient counts by its symmetric part.

    Parameters
    ----------
    k : int
        Dimension, >= 1 and at most that of the matrices; ``Fantope(1)`` is ``Spectraplex(1.0)``.

    Notes
    -----
    LMO : ``Q Q^H``, Q of the k smallest eigenvalues of g; any Q
    Cost : eigh
    Diameter : ``sqrt(2 min(k, n - k))``
    Projection : eigh, values onto `Hypersimplex`

    References
    ----------
    Vu, Cho, Lei, Rohe, "Fantope projection and selection: a near-optimal convex relaxation of sparse PCA", NeurIPS
    2013.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Fantope(2).lmo(np.diag([1.0, 3.0, 2.0]))
    array([[1., 0., 0.],
           [0., 0., 0.],
           [0., 0., 1.]])
    """

    k: int = 1

    def __post_init__(self) -> None:
        checks.whole(self, "k", 1)

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = shape[-1]
        return cls(), *(cls(k) for k in sorted({2, n - 1}) if 1 < k < n)

    def check(self, shape: tuple[int, ...]) -> None:
        _OfEigenvalues.check(self, shape)
        if self.k > shape[-1]:
            raise ProblemError(
                f"Fantope: k must be at most the size of the matrix, got k={self.k} for a leaf of shape {shape}"
            )

    @property
    def spectrum(self) -> Set:
        return Hypersimplex(self.k)
