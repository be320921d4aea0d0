"""Whether an array has been written to, asked where it lies: one number of its bits, of one pass over them."""

from __future__ import annotations

import math

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array

AT_ONCE = 2**22  # entries that a device works on
_ODD = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64  # those of SplitMix64, as signed integers


def width(itemsize: int, is_complex: bool) -> int:
    """Bytes of the integers that `of_integers` takes of such an array: both parts of a complex number are one each."""
    return math.gcd(itemsize // 2 if is_complex else itemsize, 8)


def of_integers(bits: Array) -> Array:
    """Of a vector of integers on a device, 0-d there: the same in whatever order they are added up.

    Each integer, its upper half folded into the lower one so that a sign is more than the last bit of a product, is
    multiplied by a number of its place. Two vectors that differ have one sum by chance, less than once in 10^9.
    """
    xp, n = namespace_of(bits), bits.shape[0]
    places = _ODD[0] * xp.arange(1, min(n, AT_ONCE) + 1, dtype=xp.int64, device=device(bits))
    weights = ((places ^ (places >> 30)) * _ODD[1]) | 1
    total = xp.zeros((1,), dtype=xp.int64, device=device(bits))
    for i in range(0, n, AT_ONCE):
        part = xp.astype(bits[i : i + AT_ONCE], xp.int64)
        folded = part ^ ((part >> 32) & 0xFFFFFFFF)
        total = total * _ODD[0] + xp.sum(folded * weights[: part.shape[0]], keepdims=True)
    return total[0]
