"""Every solver that `xvarpro.lower` exports, and those that structured designs have, against rational arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from xvarpro import lower, operators
from xvarpro.backends import Backend
from xvarpro.conformance.checks.operators import cases as designs
from xvarpro.conformance.rational import fractions, solution
from xvarpro.conformance.suite import Measured, Target, Typed, check, exported, held, reference, turns
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import LowerSolver, System
from xvarpro.operators import Dense
from xvarpro.operators.interface import Operator

DIRECT, ITERATIVE = 20.0, 100.0  # in eps x condition: of a factorisation, and of iterations on the normal equations
RIDGE = 0.25


@dataclass(frozen=True, eq=False)
class Level:
    """A lower level around NumPy arrays, and its solver."""

    solver: LowerSolver
    M: Operator
    lam: float = RIDGE
    Omega: np.ndarray | None = None
    complex: bool = False
    turn: tuple[str, ...] = ()  # the precisions in which it is compiled, where levels are
    k: int = 2

    def drawn(self, rows: int, seed: int) -> np.ndarray:
        return _drawn((rows, self.M.columns or self.k), seed, self.complex)

    @property
    def y(self) -> np.ndarray:
        return self.drawn(self.M.shape[0], 3)

    @property
    def c(self) -> np.ndarray:
        return self.drawn(self.M.shape[1], 4)

    @property
    def A(self) -> np.ndarray:
        """``A[j]`` for right-hand side j."""
        return np.broadcast_to(np.asarray(self.M.dense()), (self.y.shape[1], *self.M.shape))

    @property
    def weight(self) -> np.ndarray:
        return np.eye(self.M.shape[1]) if self.Omega is None else self.Omega

    @property
    def stacked(self) -> list[np.ndarray]:
        """The matrix with the ridge's rows under it, for every right-hand side."""
        return [np.vstack([a, self.lam**0.5 * self.weight]) for a in self.A]

    @property
    def condition(self) -> float:
        return _condition(self.stacked)

    @property
    def conditions(self) -> list[float]:
        """What solvers report: of the stacked matrix, of the same with unit columns, and of the dual with unit rows."""
        dual = [np.hstack([a @ np.linalg.inv(self.weight), self.lam**0.5 * np.eye(len(a))]) for a in self.A]
        scaled = ([S / np.linalg.norm(S, axis=i, keepdims=True) for S in x] for i, x in enumerate((self.stacked, dual)))
        return [self.condition, *map(_condition, scaled)]

    def tolerance(self, target: Target) -> float:
        kappa = self.condition
        return target.eps * (DIRECT * kappa if self.solver.exact else ITERATIVE * kappa**2)

    def solver_on(self, target: Target) -> LowerSolver:
        """An iterative one is asked for all that the precision has, and has ten times the steps that it needs."""
        solver: Any = self.solver
        return solver if solver.exact else replace(solver, tol=target.eps, limit=10 * self.M.shape[1])


def _condition(matrices: Sequence[np.ndarray]) -> float:
    return max(float(np.linalg.cond(S)) for S in matrices)


def _drawn(shape: tuple[int, ...], seed: int, is_complex: bool = False) -> np.ndarray:
    draw = np.random.default_rng([seed, *shape])
    x: Any = draw.normal(size=shape)
    return held(x + 1j * draw.normal(size=shape) if is_complex else x)


def _weight(n: int) -> np.ndarray:
    return np.eye(n) + 0.25 * _drawn((n, n), 5)


def _graded() -> np.ndarray:
    """A tall design with a condition of 30."""
    U, V = np.linalg.qr(_drawn((9, 4), 0))[0], np.linalg.qr(_drawn((4, 4), 1))[0]
    return held(U * np.logspace(0, -np.log10(30), 4) @ V.T)


@cache
def solvers() -> dict[str, LowerSolver]:
    """Every solver for arrays, and LSMR with every preconditioner; a newcomer is found by its export."""
    found = {x.__name__: x() for x in exported(lower, LowerSolver) if _solves(x(), np.eye(2), RIDGE)}
    preconditioners = [x for x in exported(lower, lower.Preconditioner) if x is not lower.Identity]
    return found | {f"LSMR, {x.__name__}": lower.LSMR(preconditioner=x()) for x in preconditioners}


