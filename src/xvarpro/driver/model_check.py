"""Checks, once before a solve, of its limits, its start and what the user's functions return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any, cast
from weakref import WeakSet

from xvarpro.backends import Backend, modules
from xvarpro.backends.failures import model_failures
from xvarpro.core import trees
from xvarpro.core.checks import number
from xvarpro.core.namespace import device, dtype_name, namespace_of
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.transfer import FLOATS
from xvarpro.errors import ModelError, ProblemError, warn_caller
from xvarpro.lower import QR
from xvarpro.lower.interface import Ridge
from xvarpro.objective.in_memory import ModelOutputs, ModelStructure
from xvarpro.objective.least_squares import EvaluatedLevel, LevelOutputs, as_matrix, is_complex_design, ridge_of
from xvarpro.objective.reduced import Reduced
from xvarpro.operators import Dense
from xvarpro.operators.interface import as_operator
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.problem import Level, Problem, reading
from xvarpro.problem.row_chunks import RowChunks
from xvarpro.problem.samples import Samples, check_samples, lengths, plain, taken
from xvarpro.results.recipe import changed
from xvarpro.sets.region import Region, event

PROBED = 64  # samples that the check of independence looks at
INDEPENDENT = 1e3  # machine epsilons by which rows may change with others, of the largest entry
FEASIBLE = 1e3  # machine epsilons by which a point may violate its set, relative to the set's size


class Proven:
    """Functions of problems that were called twice and returned the same: once in a process is enough."""

    def __init__(self) -> None:
        self._seen: WeakSet[Any] = WeakSet()

    def holds(self, problem: Problem) -> bool:
        """Whether all functions of a problem are among them."""
        return all(_kept(f) and f in self._seen for f in _functions(problem))

    def add(self, problem: Problem) -> None:
        """Those of a problem, as far as they can be kept without being kept alive."""
        self._seen.update(f for f in _functions(problem) if _kept(f))


PROVEN = Proven()


def _functions(problem: Problem) -> list[Any]:
    own = [f for level in problem.levels for f in (level.M, level.y, level.lam, level.Omega)]
    return [f for f in (*own, problem.R) if callable(f)]


def _kept(f: object) -> bool:
    return bool(type(f).__weakrefoffset__) and trees.hashes(f)


def check_limits(tol: Any, max_iter: Any) -> tuple[float, int]:
    """Check the tolerance and the number of iterations of a solve, and return them as Python's own numbers."""
    if not 0 <= number(tol) < math.inf:
        raise ProblemError(f"tol must be a finite number >= 0; got {tol!r}")
    if not (isinstance(max_iter, Integral) and number(max_iter) >= 0):
        raise ProblemError(f"max_iter must be a whole number >= 0; got {max_iter!r}")
    return float(tol), int(max_iter)


def check_long_run(checkpoint_every: Any, trace_every: Any) -> tuple[float, int]:
    """Check how often a solve is written, and how many of its iterates the trace has, as `check_limits` does."""
    whole = isinstance(checkpoint_every, Integral)
    if not number(checkpoint_every) > 0:
        raise ProblemError(
            f"checkpoint_every must be iterations, an int, or seconds, a float, > 0; got {checkpoint_every!r}"
        )
    if not (isinstance(trace_every, Integral) and number(trace_every) >= 1):
        raise ProblemError(f"trace_every must be a whole number >= 1; got {trace_every!r}")
    return int(checkpoint_every) if whole else float(checkpoint_every), int(trace_every)


def check_compiles(region: Region, backend: Backend) -> None:
    """Check that every set can run in a loop of the backend."""
    hosted = [C for _, C in region.constrained if not C.compiles]
    if backend.compiled and hosted:
        raise ProblemError(
            f"backend {backend.name} compiles its loops and needs sets that compile; got {hosted[0]!r}, which calls a "
            "solver on the host. Use another backend"
        )


def check_own_sets(region: Region, backend: Backend, theta: Leaves) -> None:
    """Check, by one call each, what `lmo` and `project` return of sets that the package does not define."""
    for i, C in region.constrained:
        if not C.is_own:
            continue
        arrays, skeleton = trees.partition(C)
        for method in ["lmo"] * C.bounded + ["project"] * C.has_projection:
            x, what = event(C, theta[i]), f"{type(C).__name__}.{method}"
            name = "g" if method == "lmo" else "x"

            def make(operands: Leaves, skeleton: Any = skeleton, method: str = method) -> Any:
                return getattr(skeleton.fill(operands), method)

            advice = f"Inside it, compute with xp = xv.array_namespace({name}); {name} has shape {tuple(x.shape)}"
            with model_failures(backend, advice, what=what, argument=name):
                found = backend.call(make, ("own set", skeleton, method), once=True)(arrays, x)
            check_array(found, what, x, dtype_name(x))
            if tuple(found.shape) != tuple(x.shape):
                raise ProblemError(
                    f"{what} must return an array of {name}'s shape {tuple(x.shape)}; got {tuple(found.shape)}"
                )


