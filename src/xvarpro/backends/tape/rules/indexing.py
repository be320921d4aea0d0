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

ALL = slice(None)
SLOT = object()  # where an array stood in a key; an object, because a key may hold any integer


@composite("_getitem")
def _getitem(xp: Namespace, x: Array, key: Any, /) -> Array:
    items = key if type(key) is tuple else (key,)
    arrays: list[Array] = []
    layout: list[Any] = []
    new = False
    for k in items:
        if hasattr(k, "dtype"):
            arrays.append(k)
            layout.append(SLOT)
        elif k is None or k is ... or isinstance(k, (int, slice)):
            layout.append(k)
            new = new or k is None
        else:  # such as a list: NumPy reads with it, but an assignment to a repeated index is no transpose
            raise TypeError(
                f"a key is made of integers, slices, ..., xp.newaxis and arrays, got {key!r}: use xp.asarray"
            )
    # newaxis first, because the standard lets it be read but not assigned; then the arrays in the key apart
    if new:
        x, layout = _newaxes(xp, x, layout)
    if arrays:
        return xp._gather(x, *arrays, layout=tuple(layout))
    return x if new and layout.count(ALL) + layout.count(...) == len(layout) else xp._slice(x, tuple(layout))


def _newaxes(xp: Namespace, x: Array, layout: list[Any]) -> tuple[Array, list[Any]]:
    """Insert axes of length 1 and take all of each: the same reading without a None in its key."""
    if ... not in layout:
        layout = [*layout, ...]
    rest, before = list(x.shape), layout.index(...)
    behind = len(layout) - 1 - before - layout[before:].count(None)
    if (read := len(layout) - 1 - layout.count(None)) > len(rest):
        raise IndexError(f"too many indices: the array has shape {tuple(x.shape)}, but {read} were indexed")
    shape: list[int] = []
    for k in layout:
        if k is ...:
            shape += rest[: len(rest) - behind]
            rest = rest[len(rest) - behind :]
        else:
            shape.append(1 if k is None else rest.pop(0))
    return xp.reshape(x, tuple(shape)), [ALL if k is None else k for k in layout]


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
