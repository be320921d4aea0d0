"""What the traced namespace offers besides differentiable functions, and how all of it gets onto the tape."""

from __future__ import annotations

from typing import Any

from xvarpro.backends.tape import rules  # noqa: F401  (importing them fills the tables)
from xvarpro.backends.tape.engine import Tape, TracedArray
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

CREATION = ("arange", "empty", "eye", "from_dlpack", "linspace", "ones", "zeros", "fft_fftfreq", "fft_rfftfreq")
LIKE = ("empty_like", "ones_like", "zeros_like")
PLAIN = ("can_cast", "finfo", "iinfo", "result_type")


def asarray(self: Tape, obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> TracedArray:
    """Pass a traced array through, cast if asked; make anything else a constant."""
    if isinstance(obj, TracedArray):
        obj = self._lift(obj)
        if device is not None and device != obj.device:
            raise NoRuleError("asarray", f"from device {obj.device} to {device}")
        return obj if dtype is None or dtype == obj.dtype else self.astype(obj, dtype)
    if _holds_traced(obj):
        raise TypeError("xp.asarray of a list with traced arrays would cut their gradients: use xp.stack or xp.concat")
    return self._constant(self.below.asarray(obj, dtype=dtype, device=device, copy=copy))


def _holds_traced(obj: Any) -> bool:
    return isinstance(obj, (tuple, list)) and any(isinstance(x, TracedArray) or _holds_traced(x) for x in obj)


def full(self: Tape, shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> TracedArray:
    """Broadcast a traced fill value, so that its gradient is kept."""
    if not isinstance(fill_value, TracedArray):
        return self._constant(self.below.full(shape, fill_value, dtype=dtype, device=device))
    return self.broadcast_to(self.asarray(fill_value, dtype=dtype), (shape,) if isinstance(shape, int) else shape)


def full_like(self: Tape, x: Array, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> TracedArray:
    """Do as `full`, in the shape and dtype of `x`."""
    dtype = x.dtype if dtype is None else dtype
    return self.full(tuple(x.shape), fill_value, dtype=dtype, device=device_of(x) if device is None else device)


for _name, _slopes in SIMPLE.items():
    setattr(Tape, _name, unary_method(_name, *_slopes) if len(_slopes) == 1 else binary_method(_name, *_slopes))
for _name, _primitive in PRIMITIVES.items():
    setattr(Tape, _name, primitive_method(_name, _primitive))
for _name, _definition in COMPOSITES.items():
    setattr(Tape, _name, composite_method(_definition))
for _name in (*CONSTANT, *LIKE):
    setattr(Tape, _name, constant_method(_name))
for _name in CREATION:
    setattr(Tape, _name, creation_method(_name))
for _name in PLAIN:
    setattr(Tape, _name, plain_method(_name))
for _function in (asarray, full, full_like):
    setattr(Tape, _function.__name__, _function)
