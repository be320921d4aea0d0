"""Preparation of a batch: check it, move it once, and check that its problems do not depend on one another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from xvarpro.backends import Backend
from xvarpro.backends.failures import model_failures
from xvarpro.batch.losses import LossBatch
from xvarpro.batch.objective import ADVICE, Batch
from xvarpro.core import trees
from xvarpro.core.checks import described
from xvarpro.core.namespace import device as device_of
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.model_check import (
    PROVEN,
    check_array,
    check_feasible,
    check_fit,
    check_shared,
    is_feasible,
)
from xvarpro.driver.prepare import violation
from xvarpro.driver.transfer import CallerLayout, Transfer, destination
from xvarpro.driver.units import largest, multiplied, near_one, theta_near_one
from xvarpro.errors import ModelError, ProblemError
from xvarpro.lower import Bounded, Nonnegative
from xvarpro.operators.blocks import Stacked
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.problem import Level, Problem, by_level
from xvarpro.problem.row_chunks import RowChunks
from xvarpro.problem.whitening import Whitening
from xvarpro.results.recipe import Fingerprints
from xvarpro.sets import each, norms
from xvarpro.sets.region import Region, resolve

FIRST_AXIS = "b is the first axis of theta0: one start is given to all problems by np.tile(start, (problems, 1))"
PROBED = 64  # problems that the check of independence looks at


class StackedDesignsError(ModelError):
    """Designs (b, k, m, n), one for each right-hand side: `solve` takes them, of one problem, and batches do not."""


@dataclass(frozen=True)
class Prepared:
    """A batch on its backend, with the layout of the results."""

    problem: Problem
    backend: Backend
    dtype: str
    theta: Array  # (b, p)
    region: Region
    layout: CallerLayout
    vector: bool  # whether targets were given without an axis of right-hand sides
    y_units: np.ndarray  # (b,) or (1,), powers of two by which the targets of `problem` are those of the caller
    theta_units: tuple[float, ...]  # powers of two by which the leaves of theta are those of the caller
    found: tuple[Any, ...] = ()  # name, shape and dtype of what the model functions return
    program: str = ""  # of the model functions, see `Backend.program`
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # of the problem, before the solve
    shared: tuple[str, ...] = ()  # names of leaves that all problems share

    @property
    def units(self) -> np.ndarray:
        """Those of the entries of theta, (p,)."""
        return np.repeat(self.theta_units, [math.prod(shape) for shape in self.region.shapes])

    def taken(self, x: Array, members: np.ndarray) -> Array:
        """Entries of some problems along the first axis."""
        at = self.backend.asarray(members.astype(np.int64), device=device_of(self.theta))
        return namespace_of(x).take(x, at, axis=0)

    def of(self, members: np.ndarray) -> tuple[Problem, Region]:
        """Some of the problems, and their sets."""
        take = partial(self.taken, members=members)
        return restricted(self.problem, take), each.taken(self.region, take)

    def apart(self) -> Prepared:
        """The problems, each with a theta of its own."""
        return self

    def to_caller(self, x: Array) -> Tree:
        """Vectors (b, p) as the caller's arrays, in the caller's units."""
        return self.layout.to_caller(self.leaves(x), self.backend)

    def leaves(self, x: Array) -> Leaves:
        """Vectors (b, p) as leaves, in the caller's units."""
        return multiplied(trees.parts(x, self.region.shapes), [1 / unit for unit in self.theta_units])

    def measures(self, x: np.ndarray) -> Tree:
        """Numbers (b, p) in the caller's units as arrays of the caller's, in the structure of theta."""
        with self.backend.scope(self.dtype):
            leaves = trees.parts(self._moved(x), self.region.shapes)
            return self.layout.measures(leaves, self.backend)

    def array(self, x: np.ndarray) -> Array:
        """Numbers of any shape as an array of the caller's."""
        with self.backend.scope(self.dtype):
            return self.layout.array(self._moved(x), self.backend)

    def _moved(self, x: np.ndarray) -> Array:
        kind = np.result_type(self.dtype, np.complex64) if np.iscomplexobj(x) else self.dtype
        return self.backend.asarray(x.astype(kind), device=device_of(self.theta))

    @property
    def assemble(self) -> Callable[[Problem, Region], Batch]:
        """What makes the objectives from traced arrays; holds no array."""
        backend, treedef, found = self.backend, self.layout.treedef, self.found
        kind = LossBatch if has_losses(self.problem) else Batch
        return lambda problem, region: kind(each.plain(problem), backend, treedef, each.plain(region), found)