def is_feasible(violation: Array) -> bool:
    """Whether a violation is what a projection in its dtype leaves."""
    return bool(float(violation) <= FEASIBLE * trees.array_namespace(violation).finfo(violation.dtype).eps)


def check_feasible(violation: Array, start: str, nearest: str) -> None:
    """Check that a start lies in its sets; `nearest` is the advice."""
    if not is_feasible(violation):
        raise ProblemError(
            f"{start} must be feasible; got one that violates its set by {float(violation):.3g}, relative to the set's "
            f"size. Start from a point of the set: {nearest}"
        )


def check_model(
    problem: Problem,
    stated: Problem,
    backend: Backend,
    treedef: Any,
    theta: Leaves,
    solving: bool = False,
    debug: bool = False,
) -> ModelStructure:
    """Trace the user's functions once, as the gradient will, and check shapes, dtypes and namespaces of their outputs.

    Parameters
    ----------
    problem : Problem
        With arrays of `backend`; where rows come in chunks the first of them is checked.
    stated : Problem
        As the user stated it, for the shapes in messages.
    solving : bool
        Whether to look at the values of ridges, at rows that must not depend on each other, and, once in a process, to
        call functions once more, to check that they return the same.
    debug : bool
        Whether to call them once more in any case.
    """
    # a module brings a function of its own
    known = PROVEN.holds(stated) and not modules.architectures(trees.unflatten(treedef, theta))
    twice = solving and (debug or not known)
    own = stated
    in_chunks = [isinstance(level.y, RowChunks) for level in problem.levels]
    if problem.in_rows:
        problem = stated = first_rows(problem)
    reduced = Reduced(problem, backend, treedef)
    dtype = dtype_name(theta[0])
    found: list[ModelStructure] = []

    def probe(*arrays: Array) -> Leaves:
        parts = reduced.evaluate(arrays[: len(theta)], arrays[len(theta) :])
        _check_parts(parts, stated, arrays[0], dtype)
        outputs, skeleton = trees.partition(parts)
        found.append(_structure(reduced, parts, skeleton))
        return outputs

    with model_failures(backend):
        outputs, program = backend.program(probe, theta, reduced.constants, twice or (solving and backend.compiled))
        lam = negative_ridge(problem, trees.unflatten(treedef, theta)) if solving else 0.0
        if lam:
            raise ModelError(
                f"the ridge lam must return a number >= 0; got {lam:.3g} at theta0. Return the exponential of a "
                "parameter, or bound theta"
            )
        if solving:
            if not known:
                PROVEN.add(own)
            check_independent_rows(problem, in_chunks, trees.unflatten(treedef, theta))
    return found[-1]._replace(arrays=tuple((tuple(x.shape), x.dtype) for x in outputs), program=program)


def check_independent_rows(problem: Problem, in_chunks: list[bool], theta: Tree) -> None:
    """Check that rows of M stay as they are where others change, among the first of a chunk or of the samples.

    In a chunk, arrays with as many entries as it has rows are taken for rows. Where there are several, one of them may
    be none: then rows that change are a warning.
    """
    for i, level in enumerate(problem.levels):
        sampled = not any(in_chunks) and i == len(problem.levels) - 1 and lengths(problem.data)
        if not (in_chunks[i] or sampled):
            continue

        data, arrays, y = problem.data, 1, cast(Any, level.y)
        if not sampled:
            every: Any = list(plain(problem.data))
            with_rows = [x for x in trees.leaves(every[i]) if trees.is_array(x) and x.ndim]
            m = with_rows[0].shape[0] if callable(y) else y.shape[0]
            arrays = sum(x.shape[0] == m for x in with_rows)
            data = (*every[:i], _marked(every[i], m), *every[i + 1 :])
        like = trees.leaves(theta)[0]
        m, xp = min(max(lengths(data), default=0), 2 * PROBED), namespace_of(like)
        half = m // 2
        rows = xp.arange(m, device=device(like))
        swapped = xp.concat([rows[:half], rows[:half], rows[: m % 2]])
        try:
            together, apart = (_product(level, theta, taken(data, some)) for some in (rows, swapped))
        except Exception:  # whatever M raises: it need not take fewer rows than a chunk has
            if sampled:
                raise
            continue
        if not half or together.shape != (m, together.shape[1]) or apart.shape != together.shape:
            continue  # M takes other arrays for its rows
        a, b = together[:half, :], apart[:half, :]
        change = xp.max(xp.abs(a - b))
        off, size = float(change), float(xp.max(xp.abs(a)))
        if off > INDEPENDENT * xp.finfo(change.dtype).eps * size:
            message = (
                "rows of M must not depend on each other where they come in chunks or mini-batches; got rows that "
                f"change by {off:.3g}, of entries up to {size:.3g}, when the data of other rows change. Take no mean, "
                "sum or batch normalisation over rows: compute such numbers beforehand and pass them in data"
            )
            if arrays == 1:
                raise ModelError(message)
            warn_caller(
                f"{message}. Ignore this if an array in data is no row, and has as many entries as the chunk by chance",
                UserWarning,
            )


