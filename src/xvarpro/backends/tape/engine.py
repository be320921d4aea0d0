"""The tape: a namespace that records, and its transpose.

A `Tape` is the namespace the model sees: calling one of its functions evaluates it on the values and appends a node.
The pull-back is the reverse mode of Griewank and Walther, Evaluating Derivatives (2nd ed., SIAM 2008), section 3.2.

A tape is built on a raw namespace (`Ground`) or on another tape. That is how a backward pass is differentiated: the
rules call the functions of a tape, which records them in turn.

Nothing a tape refers to refers back to it: traced arrays point at their tape, nodes hold values only. So the
recorded arrays go with the last reference to the pull-back, without waiting for the cycle collector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, NoReturn

from xvarpro.backends.tape.errors import NoRuleError
from xvarpro.backends.tape.rules.table import FORWARD, Namespace, unbroadcast
from xvarpro.core.namespace import TRACED, device, inexact_dtype
from xvarpro.core.struct import Array
from xvarpro.errors import ModelError

_SCALARS = (float, int, complex, bool)
_EXTENSIONS = ("linalg_", "fft_")

# handed over untouched: no array goes in
CONSTANTS = ("e", "inf", "nan", "newaxis", "pi")
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
QUESTIONS = ("isdtype", "broadcast_shapes", "__array_namespace_info__", "__array_api_version__")
PASSED_ON = frozenset((*CONSTANTS, *DTYPES, *QUESTIONS))


def public_name(name: str) -> str:
    """How a user writes a function of the tape: ``linalg_qr`` is ``linalg.qr``."""
    return name.replace("_", ".", 1) if name.startswith(_EXTENSIONS) else name


class Ground:
    """A raw namespace, each function looked up once, and the transposes of indexing that the standard lacks."""

    level: int = 0

    def __init__(self, xp: Namespace, index_add: Callable[..., Array]) -> None:
        self.xp = xp
        self.index_add = index_add
        self.__name__ = xp.__name__

    def __getattr__(self, name: str) -> Any:
        found: Any
        if name in FORWARD:
            found = partial(FORWARD[name], self.xp)
        elif name.startswith(_EXTENSIONS):
            extension, _, function = name.partition("_")
            found = getattr(getattr(self.xp, extension), function)
        else:
            found = getattr(self.xp, name)
        self.__dict__[name] = found
        return found

    def _scatter(self, v: Array, positions: Array, shape: tuple[int, ...]) -> Array:
        """Add the entries of `v` at flat positions, which may repeat, to zeros of a shape."""
        xp = self.xp
        zeros = xp.zeros((math.prod(shape),), dtype=v.dtype, device=device(v))
        return xp.reshape(self.index_add(zeros, positions, v), shape)

    def _add_rows(self, v: Array, indices: Array, rows: int, axis: int) -> Array:
        """Add the slices of `v` at `indices`, which may repeat, to zeros with `rows` places along an axis."""
        xp = self.xp
        v = xp.moveaxis(v, axis, 0)
        zeros = xp.zeros((rows, *v.shape[1:]), dtype=v.dtype, device=device(v))
        return xp.moveaxis(self.index_add(zeros, indices, v), 0, axis)


# keyed by the objects themselves: the id of a freed backend may come back as another's
ground = lru_cache(maxsize=64)(Ground)


class Extension:
    """The `linalg` or `fft` namespace of a tape."""

    __slots__ = ("_prefix", "_tape")

    def __init__(self, tape: Tape, prefix: str) -> None:
        self._tape = tape
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, self._prefix + name)


class Tape:
    """The traced namespace; its functions are installed on the class, from the tables."""

    __slots__ = ("__weakref__", "below", "level", "nodes")

    def __init__(self, below: Ground | Tape) -> None:
        self.below = below
        self.level: int = below.level + 1
        self.nodes: list[Any] = []  # None at a leaf, and at all results of a function but the last

    # array_api_compat.array_namespace compares namespaces by name: with the raw one's, a call that mixes raw and
    # traced arrays would silently get the raw namespace
    @property
    def __name__(self) -> str:
        return f"xvarpro.tape{self.level}[{self.below.__name__}]"

    def __repr__(self) -> str:
        return f"<traced namespace {self.__name__}>"

    @property
    def linalg(self) -> Extension:
        """The linear algebra extension."""
        return Extension(self, "linalg_")

    @property
    def fft(self) -> Extension:
        """The Fourier transform extension."""
        return Extension(self, "fft_")

    def __getattr__(self, name: str) -> Any:
        if name in PASSED_ON:
            return getattr(self.below, name)
        raise NoRuleError(public_name(name))

    # -------------------------------------------------------------------------------------- values in and out

    def _lift(self, x: Any) -> TracedArray:
        """Make `x` an array of this tape; one from elsewhere is a constant here."""
        if type(x) is TracedArray:
            if x.tape is self:
                return x
            if x.tape.level >= self.level and x.index is None:
                return self._lift(x.value)  # no gradient reaches it there, so that none is cut here
            if x.tape.level >= self.level:
                raise ModelError(
                    "an array of one trace met the namespace of another: a function that is called later, as those of "
                    "MatrixFree and of vjp, must be given what depends on theta as its arguments and not close over it"
                )
        elif not hasattr(x, "dtype"):
            raise TypeError(f"expected an array, got {type(x).__name__}: convert it with xp.asarray")
        return TracedArray(x, self, None)

    def _operand(self, x: Any) -> Any:
        """Return the value of an operand that is not an array of this tape: a Python number stays one."""
        plain = type(x) in _SCALARS or (hasattr(x, "dtype") and type(x) is not TracedArray)
        return x if plain else self._lift(x).value

    def _value(self, x: Any) -> Any:
        return self._lift(x).value if type(x) is TracedArray else x

    def _held(self, x: Any) -> Any:
        return self._lift(x) if hasattr(x, "dtype") else x

    def _untraced(self, x: TracedArray) -> Any:
        """The array itself, whatever records it."""
        value = x.value
        return value.tape._untraced(value) if isinstance(value, TracedArray) else value

    def _constant(self, y: Any) -> Any:
        if isinstance(y, (tuple, list)):
            return several(y, [TracedArray(v, self, None) for v in y])
        return TracedArray(y, self, None)

    def _input(self, x: Any) -> TracedArray:
        """Enter a leaf: an array that gets a gradient."""
        value = self._lift(x).value if type(x) is TracedArray else x
        if not inexact_dtype(value.dtype):
            raise TypeError(f"gradients need floating-point arrays, got dtype {value.dtype}: pass it as a constant")
        self.nodes.append(None)
        return TracedArray(value, self, len(self.nodes) - 1)

    # -------------------------------------------------------------------------------------------- the transpose

    def _pull(self, seeds: Iterable[tuple[int | None, Array]], xp: Any, primals: Sequence[Array]) -> list[Any]:
        """Bring gradients at recorded arrays back to the leaves with the functions of `xp`, raw or traced.

        With v_i = phi_i(v_j for the parents j), the gradient of each v_j is the sum over the nodes i that it enters of
        (d phi_i / d v_j)^H times the gradient of v_i. A node comes after its parents, so from the last to the first
        every gradient is complete when its node is reached, and one pass over the nodes is enough.
        """
        nodes = self.nodes
        upper = xp if isinstance(xp, Tape) else None
        gradients: list[Any] = [None] * len(nodes)
        g: Any
        for i, g in seeds:
            if i is not None:
                g, before = g if upper is None else upper._lift(g), gradients[i]
                gradients[i] = g if before is None else before + g
        for i in range(len(nodes) - 1, -1, -1):
            node = nodes[i]
            if node is None:
                continue
            rules, parents, y, operands, options, extra, results = node
            g = gradients[i] if results == 1 else tuple(gradients[i + 1 - results : i + 1])
            if g is None or (results > 1 and all(v is None for v in g)):
                continue
            gradients[i] = None  # read once: its memory is free for those of the parents
            if type(rules) is tuple:
                found = []
                for rule, like in zip(rules, extra, strict=True):
                    d = rule(xp, g, y, *operands, **options)
                    found.append(d if like is None else unbroadcast(xp, d, like))
            else:
                found = rules(xp, extra, g, y, *operands, **options)
            for parent, d in zip(parents, found, strict=True):
                before = gradients[parent]
                gradients[parent] = d if before is None else before + d
        for i, x in enumerate(primals):  # the first nodes
            g = gradients[i]
            if g is None:
                gradients[i] = xp.zeros_like(x)
            elif type(g) not in (type(x), TracedArray):
                gradients[i] = xp.asarray(g)
        return gradients[: len(primals)]


def several(values: Any, traced: list[TracedArray]) -> Any:
    """Make the results of a function a tuple, a named one where the function's is."""
    return type(values)(*traced) if hasattr(values, "_fields") else tuple(traced)


