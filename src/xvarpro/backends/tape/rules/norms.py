"""Vector and matrix norms.

The gradient of a norm at the origin is 0, an element of its subdifferential; for the nuclear and the spectral norm
of a matrix it is another element, u v^H or U V^H, which is what their rules give there.
"""

from __future__ import annotations

import math
from typing import Any

from xvarpro.backends.tape.errors import NoRuleError
from xvarpro.backends.tape.rules.table import Namespace, composite, nonzero_or_one, primitive, spread
from xvarpro.core.struct import Array


@composite("linalg_vector_norm")
def _vector_norm(xp: Namespace, x: Array, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Array:
    # sums, maxima and minima of |x| where they are the definition, powers for the other orders
    if ord == 2:
        return xp._norm2(x, axis=axis, keepdims=keepdims)
    size = xp.abs(x)
    if ord == 1:
        return xp.sum(size, axis=axis, keepdims=keepdims)
    if ord == math.inf:
        return xp.max(size, axis=axis, keepdims=keepdims)
    if ord == -math.inf:
        return xp.min(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        return xp.sum(xp.astype(size != 0, size.dtype), axis=axis, keepdims=keepdims)
    return xp._norm(size, ord, axis=axis, keepdims=keepdims)


@primitive(
    "_norm2",
    forward=lambda xp, x, *, axis, keepdims: xp.linalg.vector_norm(x, axis=axis, keepdims=keepdims),
)
def _norm2(xp: Namespace, g: Array, y: Array, x: Array, *, axis: Any, keepdims: bool) -> Array:
    return spread(xp, g / nonzero_or_one(xp, y), x, axis, keepdims) * x


@primitive(
    "_norm",
    forward=lambda xp, x, ord, *, axis, keepdims: xp.linalg.vector_norm(x, ord=ord, axis=axis, keepdims=keepdims),
)
def _norm(xp: Namespace, g: Array, y: Array, x: Array, ord: float, *, axis: Any, keepdims: bool) -> Array:
    # (|x|/y)^(p-1): a ratio, so that no power overflows, and 0 at a zero entry whatever p is
    y = spread(xp, nonzero_or_one(xp, y), x, axis, keepdims)
    ratio = (nonzero_or_one(xp, x) / y) ** (ord - 1)
    return xp.where(x == 0, 0.0, ratio) * spread(xp, g, x, axis, keepdims)


@composite("linalg_matrix_norm")
def _matrix_norm(xp: Namespace, A: Array, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    if ord == "fro":
        return xp._norm2(A, axis=(-2, -1), keepdims=keepdims)
    if ord in (1, -1, math.inf, -math.inf):
        first, second = (-2, -1) if abs(ord) == 1 else (-1, -2)
        sums = xp.sum(xp.abs(A), axis=first, keepdims=True)
        y = (xp.max if ord > 0 else xp.min)(sums, axis=second, keepdims=True)
    elif ord in (2, -2, "nuc"):
        s = xp.linalg.svdvals(A)
        reduce = {2: xp.max, -2: xp.min, "nuc": xp.sum}[ord]
        y = xp.expand_dims(reduce(s, axis=-1, keepdims=True), axis=-1)
    else:
        raise NoRuleError("linalg.matrix_norm", f"with ord={ord!r}: 'fro', 'nuc', 1, -1, 2, -2, inf, -inf exist")
    return y if keepdims else xp.squeeze(y, axis=(-2, -1))
