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
from xvarpro.problem import Level, Problem
from xvarpro.protocols import Array, Leaves, Tree
from xvarpro.reduced import Blank, Parts, Reduced, as_matrix
from xvarpro.region import Region, resolve
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
            return exchange.move(x, self.backend, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Prepared:
    """A problem on its backend, with the way home."""

    problem: Problem  # arrays of `backend`; targets compressed where that is exact
    backend: Backend
    dtype: str
    device: Any
    theta: Leaves
    region: Region
    home: Home
    original: Problem
    compressed: bool
    blank: Blank

    @property
    def assemble(self) -> Callable[..., Reduced]:
        """What makes the reduced objective of this problem from traced arrays. It holds no array itself: compiled
        functions are kept under it.
        """
        return partial(Reduced, backend=self.backend, treedef=self.home.treedef, blank=self.blank)

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
        moved, compressed = _compressed(moved, to)
        blank = _check_model(Reduced(moved, to, treedef), problem, theta, work)
    return Prepared(moved, to, work, place, theta, region, home, problem, compressed, blank)


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


class _Mover:
    """Moves the arrays of a problem, by name, so that a message can name what it is about."""

    def __init__(self, to: Backend, dtype: str, device: Any) -> None:
        self.to, self.dtype, self.device = to, dtype, device

    def __call__(self, x: Array, name: str, real: bool = False) -> Array:
        """As `cast`; refuses NaN and inf."""
        moved = self.cast(x, name, real)
        if exchange.dtype_name(x) in _BITS and not bool(self.to.xp.all(self.to.xp.isfinite(moved))):
            raise ProblemError(f"{name} contains NaN or inf")
        return moved

    def cast(self, x: Array, name: str, real: bool = False) -> Array:
        """`real`: whole numbers count as data for arithmetic, not as indices or labels."""
        kind = exchange.dtype_name(x)
        want = None
        if kind in _BITS:
            want = _FLOATS[self.dtype] if kind.startswith("complex") else self.dtype
            if _BITS[kind] > _BITS[self.dtype]:
                warnings.warn(
                    f"{name} is {kind} and theta0 is {self.dtype}: the solve follows theta0, so {name} is rounded to "
                    f"{want}. Pass theta0 in {kind} to keep its digits",
                    PrecisionWarning,
                    stacklevel=7,
                )
        elif real:
            want = self.dtype
        return exchange.move(x, self.to, dtype=want, device=self.device)

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
        y, Omega = level.y, level.Omega
        if trees.is_array(level.lam) or (trees.is_array(y) and y.ndim > 2):
            raise ProblemError(
                f"{prefix}y of three axes, or {prefix}lam of one, states a batch of problems: use xv.solve_many"
            )
        if trees.is_array(y):
            if "complex" in exchange.dtype_name(y):
                raise ProblemError(f"{prefix}y is complex and w is real here: stack real and imaginary parts as rows")
            y = as_matrix(self(y, f"{prefix}y", real=True))
        elif isinstance(y, Chunks):
            blocks = y
            y = Chunks(lambda: (self(x, f"{prefix}y, chunk {i}", real=True) for i, x in enumerate(blocks)))
        if Omega is not None:
            Omega = self(Omega, f"{prefix}Omega", real=True)
        return replace(level, y=y, Omega=Omega)


def _compressed(problem: Problem, backend: Backend) -> tuple[Problem, bool]:
    """The problem with the k right-hand sides of both levels turned by one orthogonal matrix into few."""
    levels = [problem.lower] if problem.upper is None else [problem.lower, problem.upper]
    chunked = isinstance(problem.lower.y, Chunks)
    if any(callable(level.y) for level in levels):
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


def _check_model(reduced: Reduced, stated: Problem, theta: Leaves, dtype: str) -> Blank:
    """Call the user's functions once, as the gradient will, and compare what they return with what the rest expects."""
    backend = reduced.backend
    constants = trees.partition(reduced.problem.data)[0]
    skeleton: Any = None
    y_ndim = 2

    def probe(*arrays: Array) -> Leaves:
        nonlocal skeleton, y_ndim
        parts = reduced.evaluate(arrays[: len(theta)], arrays[len(theta) :])
        _check_parts(parts, stated, arrays[0], dtype)
        y_ndim = 2 if parts.y_L is None else parts.y_L.ndim
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
    return Blank(skeleton, tuple((tuple(x.shape), x.dtype) for x in outputs), y_ndim)


def _check_parts(parts: Parts, problem: Problem, theta: Array, dtype: str) -> None:
    upper, prefix = problem.upper, "" if problem.is_separable else "lower "
    levels = [(prefix, problem.lower, parts.M_L, parts.y_L)]
    if upper is not None:
        levels.append(("upper ", upper, parts.M_U, parts.y_U))
    unknowns, sides = {}, {}
    for name, level, M, y in levels:
        _check_design(name, M, theta, dtype)
        rows, sides[f"{name}y"], shape = _check_target(name, level, y, theta, dtype)
        unknowns[f"{name}M(theta)"] = M.shape[1]
        if rows is not None and M.shape[0] != rows:
            raise ProblemError(
                f"{name}M(theta) has shape {tuple(M.shape)} and {name}y has shape {shape}: "
                "they need the same number of rows"
            )
        if level.Omega is not None and tuple(level.Omega.shape) != (M.shape[1], M.shape[1]):
            raise ProblemError(
                f"Omega has shape {tuple(level.Omega.shape)} and {name}M(theta) has shape {tuple(M.shape)}: "
                f"Omega must be {(M.shape[1], M.shape[1])}"
            )
    if len(set(unknowns.values())) > 1:
        raise ProblemError(f"the levels share w, but their designs have different numbers of columns: {unknowns}")
    if len({k for k in sides.values() if k is not None}) > 1:
        found = " and ".join(sorted(str(k) for k in sides.values()))
        raise ProblemError(f"the levels' targets have {found} columns: they share w, so they need the same number")
    m, n = parts.M_L.shape
    if n > m and not problem.lower.lam and problem.lower.solver is None:
        raise ProblemError(
            f"the lower level has more unknowns than rows ({n} > {m}) and no ridge, so w is not unique: "
            "pass lam > 0, or solver=xv.lower.SVD() for the w of minimum norm"
        )
    if parts.R is not None:
        _check_array(parts.R, "R", theta, dtype)
        if parts.R.ndim:
            raise ModelError(f"R must return a scalar, got shape {tuple(parts.R.shape)}")


def _check_design(name: str, M: Any, theta: Array, dtype: str) -> None:
    arrays = trees.partition(M)[0]
    held = getattr(M, "array", arrays)
    if not arrays or isinstance(held, list | dict):
        raise ModelError(
            f"the {name}model function M must return an array or an operator, got {type(held).__name__}: "
            "stack its parts with xp.stack or xp.concat"
        )
    for array in arrays:
        _check_array(array, f"the {name}model function M", theta, dtype)
    if len(M.shape) != 2:
        raise ModelError(f"the {name}model function M must return a matrix (m, n), got shape {tuple(M.shape)}")


def _check_target(
    name: str, level: Level, y: Array | None, theta: Array, dtype: str
) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Rows, columns and shape of a target as its user knows it; None where only a pass over chunks would tell."""
    if isinstance(level.y, Chunks):
        return None, None, ()
    if y is not None:
        _check_array(y, f"the {name}model function y", theta, dtype)
    shape = tuple((level.y if y is None else y).shape)
    if len(shape) not in (1, 2):
        raise ModelError(f"the {name}model function y must return an array of shape (m,) or (m, k), got shape {shape}")
    return shape[0], 1 if len(shape) == 1 else shape[1], shape


def _check_array(x: Any, what: str, theta: Array, dtype: str) -> None:
    if not trees.is_array(x):
        raise ModelError(f"{what} must return an array, got {type(x).__name__}")
    if trees.array_namespace(x) is not trees.array_namespace(theta):
        raise ModelError(
            f"{what} left the array namespace it was given: it returned {type(x).__module__}.{type(x).__name__} for "
            f"theta of {type(theta).__module__}.{type(theta).__name__}. Use xp = xv.array_namespace(theta)"
        )
    kind = str(x.dtype).rsplit(".", maxsplit=1)[-1]
    if kind.startswith("complex"):
        raise ModelError(f"{what} returned {kind}: w is real here, so stack real and imaginary parts as rows")
    if kind != dtype:
        raise ModelError(f"{what} must return {dtype}, theta's dtype, got {kind}")
