"""The lower level within an affine subspace: the same least squares, in fewer unknowns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from xvarpro.backends import Backend
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.stack import as_complex, stacked
from xvarpro.lower.weight_sets.interface import one_design
from xvarpro.operators.interface import Operator


@final
@dataclass(frozen=True)
class InSubspace(LowerSolver):
    """``w = w0 + B a`` with ``a = argmin 1/2 |[M B; sqrt(lam) Omega B] a - [y - M w0; -sqrt(lam) Omega w0]|^2``.

    That is a level without a ridge, which `inner` solves. Its adjoint ``(B^H H B)^-1 B^H c`` gives ``v`` as its
    coefficients. M w0 and M B change with theta exactly as M w does, so the products with dM keep their form, with the
    whole w and v.

    Parameters
    ----------
    inner : LowerSolver
    B : array, shape (n, r)
        Orthonormal columns.
    w0 : array, shape (n, 1) or (n, k), or None
        Orthogonal to them; None is 0.
    """

    inner: LowerSolver
    B: Array
    w0: Array | None = None

    def factor(self, backend: Backend, system: System) -> Any:
        return self.inner.factor(backend, self._reduced(system))

    def argmin(self, backend: Backend, system: System, factor: Any, y: Array) -> Array:
        return self._whole(self.inner.argmin(backend, self._reduced(system), factor, self._target(system, y)))

    def refine(
        self, backend: Backend, system: System, factor: Any, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        reduced, target, residual = self._reduced(system), self._target(system, y), self._residual(system, w, r)
        a, r = self.inner.refine(backend, reduced, factor, target, self._coefficients(w), residual)
        return self._whole(a), r[: y.shape[0], :]

    def adjoint(self, backend: Backend, system: System, factor: Any, c: Array, y: Array, w: Array, r: Array) -> Adjoint:
        B, m = as_complex(self.B, c), y.shape[0]
        q, pairs, v = self.inner.adjoint(
            backend,
            self._reduced(system),
            factor,
            trees.adjoint(B) @ c,
            self._target(system, y),
            self._coefficients(w),
            self._residual(system, w, r),
        )
        return Adjoint(q[:m, :], tuple((s[:m, :], B @ b) for s, b in pairs), None if v is None else B @ v)

    def diagnose(self, backend: Backend, system: System, factor: Any, y: Array) -> Diagnosis:
        return self.inner.diagnose(backend, self._reduced(system), factor, self._target(system, y))

    def _coefficients(self, w: Array) -> Array:
        return trees.adjoint(as_complex(self.B, w)) @ w

    def _reduced(self, system: System) -> System:
        return System(_Restricted(one_design(system.M), system.lam, system.weight, self.B), 0.0, None)

    def _whole(self, a: Array) -> Array:
        w = as_complex(self.B, a) @ a
        return w if self.w0 is None else w + self.w0

    def _target(self, system: System, y: Array) -> Array:
        """``[y - M w0; -sqrt(lam) Omega w0]``."""
        xp = namespace_of(y)
        w0 = xp.zeros_like(self.B[:, :1]) if self.w0 is None else self.w0
        w0 = as_complex(w0, y)
        if self.w0 is not None:
            y = y - system.M.matvec(w0)
        if not system.ridged:
            return y
        below = -(system.lam**0.5) * _weighted(system.weight, w0)
        return xp.concat([y, xp.broadcast_to(below, (below.shape[0], y.shape[1]))])

    def _residual(self, system: System, w: Array, r: Array) -> Array:
        """``[M w - y; sqrt(lam) Omega w]``."""
        if not system.ridged:
            return r
        return namespace_of(r).concat([r, system.lam**0.5 * _weighted(system.weight, w)])


@final
@dataclass(frozen=True)
class _Restricted(Operator):
    """``[M B; sqrt(lam) Omega B]``, formed where it is asked for."""

    M: Operator
    lam: float | Array
    Omega: Array | None
    B: Array

    @property
    def shape(self) -> tuple[int, int]:
        m, r = self.M.shape[0], self.B.shape[1]
        return (m + self.B.shape[0], r) if self._ridged else (m, r)

    @property
    def _ridged(self) -> bool:
        return System(self.M, self.lam, self.Omega).ridged

    def matvec(self, w: Array) -> Array:
        w = as_complex(self.B, w) @ w
        top = self.M.matvec(w)
        if not self._ridged:
            return top
        return namespace_of(w).concat([top, self.lam**0.5 * _weighted(self.Omega, w)])

    def rmatvec(self, r: Array) -> Array:
        m = self.M.shape[0]
        c = self.M.rmatvec(r[:m, :])
        if self._ridged:
            below = r[m:, :]
            c = c + self.lam**0.5 * (below if self.Omega is None else trees.adjoint(self.Omega) @ below)
        return trees.adjoint(as_complex(self.B, c)) @ c

    def outer(self, r: Array, w: Array) -> Operator:
        return self.M.outer(r[: self.M.shape[0], :], as_complex(self.B, w) @ w)

    def dense(self) -> Array:
        B = as_complex(self.B, next(filter(trees.is_complex, trees.partition(self.M)[0]), self.B))
        MB = self.M.matvec(B)
        return stacked(MB, self.lam**0.5, _weighted(self.Omega, B)) if self._ridged else MB


def _weighted(Omega: Array | None, w: Array) -> Array:
    return w if Omega is None else Omega @ w