def restricted(problem: Problem, take: Callable[[Array], Array]) -> Problem:
    """The problem of some members of the batch; `take` picks them along the first axis."""

    def level(level: Level) -> Level:
        own: dict[str, Any] = {}
        for name in ("y", "lam", "weights"):
            x = getattr(level, name)
            if trees.is_array(x):
                own[name] = x if x.shape[0] == 1 else take(x)  # one entry along the first axis is for all
        return replace(level, **own)

    return by_level(problem, level, data=each.taken(problem.data, take))


def prepare(
    problem: Problem,
    theta0: Tree,
    *,
    over: Tree = None,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
    one_unit: bool = False,
) -> Prepared:
    """Check everything, then move it; see `solve_many` for what is raised. Targets have units of their own, or one."""
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must come from xv.separable or xv.bilevel; got {type(problem).__name__}")
    leaves, names, to, work, place, layout = destination(theta0, backend, device, dtype, problem=problem)
    if to.placement.several:
        raise ProblemError(
            "a batch of problems needs arrays that lie on one device each; got some that are sharded over several. "
            "Pass device=, to which they are moved, or solve the problems one by one"
        )
    b = batch_size(leaves, names)
    with to.scope(work):
        transfer = Transfer(to, work, place)
        theta = transfer.theta(leaves, names)
        one = [to.xp.zeros(x.shape[1:], dtype=x.dtype, device=place) for x in theta]
        moved = _moved(problem, transfer, b)  # by whose targets a theta0 without the axis of the batch is known
        region = trees.map_arrays(transfer.plain, resolve(over, trees.unflatten(layout.treedef, one), b))
        if not any(math.prod(x.shape) for x in one):
            raise ProblemError("theta0 must have leaves of shape (b, ...) with one entry per problem or more; got none")
        for _, ball in region.free:
            if not isinstance(ball.norm, norms.L2):
                raise ProblemError(f"free leaves of a batch must have norm=norms.L2(); got {ball.norm!r}")
        if not is_feasible(violation(to, each.plain(region), theta)):
            i = _first_infeasible(region, theta)
            nearest = "xv.project(theta, over) gives the nearest one of a single problem"
            check_feasible(_violation(region, theta, i, i + 1), f"theta0 of problem {i}", nearest)
        moved, y_units = _rescaled(moved, to, work, b, one_unit)
        stamps = Fingerprints(problem)  # before the model is called, since it may write to what it is given
        moved, region, theta, units = theta_near_one(moved, region, theta, to, work)
        prepared = Prepared(moved, to, work, region.join(theta), region, layout, True, y_units, units)
        vector, found = _check_model(prepared, problem)
        PROVEN.add(problem)
        _check_independence(prepared)
        program = _program(prepared) if to.compiled else ""
    return replace(prepared, vector=vector, found=tuple(found.items()), program=program, fingerprints=stamps)


def _first_infeasible(region: Region, theta: Leaves) -> int:
    low, high = 0, theta[0].shape[0]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_feasible(_violation(region, theta, low, middle)) else (low, middle)
    return low


def _violation(region: Region, theta: Leaves, low: int, high: int) -> Array:
    own: Region = each.plain(each.taken(region, lambda x: x[low:high, ...]))
    return own.violation(tuple(x[low:high, ...] for x in theta))