def _solves(solver: LowerSolver, A: np.ndarray, lam: float) -> bool:
    """Whether it has an answer for such an array: some are for a structure, and some for another shape."""
    backend = reference().backend
    try:
        with reference().scope():
            system, y = System(Dense(A), lam, None), np.ones((A.shape[0], 1))
            return not bool(solver.diagnose(backend, system, solver.factor(backend, system), y).deficient)
    except ProblemError:
        return False


@cache
def levels() -> dict[str, Level]:
    """Every solver on arrays of every shape that it handles, and every design with the solver that fits it."""
    graded, tall, wide = (Dense(x) for x in (_graded(), _drawn((9, 4), 0), _drawn((4, 9), 0)))
    found = {}
    for name, solver in solvers().items():
        if _solves(solver, np.asarray(graded.dense()), 0.0):
            found[f"{name}, no ridge"] = Level(solver, graded, 0.0)
        found[f"{name}, ridge"] = Level(solver, tall)
        found[f"{name}, wide"] = Level(solver, wide)
        found[f"{name}, weighted ridge"] = Level(solver, tall, Omega=_weight(4))
        found[f"{name}, complex"] = Level(solver, Dense(_drawn((9, 4), 0, True)), complex=True)
    for name, case in designs().items():
        found[name] = Level(lower.choose(case.M, RIDGE), case.M, complex=case.complex)
    return _taking_turns(found)


def _taking_turns(found: dict[str, Level]) -> dict[str, Level]:
    """One level of each class of solvers is compiled in each precision, where levels are compiled."""
    kinds: dict[type, list[str]] = {}
    for name, level in found.items():
        kinds.setdefault(type(level.solver), []).append(name)
    turn = {n: t for names in kinds.values() for n, t in zip(names, turns(len(names)), strict=True)}
    return {name: replace(level, turn=turn[name]) for name, level in found.items()}


# -- the answer, in rational arithmetic --------------------------------------------------------------------------------


def _real(A: np.ndarray) -> np.ndarray:
    """A complex matrix as a real one of twice the size."""
    return np.block([[A.real, -A.imag], [A.imag, A.real]]) if np.iscomplexobj(A) else A


def _parts(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x.real, x.imag]) if np.iscomplexobj(x) else x


def _whole(x: np.ndarray, is_complex: bool) -> np.ndarray:
    n = len(x) // 2
    return x[:n] + 1j * x[n:] if is_complex else x


@cache
def exact(level: Level) -> tuple[np.ndarray, np.ndarray]:
    """``H^-1 M^H y`` and ``H^-1 c``, rounded once, at the end."""
    columns = []
    for j, A in enumerate(level.A):
        S = fractions(_real(A))
        Omega = fractions(np.eye(S.shape[1]) if level.Omega is None else _real(level.Omega))
        H = S.T @ S + Fraction(level.lam) * (Omega.T @ Omega)
        y, c = (fractions(_parts(x[:, j : j + 1])) for x in (level.y, level.c))
        columns.append(solution(H, np.concatenate([S.T @ y, c], axis=1)).astype(float))
    w, v = (_whole(np.stack([x[:, i] for x in columns], axis=1), level.complex) for i in (0, 1))
    return w, v


# -- what solvers say --------------------------------------------------------------------------------------------------


def _solve(backend: Backend, solver: LowerSolver, system: System, y: Array, c: Array) -> tuple[Array, ...]:
    """The weights and their residual, refined; M v, the adjoint's pairs as arrays of the design; rank and condition."""
    M, factor = system.M, solver.factor(backend, system)
    plain = solver.argmin(backend, system, factor, y)
    w, r = solver.refine(backend, system, factor, y, plain, M.residual(plain, y))
    q, pairs, _ = solver.adjoint(backend, system, factor, c, y, w, r)
    deficient, condition, kinks, _ = solver.diagnose(backend, system, factor, y)
    return plain, w, r, q, deficient, condition, kinks, *_gradient(M, pairs)


