"""A tall level condensed block by block of rows: what is left is small, and has the same w and value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, final

from xvarpro.backends import Backend
from xvarpro.core.namespace import as_complex, namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint, adjoint_product, inner
from xvarpro.lower.interface import Accumulation, Condensed
from xvarpro.lower.stack import deficient, deficient_gram


@final
@dataclass(frozen=True)
class Triangle(Accumulation):
    """Sequential tall-skinny QR: each block is factored, and its triangle with that of those before it.

    The errors are those of one QR of all rows. What the turned target has outside of the range is summed where it
    comes up: a difference of norms would cancel.
    """

    def start(self, ridge: Array, zero: Array) -> Condensed:
        return Condensed(ridge, zero, inner(zero, zero))

    def fold(self, backend: Backend, state: Condensed, A: Array, y: Array) -> Condensed:
        # rows alone: in one sum with the triangle, which is much larger, they would lose their digits
        return self.merge(backend, state, _condensed(backend, as_complex(A, state.z), as_complex(y, state.z)))

    def merge(self, backend: Backend, a: Condensed, b: Condensed) -> Condensed:
        xp = namespace_of(a.R)
        both = _condensed(backend, xp.concat([a.R, b.R]), xp.concat([a.z, b.z]))
        return both._replace(rest=both.rest + (a.rest + b.rest))

    def condensed(self, backend: Backend, state: Condensed) -> Condensed:
        return state

    def deficient(self, backend: Backend, R: Array, rows: int) -> Array:
        # the errors of that many rows add up like random ones
        return deficient(backend, R, math.isqrt(rows))

    def noise(self, value: Array, energy: Array | float) -> Array:
        return value + namespace_of(value).sqrt(value * energy)


def _condensed(backend: Backend, A: Array, y: Array) -> Condensed:
    Q, R = backend.qr(A)
    z = adjoint_product(Q, y)
    outside = y - Q @ z
    return Condensed(R, z, inner(outside, outside))


class Moments(NamedTuple):
    """``H = M^H M + lam Omega^H Omega``, ``b = M^H y``, ``square = |y|^2``."""

    H: Array
    b: Array
    square: Array


@final
@dataclass(frozen=True)
class Gram(Accumulation):
    """Normal equations: one product per block. The condition is squared, and the value is a difference of squares."""

    def start(self, ridge: Array, zero: Array) -> Moments:
        return Moments(adjoint(ridge) @ ridge, zero, inner(zero, zero))

    def fold(self, backend: Backend, state: Moments, A: Array, y: Array) -> Moments:
        A, y = as_complex(A, state.b), as_complex(y, state.b)
        return Moments(state.H + adjoint(A) @ A, state.b + adjoint(A) @ y, state.square + inner(y, y))

    def merge(self, backend: Backend, a: Moments, b: Moments) -> Moments:
        return Moments(a.H + b.H, a.b + b.b, a.square + b.square)

    def condensed(self, backend: Backend, state: Moments) -> Condensed:
        L = backend.cholesky(state.H)
        z = backend.solve_triangular(L, state.b, lower=True)
        rest = state.square - inner(z, z)
        # a square: what is below zero is rounding; NaN stays
        return Condensed(adjoint(L), z, namespace_of(rest).where(rest < 0, 0 * rest, rest))

    def deficient(self, backend: Backend, R: Array, rows: int) -> Array:
        return deficient_gram(R.mT)

    def noise(self, value: Array, energy: Array | float) -> Array:
        return value + energy