def batch_size(leaves: list[Any], names: list[str]) -> int:
    """The number of problems, from the leaves of theta0."""
    sizes = {x.shape[0] if x.ndim else -1 for x in leaves}
    if len(sizes) > 1 or -1 in sizes:
        found = ", ".join(f"{name} has shape {tuple(x.shape)}" for x, name in zip(leaves, names, strict=True))
        raise ProblemError(
            f"every leaf of theta0 must have one entry per problem along its first axis; got {found}. Where problems "
            "share a leaf, mark the others, xv.Each(array)"
        )
    return sizes.pop()


def _moved(problem: Problem, transfer: Transfer, b: int) -> Problem:
    """The problem with arrays of the backend. NaN is allowed: it ends the problem that has it, and no other."""
    (flat, _, treedef), names = trees.named(problem.data), trees.named(each.plain(problem.data), "data")[1]
    data = trees.unflatten(
        treedef, [transfer.cast(x, name) if trees.is_array(x) else x for x, name in zip(flat, names, strict=True)]
    )
    for x in each.leaves(data):
        if each.is_each(x) and not (trees.is_array(x.array) and x.array.ndim and x.array.shape[0] == b):
            raise ProblemError(
                f"xv.Each must hold an array whose first axis has b = {b} entries; got {described(x.array)}. "
                + FIRST_AXIS
            )
    losses = has_losses(problem)

    def level(level: Level) -> Level:
        name = "" if problem.is_separable else "upper." if level is problem.upper else "lower."
        if isinstance(level.y, ColumnChunks | RowChunks):
            raise ProblemError(
                f"{name}y of a batch must be an array or a function; got it in pieces, {type(level.y).__name__}"
            )
        if callable(level.lam):
            raise ProblemError("lam of a batch must be a number or an array; got a function of theta")
        if level.solver is not None:
            raise ProblemError(f"a batch factors its designs together: leave out solver={level.solver!r}")
        own: dict[str, Any] = {}
        y, lam = each.unmarked(level.y), ridges(level)
        if trees.is_array(y):
            if y.ndim not in (2, 3) or y.shape[0] not in (1, b):
                raise ProblemError(
                    f"{name}y must have shape (b, m) or (b, m, k) with b = {b}, or 1 for all; got {tuple(y.shape)}. "
                    + FIRST_AXIS
                )
            own["y"] = transfer.cast(y, f"{name}y", real=True)
        if trees.is_array(lam):
            if lam.ndim != 3 or lam.shape[0] not in (1, b):
                found = tuple(each.unmarked(level.lam).shape)
                raise ProblemError(
                    f"{name}lam must have shape (b,) or (b, n, k) with b = {b}, or (n, k) for all problems, 1 for n or "
                    f"k where it is one for all of them; got {found}"
                )
            own["lam"] = transfer.to.xp.broadcast_to(transfer.cast(lam, f"{name}lam", real=True), (b, *lam.shape[1:]))
        if level.covariance is not None:
            P = transfer.whitening(level.covariance, name, own["y"].shape[1] if "y" in own else None)
            own |= {"weights": P, "covariance": None} | ({"y": _in_columns(P, own["y"])} if "y" in own else {})
        elif level.weights is not None:
            own |= _weighted(level, own.get("y"), transfer, name, b, not losses)
        if level.W is not None:
            own["W"] = trees.map_arrays(transfer.plain, level.W)
        if "lam" in own and not bool(transfer.to.xp.all((own["lam"] >= 0) & transfer.to.xp.isfinite(own["lam"]))):
            raise ProblemError(f"{name}lam must hold finite numbers >= 0; got {level.lam}")
        if level.Omega is not None:
            Omega: Any = level.Omega
            if not trees.is_array(Omega):
                blocks = ". Stack its blocks, times the roots of their lam" if isinstance(Omega, Stacked) else ""
                raise ProblemError(f"{name}Omega of a batch must be an array (r, n); got {described(Omega)}{blocks}")
            own["Omega"] = transfer(Omega, f"{name}Omega", real=True)
        if level.loss is not None:
            numbers = transfer.to.to_numpy(own["y"])
            level.loss.check(numbers[np.isfinite(numbers)])  # NaN is said of its problem alone
            own["loss"] = level.loss.on(transfer.to)
        return replace(level, **own)

    return by_level(problem, level, data=data)