def _gradient(M: Operator, pairs: Sequence[tuple[Array, Array]]) -> list[Array]:
    """``sum s v^H`` over the pairs, in the arrays of the design."""
    terms = [_moving(M.outer(s, v)) for s, v in pairs]
    return [trees.sum_(parts) for parts in zip(*terms, strict=True)]


def _moving(M: Operator) -> list[Array]:
    arrays = trees.partition(M)[0]
    return [x for x in arrays if namespace_of(x).isdtype(x.dtype, ("real floating", "complex floating"))]


def solved(target: Target, level: Level) -> Typed:
    """The answers of the solver for a level."""
    target.represent(level.turn)
    system = System(level.M, level.lam, level.Omega)
    return target.typed(_solve, target.backend, level.solver_on(target), system, level.y, level.c)


@check("lower level", levels)
def weights(target: Target, level: Level) -> Iterator[Measured]:
    """Weights equal those of rational arithmetic, to eps x condition, before and after refinement."""
    plain, w, r, *_ = target.once(solved, level).values
    want, tolerance = exact(level)[0], level.tolerance(target)
    yield Measured("w", plain, want, tolerance)
    yield Measured("w, refined", w, want, tolerance)
    residual = np.einsum("kmn,nk->mk", level.A, want) - level.y
    yield Measured("M w - y", r, residual, tolerance, float(np.linalg.norm(level.y)))


@check("lower level", levels)
def adjoint(target: Target, level: Level) -> Iterator[Measured]:
    """``M v`` and the gradient of the design equal those of rational arithmetic, to eps x condition."""
    _, _, _, q, _, _, _, *got = target.once(solved, level).values
    w, v = exact(level)
    tolerance = level.tolerance(target)
    residual = np.einsum("kmn,nk->mk", level.A, w) - level.y
    yield Measured("M v", q, np.einsum("kmn,nk->mk", level.A, v), tolerance)
    size = float(np.linalg.norm(level.y) * np.linalg.norm(v) * np.linalg.norm(level.A))
    with target.reference.scope():
        want = _moving(level.M.outer(residual, v))
    for i, (one, other) in enumerate(zip(got, want, strict=True)):
        yield Measured(f"sum s v^H, array {i}", one, other, tolerance, size + float(np.linalg.norm(np.asarray(other))))


@check("lower level", levels)
def condition_and_rank(target: Target, level: Level) -> Iterator[Measured]:
    """The condition is that of the stacked matrix, as it is or scaled, and the solution is unique."""
    *_, deficient, condition, kinks = target.once(solved, level).values[:7]
    known = level.conditions
    if isinstance(level.M, operators.LowRankPlusDiagonal):  # it is reported of the small matrices that are solved with
        known = [float(target.reference.once(solved, level).values[5])]
    want = min(known, key=lambda x: abs(x - condition))
    yield Measured("deficient", bool(deficient), False)
    yield Measured("condition", condition, want, level.tolerance(target) * want)
    yield Measured("kinks", int(kinks), 0)


@check("lower level", levels)
def precision(target: Target, level: Level) -> Iterator[Measured]:
    """Weights and ``M v`` have the precision of the target, and are real or complex as the design is."""
    found = target.once(solved, level).dtypes
    for name, kind in zip(("w", "w, refined", "M w - y", "M v"), found, strict=False):
        yield Measured(name, kind, target.complex_dtype if level.complex else target.dtype)


# -- loss of rank ------------------------------------------------------------------------------------------------------


def _dependent() -> dict[str, np.ndarray]:
    equal, zero = _drawn((9, 4), 0), _drawn((9, 4), 0)
    equal[:, 3], zero[:, 2] = equal[:, 1], 0.0
    return {"equal columns": equal, "a column of 0": zero, "0": 0 * zero}


def _once(solver: LowerSolver) -> tuple[str, ...]:
    """In double precision, by the program that has solved the first level; not again for another preconditioner."""
    return ("float64",) if solver == type(solver)() else ()


@cache
def dependent() -> dict[str, Level]:
    """Every solver that tall designs without a ridge are for, on designs without full rank."""
    tall = {name: solver for name, solver in solvers().items() if _solves(solver, _drawn((9, 4), 0), 0.0)}
    return {
        f"{name}, {kind}": Level(solver, Dense(A), 0.0, turn=_once(solver))
        for name, solver in tall.items()
        for kind, A in _dependent().items()
    }


