"""Functions that move entries without changing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xvarpro.backends.tape.rules.table import Namespace, along, axes_of, composite, primitive, transpose, unbroadcast
from xvarpro.core.struct import Array


def _reshape(xp: Namespace, g: Array, _y: Array, _x: Array, *_how: Any, **_named: Any) -> Array:
    return xp.reshape(g, _x.shape)


for _name in ("reshape", "expand_dims", "squeeze"):
    primitive(_name)(_reshape)


@primitive("permute_dims")
def _permute_dims(xp: Namespace, g: Array, _y: Array, _x: Array, axes: tuple[int, ...]) -> Array:
    back = [0] * len(axes)
    for i, j in enumerate(axes):
        back[j % len(axes)] = i
    return xp.permute_dims(g, tuple(back))


primitive("matrix_transpose")(lambda xp, g, _y, _x: transpose(xp, g))
primitive("flip")(lambda xp, g, _y, _x, *, axis=None: xp.flip(g, axis=axis))
primitive("tril")(lambda xp, g, _y, _x, *, k=0: xp.tril(g, k=k))
primitive("triu")(lambda xp, g, _y, _x, *, k=0: xp.triu(g, k=k))
primitive("broadcast_to")(lambda xp, g, _y, _x, shape: unbroadcast(xp, g, _x))


@primitive("roll")
def _roll(xp: Namespace, g: Array, _y: Array, _x: Array, shift: Any, *, axis: Any = None) -> Array:
    return xp.roll(g, -shift if isinstance(shift, int) else tuple(-s for s in shift), axis=axis)


# ---------------------------------------------------------------------------------------- joining, splitting


@composite("concat", operands=0)
def _concat_list(xp: Namespace, arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    if axis is None:
        arrays, axis = [xp.reshape(x, (-1,)) for x in arrays], 0
    return xp._concat(*arrays, axis=axis)


@primitive("_concat", operands=None, forward=lambda xp, *arrays, axis: xp.concat(list(arrays), axis=axis))
def _concat(xp: Namespace, need: list[int], g: Array, _y: Array, *_arrays: Array, axis: int) -> list[Array]:
    starts = [0]
    for x in _arrays:
        starts.append(starts[-1] + x.shape[axis])
    return [unbroadcast(xp, g[along(g.ndim, axis, slice(starts[i], starts[i + 1]))], _arrays[i]) for i in need]


@composite("stack", operands=0)
def _stack_list(xp: Namespace, arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    return xp._stack(*arrays, axis=axis)


@primitive("_stack", operands=None, forward=lambda xp, *arrays, axis: xp.stack(list(arrays), axis=axis))
def _stack(xp: Namespace, need: list[int], g: Array, _y: Array, *_arrays: Array, axis: int) -> list[Array]:
    # all at once: the derivative of a slice is as large as what it is taken from
    parts = xp.unstack(g, axis=axis)
    return [unbroadcast(xp, parts[i], _arrays[i]) for i in need]


@primitive("unstack", forward=lambda xp, x, *, axis=0: tuple(x[along(x.ndim, axis, i)] for i in range(x.shape[axis])))
def _unstack(xp: Namespace, g: tuple[Array | None, ...], _y: Any, _x: Array, *, axis: int = 0) -> Array:
    g = g if isinstance(g, tuple) else (g,)  # of an axis of length 1
    known = next(v for v in g if v is not None)
    return xp.stack([xp.zeros_like(known) if v is None else v for v in g], axis=axis)


# ------------------------------------------------------------------------------- written with the functions above


@composite("moveaxis")
def _moveaxis(xp: Namespace, x: Array, source: Any, destination: Any, /) -> Array:
    origin, target = axes_of(source, x.ndim), axes_of(destination, x.ndim)
    order = [i for i in range(x.ndim) if i not in origin]
    for place, axis in sorted(zip(target, origin, strict=True)):
        order.insert(place, axis)
    return xp.permute_dims(x, tuple(order))


@composite("broadcast_arrays", operands=0)
def _broadcast_arrays(xp: Namespace, *arrays: Array) -> list[Array]:
    shape = np.broadcast_shapes(*(tuple(x.shape) for x in arrays))
    return [xp.broadcast_to(x, shape) for x in arrays]


@composite("meshgrid", operands=0)
def _meshgrid(xp: Namespace, *arrays: Array, indexing: str = "xy") -> list[Array]:
    n = len(arrays)
    place = list(range(n))
    if indexing == "xy" and n > 1:
        place[:2] = 1, 0
    shaped = [xp.reshape(x, (1,) * place[i] + (-1,) + (1,) * (n - 1 - place[i])) for i, x in enumerate(arrays)]
    return _broadcast_arrays(xp, *shaped)


@composite("tile")
def _tile(xp: Namespace, x: Array, repetitions: tuple[int, ...], /) -> Array:
    ndim = max(x.ndim, len(repetitions))
    shape = (1,) * (ndim - x.ndim) + tuple(x.shape)
    times = (1,) * (ndim - len(repetitions)) + tuple(repetitions)
    pairs = list(zip(times, shape, strict=True))
    x = xp.reshape(x, tuple(k for n in shape for k in (1, n)))
    x = xp.broadcast_to(x, tuple(k for pair in pairs for k in pair))
    return xp.reshape(x, tuple(t * n for t, n in pairs))


@composite("diff")
def _diff(
    xp: Namespace,
    x: Array,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Array | None = None,
    append: Array | None = None,
) -> Array:
    parts = [part for part in (prepend, x, append) if part is not None]
    x = x if len(parts) == 1 else xp.concat(parts, axis=axis)
    for _ in range(n):
        x = x[along(x.ndim, axis, slice(1, None))] - x[along(x.ndim, axis, slice(0, -1))]
    return x
