"""Every solver that `xvarpro.lower` exports, and those that structured designs have, against a hundred digits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from xvarpro import lower, operators
from xvarpro.backends import Backend
from xvarpro.core import trees
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import LowerSolver, Ridge, System
from xvarpro.lower.preconditioners import Preconditioner
from xvarpro.lower.weight_sets.blocks import by_blocks
from xvarpro.lower.weight_sets.interface import WeightSet
from xvarpro.operators import Dense
from xvarpro.operators.interface import Operator
from xvarpro_conformance.checks.operators import cases as designs
from xvarpro_conformance.checks.operators import moving
from xvarpro_conformance.problems import held, normal
from xvarpro_conformance.references import designs as written
from xvarpro_conformance.references import lower as reduced
from xvarpro_conformance.references.digits import digits, numbers, rounded
from xvarpro_conformance.suite import NUMPY, Inapplicable, Measured, Target, Typed, check, exported

DIRECT, ITERATIVE = 20.0, 100.0  # in eps x condition: of a factorisation, and of iterations on the normal equations
RIDGE = 0.25


@dataclass(frozen=True, eq=False)
class Level:
    """A lower level around NumPy arrays, and its solver."""

    solver: LowerSolver
    M: Operator
    lam: float = RIDGE
    Omega: Any = None
    complex: bool = False
    turn: tuple[str, ...] = ()  # the precisions in which it is compiled, where levels are
    k: int = 2

    W: WeightSet | None = None

    def drawn(self, rows: int, seed: int) -> np.ndarray:
        return _drawn((rows, self.M.columns or self.k), seed, self.complex)

    @property
    def y(self) -> np.ndarray:
        return self.drawn(self.M.shape[0], 3)

    @property
    def c(self) -> np.ndarray:
        return self.drawn(self.M.shape[1], 4)

    @cached_property
    def A(self) -> np.ndarray:
        """``A[j]`` for right-hand side j."""
        return np.broadcast_to(written.dense(self.M), (self.y.shape[1], *self.M.shape))

    @property
    def weight(self) -> np.ndarray:
        return np.eye(self.M.shape[1]) if self.Omega is None else written.dense(self.Omega)

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

    def size(self, x: np.ndarray) -> float:
        """What errors are relative to: weights in a set may be 0."""
        return max(float(self.W is not None), float(np.linalg.norm(x)))

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
    return held(normal(shape, is_complex, seed))


def _weight(n: int) -> np.ndarray:
    return np.eye(n) + 0.25 * _drawn((n, n), 5)


def _graded() -> np.ndarray:
    """A tall design with condition 30."""
    U, V = np.linalg.qr(_drawn((9, 4), 0))[0], np.linalg.qr(_drawn((4, 4), 1))[0]
    return held(U * np.logspace(0, -np.log10(30.0), 4) @ V.T)


@cache
def solvers() -> dict[str, LowerSolver]:
    """Every solver for arrays, and LSMR with every preconditioner; a newcomer is found by its export."""
    found = {x.__name__: x() for x in exported(lower, LowerSolver) if _solves(x(), np.eye(2), RIDGE)}
    del found["Cholesky"]  # for arrays it is QR
    preconditioners = exported(lower, Preconditioner)
    return found | {f"LSMR, {x.__name__}": lower.LSMR(preconditioner=x()) for x in preconditioners}


def _solves(solver: LowerSolver, A: np.ndarray, lam: float) -> bool:
    """Whether it has an answer for such an array: some are for a structure, and some for another shape."""
    backend = NUMPY.backend
    try:
        with NUMPY.scope():
            system, y = System(Dense(A), Ridge(lam)), np.ones((A.shape[0], 1))
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
        turned = _weight(4) + 0.25j * _drawn((4, 4), 6)
        found[f"{name}, complex ridge"] = Level(solver, Dense(_drawn((3, 4), 0, True)), Omega=turned, complex=True)
    for name, case in designs().items():
        if not case.first:
            continue
        found[name] = Level(lower.choose(case.M, Ridge(RIDGE)), case.M, complex=case.complex)
        m, n = case.M.shape
        if m >= n and case.M.explicit:
            found[f"{name}, no ridge"] = Level(lower.choose(case.M), case.M, 0.0, complex=case.complex)
        if case.complex:
            weight = _weight(n) + 0.25j * _drawn((n, n), 6)
            found[f"{name}, complex ridge"] = Level(
                lower.choose(case.M, Ridge(RIDGE, weight)), case.M, Omega=weight, complex=True
            )
    kernel = operators.Circulant.examples((6, 6))[0]
    M, smooth = (trees.map_arrays(held, kernel), operators.Circulant(held(np.array([2.0, -1, 0.5, 0, 0, 0.25]))))
    found["Circulant, circulant ridge"] = Level(lower.choose(M, Ridge(RIDGE, smooth)), M, Omega=smooth)
    return _taking_turns(found)


def _taking_turns(found: dict[str, Level]) -> dict[str, Level]:
    """The first level of each class of solvers is compiled, where levels are compiled."""
    first = {type(level.solver): name for name, level in reversed(found.items())}
    turns = {name: ("float64", "float32") for name in first.values()}
    return {name: replace(level, turn=turns.get(name, ())) for name, level in found.items()}


# -- the answer, in a hundred digits -----------------------------------------------------------------------------------


class Exact(NamedTuple):
    """The weights, the adjoint's v on their face of the set, what they give, and how many are at a kink."""

    w: np.ndarray
    v: np.ndarray
    Mv: np.ndarray
    residual: np.ndarray
    kinks: int


