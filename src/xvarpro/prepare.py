"""From what a user handed over to what a solve computes with: checked, moved once, in one dtype on one device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from xvarpro import backends, trees
from xvarpro.backends import Backend, exchange
from xvarpro.errors import ExchangeError, ModelError, ProblemError
from xvarpro.inexact import Inexact
from xvarpro.levels import Side, Stated, as_matrix, is_complex_design, scaled
from xvarpro.lower import QR
from xvarpro.lower._stack import condition_of, deficient
from xvarpro.objective import Objective
from xvarpro.operators import dottest
from xvarpro.problem import Level, Problem
from xvarpro.protocols import Array, Leaves, Tree
from xvarpro.reduced import Blank, Parts, Reduced
from xvarpro.region import Region, resolve
from xvarpro.rows import Rows, Stream
from xvarpro.streamed import Streamed
from xvarpro.targets import Chunks, compress

_FLOATS = {"float32": "complex64", "float64": "complex128"}
_BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "complex64": 32, "float64": 64, "complex128": 64}


class PrecisionWarning(UserWarning):
    """Data of a wider dtype than theta0 was rounded to theta0's."""


@dataclass(frozen=True)
class Home:
    """Where theta0 came from, and so where results go."""

    backend: Backend
    dtype: str
    devices: tuple[Any, ...]  # one per leaf
    treedef: Any

    def bring(self, leaves: Leaves, source: Backend) -> Tree:
        """Leaves of a computation as the caller's tree of the caller's arrays."""
        return trees.unflatten(
            self.treedef, [self.array(x, source, device) for x, device in zip(leaves, self.devices, strict=True)]
        )

    def array(self, x: Array, source: Backend, device: Any = None) -> Array:
        """One array, by default on the device of the first leaf."""
        device = self.devices[0] if device is None else device
        with self.backend.scope(self.dtype):
            dtype = _FLOATS[self.dtype] if trees.is_complex(x) else self.dtype
            return exchange.move(x, self.backend, dtype=dtype, device=device)


@dataclass(frozen=True)
class Prepared:
    """A problem on its backend, with the way home."""

    problem: Problem  # arrays of `backend`; targets compressed where that is exact
    backend: Backend
    compiler: Backend  # of the parts that compile where the rest does not; else the same
    dtype: str
    device: Any
    theta: Leaves
    region: Region
    home: Home
    original: Problem
    compressed: bool
    blank: Blank
    progress: bool | None = None

    @property
    def assemble(self) -> Callable[..., Objective]:
        """What makes the reduced objective of this problem from traced arrays. It holds no array itself: compiled
        functions are kept under it.
        """
        shared = {"backend": self.backend, "treedef": self.home.treedef, "blank": self.blank}
        if self.problem.in_rows:
            return partial(Streamed, **shared, compiler=self.compiler, progress=self.progress)
        return partial(Reduced if self.blank.exact else Inexact, **shared)

    def target(self, block: Array) -> Array:
        """Columns of the caller's lower target as this solve sees them."""
        weights = self.problem.lower.weights
        with self.backend.scope(self.dtype):
            mover = _Mover(self.backend, self.dtype, self.device)
            return mover.weighed(mover(block, "y", real=True, gaps=weights is not None), weights, "y")

    def certify_designs(self) -> None:
        """`operators.dottest` of every level's design at theta0; of a level in chunks, of the first one."""
        problem = _first_rows(self.problem) if self.problem.in_rows else self.problem
        reduced = Reduced(problem, self.backend, self.home.treedef)
        with self.backend.scope(self.dtype):
            for stated in _stated(reduced.evaluate(self.theta, reduced.constants)):
                dottest(stated.M)

    def call(self, fun: Callable[..., Any], *args: Any) -> Any:
        """``fun(reduced, *args)`` inside the backend's scope, compiled where it compiles. `fun` must be a module's."""
        operands, skeleton = trees.partition(self.problem)
        assemble = self.assemble

        def make(operands: Leaves) -> Callable[..., Any]:
            reduced = assemble(skeleton.fill(operands))
            return lambda *args: fun(reduced, *args)

        with self.backend.scope(self.dtype):
            return self.backend.call(make, (fun, skeleton, self.home.treedef))(operands, *args)


