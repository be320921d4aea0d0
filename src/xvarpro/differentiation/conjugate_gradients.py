"""Conjugate gradients for the derivative of a fixed point of a projection: symmetric, on the range of J."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import axpy, dot, plus, sub

# curvature relative to the largest seen that counts as none, as a power of eps: a null vector comes out of the
# iteration as exactly as the others, and all but a few digits of one with less curvature would be rounding
FLAT = 2 / 3


class Solution(NamedTuple):
    """Where conjugate gradients ended."""

    u: Leaves
    beside: Leaves  # what came with the products, for u
    singular: Array  # 0-d, as the rest
    residual: Array
    steps: Array


class _State(NamedTuple):
    k: Array
    u: Leaves
    beside: Leaves
    r: Leaves
    p: Leaves
    q: Leaves
    gamma: Array
    size: Array
    top: Array
    singular: Array


def conjugate_gradients(
    backend: Any,
    J: Callable[[Leaves], Leaves],
    seen: Callable[[Leaves], Leaves],
    H: Callable[[Leaves], tuple[Leaves, Leaves]],
    c: Leaves,
    blank: Leaves,
    tol: float,
    noise: float,
    limit: int,
) -> Solution:
    """Solve ``(J^+ - I + H) u = c`` on the range of J: the least solution, where there are several or none.

    J is symmetric, ``0 <= J <= I``, and serves as the preconditioner. Its pseudo-inverse is never asked for: every
    direction p comes with a q of which it is the image, ``p = J q``, and ``J^+ p`` is q up to what J does not see.
    A direction without curvature is one that the matrix maps to 0, if it has no negative eigenvalues: it is taken out
    of the solution and of the right-hand side, and the rest goes on from there.

    Parameters
    ----------
    backend : Backend
    J : callable
        A linear map of leaves.
    seen : callable
        A vector without the part that J maps to 0, as far as that is known; or with it.
    H : callable
        A symmetric one of scale 1, and beside it any other linear map, of which the value at u is returned.
    c : tuple of arrays
    blank : tuple of arrays
        Zeros, as the other map returns them.
    tol : float
        Image of the residual under J, relative.
    noise : float
        Relative error of J.
    limit : int
        Products with H at most.
    """
    c = seen(c)
    start = J(c)
    gamma, whole = dot(c, start), dot(start, start)
    xp = array_namespace(gamma)
    none, one = xp.zeros((), dtype=xp.int32, device=device(gamma)), xp.ones_like(gamma)
    eps = xp.finfo(gamma.dtype).eps
    floor = eps**FLAT

    def going(s: _State) -> Array:
        unknown = (16 * noise * noise) * dot(s.r, s.r)
        return (s.size > (tol * tol) * whole) & (s.size > unknown) & (s.k < limit)

    def step(s: _State) -> _State:
        Hp, beside = H(s.p)
        Bp = seen(plus(sub(s.q, s.p), Hp))
        curved, size = dot(s.p, Bp), dot(s.p, s.q)
        top = xp.maximum(s.top, xp.abs(curved) / size)
        flat = xp.abs(curved) <= floor * top * size
        along = s.gamma / xp.where(flat, one, curved)
        alpha = xp.where(flat, -dot(s.u, s.q) / size, along)
        r = axpy(xp.where(flat, 0 * gamma, -along), Bp, s.r)
        r = axpy(xp.where(flat, -dot(s.r, s.p) / size, 0 * gamma), s.q, r)
        z = J(r)
        rz = dot(r, z)
        beta = xp.where(flat, 0 * gamma, rz / s.gamma)
        # a saddle is no minimum, unique or not
        singular = s.singular | flat | (curved < 0)
        u, beside = axpy(alpha, s.p, s.u), axpy(alpha, beside, s.beside)
        return _State(s.k + 1, u, beside, r, axpy(beta, s.p, z), axpy(beta, s.q, r), rz, dot(z, z), top, singular)

    zeros = tuple(0 * x for x in c)
    s = backend.while_loop(going, step, _State(none, zeros, blank, c, start, c, gamma, whole, one, whole < whole))
    residual = (s.size / xp.where(whole > 0, whole, one)) ** 0.5
    return Solution(s.u, s.beside, s.singular, residual, s.k)