_value, _place, _form = attrgetter("value"), attrgetter("index"), attrgetter("shape", "dtype")


def vjp(
    fun: Callable[..., Any],
    primals: Sequence[Any],
    constants: Sequence[Any] = (),
    *,
    xp: Namespace,
    index_add: Callable[..., Array],
) -> tuple[Any, Pullback]:
    """Evaluate ``fun(*primals, *constants)``, which uses ``xp = primals[0].__array_namespace__()``, and record it.

    The outputs are one array, a tuple or a list of arrays, as `fun` returned them, and the pull-back maps cotangents
    in that structure to one gradient for each primal, as `Backend.vjp`. It may be called again. Gradients may share
    memory with each other and with the cotangents: do not write to them.

    Constants become arrays of the same namespace as the primals, so that the function never mixes two; what is not an
    array is handed over as it is. `xp` is the raw namespace; inside another `vjp`, that of its traced arrays is taken.
    ``index_add(x, key, v)`` is `x`, which must not be changed, with `v` added at a one-dimensional integer key of the
    first axis, where repeated indices accumulate.

    Raises
    ------
    NoRuleError
        If `fun` uses a function that the tape cannot differentiate; the message names it.
    TypeError, ValueError
        If `fun` leaves the traced namespace, or cotangents do not fit the outputs.
    """
    below: Any = xp if isinstance(xp, Tape) else ground(xp, index_add)
    for x in (*primals, *constants):
        if type(x) is TracedArray and x.tape.level > below.level:
            below = x.tape
    tape = Tape(below)
    leaves = list(map(tape._input, primals))
    returned = fun(*leaves, *map(tape._held, constants))
    single = not isinstance(returned, (tuple, list))
    outputs = list(map(tape._lift, (returned,) if single else returned))
    values = list(map(_value, outputs))
    found = values[0] if single else values if isinstance(returned, list) else tuple(values)
    return found, Pullback(tape, outputs, list(map(_value, leaves)), single)