def has_losses(problem: Problem) -> bool:
    """Whether a level measures its residuals by another loss than squares."""
    return any(level.loss is not None for level in problem.levels)


def together(problem: Problem) -> bool:
    """Whether the problems of a batch can be solved all at once."""
    if problem.noise is not None or not isinstance(problem.lower.W, Nonnegative | Bounded | None):
        return False
    losses = [level.loss for level in problem.levels if level.loss is not None]
    ys = [each.unmarked(level.y) for level in problem.levels]
    return not losses or (
        all(trees.is_array(y) and not trees.is_complex(y) for y in ys)
        and all(level.covariance is None for level in problem.levels)
        and all(loss.by_entry and loss.convex and not loss.needs_scale for loss in losses)
    )


def ridges(level: Level) -> Any:
    """The ridge of a level as it was given, unmarked: a number, or (b, n, k) with 1 where they are the same."""
    lam: Any = each.unmarked(level.lam)
    if not trees.is_array(lam):
        return lam
    return lam[:, None, None] if lam.ndim == 1 else lam[None, ...] if lam.ndim == 2 else lam


def by_problem(level: Level, weights: Array) -> Array:
    """Weights of a level as they were given, unmarked, (b, m, k) with 1 for b or k where they are the same."""
    y: Any = each.unmarked(level.y)
    of_entries = trees.is_array(y) and y.ndim == 3 and not each.is_each(level.weights)
    if weights.ndim == 1 or (weights.ndim == 2 and of_entries):
        weights = weights[None, ...]
    return weights if weights.ndim == 3 else weights[:, :, None]


def _in_columns(fun: Callable[[Array], Array], y: Array) -> Array:
    """Targets, (b, m) or (b, m, k), after what `fun` does to columns."""
    return fun(y) if y.ndim == 3 else fun(y[:, :, None])[:, :, 0]


def _weighted(level: Level, y: Array | None, transfer: Transfer, name: str, b: int, roots: bool) -> dict[str, Array]:
    """The roots of the weights, (b, m, k) with 1 for b or k where they are the same, and the target times them.

    Without `roots` the weights, and a target that is 0 where they are.
    """
    given: Any = each.unmarked(level.weights)
    own = by_problem(level, given).shape[0] > 1  # those of a problem may be NaN, which ends it alone
    xp, given = transfer.to.xp, transfer(given, f"{name}weights", real=True, gaps=own)
    shape, weights = tuple(given.shape), by_problem(level, given)
    fits = y is None or (weights.shape[1] == y.shape[1] and weights.shape[2] in (1, _columns(y)))
    if weights.shape[0] not in (1, b) or not fits:
        targets = "" if y is None else f" and {name}y of shape {tuple(y.shape)}"
        raise ProblemError(
            f"{name}weights must have shape (m,), (m, k), (b, m) or (b, m, k) with b = {b}; got {shape}{targets}"
        )
    if trees.is_complex(weights) or bool(xp.any(weights < 0)):
        raise ProblemError(f"{name}weights of squared residuals must be >= 0; got a negative or a complex one")
    root = xp.sqrt(weights) if roots else weights

    def scaled(y: Array) -> Array:
        used = xp.where(weights > 0, y, xp.zeros_like(y))  # what has no weight may be NaN
        return used * root if roots else used

    return {"weights": root} | ({} if y is None else {"y": _in_columns(scaled, y)})


