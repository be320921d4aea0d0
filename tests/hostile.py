"""A library as CuPy is, with what libraries of a GPU may do and NumPy does not, computed by NumPy on the host.

`HostileBackend` is the backend of CuPy, its own source, on this library instead of CuPy:

- elementary functions are off by up to two units in the last place, and sums have another order at every call;
- there are two devices, neither of which has a hash or is a processor; their arrays do not meet;
- `solve` takes no stacks of different shapes, and its LU reads both triangles;
- `add.at` takes no complex numbers, and adds in any order;
- DLPack hands out arrays without gaps and turned axes only;
- no array becomes one of the host by itself, and `READS` has what is read from a device on request.

`LAUNCHES` counts what a device computes: a kernel each, or more.
"""

from __future__ import annotations

import operator
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import wraps
from importlib.util import find_spec, module_from_spec
from types import ModuleType, SimpleNamespace

import array_api_compat
import array_api_compat.numpy
import numpy as np
import pytest
import scipy.linalg
import scipy.special

from xvarpro.backends.eager import TapedBackend
from xvarpro.backends.interface import Backend
from xvarpro.backends.special import derivative

READS: list[tuple[str, int]] = []  # what the host has read: by what, and how many entries
LAUNCHES: Counter[str] = Counter()
ANY_ORDER = np.random.default_rng(54)
ODD = 0x9E3779B97F4A7C15
ELEMENTARY = (
    "acos acosh asin asinh atan atan2 atanh cos cosh exp exp2 expm1 hypot log log10 log1p log2 logaddexp pow power sin "
    "sinh tan tanh cumulative_sum cumulative_prod vector_norm matrix_norm norm"
)
VIEWS = (
    "reshape expand_dims squeeze moveaxis permute_dims broadcast_to matrix_transpose diagonal unstack conj ravel view "
    "isdtype result_type finfo iinfo"
)
MATRICES = "inv pinv svd svdvals eigh eigvalsh"
BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
OTHER = "lt le eq ne gt ge neg pos abs invert"


# -- devices and arrays ------------------------------------------------------------------------------------------------


@dataclass
class Device:
    """One of two; the current one by default."""

    id: int = field(default_factory=lambda: CURRENT[-1])

    def __enter__(self):
        CURRENT.append(self.id)

    def __exit__(self, *error):
        CURRENT.pop()

    def __repr__(self):
        return f"<CUDA Device {self.id}>"


CURRENT = [0]


class ndarray:  # noqa: N801 - as CuPy has it
    """An array on a device: no more of NumPy's interface than CuPy's backend takes."""

    __module__ = "hostile"
    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, values, device):
        self.values, self.device = values, device

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __array_namespace__(self, api_version=None):
        return xp

    def __dlpack__(self, **how):
        if not self.flags.forc or min(self.strides, default=0) < 0:
            raise BufferError("only arrays without gaps and turned axes can be handed out")
        READS.append(("dlpack", self.size))
        return self.values.__dlpack__(**how)

    def __dlpack_device__(self):
        return 2, self.device.id

    @property
    def __cuda_array_interface__(self):
        return self.values.__array_interface__

    def __getitem__(self, key):
        return wrapped(self.values[values_of(key)], self.device)

    def __setitem__(self, key, x):
        place_of((self, key, x))
        launched("setitem", None)
        self.values[values_of(key)] = values_of(x)

    def __repr__(self):
        return f"{self.values!r} on {self.device!r}"

    def to_device(self, device, /, *, stream=None):
        return ndarray(self.values.copy(), device)

    def tolist(self):
        READS.append(("tolist", self.size))
        return self.values.tolist()


def method(name):
    return lambda x, *args, **how: wrapped(launched(name, getattr(x.values, name)(*args, **how)), x.device)


def part(name):
    return property(
        lambda x: wrapped(getattr(x.values, name), x.device), lambda x, y: setattr(x.values, name, values_of(y))
    )


def number(kind):
    return lambda x: READS.append(("number", x.size)) or getattr(x.values, kind)()


for name in ("shape", "ndim", "dtype", "size", "strides", "flags"):
    setattr(ndarray, name, property(operator.attrgetter(f"values.{name}")))
for name in ("astype", "copy", "ravel", "view"):
    setattr(ndarray, name, method(name))
for name in ("T", "mT", "real", "imag"):
    setattr(ndarray, name, part(name))
for name in ("__bool__", "__float__", "__int__", "__complex__", "__index__"):
    setattr(ndarray, name, number(name))


def launched(name, found):
    LAUNCHES[name] += name not in VIEWS.split()
    return found


def values_of(x):
    """Arrays of NumPy for those of a device, in any nesting; an array of the host is refused."""
    if isinstance(x, ndarray):
        return x.values
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}: an array of the host meets those of a device")
    if isinstance(x, tuple | list):
        return type(x)(map(values_of, x))
    return {k: values_of(v) for k, v in x.items()} if isinstance(x, dict) else x


