"""Singular value decomposition: the solver that survives a loss of rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System, Volume
from xvarpro.lower.stack import as_column, as_columns, stacked


class SVDFactor(NamedTuple):
    """``[M; sqrt(lam) Omega] = [U; *] diag(s) Vh``, with ``1/s`` set to 0 below the cut-off; or of a stack."""

    U: Array
    s: Array
    inverse: Array
    Vh: Array


@final
@dataclass(frozen=True)
class SVD(LowerSolver):
    """Truncated SVD of ``[M; sqrt(lam) Omega]``: the minimum-norm `w` when the rank is deficient.

    Where the rank is constant nearby, the reduced gradient is exact: the pseudo-inverse's derivative has a term that
    full rank does not show, ``<M^+T w, dM (I - M^+ M) c>``, and it is kept.

    Parameters
    ----------
    rtol : float or None
        Singular values below ``rtol * max(s)`` count as zero; None means ``eps * max(shape)``.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> problem = xv.separable(lambda theta, data: theta, np.ones(3), solver=xv.lower.SVD())
    """

    rtol: float | None = None

    def __post_init__(self) -> None:
        if self.rtol is not None and not 0 <= self.rtol < 1:
            raise ProblemError(f"SVD needs 0 <= rtol < 1, got {self.rtol!r}")

    def factor(self, backend: Backend, system: System) -> SVDFactor:
        A = stacked(backend, system.M.dense(), system.ridge)
        xp = namespace_of(A)
        U, s, Vh = backend.svd(A)
        rtol = xp.finfo(A.dtype).eps * max(A.shape[-2:]) if self.rtol is None else self.rtol
        # written so that NaN is not taken for a zero
        cut = s <= rtol * xp.max(s, axis=-1, keepdims=True)
        inverse = xp.where(cut, xp.zeros_like(s), 1 / xp.where(cut, xp.ones_like(s), s))
        inverse = xp.astype(xp.expand_dims(inverse, axis=-1), A.dtype)
        return SVDFactor(U[..., : system.M.shape[0], :], s, inverse, Vh)

    def argmin(self, backend: Backend, system: System, factor: SVDFactor, y: Array) -> Array:
        U, _, inverse, Vh = factor
        return as_columns(adjoint(Vh) @ (inverse * (adjoint(U) @ as_column(y, U))))

    def adjoint(
        self, backend: Backend, system: System, factor: SVDFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        U, _, inverse, Vh = factor
        xp = namespace_of(U)
        kept = xp.astype(inverse != 0, U.dtype)
        c, y = as_column(c, U), as_column(y, U)
        coefficients = kept * (adjoint(U) @ y)
        z = inverse * (Vh @ c)
        null = c - adjoint(Vh) @ (kept * (Vh @ c))
        a = U @ (inverse * inverse * coefficients)
        v = as_columns(adjoint(Vh) @ (inverse * z))
        return Adjoint(as_columns(U @ z), ((r, v), (-as_columns(a), as_columns(null))), v)

    def volume(self, backend: Backend, system: System, factor: SVDFactor) -> Volume:
        U, s, inverse, Vh = factor
        xp = namespace_of(s)
        # a direction that was dropped has no determinant
        sizes = xp.where(inverse[..., 0] != 0, s, xp.nan)
        return Volume(system.ridge, sizes, lambda: (U, adjoint(inverse * Vh)))

    def diagnose(self, backend: Backend, system: System, factor: SVDFactor, y: Array) -> Diagnosis:
        xp, s = namespace_of(factor.s), factor.s
        kept, largest = factor.inverse[..., 0] != 0, xp.max(s, axis=-1, keepdims=True)
        condition = xp.max(largest / xp.min(xp.where(kept, s, largest), axis=-1, keepdims=True))
        found = Diagnosis.of(xp.any(xp.isnan(largest)), condition)
        return found._replace(truncated=~xp.all(kept))
