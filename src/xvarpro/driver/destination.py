"""Where a solve computes, and the framework, dtype and devices in which its results are returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from xvarpro import backends
from xvarpro.backends import Backend, exchange, modules
from xvarpro.core import trees
from xvarpro.core.checks import number
from xvarpro.core.namespace import copied, dtype_name, named_dtype
from xvarpro.core.namespace import device as device_of
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.transfer import FLOATS
from xvarpro.errors import ExchangeError, ProblemError
from xvarpro.problem.problem import Problem


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
    theta0 = modules.taken(theta0)
    leaves, names, treedef = trees.named(theta0, whole=(list, tuple))
    leaves = list(map(_start, leaves, names))
    source = _owner(leaves, names)
    own_dtype = _common_dtype(leaves, names, source)
    to = source if backend is None else backend if isinstance(backend, Backend) else backends.get(backend)
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
        to = backends.placed(to, to.placement.of(*_given(problem, dict(zip(names, leaves, strict=True)))))
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
        owner = backends.of(x)
        if owner is None or not trees.is_array(x):
            raise ProblemError(f"{name} must be an array or a number; got {type(x).__name__}")
        exchange.check_dense(x, name)
        owners.setdefault(owner.name, name)
    if len(owners) > 1:
        found = ", ".join(f"{name} is a {owner} array" for owner, name in owners.items())
        raise ProblemError(f"theta0 must be of one framework; got {found}. Convert all of it to one")
    return backends.get(next(iter(owners)))


def _common_dtype(leaves: list[Any], names: list[str], source: Backend) -> str:
    dtypes: dict[str, str] = {}
    for x, name in zip(leaves, names, strict=True):
        dtypes.setdefault(dtype_name(x), name)
    for dtype, name in dtypes.items():
        if dtype not in FLOATS:
            raise ProblemError(f"{name} must be float32 or float64; got dtype {dtype}. Convert it")
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