@check("lower level", dependent)
def loss_of_rank(target: Target, level: Level) -> Iterator[Measured]:
    """A design without full rank is reported, or solved by the w of least norm; nothing is raised."""
    plain, w, *_, deficient, _, _ = target.once(solved, level).values[:7]
    *_, small, _, _ = target.reference.once(solved, level).values[:7]
    yield Measured("deficient", bool(deficient), bool(small))
    yield Measured("shape", plain.shape, (4, level.k))
    if not small:
        least = np.linalg.pinv(np.asarray(level.M.dense())) @ level.y
        yield Measured("w of least norm", w, least, ITERATIVE * target.eps, 1.0)


@check("lower level", solvers)
def what_is_not_finite(target: Target, solver: LowerSolver) -> Iterator[Measured]:
    """A NaN in the design is reported or gives NaN weights; nothing is raised."""
    A = _drawn((9, 4), 0)
    A[1, 1] = np.nan
    lam = 0.0 if _solves(solver, _drawn((9, 4), 0), 0.0) else RIDGE
    plain, *_, deficient, _, _ = solved(target, Level(solver, Dense(A), lam, turn=_once(solver))).values[:7]
    yield Measured("believed", bool(np.isfinite(plain).all() and not deficient), False)


# -- weights in a set --------------------------------------------------------------------------------------------------


@cache
def levels_in_sets() -> dict[str, Level]:
    """A level for every set of weights, by its examples; a newcomer is found by its export."""
    kinds = exported(lower, lower.WeightSet)
    found = {f"{kind.__name__} {i}": W for kind in kinds for i, W in enumerate(kind.examples(4))}
    design = Dense(_drawn((9, 4), 0))
    resolved = {name: trees.map_arrays(held, W).resolved() for name, W in found.items()}
    return _taking_turns({name: Level(W.solver(None), design, k=3) for name, W in resolved.items()})


@check("lower level", levels_in_sets)
def weights_in_a_set(target: Target, level: Level) -> Iterator[Measured]:
    """Weights, adjoint and kinks equal NumPy's, and no other weights of the set have a lower objective."""
    got, want = (solved(t, level).values for t in (target, target.reference))
    tolerance = DIRECT * target.eps * level.condition
    for name, one, other in zip(("w", "w, refined", "M w - y", "M v"), got, want, strict=False):
        yield Measured(name, one, other, tolerance, max(1.0, float(np.linalg.norm(np.asarray(other)))))
    for name, i in (("deficient", 4), ("kinks", 6)):
        yield Measured(name, int(got[i]), int(want[i]))
    # along the way from w to any other w of the set the objective does not fall
    w, A = got[1], level.A[0]
    slope = A.T @ (A @ w - level.y) + level.lam * w
    with target.reference.scope():
        others = [
            solved(target.reference, replace(level, M=Dense(_drawn((9, 4), seed)))).values[1] for seed in (6, 7, 8)
        ]
    falls = max(float(np.max(np.sum(slope * (w - x), axis=0))) for x in others)
    size = float(np.linalg.norm(A) * np.linalg.norm(level.y) * max(1.0, np.linalg.norm(w)))
    yield Measured("<gradient, w - x> over w's set", max(falls, 0.0), 0.0, tolerance, size)


@check("lower level")
def preconditioner_of_convolutions(target: Target, _: None) -> Iterator[Measured]:
    """The circulant preconditioner equals NumPy's."""
    M = operators.Toeplitz.examples((8, 4))[0]
    x = _drawn((4, 2), 9)
    got, want = (t.compute(_preconditioned, trees.map_arrays(held, M), x) for t in (target, target.reference))
    yield Measured("C^-1 x", got, want, DIRECT * target.eps * float(np.linalg.cond(np.asarray(M.dense()))) ** 2)


def _preconditioned(M: Operator, x: Array) -> Array:
    return lower.circulant_preconditioner(System(M, RIDGE, None)).apply(x)
