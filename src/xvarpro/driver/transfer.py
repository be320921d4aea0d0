"""Where a solve computes, its arrays moved there, each once, with checks that name it, and results moved back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xvarpro.backends import Backend, exchange, modules, registry
from xvarpro.core import trees
from xvarpro.core.checks import described, number
from xvarpro.core.namespace import copied, dtype_name, named_dtype, namespace_of
from xvarpro.core.namespace import device as device_of
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.errors import ExchangeError, ProblemError, warn_caller
from xvarpro.lower.interface import Ridge
from xvarpro.lower.stack import condition_of, deficient
from xvarpro.objective.least_squares import as_matrix, scaled
from xvarpro.operators.blocks import Stacked
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.problem import Level, Problem
from xvarpro.problem.row_chunks import Chunk, RowChunks, Stream
from xvarpro.problem.samples import check_samples
from xvarpro.problem.whitening import Whitening
from xvarpro.sets.each import Each
from xvarpro.sets.interface import Set

if TYPE_CHECKING:
    from xvarpro.losses.interface import Loss

FLOATS = {"float32": "complex64", "float64": "complex128"}
SYMMETRIC = 1e-6  # relative to the largest entry of a covariance: one in single precision is
# of a real number, or of each part of a complex one
NUMBERS = ("bool", "int", "uint", "float", "bfloat", "complex")  # dtypes without their sizes
BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "complex64": 32, "float64": 64, "complex128": 64}


class PrecisionWarning(UserWarning):
    """Data of a wider dtype than theta0 was rounded to theta0's."""


