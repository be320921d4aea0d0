"""Sets of positive semidefinite matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any, final

from xvarpro.core import checks
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._search import onto_slice
from xvarpro.sets._spectra import adjoint, composed, eigh, hermitian, outer
from xvarpro.sets.interface import Set
from xvarpro.sets.lanczos import Lanczos
from xvarpro.sets.vectors import onto_simplex


class _Semidefinite(Set):
    """What the three sets share: square matrices on the last two axes, Hermitian points, gradients of any kind."""

    event_ndim = 2
    spectral = True
    takes_complex = True

    def check(self, shape: tuple[int, ...]) -> None:
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise ProblemError(f"{type(self).__name__} constrains a square matrix, got a leaf of shape {shape}")


@final
@dataclass(frozen=True)
class Spectraplex(_Semidefinite):
    """Spectraplex ``{X positive semidefinite, trace X = radius}`` of square matrices, symmetric or Hermitian.

    A gradient counts by its symmetric part. The oracle's vertex is ``radius q q^H`` for an eigenvector of the smallest
    eigenvalue; where that is not alone, any of its space.

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

    radius: float = 1.0
    solver: Lanczos | None = None

    def __post_init__(self) -> None:
        checks.nonnegative(self, "radius")
        _check_solver(self)

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls(2.5)

    def lmo(self, g: Array) -> Array:
        return self._oracle(g, certify=False)[0]

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        return self._oracle(g, certify=True)

    def _oracle(self, g: Array, certify: bool) -> tuple[Array, Array | None]:
        q, value, bound = _lowest(self.solver, g, certify)
        return self.radius * outer(q, q), None if bound is None else self.radius * (value - bound)

    def support(self, g: Array) -> Array:
        return self.radius * _highest(self.solver, g)

    def project(self, x: Array) -> Array:
        w, Q = eigh(x)
        return composed(Q, onto_simplex(w, self.radius), adjoint(Q))

    def diameter(self, like: Array) -> float:
        return math.sqrt(2) * self.radius if like.shape[-1] > 1 else 0.0

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        w, _ = eigh(x)
        worst = xp.maximum(-xp.min(w, axis=-1), xp.abs(xp.sum(w, axis=-1) - self.radius))
        worst = xp.maximum(worst, _asymmetry(x))
        return xp.maximum(worst, xp.zeros_like(worst)) / (self.radius or 1.0)

    def center(self, like: Array) -> Array:
        return _identity(like, self.radius / like.shape[-1])


