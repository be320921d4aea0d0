"""Golub-Kahan bidiagonalisation of ``A = [M; sqrt(lam) Omega]``, one process per right-hand side.

Least squares start it from ``b = [y; 0]`` (Paige, Saunders 1982), ``H x = c`` from c: the same recurrence, and both
give the rows ``rho_k, theta_{k+1}`` of an upper bidiagonal R with ``A V_k = U_k R_k`` up to rotations of U. A
preconditioner P changes the inner product of V, so that no factor of P is needed (Arridge, Betcke, Harhanen 2014).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array
from xvarpro.lower.normal import Normal, Stack, length, norms, plus, positive, times


class Basis(NamedTuple):
    """The last vectors of the process, and the scalars that it hands on; rows (1, k) of real numbers."""

    u: Stack
    p: Array  # P^-1 v
    v: Array
    a: Array  # the norm that v was divided by
    bar: Array  # the diagonal entry that a rotation has still to finish; least squares only
    rest: Array  # what is left of the right-hand side


class Row(NamedTuple):
    """One row of R and of the rotated right-hand side."""

    rho: Array
    theta: Array
    phi: Array


def begin(normal: Normal, y: Array | None, c: Array | None) -> tuple[Basis, Array]:
    """The process for ``min |A x - [y; 0]|``, or for ``H x = c``; also the size of ``A^H b`` or c."""
    if y is not None:
        b = normal.target(y)
        beta = norms(b)
        u = tuple(times(1 / positive(beta), part) for part in b)
        p, v, a = _normalised(normal, normal.back(u))
        return Basis(u, p, v, a, a, beta), a * beta
    assert c is not None  # one of the two is given
    p, v, a = _normalised(normal, c)
    xp = array_namespace(v)
    u = tuple(0 * part for part in normal.forward(xp.zeros_like(v)))
    return Basis(u, p, v, 0 * a, 0 * a, a), a


def advance(normal: Normal, basis: Basis, fits: bool) -> tuple[Basis, Row]:
    """One step: two products. `fits` says whether a target is fitted, or ``H x = c`` solved."""
    u = plus(normal.forward(basis.v), -basis.a, basis.u)
    b = norms(u)
    u = tuple(times(1 / positive(b), part) for part in u)
    p, v, a = _normalised(normal, normal.back(u) - times(b, basis.p))
    if not fits:
        phi = basis.rest / b
        return Basis(u, p, v, a, basis.bar, -a * phi), Row(b, a, phi)
    rho = array_namespace(b).sqrt(basis.bar * basis.bar + b * b)
    cos, sin = basis.bar / rho, b / rho
    return Basis(u, p, v, a, cos * a, -sin * basis.rest), Row(rho, sin * a, cos * basis.rest)


def _normalised(normal: Normal, p: Array) -> tuple[Array, Array, Array]:
    v = normal.precondition(p)
    a = length(p, v)
    scale = 1 / positive(a)
    return times(scale, p), times(scale, v), a


def ritz(backend: Any, normal: Normal, c: Array, steps: int) -> tuple[Array, Array]:
    """Smallest and largest singular value of R after that many steps from c, 0-d: inside those of A.

    A process that has ended, since its space is exhausted, repeats a value that it knows.
    """
    xp = array_namespace(c)
    basis, size = begin(normal, None, c)
    tiny = 100 * xp.finfo(size.dtype).eps
    index = xp.arange(steps, device=device(c))

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, basis, alive, first, rhos, thetas = state
        basis, row = advance(normal, basis, False)
        first = xp.where(k == 0, row.rho, first)
        alive = alive & (row.rho > tiny * first)
        here = xp.reshape(index == k, (steps, 1))
        rhos = xp.where(here, xp.where(alive, row.rho, first), rhos)
        going = alive & (row.theta > tiny * first)
        thetas = xp.where(here, xp.where(going, row.theta, 0 * first), thetas)
        return k + 1, basis, going, first, rhos, thetas

    table = xp.zeros_like(size) + xp.zeros_like(xp.astype(xp.reshape(index, (steps, 1)), size.dtype))
    start = (xp.zeros_like(index[0, ...]), basis, size > 0, size, table, table)
    rhos, thetas = backend.while_loop(lambda state: state[0] < steps, step, start)[-2:]
    lines, rows = xp.expand_dims(index, axis=1), xp.expand_dims(index, axis=0)
    small, large = [], []
    for j in range(rhos.shape[1]):
        diagonal = xp.where(lines == rows, rhos[:, j : j + 1], 0 * rhos[:1, j : j + 1])
        above = xp.where(lines + 1 == rows, thetas[:, j : j + 1], 0 * thetas[:1, j : j + 1])
        s = backend.svd(diagonal + above)[1]
        small.append(xp.min(s))
        large.append(xp.max(s))
    return xp.min(xp.stack(small)), xp.max(xp.stack(large))