@cache
def exact(level: Level) -> Exact:
    """``H^-1 M^H y`` and ``H^-1 c``, or those of the best face of a set, of all that are tried; rounded at the end."""
    columns, kinks = [], 0
    Omega, y, c = (np.asarray(digits(x)) for x in (level.weight, level.y, level.c))
    ridge = numbers().mpf(level.lam) * (written.adjoint(Omega) @ Omega)
    for j, a in enumerate(level.A):
        A = np.asarray(digits(a))
        H, b = written.adjoint(A) @ A + ridge, written.adjoint(A) @ y[:, j]
        w, basis = reduced.weights(H, b, level.W, j)
        v = reduced.along(H, c[:, j], basis)
        columns.append((w, v, A @ v, A @ w - y[:, j]))
        if isinstance(level.W, lower.Nonnegative):
            kinks += sum(x == 0 and g == 0 for x, g in zip(w, H @ w - b, strict=True))
    w, v, Mv, residual = (rounded(np.stack(x, axis=1)) for x in zip(*columns, strict=True))
    return Exact(w, v, Mv, residual, kinks)


# -- what solvers say --------------------------------------------------------------------------------------------------


def _solve(backend: Backend, solver: LowerSolver, system: System, y: Array, c: Array) -> tuple[Array, ...]:
    """The weights and their residual, refined; M v, the adjoint's pairs as arrays of the design; rank and condition."""
    M, factor = system.M, solver.factor(backend, system)
    plain = solver.argmin(backend, system, factor, y)
    w, r = solver.refine(backend, system, factor, y, plain, M.residual(plain, y))
    q, pairs, v, *_ = solver.adjoint(backend, system, factor, c, y, w, r)
    deficient, condition, kinks, _ = solver.diagnose(backend, system, factor, y)
    return plain, w, r, q, deficient, condition, kinks, *_gradient(M, pairs), *([] if v is None else [v])


def _gradient(M: Operator, pairs: Sequence[tuple[Array, Array]]) -> list[Array]:
    """``sum s v^H`` over the pairs, in the arrays of the design."""
    terms = [moving(M.outer(s, v)) for s, v in pairs]
    return [trees.sum_(parts) for parts in zip(*terms, strict=True)]