def destination(
    theta0: Tree, backend: str | Backend | None, device: Any, dtype: str | None
) -> tuple[list[Any], list[str], Backend, str, Any, Home]:
    """Leaves of theta0 and their names; the backend, dtype and device to compute with; the way back."""
    leaves, treedef = trees.flatten(theta0)
    names = trees.paths(theta0)
    leaves = [np.asarray(x) if isinstance(x, float) else x for x in leaves]
    source = _owner(leaves, names)
    own_dtype = _common_dtype(leaves, names, source)
    to = source if backend is None else backend if isinstance(backend, Backend) else backends.get(backend)
    work = dtype or own_dtype
    if work not in _FLOATS:
        raise ProblemError(f"dtype must be 'float32' or 'float64', got {work!r}")
    place = _place(to, device) if device is not None else to.device_of(leaves[0]) if to is source else None
    home = Home(source, work, tuple(source.device_of(x) for x in leaves), treedef)
    _check_way_home(home, own_dtype)
    return leaves, names, to, work, place, home


def prepare(
    problem: Problem,
    theta0: Tree,
    *,
    over: Tree = None,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
    progress: bool | None = None,
) -> Prepared:
    """Check everything, then move it. Raises before any work; see `solve` for what."""
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must come from xv.separable or xv.bilevel, got {type(problem).__name__}")
    leaves, names, to, work, place, home = destination(theta0, backend, device, dtype)
    treedef = home.treedef
    with to.scope(work):
        # a copy: the result must not share memory with what the caller may write to
        theta = tuple(to.xp.asarray(exchange.move(x, to, dtype=work, device=place), copy=True) for x in leaves)
        _check_finite(to, theta, names)
        region = resolve(over, trees.unflatten(treedef, theta))
        region = trees.map_arrays(lambda x: exchange.move(x, to, dtype=work, device=place), region)
        _check_feasible(to, region, theta)
        mover = _Mover(to, work, place)
        moved = mover.problem(problem)
        sample = _first_rows(moved) if problem.in_rows else moved
        blank = _check_model(Reduced(sample, to, treedef), sample if problem.in_rows else problem, theta, work)
        moved, compressed = _compressed(moved, to, blank)
        region = region if blank.exact else region.measured(theta)
    around = to.uncompiled() if problem.in_rows else to  # files are read between one chunk and the next
    return Prepared(moved, around, to, work, place, theta, region, home, problem, compressed, blank, progress)


def _place(backend: Backend, device: Any) -> Any:
    try:
        place = backend.parse_device(device)
        backend.asarray(np.zeros(1, np.float32), device=place)
    except Exception as error:  # each framework has its own type for this, some an AssertionError
        raise ProblemError(
            f"device {device!r} cannot be used by the {backend.name} backend ({error}); it has "
            f"{', '.join(backend.devices())}"
        ) from error
    return place


def _owner(leaves: list[Any], names: list[str]) -> Backend:
    if not leaves:
        raise ProblemError("theta0 has no arrays")
    owners: dict[str, str] = {}
    for x, name in zip(leaves, names, strict=True):
        owner = backends.of(x)
        if owner is None:
            raise ProblemError(f"{name} must be an array or a float, got {type(x).__name__}")
        owners.setdefault(owner.name, name)
    if len(owners) > 1:
        found = ", ".join(f"{name} is a {owner} array" for owner, name in owners.items())
        raise ProblemError(f"theta0 mixes frameworks: {found}. Bring all of it to one; the solve follows theta0")
    return backends.get(next(iter(owners)))


def _common_dtype(leaves: list[Any], names: list[str], source: Backend) -> str:
    dtypes: dict[str, str] = {}
    for x, name in zip(leaves, names, strict=True):
        dtypes.setdefault(source.dtype_name(x), name)
    for dtype, name in dtypes.items():
        if dtype not in _FLOATS:
            raise ProblemError(
                f"{name} has dtype {dtype}: theta0 must be float32 or float64, since steps are real numbers"
            )
    if len(dtypes) > 1:
        found = ", ".join(f"{name} is {dtype}" for dtype, name in dtypes.items())
        raise ProblemError(f"theta0 mixes dtypes: {found}. The whole solve is done in theta0's dtype: choose one")
    return next(iter(dtypes))


