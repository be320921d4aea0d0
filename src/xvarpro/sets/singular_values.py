"""Balls of matrices in norms of their singular values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, final

import numpy as np

from xvarpro.core import checks
from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._spectra import composed, outer, singular_values, svd
from xvarpro.sets.interface import Set
from xvarpro.sets.lanczos import Lanczos
from xvarpro.sets.lp import LpBall
from xvarpro.sets.vectors import onto_simplex


class _Spectral(Set):
    """What the three balls share: matrices on the last two axes, real or complex."""

    event_ndim = 2
    spectral = True
    takes_complex = True

    def check(self, shape: tuple[int, ...]) -> None:
        if len(shape) < 2:
            raise ProblemError(
                f"{type(self).__name__} constrains a matrix: theta's leaf must have 2 or more axes, got shape {shape}"
            )


@final
@dataclass(frozen=True)
class NuclearBall(_Spectral):
    """Ball ``{sum of the singular values <= radius}`` of matrices on the last two axes, real or complex.

    The oracle's vertex is ``-radius u v^H`` for the leading singular pair of the gradient: one of rank one. Where the
    largest singular value is not alone, any pair of its space is a minimiser. The projection costs a full
    decomposition.

    Parameters
    ----------
    radius : float
        Radius, >= 0.
    solver : Lanczos, optional
        Finds the leading pair of large matrices without decomposing them; `certified` and `support` then come with its
        upper bound. The default decomposes.

    Notes
    -----
    LMO : ``-radius u v^H``, the leading singular pair of g; any pair
    Cost : SVD; products with `Lanczos`
    Diameter : ``2 radius``
    Projection : SVD, values onto `Simplex` where outside

    References
    ----------
    Jaggi, "Revisiting Frank-Wolfe: Projection-free sparse convex optimization", ICML 2013.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> v = xv.sets.NuclearBall(2.0).lmo(np.array([[0.0, 3.0], [1.0, 0.0]]))
    >>> np.round(v, 12) + 0.0
    array([[ 0., -2.],
           [ 0.,  0.]])
    """

    radius: float = 1.0
    solver: Lanczos | None = None

    def __post_init__(self) -> None:
        checks.nonnegative(self, "radius")
        if not (self.solver is None or isinstance(self.solver, Lanczos)):
            raise ProblemError(f"NuclearBall: solver must be None or Lanczos(...), got {self.solver!r}")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls(2.5)

    def lmo(self, g: Array) -> Array:
        return self._oracle(g, certify=False)[0]

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        return self._oracle(g, certify=True)

    def _oracle(self, g: Array, certify: bool) -> tuple[Array, Array | None]:
        xp = array_namespace(g)
        if self.solver is None or not self.solver.replaces(g.shape):
            U, _, Vh = svd(g)
            return -self.radius * (xp.expand_dims(U[..., :, 0], axis=-1) * xp.expand_dims(Vh[..., 0, :], axis=-2)), None
        found = self.solver.singular(g, certify)
        return -self.radius * outer(found.image, found.vector), self.radius * (found.bound - found.value)

    def support(self, g: Array) -> Array:
        if self.solver is None or not self.solver.replaces(g.shape):
            return self.radius * array_namespace(g).max(singular_values(g), axis=-1)
        return self.radius * self.solver.singular(g).bound

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        U, s, Vh = svd(x)
        fits = xp.sum(s, axis=-1, keepdims=True) <= self.radius
        return xp.where(xp.expand_dims(fits, axis=-1), x, composed(U, onto_simplex(s, self.radius), Vh))

    def diameter(self, like: Array) -> float:
        return 2 * self.radius

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        excess = xp.sum(singular_values(x), axis=-1) - self.radius
        return xp.maximum(excess, xp.zeros_like(excess)) / (self.radius or 1.0)


@final
@dataclass(frozen=True)
class SpectralBall(_Spectral):
    """Ball ``{largest singular value <= radius}`` of matrices on the last two axes, real or complex.

    The oracle's point is ``-radius U V^H``, minus the polar factor of the gradient. On a null direction of the
    gradient, where every choice is a minimiser, it is 0: what the decomposition happens to complete with has no
    meaning.

    Parameters
    ----------
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : ``-radius U V^H`` of ``g = U S V^H``; 0 on null directions
    Cost : SVD
    Diameter : ``2 radius sqrt(min(m, n))``
    Projection : SVD, values clipped

    References
    ----------
    Pethick et al., "Training deep learning models with norm-constrained LMOs", ICML 2025.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.SpectralBall().project(np.array([[3.0, 0.0], [0.0, 0.5]]))
    array([[1. , 0. ],
           [0. , 0.5]])
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        checks.nonnegative(self, "radius")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls(2.5)

    def lmo(self, g: Array) -> Array:
        xp = array_namespace(g)
        U, s, Vh = svd(g)
        top = xp.max(s, axis=-1, keepdims=True)
        kept = s > top * (max(g.shape[-2:]) * xp.finfo(s.dtype).eps)
        return -self.radius * composed(U, xp.astype(kept, s.dtype), Vh)

    def support(self, g: Array) -> Array:
        return self.radius * array_namespace(g).sum(singular_values(g), axis=-1)

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        U, s, Vh = svd(x)
        fits = xp.max(s, axis=-1, keepdims=True) <= self.radius
        clipped = xp.where(s > self.radius, xp.full_like(s, self.radius), s)
        return xp.where(xp.expand_dims(fits, axis=-1), x, composed(U, clipped, Vh))

    def diameter(self, like: Array) -> float:
        return 2 * self.radius * math.sqrt(min(like.shape[-2:]))

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        excess = xp.max(singular_values(x), axis=-1) - self.radius
        return xp.maximum(excess, xp.zeros_like(excess)) / (self.radius or 1.0)


