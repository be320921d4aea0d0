"""Checks: where they run, the cases that they run on, and the comparisons that they make."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from xvarpro.backends import Backend, adapters, exchange
from xvarpro.backends import get as backend_of_name
from xvarpro.core import trees
from xvarpro.core.namespace import dtype_name
from xvarpro.core.struct import Array, Tree

# in the order in which they build on each other: what fails first explains what fails after it
AREAS = (
    "exchange",
    "derivatives",
    "control flow",
    "factorisations",
    "numerics scope",
    "sets",
    "steps",
    "operators",
    "lower level",
    "reduced gradient",
    "solves",
    "results",
    "paper",
    "distributed",
)


class Inapplicable(Exception):  # noqa: N818 - an outcome, not an error
    """Raised by a check that does not apply to a target; the message is the reason."""


class LeftOut(Inapplicable):
    """Raised where a case applies and was not asked for: others stand for it, and it takes long."""


class Typed(NamedTuple):
    """Values on the host, in double precision, and the dtypes that they came in."""

    values: tuple[np.ndarray, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """A backend on a device, in one precision.

    Attributes
    ----------
    backend : Backend
    device : str
    dtype : str
        ``"float64"`` or ``"float32"``.
    thorough : bool
        Whether every example is compiled; by default one represents its class, in one precision.
    """

    backend: Backend
    device: str
    dtype: str
    thorough: bool = False
    _compiled: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    _known: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.backend.name} {self.device} {self.dtype}"

    @property
    def eps(self) -> float:
        """Machine epsilon of the precision."""
        return float(np.finfo(self.dtype).eps)

    @property
    def complex_dtype(self) -> str:
        return {"float64": "complex128", "float32": "complex64"}[self.dtype]

    @cached_property
    def place(self) -> Any:
        """The device as the framework spells it."""
        return exchange.find_device(self.backend, self.device)

    def scope(self) -> AbstractContextManager[None]:
        """The backend's numerics scope: arrays are made and used inside."""
        return self.backend.scope(self.dtype)

    def send(self, x: np.ndarray) -> Array:
        """A NumPy array on the target: floats in its precision, everything else in its own dtype."""
        x = np.asarray(x)
        dtype = x.dtype.name
        if x.dtype.kind in "fc":
            dtype = self.complex_dtype if x.dtype.kind == "c" else self.dtype
        # UnsupportedError where the framework has none: the case does not apply
        adapters.find_dtype(self.backend.xp, dtype)
        return self.backend.asarray(np.array(x), dtype=dtype, device=self.place)

    def send_tree(self, tree: Tree) -> Tree:
        """Every array in a tree, a set, an operator or a problem."""
        return trees.map_arrays(self.send, tree)

    def host(self, x: Array) -> np.ndarray:
        """A NumPy array in double precision, integers and booleans as they are."""
        y = np.array(self.backend.to_numpy(x))
        return y.astype({"f": np.float64, "c": np.complex128}.get(y.dtype.kind, y.dtype))

    def held(self, x: np.ndarray) -> np.ndarray:
        """A NumPy array as the target holds it: rounded to its precision."""
        with self.scope():
            return self.host(self.send(x))

    def compute(self, fun: Callable[..., Any], *args: Tree) -> Any:
        """``fun(*args)`` of trees of NumPy arrays, computed on the target: one array or a tuple of them, on the host.

        Runs as it would inside a solve, compiled where the backend compiles. `fun` sees arrays of the framework.
        """
        with self.scope():
            return self._returned(self.call(fun, *(self.send_tree(x) for x in args)))

    def typed(self, fun: Callable[..., Any], *args: Tree) -> Typed:
        """As `compute`, always a tuple, with the dtypes that the framework's arrays had."""
        with self.scope():
            out = self.call(fun, *(self.send_tree(x) for x in args))
            out = out if isinstance(out, tuple) else (out,)
            return Typed(self._returned(out), tuple(dtype_name(x) for x in out))

    def call(self, fun: Callable[..., Any], *args: Tree) -> Any:
        """As `compute`, for arguments that are on the target already, and with a result that stays there."""
        operands, skeleton = trees.partition(args)
        key = (fun, skeleton)
        if key not in self._compiled:  # keeps `fun` alive for as long as its identity is a key
            self._compiled[key] = self.backend.call(lambda arrays: lambda: fun(*skeleton.fill(arrays)), key)
        return self._compiled[key](operands)

    def _returned(self, out: Array | tuple[Array, ...]) -> Any:
        return tuple(self.host(x) for x in out) if isinstance(out, tuple) else self.host(out)

    def once(self, fun: Callable[..., Any], *given: object) -> Any:
        """``fun(self, *given)``, computed once in a run: what several checks of one case look at."""
        key = (fun, *given)
        if key not in self._known:
            self._known[key] = fun(self, *given)
            self._compiled.clear()  # hundreds of programs that are not called again are gigabytes
        return self._known[key]

    def represent(self, turn: tuple[str, ...]) -> None:
        """Raise `LeftOut` where each example would be compiled, for seconds, and it is not the turn of this one.

        `turn` are the precisions in which this example represents its class: parameters change little in a program.
        """
        if self.backend.compiled and not self.thorough and self.dtype not in turn:
            raise LeftOut("not compiled in this precision: other examples of its class are; --thorough compiles it")

    def forget(self) -> None:
        """Drop compiled programs and what `once` computed."""
        self._compiled.clear()
        self._known.clear()

    @cached_property
    def eager(self) -> Target:
        """The same target op by op, as outside of a solve: itself where nothing is compiled."""
        plain = adapters.uncompiled(self.backend)
        return self if plain is self.backend else replace(self, backend=plain, _compiled={}, _known={})


