"""Normal equations, refined: half the work of QR, and its accuracy as long as the square of the condition fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from xvarpro.backends import Backend
from xvarpro.backends.powers import power_of_two
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint
from xvarpro.lower._refinement import affordable, converge
from xvarpro.lower.accumulation import Gram
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.stack import condition_of, padded, stacked

# times eps^-1/2: the condition up to which refinement converges with certainty
REACH = 0.1


class CholeskyFactor(NamedTuple):
    """``S^T S = L L^T`` with ``S = [M; sqrt(lam) Omega] / units``, whose columns are no longer than 1."""

    S: Array
    L: Array
    units: Array  # (n, 1)


@final
@dataclass(frozen=True)
class Cholesky(LowerSolver):
    """Cholesky factorisation of ``M^T M + lam Omega^T Omega``, with iterative refinement of the augmented system.

    The factor alone would leave an error of order ``eps cond^2``. Refinement from residuals with M itself (Bjorck 1967)
    makes it ``eps cond``, as that of `QR`, as long as ``cond <= 0.1 / sqrt(eps)``: 7e6 in float64, 300 in float32,
    columns of the stacked matrix scaled to one length. Beyond that the factor is NaN, and a solve ends as
    ``RANK_DEFICIENT``: never a gradient of a few digits. Take it for many rows, few columns, few right-hand sides.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> problem = xv.separable(lambda theta, data: theta, np.ones(3), lam=1e-3, solver=xv.lower.Cholesky())
    """

    accumulation = Gram()

    def factor(self, backend: Backend, system: System) -> CholeskyFactor:
        S, units = _scaled(backend, system)
        xp = namespace_of(S)
        L = backend.cholesky(adjoint(S) @ S)
        eye = xp.eye(L.shape[0], dtype=L.dtype, device=device(L))
        inverse = backend.solve_triangular(L, eye, lower=True)
        # lengths that columns of S have, in which L^-1 is of order cond(S); written so that NaN is out of reach
        length = xp.sqrt(xp.sum(xp.abs(L) ** 2, axis=1, keepdims=True))
        reached = xp.sum((xp.abs(inverse) * xp.matrix_transpose(length)) ** 2) <= REACH**2 / xp.finfo(L.dtype).eps
        return CholeskyFactor(S, xp.where(reached, L, xp.full_like(L, xp.nan)), units)

    def argmin(self, backend: Backend, system: System, factor: CholeskyFactor, y: Array) -> Array:
        S, L, units = factor
        return converge(backend, S, L, padded(backend, y, S.shape[0]), None, doubled=False)[1] / units

    def refine(
        self, backend: Backend, system: System, factor: CholeskyFactor, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        S, L, units = factor
        if not affordable(L, y.shape[0], w):
            return w, r
        a, b = converge(backend, S, L, padded(backend, y, S.shape[0]), None, w * units, doubled=True)
        return b / units, -a[: y.shape[0], :]

    def adjoint(
        self, backend: Backend, system: System, factor: CholeskyFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        S, L, units = factor
        a, b = converge(backend, S, L, None, c / units, doubled=affordable(L, y.shape[0], c))
        v = -b / units
        return Adjoint(a[: y.shape[0], :], ((r, v),), v)

    def diagnose(self, backend: Backend, system: System, factor: CholeskyFactor, y: Array) -> Diagnosis:
        L = factor.L  # all of it is NaN, or nothing
        return Diagnosis.of(namespace_of(L).isnan(L[0, 0]), condition_of(backend, L.mT))


def _scaled(backend: Backend, system: System) -> tuple[Array, Array]:
    """The stacked matrix over a power of two for each column, which rounds nothing, and these."""
    S = stacked(backend, system.M.dense(), system.root, system.weight)
    xp = namespace_of(S)
    units = power_of_two(xp.max(xp.abs(S), axis=0, keepdims=True))
    return S / units, xp.matrix_transpose(units)
