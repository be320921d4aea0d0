"""The interface of a backend: what the package needs of a framework that the array API standard lacks."""

from __future__ import annotations

import math
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, TypeAlias

import numpy as np

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import map_leaves
from xvarpro.errors import ModelError, ProblemError

Function: TypeAlias = Callable[..., Leaves]  # arrays -> tuple of arrays
Linear: TypeAlias = Callable[[Leaves], Leaves]  # a pull-back, or the map of tangents
Device: TypeAlias = Any  # as the framework spells it
State: TypeAlias = Any  # an array, or any nesting of tuples of arrays; shapes and dtypes do not change


class Placement:
    """Where the arrays of a backend lie, and what depends on it; here each lies on one device.

    Attributes
    ----------
    several : bool
        Whether arrays may be spread over several devices.
    """

    several: ClassVar[bool] = False

    def of(self, targets: Mapping[str, Any], others: Mapping[str, Any]) -> Placement:
        """That of targets and other arrays, by name.

        Raises
        ------
        ProblemError
            They are spread over devices in ways that do not fit together.
        """
        return self

    def place(self, x: Array) -> Any:
        """Where an array lies, as `Backend.asarray` takes it to put another of its shape there."""
        return device(x)

    def concat_rows(self, A: Array, B: Array) -> Array:
        """``[A; B]`` for A (..., m, n), which may be spread over devices, and a B (..., l, n) of few rows."""
        return namespace_of(A).concat([A, B], axis=-2)

    def agree(self, value: float) -> float:
        """A number that differs from process to process, such as the clock, as the first of them has it.

        That is where several processes run one program on arrays that they hold together; else the number itself.
        """
        return value

    def digests(self, x: Array) -> np.ndarray | None:
        """What tells an array that does not lie in one process from another; None of one that does."""
        return None