def solved(target: Target, level: Level) -> Typed:
    """The answers of the solver for a level."""
    target.represent(level.turn)
    system = System(level.M, Ridge(level.lam, level.Omega))
    return target.typed(_solve, target.backend, level.solver_on(target), system, level.y, level.c)


def levels_and_sets() -> dict[str, Level]:
    """Without a set of weights, and in every one."""
    return levels() | levels_in_sets()


@check("lower level", levels_and_sets)
def weights(target: Target, level: Level) -> Iterator[Measured]:
    """Weights, those at a kink, and residuals equal those of a hundred digits, to eps x condition, in its precision."""
    (plain, w, r, _, deficient, _, kinks, *_), kinds = target.once(solved, level)
    want, tolerance = exact(level), level.tolerance(target)
    yield Measured("w", plain, want.w, tolerance, level.size(want.w))
    yield Measured("w, refined", w, want.w, tolerance, level.size(want.w))
    yield Measured("M w - y", r, want.residual, tolerance, float(np.linalg.norm(level.y)))
    yield Measured("deficient", bool(deficient), False)
    yield Measured("kinks", int(kinks), want.kinks)
    yield Measured("dtypes", set(kinds[:4]), {target.complex_dtype if level.complex else target.dtype})


@check("lower level", levels_and_sets)
def adjoint(target: Target, level: Level) -> Iterator[Measured]:
    """``M v`` and the gradient of the design equal those of a hundred digits, to eps x condition."""
    _, _, _, q, _, _, _, *got = target.once(solved, level).values
    (_, v, Mv, residual, kinks), tolerance = exact(level), level.tolerance(target)
    if kinks:
        raise Inapplicable("to each side of a kink there is another derivative")
    yield Measured("M v", q, Mv, tolerance, level.size(Mv))
    size = float(np.linalg.norm(level.y) * np.linalg.norm(v) * np.linalg.norm(level.A))
    want = written.gradient(level.M, residual, v)
    for i, (one, other) in enumerate(zip(got, want, strict=False)):
        yield Measured(f"sum s v^H, array {i}", one, other, tolerance, size + float(np.linalg.norm(other)))
    for one in got[len(want) :]:  # of the solvers that return it; in the dual form it is a difference over lam
        whole = max(float(np.linalg.norm(v)), float(np.linalg.norm(level.c)) / level.lam) if level.lam else None
        yield Measured("v", one, v, tolerance, whole)


@check("lower level", levels)
def condition(target: Target, level: Level) -> Iterator[Measured]:
    """The condition is that of the stacked matrix, as it is or scaled."""
    condition, known = target.once(solved, level).values[5], level.conditions
    if isinstance(level.M, operators.LowRankPlusDiagonal):  # it is reported of the small matrices that are solved with
        known = [float(NUMPY.once(solved, level).values[5])]
    want = min(known, key=lambda x: abs(x - condition))
    yield Measured("condition", condition, want, level.tolerance(target) * want)


# -- loss of rank ------------------------------------------------------------------------------------------------------


def _dependent() -> dict[str, np.ndarray]:
    equal, zero, sum_ = (_drawn((9, 4), 0) for _ in range(3))
    equal[:, 3], zero[:, 2], sum_[:, 1] = equal[:, 1], 0.0, sum_[:, [0, 2, 3]] @ [0.5, -1.25, 0.75]
    one = np.outer(_drawn((9, 1), 0), [1.0, -0.5, 2.0, 0.25])
    return {"equal columns": equal, "a column of 0": zero, "a sum of columns": sum_, "rank 1": one, "0": 0 * zero}


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
    plain, w, *_, deficient, condition, _ = target.once(solved, level).values[:7]
    least_norm = isinstance(level.solver, lower.SVD | lower.LSMR)
    yield Measured("deficient", bool(deficient), not least_norm)
    yield Measured("shape", plain.shape, (4, level.k))
    if least_norm:
        least = np.linalg.pinv(level.A[0]) @ level.y
        yield Measured("M w", level.A[0] @ w, level.A[0] @ least, ITERATIVE * target.eps, 1.0)
        # a preconditioner has a norm of its own
        if isinstance(getattr(level.solver, "preconditioner", lower.Given()), lower.Given):
            yield Measured("w of least norm", w, least, ITERATIVE * target.eps, 1.0)
    if isinstance(level.solver, lower.SVD) and least.any():
        s = np.linalg.svd(level.A[0], compute_uv=False)
        kept = s[s > 1e-5 * s[0]]
        yield Measured("condition of what is kept", condition, kept[0] / kept[-1], ITERATIVE * target.eps)