class Pullback:
    """The map from cotangents of the outputs that a tape has recorded to gradients of the primals."""

    def __init__(self, tape: Tape, outputs: list[TracedArray], primals: Sequence[Array], single: bool = False) -> None:
        # places, shapes and dtypes only: holding the outputs would keep their arrays as long as the pull-back
        self._places, self._forms = list(map(_place, outputs)), list(map(_form, outputs))
        self._tape, self._primals, self._single = tape, primals, single

    def __call__(self, cotangents: Any) -> tuple[Array, ...]:
        cotangents = (cotangents,) if self._single else tuple(cotangents)
        xp, n = self._tape.below, len(self._forms)
        if len(cotangents) != n:
            raise ValueError(f"one cotangent for each output: {n} outputs, got {len(cotangents)}")
        for g, (shape, dtype) in zip(cotangents, self._forms, strict=True):
            if not hasattr(g, "dtype"):
                raise TypeError(f"a cotangent must be an array, got {type(g).__name__}: use xp.ones_like(output)")
            if g.shape != shape:
                raise ValueError(f"a cotangent must have the shape of its output, {tuple(shape)}, got {tuple(g.shape)}")
            if g.dtype != dtype:
                raise TypeError(f"a cotangent must have the dtype of its output, {dtype}, got {g.dtype}")
            if type(g) is TracedArray and g.tape.level > xp.level:
                xp = g.tape
        return tuple(self._tape._pull(zip(self._places, cotangents, strict=True), xp, self._primals))

    def transposed(self, outputs: Sequence[Array]) -> Pullback:
        """The map from tangents of the primals to those of the outputs, which are given.

        A pull-back is linear: it does not matter where it is recorded.
        """
        tape = Tape(self._tape.below)
        cotangents: Any = list(map(tape._input, outputs))
        moved = self._tape._pull(zip(self._places, cotangents, strict=True), tape, self._primals)
        return Pullback(tape, list(map(tape._lift, moved)), outputs)