def _check_way_home(home: Home, own_dtype: str) -> None:
    """A caller who asks for another dtype must be able to hold it: JAX rounds float64 while its x64 flag is off."""
    if home.dtype == own_dtype:
        return
    probe = home.backend.asarray(np.zeros(1, home.dtype))
    if home.backend.dtype_name(probe) != home.dtype:
        raise ExchangeError(
            f"dtype={home.dtype!r} was asked for and theta0 is a {own_dtype} {home.backend.name} array: the result "
            f"cannot be returned as {home.dtype} while jax_enable_x64 is off. Turn it on, pass theta0 as a NumPy "
            "array, or leave out dtype="
        )


def _check_finite(backend: Backend, arrays: Leaves, names: list[str]) -> None:
    for x, name in zip(arrays, names, strict=True):
        if not bool(backend.xp.all(backend.xp.isfinite(x))):
            raise ProblemError(f"{name} contains NaN or inf")


def _check_feasible(backend: Backend, region: Region, theta: Leaves) -> None:
    violation = float(region.violation(theta))
    # a point that a projection in this dtype returns must pass
    if not violation <= 1e3 * backend.xp.finfo(theta[0].dtype).eps:
        raise ProblemError(
            f"theta0 is infeasible: it violates its set by {violation:.3g}, relative to the set's size. "
            "Start from xv.project(theta0, over), or from a point of the set"
        )


def _check_invertible(backend: Backend, Omega: Array, name: str) -> None:
    R = backend.qr_r(Omega)
    if bool(deficient(backend, R, R.shape[0])):
        raise ProblemError(
            f"{name} is singular in {backend.dtype_name(Omega)}: its condition, columns scaled to length 1, is "
            f"{float(condition_of(backend, R)):.2g}. The ridge |Omega w|^2 needs an invertible matrix: a difference "
            "operator needs a row for the mean, and a form w^T P w takes a factor of P = Omega^T Omega, which an "
            "indefinite P does not have"
        )


