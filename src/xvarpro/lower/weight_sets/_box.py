"""The lower level between bounds: the active set by pivoting, the adjoint on the entries that are free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from xvarpro.backends import Backend
from xvarpro.core import trees
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.stack import QRFactor, as_column, as_columns, as_complex, condition_of, factored, padded, stacked
from xvarpro.lower.weight_sets._pivoting import Box, Inverter, Solution, pivot


@final
@dataclass(frozen=True)
class InBox(LowerSolver):
    """``lower <= w <= upper``, entry by entry, by one QR and pivoting on its triangle (see `_pivoting`).

    On the free entries F of a column the minimiser is that of an unconstrained level with the columns F of M, and so is
    the adjoint: ``v_F = (H_FF)^-1 c_F``, 0 elsewhere. Accurate to ``eps cond(M)``; not refined further.

    Parameters
    ----------
    lower, upper : number or array, shape (n,), (n, 1) or (n, k)
    limit : int or None
        Exchanges after which a column that is not solved is NaN; None for ``100 + 10 n``.
    """

    lower: Array | float = 0.0
    upper: Array | float = float("inf")
    limit: int | None = None

    def factor(self, backend: Backend, system: System) -> QRFactor:
        return factored(backend, system, _real(stacked(system.M.dense(), system.root, system.weight)))

    def argmin(self, backend: Backend, system: System, factor: QRFactor, y: Array) -> Array:
        return as_complex(self.weights(backend, factor.R, _projected(factor, y))[0], y)

    def weights(self, backend: Backend, R: Array, z: Array) -> tuple[Array, Array]:
        """W for a triangle R, or a stack with one for each column, and ``Q^T`` times the target, (n, k).

        And which of its entries are free.
        """
        box, lengths = self._box(R, z)
        solution = self._solve(backend, box, lengths)
        return self._weights(solution, lengths), solution.free

    def adjoint(
        self, backend: Backend, system: System, factor: QRFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        xp = namespace_of(c)
        box, lengths = self._box(factor.R, _projected(factor, y))
        free = self._solve(backend, box, lengths, w).free
        c = xp.real(c) if trees.is_complex(c) else c
        X = Inverter(backend, box.R)(box.R, free)
        t = X.adjoint(c / lengths)
        v = as_complex(X.solve(t) / lengths, y)
        q = _complex(as_columns(factor.Q @ as_column(t, factor.R)), y)[: y.shape[0], :]
        return Adjoint(q, ((r, v),), v)

    def diagnose(self, backend: Backend, system: System, factor: QRFactor, y: Array) -> Diagnosis:
        return factor.diagnosis(backend)._replace(kinks=self._kinks(backend, factor, y))

    def _kinks(self, backend: Backend, factor: QRFactor, y: Array) -> Array:
        """Entries at a bound, or as near as rounding can tell, whose multiplier is 0 as nearly; 0-d."""
        xp = namespace_of(factor.R)
        box, lengths = self._box(factor.R, _projected(factor, y))
        solution = self._solve(backend, box, lengths)
        off = xp.minimum(solution.x - box.lower, box.upper - solution.x)
        sizes = (xp.max(xp.abs(x), axis=0) for x in (solution.x, y))
        small = (100 * box.R.shape[-1] * xp.finfo(box.R.dtype).eps) * trees.sum_(sizes)
        near = (off <= condition_of(backend, box.R) * small) & (box.lower < box.upper)
        return xp.sum(xp.astype(near & (xp.abs(solution.gradient) <= small), xp.int32), dtype=xp.int32)

    def _solve(self, backend: Backend, box: Box, lengths: Array, w: Array | None = None) -> Solution:
        """By pivoting from all entries free, or from a `w` that is the solution or near it."""
        xp = namespace_of(box.z)
        free = xp.ones_like(box.z, dtype=xp.bool)
        if w is None:
            return pivot(backend, box, free, ~free, self.limit)
        w = xp.real(w) if trees.is_complex(w) else w
        lower, upper = (_column(bound, lengths) for bound in (self.lower, self.upper))
        return pivot(backend, box, (w > lower) & (w < upper), w >= upper, self.limit)

    def _box(self, R: Array, z: Array) -> tuple[Box, Array]:
        """The problems in units in which the columns of R have length 1, and these lengths, (n, 1) or (n, k)."""
        xp = namespace_of(R)
        lengths = positive_or_one(xp.sqrt(xp.sum(R * R, axis=-2, keepdims=True)))
        column = lengths.mT if R.ndim == 2 else lengths[:, 0, :].mT
        bounds = (xp.broadcast_to(column * _column(bound, column), z.shape) for bound in (self.lower, self.upper))
        return Box(R / lengths, z, *bounds), column

    def _weights(self, solution: Solution, lengths: Array) -> Array:
        """w, with entries at a bound exactly there, and NaN where pivoting has not ended."""
        xp = namespace_of(lengths)
        w = solution.x / lengths
        lower, upper = (_column(bound, lengths) for bound in (self.lower, self.upper))
        held = xp.where(solution.high, upper, lower)
        w = xp.where(solution.free, xp.minimum(xp.maximum(w, lower), upper), held)
        unsolved = ~xp.all(xp.isfinite(solution.x), axis=0)
        return xp.where(unsolved, xp.asarray(xp.nan, dtype=w.dtype, device=device(w)), w)


def _column(bound: Array | float, like: Array) -> Array:
    """A bound as (n, 1) or (n, k)."""
    if isinstance(bound, int | float):
        return namespace_of(like).full_like(like, bound)
    return bound if bound.ndim == 2 else namespace_of(bound).expand_dims(bound, axis=1)


# -- complex numbers: w is real, so that real and imaginary parts are rows ---------------------------------------------


def _real(A: Array) -> Array:
    xp = namespace_of(A)
    return xp.concat([xp.real(A), xp.imag(A)], axis=-2) if trees.is_complex(A) else A


def _projected(factor: QRFactor, y: Array) -> Array:
    """``Q^T`` times the target."""
    Q, R = factor
    y = _real(padded(y, Q.shape[-2] // 2)) if trees.is_complex(y) else y
    return as_columns(Q[..., : y.shape[0], :].mT @ as_column(y, R))


def _complex(x: Array, like: Array) -> Array:
    """Inverse of `_real` where `like` is complex."""
    if not trees.is_complex(like):
        return x
    half = x.shape[0] // 2
    return trees.complexified(x[:half, :]) + 1j * trees.complexified(x[half:, :])
