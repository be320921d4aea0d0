"""Conjugate gradients for ``(J^+ - I + H) u = c`` on the range of a symmetric J, without a pseudo-inverse.

This is the preconditioned conjugate gradient method (Hestenes and Stiefel 1952; Saad, Iterative Methods, algorithm 9.1)
with J as the preconditioner. Preconditioned, every direction is ``p = J q`` for a known q, and ``J^+ p`` is q up to the
null space of J: the products ``(J^+ - I + H) p = q - p + H p`` need no pseudo-inverse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import axpy, dot, plus, sub

# curvature relative to the largest so far that counts as 0, as a power of eps: null vectors come out of the iteration
# with the error of the others, and a direction of less curvature would lose all but a few digits to rounding
FLAT = 2 / 3


class CGResult(NamedTuple):
    """Solution of `conjugate_gradients`."""

    u: Leaves
    image: Leaves  # the second linear map at u
    singular: Array  # 0-d bool: a direction had no curvature, or negative curvature
    residual: Array  # 0-d: norm of the residual's image under J, relative
    steps: Array  # 0-d


class _State(NamedTuple):
    k: Array
    u: Leaves
    image: Leaves
    r: Leaves
    p: Leaves
    q: Leaves  # p = J q
    rz: Array  # <r, J r>
    size: Array  # |J r|^2
    top: Array  # largest curvature so far
    singular: Array


def conjugate_gradients(
    backend: Backend,
    J: Callable[[Leaves], Leaves],
    restrict: Callable[[Leaves], Leaves],
    H: Callable[[Leaves], tuple[Leaves, Leaves]],
    c: Leaves,
    zeros: Leaves,
    tol: float,
    noise: float,
    limit: int,
) -> CGResult:
    """Solve ``(J^+ - I + H) u = c`` on the range of J: the solution of least norm if there are several or none.

    A direction without curvature spans the null space, if there is no negative eigenvalue: the iteration removes it
    from the solution and from the right-hand side, and continues.

    J is linear and symmetric, ``0 <= J <= I``, of the relative error `noise`, and `restrict` the projection onto its
    range where it is a projector, identity where it is not. H is a symmetric map of scale 1, and the value of any
    second linear map, of which `CGResult.image` is the one at u and `zeros` has the shapes. `tol` is of the residual's
    image under J, relative, and `limit` the number of products with H at most.
    """
    c = restrict(c)
    start = J(c)
    rz, whole = dot(c, start), dot(start, start)
    xp = namespace_of(rz)
    zero, one = xp.zeros_like(rz), xp.ones_like(rz)
    floor = xp.finfo(rz.dtype).eps ** FLAT

    def going(s: _State) -> Array:
        unknown = (16 * noise * noise) * dot(s.r, s.r)
        return (s.size > (tol * tol) * whole) & (s.size > unknown) & (s.k < limit)

    def step(s: _State) -> _State:
        Hp, image = H(s.p)
        Bp = restrict(plus(sub(s.q, s.p), Hp))
        curvature, size = dot(s.p, Bp), dot(s.p, s.q)
        top = xp.maximum(s.top, xp.abs(curvature) / size)
        flat = xp.abs(curvature) <= floor * top * size
        along = s.rz / xp.where(flat, one, curvature)
        # along a flat direction: remove p from u and q from r, and start again from there
        alpha = xp.where(flat, -dot(s.u, s.q) / size, along)
        r = axpy(xp.where(flat, zero, -along), Bp, s.r)
        r = axpy(xp.where(flat, -dot(s.r, s.p) / size, zero), s.q, r)
        z = J(r)
        rz = dot(r, z)
        beta = xp.where(flat, zero, rz / s.rz)
        return _State(
            k=s.k + 1,
            u=axpy(alpha, s.p, s.u),
            image=axpy(alpha, image, s.image),
            r=r,
            p=axpy(beta, s.p, z),
            q=axpy(beta, s.q, r),
            rz=rz,
            size=dot(z, z),
            top=top,
            singular=s.singular | flat | (curvature < 0),  # a saddle is no minimum
        )

    k = xp.zeros((), dtype=xp.int32, device=device(rz))
    u = tuple(0 * x for x in c)
    s = backend.while_loop(going, step, _State(k, u, zeros, c, start, c, rz, whole, one, whole < whole))
    residual = (s.size / xp.where(whole > 0, whole, one)) ** 0.5
    return CGResult(s.u, s.image, s.singular, residual, s.k)