class Transfer:
    """Transfer of arrays to one backend, dtype and device.

    Parameters
    ----------
    to : Backend
    dtype : {"float32", "float64"}
        Of real arrays; complex ones take the complex dtype of the same width.
    device : device of the backend or None
    warn : bool
        Whether rounding of wider data warns.
    """

    def __init__(self, to: Backend, dtype: str, device: Any, warn: bool = True) -> None:
        self.to, self.dtype, self.device, self.warn = to, dtype, device, warn

    def __call__(self, x: Array, name: str, real: bool = False, gaps: bool = False) -> Array:
        """`cast`, and refuse NaN and inf unless `gaps` are allowed."""
        moved = self.cast(x, name, real)
        if dtype_name(x) in BITS and not gaps:
            self._check_finite(moved, name)
        return moved

    def cast(self, x: Array, name: str, real: bool = False) -> Array:
        """Move in the dtype of the work; integers and booleans keep theirs unless they are `real` numbers."""
        x = exchange.as_array(x, name)
        exchange.check_dense(x, name)
        kind = dtype_name(x)
        if kind.rstrip("0123456789") not in NUMBERS:
            return self._not_numbers(x, name, real)
        if kind not in BITS:
            return self._move(x, self.dtype if real else None)
        want = self._work_dtype(x)
        if BITS[kind] > BITS[self.dtype] and self.warn:
            warn_caller(
                f"{name} is {kind} and the solve is in {self.dtype}, as theta0 or dtype= is: {name} is rounded to "
                f"{want}. Its digits are kept by a theta0 in float64, of NumPy with backend= where the framework has "
                "none, or by dtype='float64'",
                PrecisionWarning,
            )
        return self._move(x, want)

    def _not_numbers(self, x: Array, name: str, real: bool) -> Array:
        """Dates, texts and objects but numbers: part of `data` where its framework has them, else refused."""
        source = registry.of(x)
        if real or source is None or source.name != self.to.name or exchange.holds_boxed(x):
            raise ProblemError(f"{name} must hold numbers on {self.to.name}; got dtype {x.dtype}. Convert it to floats")
        return x

    def plain(self, x: Array) -> Array:
        """Move in the dtype of the work; masks and units are the only ones to be refused."""
        x = exchange.as_array(x, "an array of a set")
        return self._move(x, self._work_dtype(x))

    def theta(self, leaves: list[Array], names: list[str]) -> Leaves:
        """Leaves of theta0 as copies: a result must not share memory that the caller may write to."""
        copies = []
        for x, name in zip(leaves, names, strict=True):
            moved = exchange.move(x, self.to, dtype=self.dtype, device=self.device)
            copies.append(copied(moved))
            exchange.check_dense(copies[-1], name)  # inside of a transformation no copy is one of numbers
            self._check_finite(copies[-1], name)
        return tuple(copies)

    def problem(self, problem: Problem) -> Problem:
        """The problem with arrays of the backend, targets of shape (m, k), and residual weights (m, 1) or (m, k)."""
        leaves, names, treedef = trees.named(problem.data, "data")
        if Each in trees.types(problem):
            raise ProblemError(
                "a single problem must hold nothing that is marked xv.Each; got a mark. Use xv.solve_many for a batch "
                "of problems, with xv.many.lifted where it is stated for one"
            )
        data = [self(x, name) if trees.is_array(x) else x for x, name in zip(leaves, names, strict=True)]
        y: Any = (problem.upper or problem.lower).y
        if trees.is_array(y):
            check_samples(problem.data, y.shape[0])
        return trees.changed(
            problem,
            lower=self._level(problem.lower, "" if problem.is_separable else "lower."),
            upper=None if problem.upper is None else self._level(problem.upper, "upper."),
            data=trees.unflatten(treedef, data),
        )

    def _level(self, level: Level, prefix: str) -> Level:
        y, Omega, weights = level.y, level.Omega, level.weights
        lam: Any = level.lam
        if any(trees.is_array(x) and x.ndim > 2 for x in (y, weights, lam)):
            raise ProblemError(
                f"{prefix}y and {prefix}weights must have shape (m,) or (m, k), and {prefix}lam that of w at most; got "
                "one more axis. Use xv.solve_many for a batch of problems"
            )
        if trees.is_array(lam):
            lam = self(lam, f"{prefix}lam", real=True)
            if lam.ndim != 2 or trees.is_complex(lam) or not bool(self.to.xp.all(lam >= 0)):
                raise ProblemError(
                    f"{prefix}lam must be a number >= 0, or an array of them with two axes, (n, 1) for the weights or "
                    f"(1, k) for the right-hand sides; got {described(level.lam)}. One for each "
                    "problem of a batch is for xv.solve_many"
                )
        if level.covariance is not None:
            weights = self.whitening(level.covariance, prefix, y.shape[0] if trees.is_array(y) else None)
        elif trees.is_array(weights):
            weights = self._weights(weights, f"{prefix}weights")
            if not bool(self.to.xp.any(weights > 0)):
                raise ProblemError(f"{prefix}weights must not all be 0: no number of the target would count")
        if Omega is not None and not callable(Omega):
            name = f"{prefix}Omega"
            if trees.is_array(Omega):
                Omega = self(Omega, name, real=True)
                if prefix != "upper." and Omega.shape[0] == Omega.shape[1]:  # the upper ridge need not make w unique
                    Omega = _one_block_if_singular(self.to, Omega, level, name)
            else:
                Omega = trees.map_arrays(lambda x: self(x, name, real=True), Omega)
        return trees.changed(
            level,
            y=self._target(level, weights, prefix, prefix == "upper." or self._held(lam, Omega)),
            lam=lam,
            Omega=Omega,
            weights=weights,
            covariance=None,
            loss=level.loss and level.loss.on(self.to),
            W=None if level.W is None else trees.map_arrays(self.plain, level.W.resolved()),
            solver=level.solver and trees.map_arrays(lambda x: self(x, f"{prefix}solver"), level.solver),
        )

    def _held(self, lam: Any, Omega: Any) -> bool:
        """Whether a ridge holds all of w, that of a class without a row too; of functions it is taken to."""
        if callable(lam) or callable(Omega):
            return True
        positive = self.to.xp.all(lam > 0) if trees.is_array(lam) else lam > 0
        return bool(positive) and Ridge(lam, Omega).square

    def whitening(self, covariance: Array, prefix: str, rows: int | None) -> Whitening:
        """From a Cholesky factorisation in double precision, whatever that of the solve is."""
        C, name = registry.to_numpy(covariance), f"{prefix}covariance"
        size = float(np.max(np.abs(C), initial=0.0))
        if C.dtype.kind not in "iuf" or not 0 < size < np.inf or np.max(np.abs(C - C.T)) > SYMMETRIC * size:
            raise ProblemError(
                f"{name} must be a real, finite, symmetric matrix; got {C.dtype} entries up to {size:.3g}"
            )
        if rows not in (None, C.shape[0]):
            raise ProblemError(f"{name} must have a row for each of the {rows} rows of {prefix}y; got shape {C.shape}")
        try:
            L = np.linalg.cholesky(C.astype(float) / size)
        except np.linalg.LinAlgError:
            least = np.linalg.eigvalsh(C.astype(float))[0]
            raise ProblemError(
                f"{name} must be positive definite; got a least eigenvalue of {least:.3g}. Add the variance of each "
                "datum's own noise to its diagonal"
            ) from None
        return Whitening(self._move(np.linalg.inv(L) / size**0.5, self.dtype))

    def _weights(self, weights: Array, name: str) -> Array:
        """Weights (m, 1) or (m, k)."""
        weights = as_matrix(self(weights, name, real=True))
        if trees.is_complex(weights) or not bool(self.to.xp.all(weights >= 0)):
            raise ProblemError(f"{name} of squared residuals must be >= 0; got a negative or a complex one")
        return weights

    def chunk(self, level: Any, data: Tree, y: Array | None, prefix: str, where: str, check: bool = False) -> Chunk:
        """Some rows of a level, with the weights that it makes of their data; `check` lets its loss look at them."""
        leaves, names, treedef = trees.named(data, f"{prefix}data")
        moved = [self(x, n + where) if trees.is_array(x) else x for x, n in zip(leaves, names, strict=True)]
        data, weights = trees.unflatten(treedef, moved), None
        if level.weights is not None:
            weights = self._weights(level.weights(data), f"{prefix}weights{where}")
        if y is not None:
            entries = self.entries(y, weights, f"{prefix}y{where}", level.loss, check)
            y = entries[:, 0] if y.ndim == 1 else entries
        return Chunk(data, y, weights)

    def entries(
        self, y: Array, weights: Any, name: str, loss: Loss | None, check: bool = True, some: bool = True
    ) -> Array:
        """A target as a matrix, see `weighted`; with `check`, if a loss finds it right: of `some` classes, or all."""
        moved = self.weighted(self(y, name, real=True, gaps=trees.is_array(weights)), weights, name, loss is None)
        if check and loss is not None:
            used = registry.to_numpy(moved)
            rows = np.broadcast_to((registry.to_numpy(weights) if trees.is_array(weights) else 1.0) > 0, used.shape)
            used = used[rows] if loss.by_entry else used[rows[:, 0]]
            # other rows may have the classes that these do not have, or a ridge holds their weights
            loss.check(np.concatenate([used, np.eye(used.shape[1])]) if some and not loss.by_entry else used)
        return moved

    def _target(self, level: Level, weights: Any, prefix: str, some: bool) -> Any:
        y, name, loss = level.y, f"{prefix}y", level.loss
        if trees.is_array(y):
            return self.entries(y, weights, name, loss, some=some)
        if isinstance(y, RowChunks):
            later = Transfer(self.to, self.dtype, self.device, warn=False)
            given = partial(self.chunk, level), partial(later.chunk, level), partial(self.to.scope, self.dtype)
            return replace(y, source=Stream(y, prefix.replace(".", " "), *given))
        if not isinstance(y, ColumnChunks):
            return y
        if trees.is_array(weights) and weights.shape[1] > 1:
            raise ProblemError(
                f"{prefix}weights must have shape (m,) where {name} is given as ColumnChunks; got "
                f"{tuple(weights.shape)}. Pass {name} as an array, or leave out columns with dead entries, or fill them"
            )
        later = Transfer(self.to, self.dtype, self.device, warn=False)  # or every chunk would be another warning

        def source() -> Iterator[Array]:
            return ((later if i else self).entries(x, weights, f"{name}, chunk {i}", loss) for i, x in enumerate(y))

        return replace(y, source=source)

    def weighted(self, y: Array, weights: Array | Whitening | None, name: str, roots: bool = True) -> Array:
        """A target (m,) or (m, k) as a matrix, its entries scaled by the roots of their weights, (m, 1) or (m, k).

        Without `roots` those of weight 0 alone.
        """
        y = as_matrix(y)
        if weights is None or isinstance(weights, Whitening):
            return y if weights is None else weights(y)
        if weights.shape[0] != y.shape[0] or weights.shape[1] not in (1, y.shape[1]):
            raise ProblemError(
                f"weights must have one entry per row of {name} or one per entry; got "
                "{} x {} of them for {} x {} entries of {}".format(*weights.shape, *y.shape, name.rstrip(","))
            )
        xp = self.to.xp
        y = xp.where(xp.broadcast_to(weights > 0, y.shape), y, xp.zeros_like(y))
        self._check_finite(y, name, ", where its weight is not 0,")
        return scaled(y, xp.sqrt(weights)) if roots else y

    def _check_finite(self, x: Array, name: str, where: str = "") -> None:
        (x,) = exchange.readable(x)
        xp = namespace_of(x)
        if not bool(xp.all(xp.isfinite(x))):
            at = np.argwhere(~np.isfinite(registry.to_numpy(x)))[0].tolist()
            missing = ". One that is missing takes weights=xp.isfinite(y)" if name.split(".")[-1] == "y" else ""
            if re.search(r"y, chunk \d+$", name):  # of columns; names of rows end in a comma
                missing = ". Leave the column out, or fill it: chunks of columns have no weights by entry"
            elif re.search(r"y, chunk \d+,$", name):
                missing = '. One that is missing has the weight 0, as by weights=lambda data: data["seen"]'
            name = name.rstrip(",") if where else name
            raise ProblemError(f"{name}{where} must be finite; got NaN or inf at index {at}{missing}")

    def _work_dtype(self, x: Array) -> str:
        return FLOATS[self.dtype] if trees.is_complex(x) else self.dtype

    def _move(self, x: Array, dtype: str | None) -> Array:
        return exchange.move(x, self.to, dtype=dtype, device=self.device)