@final
@dataclass(frozen=True)
class UnitSpectrahedron(_Semidefinite):
    """``{X positive semidefinite, trace X <= radius}`` of square matrices, symmetric or Hermitian.

    A gradient counts by its symmetric part; where that has no negative eigenvalue, the oracle's point is 0.

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

    radius: float = 1.0
    solver: Lanczos | None = None

    def __post_init__(self) -> None:
        checks.nonnegative(self, "radius")
        _check_solver(self)

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls(2.5)

    def lmo(self, g: Array) -> Array:
        return self._oracle(g, certify=False)[0]

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        return self._oracle(g, certify=True)

    def _oracle(self, g: Array, certify: bool) -> tuple[Array, Array | None]:
        xp = array_namespace(g)
        q, value, bound = _lowest(self.solver, g, certify)
        zero = xp.zeros_like(value)
        # a NaN eigenvalue is not above 0
        kept = xp.where(value >= 0, zero, zero + self.radius)
        v = xp.expand_dims(kept, axis=(-2, -1)) * outer(q, q)
        if bound is None:
            return v, None
        return v, self.radius * (xp.minimum(value, zero) - xp.minimum(bound, zero))

    def support(self, g: Array) -> Array:
        largest = _highest(self.solver, g)
        return self.radius * array_namespace(g).maximum(largest, 0 * largest)

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        w, Q = eigh(x)
        clipped = xp.maximum(w, xp.zeros_like(w))
        fits = xp.sum(clipped, axis=-1, keepdims=True) <= self.radius
        return composed(Q, xp.where(fits, clipped, onto_simplex(w, self.radius)), adjoint(Q))

    def diameter(self, like: Array) -> float:
        return (math.sqrt(2) if like.shape[-1] > 1 else 1.0) * self.radius

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        w, _ = eigh(x)
        worst = xp.maximum(-xp.min(w, axis=-1), xp.sum(w, axis=-1) - self.radius)
        worst = xp.maximum(worst, _asymmetry(x))
        return xp.maximum(worst, xp.zeros_like(worst)) / (self.radius or 1.0)

    def center(self, like: Array) -> Array:
        return _identity(like, self.radius / (like.shape[-1] + 1))


@final
@dataclass(frozen=True)
class Fantope(_Semidefinite):
    """Fantope ``{0 <= X <= I, trace X = k}``: the convex hull of the projections on subspaces of dimension k.

    A gradient counts by its symmetric part. The oracle's vertex projects on the eigenvectors of the k smallest
    eigenvalues; where the k-th is not alone, on any choice of its space.

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
        k: Any = self.k
        if not isinstance(k, Integral) or isinstance(k, bool) or k < 1:
            raise ProblemError(f"Fantope: k must be a whole number >= 1, got {k!r}")
        object.__setattr__(self, "k", int(k))

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = shape[-1]
        return cls(), *(cls(k) for k in sorted({2, n - 1}) if 1 < k < n)

    def check(self, shape: tuple[int, ...]) -> None:
        _Semidefinite.check(self, shape)
        if self.k > shape[-1]:
            raise ProblemError(f"Fantope({self.k}) needs matrices of that size at least, got a leaf of shape {shape}")

    def lmo(self, g: Array) -> Array:
        if self.k >= g.shape[-1]:
            return _identity(g, 1.0) + 0 * g  # the only point, and NaN for NaN
        _, Q = eigh(g)
        lowest = Q[..., :, : self.k]
        return hermitian(lowest @ adjoint(lowest))

    def support(self, g: Array) -> Array:
        w, _ = eigh(g)
        return array_namespace(g).sum(w[..., -self.k :], axis=-1)

    def project(self, x: Array) -> Array:
        if self.k >= x.shape[-1]:
            return _identity(x, 1.0) + 0 * x
        w, Q = eigh(x)
        ones = array_namespace(w).ones(w.shape[-1:], dtype=w.dtype, device=device(w))
        return composed(Q, onto_slice(w, ones, ones, float(self.k)), adjoint(Q))

    def diameter(self, like: Array) -> float:
        return math.sqrt(2 * min(self.k, max(like.shape[-1] - self.k, 0)))

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        w, _ = eigh(x)
        worst = xp.maximum(xp.maximum(-xp.min(w, axis=-1), xp.max(w, axis=-1) - 1), _asymmetry(x))
        # the size of the set is that of an eigenvalue for the bounds, k for the trace
        worst = xp.maximum(worst, xp.abs(xp.sum(w, axis=-1) - self.k) / self.k)
        return xp.maximum(worst, xp.zeros_like(worst))

    def center(self, like: Array) -> Array:
        return _identity(like, self.k / like.shape[-1])


def _check_solver(owner: Any) -> None:
    if not (owner.solver is None or isinstance(owner.solver, Lanczos)):
        raise ProblemError(f"{type(owner).__name__}: solver must be None or Lanczos(...), got {owner.solver!r}")


def _lowest(solver: Lanczos | None, g: Array, certify: bool) -> tuple[Array, Array, Array | None]:
    """Eigenvector near the smallest eigenvalue, its value, and a lower bound if that is not the eigenvalue itself."""
    if solver is None or not solver.replaces(g.shape):
        w, Q = eigh(g)
        return Q[..., :, 0], w[..., 0], None
    found = solver.eigen(-g, certify)
    return found.vector, -found.value, -found.bound


def _highest(solver: Lanczos | None, g: Array) -> Array:
    if solver is None or not solver.replaces(g.shape):
        return eigh(g)[0][..., -1]
    return solver.eigen(g).bound


def _asymmetry(x: Array) -> Array:
    """Largest entry of ``(x - x^H) / 2``."""
    xp = array_namespace(x)
    return xp.max(xp.abs(0.5 * x - 0.5 * adjoint(x)), axis=(-2, -1))


def _identity(like: Array, entry: float) -> Array:
    xp = array_namespace(like)
    return xp.zeros_like(like) + entry * xp.eye(like.shape[-1], dtype=like.dtype, device=device(like))