@cache
def not_finite() -> dict[str, Level]:
    """Every solver on an array, and every design with the solver that fits it, with one entry that is no number."""
    found = {}
    for bad in (np.nan, np.inf):
        for name, solver in solvers().items():
            lam = 0.0 if _solves(solver, _drawn((9, 4), 0), 0.0) else RIDGE
            for shape, ridge in ((9, 4), lam), ((4, 9), RIDGE):
                M = _spoilt(Dense(_drawn(shape, 0)), bad)
                turn = _once(solver) if (bad, shape[0]) == (np.inf, 9) else ()
                found[f"{name}, {shape[0]} x {shape[1]}, {bad}"] = Level(solver, M, ridge, turn=turn)
        for name, case in designs().items():
            if case.first and not case.complex:
                found[f"{name}, {bad}"] = Level(lower.choose(case.M, Ridge(RIDGE)), _spoilt(case.M, bad))
    return found


def _spoilt(M: Operator, bad: float) -> Operator:
    arrays, skeleton = trees.partition(M)
    first = np.array(arrays[0])
    first.flat[first.size // 2] = bad
    return skeleton.fill([first, *arrays[1:]])


@check("lower level", not_finite)
def what_is_not_finite(target: Target, level: Level) -> Iterator[Measured]:
    """A NaN or an inf in the design is reported or gives weights that are not finite; nothing is raised."""
    plain, *_, deficient, _, _ = solved(target, level).values[:7]
    yield Measured("believed", bool(np.isfinite(plain).all() and not deficient), False)


# -- weights in a set --------------------------------------------------------------------------------------------------


@cache
def levels_in_sets() -> dict[str, Level]:
    """A level for every set of weights, by its examples; a newcomer is found by its export."""
    kinds = exported(lower, WeightSet)
    found = {f"{kind.__name__} {i}": W for kind in kinds for i, W in enumerate(kind.examples(4))}
    design = Dense(_drawn((9, 4), 0))
    found = {name: trees.map_arrays(held, W) for name, W in found.items()}
    levels = {name: Level(W.resolved().solver(None), design, k=3, W=W) for name, W in found.items()}
    for kind, n in ("of one width", 2), ("of different widths", 1):
        M = operators.BlockDiagonal([_drawn((5, n), 0), _drawn((4, 4 - n), 1)])
        for name, W in found.items():
            whole = W.resolved().solver(None)
            if (solver := by_blocks(whole, M, Ridge(RIDGE))) is not whole:
                levels[f"{name}, blocks {kind}"] = Level(solver, M, k=3, W=W)
    # a weight that is at its bound with a multiplier of 0
    levels["a kink"] = Kinked(lower.Nonnegative().solver(None), Dense(np.eye(5, 4)), 0.0, k=3, W=lower.Nonnegative())
    return _taking_turns(levels)


@dataclass(frozen=True, eq=False)
class Kinked(Level):
    """One weight of every right-hand side is 0, and so is its multiplier."""

    @property
    def y(self) -> np.ndarray:
        return np.abs(self.drawn(5, 3)) * np.array([[1.0], [0.0], [1.0], [1.0], [1.0]])