def _one_block_if_singular(backend: Backend, Omega: Array, level: Level, name: str) -> Array | Stacked:
    """A square Omega, or as blocks, which are never taken for an invertible one."""
    R = backend.qr(Omega, mode="r")[1]
    if not bool(deficient(backend, R, R.shape[0])):
        return Omega
    if isinstance(level.y, RowChunks):
        raise ProblemError(
            f"{name} must be invertible where rows come as RowChunks; got a matrix that is singular in "
            f"{dtype_name(Omega)}: its condition, columns scaled to length 1, is "
            f"{float(condition_of(backend, R)):.2g}. Pass y as an array, or add a small multiple of the identity"
        )
    return Stacked((Omega,))


@dataclass(frozen=True)
class CallerLayout:
    """Framework, dtype, devices and tree structure of results: those of theta0."""

    backend: Backend
    dtype: str
    devices: tuple[Any, ...]  # one per leaf
    treedef: Any
    spread: bool = False  # whether arrays that are spread over devices stay so

    def to_caller(self, leaves: Leaves, source: Backend) -> Tree:
        """Leaves shaped like theta's, arrays of `source`, as the caller's tree of the caller's arrays."""
        moved = [self.array(x, source, device) for x, device in zip(leaves, self.devices, strict=True)]
        return modules.own(trees.unflatten(self.treedef, moved))

    def measures(self, leaves: Leaves, source: Backend) -> Tree:
        """As `to_caller`, with mappings by dotted name in the places of modules: errors or slopes make none."""
        moved = [self.array(x, source, device) for x, device in zip(leaves, self.devices, strict=True)]
        return modules.measures(self.treedef, moved)

    def array(self, x: Array, source: Backend, device: Any = None) -> Array:
        """One array of any shape as the caller's, by default on the device of theta's first leaf."""
        if device is None:
            device = source.placement.place(x) if self.spread else self.devices[0]
        with self.backend.scope(self.dtype):
            moved = exchange.move(x, self.backend, device=device)
            # memory of another framework may be read-only
            return moved if source.name == self.backend.name else copied(moved)