NUMPY = Target(backend_of_name("numpy"), "cpu", "float64")  # what every target is compared with


@dataclass(frozen=True)
class Measured:
    """One comparison.

    Attributes
    ----------
    what : str
        What was compared.
    got, want : array or anything that compares with ``==``
        What the target gave, and what is right.
    tolerance : float
        The largest error allowed, relative to `scale`; 0 for what has to be equal, and for what is no number.
    scale : float, optional
        What the error is relative to; by default the norm of `want`.
    """

    what: str
    got: Any
    want: Any
    tolerance: float = 0.0
    scale: float | None = None

    @cached_property
    def difference(self) -> np.ndarray | None:
        """Absolute difference of every entry, 0 where both are NaN; None where there are no two arrays of one shape."""
        if not all(isinstance(x, (np.ndarray, np.generic, int, float, complex)) for x in (self.got, self.want)):
            return None
        got, want = np.asarray(self.got), np.asarray(self.want)
        if got.shape != want.shape:
            return None
        signed = np.result_type(got, want, np.int8)  # booleans have no difference, unsigned numbers a wrong one
        with np.errstate(all="ignore"):
            same = (got == want) | (np.isnan(got) & np.isnan(want))
            return np.where(same, 0.0, np.abs(np.subtract(got, want, dtype=signed)))

    @cached_property
    def error(self) -> float:
        """Norm of the difference relative to the scale; inf where shapes differ or one is finite and the other not."""
        if self.difference is None:
            arrays = any(isinstance(x, np.ndarray) for x in (self.got, self.want))
            return 0.0 if not arrays and self.got == self.want else float("inf")
        with np.errstate(all="ignore"):
            gap = float(np.linalg.norm(self.difference))
            want = np.asarray(self.want)  # what is infinite makes no error of the rest small
            scale = float(np.linalg.norm(want[np.isfinite(want)])) if self.scale is None else self.scale
            error = gap / scale if gap and scale else gap
        return error if np.isfinite(error) else float("inf")

    @property
    def units(self) -> float:
        """The error in units of the tolerance: passed at 1 and below."""
        if self.error == 0.0:
            return 0.0
        return self.error / self.tolerance if self.tolerance else float("inf")


@dataclass(frozen=True)
class Check:
    """One statement about every backend, with the cases that it is checked on.

    Attributes
    ----------
    area, name : str
    fun : callable
        ``fun(target, case)`` yields `Measured`; it raises `Inapplicable` where it does not apply.
    cases : callable
        Without arguments, to a mapping from the name of a case to what `fun` is given.
    dtypes : tuple of str
        The precisions that it applies to.
    """

    area: str
    name: str
    fun: Callable[[Target, Any], Iterable[Measured]]
    cases: Callable[[], Mapping[str, Any]]
    dtypes: tuple[str, ...]

    @property
    def says(self) -> str:
        """The statement: the first line of the function's docstring."""
        return (self.fun.__doc__ or "").strip().partition("\n")[0]


CHECKS: list[Check] = []


def check(
    area: str,
    cases: Callable[[], Mapping[str, Any]] | None = None,
    dtypes: tuple[str, ...] = ("float64", "float32"),
) -> Callable[[Callable[[Target, Any], Iterable[Measured]]], Callable[[Target, Any], Iterable[Measured]]]:
    """Enter a function into the suite, under its own name with spaces for underscores."""
    assert area in AREAS

    def enter(fun: Callable[[Target, Any], Iterable[Measured]]) -> Callable[[Target, Any], Iterable[Measured]]:
        name = fun.__name__.replace("_", " ")
        CHECKS.append(Check(area, name, fun, cases or (lambda: {"": None}), dtypes))
        return fun

    return enter


def alternate(position: int) -> tuple[str, ...]:
    """The precision in which something is compiled that has no other examples: one thing in double, the next in single.

    Examples
    --------
    >>> [alternate(i) for i in range(3)]
    [('float64',), ('float32',), ('float64',)]
    """
    return ("float32",) if position % 2 else ("float64",)


def exported(module: ModuleType, kind: type) -> list[Any]:
    """Concrete classes of a kind that a module exports: an extension is found by its export."""
    found = (getattr(module, name) for name in module.__all__)
    return [x for x in found if inspect.isclass(x) and issubclass(x, kind) and not inspect.isabstract(x)]


def every() -> Iterator[Check]:
    """The whole suite, area by area."""
    from xvarpro_conformance import checks

    for module in pkgutil.iter_modules(checks.__path__):
        importlib.import_module(f"{checks.__name__}.{module.name}")
    yield from sorted(CHECKS, key=lambda c: AREAS.index(c.area))
