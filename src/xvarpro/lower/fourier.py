"""Division in the Fourier domain: circulant designs, one small least-squares problem per frequency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, final

from xvarpro.backends import Backend
from xvarpro.core.checks import described
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, Ridge, System
from xvarpro.operators.circulant import Periodic, as_circulant
from xvarpro.operators.convolutions import flat, signals
from xvarpro.operators.fourier import Grid, backward, by_parts, forward
from xvarpro.operators.interface import Operator


class FourierFactor(NamedTuple):
    """``[x_1^; ...; x_N^; sqrt(lam) o^] = [U; *] s`` at every frequency, the columns of `U` of length 1 or less."""

    U: Array  # (N, *frequencies, columns)
    s: Array  # (1, *frequencies, columns), real


@final
@dataclass(frozen=True)
class FourierDivision(LowerSolver):
    """Division of spectra, for the circulant designs: exact, in O(N D log D).

    With ``x^ = F x``, F the forward transform *without a factor* (``F^-1 = F^H / D``), ``circ(x) = F^-1 diag(x^) F``;
    the conjugate transpose has the *conjugate* spectrum. For ``M = [circ(x_1); ...; circ(x_N)]`` and
    ``Omega = circ(o)``, ``o^ = 1`` for the identity, the minimiser is at each frequency ::

        w^ = sum_i conj(x_i^) y_i^ / (sum_i |x_i^|^2 + lam |o^|^2)

    `lam` has no factor, since Parseval's factor 1/D belongs to both terms. Written with a unitary transform G,
    ``circ(x) = sqrt(D) G^H diag(G x) G``, it is ``G w = sqrt(D) sum_i conj(G x_i) G y_i / (D sum_i |G x_i|^2 + lam)``.

    No quotient of squares is formed: ``s = |[x_1^; ...; sqrt(lam) o^]|`` is a length and ``U = x^ / s`` a column of
    length 1 at most, the QR factorisation of a matrix with one column. So ``w^ = U^H y^ / s``, and of the adjoint
    ``z = c^ / s``, ``v^ = z / s``, ``(M v)^ = U z``. Errors grow with cond(M), not with its square.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> problem = xv.separable(
    ...     lambda theta, data: xv.operators.StackedCirculant(theta), np.ones(8), lam=1e-3,
    ...     solver=xv.lower.FourierDivision(),
    ... )
    >>> value, gradient = xv.value_and_gradient(problem, np.eye(2, 4))
    >>> gradient.shape
    (2, 4)
    """

    def factor(self, backend: Backend, system: System) -> FourierFactor:
        M, half = _periodic(system), _half(system)
        X = M.spectrum(half)
        xp = namespace_of(X)
        lengths = xp.abs(X)
        scale = xp.max(lengths, axis=0, keepdims=True)
        ridge = _ridge(system, lengths, half)
        if ridge is not None:
            scale = xp.maximum(scale, ridge)
        # lengths over their largest: squares of small and of large ones are out of range long before they are
        scale = positive_or_one(scale)
        squares = xp.sum((lengths / scale) ** 2, axis=0)
        if ridge is not None:
            squares = squares + (ridge / scale) ** 2
        s = scale * xp.sqrt(squares)
        if not system.ridge.definite:
            s = xp.where(_singular(s), xp.full_like(s, xp.nan), s)
        return FourierFactor(X / s, s)

    def argmin(self, backend: Backend, system: System, factor: FourierFactor, y: Array) -> Array:
        half, grid = _half(system), _periodic(system).grid

        def divided(y: Array) -> Array:
            Y = forward(signals(y, grid), grid, half)
            xp = namespace_of(Y)
            return _columns(xp.sum(xp.conj(factor.U) * Y, axis=0, keepdims=True) / factor.s, grid, half)

        return by_parts(divided, y, half)

    def adjoint(
        self, backend: Backend, system: System, factor: FourierFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        half, grid = _half(system), _periodic(system).grid

        def solved(c: Array) -> tuple[Array, Array]:
            Z = forward(signals(c, grid), grid, half) / factor.s
            return _columns(factor.U * Z, grid, half), _columns(Z / factor.s, grid, half)

        q, v = by_parts(solved, c, half)
        return Adjoint(q, ((r, v),), v)

    def diagnose(self, backend: Backend, system: System, factor: FourierFactor, y: Array) -> Diagnosis:
        """The singular values of the stacked matrix are `s`; the worst column counts."""
        small, large = _extremes(factor.s)
        return Diagnosis.of(_singular(factor.s), namespace_of(small).max(large / small))


def is_periodic(ridge: Ridge, M: Operator) -> bool:
    """Whether a ridge is the same at every place of the grid of a circulant design."""
    same = ridge.uniform or ridge.lam.shape[0] == 1
    return same and (ridge.Omega is None or as_circulant(ridge.Omega, M) is not None)


def _singular(s: Array) -> Array:
    """Whether a frequency is zero to the rounding of a transform, relative to the largest of its column; 0-d."""
    small, large = _extremes(s)
    xp = namespace_of(s)
    rounding = 4 * xp.finfo(s.dtype).eps * (1 + math.log2(math.prod(s.shape[1:-1])))
    # written so that NaN counts as zero
    return ~xp.all(small > rounding * large)


def _periodic(system: System) -> Periodic:
    M, ridge = system
    if not isinstance(M, Periodic):
        raise ProblemError(
            f"FourierDivision solves circulant designs, got {type(M).__name__}: leave solver= out to have one chosen"
        )
    if not is_periodic(ridge, M):
        raise ProblemError(
            f"FourierDivision needs Omega None or a Circulant on the grid {M.grid} of w, and lam a number or "
            f"(1, k); got {type(ridge.Omega).__name__} and {described(ridge.lam)}"
        )
    return M


def _half(system: System) -> bool:
    """Whether the level is real, so that the non-negative frequencies say everything."""
    Omega = as_circulant(system.ridge.Omega, system.M)
    return _periodic(system).is_real and (Omega is None or Omega.is_real)


def _ridge(system: System, like: Array, half: bool) -> Array | None:
    """``sqrt(lam) |o^|``, with as many axes as `like`."""
    if not system.ridge.present:
        return None
    xp, Omega = namespace_of(like), as_circulant(system.ridge.Omega, system.M)
    root = system.ridge.root * xp.ones((1,) * like.ndim, dtype=like.dtype, device=device(like))
    return root if Omega is None else root * xp.abs(Omega.spectrum(half))


def _columns(X: Array, grid: Grid, half: bool) -> Array:
    return flat(backward(X, grid, half))


def _extremes(s: Array) -> tuple[Array, Array]:
    """Smallest and largest entry of each column."""
    xp, axes = namespace_of(s), tuple(range(s.ndim - 1))
    return xp.min(s, axis=axes), xp.max(s, axis=axes)
