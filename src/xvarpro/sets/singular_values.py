"""Balls of matrices in norms of their singular values, which lie in a ball of vectors."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.sets._ball import RadiusSet
from xvarpro.sets._spectra import composed, outer, polar, singular_values, svd
from xvarpro.sets.balls import L1Ball
from xvarpro.sets.box import LinfBall
from xvarpro.sets.interface import Set, check_matrix
from xvarpro.sets.lanczos import Lanczos, LeadingSet
from xvarpro.sets.lp import LpBall


class _OfSingularValues(Set):
    """Matrices on the last two axes, real or complex, whose singular values lie in `spectrum`."""

    event_ndim = 2
    spectral = True
    takes_complex = True

    @property
    @abstractmethod
    def spectrum(self) -> Set:
        """The set of the singular values, which depends on their sizes only."""

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls(2.5)  # type: ignore[call-arg]

    def check(self, shape: tuple[int, ...]) -> None:
        check_matrix(self, shape)

    # von Neumann's trace inequality: the best matrix has the singular vectors of the gradient, the nearest one those
    # of the point

    def lmo(self, g: Array) -> Array:
        U, s, Vh = svd(g)
        return composed(U, self.spectrum.lmo(s), Vh)

    def support(self, g: Array) -> Array:
        return self.spectrum.support(singular_values(g))

    def project(self, x: Array) -> Array:
        xp = namespace_of(x)
        U, s, Vh = svd(x)
        inside = xp.expand_dims(self.spectrum.violation(s) <= 0, axis=(-2, -1))
        return xp.where(inside, x, composed(U, self.spectrum.project(s), Vh))

    def diameter(self, like: Array) -> float:
        return self.spectrum.diameter(np.empty(min(like.shape[-2:])))

    def violation(self, x: Array) -> Array:
        return self.spectrum.violation(singular_values(x))


@final
@dataclass(frozen=True)
class NuclearBall(LeadingSet, _OfSingularValues):
    """Ball ``{sum of the singular values <= radius}`` of matrices on the last two axes, real or complex.

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

    @property
    def spectrum(self) -> Set:
        return L1Ball(self.radius)

    def lmo(self, g: Array) -> Array:
        solver = self._solver(g)
        if solver is None:
            return _OfSingularValues.lmo(self, g)
        found = solver.singular(g, certify=False)
        return -self.radius * outer(found.image, found.vector)

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        solver = self._solver(g)
        if solver is None:
            return self.lmo(g), None
        found = solver.singular(g)
        return -self.radius * outer(found.image, found.vector), self.radius * (found.bound - found.value)

    def support(self, g: Array) -> Array:
        solver = self._solver(g)
        return _OfSingularValues.support(self, g) if solver is None else self.radius * solver.singular(g).bound


@final
@dataclass(frozen=True)
class SpectralBall(RadiusSet, _OfSingularValues):
    """Ball ``{largest singular value <= radius}`` of matrices on the last two axes, real or complex.

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

    @property
    def spectrum(self) -> Set:
        return LinfBall(self.radius)

    def lmo(self, g: Array) -> Array:
        return -self.radius * polar(g)[0]


@final
@dataclass(frozen=True)
class SchattenBall(RadiusSet, _OfSingularValues):
    """Ball ``{(sum of s^p)^(1/p) <= radius}`` in the singular values of matrices on the last two axes.

    Between `NuclearBall` (``p = 1``) and `SpectralBall` (``p = inf``); the Frobenius ball at ``p = 2``.

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
        super().__post_init__()
        checks.above(self, "p", 1.0)

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls(1.5), cls(4.0, 0.5)

    @property
    def spectrum(self) -> Set:
        return LpBall(self.p, self.radius)