class _Mover:
    """Moves the arrays of a problem, by name, so that a message can name what it is about. `told`: warns no more."""

    def __init__(self, to: Backend, dtype: str, device: Any, told: bool = False) -> None:
        self.to, self.dtype, self.device, self.told = to, dtype, device, told

    def __call__(self, x: Array, name: str, real: bool = False, gaps: bool = False) -> Array:
        """As `cast`; refuses NaN and inf, unless there may be `gaps`."""
        moved = self.cast(x, name, real)
        if exchange.dtype_name(x) in _BITS and not gaps:
            self._finite(moved, name)
        return moved

    def cast(self, x: Array, name: str, real: bool = False) -> Array:
        """`real`: whole numbers count as data for arithmetic, not as indices or labels."""
        kind = exchange.dtype_name(x)
        want = None
        if kind in _BITS:
            want = _FLOATS[self.dtype] if kind.startswith("complex") else self.dtype
            if _BITS[kind] > _BITS[self.dtype] and not self.told:
                warnings.warn(
                    f"{name} is {kind} and theta0 is {self.dtype}: the solve follows theta0, so {name} is rounded to "
                    f"{want}. Pass theta0 in {kind} to keep its digits",
                    PrecisionWarning,
                    stacklevel=7,
                )
        elif real:
            want = self.dtype
        return exchange.move(x, self.to, dtype=want, device=self.device)

    def _finite(self, x: Array, name: str) -> None:
        if not bool(self.to.xp.all(self.to.xp.isfinite(x))):
            raise ProblemError(f"{name} contains NaN or inf")

    def problem(self, problem: Problem) -> Problem:
        single = problem.is_separable
        leaves, treedef = trees.flatten(problem.data)
        names = trees.paths(problem.data, "data")
        data = [self(x, name) if trees.is_array(x) else x for x, name in zip(leaves, names, strict=True)]
        return replace(
            problem,
            lower=self._level(problem.lower, "" if single else "lower."),
            upper=None if problem.upper is None else self._level(problem.upper, "upper."),
            data=trees.unflatten(treedef, data),
        )

    def _level(self, level: Level, prefix: str) -> Level:
        y, Omega, weights = level.y, level.Omega, level.weights
        if trees.is_array(level.lam) or (trees.is_array(y) and y.ndim > 2):
            raise ProblemError(
                f"{prefix}y of three axes, or {prefix}lam of one, states a batch of problems: use xv.solve_many"
            )
        if weights is not None:
            weights = as_matrix(self(weights, f"{prefix}weights", real=True))
            if not bool(self.to.xp.all(weights >= 0)):
                raise ProblemError(f"{prefix}weights must be >= 0: they weigh squared residuals")
        if trees.is_array(y):
            name = f"{prefix}y"
            y = self.weighed(self(y, name, real=True, gaps=weights is not None), weights, name)
        elif isinstance(y, Chunks):
            if weights is not None and weights.shape[1] > 1:
                raise ProblemError(f"{prefix}weights by entry need {prefix}y as an array: its chunks share one design")
            blocks, gaps = y, weights is not None
            y = Chunks(
                lambda: (
                    self.weighed(self(x, f"{prefix}y, chunk {i}", real=True, gaps=gaps), weights, f"chunk {i}")
                    for i, x in enumerate(blocks)
                )
            )
        elif isinstance(y, Rows):
            later = _Mover(self.to, self.dtype, self.device, told=True)
            y = replace(y, source=Stream(y, prefix.replace(".", " "), self, later))
        if Omega is not None:
            name = f"{prefix}Omega"
            if trees.is_array(Omega):
                Omega = self(Omega, name, real=True)
                if prefix != "upper.":  # a ridge that only judges need not make anything unique
                    _check_invertible(self.to, Omega, name)
            else:
                Omega = trees.map_arrays(lambda x: self(x, name, real=True), Omega)
        W = level.W
        if W is not None:
            W = trees.map_arrays(
                lambda x: exchange.move(x, self.to, dtype=self._kind(x), device=self.device), W.resolved()
            )
        solver = trees.map_arrays(lambda x: self(x, f"{prefix}solver"), level.solver)
        return replace(level, y=y, Omega=Omega, weights=weights, W=W, solver=solver)

    def _kind(self, x: Array) -> str:
        return _FLOATS[self.dtype] if exchange.dtype_name(x).startswith("complex") else self.dtype

    def weighed(self, y: Array, weights: Array | None, name: str) -> Array:
        """A target as a matrix, its entries scaled by the roots of their weights."""
        y = as_matrix(y)
        if weights is None:
            return y
        if weights.shape[0] != y.shape[0] or weights.shape[1] not in (1, y.shape[1]):
            raise ProblemError(
                f"weights of shape {tuple(weights.shape)} do not fit {name} of shape {tuple(y.shape)}: "
                "one for each row, or one for each entry"
            )
        xp = self.to.xp
        y = xp.where(xp.broadcast_to(weights > 0, y.shape), y, xp.zeros_like(y))
        self._finite(y, f"{name}, where its weight is not 0,")
        return scaled(y, xp.sqrt(weights))


def _compressed(problem: Problem, backend: Backend, blank: Blank) -> tuple[Problem, bool]:
    """The problem with the k right-hand sides of both levels turned by one orthogonal matrix into few."""
    levels = [problem.lower] if problem.upper is None else [problem.lower, problem.upper]
    chunked = isinstance(problem.lower.y, Chunks)
    linear = problem.lower.W is None or problem.lower.W.linear
    whole = problem.in_rows or any(callable(level.y) for level in levels) or blank.columns is not None
    if whole or not linear:
        return problem, False
    if not chunked:
        columns = {level.y.shape[1] for level in levels}
        fits = len(columns) == 1 and columns.pop() > sum(level.y.shape[0] for level in levels)
        if not (problem.compress and fits):
            return problem, False
    elif not problem.compress:
        raise ProblemError("a target in Chunks is always compressed: leave out compress=False")
    if len(levels) == 1:
        stacked = levels[0].y
    elif chunked:
        stacked = Chunks(partial(_stacked_chunks, backend, levels[0].y, levels[1].y))
    else:
        stacked = backend.xp.concat([level.y for level in levels])
    L = compress(stacked, backend)
    if len(levels) == 1:
        return replace(problem, lower=replace(problem.lower, y=L)), True
    m = next(iter(levels[0].y)).shape[0] if chunked else levels[0].y.shape[0]
    return (
        replace(problem, lower=replace(levels[0], y=L[:m, :]), upper=replace(levels[1], y=L[m:, :])),
        True,
    )