class Destination(NamedTuple):
    """The leaves of theta0 with their names, where to compute with them, and how results are returned."""

    leaves: list[Array]
    names: list[str]
    backend: Backend
    dtype: str
    device: Any  # None is the backend's default
    layout: CallerLayout


def destination(
    theta0: Tree,
    backend: str | Backend | None,
    device: Any,
    dtype: str | None,
    deterministic: bool = False,
    problem: Problem | None = None,
) -> Destination:
    """Resolve `backend`, `device` and `dtype`, each of which is theta0's own where it is None.

    Where no device is given and arrays of the problem or of theta0 are spread over several, it is all of these.
    """
    if isinstance(theta0, Set):
        raise ProblemError(f"theta0 must be arrays; got a set, {theta0!r}. Pass it as over=, after a start in it")
    theta0 = modules.taken(theta0)
    leaves, names, treedef = trees.named(theta0, whole=(list, tuple))
    leaves = list(map(_start, leaves, names))
    targets, others = ({}, {}) if problem is None else _given(problem, dict(zip(names, leaves, strict=True)))
    for name, x in (targets | others).items():  # theta last: what traces one of them may trace what is made of theta
        if trees.is_array(x):
            exchange.check_dense(x, name)
    source = _owner(leaves, names)
    own_dtype = _common_dtype(leaves, names, source)
    to = source if backend is None else backend if isinstance(backend, Backend) else registry.get(backend)
    for module in modules.architectures(theta0):
        if to.name != module.framework:
            raise ProblemError(
                f"a module must be computed with by its own framework, {module.framework}; got backend {to.name}. "
                "Leave backend= out"
            )
    to = to.deterministic() if deterministic else to
    work = own_dtype if dtype is None else named_dtype(dtype)
    if work not in FLOATS:
        raise ProblemError(f"dtype must be 'float32' or 'float64'; got {dtype!r}")
    own = to.name == source.name
    if device is None and problem is not None:
        to = registry.placed(to, to.placement.of(targets, others))
    spread = device is None and to.placement.several
    place = _parsed(to, device) if device is not None else device_of(leaves[0]) if own and not spread else None
    places = tuple((to if own else source).placement.place(x) for x in leaves)
    layout = CallerLayout(source, work, places, treedef, own and spread)
    _check_return_dtype(layout, own_dtype)
    return Destination(leaves, names, to, work, place, layout)


