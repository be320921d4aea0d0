"""Whether an array has been written to, asked where it lies: one number of its bits, which takes two passes over it."""

from __future__ import annotations

import math
from typing import Any

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array

_MIXER = 0x9E3779B97F4A7C15 - 2**64  # odd: a product with it loses no bit


def numpy_like(x: Any) -> Array | None:
    """`of_integers` for the bits of an array of NumPy or CuPy; None for Python objects."""
    if x.dtype.hasobject:
        return None
    flat = (x.T if x.flags.f_contiguous else x).ravel()
    return of_integers(flat.view(f"i{math.gcd(x.dtype.itemsize, 8)}"))


def of_integers(bits: Array) -> Array:
    """A 0-d integer, the same for the same vector of integers, in whatever order a device adds them up.

    The vector is laid out as a square, whose rows and columns are added up in turn: an entry that is another changes
    the sum of a row and that of a column, and entries that have changed places do. Only these sums, as many as the root
    of the entries, are multiplied by their places. Two vectors that differ have one number by chance, once in 2^64.
    """
    xp, n = namespace_of(bits), bits.shape[0]
    width = math.isqrt(n) or 1
    rows = n // width
    square = xp.reshape(bits[: rows * width], (rows, width))
    sums = [xp.sum(square, axis=axis, dtype=bits.dtype) for axis in (0, 1)]
    mixed = xp.astype(xp.concat([*sums, bits[rows * width :]]), xp.int64) * _MIXER
    places = xp.arange(mixed.shape[0], dtype=xp.int64, device=device(bits))
    return xp.sum((mixed ^ (mixed >> 32)) * (2 * places + 1), dtype=xp.int64)
