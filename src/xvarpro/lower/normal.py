"""The stacked matrix ``A = [M; sqrt(lam) Omega]`` through products only, many right-hand sides at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import is_complex, sum_
from xvarpro.lower.interface import System

Stack = tuple[Array, ...]  # rows of M, and rows of the ridge where there is one


class Normal(NamedTuple):
    """``H = A^H A`` of a system, and a preconditioner: P x near H^-1 x."""

    system: System
    precondition: Callable[[Array], Array]

    def forward(self, w: Array) -> Stack:
        """``A w``."""
        M, ridge = self.system
        top = M.matvec(w)
        return (top, ridge.rows(w)) if ridge.present else (top,)

    def back(self, u: Stack) -> Array:
        """``A^H u``."""
        M, ridge = self.system
        s = M.rmatvec(u[0])
        return s + ridge.rows_back(u[1]) if ridge.present else s

    def target(self, y: Array) -> Stack:
        """``[y; 0]``."""
        if not self.system.ridge.present:
            return (y,)
        below = self.system.ridge.height(self.system.M.shape[1])
        return (y, namespace_of(y).zeros((below, y.shape[1]), dtype=y.dtype, device=device(y)))

    def size(self, s: Array) -> Array:
        """Length of each column in the norm of the preconditioner, ``sqrt(Re s^H P s)``; shape (1, k), real."""
        return length(s, self.precondition(s))


def random_signs(shape: tuple[int, ...], like: Array) -> Array:
    """Random signs, the same in every run, of the dtype and on the device of `like`."""
    signs = np.sign(np.random.default_rng(0).normal(size=shape))
    return namespace_of(like).asarray(signs, dtype=like.dtype, device=device(like))


def products(a: Array, b: Array) -> Array:
    """``Re a_j^H b_j`` of each column j; shape (1, k)."""
    xp = namespace_of(a)
    return xp.sum(xp.real(xp.conj(a) * b) if is_complex(a) else a * b, axis=0, keepdims=True)


def length(a: Array, b: Array) -> Array:
    """``sqrt(Re a_j^H b_j)`` of each column; 0 where rounding has made it negative, NaN stays."""
    xp = namespace_of(a)
    square = products(a, b)
    return xp.sqrt(xp.where(square < 0, xp.zeros_like(square), square))


def norms(u: Stack) -> Array:
    """Euclidean norm of each column of a stack."""
    return namespace_of(u[0]).sqrt(sum_(products(part, part) for part in u))
