"""Arrays in from any framework, results out to the caller's: never a silent change of dtype, never a shared write."""

from __future__ import annotations

import array
import math
from numbers import Number
from typing import Any

import numpy as np

from xvarpro.backends import of
from xvarpro.backends.interface import Backend
from xvarpro.core import trees
from xvarpro.core.checks import described
from xvarpro.core.namespace import device as device_of
from xvarpro.core.namespace import dtype_name, is_array, is_host
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ExchangeError, ProblemError, UnsupportedDtypeError, UnsupportedError

SMALL = 2**20  # entries from which on an operation of NumPy's takes longer than to compile another framework's
# NumPy's dtype that is longer than a double, as its arrays name it; none where it is a double, as on Windows
LONGEST = np.dtype(np.longdouble).name if np.dtype(np.longdouble).itemsize > 8 else ""


def find_device(backend: Backend, device: Any) -> Any:
    """Device of a backend by its name: one of `Backend.devices`, "gpu" for "cuda", index 0 where none is given.

    An object of the framework's own is returned as it is.

    Raises
    ------
    ValueError
        The backend has no such device; the message lists those that it has.
    """
    found = backend.devices()
    kind, _, index = str(device).partition(":")
    for name in (str(device), f"{'cuda' if kind == 'gpu' else kind}:{index or 0}"):
        if name in found:
            return found[name]
    if isinstance(device, str) or all(isinstance(place, str) for place in found.values()):
        raise ValueError(f"device must be one of {', '.join(map(repr, found))} on {backend.name}; got {device!r}")
    return device


def address(x: Array) -> int | None:
    """Address of the first entry of an array: a copy has another. None where it cannot be found without a copy."""
    framework: Any = x
    if hasattr(framework, "data_ptr"):  # Torch
        return framework.data_ptr()
    if hasattr(framework, "addressable_shards"):  # JAX
        return min(shard.data.unsafe_buffer_pointer() for shard in framework.addressable_shards)
    if hasattr(framework, "__cuda_array_interface__"):  # CuPy
        return framework.__cuda_array_interface__["data"][0]
    try:
        host = framework if hasattr(framework, "__array_interface__") else np.from_dlpack(framework)
    except (AttributeError, BufferError, RuntimeError, TypeError):
        return None
    return host.__array_interface__["data"][0]


def as_array(x: Any, name: str) -> Any:
    """`x` as an array where it is one of numbers in another form, as a column of a table; anything else as it is.

    Raises
    ------
    ProblemError
        It holds more than an array of numbers can say: masks, units, places of entries, columns of names.
    """
    kind = type(x)
    if kind is np.ndarray or not (hasattr(kind, "__array__") or hasattr(kind, "toarray") or isinstance(x, _BUFFERS)):
        return x
    what = f"got a {kind.__module__}.{kind.__qualname__}"
    graph = getattr(x, "__dask_graph__", None)
    if graph is not None and graph() is not None:  # labelled arrays in memory have none
        raise ProblemError(
            f"{name} must be an array in memory; {what}, which other processes hold. Pass x.compute(), or "
            "y=xv.distributed.dask_rows(data, y) without data=, or, for xv.solve_many(..., chunks=), xv.Each(x)"
        )
    if hasattr(kind, "toarray") or hasattr(kind, "todense"):
        raise ProblemError(
            f"{name} must be a dense array; {what}, which is sparse. Pass x.toarray() or x.todense(), or the places "
            "and values of its entries, from which M can make an xv.operators.Sparse"
        )
    if getattr(getattr(x, "dtype", None), "kind", "") in ("M", "m"):
        raise ProblemError(
            f"{name} must be an array of numbers; {what} of dates. Pass the time since one of them, such as "
            "(t - t.min()) / pd.Timedelta('1h')"
        )
    if any(hasattr(kind, unit) and getattr(x, unit) is not None for unit in ("unit", "units")):
        raise ProblemError(
            f"{name} must be an array of plain numbers; {what}, which has units. Pass its numbers in the units of the "
            "model, such as x.magnitude or x.value"
        )
    if np.ma.is_masked(x) or hasattr(kind, "get_mask"):
        raise ProblemError(
            f"{name} must be an array without masked entries; {what}, whose mask would be lost. Leave them out, or "
            "pass x.data with weights=~x.mask where it is a target"
        )
    if is_array(x):
        return np.asarray(x) if isinstance(x, np.ma.MaskedArray) else x
    if hasattr(kind, "__array__") and not hasattr(kind, "dtype"):
        how = "its columns" if "data" in name else "x.to_numpy(), or one of its columns"
        raise ProblemError(f"{name} must be an array; {what}, which is a table. Pass {how}, such as x['name']")
    try:
        found = np.asarray(x)
    except Exception as error:  # each library raises what it likes
        raise ProblemError(f"{name} must be an array; {what}, which cannot be read as one: {error}") from error
    return found if found.dtype.kind in "biufc" or holds_boxed(found) else x


def holds_boxed(x: Any) -> bool:
    """Whether an array is one of Python's objects with numbers among them, with which no framework computes."""
    return x.dtype == object and any(isinstance(entry, Number) for entry in x.flat)