def _rescaled(problem: Problem, backend: Backend, dtype: str, b: int, one: bool) -> tuple[Problem, np.ndarray]:
    """The problem with targets near 1, and the powers of two that make them so: one per problem, or one for all.

    They are all the same where `one` is asked for, and where a penalty or bounds of w go with them. See `driver.units`.
    Targets that are functions stay.
    """
    levels, units = problem.levels, np.ones(b)
    ys: list[Any] = [level.y for level in levels]
    if has_losses(problem) or not all(trees.is_array(y) for y in ys) or not math.prod(ys[0].shape):
        return problem, units
    sizes = [backend.to_numpy(largest(y, tuple(range(1, y.ndim)))) for y in ys]
    size = np.max(np.broadcast_arrays(*sizes), axis=0)
    W = levels[0].W
    if one or problem.R is not None or isinstance(W, Bounded):
        size = np.full(size.shape, np.max(size[np.isfinite(size)], initial=0.0))
    units = near_one(size, dtype)
    if (units == 1.0).all():
        return problem, units

    def scaled(level: Level) -> Level:
        y: Any = level.y
        unit = backend.asarray(units.astype(dtype), device=device_of(y))
        return replace(level, y=y * backend.xp.reshape(unit, (-1, *(1,) * (y.ndim - 1))))

    moved = [scaled(level) for level in levels]
    if W is not None:
        moved[0] = replace(
            moved[0], W=W.part(backend.xp.arange(_columns(ys[0]), device=device_of(ys[0])), float(units[0]))
        )
    fields: dict[str, Any] = dict(zip(("lower", "upper"), moved, strict=False))
    return replace(problem, **fields, mu=problem.mu * float(units[0]) ** 2), units


def _columns(y: Array) -> int:
    return y.shape[2] if y.ndim == 3 else 1


def _program(prepared: Prepared) -> str:
    """A name for what is compiled of the model: that of a few problems, since blocks of them are, and not the batch."""
    backend, region = prepared.backend, prepared.region

    def few(x: Array) -> Array:
        return x[: 2 * PROBED, ...]

    f = prepared.assemble(restricted(prepared.problem, few), each.taken(region, few))
    return backend.program(partial(_arrays, f), (few(prepared.theta),), f.constants, pure=False)[1]


def _arrays(f: Batch, x: Array, *constants: Array) -> Leaves:
    return trees.partition(f.outputs(x, *constants))[0]


def _check_model(prepared: Prepared, stated: Problem) -> tuple[bool, dict[str, Any]]:
    """Check what the user's functions return, and once in a process that they return the same when called again.

    Returns whether targets have no axis of right-hand sides, and shape and dtype of what each function returns.
    """
    backend, x = prepared.backend, prepared.theta
    f = prepared.assemble(prepared.problem, prepared.region)
    problem = prepared.problem
    functions = zip("LU", problem.levels, strict=False)
    required = {name + side for side, level in functions for name in ("M_", *["y_"] * callable(level.y))}
    required |= {"R"} if problem.R is not None and problem.mu else set()
    shapes: dict[str, tuple[int, ...]] = {}
    found: dict[str, Any] = {}

    def probe(x: Array, *constants: Array) -> Leaves:
        outputs = f.outputs(x, *constants)
        for name, y in outputs._asdict().items():
            if y is not None or name in required:
                what = name.removesuffix("_L") if problem.is_separable else name
                check_array(y, f"the model function {what}", x, prepared.dtype, takes_complex=name != "R")
                shapes[name] = tuple(y.shape)
                found[name] = tuple(y.shape[1:]), y.dtype
        return trees.partition(outputs)[0]

    with model_failures(backend, ADVICE):
        backend.program(probe, (x,), f.constants, backend.compiled or not PROVEN.holds(stated))
    return _check_shapes(problem, stated, shapes, x.shape[0]), found


