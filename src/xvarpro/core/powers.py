"""Powers that are the same on every framework and in every place of an array."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from xvarpro.core.namespace import array_namespace, is_complex

_ROOTS = 4  # exponents that are multiples of its reciprocal are products of square roots
_HIGHEST = 4  # up to this one: higher powers leave the range of a dtype too often


def by_roots(p: float) -> bool:
    """Whether ``x^p`` is a product of x and of its square roots, which needs neither logarithm nor exponential."""
    return 1 <= round(_ROOTS * p) <= _ROOTS * _HIGHEST and math.isclose(_ROOTS * p, round(_ROOTS * p), rel_tol=1e-15)


def plainly(fun: Callable[..., Any], *args: Any) -> Any:  # noqa: D103
    return fun(*args)


def power(x: Any, p: float, into: Callable[..., Any] = plainly) -> Any:
    """``x^p`` for ``x >= 0`` and ``p > 0``.

    Through the logarithm where not `by_roots`: some frameworks round their own power by the place of an entry in
    memory, so that a batch would not give the bits of a loop. For ``x <= 1`` the error stays below the rounding of 1.
    ``into(fun, *args)`` makes ``fun(*args)``, where x and what it made before may be lost.
    """
    xp = array_namespace(x)
    if not by_roots(p):
        some = x > 0
        return xp.where(some, xp.exp(p * xp.log(xp.where(some, x, xp.ones_like(x)))), 0 * x)
    whole, part = divmod(round(_ROOTS * p), _ROOTS)
    if not part:
        return _whole(x, whole)
    make = plainly if whole else into  # the whole powers need x as it is
    root = make(xp.sqrt, x)
    if part == 1:
        root = make(xp.sqrt, root)
    elif part == 3:
        root = make(xp.multiply, xp.sqrt(root), root)
    return into(xp.multiply, root, _whole(x, whole)) if whole else root


def _whole(x: Any, p: int) -> Any:
    if p == 1:
        return x
    root = _whole(x, p // 2)
    return root * root * x if p % 2 else root * root


def signed_power(x: Any, p: float, into: Callable[..., Any] = plainly) -> Any:
    """``|x|^p x / |x|`` for ``p > 0``, 0 at 0; x may be complex.

    ``into(fun, *args)`` makes ``fun(*args)``, where what it made before may be lost; the last thing made is made by it.
    """
    xp = array_namespace(x)
    size = into(xp.abs, x)
    if by_roots(p) and p > 1:
        return into(xp.multiply, power(size, p - 1, into), x)
    if by_roots(p) and p < 1 and not is_complex(x):
        return into(xp.copysign, power(size, p, into), x)
    # the smallest number keeps zeros from the logarithm, and takes no digits from others
    factor = into(xp.log, into(xp.add, size, xp.finfo(x.dtype).smallest_normal))
    return into(xp.multiply, into(xp.exp, into(xp.multiply, factor, p - 1)), x)