def _product(level: Level, theta: Tree, data: Tree) -> Array:
    """A level's design times a vector of no special direction, (m, k)."""
    M, like = as_operator(level.M(theta, data)), trees.leaves(theta)[0]
    xp = namespace_of(like)
    v = xp.cos(xp.arange(M.shape[1], dtype=like.dtype, device=device(like)))
    v = xp.stack([v] * (M.columns or 1), axis=1)
    found: Array = M.matvec(trees.complexified(v) if is_complex_design(M) else v)
    return found


def _marked(data: Tree, rows: int) -> Tree:
    """Data of a chunk with marks on what has one entry per row."""

    def marked(x: Any) -> Any:
        return Samples(x) if trees.is_array(x) and x.ndim and x.shape[0] == rows else x

    return trees.map_leaves(marked, data)


def negative_ridge(problem: Problem, theta: Tree) -> float:
    """A ridge ``lam(theta)`` below 0 of one of the levels; 0 where there is none."""
    ridges = [level.lam(theta, plain(problem.data)) for level in problem.levels if callable(level.lam)]
    return min([0.0, *(float(trees.array_namespace(lam).min(lam)) for lam in ridges)])


def _structure(reduced: Reduced, parts: ModelOutputs, skeleton: trees.Skeleton) -> ModelStructure:
    level, M = reduced.problem.lower, parts.lower.M
    y: Any = level.y if parts.lower.y is None else parts.lower.y
    ndim = y.ndim if trees.is_array(y) else 2
    for stated, out in zip(reduced.problem.levels, outputs_of(parts), strict=True):
        target: Any = stated.y if out.y is None else out.y
        if stated.loss is not None and (trees.is_complex(target) or is_complex_design(out.M)):
            raise ProblemError(
                f"the loss {stated.loss!r} is one of real numbers; got a complex M(theta) or y. Pass real and "
                "imaginary parts as rows"
            )
    y = as_matrix(y) if trees.is_array(y) else y
    both = zip(reduced.problem.levels, outputs_of(parts), strict=True)
    columns = [k for level, out in both for k in (out.M.columns, ridge_of(level, out).columns) if k is not None]
    return ModelStructure(
        skeleton,
        arrays=(),
        y_ndim=ndim,
        columns=columns[0] if columns else None,
        w_shape=(M.shape[1], y.shape[1]) if trees.is_array(y) else (0, 0),
        complex_w=trees.is_array(y) and (trees.is_complex(y) or is_complex_design(M)),
        exact=reduced.solver(EvaluatedLevel(M, y, ridge_of(level, parts.lower))).exact,
        rows=tuple(outputs.M.shape[0] for outputs in outputs_of(parts)),
    )


def first_rows(problem: Problem) -> Problem:
    """The problem with the first chunk of a level in place of all of its rows: ``data[i]`` is that of level i."""
    levels, data = [], []
    for i, level in enumerate(problem.levels):
        if isinstance(level.y, RowChunks):
            source: Any = level.y.source
            chunk = source.first()
            data.append(chunk.data)
            # one chunk may have fewer rows than there are unknowns, even where all of them have enough
            y: Any = level.y.y if chunk.y is None else chunk.y
            level = replace(level, y=y, weights=chunk.weights, solver=QR())
        else:
            data.append(problem.data)
        levels.append(reading(level, i))
    return replace(problem, lower=levels[0], upper=levels[1] if levels[1:] else None, data=tuple(data))


def outputs_of(parts: ModelOutputs) -> list[LevelOutputs]:
    """What each level's functions returned."""
    return [parts.lower] + ([] if parts.upper is None else [parts.upper])


