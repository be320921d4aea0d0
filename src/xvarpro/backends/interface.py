"""What a backend adds to its array-API namespace, and nothing more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeAlias

import numpy as np

from xvarpro.errors import ProblemError, UnsupportedError

Array: TypeAlias = Any
Pullback: TypeAlias = Callable[[tuple[Array, ...]], tuple[Array, ...]]
Pushforward: TypeAlias = Callable[[tuple[Array, ...]], tuple[Array, ...]]


class Backend(ABC):
    """One array framework.

    `xp` is its array-API namespace. None of the linear-algebra members raises on a singular or indefinite matrix: the
    failure shows as NaN, which the solver's acceptance tests reject. All of them take leading batch axes, and a matrix
    that fails leaves its neighbours as they are.
    """

    name: ClassVar[str]
    package: ClassVar[str]  # the importable package that has to be there
    roots: ClassVar[tuple[str, ...]]  # top-level modules of its array types
    extra: ClassVar[str | None] = None  # the optional dependency that installs it, None for a test backend
    autodiff: ClassVar[str]  # where derivatives come from
    compiled: bool = False  # whether whole loops are compiled
    reproducible: bool = False  # whether `scope` holds the framework to the same bits from run to run
    digits: ClassVar[float] = 1.0  # the relative error of `differential`, as a power of eps
    failures: tuple[type[Exception], ...] = ()  # what the framework's own linear algebra raises on a singular matrix
    array_types: tuple[type, ...] = ()  # of arrays that do not know of `xp`, or not where they are, by themselves
    exemptions: tuple[Any, ...] = ()  # a plugin's `xvarpro.conformance.Exemption`s: where it is less exact, and why

    xp: Any

    # -- arrays ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> Array:
        """An array of this framework from one of its own arrays or from a NumPy array; may share memory."""

    @abstractmethod
    def to_numpy(self, x: Array) -> np.ndarray:
        """The same values as a NumPy array on the host; may share memory. The dtype is kept or an error raised."""

    @abstractmethod
    def to_floats(self, scalars: Sequence[Array]) -> list[float]:
        """Read 0-d arrays on the host with one synchronisation."""

    @abstractmethod
    def device_of(self, x: Array) -> Any:
        """Device of an array, as the framework spells it."""

    @abstractmethod
    def parse_device(self, device: Any) -> Any:
        """Framework device from a string such as ``"cpu"`` or ``"cuda:0"``; its own objects pass through."""

    @abstractmethod
    def devices(self) -> list[str]:
        """Devices that can be used now."""

    def address(self, x: Array) -> int:
        """Where the entries of an array begin in memory: a copy has another address than what it was made from."""
        return int(self.to_numpy(x).__array_interface__["data"][0])

    def awkward(self) -> dict[str, Callable[[], tuple[Array, np.ndarray]]]:
        """Arrays that are not plain, as users of this framework hand them over: by name, what makes one of them.

        Each comes with its values. The conformance suite moves them to every backend and back.
        """
        return {}

    def state(self) -> dict[str, Any]:
        """Settings of the framework that are the caller's: whatever this package does leaves them as they are."""
        return {}

    def dtype(self, name: str) -> Any:
        """Framework dtype by its standard name; `UnsupportedError` for one that it lacks."""
        found = getattr(self.xp, name, None)
        if found is None:
            raise UnsupportedError(f"{self.name} has no dtype {name!r}: there is no {self.xp.__name__}.{name}")
        return found

    def dtype_name(self, x: Array) -> str:
        """Standard name of an array's dtype."""
        return str(x.dtype).rsplit(".", maxsplit=1)[-1]

    # -- calculus ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def vjp(
        self, fun: Callable[..., tuple[Array, ...]], primals: tuple[Array, ...], constants: tuple[Array, ...] = ()
    ) -> tuple[tuple[Array, ...], Pullback]:
        """Value of ``fun(*primals, *constants)``, a tuple of arrays, and its pull-back with respect to `primals`.

        The pull-back maps one cotangent per output to one gradient per primal and may be called once. Complex gradients
        are ``dL/dRe + i dL/dIm`` on every backend.
        """

    @abstractmethod
    def jvp(
        self,
        fun: Callable[..., tuple[Array, ...]],
        primals: tuple[Array, ...],
        tangents: tuple[Array, ...],
        constants: tuple[Array, ...] = (),
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Value of ``fun(*primals, *constants)`` and its derivative along `tangents`."""

    def linearise(
        self, fun: Callable[..., tuple[Array, ...]], primals: tuple[Array, ...], constants: tuple[Array, ...] = ()
    ) -> tuple[tuple[Array, ...], Pushforward]:
        """Value of ``fun(*primals, *constants)``, and the map from tangents of `primals` to tangents of the outputs.

        The map may be called often: `fun` is evaluated once where the framework can.
        """
        zeros = tuple(self.xp.zeros_like(x) for x in primals)
        return self.jvp(fun, primals, zeros, constants)[0], lambda v: self.jvp(fun, primals, v, constants)[1]

    def differential(self, fun: Callable[[Array], Array], x: Array) -> Callable[[Array], Array]:
        """The derivative of a function that may call members of this class, loops among them: d -> ``dfun(x) d``."""
        _, push = self.linearise(lambda x: (fun(x),), (x,))
        return lambda d: push((d,))[0]

    def curvature(
        self, fun: Callable[..., Array], primals: tuple[Array, ...], constants: tuple[Array, ...] = ()
    ) -> tuple[tuple[Array, ...], Pushforward]:
        """Gradient of a real ``fun(*primals, *constants)``, 0-d, and the product of its Hessian with tangents.

        The product may be called often: `fun` is evaluated once where the framework can. This text is for frameworks
        whose `linearise` takes a function that calls `vjp`.
        """

        def gradient(*primals: Array) -> tuple[Array, ...]:
            (value,), pullback = self.vjp(lambda *x: (fun(*x, *constants),), primals)
            return pullback((self.xp.ones_like(value),))

        return self.linearise(gradient, primals)

    # -- linear algebra beyond the standard --------------------------------------------------------------------------

    @abstractmethod
    def qr(self, A: Array) -> tuple[Array, Array]:
        """Reduced QR factorisation."""

    @abstractmethod
    def qr_r(self, A: Array) -> Array:
        """The triangular factor of a reduced QR factorisation alone."""

    @abstractmethod
    def svd(self, A: Array) -> tuple[Array, Array, Array]:
        """Thin singular value decomposition ``U, s, Vh``."""

    @abstractmethod
    def cholesky(self, A: Array) -> Array:
        """Lower Cholesky factor, NaN where `A` is not positive definite."""

    @abstractmethod
    def solve_triangular(self, R: Array, B: Array, *, lower: bool = False, transpose: bool = False) -> Array:
        """Solve ``R X = B`` (or ``R^H X = B``, conjugated) for triangular `R` and a matrix `B`."""

    @abstractmethod
    def sparse_product(self, rows: Array, columns: Array, data: Array, shape: tuple[int, int], w: Array) -> Array:
        """``M w`` for the m x n matrix with `data` at ``(rows, columns)``, places that repeat added up.

        Differentiable with respect to `data` and `w` where the framework differentiates.
        """

    # -- control flow ------------------------------------------------------------------------------------------------

    @abstractmethod
    def while_loop(self, cond: Callable[[Any], Array], body: Callable[[Any], Any], state: Any) -> Any:
        """``while cond(state): state = body(state)`` for states of fixed shape."""

    def settle(
        self, running: Callable[[Any], Array], advance: Callable[[Any, Any], Any], state: Any, given: Any
    ) -> Any:
        """``state = advance(state, given)`` for every column by itself, while ``running(state)``, (k,) of bool, holds.

        `state` and `given` are nested tuples of arrays with k as their last axis. Columns that have ended take part or
        not, as the framework likes: `advance` leaves them as they are, but for what nobody reads.
        """
        return self.while_loop(lambda state: self.xp.any(running(state)), lambda state: advance(state, given), state)

    @abstractmethod
    def when(self, condition: Array, fun: Callable[[Any], Any], state: Any) -> Any:
        """``fun(state) if condition else state`` for states of fixed shape. Compiled, it costs less than a loop."""

    def uncompiled(self) -> Backend:
        """The same framework with loops that run in Python: around a function that reads from a disk, say."""
        return self

    def trace(self, fun: Callable[..., Any], *args: Array) -> Any:
        """Call `fun` for its shapes and its errors; a framework that can does so without computing."""
        return fun(*args)

    @abstractmethod
    def call(self, make: Callable[[tuple[Array, ...]], Callable[..., Any]], key: Any) -> Callable[..., Any]:
        """``run(operands, *args) = make(operands)(*args)``, compiled once per `key` where the framework compiles."""

    @abstractmethod
    def loop(
        self,
        make: Callable[[tuple[Array, ...]], Callable[[Any], Any]],
        record: Callable[[Any], tuple[Array, ...]],
        running: Callable[[Any], Array],
        key: Any,
    ) -> Callable[[tuple[Array, ...], Any, int], tuple[Any, list[list[float]]]]:
        """``run(operands, state, n)``: up to `n` steps of ``make(operands)`` while ``running(state)``.

        Returns the state and one row of `record` per step taken. At most `chunk` steps are done per call.
        """

    chunk: int = 1  # the most steps that one call of a loop takes

    def embedded(self) -> Backend:
        """The same framework, inside a function that the caller compiles, differentiates or maps over a batch."""
        return self

    def report(self, fun: Callable[..., None], *scalars: Array) -> None:
        """Call `fun` on the host with 0-d arrays as numbers, for what it says; later, where they are known later."""
        fun(*self.to_floats(scalars))

    # -- numerics ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def scope(self, dtype: str) -> AbstractContextManager[None]:
        """Everything this package computes runs inside: full matmul precision, float64 where asked for, no recording
        of the caller's graph, no floating-point warnings. Restores what it changed.
        """

    def deterministic(self) -> Backend:
        """The same framework, whose `scope` holds it to the same bits from run to run.

        That is for one version, device and dtype, on one kind of processor with one number of threads. What it takes is
        in force inside `scope` alone.

        Raises
        ------
        ProblemError
            The framework cannot be held to that.
        """
        if self.reproducible:
            return self
        raise ProblemError(f"the {self.name} backend has no deterministic mode: leave out deterministic=True")

    def unpromised(self, device: Any) -> tuple[str, ...]:
        """What `deterministic` does not cover on that device, a sentence each."""
        return ()

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Versions and precision switches, for a result's provenance."""
