"""Products with the Hessian of a marginal likelihood, exact.

``1/2 |A B|^2`` with ``B = R^-1`` has the derivative of ``log |det R|`` by A where B is held, and ``1/2 |M w - y|^2``
that of ``S / 2`` where w is. Of both together, the Hessian by theta is that with w and B held, and what w and B do:
``dw = -H^-1 c`` for the change c of the slope by w, and ``dB = -1/2 B B^H C`` for the change C of ``A^H A B``, which
keeps ``B^H A^H A B = I``. The determinant of a prior whose Omega moves or is not square has an X in the same way.
"""

from __future__ import annotations

from typing import Any

from xvarpro import lower
from xvarpro.backends import Backend
from xvarpro.backends.calculus import hessian_product
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import adjoint, dot, inner, partition, plus, scaled
from xvarpro.lower.interface import NO_RIDGE, Ridge, Volume
from xvarpro.lower.stack import eye_like
from xvarpro.objective.least_squares import EvaluatedLevel
from xvarpro.objective.marginal import Marginal


def marginal_hessian(f: Marginal, theta: Leaves, u: Leaves) -> Leaves:
    """The Hessian of the objective at theta times u, shaped like theta."""
    backend, noise, p = f.backend, f.noise, len(theta)
    low, _, solver, system = f.solved(f.evaluate(theta, f.constants))
    solver = lower.QR() if isinstance(solver, lower.DualQR) else solver
    factor = solver.factor(backend, system)
    w = solver.argmin(backend, system, factor, low.y)
    w, r = solver.refine(backend, system, factor, low.y, w, low.residual(w))
    volume: Any = solver.volume(backend, system, factor)
    _, B = volume.pair()
    precision, share = noise.precision(low.value(w, r)), noise.parts * noise.columns / volume.stack
    held: tuple[Array, ...] = (w, B)
    if noise.Omega is None:
        held = (*held, _root(backend, low.ridge, callable(f.problem.lower.Omega)))
    arrays, skeleton = partition((f.problem, precision))

    def parts(*given: Array) -> tuple[EvaluatedLevel, Array, Array]:
        """The level, and ``S / 2`` with w held, alone and times a precision that is held."""
        problem, precision = skeleton.fill(given[p + len(held) :])
        g = f.with_problem(problem)
        level, _ = g.levels(g.evaluate(given[:p], g.constants))
        half = level.value(given[p], level.residual(given[p]))
        return level, half, precision * half

    def lagrangian(*given: Array) -> Array:
        level, _, fit = parts(*given)
        ridge = NO_RIDGE if noise.Omega is None else level.ridge
        found = Volume(ridge, namespace_of(w).ones_like(volume.sizes), volume.pair).log_det()
        for _, column in volume._replace(pair=lambda: (given[p + 1], given[p + 1])).pairs():
            found = level.value(column, level.system.M.matvec(column)) + found
        if noise.Omega is None:
            X = given[p + 2]
            rows = level.ridge.rows(X) if X.shape[0] == w.shape[0] else level.ridge.rows_back(X)
            found = found - (0.5 * volume.stack) * inner(rows, rows)
        return fit + share * found

    _, product = hessian_product(backend, lagrangian, (*theta, *held), arrays)
    zeros = tuple(namespace_of(x).zeros_like(x) for x in (*theta, *held))
    changes = product((*u, *zeros[p:]))
    first, c = changes[:p], changes[p]
    dw: Any = solver.adjoint(backend, system, factor, c, low.y, w, r).v
    weights = share, -share * volume.stack
    roots = [(-0.5 / s) * (Z @ (adjoint(Z) @ C)) for s, Z, C in zip(weights, held[1:], changes[p + 1 :], strict=False)]
    total = plus(first, product((*zeros[:p], -dw / precision, *roots))[:p])
    if noise.sigma is not None:
        return total
    (half,), pull = backend.vjp(lambda *x: (parts(*x)[1],), theta, (*held, *arrays))
    slope = pull((namespace_of(half).ones_like(half),))
    bend = precision * precision / (noise.shape + 0.5 * noise.freedom)  # of the logarithm
    return plus(total, scaled(-bend * dot(slope, u), slope))


def _root(backend: Backend, ridge: Ridge, moving: bool) -> Array:
    """X of `Ridge.log_det`; of an Omega of theta with fewer rows than columns, whose range moves, that of ``B^H``."""
    Omega: Any = ridge.array
    if not (moving and Omega.shape[0] < Omega.shape[1]):
        return ridge.log_det(backend)[3]
    _, R = backend.qr(adjoint(ridge.dense(Omega)))
    return backend.solve_triangular(R, eye_like(R))
