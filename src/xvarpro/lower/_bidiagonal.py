"""Golub-Kahan bidiagonalisation of ``A = [M; sqrt(lam) Omega]``, one process per right-hand side.

Least squares start it from ``b = [y; 0]`` (Paige, Saunders 1982), ``H x = c`` from c: the same recurrence, and both
give the rows ``rho_k, theta_{k+1}`` of an upper bidiagonal R with ``A V_k = U_k R_k`` up to rotations of U. A
preconditioner P changes the inner product of V, so that no factor of P is needed (Arridge, Betcke, Harhanen 2014).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.lower.normal import Normal, Stack, length, norms, random_signs
from xvarpro.lower.stack import singular_ratio


class Basis(NamedTuple):
    """The last vectors of the process, and the scalars that it hands on; rows (1, k) of real numbers."""

    u: Stack
    p: Array  # P^-1 v
    v: Array
    a: Array  # the norm that v was divided by
    bar: Array  # the diagonal entry that a rotation has still to finish; least squares only


class Row(NamedTuple):
    """One row of R."""

    rho: Array
    theta: Array


def begin_fit(normal: Normal, y: Array) -> tuple[Basis, Array]:
    """The process for ``min |A x - [y; 0]|``, and the size of ``A^H [y; 0]``."""
    b = normal.target(y)
    beta = norms(b)
    u = tuple(part / positive_or_one(beta) for part in b)
    p, v, a = _normalised(normal, normal.back(u))
    return Basis(u, p, v, a, a), a * beta


def begin_solve(normal: Normal, c: Array) -> tuple[Basis, Array]:
    """The process for ``H x = c``, and the size of c."""
    p, v, a = _normalised(normal, c)
    u = normal.forward(namespace_of(v).zeros_like(v))
    return Basis(u, p, v, 0 * a, 0 * a), a


def advance(normal: Normal, basis: Basis, fits: bool) -> tuple[Basis, Row]:
    """One step: two products. `fits` says whether a target is fitted, or ``H x = c`` solved."""
    u = tuple(part - basis.a * last for part, last in zip(normal.forward(basis.v), basis.u, strict=True))
    b = norms(u)
    u = tuple(part / positive_or_one(b) for part in u)
    p, v, a = _normalised(normal, normal.back(u) - b * basis.p)
    if not fits:
        return Basis(u, p, v, a, basis.bar), Row(b, a)
    rho = namespace_of(b).sqrt(basis.bar * basis.bar + b * b)
    return Basis(u, p, v, a, basis.bar / rho * a), Row(rho, b / rho * a)


def _normalised(normal: Normal, p: Array) -> tuple[Array, Array, Array]:
    v = normal.precondition(p)
    a = length(p, v)
    return p / positive_or_one(a), v / positive_or_one(a), a


STEPS = 40  # of the process that the condition is estimated from
LEAK = 1e-2  # a Ritz value is then wrong by LEAK^2 / 2


def condition(backend: Backend, normal: Normal, like: Array) -> Array:
    """Quotient of the largest and the smallest singular value != 0 of A, from below, 0-d: that of R after 40 steps.

    It is exact where A has few distinct singular values. The start is ``A^H g`` with a random g: it has a part in every
    singular vector of A that belongs to a value != 0, and the right-hand side of a user need not. Rounding errors let
    the process go on where its space is exhausted. With a ridge A has full column rank, and what comes then is a
    value of A too (Paige 1980: also without orthogonality). Without one the process must end before it leaves the
    range of ``A^H``, since R has then a singular value near 0 that A has not. Rounding puts a part of length
    ``10 eps |A|`` of every ``A^H u`` outside, and ``a_{k+1} v_{k+1} = A^H u_{k+1} - b_{k+1} v_k`` grows it:
    ``leak_{k+1} <= (b_{k+1} leak_k + 10 eps |A|) / a_{k+1}``, which is large where the next a is rounding only.
    """
    xp = namespace_of(like)
    rows, n = normal.system.M.shape
    columns = normal.system.M.columns or 1
    probe: Stack = (random_signs((rows, columns), like),)
    if normal.system.ridge.present:
        probe = (*probe, random_signs((normal.system.ridge.height(n), columns), like))
    basis, size = begin_solve(normal, normal.back(probe))
    eps = xp.finfo(size.dtype).eps
    rounding = 0.0 if normal.system.ridge.definite else 10 * eps
    index = xp.arange(STEPS, device=device(like))

    def going(state: tuple[Any, ...]) -> Array:
        return (state[0] < STEPS) & xp.any(state[2])

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, basis, alive, leak, largest, first, rhos, thetas = state
        basis, row = advance(normal, basis, False)
        first = xp.where(k == 0, row.rho, first)
        largest = xp.maximum(largest, xp.maximum(row.rho, row.theta))
        at_k = xp.reshape(index == k, (STEPS, 1))
        rhos = xp.where(at_k, xp.where(alive, row.rho, first), rhos)
        leak = (row.rho * leak + rounding * largest) / positive_or_one(row.theta)
        alive = alive & (row.theta > 0) & (leak < LEAK)
        thetas = xp.where(at_k, xp.where(alive, row.theta, 0 * first), thetas)
        return k + 1, basis, alive, leak, largest, first, rhos, thetas

    table = xp.zeros_like(size) + xp.zeros_like(xp.astype(xp.reshape(index, (STEPS, 1)), size.dtype))
    start = (xp.zeros_like(index[0, ...]), basis, size > 0, 0 * size + rounding, 0 * size, size, table, table)
    *_, first, rhos, thetas = backend.while_loop(going, step, start)
    rhos = xp.where(rhos == 0, first, rhos)  # the steps that were not made repeat a known value
    lines, rows_ = xp.expand_dims(index, axis=1), xp.expand_dims(index, axis=0)
    rho, theta = (xp.expand_dims(x.mT, axis=2) for x in (rhos, thetas))
    bidiagonal = xp.where(lines == rows_, rho, 0 * rho) + xp.where(lines + 1 == rows_, theta, 0 * theta)
    return singular_ratio(backend, bidiagonal)
