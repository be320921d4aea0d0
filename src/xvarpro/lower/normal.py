"""The stacked matrix ``A = [M; sqrt(lam) Omega]`` through products only, many right-hand sides at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint, is_complex
from xvarpro.lower.interface import System

Stack = tuple[Array, ...]  # rows of M, and rows of the ridge where there is one


class Normal(NamedTuple):
    """``H = A^H A`` of a system, and a preconditioner: P x near H^-1 x."""

    system: System
    precondition: Callable[[Array], Array]

    def forward(self, w: Array) -> Stack:
        """``A w``."""
        M, lam, Omega = self.system.M, self.system.lam, self.system.weight
        top = M.matvec(w)
        return (top, _root(lam, w) * (w if Omega is None else Omega @ w)) if self.system.ridged else (top,)

    def back(self, u: Stack) -> Array:
        """``A^H u``."""
        M, lam, Omega = self.system.M, self.system.lam, self.system.weight
        s = M.rmatvec(u[0])
        if not self.system.ridged:
            return s
        return s + _root(lam, s) * (u[1] if Omega is None else adjoint(Omega) @ u[1])

    def target(self, y: Array) -> Stack:
        """``[y; 0]``."""
        if not self.system.ridged:
            return (y,)
        n = self.system.M.shape[1]
        return (y, namespace_of(y).zeros((n, y.shape[1]), dtype=y.dtype, device=device(y)))

    def slope(self, w: Array, r: Array) -> Array:
        """``M^H r + lam Omega^H Omega w``: the gradient of the lower level in w."""
        _, *ridge = self.forward(w)
        return self.back((r, *ridge))

    def size(self, s: Array) -> Array:
        """Length of each column in the norm of the preconditioner, ``sqrt(Re s^H P s)``; shape (1, k), real."""
        return length(s, self.precondition(s))


def _root(lam: float | Array, like: Array) -> float | Array:
    if isinstance(lam, int | float):
        return lam**0.5
    xp = namespace_of(like)
    return xp.astype(xp.sqrt(lam), like.dtype)


def random_signs(shape: tuple[int, ...], like: Array) -> Array:
    """Random signs, the same in every run, of the dtype and on the device of `like`."""
    signs = np.sign(np.random.default_rng(0).normal(size=shape))
    return namespace_of(like).asarray(signs, dtype=like.dtype, device=device(like))


def products(a: Array, b: Array) -> Array:
    """``Re a_j^H b_j`` of each column j; shape (1, k)."""
    xp = namespace_of(a)
    if is_complex(a):
        return xp.sum(xp.real(a) * xp.real(b) + xp.imag(a) * xp.imag(b), axis=0, keepdims=True)
    return xp.sum(a * b, axis=0, keepdims=True)


def length(a: Array, b: Array) -> Array:
    """``sqrt(Re a_j^H b_j)`` of each column; 0 where rounding has made it negative, NaN stays."""
    xp = namespace_of(a)
    square = products(a, b)
    return xp.sqrt(xp.where(square < 0, xp.zeros_like(square), square))


def norms(u: Stack) -> Array:
    """Euclidean norm of each column of a stack."""
    xp = namespace_of(u[0])
    total = products(u[0], u[0])
    for part in u[1:]:
        total = total + products(part, part)
    return xp.sqrt(total)


def times(row: Array, x: Array) -> Array:
    """A real number per column times the columns of x."""
    return (namespace_of(x).astype(row, x.dtype) if is_complex(x) else row) * x


def plus(u: Stack, row: Array, d: Stack) -> Stack:
    """``u + row d``."""
    return tuple(a + times(row, b) for a, b in zip(u, d, strict=True))


def positive(row: Array) -> Array:
    """The row, with 1 where it is 0 or below: something to divide by. NaN counts as 1: the numerator has it too."""
    xp = namespace_of(row)
    return xp.where(row > 0, row, xp.ones_like(row))
