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


def _line_rule(opposite: str) -> Callable[..., Array]:
    def rule(
        xp: Namespace, g: Array, _y: Array, _x: Array, *, n: int | None = None, axis: int = -1, norm: str = "backward"
    ) -> Array:
        d = getattr(xp.fft, opposite)(g, axis=axis, norm=_OPPOSITE[norm])
        return match(xp, _fit(xp, d, axis, _x.shape[axis]), _x)

    return rule


primitive("fft_fft")(_line_rule("ifft"))
primitive("fft_ifft")(_line_rule("fft"))


def _half_adjoint(xp: Namespace, g: Array, n: int, axis: int, norm: str) -> Array:
    """Apply the adjoint of rfft on n real numbers: the missing half is zero.

    Not an irfft with weights: libraries differ in what they make of the imaginary part of its first entry.
    """
    return xp.real(xp.fft.ifft(_fit(xp, g, axis, n), axis=axis, norm=_OPPOSITE[norm]))


def _full_adjoint(xp: Namespace, g: Array, axis: int, norm: str) -> Array:
    """Apply the adjoint of irfft to n real numbers: entries that represent a conjugate pair count twice."""
    n = g.shape[axis]
    d = xp.fft.rfft(g, axis=axis, norm=_OPPOSITE[norm])
    single = [1.0] + [2.0] * ((n - 1) // 2) + [1.0] * (n > 1 and n % 2 == 0)
    shape = tuple(-1 if i == axis % d.ndim else 1 for i in range(d.ndim))
    return d * xp.reshape(xp.asarray(single, dtype=g.dtype, device=device(g)), shape)


@primitive("fft_rfft")
def _rfft(
    xp: Namespace, g: Array, _y: Array, _x: Array, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Array:
    n = _x.shape[axis] if n is None else n
    return match(xp, _fit(xp, _half_adjoint(xp, g, n, axis, norm), axis, _x.shape[axis]), _x)


@primitive("fft_irfft")
def _irfft(
    xp: Namespace, g: Array, _y: Array, _x: Array, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> Array:
    return match(xp, _fit(xp, _full_adjoint(xp, g, axis, norm), axis, _x.shape[axis]), _x)


# ---------------------------------------------------------------------------------------------- several axes


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
    # the last axis is transformed first, so its adjoint comes last
    axes = _axes(_x, s, axes)
    *others, last = axes
    if others:
        g = xp.fft.ifftn(g, axes=tuple(others), norm=_OPPOSITE[norm])
    n = _x.shape[last] if s is None else s[-1]
    return _fit_all(xp, _half_adjoint(xp, g, n, last, norm), _x, axes)


@primitive("fft_irfftn")
def _irfftn(
    xp: Namespace, g: Array, _y: Array, _x: Array, *, s: Any = None, axes: Any = None, norm: str = "backward"
) -> Array:
    axes = _axes(_x, s, axes)
    *others, last = axes
    g = _full_adjoint(xp, g, last, norm)
    if others:
        g = xp.fft.fftn(g, axes=tuple(others), norm=_OPPOSITE[norm])
    return _fit_all(xp, g, _x, axes)


@composite("fft_hfft")
def _hfft(xp: Namespace, x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    return xp.fft.irfft(conj(xp, x), n=n, axis=axis, norm=_OPPOSITE[norm])


@composite("fft_ihfft")
def _ihfft(xp: Namespace, x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    return xp.conj(xp.fft.rfft(x, n=n, axis=axis, norm=_OPPOSITE[norm]))


primitive("fft_fftshift")(lambda xp, g, _y, _x, *, axes=None: xp.fft.ifftshift(g, axes=axes))
primitive("fft_ifftshift")(lambda xp, g, _y, _x, *, axes=None: xp.fft.fftshift(g, axes=axes))
