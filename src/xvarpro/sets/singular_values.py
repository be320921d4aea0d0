"""Balls of matrices in norms of their singular values, which lie in a ball of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.core import checks
from xvarpro.core.struct import Array
from xvarpro.sets.balls import L1Ball
from xvarpro.sets.box import LinfBall
from xvarpro.sets.interface import RadiusSet, Set
from xvarpro.sets.lanczos import Lanczos, Leading, LeadingSet
from xvarpro.sets.lp import LpBall
from xvarpro.sets.spectra import SpectralSet, polar, svd


class _OfSingularValues(SpectralSet):
    """Matrices, real or complex, whose singular values lie in `spectrum`."""

    def _decomposed(self, x: Array) -> tuple[Array, Array, Array]:
        return svd(x)


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

    @property
    def spectrum(self) -> Set:
        return L1Ball(self.radius)

    def _leading(self, solver: Lanczos, g: Array, certify: bool = True) -> Leading:
        return solver.singular(g, certify)


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

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls(2.5)

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