class Backend(ABC):
    """One array framework: its array-API namespace `xp`, and what the standard lacks.

    No factorisation or solve raises on a singular or indefinite matrix: it returns NaN, which the acceptance tests of
    the solvers reject. All of them take leading batch axes, and a matrix that fails leaves the others of a batch as
    they are.

    Attributes
    ----------
    name : str
        What users pass as ``backend=``.
    roots : tuple of str
        Top-level modules of the framework's array types; the first is the package to import.
    xp : namespace
        The array-API namespace.
    array_types : tuple of types
        Array types that `xp` is the namespace of, whatever their ``__array_namespace__`` returns. Their device is
        ``x.device``, or the first of `devices` where they have none.
    compiled : bool
        Whether `call` and `loop` compile. A copy of a backend with False runs the same functions in Python.
    placement : Placement
        Where arrays lie; `registry.placed` makes a backend for others.
    """

    name: ClassVar[str]
    roots: ClassVar[tuple[str, ...]]
    array_types: ClassVar[tuple[type, ...]] = ()
    compiled: bool = False
    placement: Placement = Placement()

    xp: Any

    # -- exchange ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def asarray(self, x: Any, *, dtype: str | None = None, device: Device = None) -> Array:
        """An array of this framework from one of its own arrays or from a NumPy array; it may share memory."""

    @abstractmethod
    def to_numpy(self, x: Array) -> np.ndarray:
        """The values of an array as a NumPy array of its dtype, which may share memory; an error if NumPy lacks it."""

    @abstractmethod
    def to_floats(self, scalars: Sequence[Array]) -> list[float]:
        """Values of 0-d arrays as numbers, with one synchronisation of the device."""

    def checksum(self, x: Array) -> Any:
        """A number that is another one after `x` was written to; a 0-d array where `x` lies on a device.

        None where nothing writes to arrays of the framework, and of Python objects, of which nothing can be said. Here
        it is that of `to_numpy`: a framework whose arrays are not in the host's memory adds them up where they are.
        """
        host = self.to_numpy(x)
        return None if host.dtype.hasobject else zlib.crc32(host.ravel(order="K").view(np.uint8).data)

    @abstractmethod
    def devices(self) -> dict[str, Device]:
        """Devices that can be used now: names such as ``"cpu"`` or ``"cuda:0"``, and the framework's own objects."""

    def architecture(self, x: object) -> Any:
        """How a module of this framework's is taken apart: an `Architecture` of `backends.modules`; else None."""
        return None

    # -- derivatives -------------------------------------------------------------------------------------------------

    @abstractmethod
    def vjp(self, fun: Function, primals: Leaves, constants: Leaves = ()) -> tuple[Leaves, Linear]:
        """Value of ``fun(*primals, *constants)``, a tuple of arrays, and its pull-back with respect to `primals`.

        The pull-back maps one cotangent for each output, in its shape and dtype, to one gradient for each primal, and
        may be called again. A function that calls `vjp` can be differentiated by `vjp`. The gradient of a real L is
        ``dL/dRe + i dL/dIm`` on every backend.
        """

    def linearise(self, fun: Function, primals: Leaves, constants: Leaves = ()) -> tuple[Leaves, Linear]:
        """Value of ``fun(*primals, *constants)``, and the map from tangents of `primals` to tangents of the outputs.

        The map may be called often; `fun` is evaluated once. Here it is the transpose of the pull-back, which is
        linear: it does not matter where that is recorded.
        """
        outputs, pullback = self.vjp(fun, primals, constants)
        return outputs, self.vjp(lambda *u: pullback(u), outputs)[1]

    def vmap(self, fun: Function, mapped: Leaves, shared: tuple[Any, ...] = ()) -> Leaves:
        """What ``fun(*entries, *shared)`` returns for the entries of `mapped` along the first axis, stacked along one.

        There is one entry or more. Frameworks without such a transformation map entries one by one, as it is done here.
        """
        return one_by_one(fun, mapped, shared, f"{self.name} has no vmap")

    def with_pullback(self, fun: Function, pull: Callable[..., tuple[Array | None, ...]]) -> Function:
        """`fun`, of arrays to a tuple of arrays, with a pull-back of its own for the framework's transformations.

        ``pull(inputs, outputs, cotangents)`` returns one gradient for each input, None for 0; a cotangent that is
        known to be 0 may be None. Gradients are those of `vjp`, and may be differentiated. Here `fun` has none.
        """
        return fun

    # -- linear algebra beyond the standard --------------------------------------------------------------------------

    @abstractmethod
    def qr(self, A: Array, mode: str = "reduced") -> tuple[Array, Array]:
        """Reduced QR factorisation of A (..., m, n): Q (..., m, k) and R (..., k, n) with k = min(m, n).

        With ``mode="r"`` only R is computed, and what comes in the place of Q has no meaning.
        """

    @abstractmethod
    def svd(self, A: Array) -> tuple[Array, Array, Array]:
        """Thin singular value decomposition of A (..., m, n): U (..., m, k), s (..., k), Vh (..., k, n)."""

    @abstractmethod
    def cholesky(self, A: Array) -> Array:
        """Lower Cholesky factor of A (..., n, n), NaN where it is not positive definite."""

    @abstractmethod
    def solve_triangular(self, R: Array, B: Array, *, lower: bool = False, transpose: bool = False) -> Array:
        """Solve ``R X = B``, or ``R^H X = B``, for triangular R (..., n, n) and B (..., n, k)."""

    @abstractmethod
    def sparse_product(self, rows: Array, columns: Array, data: Array, shape: tuple[int, int], w: Array) -> Array:
        """``M w`` for the m x n matrix M with `data` (nnz,) at places (rows, columns), which add up, and w (n, k).

        Differentiable with respect to `data` and `w` where the framework differentiates.
        """

    # -- control flow and compilation --------------------------------------------------------------------------------

    def holds(self, condition: Array, steady: bool = False) -> bool:
        """What a condition is, 0-d, outside of a compiled function: a read of the device, unless that was made.

        A `steady` one seldom changes from step to step of a loop: it may be taken for what it was, and read later.
        """
        return bool(condition)

    @abstractmethod
    def while_loop(
        self, cond: Callable[[State], Array], body: Callable[[State], State], state: State, steady: bool = False
    ) -> State:
        """``while cond(state): state = body(state)``; `steady` as in `holds`."""

    @abstractmethod
    def when(self, condition: Array, fun: Callable[[State], State], state: State, steady: bool = False) -> State:
        """``fun(state) if condition else state``, for a 0-d condition; `steady` as in `holds`."""

    @abstractmethod
    def call(self, make: Callable[[Leaves], Callable[..., Any]], key: Any, once: bool = False) -> Callable[..., Any]:
        """``run(operands, *args) = make(operands)(*args)``, compiled once for each hashable `key` where `compiled`.

        What a solve runs `once` is better compiled in less time than to less time.
        """

    @abstractmethod
    def loop(
        self,
        make: Callable[[Leaves], Callable[[Any], Any]],
        record: Callable[[Any], Leaves],
        running: Callable[[Any], Array],
        key: Any,
    ) -> Callable[[Leaves, Any, int], tuple[Any, list[list[float]]]]:
        """``run(operands, state, n)``: steps ``state = make(operands)(state)`` while ``running(state)``, at most `n`.

        Returns the state and, for each step, the 0-d arrays of ``record(state)`` as numbers. A compiled loop may stop
        before `n` steps, to be called again.
        """

    def program(
        self, fun: Function, primals: tuple[Array, ...], constants: tuple[Array, ...] = (), pure: bool = True
    ) -> tuple[Any, str]:
        """Shapes and dtypes of what `fun` returns, a tuple of arrays, and a name for what is compiled of it, or "".

        It is called as for a derivative, for its errors, and without computing if possible. A compiled function keeps
        the numbers that it finds outside of its arguments: where these have changed, the name is another. With `pure` a
        second call has to give the same, but for rounding in sums of another order.

        Raises
        ------
        ModelError
            It is no pure function: the second call differs, or writes to what is not its own.
        """
        found, _ = self.vjp(fun, primals, constants)
        for x, y in zip(found, fun(*primals, *constants), strict=True) if pure else ():
            if x.shape != y.shape:
                raise impure(f"two calls returned shapes {tuple(x.shape)} and {tuple(y.shape)}")
            if self.xp.isdtype(x.dtype, "integral") or 0 in x.shape:
                continue
            off, size = self.xp.max(self.xp.abs(x - y)), self.xp.max(self.xp.abs(y))
            rounding = 1e4 * self.xp.finfo(off.dtype).eps
            off, size = self.to_floats([off, size])
            if off > rounding * size:
                raise impure(f"two calls returned values that differ by {off:.2g}")
        return found, ""

    # -- numerics ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def scope(self, dtype: str) -> AbstractContextManager[None]:
        """The context of everything that is computed in `dtype`; restores what it changes.

        Inside: full precision of matrix products, float64 where `dtype` asks for it, no recording of the caller's
        graph, no floating-point warnings.
        """

    def deterministic(self) -> Backend:
        """The same framework, whose `scope` gives the same bits from run to run; itself where it does so anyway.

        That is for one version, device and dtype, on one kind of processor with one number of threads. Inside `scope`
        alone the framework is switched to it.

        Raises
        ------
        ProblemError
            The framework has no such mode.
        """
        raise ProblemError(
            f"deterministic=True needs a framework with a deterministic mode, and {self.name} has none: leave it out"
        )

    def nondeterministic_operations(self, device: Device) -> tuple[str, ...]:
        """What `deterministic` does not cover on a device, a sentence each."""
        return ()

    @abstractmethod
    def describe(self) -> dict[str, str | int | bool]:
        """Versions and precision switches, for a result's provenance."""


