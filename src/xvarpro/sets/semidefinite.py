"""Sets of positive semidefinite matrices: the eigenvalues of a point lie in a set of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro.core import checks
from xvarpro.core.namespace import adjoint, device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets.interface import Set, check_matrix
from xvarpro.sets.k_largest import Hypersimplex
from xvarpro.sets.lanczos import Lanczos, Leading, LeadingSet
from xvarpro.sets.simplex import CappedSimplex, Simplex
from xvarpro.sets.spectra import SpectralSet, eigh
from xvarpro.sets.vectors import divisor


class _OfEigenvalues(SpectralSet):
    """Symmetric or Hermitian matrices whose eigenvalues lie in `spectrum`; a gradient counts by its Hermitian part."""

    of_eigenvalues = True

    @property
    def _unit(self) -> float:
        """Size of an eigenvalue, to which an asymmetry is compared."""
        return 1.0

    def _decomposed(self, x: Array) -> tuple[Array, Array, Array]:
        self.check(x.shape)
        w, Q = eigh(x)
        return Q, w, adjoint(Q)

    def check(self, shape: tuple[int, ...]) -> None:
        check_matrix(self, shape, square=True)

    def violation(self, x: Array) -> Array:
        xp = namespace_of(x)
        asymmetry = xp.max(xp.abs(0.5 * x - 0.5 * adjoint(x)), axis=(-2, -1)) / self._unit
        return xp.maximum(SpectralSet.violation(self, x), asymmetry)

    def center(self, like: Array) -> Array:
        xp = namespace_of(like)
        entry = float(self.spectrum.center(np.empty(like.shape[-1]))[0])
        return xp.zeros_like(like) + entry * xp.eye(like.shape[-1], dtype=like.dtype, device=device(like))


@dataclass(frozen=True)
class _OfLowestEigenvector(LeadingSet, _OfEigenvalues):
    """A set whose vertices are ``radius q q^H``, q of the smallest eigenvalue of a gradient."""

    @property
    def _unit(self) -> float:
        return divisor(self.radius)

    def _leading(self, solver: Lanczos, g: Array, certify: bool = True) -> Leading:
        return solver.eigen(g, certify)


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