_BUFFERS = array.array | memoryview


def numbers(x: Any, name: str) -> Any:
    """`as_array`, also of a list of numbers or of lists of them."""
    if not isinstance(x, list | tuple):
        return as_array(x, name)
    try:
        found = np.asarray(x)
    except ValueError:  # of lists of different lengths
        found = np.asarray(None)
    if found.dtype.kind not in "biufc":
        raise ProblemError(
            f"{name} given as a list must hold numbers, or lists of them of one length; got {described(x)}"
        )
    return found


def arrays(tree: Tree, name: str) -> Tree:
    """Data of a user's with arrays in the places of lists of numbers and of columns of tables.

    Tuples stay what they are: shapes and intervals, which no backend moves.

    Raises
    ------
    ProblemError
        As of `numbers`.
    """
    leaves, names, treedef = trees.named(tree, name, whole=(list,))
    found = list(map(numbers, leaves, names))
    same = all(x is leaf for x, leaf in zip(found, leaves, strict=True))
    return tree if same else trees.unflatten(treedef, found)


def check_dense(x: Array, name: str) -> None:
    """Refuse an array that has no numbers in memory to compute with, and name it."""
    try:
        dense = math.prod(x.shape) == 0 or address(x) != 0
    except (RuntimeError, TypeError):  # what each framework raises where there is no address
        dense = False
    if not dense:
        raise ExchangeError(
            f"{name} must be a dense array of numbers; got a {type(x).__module__}.{type(x).__name__} that holds none: "
            "it is sparse, on a device without memory, deleted, or traced by a transformation (jit, grad, vmap). Solve "
            "outside of transformations; xv.implicit and xv.layers differentiate solutions, and xv.ridge, for weights "
            "alone, works inside of them"
        )


def move(x: Array, to: Backend, *, dtype: str | None = None, device: Any = None) -> Array:
    """`x`, of any framework, as an array of backend `to`.

    The result may share memory with `x` and must not be written to. Arrays that live on an accelerator go through
    DLPack; everything on the host goes through NumPy, which every framework reads without a copy.

    Raises
    ------
    ExchangeError
        The target cannot hold the dtype of `x`, and no `dtype` is given: an `UnsupportedDtypeError` where it has
        no such dtype at all.
    """
    source = of(x)
    if source is None and not hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
        raise ExchangeError(f"an array of a known framework or with __dlpack__ is required; got {type(x).__name__}")
    want = dtype or dtype_name(x)
    try:
        if source is not None and source.name == to.name:  # one framework may be two backends, deterministic and not
            y = to.asarray(x, dtype=want, device=device)
        elif source is not None and not is_host(device_of(x)) and not is_host(device):
            y = to.asarray(to.xp.from_dlpack(_lent(source, x)), dtype=want, device=device)
        else:
            y = to.asarray(_host(source, x, want), dtype=want, device=device)
    except (AttributeError, TypeError, ValueError, BufferError, UnsupportedError) as error:
        origin = source.name if source else type(x).__name__
        kind = UnsupportedDtypeError if isinstance(error, UnsupportedError) else ExchangeError
        raise kind(
            f"cannot move a {origin} array of dtype {dtype_name(x)} to {to.name}: {error}. "
            "Convert it to float32 or float64 first."
        ) from error
    if dtype_name(y) != want:
        option = "" if "int" in want else ", or pass dtype='float32' to what takes a dtype"
        remedy = f"; turn jax_enable_x64 on, or cast the NumPy array to {dtype_name(y)}{option}"
        raise ExchangeError(
            f"a {want} array became {dtype_name(y)} on {to.name}, which would lose digits"
            + (remedy if to.name == "jax" else "")
        )
    return y


def is_spread(x: Array) -> bool:
    """Whether an array lies on several devices."""
    source = of(x)
    return source is not None and source.placement.of({"x": x}, {}).several


def readable(*arrays: Array) -> tuple[Array, ...]:
    """Small arrays on the host as NumPy's, for what is done once, where their framework compiles every operation.

    NumPy has the answer before a compilation begins.
    """
    source = of(arrays[0])
    if source is None or not source.compiled or not is_host(device_of(arrays[0])):
        return arrays
    return arrays if sum(math.prod(x.shape) for x in arrays) > SMALL else tuple(map(source.to_numpy, arrays))


def _lent(source: Any, x: Array) -> Array:
    """`x` as DLPack hands it to any other framework: outside of graphs, its entries without gaps or turned axes.

    A backend whose arrays may be otherwise has a method `lent` for it: not every framework refuses such an array with
    an error, some end the process. A 0-d array stays one.
    """
    return source.lent(x) if hasattr(source, "lent") else x


def _host(source: Backend | None, x: Array, dtype: str) -> np.ndarray:
    if source is None:
        return np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x)  # type: ignore[arg-type]
    kind = dtype_name(x)
    # NumPy has no bfloat16, which is widened first; only NumPy has its longest dtype, which is rounded on request
    half, longest = kind in ("bfloat16", "float16"), kind == LONGEST
    if (half or longest) and dtype != kind and dtype in ("float32", "float64"):
        x = source.asarray(x, dtype="float32" if half else dtype)
    return source.to_numpy(x)
