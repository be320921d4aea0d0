"""Products of matrices and vectors, and what only rearranges a matrix."""

from __future__ import annotations

import math
from typing import Any

from xvarpro.backends.tape.rules.table import Namespace, adjoint, composite, conj, primitive, simple, unbroadcast
from xvarpro.core.namespace import device
from xvarpro.core.struct import Array


def _matmul_left(xp: Namespace, g: Array, _y: Array, a: Array, b: Array) -> Array:
    if a.ndim > 1 and b.ndim > 1:
        return xp.matmul(g, adjoint(xp, b))
    if b.ndim == 1:
        return xp.expand_dims(g, axis=-1) * conj(xp, b)
    return xp.matmul(conj(xp, b), xp.expand_dims(g, axis=-1))[..., 0]


def _matmul_right(xp: Namespace, g: Array, _y: Array, a: Array, b: Array) -> Array:
    if a.ndim == 1:
        return xp.expand_dims(conj(xp, a), axis=-1) * xp.expand_dims(g, axis=-2) if b.ndim > 1 else g * conj(xp, a)
    columns = xp.expand_dims(g, axis=-1) if b.ndim == 1 else g
    if b.ndim <= 2 and a.ndim > 2:
        # one matrix for a whole stack: one product over the joined rows, not a stack of products to be summed
        a = xp.reshape(a, (-1, a.shape[-1]))
        columns = xp.reshape(columns, (-1, columns.shape[-1]))
    d = xp.matmul(adjoint(xp, a), columns)
    return xp.reshape(d, b.shape) if b.ndim == 1 else d


simple("matmul", _matmul_left, _matmul_right)


@primitive("vecdot", operands=2)
def _vecdot(xp: Namespace, need: list[int], g: Array, _y: Array, a: Array, b: Array, *, axis: int = -1) -> list[Array]:
    # <a, b> = sum of conj(a) b
    axis = axis if axis < 0 else axis - max(a.ndim, b.ndim)
    g = xp.expand_dims(g, axis=axis)
    return [unbroadcast(xp, conj(xp, g) * b if i == 0 else g * a, a if i == 0 else b) for i in need]


@composite("tensordot", operands=2)
def _tensordot(xp: Namespace, a: Array, b: Array, /, *, axes: Any = 2) -> Array:
    if isinstance(axes, int):
        axes = (tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes)))
    in_a, in_b = (tuple(i % x.ndim for i in ax) for ax, x in zip(axes, (a, b), strict=True))
    out_a = tuple(i for i in range(a.ndim) if i not in in_a)
    out_b = tuple(i for i in range(b.ndim) if i not in in_b)
    shape = (*(a.shape[i] for i in out_a), *(b.shape[i] for i in out_b))
    k = math.prod(a.shape[i] for i in in_a)
    A = xp.reshape(xp.permute_dims(a, out_a + in_a), (-1, k))
    B = xp.reshape(xp.permute_dims(b, in_b + out_b), (k, -1))
    return xp.reshape(xp.matmul(A, B), shape)


@composite("linalg_outer", operands=2)
def _outer(xp: Namespace, a: Array, b: Array, /) -> Array:
    return xp.expand_dims(a, axis=1) * xp.expand_dims(b, axis=0)


@primitive("linalg_cross", operands=2)
def _cross(xp: Namespace, need: list[int], g: Array, _y: Array, a: Array, b: Array, *, axis: int = -1) -> list[Array]:
    # <g, da x b> = <b x g, da> for every da, and its mirror image
    pairs = [(conj(xp, b), g) if i == 0 else (g, conj(xp, a)) for i in need]
    crossed = [xp.linalg.cross(*xp.broadcast_arrays(*pair), axis=axis) for pair in pairs]
    return [unbroadcast(xp, d, (a, b)[i]) for i, d in zip(need, crossed, strict=True)]


@composite("linalg_matrix_power")
def _matrix_power(xp: Namespace, A: Array, n: int, /) -> Array:
    # by repeated squaring
    if n < 0:
        A, n = xp.linalg.inv(A), -n
    power = None
    while n:
        if n % 2:
            power = A if power is None else xp.matmul(power, A)
        n //= 2
        A = xp.matmul(A, A) if n else A
    if power is not None:
        return xp.positive(power)
    return xp.broadcast_to(xp.eye(A.shape[-1], dtype=A.dtype, device=device(A)), A.shape)


@primitive("linalg_diagonal")
def _diagonal(xp: Namespace, g: Array, _y: Array, _x: Array, /, *, offset: int = 0) -> Array:
    # the entries go to their rows, then a shifted identity chooses the column
    m, n = _x.shape[-2:]
    first = max(0, -offset)
    above, below = (
        xp.zeros((*g.shape[:-1], k), dtype=g.dtype, device=device(g)) for k in (first, m - first - g.shape[-1])
    )
    rows = xp.expand_dims(xp.concat([above, g, below], axis=-1), axis=-1)
    return rows * xp.eye(m, n, k=offset, dtype=g.dtype, device=device(g))


@composite("linalg_trace")
def _trace(xp: Namespace, x: Array, /, *, offset: int = 0, dtype: Any = None) -> Array:
    return xp.sum(xp.linalg.diagonal(x, offset=offset), axis=-1, dtype=dtype)


def _same(name: str) -> None:
    # the linear algebra extension repeats four functions of the main namespace
    composite(f"linalg_{name}", operands=0)(lambda xp, *arrays, **options: getattr(xp, name)(*arrays, **options))


for _name in ("matmul", "matrix_transpose", "tensordot", "vecdot"):
    _same(_name)