def select(backend: Backend, condition: Array, a: Any, b: Any) -> Any:
    """``a`` where `condition` holds, else ``b``, in every array of two nested tuples of one structure.

    `condition` is 0-d, or has the leading axes of the arrays: one entry per problem of a batch.
    """
    return either(backend, condition, lambda: a, lambda: b)


def either(backend: Backend, condition: Array, a: Callable[[], Any], b: Callable[[], Any]) -> Any:
    """`select` of what two functions return; outside of compiled loops, where the condition is one, of one of them."""
    xp = backend.xp
    if not backend.compiled and math.prod(condition.shape) == 1:
        return (a if backend.holds(xp.all(condition) if condition.ndim else condition) else b)()

    def where(x: Array, y: Array) -> Array:
        ones = (1,) * (x.ndim - condition.ndim) if condition.ndim else ()
        return xp.where(xp.reshape(condition, (*condition.shape, *ones)) if ones else condition, x, y)

    return map_leaves(where, a(), b())


_loops: ContextVar[list[str] | None] = ContextVar("loops", default=None)


@contextmanager
def loops() -> Iterator[list[str]]:
    """Why functions were mapped by loops inside: filled as that happens."""
    found: list[str] = []
    before = _loops.set(found)
    try:
        yield found
    finally:
        _loops.reset(before)


def one_by_one(fun: Function, mapped: Leaves, shared: tuple[Any, ...], reason: str) -> Leaves:
    """`Backend.vmap` as a loop."""
    entries = zip(*map(_unstacked, mapped), strict=True)
    results = zip(*(fun(*entry, *shared) for entry in entries), strict=True)
    found = _loops.get()
    if found is not None and reason not in found:
        found.append(reason)
    return tuple(namespace_of(*parts).stack(parts) for parts in results)


def _unstacked(x: Array) -> Sequence[Array]:
    unstack = getattr(namespace_of(x), "unstack", None)  # not every library has it; a tape differentiates it at once
    return [x[i, ...] for i in range(x.shape[0])] if unstack is None else unstack(x)


def impure(found: str) -> ModelError:
    """The error for a model that is no pure function."""
    return ModelError(
        f"a model function must be a pure function of (theta, data); got one that is not: {found}. Draw random numbers "
        "beforehand and pass them as `data`, switch layers such as dropout and batch normalisation to evaluation with "
        ".eval(), and keep nothing from one call to the next"
    )


def linalg_errors() -> tuple[type[Exception], ...]:
    """What the linear algebra of the frameworks in use raises on a singular or indefinite matrix."""
    torch = sys.modules.get("torch")
    return (np.linalg.LinAlgError,) if torch is None else (np.linalg.LinAlgError, torch.linalg.LinAlgError)