def place_of(*given):
    """The one device of all arrays in any nesting of tuples, lists and dicts."""
    found = []
    for x in given:
        if isinstance(x, tuple | list | dict):
            x = place_of(*(x.values() if isinstance(x, dict) else x))
        if isinstance(x, ndarray | Device):
            found.append(getattr(x, "device", x))
    if any(other != found[0] for other in found):
        raise ValueError(f"arrays of two devices meet: {found}")
    return found[0] if found else None


def wrapped(x, device):
    """Arrays of a device for those of NumPy, in any nesting of tuples and lists; all else as it is."""
    if isinstance(x, np.ndarray | np.generic):
        return ndarray(np.asarray(x), device)
    if isinstance(x, tuple | list):
        parts = [wrapped(part, device) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x


# -- what libraries of a GPU do ----------------------------------------------------------------------------------------


def inexact(fun, *args, **how):
    """Up to two units in the last place off, the same for the same number; but 0, 1, -1, NaN and inf."""
    x = fun(*args, **how)
    if x.dtype.kind not in "fc":
        return x
    parts = np.array(x, ndmin=1, order="C").view(x.real.dtype)
    bits = parts.view(f"i{parts.itemsize}")
    seed = bits.view(f"u{parts.itemsize}").astype(np.uint64) * np.uint64(ODD) >> np.uint64(60)
    off = seed.astype(bits.dtype) % 5 - 2
    limits = np.finfo(parts.dtype)
    ordinary = (abs(parts) > 4 * limits.tiny) & (abs(parts) < limits.max / 4) & (abs(parts) != 1)
    bits += np.where(ordinary, off, 0)
    if fun.__name__ in ("sin", "cos", "tanh") and x.dtype.kind == "f":
        np.clip(parts, -1, 1, out=parts)
    return parts.view(x.dtype).reshape(x.shape)


def shuffled(axis, *arrays):
    order = ANY_ORDER.permutation(arrays[0].shape[axis[0]])
    return [np.take(x, order, axis=at) for x, at in zip(arrays, axis, strict=True)]


def reduce(fun, x, *args, axis=None, **how):
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    y = x
    for at in axes:
        (y,) = shuffled((at,), y)
    return fun(y, *args, axis=axis, **how)


def matmul(fun, a, b, **how):
    return fun(*shuffled((-1, -2 if b.ndim > 1 else 0), a, b), **how)


def vecdot(fun, a, b, axis=-1):
    return fun(*shuffled((axis, axis), *np.broadcast_arrays(a, b)), axis=axis)


def tensordot(fun, a, b, axes=2):
    pairs = [(-1, axes - 1)] if axes and isinstance(axes, int) else list(zip(*axes, strict=True)) if axes else []
    for pair in pairs[:1]:
        a, b = shuffled(pair, a, b)
    return fun(a, b, axes=axes)


def unraised(fun, *stacks, **how):
    """A matrix of a stack that NumPy refuses, or does not return from, is answered by NaN."""
    try:
        if np.isfinite(stacks[0]).all():
            return fun(*stacks, **how)
        raise np.linalg.LinAlgError
    except np.linalg.LinAlgError:
        if stacks[0].ndim > 2:
            parts = [unraised(fun, *each, **how) for each in zip(*stacks, strict=True)]
            several = isinstance(parts[0], tuple)
            return type(parts[0])(*map(np.stack, zip(*parts, strict=True))) if several else np.stack(parts)
        found = fun(np.eye(*stacks[0].shape, dtype=stacks[0].dtype), *stacks[1:], **how)
        return type(found)(*(np.nan * x for x in found)) if isinstance(found, tuple) else np.nan * found


def solve(fun, a, b):
    if b.ndim != 1 and (a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]):
        raise ValueError("a must have (..., M, M) shape and b must have (..., M, K)")
    return unraised(fun, a, b)


def cholesky(fun, a, **how):
    """Of an indefinite matrix the untouched part is left behind."""
    if a.ndim > 2 and a.size:
        return np.stack([cholesky(fun, x, **how) for x in a])
    try:
        return fun(a, **how)
    except np.linalg.LinAlgError:
        return np.tril(a) - 2 * np.diag(abs(np.diag(a)))


HOSTILE = {
    **dict.fromkeys(ELEMENTARY.split(), inexact),
    **dict.fromkeys(("sum", "mean", "prod"), reduce),
    **dict.fromkeys(MATRICES.split(), unraised),
    **{fun.__name__: fun for fun in (matmul, vecdot, tensordot, solve, cholesky)},
}


# -- the library -------------------------------------------------------------------------------------------------------


def lifted(fun, name):
    """A function of NumPy's for arrays of a device."""
    special = HOSTILE.get(name)

    @wraps(fun)
    def on_device(*args, device=None, **how):
        place = place_of(args, how, device) or Device()
        args, how = values_of(args), values_of(how)
        with np.errstate(all="ignore"):
            found = special(fun, *args, **how) if special else fun(*args, **how)
            return wrapped(launched(name, found), place)

    return on_device