def _check_shapes(problem: Problem, stated: Problem, shapes: dict[str, tuple[int, ...]], b: int) -> bool:
    vector = True
    unknowns: dict[str, int] = {}
    columns: dict[str, int | None] = {}
    prefixes = ("",) if problem.is_separable else ("lower ", "upper ")
    for side, level, own, prefix in zip("LU", problem.levels, stated.levels, prefixes, strict=False):
        target: Any = level.y
        M, y = shapes[f"M_{side}"], shapes.get(f"y_{side}") or tuple(target.shape)
        if len(M) == 4 and M[0] == b and M[1:2] == y[2:]:
            raise StackedDesignsError(f"{prefix}M of a batch must return (b, m, n); got shape {M}")
        if len(M) != 3 or M[0] != b:
            raise ModelError(f"{prefix}M must return (b, m, n) with b = {b}, one design per problem; got shape {M}")
        if len(y) not in (2, 3) or y[0] not in (1, b):
            raise ModelError(f"{prefix}y must be (b, m) or (b, m, k) with b = {b}; got shape {y}")
        check_fit(prefix, M[1:], y[1:], level.ridge, each.unmarked(own.lam))
        k = y[2] if y[2:] else 1
        root: Any = level.weights
        if isinstance(root, Whitening):
            root.check(M[1])
        elif root is not None and (root.shape[1] != M[1] or root.shape[2] not in (1, k)):
            raise ProblemError(
                f"{prefix}weights must have one entry per row of {prefix}M(theta) or one per entry of {prefix}y; got "
                f"{tuple(root.shape)} for a design {M} and targets {y}"
            )
        if level.W is not None:
            level.W.check(M[2], k)
        vector = vector and len(y) == 2
        unknowns[f"{prefix}M(theta)"], columns[f"{prefix}y"] = M[2], y[2] if y[2:] else 1
    check_shared(unknowns, columns)
    m, n = shapes["M_L"][1:]
    if n > m and not problem.lower.ridge.present:
        raise ProblemError(
            f"w is not unique: M has more columns than rows ({n} > {m}) and there is no ridge. Pass lam > 0"
        )
    if "R" in shapes and shapes["R"] != (b,):
        raise ModelError(f"R must return one number per problem, shape ({b},); got {shapes['R']}")
    return vector


def _check_independence(prepared: Prepared) -> None:
    """Check that every second problem is the same alone and in a batch whose other problems have moved."""
    backend, b = prepared.backend, min(prepared.theta.shape[0], 2 * PROBED)
    if b < 2:
        return
    # by NumPy, which has no operation of its own to compile
    some = prepared.theta[:b, ...], each.plain(each.taken(prepared.region, lambda x: x[:b, ...]))
    x, region = (trees.map_arrays(backend.to_numpy, part) for part in some)
    probe = np.broadcast_to(np.sin(1 + np.arange(x.shape[1])).astype(x.dtype), x.shape)
    ways = [region.nearest(x - sign * probe, sign * probe) - x for sign in (1.0, -1.0)]
    odd = (np.arange(b) % 2 == 1)[:, None]
    together = _outputs(prepared, np.where(odd, x + 0.03 * ways[0] + 0.01 * ways[1], x), slice(0, b))
    alone = _outputs(prepared, x[::2, :], slice(0, b, 2))
    eps = np.finfo(x.dtype).eps
    for name, a in alone.items():
        other = together[name][::2]
        if a.shape == other.shape:
            size = np.nanmax(np.abs(a), initial=0.0, axis=tuple(range(1, a.ndim)), keepdims=True)
            same = (np.abs(a - other) <= 1e3 * eps * size) | (~np.isfinite(a) & ~np.isfinite(other))
            if same.all():
                continue
        raise ProblemError(
            f"{name} of a problem must depend on its own entry of theta and data alone; it changes with the other "
            "problems of its batch. Take no sums or means over the first axis; what has one entry per problem in data "
            "must be marked, xv.Each(array)"
        )


def _outputs(prepared: Prepared, x: np.ndarray, members: slice) -> dict[str, np.ndarray]:
    problem, backend = restricted(prepared.problem, lambda a: a[members, ...]), prepared.backend
    f, theta = prepared.assemble(problem, prepared.region), backend.asarray(x, device=device_of(prepared.theta))
    try:
        return {k: backend.to_numpy(y) for k, y in f.outputs(theta)._asdict().items() if y is not None}
    except Exception as error:
        own = error.__cause__ or error
        raise ProblemError(
            f"the model function fails when it is called with some of the problems only ({type(own).__name__}: "
            f"{own}). Arrays in data that have one entry per problem must be marked, xv.Each(array)"
        ) from error