_KEEP = "keep it an array and use functions of its namespace"


class TracedArray:
    """A value, the tape it is recorded on and its place there (None: a constant, no gradient reaches it)."""

    __slots__ = ("__weakref__", "dtype", "index", "shape", "tape", "value")

    # NumPy's and CuPy's own operators then return NotImplemented, and the reflected ones below run
    __array_ufunc__ = None
    __array_priority__ = 1000

    def __init__(self, value: Any, tape: Any, index: int | None) -> None:
        self.value = value
        self.tape = tape
        self.index = index
        self.shape = value.shape
        self.dtype = value.dtype

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return self.tape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of entries."""
        # Torch, where the tape is tested too, has a method of this name
        return math.prod(self.shape)

    @property
    def device(self) -> Any:
        """Where the value lives."""
        return device(self.value)

    @property
    def mT(self) -> TracedArray:
        """Transpose of the last two axes."""
        return self.tape.matrix_transpose(self)

    @property
    def T(self) -> TracedArray:
        """Transpose of a matrix."""
        if self.ndim != 2:
            raise ValueError(f"x.T needs two axes, got shape {self.shape}: use x.mT or xp.permute_dims")
        return self.tape.matrix_transpose(self)

    def __getitem__(self, key: Any) -> TracedArray:
        return self.tape._getitem(self, key)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[TracedArray]:
        return iter(self.tape.unstack(self, axis=0))

    def __repr__(self) -> str:
        kind = "constant" if self.index is None else "traced"
        return f"TracedArray({self.value!r}, {kind})"

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TypeError("a traced array cannot be assigned to: build the result with xp.where, xp.concat or xp.stack")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "a traced array cannot become a NumPy array, its gradient would be cut: call functions of "
            "xp = x.__array_namespace__() instead of numpy's"
        )

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"arrays of the array API standard have no attribute {name!r}: if it is a method, call the function "
            f"xp.{name}(x) of xp = xv.array_namespace(x)"
        )


TRACED.add(TracedArray)


def _refusal(what: str, remedy: str) -> Callable[[TracedArray], NoReturn]:
    def refuse(self: TracedArray) -> NoReturn:
        raise TypeError(f"{what} of a traced array would cut its gradient and is not portable: {remedy}")

    return refuse


for _name, _remedy in {
    "bool": "choose between array values with xp.where; branch in Python on shapes and options only",
    "float": _KEEP,
    "int": _KEEP,
    "complex": _KEEP,
    "index": "index with the array itself (x[i]) or with xp.take",
}.items():
    setattr(TracedArray, f"__{_name}__", _refusal(f"{_name}()", _remedy))


def _unary(function: str) -> Callable[[TracedArray], Any]:
    return lambda self: getattr(self.tape, function)(self)


def _binary(function: str) -> Callable[[TracedArray, Any], Any]:
    def operator(self: TracedArray, other: Any) -> Any:
        tape = self.tape
        if isinstance(other, TracedArray) and other.tape is not tape:
            # a constant may be of a trace that has ended
            tape = max((other, self), key=lambda x: (x.tape.level, x.index is not None)).tape
        return getattr(tape, function)(self, other)

    return operator


def _reflected(function: str) -> Callable[[TracedArray, Any], Any]:
    return lambda self, other: getattr(self.tape, function)(other, self)


for _symbol, _function in {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}.items():
    setattr(TracedArray, f"__{_symbol}__", _unary(_function))

for _symbol, _function in {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}.items():
    setattr(TracedArray, f"__{_symbol}__", _binary(_function))
    setattr(TracedArray, f"__r{_symbol}__", _reflected(_function))

for _symbol, _function in {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}.items():
    setattr(TracedArray, f"__{_symbol}__", _binary(_function))
