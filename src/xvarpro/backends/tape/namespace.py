"""What the traced namespace offers besides differentiable functions, and how all of it gets onto the tape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xvarpro.backends.tape import rules  # noqa: F401  (importing them fills the tables)
from xvarpro.backends.tape.array import TracedArray
from xvarpro.backends.tape.errors import NoRuleError
from xvarpro.backends.tape.recording import (
    binary_method,
    composite_method,
    constant_method,
    creation_method,
    plain_method,
    primitive_method,
    unary_method,
)
from xvarpro.backends.tape.rules.table import COMPOSITES, CONSTANT, PRIMITIVES, SIMPLE
from xvarpro.core.namespace import device as device_of
from xvarpro.core.struct import Array

if TYPE_CHECKING:
    from xvarpro.backends.tape.engine import Tape

# handed over untouched: no array goes in
CONSTANTS = ("e", "inf", "nan", "newaxis", "pi")
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
QUESTIONS = ("isdtype", "broadcast_shapes", "__array_namespace_info__", "__array_api_version__")
PASSED_ON = frozenset((*CONSTANTS, *DTYPES, *QUESTIONS))

CREATION = ("arange", "empty", "eye", "from_dlpack", "linspace", "ones", "zeros", "fft_fftfreq", "fft_rfftfreq")
LIKE = ("empty_like", "ones_like", "zeros_like")
PLAIN = ("can_cast", "finfo", "iinfo", "result_type")


def asarray(self: Tape, obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> TracedArray:
    """Pass a traced array through, cast if asked; make anything else a constant."""
    if type(obj) is TracedArray:
        obj = self._lift(obj)
        if device is not None and device != obj.device:
            raise NoRuleError("asarray", f"from device {obj.device} to {device}")
        return obj if dtype is None or dtype == obj.dtype else self.astype(obj, dtype)
    if _holds_traced(obj):
        raise TypeError("xp.asarray of a list with traced arrays would cut their gradients: use xp.stack or xp.concat")
    return TracedArray(self.below.asarray(obj, dtype=dtype, device=device, copy=copy), self, None)


def _holds_traced(obj: Any) -> bool:
    return isinstance(obj, (tuple, list)) and any(type(x) is TracedArray or _holds_traced(x) for x in obj)


def full(self: Tape, shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> TracedArray:
    """Broadcast a traced fill value, so that its gradient is kept."""
    if type(fill_value) is not TracedArray:
        return TracedArray(self.below.full(shape, fill_value, dtype=dtype, device=device), self, None)
    return self.broadcast_to(self.asarray(fill_value, dtype=dtype), (shape,) if isinstance(shape, int) else shape)


def full_like(self: Tape, x: Array, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> TracedArray:
    """Do as `full`, in the shape and dtype of `x`."""
    dtype = x.dtype if dtype is None else dtype
    return self.full(tuple(x.shape), fill_value, dtype=dtype, device=device_of(x) if device is None else device)


def install(tape: type) -> None:
    """Make every table entry a method of the tape class."""
    for name, slopes in SIMPLE.items():
        setattr(tape, name, unary_method(name, *slopes) if len(slopes) == 1 else binary_method(name, *slopes))
    for name, entry in PRIMITIVES.items():
        setattr(tape, name, primitive_method(name, entry))
    for name, definition in COMPOSITES.items():
        setattr(tape, name, composite_method(definition))
    for name in (*CONSTANT, *LIKE):
        setattr(tape, name, constant_method(name))
    for name in CREATION:
        setattr(tape, name, creation_method(name))
    for name in PLAIN:
        setattr(tape, name, plain_method(name))
    for function in (asarray, full, full_like):
        setattr(tape, function.__name__, function)