def _stacked_chunks(backend: Backend, lower: Chunks, upper: Chunks) -> Iterator[Array]:
    for i, (a, b) in enumerate(zip_longest(lower, upper)):
        if a is None or b is None or a.shape[1] != b.shape[1]:
            found = " and ".join("no chunk" if x is None else f"shape {tuple(x.shape)}" for x in (a, b))
            raise ProblemError(f"chunk {i} of the two targets: {found}; they need the same number of columns")
        yield backend.xp.concat([a, b])


def _first_rows(problem: Problem) -> Problem:
    """The first chunk of a level in place of all of its rows, for a look at what the user's functions return."""
    levels, data = [], []
    for i, level in enumerate(problem.levels):
        if isinstance(level.y, Rows):
            source: Any = level.y.source
            data.append(tuple(source.first()))
            # one chunk may have fewer rows than there are unknowns, whatever all of them have
            level = replace(level, y=level.y.y or _given, solver=QR())
        else:
            data.append((problem.data, None))
        y = partial(_of_level, level.y, i) if callable(level.y) else level.y
        levels.append(replace(level, M=partial(_of_level, level.M, i), y=y))
    return replace(problem, lower=levels[0], upper=levels[1] if levels[1:] else None, data=tuple(data))


def _of_level(fun: Callable[..., Any], i: int, theta: Tree, data: Any) -> Any:
    return data[i][1] if fun is _given else fun(theta, data[i][0])


def _given() -> None:
    """Stands for a target that comes with its data."""


def _check_model(reduced: Reduced, stated: Problem, theta: Leaves, dtype: str) -> Blank:
    """Call the user's functions once, as the gradient will, and compare what they return with what the rest expects."""
    backend = reduced.backend
    constants = reduced.constants
    skeleton: Any = None
    y_ndim, columns, w_shape, complex_w, exact = 2, None, (0, 0), False, True

    def probe(*arrays: Array) -> Leaves:
        nonlocal skeleton, y_ndim, columns, w_shape, complex_w, exact
        parts = reduced.evaluate(arrays[: len(theta)], arrays[len(theta) :])
        _check_parts(parts, stated, arrays[0], dtype)
        own, lam = reduced.problem.lower, parts.lower.lam
        exact = reduced.solver(Side(parts.lower.M, theta[0], own.lam if lam is None else lam, own.Omega)).exact
        y_ndim = 2 if parts.lower.y is None else parts.lower.y.ndim
        columns = next((k for k in (s.M.columns for s in _stated(parts)) if k is not None), None)
        y = reduced.problem.lower.y if parts.lower.y is None else parts.lower.y
        if trees.is_array(y):
            w_shape = (parts.lower.M.shape[1], as_matrix(y).shape[1])
            complex_w = trees.is_complex(y) or is_complex_design(parts.lower.M)
        outputs, skeleton = trees.partition(parts)
        return outputs

    try:
        outputs = backend.trace(lambda *theta: backend.vjp(probe, theta, constants)[0], *theta)
    except (ProblemError, ModelError):
        raise
    except Exception as error:
        raise ModelError(
            f"a model function failed on the {backend.name} backend: {type(error).__name__}: {error}. "
            "Inside it, compute with xp = xv.array_namespace(theta) and take arrays from `data` only"
        ) from error
    shapes = tuple((tuple(x.shape), x.dtype) for x in outputs)
    return Blank(skeleton, shapes, y_ndim, columns, w_shape, complex_w, exact)


def _stated(parts: Parts) -> list[Stated]:
    return [parts.lower] + ([] if parts.upper is None else [parts.upper])