def _check_parts(parts: ModelOutputs, problem: Problem, theta: Array, dtype: str) -> None:
    unknowns: dict[str, int] = {}
    columns: dict[str, int | None] = {}
    prefixes = ("",) if problem.is_separable else ("lower ", "upper ")
    for level, outputs, prefix in zip(problem.levels, outputs_of(parts), prefixes, strict=True):
        _check_design(prefix, outputs.M, theta, dtype)
        shape = _target_shape(prefix, level, outputs.y, theta, dtype)
        k = None if shape is None else shape[1] if shape[1:] else 1
        if outputs.M.columns not in (None, k):
            turned = f". Pass {prefix}y.T" if shape == (outputs.M.columns, outputs.M.shape[0]) else ""
            raise ProblemError(
                f"{prefix}M(theta) must have shape (m, n), or (k, m, n) for a design per column of {prefix}y; got "
                f"{(outputs.M.columns, *outputs.M.shape)} and {prefix}y of shape {shape}{turned}"
            )
        if callable(level.lam):
            lam: Any = outputs.lam
            check_array(lam, f"the {prefix}ridge lam", theta, dtype)
            if lam.ndim not in (0, 2):
                raise ModelError(
                    f"the {prefix}ridge lam must return a scalar, or an array (n, 1), (1, k) or (n, k); got shape "
                    f"{tuple(lam.shape)}"
                )
        if callable(level.Omega):
            check_array(outputs.Omega, f"{prefix}Omega", theta, dtype)
        check_fit(prefix, outputs.M.shape, shape, ridge_of(level, outputs))
        unknowns[f"{prefix}M(theta)"], columns[f"{prefix}y"] = outputs.M.shape[1], k
    check_shared(unknowns, columns)
    check_samples(problem.data, outputs_of(parts)[-1].M.shape[0])
    k = max((k for k in columns.values() if k is not None), default=None)
    _check_unique(problem.lower, parts.lower.M.shape, k, ridge_of(problem.lower, parts.lower))
    if problem.R is not None and problem.mu:
        _check_scalar(parts.R, "R", theta, dtype)


def check_shared(unknowns: dict[str, int], columns: dict[str, int | None]) -> None:
    """Check that both levels have one number of unknowns and one of right-hand sides; None is not known."""
    for what, found in (("M", unknowns), ("y", columns)):
        if len({k for k in found.values() if k is not None}) > 1:
            raise ProblemError(
                f"both levels must have the same number of columns of {what}, since they share w; got {found}"
            )


def check_fit(
    prefix: str, design: tuple[int, ...], target: tuple[int, ...] | None, ridge: Ridge, given: Any = None
) -> None:
    """Check the shapes of M(theta), (m, n), of y, (m,) or (m, k) or None for not known, and of a ridge.

    Of one in a batch `given` is what the user has passed for all problems.
    """
    n = design[1]
    for name, shape in (("M(theta)", design), ("y", target or ())):
        if 0 in shape:
            raise ProblemError(f"{prefix}{name} must have at least one row and one column; got shape {shape}")
    if target is not None and design[0] != target[0]:
        message = f"{prefix}M(theta) and {prefix}y must have the same number of rows; got shapes {design} and {target}"
        if target[1:] == design[:1]:
            message += ". Rows that are problems of their own go to the vmap of a layer, or, marked, to solve_many: xv."
            message += "many.lifted(xv.separable(M, xv.Each(y), ...)). Right-hand sides of one theta are columns, y.T"
        elif math.prod(target) == design[0]:
            message += ". Pass the image as y.reshape(-1), row by row"
        raise ProblemError(message)
    lam, Omega = ridge
    if Omega is not None and (len(Omega.shape) != 2 or Omega.shape[1] != n or not Omega.shape[0]):
        raise ProblemError(
            f"{prefix}Omega must have shape (r, {n}) for {prefix}M(theta) of shape {design}; got {tuple(Omega.shape)}"
        )
    k = 1 if target is None or not target[1:] else target[1]
    n, each = ridge.height(n), "weights" if Omega is None else "rows of Omega"
    if not ridge.uniform and not (lam.shape[-2] in (1, n) and lam.shape[-1] in (1, k)):
        many = "; right-hand sides in chunks share a ridge" if target is None else ""
        b, got = ("", lam) if given is None else ("b, ", given)
        raise ProblemError(
            f"{prefix}lam must be a number, or have shape ({b}{n}, 1) for the {each}, ({b}1, {k}) for the right-hand "
            f"sides, or ({b}{n}, {k}); got {tuple(got.shape)}{many}"
        )