def _given(problem: Problem, theta0: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a user gave, by name: targets, and the rest."""
    prefix = ".lower." if problem.is_separable else "."
    names = [name.removeprefix(prefix).lstrip(".") for name in trees.paths(problem, "")]
    given = dict(zip(names, trees.leaves(problem), strict=True))
    targets: dict[str, Any] = {name: given.pop(name) for name in ("y", "lower.y", "upper.y") if name in given}
    return targets, given | theta0


def _start(x: Any, name: str) -> Any:
    """A leaf of theta0 as an array; whole numbers of Python and NumPy, which name no precision, as doubles."""
    if isinstance(x, float | int) and not isinstance(x, bool):
        return np.asarray(number(x))
    x = exchange.numbers(x, name)
    return np.asarray(x, dtype=np.float64) if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "iu" else x


def _parsed(backend: Backend, device: Any) -> Any:
    try:
        place = exchange.find_device(backend, device)
    except ValueError as error:
        raise ProblemError(str(error)) from error
    try:
        backend.asarray(np.zeros(1, np.float32), device=place)
    except Exception as error:  # a device without a driver: each framework has its own type for this
        reason = str(error).partition("\n")[0]
        raise ProblemError(f"device must be one that {backend.name} can use; got {device!r} ({reason})") from error
    return place


def _owner(leaves: list[Any], names: list[str]) -> Backend:
    if not leaves:
        raise ProblemError(
            "theta0 must hold at least one array; got none. What is fixed in Parameters, or frozen in modules, is not "
            "theta: let one vary"
        )
    owners: dict[str, str] = {}
    for x, name in zip(leaves, names, strict=True):
        owner = registry.of(x)
        if owner is None or not trees.is_array(x):
            advice = ". Of a module pass its parameters, as its init returns them, and call its apply in M"
            advice = advice if hasattr(x, "apply") else ""
            if isinstance(x, type):
                advice = f" {x.__name__}. Pass an object of it, as {x.__name__}(...)"
            elif hasattr(x, "theta0"):
                advice = ". Pass its theta0, and its over as over="
            elif isinstance(x, Iterator):
                advice = ". Of a PyTorch module pass the module itself"
            raise ProblemError(f"{name} must be an array or a number; got {type(x).__name__}{advice}")
        exchange.check_dense(x, name)
        owners.setdefault(owner.name, name)
    if len(owners) > 1:
        found = ", ".join(f"{name} is a {owner} array" for owner, name in owners.items())
        raise ProblemError(f"theta0 must be of one framework; got {found}. Convert all of it to one")
    return registry.get(next(iter(owners)))


def _common_dtype(leaves: list[Any], names: list[str], source: Backend) -> str:
    dtypes: dict[str, str] = {}
    for x, name in zip(leaves, names, strict=True):
        dtypes.setdefault(dtype_name(x), name)
    for dtype, name in dtypes.items():
        if dtype not in FLOATS:
            remedy = "Pass real and imaginary parts as two leaves" if "complex" in dtype else "Convert it"
            raise ProblemError(f"{name} must be float32 or float64; got dtype {dtype}. {remedy}")
    if len(dtypes) > 1:
        found = ", ".join(f"{name} is {dtype}" for dtype, name in dtypes.items())
        raise ProblemError(f"theta0 must be of one dtype; got {found}. Convert all of it to one")
    return next(iter(dtypes))


def _check_return_dtype(layout: CallerLayout, own_dtype: str) -> None:
    """Check that the caller's framework can hold another dtype: JAX rounds float64 while its x64 flag is off."""
    if layout.dtype == own_dtype:
        return
    probe = layout.backend.asarray(np.zeros(1, layout.dtype))
    if dtype_name(probe) != layout.dtype:
        raise ExchangeError(
            f"dtype={layout.dtype!r} must be one that theta0's framework can hold; got theta0 as a {own_dtype} "
            f"{layout.backend.name} array while jax_enable_x64 is off. Turn it on, pass theta0 as a NumPy array, or "
            "omit dtype="
        )