def _check_parts(parts: Parts, problem: Problem, theta: Array, dtype: str) -> None:
    single = problem.is_separable
    levels = [problem.lower] if problem.upper is None else [problem.lower, problem.upper]
    unknowns, sides = {}, {}
    for level, stated, prefix in zip(levels, _stated(parts), ("" if single else "lower ", "upper "), strict=False):
        M = stated.M
        _check_design(prefix, M, theta, dtype)
        rows, sides[f"{prefix}y"], shape = _check_target(prefix, level, stated.y, theta, dtype)
        unknowns[f"{prefix}M(theta)"] = M.shape[1]
        if rows is not None and M.shape[0] != rows:
            raise ProblemError(
                f"{prefix}M(theta) has shape {tuple(M.shape)} and {prefix}y has shape {shape}: "
                "they need the same number of rows"
            )
        if M.columns not in (None, sides[f"{prefix}y"]):
            raise ProblemError(
                f"{prefix}M(theta) has a design for each of {M.columns} right-hand sides, "
                f"and {prefix}y has shape {shape}"
            )
        if level.Omega is not None and tuple(level.Omega.shape) != (M.shape[1], M.shape[1]):
            raise ProblemError(
                f"Omega has shape {tuple(level.Omega.shape)} and {prefix}M(theta) has shape {tuple(M.shape)}: "
                f"Omega must be {(M.shape[1], M.shape[1])}"
            )
        if stated.lam is not None:
            _check_scalar(stated.lam, f"the {prefix}ridge lam", theta, dtype)
    if len(set(unknowns.values())) > 1:
        raise ProblemError(f"the levels share w, but their designs have different numbers of columns: {unknowns}")
    if len({k for k in sides.values() if k is not None}) > 1:
        found = " and ".join(sorted(str(k) for k in sides.values()))
        raise ProblemError(f"the levels' targets have {found} columns: they share w, so they need the same number")
    m, n = parts.lower.M.shape
    if problem.lower.W is not None:
        problem.lower.W.check(n, max((k for k in sides.values() if k is not None), default=None))
        n = problem.lower.W.dimension(n)
    if n > m and not problem.lower.lam and problem.lower.solver is None:
        raise ProblemError(
            f"the lower level has more unknowns than rows ({n} > {m}) and no ridge, so w is not unique: "
            "pass lam > 0, or solver=xv.lower.SVD() for the w of minimum norm"
        )
    if parts.R is not None:
        _check_scalar(parts.R, "R", theta, dtype)


def _check_scalar(x: Any, what: str, theta: Array, dtype: str) -> None:
    _check_array(x, what, theta, dtype)
    if x.ndim:
        raise ModelError(f"{what} must return a scalar, got shape {tuple(x.shape)}")


def _check_design(name: str, M: Any, theta: Array, dtype: str) -> None:
    arrays = trees.partition(M)[0]
    held = getattr(M, "array", arrays)
    if not arrays or isinstance(held, list | dict):
        raise ModelError(
            f"the {name}model function M must return an array or an operator, got {type(held).__name__}: "
            "stack its parts with xp.stack or xp.concat"
        )
    for array in arrays:
        if not trees.is_array(array) or "int" not in str(array.dtype):  # indices are part of a structure
            _check_array(array, f"the {name}model function M", theta, dtype, takes_complex=True)
    if len(M.shape) != 2:
        raise ModelError(f"the {name}model function M must return a matrix (m, n), got shape {tuple(M.shape)}")


def _check_target(
    name: str, level: Level, y: Array | None, theta: Array, dtype: str
) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Rows, columns and shape of a target as its user knows it; None where only a pass over chunks would tell."""
    if isinstance(level.y, Chunks):
        return None, None, ()
    if y is not None:
        _check_array(y, f"the {name}model function y", theta, dtype, takes_complex=True)
    shape = tuple((level.y if y is None else y).shape)
    if len(shape) not in (1, 2):
        raise ModelError(f"the {name}model function y must return an array of shape (m,) or (m, k), got shape {shape}")
    return shape[0], 1 if len(shape) == 1 else shape[1], shape


def _check_array(x: Any, what: str, theta: Array, dtype: str, takes_complex: bool = False) -> None:
    if not trees.is_array(x):
        raise ModelError(f"{what} must return an array, got {type(x).__name__}")
    if trees.array_namespace(x) is not trees.array_namespace(theta):
        raise ModelError(
            f"{what} left the array namespace it was given: it returned {type(x).__module__}.{type(x).__name__} for "
            f"theta of {type(theta).__module__}.{type(theta).__name__}. Use xp = xv.array_namespace(theta)"
        )
    kind = str(x.dtype).rsplit(".", maxsplit=1)[-1]
    if takes_complex and kind == _FLOATS[dtype]:
        return
    if kind != dtype:
        raise ModelError(f"{what} must return {dtype}, theta's dtype, got {kind}")
