"""Discrete Fourier transforms.

A transform with `n` first cuts or pads its axis; its adjoint is the opposite transform with the opposite
normalisation, then cut or padded back. `norm="backward"` (no factor forward, 1/n backward) is the opposite of
`"forward"`, and `"ortho"` is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xvarpro.backends.tape.rules.table import Namespace, along, axes_of, composite, conj, match, primitive
from xvarpro.core.namespace import device
from xvarpro.core.struct import Array

_OPPOSITE = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _fit(xp: Namespace, g: Array, axis: int, n: int) -> Array:
    """Cut an axis to length n, or fill it up with zeros."""
    have = g.shape[axis]
    if have > n:
        return g[along(g.ndim, axis, slice(0, n))]
    if have == n:
        return g
    shape = tuple(n - have if i == axis % g.ndim else k for i, k in enumerate(g.shape))
    return xp.concat([g, xp.zeros(shape, dtype=g.dtype, device=device(g))], axis=axis)


def _axes(like: Array, s: Any, axes: Any) -> tuple[int, ...]:
    ndim = len(like.shape)
    if axes is None and s is not None:
        return tuple(range(ndim - len(s), ndim))
    # an order given by the caller is kept: the last axis named is the halved one
    return axes_of(axes, ndim)


def _fit_all(xp: Namespace, g: Array, like: Array, axes: tuple[int, ...]) -> Array:
    for axis in axes:
        g = _fit(xp, g, axis, like.shape[axis])
    return match(xp, g, like)


def _grid_rule(opposite: str) -> Callable[..., Array]:
    def rule(
        xp: Namespace, g: Array, _y: Array, _x: Array, *, s: Any = None, axes: Any = None, norm: str = "backward"
    ) -> Array:
        axes = _axes(_x, s, axes)
        return _fit_all(xp, getattr(xp.fft, opposite)(g, axes=axes, norm=_OPPOSITE[norm]), _x, axes)

    return rule


primitive("fft_fftn")(_grid_rule("ifftn"))
primitive("fft_ifftn")(_grid_rule("fftn"))


@primitive("fft_rfftn")
def _rfftn(
    xp: Namespace, g: Array, _y: Array, _x: Array, *, s: Any = None, axes: Any = None, norm: str = "backward"
) -> Array:
    # The last axis is transformed first, so its adjoint comes last. There the half that rfft leaves out is zero: no
    # irfft with weights, because libraries differ in what they make of the imaginary part of its first entry.
    axes = _axes(_x, s, axes)
    *others, last = axes
    if others:
        g = xp.fft.ifftn(g, axes=tuple(others), norm=_OPPOSITE[norm])
    g = _fit(xp, g, last, _x.shape[last] if s is None else s[-1])
    return _fit_all(xp, xp.real(xp.fft.ifft(g, axis=last, norm=_OPPOSITE[norm])), _x, axes)


@primitive("fft_irfftn")
def _irfftn(
    xp: Namespace, g: Array, _y: Array, _x: Array, *, s: Any = None, axes: Any = None, norm: str = "backward"
) -> Array:
    axes = _axes(_x, s, axes)
    *others, last = axes
    n = g.shape[last]
    g = xp.fft.rfft(g, axis=last, norm=_OPPOSITE[norm])
    # an entry that represents a conjugate pair counts twice
    single = [1.0] + [2.0] * ((n - 1) // 2) + [1.0] * (n > 1 and n % 2 == 0)
    weights = xp.asarray(single, dtype=xp.real(g).dtype, device=device(g))
    g = g * xp.reshape(weights, tuple(-1 if i == last else 1 for i in range(g.ndim)))
    if others:
        g = xp.fft.fftn(g, axes=tuple(others), norm=_OPPOSITE[norm])
    return _fit_all(xp, g, _x, axes)


# ------------------------------------------------------------------------------------------------- one axis


def _line(name: str) -> None:
    @composite(f"fft_{name}")
    def transform(xp: Namespace, x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
        return getattr(xp.fft, f"{name}n")(x, s=None if n is None else (n,), axes=(axis,), norm=norm)


for _name in ("fft", "ifft", "rfft", "irfft"):
    _line(_name)


@composite("fft_hfft")
def _hfft(xp: Namespace, x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    return xp.fft.irfft(conj(xp, x), n=n, axis=axis, norm=_OPPOSITE[norm])


@composite("fft_ihfft")
def _ihfft(xp: Namespace, x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    return xp.conj(xp.fft.rfft(x, n=n, axis=axis, norm=_OPPOSITE[norm]))


primitive("fft_fftshift")(lambda xp, g, _y, _x, *, axes=None: xp.fft.ifftshift(g, axes=axes))
primitive("fft_ifftshift")(lambda xp, g, _y, _x, *, axes=None: xp.fft.fftshift(g, axes=axes))