def library(source, **own):
    """A module of NumPy's with functions for arrays of a device."""
    made = ModuleType("hostile")
    for name in dir(source):
        x = getattr(source, name)
        vars(made)[name] = lifted(x, name) if callable(x) and not isinstance(x, type) else x
    vars(made).update(own)
    return made


def asarray(x, /, *, dtype=None, device=None, copy=None):
    """To a device, where it is a copy; an array that is there already is itself."""
    place = device or Device()
    if isinstance(x, ndarray) and x.device == place and not copy:
        values = np.asarray(x.values, dtype=dtype)
        return x if values is x.values else ndarray(values, place)
    return ndarray(np.array(x.values if isinstance(x, ndarray) else x, dtype=dtype), place)


def asnumpy(x):
    if not isinstance(x, ndarray):
        return np.asarray(x)
    READS.append(("asnumpy", x.size))
    return x.values.copy()


def add_at(x, key, v):
    if x.dtype.kind == "c":
        raise TypeError("add.at of complex numbers")
    place_of(x, key, v)
    values, key, v = x.values, values_of(key), values_of(v)
    if isinstance(key, np.ndarray):
        order = ANY_ORDER.permutation(key.size)
        v = np.broadcast_to(v, key.shape + values.shape[1:]).reshape(-1, *values.shape[1:])[order]
        key = key.ravel()[order]
    np.add.at(values, key, v)


def solve_triangular(R, B, lower=False, trans=0, check_finite=True):
    if R.ndim != B.ndim or R.shape[:-2] != B.shape[:-2]:
        raise ValueError("stacks of one shape are required")
    R, B, place = R.values, B.values, place_of(R, B)
    other = np.triu(np.full(R.shape, np.nan), 1)  # of the triangle that is not read
    R = np.where(np.isnan(other if lower else other.mT), np.nan, R).astype(R.dtype)
    X = np.empty(B.shape, np.result_type(R, B))
    for i in np.ndindex(R.shape[:-2]):
        try:
            X[i] = scipy.linalg.solve_triangular(R[i], B[i], lower=lower, trans=trans, check_finite=False)
        except np.linalg.LinAlgError:
            X[i] = np.nan
    return wrapped(X, place)


RUNTIME = SimpleNamespace(getDeviceCount=lambda: 2, getDevice=lambda: CURRENT[-1], runtimeGetVersion=lambda: "none")
OWN = {"asarray": asarray, "array": asarray}
xp = library(
    array_api_compat.numpy,
    linalg=library(array_api_compat.numpy.linalg),
    fft=library(array_api_compat.numpy.fft),
    from_dlpack=lambda x, **how: asarray(np.from_dlpack(x), **how),
    **OWN,
)
cupy = library(
    np,
    linalg=library(np.linalg),
    ndarray=ndarray,
    asnumpy=asnumpy,
    cuda=SimpleNamespace(Device=Device, runtime=RUNTIME),
    **OWN,
)
cupy.add.at = add_at

for kind in BINARY.split():
    forward = lifted(getattr(operator, f"__{kind}__"), kind)
    setattr(ndarray, f"__{kind}__", forward)
    setattr(ndarray, f"__r{kind}__", lambda x, y, _fun=forward: _fun(y, x))
    setattr(ndarray, f"__i{kind}__", lambda x, y, _fun=forward: x.__setitem__(..., _fun(x, y)) or x)
for kind in OTHER.split():
    setattr(ndarray, f"__{kind}__", lifted(getattr(operator, f"__{kind}__"), kind))


def on_this_library(name):
    """A module that is about CuPy, from its own source, on this library."""
    spec = find_spec(name)
    made = module_from_spec(spec)
    fakes = {
        "cupy": cupy,
        "cupyx": SimpleNamespace(errstate=lambda **how: nullcontext(), geterr=lambda: {"linalg": None}),
        "cupyx.scipy.linalg": SimpleNamespace(solve_triangular=solve_triangular),
        "array_api_compat.cupy": xp,
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(array_api_compat, "cupy", xp, raising=False)
        for module, fake in fakes.items():
            patched.setitem(sys.modules, module, fake)
        spec.loader.exec_module(made)
    return made


class Hooks(on_this_library("xvarpro_conformance.frameworks.cupy").CuPyHooks):
    suite_devices = ("cuda:1",)


class HostileBackend(on_this_library("xvarpro.backends.cupy").CuPyBackend):
    name = "hostile"
    roots = ("hostile",)
    array_types = (ndarray,)
    sparse_product = TapedBackend.sparse_product
    deterministic = Backend.deterministic  # it has no such mode: checks of equal bits do not apply
    suite_hooks = Hooks

    def special(self, x, name, n):
        return derivative(SPECIAL, x, name, n)


SPECIAL = library(scipy.special)
