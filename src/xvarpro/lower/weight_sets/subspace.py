"""The lower level within an affine subspace: the same least squares, in fewer unknowns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from xvarpro.backends import Backend
from xvarpro.core.namespace import as_complex, device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import changed
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.weight_sets.interface import one_design
from xvarpro.operators import Composition, Dense, Stacked
from xvarpro.operators.interface import Operator

TINY = 1e-30  # of the longest column, for one of zeros


@final
@dataclass(frozen=True)
class InSubspace(LowerSolver):
    """``w = w0 + B a`` with ``a = argmin 1/2 |[M B; sqrt(lam) Omega B] a - [y - M w0; -sqrt(lam) Omega w0]|^2``.

    That is a level without a ridge, which `inner` solves. Its adjoint ``(B^H H B)^-1 B^H c`` gives ``v`` as its
    coefficients. M w0 and M B change with theta exactly as M w does, so the products with dM keep their form, with the
    whole w and v. Coefficients are entries of w: an orthonormal B would have its small entries to the precision of the
    large ones only, and entries of w in different units, or equations of them, make some of them very small.

    Parameters
    ----------
    inner : LowerSolver
    B : array, shape (n, r)
        Columns with all rows of the identity among their rows.
    w0 : array, shape (n, 1) or (n, k), or None
        0 in these rows; None is 0.
    """

    inner: LowerSolver
    B: Array
    w0: Array | None = None

    def factor(self, backend: Backend, system: System) -> Any:
        return self.inner.factor(backend, self._reduced(system))

    def argmin(self, backend: Backend, system: System, factor: Any, y: Array) -> Array:
        return self._whole(self.inner.argmin(backend, self._reduced(system), factor, self._target(system, y)))

    def tangent(self, backend: Backend, system: System, factor: Any, y: Array, w: Array) -> Callable[[Array], Array]:
        return partial(changed(self, w0=None).argmin, backend, system, factor)

    def refine(
        self, backend: Backend, system: System, factor: Any, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        reduced, target, residual = self._reduced(system), self._target(system, y), self._residual(system, w, r)
        a, r = self.inner.refine(backend, reduced, factor, target, self._coefficients(w), residual)
        return self._whole(a), r[: y.shape[0], :]

    def adjoint(self, backend: Backend, system: System, factor: Any, c: Array, y: Array, w: Array, r: Array) -> Adjoint:
        B, m = Dense(self.B), y.shape[0]
        q, pairs, v, *_ = self.inner.adjoint(
            backend,
            self._reduced(system),
            factor,
            B.rmatvec(c),
            self._target(system, y),
            self._coefficients(w),
            self._residual(system, w, r),
        )
        return Adjoint(q[:m, :], tuple((s[:m, :], B.matvec(b)) for s, b in pairs), None if v is None else B.matvec(v))

    def diagnose(self, backend: Backend, system: System, factor: Any, y: Array) -> Diagnosis:
        return self.inner.diagnose(backend, self._reduced(system), factor, self._target(system, y))

    def _coefficients(self, w: Array) -> Array:
        xp = namespace_of(w)
        return xp.take(w, own_rows(xp, self.B), axis=0)

    def _reduced(self, system: System) -> System:
        """``[M B; sqrt(lam) Omega B]``, without a ridge."""
        M: Operator = Composition(one_design(system), self.B)
        return System(Stacked((M, system.ridge.rows(self.B))) if system.ridge.present else M)

    def _whole(self, a: Array) -> Array:
        w = Dense(self.B).matvec(a)
        return w if self.w0 is None else w + self.w0

    def _target(self, system: System, y: Array) -> Array:
        """``[y - M w0; -sqrt(lam) Omega w0]``."""
        xp = namespace_of(y)
        B = self.B
        w0 = xp.zeros((B.shape[0], 1), dtype=B.dtype, device=device(B)) if self.w0 is None else self.w0
        w0 = as_complex(w0, y)
        if self.w0 is not None:
            y = y - system.M.matvec(w0)
        if not system.ridge.present:
            return y
        below = -system.ridge.rows(w0)
        return xp.concat([y, xp.broadcast_to(below, (below.shape[0], y.shape[1]))])

    def _residual(self, system: System, w: Array, r: Array) -> Array:
        """``[M w - y; sqrt(lam) Omega w]``."""
        return namespace_of(r).concat([r, system.ridge.rows(w)]) if system.ridge.present else r


def own_rows(xp: Any, B: Any) -> Any:
    """The first row of the identity among the rows of B, (n, r), for each column: indices (r,)."""
    alone = xp.sum(xp.astype(B != 0, xp.int32), axis=1, keepdims=True) == 1
    return xp.argmax(xp.astype((B == 1) & alone, xp.int32), axis=0)


def exchanged(B: np.ndarray, rows: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Other columns of the same span, with the identity in other rows: those of the longest columns of a design M.

    In units in which these have length 1 no entry of B is then larger than 2, so that columns of ``M B`` are not all
    parallel to the longest of M.
    """
    B, rows, unit = np.array(B), np.array(rows), units(lengths)
    while B.size:
        share = np.abs(B) * unit[:, None] / unit[rows]
        i, j = np.unravel_index(np.argmax(share), B.shape)
        if not share[i, j] > 2:
            break
        one, column = np.arange(len(rows)) == j, B[:, j] / B[i, j]
        B = B - column[:, None] * np.where(one, 0, B[i])
        B[:, j], B[i], rows[j] = column, one, i
    return B, rows


def units(lengths: np.ndarray) -> np.ndarray:
    """Lengths of columns, those of zeros being very short."""
    return np.where(lengths > 0, lengths, TINY * np.max(lengths))