def _check_unique(level: Level, shape: tuple[int, int], k: int | None, ridge: Ridge) -> None:
    m, n = shape
    if level.W is not None:
        level.W.check(n, k)
        n = level.W.dimension(n)
    below = ridge.height(n)
    if ridge.present and not ridge.square and n > m + below:
        raise ProblemError(
            f"M(theta) and Omega together must have as many rows as unknowns; got {m} and {below} rows and {n} "
            "unknowns, so w is not unique. Give Omega more rows"
        )
    if n > m and not level.ridge.present and level.solver is None:
        raise ProblemError(
            f"the lower level must have as many rows as unknowns or a ridge; got {m} rows and {n} unknowns without a "
            f"ridge. Pass lam > 0{'' if level.W else ', or solver=xv.lower.SVD() for the w of minimum norm'}; where w "
            "is unique all the same, a tiny lam does not change it"
        )


def _check_scalar(x: Any, what: str, theta: Array, dtype: str) -> None:
    check_array(x, what, theta, dtype)
    if x.ndim:
        raise ModelError(f"{what} must return a scalar; got shape {tuple(x.shape)}")


def _check_design(prefix: str, M: Any, theta: Array, dtype: str) -> None:
    arrays = trees.partition(M)[0]
    held = getattr(M, "array", M)
    if not arrays or isinstance(held, list | tuple | dict):
        raise ModelError(
            f"the {prefix}model function M must return an array or an operator; got {type(held).__name__}. "
            "Join its parts with xp.stack or xp.concat"
        )
    for array in arrays:
        # integers index a structure, which a matrix has not
        if isinstance(M, Dense) or not trees.is_array(array) or "int" not in str(array.dtype):
            check_array(array, f"the {prefix}model function M", theta, dtype, takes_complex=True)
    if isinstance(M, Dense) and M.array.ndim not in (2, 3):
        raise ModelError(
            f"the {prefix}model function M must return a matrix (m, n); got shape {tuple(M.array.shape)}. It has a "
            "row for each number of a target and a column for each amplitude: a curve is curve[:, None], and a "
            "function of one sample goes through the vmap of its framework"
        )


def _target_shape(prefix: str, level: Level, y: Array | None, theta: Array, dtype: str) -> tuple[int, ...] | None:
    """Shape of a target as the user stated it; None for chunks of columns, which only a pass would give."""
    if isinstance(level.y, ColumnChunks):
        return None
    if callable(level.y):
        check_array(y, f"the {prefix}model function y", theta, dtype, takes_complex=True)
    target: Any = level.y if y is None else y
    shape = tuple(target.shape)
    if len(shape) not in (1, 2):
        raise ModelError(f"the {prefix}model function y must return an array (m,) or (m, k); got shape {shape}")
    return shape


def check_unchanged(problem: Problem, stored: Mapping[str, str]) -> None:
    """Check that the arrays of the caller have the fingerprints that were `stored` before the solve."""
    if found := changed(problem, stored):
        raise ModelError(
            f"the arrays of a problem must not change while they are used; got another {', '.join(found)} afterwards. "
            "Write to none of them in a model function: make new arrays, with xp.where for example"
        )


def check_value(value: Array, dtype: str) -> None:
    """Check that the objective has the dtype of the work: a mode that the caller is in may compute in another one."""
    if dtype_name(value) != dtype:
        raise ModelError(
            f"the objective must be computed in {dtype}, theta's dtype; got {dtype_name(value)}. Leave the context "
            "that makes functions of the framework return another dtype"
        )


def check_array(x: Any, what: str, theta: Array, dtype: str, takes_complex: bool = False) -> None:
    """Check that `x`, which `what` returned, is an array of theta's framework and dtype, or of its complex dtype."""
    if not trees.is_array(x):
        raise ModelError(
            f"{what} must return an array; got {type(x).__name__}. Make a number an array of theta's framework, as "
            "np.asarray, torch.as_tensor or jnp.asarray do; if it comes from `data`, before it is passed"
        )
    if trees.array_namespace(x) is not trees.array_namespace(theta):
        raise ModelError(
            f"{what} must return arrays of theta's namespace, inside of operators too; got {type(x).__module__}."
            f"{type(x).__name__}. "
            "Compute with xp = xv.array_namespace(theta), and pass constant arrays in data= or through xp.asarray"
        )
    kind = str(x.dtype).rsplit(".", maxsplit=1)[-1]
    if takes_complex and kind == FLOATS[dtype]:
        return
    if kind != dtype:
        raise ModelError(f"{what} must return {dtype}, theta's dtype; got {kind}")
