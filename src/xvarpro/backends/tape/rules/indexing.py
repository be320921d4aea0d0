"""Indexing, and its transpose, which the standard lacks.

A basic key (integers, slices, an ellipsis) transposes to zeros and an assignment, `_place`. A key with integer
or boolean arrays transposes to `_scatter`: the same reading done on an array of positions says where each
entry came from, so the backend's scatter-add has to do the simplest case only, a flat array and a
one-dimensional integer key.
"""

from __future__ import annotations

import math
from typing import Any

from xvarpro.backends.tape.rules.table import FORWARD, Namespace, composite, constant, primitive
from xvarpro.core.namespace import device
from xvarpro.core.struct import Array

SLOT = object()  # where an array stood in a key; an object, because a key may hold any integer


@composite("_getitem")
def _getitem(xp: Namespace, x: Array, key: Any, /) -> Array:
    # newaxis first, because the standard lets it be read but not assigned; then the arrays in the key apart
    items = key if type(key) is tuple else (key,)
    if any(k is None for k in items):
        x, items = _newaxes(xp, x, items)
    arrays = [k for k in items if hasattr(k, "dtype")]
    if len(arrays) < len(items) and not all(_is_part_of_key(k) for k in items):
        raise TypeError(f"a key is made of integers, slices, ..., xp.newaxis and arrays, got {key!r}: use xp.asarray")
    if not arrays:
        return xp._slice(x, items)
    layout = tuple(SLOT if hasattr(k, "dtype") else k for k in items)
    return xp._gather(x, *arrays, layout=layout)


def _is_part_of_key(k: Any) -> bool:
    # a list is what this keeps out: NumPy reads with it, but an assignment to a repeated index is no transpose
    return isinstance(k, (int, slice)) or k is ... or hasattr(k, "dtype")


def _newaxes(xp: Namespace, x: Array, items: tuple[Any, ...]) -> tuple[Array, tuple[Any, ...]]:
    """Insert axes of length 1 and take all of each: the same reading without a None in its key."""
    used = sum(k is not None and k is not ... for k in items)
    if ... not in [k for k in items if not hasattr(k, "dtype")]:
        items = (*items, ...)
    shape: list[int] = []
    rest = list(x.shape)
    for k in items:
        if k is None:
            shape.append(1)
        elif k is ...:
            shape.extend(rest.pop(0) for _ in range(x.ndim - used))
        else:
            shape.append(rest.pop(0))
    return xp.reshape(x, tuple(shape)), tuple(slice(None) if k is None else k for k in items)


def _place_forward(xp: Namespace, v: Array, key: Any, shape: tuple[int, ...]) -> Array:
    out = xp.zeros(shape, dtype=v.dtype, device=device(v))
    out[key] = v
    return out


@primitive("_slice", forward=lambda xp, x, key: x[key])
def _slice(xp: Namespace, g: Array, _y: Array, _x: Array, key: Any) -> Array:
    return xp._place(g, key, tuple(_x.shape))


@primitive("_place", forward=_place_forward)
def _place(xp: Namespace, g: Array, _y: Array, _v: Array, key: Any, shape: tuple[int, ...]) -> Array:
    return xp._slice(g, key)


# --------------------------------------------------------------------------------------- reading with arrays


def _positions(xp: Namespace, shape: tuple[int, ...], device: Any) -> Array:
    return xp.reshape(xp.arange(math.prod(shape), device=device), shape)


def _read(xp: Namespace, x: Array, *arrays: Array, layout: tuple[Any, ...]) -> Array:
    filling = iter(arrays)
    key = tuple(next(filling) if k is SLOT else k for k in layout)
    return x[key if len(key) > 1 else key[0]]


@primitive("_gather", operands=None, forward=_read)
def _gather(
    xp: Namespace, need: list[int], g: Array, _y: Array, _x: Array, *arrays: Array, layout: tuple[Any, ...]
) -> list[Array]:
    positions = xp._gather(_positions(xp, _x.shape, device(g)), *arrays, layout=layout)
    return [_scatter_back(xp, g, _x, positions)]


def _scatter_back(xp: Namespace, g: Array, like: Array, positions: Array) -> Array:
    return xp._scatter(xp.reshape(g, (-1,)), xp.reshape(positions, (-1,)), tuple(like.shape))


@primitive("_scatter", operands=2)
def _scatter(
    xp: Namespace, need: list[int], g: Array, _y: Array, _v: Array, positions: Array, shape: tuple[int, ...]
) -> list[Array]:
    return [xp._rows(xp.reshape(g, (-1,)), positions, 0)]


@composite("take", operands=2)
def _take(xp: Namespace, x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    if indices.ndim != 1:
        raise ValueError(f"xp.take needs indices along one axis, got shape {indices.shape}: index with x[indices]")
    if axis is None and x.ndim != 1:
        raise ValueError(f"xp.take needs an axis for an array of shape {x.shape}")
    return xp._rows(x, indices, 0 if axis is None else axis % x.ndim)


@primitive("_rows", operands=2, forward=lambda xp, x, indices, axis: xp.take(x, indices, axis=axis))
def _rows(xp: Namespace, need: list[int], g: Array, _y: Array, _x: Array, indices: Array, axis: int) -> list[Array]:
    return [xp._add_rows(g, indices, _x.shape[axis], axis)]


@primitive("_add_rows", operands=2)
def _add_rows(
    xp: Namespace, need: list[int], g: Array, _y: Array, _v: Array, indices: Array, rows: int, axis: int
) -> list[Array]:
    return [xp._rows(g, indices, axis)]


@primitive("take_along_axis", operands=2)
def _take_along_axis(
    xp: Namespace, need: list[int], g: Array, _y: Array, _x: Array, indices: Array, /, *, axis: int = -1
) -> list[Array]:
    positions = xp.take_along_axis(_positions(xp, _x.shape, device(g)), indices, axis=axis)
    return [_scatter_back(xp, g, _x, positions)]


# ---------------------------------------------------------------------------- written with the functions above


@composite("sort")
def _sort(xp: Namespace, x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    order = xp.argsort(x, axis=axis, descending=descending, stable=stable)
    return xp.take_along_axis(x, order, axis=axis)


@composite("repeat")
def _repeat(xp: Namespace, x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    if axis is None:
        x, axis = xp.reshape(x, (-1,)), 0
    return xp.take(x, xp._repeat_index(xp.arange(x.shape[axis], device=device(x)), repeats), axis=axis)


FORWARD["_repeat_index"] = lambda xp, index, repeats: xp.repeat(index, repeats)
constant("argsort searchsorted nonzero isin _repeat_index")
