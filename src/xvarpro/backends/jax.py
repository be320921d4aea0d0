"""JAX: whole loops compiled, one compilation per problem structure."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as xp
import numpy as np
from jax import Array

from xvarpro.backends import jax_modules, jax_sharding
from xvarpro.backends.eager import EagerBackend
from xvarpro.backends.forks import refuse_fork
from xvarpro.backends.interface import Function, Linear, Placement, State, impure
from xvarpro.backends.modules import Architecture
from xvarpro.backends.special import BORDER, continued_fraction, derivative
from xvarpro.backends.transformations import Curve, Slope, Transforming, implicit_root
from xvarpro.core.namespace import COMPILED

STEPS = 1024  # of a compiled loop per call: the rows of its record
KEPT = 64  # compiled functions held at a time
SHAPES = 16  # programs of each: one for every combination of shapes
SMALL = 2**16  # entries of all arrays of a loop, up to which it is compiled in less time to code that may be slower

COMPILED.add(xp)
_looking_up = threading.Lock()
_started = os.getpid()
_WAYS = ("", "_host_to_device", "_device_to_device", "_device_to_host")  # of transfers that JAX can refuse


class JaxBackend(Transforming, EagerBackend):
    """JAX.

    Parameters
    ----------
    compiled : bool
        False runs every operation by itself, for debugging: the same iterates, far slower.
    inner : bool
        Whether compiled functions are parts of a larger one, which is the caller's to compile.
    reproducible : bool
        Whether loops are compiled to give the same bits on a GPU from run to run; `deterministic` makes such a backend.
    """

    name = "jax"
    roots = ("jax", "jaxlib")
    xp = xp
    placement: Placement = jax_sharding.OneDevice()

    def __init__(self, compiled: bool = True, reproducible: bool = False, inner: bool = False) -> None:
        self.compiled, self.reproducible, self.inner = compiled, reproducible, inner
        self._cache: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
        self._programs: set[str] = set()  # names of those that were traced twice

    # -- arrays

    def asarray(self, x: Any, *, dtype: str | None = None, device: Any = None) -> Array:
        if dtype is not None and _is_half_on_host(x):
            x = np.asarray(x).astype(dtype)  # XLA has no code for the conversion on processors without AVX
        if not isinstance(x, jax.Array):
            # a copy: the caller may write to the memory. jnp.asarray would make one too, and compile it for every shape
            x = np.asarray(x)
            x = jax.device_put(np.array(x, dtype=x.dtype.newbyteorder("="), copy=True, order="C"))
        if device is None and self._over is not None:
            x = self._over.put(x)
        if dtype is not None and x.dtype != (held := jax.dtypes.canonicalize_dtype(dtype)):  # float32 without x64
            x = x.astype(held)
        if device is None or (not isinstance(x, jax.core.Tracer) and x.devices() == {device}):
            return x  # a put would tie it to the device: what is compiled for others would be compiled again
        return jax.device_put(x, device)

    @property
    def _over(self) -> jax_sharding.Spread | None:
        """The devices over which arrays are spread."""
        return self.placement if isinstance(self.placement, jax_sharding.Spread) else None

    def to_numpy(self, x: Array) -> np.ndarray:
        return jax_sharding.host(x)

    def checksum(self, x: Array) -> None:
        return None  # nothing writes to its arrays

    def to_floats(self, scalars: Sequence[Array]) -> list[float]:
        for x in scalars:
            x.copy_to_host_async()  # all at once; `jax.device_get` would do the same, and look for nested trees
        return [float(np.asarray(x)) for x in scalars]

    def devices(self) -> dict[str, Any]:
        found = [*jax.devices(), *(jax.devices("cpu") if jax.default_backend() != "cpu" else [])]
        return {_device_name(d): d for d in found}

    def architecture(self, x: object) -> Architecture | None:
        return jax_modules.architecture(x)

    # -- derivatives. JAX conjugates complex gradients; this package does not.

    def vjp(self, fun: Function, primals: tuple[Array, ...], constants: tuple[Array, ...] = ()) -> tuple[Any, Linear]:
        outputs, pull = jax.vjp(lambda *theta: fun(*theta, *constants), *primals)

        def seed(c: Array) -> Any:
            # JAX takes an array of float0 for the cotangent of an integer
            return xp.conj(c) if xp.issubdtype(c.dtype, xp.inexact) else np.zeros(c.shape, jax.dtypes.float0)

        def pullback(cotangents: tuple[Array, ...]) -> tuple[Array, ...]:
            return tuple(xp.conj(g) for g in pull(tuple(seed(c) for c in cotangents)))

        return outputs, pullback

    def linearise(
        self, fun: Function, primals: tuple[Array, ...], constants: tuple[Array, ...] = ()
    ) -> tuple[Any, Linear]:
        def moving(*theta: Array) -> Any:
            return fun(*theta, *constants)

        outputs, push = jax.linearize(moving, *primals)
        # a function of `jax.custom_vjp` has a derivative in reverse alone, of which tangents are the derivative
        if "custom_lin" in str(jax.make_jaxpr(push)(*primals)):
            outputs, pull = jax.vjp(moving, *primals)
            _, transposed = jax.vjp(pull, jax.tree.map(xp.zeros_like, outputs))
            return outputs, lambda tangents: transposed(tuple(tangents))[0]
        return outputs, lambda tangents: push(*tangents)

    def push(self, fun: Callable[[Array], Array], x: Array, d: Array) -> Array:
        return jax.jvp(fun, (x,), (d,))[1]

    def implicit(self, fun: Curve, t: Array) -> Array:
        return implicit_root(fun, t, jax.lax.stop_gradient)

    def with_derivative(self, fun: Callable[[Array], Array], slope: Slope, x: Array) -> Array:
        if not isinstance(x, jax.core.Tracer):
            return fun(x)
        ruled = jax.custom_jvp(fun)
        ruled.defjvp(lambda primals, tangents: (ruled(*primals), slope(*primals)(*tangents)))
        return ruled(x)

    def vmap(self, fun: Function, mapped: tuple[Array, ...], shared: tuple[Any, ...] = ()) -> tuple[Array, ...]:
        return jax.vmap(lambda *x: fun(*x, *shared))(*mapped)

    def with_pullback(self, fun: Function, pull: Callable[..., tuple[Array | None, ...]]) -> Function:
        run: Any = jax.custom_vjp(fun)

        def forward(*inputs: Any) -> tuple[Any, Any]:
            values = tuple(x.value for x in inputs)
            outputs = run(*values)
            return outputs, (values, outputs)

        def backward(saved: Any, cotangents: tuple[Any, ...]) -> tuple[Array | None, ...]:
            zero = jax.custom_derivatives.SymbolicZero
            bars = tuple(None if isinstance(c, zero) else xp.conj(c) for c in cotangents)
            with jax.default_matmul_precision("highest"):
                return tuple(None if g is None else xp.conj(g) for g in pull(*saved, bars))

        run.defvjp(forward, backward, symbolic_zeros=True)
        return run

    # -- linear algebra

    def qr(self, A: Array, mode: str = "reduced") -> tuple[Array, Array]:
        by_parts = jax_sharding.qr(A, mode, self._over)
        if by_parts is not None:
            return by_parts
        if mode == "r":
            return A, xp.linalg.qr(A, mode="r")
        Q, R = xp.linalg.qr(A)
        return Q, R

    def svd(self, A: Array) -> tuple[Array, Array, Array]:
        if (by_parts := jax_sharding.qr(A, "reduced", self._over)) is not None:
            Q, R = by_parts
            U, s, Vh = self.svd(R)
            return Q @ U, s, Vh
        # LAPACK's SVD may never return from an inf; from NaN it does
        finite = xp.all(xp.isfinite(A), axis=(-2, -1), keepdims=True)
        U, s, Vh = jax.lax.linalg.svd(xp.where(finite, A, xp.nan), full_matrices=False, algorithm=_svd_method(A.ndim))
        return U, s, Vh

    def cholesky(self, A: Array) -> Array:
        return xp.linalg.cholesky(A, symmetrize_input=False)

    def solve_triangular(self, R: Array, B: Array, *, lower: bool = False, transpose: bool = False) -> Array:
        solve = partial(jax.scipy.linalg.solve_triangular, lower=lower, trans=2 if transpose else 0)
        by_parts = None if self._over is None else jax_sharding.solve_columns(solve, R, B, self._over)
        return solve(R, B) if by_parts is None else by_parts

    def sparse_product(self, rows: Array, columns: Array, data: Array, shape: tuple[int, int], w: Array) -> Array:
        from jax.experimental.sparse import BCOO  # slow to import, and few use it

        return BCOO((data, xp.stack([rows, columns], axis=1)), shape=shape) @ w

    def special(self, x: Array, name: str, n: int) -> Array:
        return _special(x, name, n)

    # -- control flow

    # Of a call outside of a compiled function, as a set's projection by itself, only single operations are compiled:
    # `jax.lax` would compile the loop anew for every call, since its body is a new function each time.

    def while_loop(
        self, cond: Callable[[State], Array], body: Callable[[State], State], state: State, steady: bool = False
    ) -> State:
        if not _tracing():
            # of a function that is mapped the condition may have a value until what is mapped has entered it
            while not isinstance(going := cond(state), jax.core.Tracer):
                if not going:
                    return state
                state = body(state)
        return jax.lax.while_loop(cond, body, state)

    def when(self, condition: Array, fun: Callable[[State], State], state: State, steady: bool = False) -> State:
        if _tracing() or isinstance(condition, jax.core.Tracer):
            return jax.lax.cond(condition, fun, lambda x: x, state)
        return super().when(condition, fun, state, steady)

    def _compile(self, fun: Callable[..., Any], key: object, once: bool = False, small: bool = False) -> Any:
        """`fun` jitted, or the function jitted earlier under an equal key: a fresh closure would compile again."""
        if not self.compiled:
            return fun
        # only the outermost function takes options
        options = None if self.inner else _options(self.reproducible, once, small) or None
        key = key, self.placement
        with _looking_up:  # it compiles when it is called, outside
            found: Any = self._cache.pop(key, None) or jax.jit(fun, compiler_options=options)
            if found._cache_size() >= SHAPES:
                found.clear_cache()  # megabytes for each: solves of ever other sizes would take all memory
            self._cache[key] = found  # the latest at the end
            if len(self._cache) > KEPT:
                self._cache.popitem(last=False)
        return found

    def embedded(self) -> JaxBackend:
        """The backend inside a function that the caller compiles, differentiates or maps over a batch."""
        return _embedded()

    def program(
        self, fun: Function, primals: tuple[Array, ...], constants: tuple[Array, ...] = (), pure: bool = True
    ) -> tuple[Any, str]:
        def trace() -> tuple[Any, str]:  # JAX keeps traces by function, so that each is of its own
            made, shapes = jax.make_jaxpr(lambda *x: fun(*x), return_shape=True)(*primals, *constants)
            text = re.sub(r"0x[0-9a-f]+", "", str(made.jaxpr))
            return shapes, _digest(text.encode(), *map(_bytes, made.consts))

        shapes, name = trace()
        if name in self._programs:
            return shapes, name
        if pure:
            # what is compiled is a trace: two of them must be one program, with the same constants; the first may look
            # different, since JAX keeps the inner functions that it meets there
            first, (_, name) = name, trace()
            if name != first and trace()[1] != name:
                raise impure("two traces of it are different programs")
        jax.eval_shape(lambda *theta: self.vjp(fun, theta, constants)[0], *primals)  # for its errors
        if pure:
            self._programs.add(name)
        return shapes, name

    def call(
        self, make: Callable[[tuple[Array, ...]], Callable[..., Any]], key: object, once: bool = False
    ) -> Callable[..., Any]:
        def run(operands: tuple[Array, ...], *args: Any) -> Any:
            return make(operands)(*args)

        return run if _tracing() else self._compile(run, key, once)  # the caller compiles what is traced

    def loop(
        self,
        make: Callable[[tuple[Array, ...]], Callable[[Any], Any]],
        record: Callable[[Any], tuple[Array, ...]],
        running: Callable[[Any], Array],
        key: object,
    ) -> Callable[[tuple[Array, ...], Any, int], tuple[Any, list[list[float]]]]:
        places: Any = None

        def iterate(operands: tuple[Array, ...], state: Any, n: Array) -> Any:
            step = make(operands)
            width = len(jax.eval_shape(record, state))
            rows = xp.zeros((STEPS, width), dtype=state.iterate.value.dtype)

            def body(carry: Any) -> Any:
                i, state, rows = carry
                state = step(state)
                row = xp.stack([x.astype(rows.dtype) for x in record(state)])
                return i + 1, state, rows.at[i].set(row)

            found = self.while_loop(
                lambda carry: (carry[0] < n) & running(carry[1]), body, (xp.asarray(0, xp.int32), state, rows)
            )
            # another placement of the state would be another program in the next call
            return found if self._over is None else jax.lax.with_sharding_constraint(found, places)

        compiled: Any = None

        def run(operands: tuple[Array, ...], state: Any, n: int) -> tuple[Any, list[list[float]]]:
            nonlocal compiled, places
            if compiled is None:
                small = sum(map(np.size, jax.tree.leaves((operands, state)))) <= SMALL
                if self._over is not None:
                    whole = self._over.keep(None)  # of numbers that all devices have
                    places = whole, jax.tree.map(self._over.keep, state), whole
                kept = tuple(jax.tree.leaves(places))
                compiled = self._compile(iterate, (key, small, kept), small=small)
            # NumPy at both ends: a scalar or a slice of JAX's is one more dispatch, as long as a small step
            done, state, rows = compiled(operands, state, np.int32(min(n, STEPS)))
            return state, np.asarray(rows)[: np.asarray(done)].astype(np.float64).tolist()

        return run

    # -- numerics

    @contextmanager
    def scope(self, dtype: str) -> Iterator[None]:
        refuse_fork("JAX", _started)
        # per-thread and part of JAX's compilation key; the global flags stay as the caller has them
        x64 = jax.enable_x64(dtype == "float64" or jax.config.jax_enable_x64)
        # new arrays go where the others are, whatever mesh the caller has set
        mesh = nullcontext() if self._over is None or self.inner else jax.set_mesh(self._over.mesh)
        with x64, jax.default_matmul_precision("highest"), _no_alarms(), mesh:
            yield

    def deterministic(self) -> JaxBackend:
        return self if self.reproducible else _reproducible(self.compiled)

    def nondeterministic_operations(self, device: Any) -> tuple[str, ...]:
        if device is not None and jax_sharding.platform(device) == "cpu":
            return ()
        whole = "every operation" if not self.compiled or _GPU not in _options(True) else "what runs before the loop"
        return (f"{whole} is compiled without --{_GPU}: set it in XLA_FLAGS before the start.",)

    def describe(self) -> dict[str, Any]:
        return {
            "jax": jax.__version__,
            "derivatives": "jax.vjp",
            "platform": jax.default_backend(),
            "x64 flag": bool(jax.config.jax_enable_x64),
            "matmul precision": "highest",
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", "unset"),
            "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE", "unset"),
            **({} if self._over is None else {"mesh": str(dict(self._over.mesh.shape))}),
        }


@contextmanager
def _no_alarms() -> Iterator[None]:
    """No errors at NaN, inf, transfers or axes that are added: here NaN says that a factorisation failed."""
    with ExitStack() as off:
        if jax.config.jax_debug_nans:
            off.enter_context(jax.debug_nans(False))
        if jax.config.jax_debug_infs:
            off.enter_context(jax.debug_infs(False))
        if jax.config.jax_numpy_rank_promotion != "allow":
            off.enter_context(jax.numpy_rank_promotion("allow"))
        if any(getattr(jax.config, f"jax_transfer_guard{way}") for way in _WAYS):
            off.enter_context(jax.transfer_guard("allow"))
        yield


def _is_half_on_host(x: Any) -> bool:
    """Whether an array of float16 is in the memory of the processor."""
    if getattr(x, "dtype", None) != np.float16 or isinstance(x, jax.core.Tracer):
        return False
    return not isinstance(x, jax.Array) or all(d.platform == "cpu" for d in x.devices())


def _digest(*parts: bytes) -> str:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()


def _bytes(x: Any) -> bytes:
    """Of a constant of a program; where it is traced, as in a layer that a caller compiles, of which array it is."""
    if isinstance(x, jax.core.Tracer):
        return str(id(x)).encode()
    x = jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    digests = jax_sharding.OneDevice().digests(x) if isinstance(x, jax.Array) else None
    x = np.asarray(x) if digests is None else digests
    return f"{x.dtype} {x.shape}".encode() + x.tobytes()


def _svd_method(ndim: int) -> Any:
    """On a GPU JAX takes Jacobi's rotations, which may end early where singular values repeat: for stacks alone.

    Stacks of small matrices run side by side that way, and one after the other by QR.
    """
    methods = jax.lax.linalg.SvdAlgorithm
    return methods.QR if ndim == 2 and jax.default_backend() == "gpu" else methods.DEFAULT


def _device_name(device: Any) -> str:
    if device.platform == "cpu":
        return f"cpu:{device.id}" if device.id else "cpu"  # a processor may be several devices, by a flag of XLA's
    return f"{'cuda' if device.platform == 'gpu' else device.platform}:{device.id}"


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _special(x: Array, name: str, n: int) -> Array:
    """A function of `xv.special`, or its n-th derivative."""
    return derivative(_functions(), x, name, n)


def _special_jvp(name: str, n: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    return _special(x, name, n), tangent * _special(x, name, n + 1)


_special.defjvp(_special_jvp)


@cache
def _functions() -> Any:
    functions = jax.scipy.special
    names = ("erf", "erfc", "gammaln", "digamma", "zeta")
    return SimpleNamespace(**{name: getattr(functions, name) for name in names}, erfcx=_erfcx)


def _erfcx(x: Array) -> Array:  # JAX 0.8 and 0.9 have none
    low = xp.minimum(x, BORDER)
    product = xp.exp(low * low) * jax.scipy.special.erfc(low)
    return xp.where(x < BORDER, product, continued_fraction(xp.maximum(x, BORDER), 0))


def _tracing() -> bool:
    """Whether a function is being compiled: then every operation is part of it."""
    return isinstance(xp.zeros(()), jax.core.Tracer)


@cache
def _embedded() -> JaxBackend:
    return JaxBackend(inner=True)


@cache
def _reproducible(compiled: bool) -> JaxBackend:
    return JaxBackend(compiled, reproducible=True)  # one of each: compiled loops are kept in it


_GPU = "xla_gpu_deterministic_ops"


@cache
def _options(reproducible: bool, once: bool = False, small: bool = False) -> dict[str, Any]:
    """Options of each compilation that this version of XLA knows.

    By default XLA orders a loop on a CPU so that its kernels may run at the same time: small ones then pay for a thread
    pool, up to a third of an iteration, and large ones use all threads anyway. Nine tenths of the time of a compilation
    for a CPU go into optimised machine code, which does not pay for what runs `once`. A loop over `small` arrays
    compiles in two thirds of the time without the emitters of fusions; its iterations take 0.7 to 1.2 times as long.
    """
    wanted: dict[str, Any] = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    if reproducible:
        wanted[_GPU] = True
    if (once or small) and jax.default_backend() == "cpu":
        wanted["xla_cpu_use_fusion_emitters"] = False
    if once and jax.default_backend() == "cpu":
        wanted["xla_backend_optimization_level"] = 0
    return wanted if _known(wanted) else {name: value for name, value in wanted.items() if _known({name: value})}


def _known(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda x: x + 1, compiler_options=options)(np.float32(0))
    except jax.errors.JaxRuntimeError:
        return False
    return True
