"""Transforms of arrays ``(blocks, *grid, columns)`` along their grid, for real and for complex numbers.

Everywhere the forward transform has no factor and the backward one has ``1/D``: only then is the transform of a
convolution the product of the transforms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xvarpro.core import trees
from xvarpro.core.namespace import complexified, device, namespace_of
from xvarpro.core.struct import Array

Grid = tuple[int, ...]


def forward(x: Array, period: Grid, half: bool) -> Array:
    """Transform of `x`, with zeros behind it up to `period`; with `half` the non-negative frequencies of a real one."""
    xp, axes = namespace_of(x), _axes(period)
    if half:
        return xp.fft.rfftn(x, s=period, axes=axes)
    return xp.fft.fftn(complexified(x), s=period, axes=axes)


def backward(X: Array, period: Grid, half: bool) -> Array:
    """What has the transform `X`; `period` tells an even last length from an odd one."""
    xp, axes = namespace_of(X), _axes(period)
    if half:
        return xp.fft.irfftn(X, s=period, axes=axes)
    return xp.fft.ifftn(X, s=period, axes=axes)


def by_parts(fun: Callable[[Array], Any], x: Array, half: bool) -> Any:
    """``fun(x)`` for a linear function; with `half`, for one that takes real arrays, from both parts of a complex `x`.

    The half of a real spectrum says nothing about the other half of a complex one.
    """
    if not (half and trees.is_complex(x)):
        return fun(x)
    xp = namespace_of(x)
    real, imaginary = fun(xp.real(x)), fun(xp.imag(x))
    if isinstance(real, tuple):
        return tuple(complexified(a) + 1j * complexified(b) for a, b in zip(real, imaginary, strict=True))
    return complexified(real) + 1j * complexified(imaginary)


def resized(x: Array, sizes: Grid) -> Array:
    """The grid of `x` cut to `sizes`, or filled up with zeros behind."""
    xp = namespace_of(x)
    for axis, size in enumerate(sizes, 1):
        if size < x.shape[axis]:
            key: Any = (slice(None),) * axis + (slice(size), ...)
            x = x[key]
        elif size > x.shape[axis]:
            rest = (*x.shape[:axis], size - x.shape[axis], *x.shape[axis + 1 :])
            x = xp.concat([x, xp.zeros(rest, dtype=x.dtype, device=device(x))], axis=axis)
    return x


def rolled(x: Array, shift: Grid) -> Array:
    """The grid of `x` moved by `shift`, round the end."""
    return namespace_of(x).roll(x, shift, axis=_axes(shift)) if any(shift) else x


def fast(length: int) -> int:
    """The least number from `length` on that has no prime factor above 5: what transforms are quick for."""
    while True:
        rest = length
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 1


def _axes(grid: Grid) -> Grid:
    return tuple(range(1, 1 + len(grid)))
