"""Conjugate gradients for the derivative of a fixed point of a projection: symmetric, on the range of J."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from xvarpro._namespace import array_namespace, device
from xvarpro.protocols import Array, Leaves
from xvarpro.trees import axpy, dot, plus, select, sub

Map = Callable[[Leaves], Leaves]
FLAT = 100.0  # times eps: curvature relative to the largest seen that counts as none


class Solution(NamedTuple):
    """Where conjugate gradients ended; 0-d arrays."""

    u: Leaves
    singular: Array
    residual: Array
    steps: Array


class _State(NamedTuple):
    k: Array
    u: Leaves
    r: Leaves
    p: Leaves
    q: Leaves
    gamma: Array
    top: Array
    flat: Array


def conjugate_gradients(backend: Any, J: Map, H: Map, c: Leaves, tol: float, limit: int) -> Solution:
    """Solve ``(J^+ - I + H) u = c`` on the range of J: the least solution, where there are several or none.

    J is symmetric, ``0 <= J <= I``, and serves as the preconditioner. Its pseudo-inverse is never asked for: every
    direction p comes with a q of which it is the image, ``p = J q``, and ``J^+ p`` is q up to what J does not see.
    Where the matrix is not positive definite the normal equations are solved instead, at twice the products.

    Parameters
    ----------
    backend : Backend
    J, H : callable
        Linear maps of leaves, H symmetric.
    c : tuple of arrays
    tol : float
        Residual, relative, in the norm of J.
    limit : int
        Products with H at most.
    """
    start = J(c)
    gamma = dot(c, start)
    xp = array_namespace(gamma)
    zeros = tuple(0 * x for x in c)
    none = xp.zeros((), dtype=xp.int32, device=device(gamma))
    false = gamma < gamma
    floor = FLAT * xp.finfo(gamma.dtype).eps

    def image(p: Leaves, q: Leaves) -> Leaves:
        return plus(sub(q, p), H(p))

    def going(s: _State) -> Array:
        return (s.gamma > (tol * tol) * gamma) & (s.k < limit) & ~s.flat

    def step(s: _State) -> _State:
        Bp = image(s.p, s.q)
        curved, size = dot(s.p, Bp), dot(s.p, s.q)
        top = xp.maximum(s.top, xp.abs(curved) / size)
        flat = ~(curved > floor * top * size)  # NaN is flat
        alpha = xp.where(flat, 0 * gamma, s.gamma / xp.where(flat, xp.ones_like(curved), curved))
        r = axpy(-alpha, Bp, s.r)
        z = J(r)
        rz = dot(r, z)
        beta = rz / s.gamma
        return _State(s.k + 1, axpy(alpha, s.p, s.u), r, axpy(beta, s.p, z), axpy(beta, s.q, r), rz, top, flat)

    one = xp.ones_like(gamma)
    found = backend.while_loop(going, step, _State(none, zeros, c, start, c, gamma, one, false))

    # least squares: (B J B) u = B J c, of which B p for p = J q is known without the inverse of J
    def normal(r: Leaves) -> tuple[Leaves, Leaves]:
        s = image(J(r), r)
        return s, J(s)

    singular = found.flat
    first, turned = normal(c)
    gamma_normal = xp.where(singular, dot(first, turned), 0 * gamma)

    def going_on(s: _State) -> Array:
        return (s.gamma > (tol * tol) * gamma_normal) & (s.k < limit) & ~s.flat

    def square(s: _State) -> _State:
        Bp = image(s.p, s.q)
        size = dot(Bp, J(Bp))
        flat = ~(size > (floor * floor) * dot(s.p, s.q))
        alpha = xp.where(flat, 0 * gamma, s.gamma / xp.where(flat, xp.ones_like(size), size))
        r = axpy(-alpha, Bp, s.r)
        g, z = normal(r)
        gz = dot(g, z)
        beta = gz / s.gamma
        return _State(s.k + 2, axpy(alpha, s.p, s.u), r, axpy(beta, s.p, z), axpy(beta, s.q, g), gz, s.top, flat)

    least = backend.while_loop(going_on, square, _State(none, zeros, c, turned, first, gamma_normal, one, ~singular))
    whole = xp.where(gamma > 0, gamma, one)
    scale = xp.where(gamma_normal > 0, gamma_normal, one)
    residual = xp.where(singular, least.gamma / scale, found.gamma / whole)
    u = select(singular, least.u, found.u)
    return Solution(u, singular, xp.maximum(residual, 0 * residual) ** 0.5, found.k + least.k)