@final
@dataclass(frozen=True)
class SchattenBall(_Spectral):
    """Ball ``{(sum of s^p)^(1/p) <= radius}`` in the singular values of matrices on the last two axes.

    Between `NuclearBall` (``p = 1``) and `SpectralBall` (``p = inf``); the Frobenius ball at ``p = 2``. Strictly
    convex: the minimiser is unique unless the gradient is 0, where it is the centre.

    Parameters
    ----------
    p : float
        Exponent, ``1 < p < inf``.
    radius : float
        Radius, >= 0.

    Notes
    -----
    LMO : ``U diag(v) V^H``, v that of `LpBall` for S; 0 for g = 0
    Cost : SVD
    Diameter : ``2 radius max(1, min(m, n)^(1/2 - 1/p))``
    Projection : SVD, values onto `LpBall`

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.SchattenBall(2.0, radius=10.0).lmo(np.diag([3.0, 4.0]))
    array([[-6.,  0.],
           [ 0., -8.]])
    """

    p: float = 2.0
    radius: float = 1.0

    def __post_init__(self) -> None:
        p: Any = self.p
        if not isinstance(p, Real) or isinstance(p, bool) or not 1 < float(p) < math.inf:
            raise ProblemError(
                f"SchattenBall: p must be a number with 1 < p < inf, got {p!r}; p = 1 is NuclearBall, inf SpectralBall"
            )
        object.__setattr__(self, "p", float(p))
        checks.nonnegative(self, "radius")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls(1.5), cls(4.0, 0.5)

    @property
    def _spectrum(self) -> LpBall:
        """What holds the singular values."""
        return LpBall(self.p, self.radius)

    def lmo(self, g: Array) -> Array:
        U, s, Vh = svd(g)
        return composed(U, self._spectrum.lmo(s), Vh)

    def support(self, g: Array) -> Array:
        return self._spectrum.support(singular_values(g))

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        U, s, Vh = svd(x)
        fits = self._spectrum.violation(s) <= 0
        return xp.where(xp.expand_dims(fits, axis=(-2, -1)), x, composed(U, self._spectrum.project(s), Vh))

    def diameter(self, like: Array) -> float:
        return self._spectrum.diameter(np.empty(min(like.shape[-2:])))

    def violation(self, x: Array) -> Array:
        return self._spectrum.violation(singular_values(x))
