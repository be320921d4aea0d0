"""Blind deblurring of a photograph: Example 3 in two dimensions, with a set and a support that identify the kernel.

``min 1/2 |w * u - g|^2 + lam/2 |w|^2  over a small kernel w and over |u|_1 <= 1``: g are the two difference images of
the blurred photograph, u those of the sharp one up to a factor. w is eliminated, u is theta. Where the Frobenius ball
of the paper lets u be g, filtered, the l1 ball asks for few, strong edges; what was lost on the way to g is up to w.

The scale of u and w is free, ``(t u, w / t)``, and at the best one the radius and the ridge together cost
``lam/2 (|u|_1 |w|_2)^2``: a wide kernel has a small l2 norm, so that the trivial answer, no blur, is the expensive one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from array_api_compat import device
from scipy.fft import next_fast_len
from xvarpro_experiments.checks import positive
from xvarpro_experiments.trees import Array, Tree

import xvarpro as xv
from xvarpro import Problem
from xvarpro.backends import Backend, adapters
from xvarpro.errors import ProblemError
from xvarpro.lower import LowerSolver
from xvarpro.lower.interface import Adjoint, Diagnosis, System
from xvarpro.operators import Operator

RIDGE = 0.3


class Layout(NamedTuple):
    """Shapes of a kernel, of the result of a convolution, and of the grid on which transforms are taken."""

    grid: tuple[int, ...]
    rows: tuple[int, ...]
    period: tuple[int, ...]


@final
@dataclass(frozen=True)
class StackedConvolution(Operator):
    """All of the convolutions of N images with one kernel `w`, the images zero outside, above each other.

    ``(M w)[n, i] = sum_j images[n, i - j] w[j]``, of shape ``(N prod(size + kernel - 1), prod(kernel))``: tall.

    Parameters
    ----------
    images : array, shape (N, *size), real
    kernel : tuple of int
        Shape of `w`, one length for each axis of an image.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro_deblurring import StackedConvolution
    >>> StackedConvolution(np.array([[1.0, 2.0], [0.0, 1.0]]), (2,)).dense().round(12) + 0.0
    array([[1., 0.],
           [2., 1.],
           [0., 2.],
           [0., 0.],
           [1., 0.],
           [0., 1.]])
    """

    images: Array
    kernel: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.images.ndim != 1 + len(self.kernel):
            raise ProblemError(
                f"StackedConvolution needs images of shape (N, *size) and a kernel with a length for each axis, "
                f"got shapes {tuple(self.images.shape)} and {tuple(self.kernel)}"
            )

    @property
    def layout(self) -> Layout:
        """Shapes, which do not depend on the images' values."""
        rows = tuple(n + k - 1 for n, k in zip(self.images.shape[1:], self.kernel, strict=True))
        return Layout(tuple(self.kernel), rows, tuple(next_fast_len(n, real=True) for n in rows))

    @property
    def shape(self) -> tuple[int, int]:
        layout = self.layout
        return self.images.shape[0] * math.prod(layout.rows), math.prod(layout.grid)

    @property
    def explicit(self) -> bool:
        return False

    def spectrum(self, half: bool = True) -> Array:
        """Transforms of the images, at nonnegative frequencies of the last axis."""
        return self._forward(self.images)

    def matvec(self, w: Array) -> Array:
        layout, xp = self.layout, xv.array_namespace(w)
        W = self._forward(xp.reshape(w.mT, (-1, *layout.grid)))
        product = self._backward(xp.expand_dims(self.spectrum(), axis=0) * xp.expand_dims(W, axis=1), layout.rows)
        return xp.reshape(product, (w.shape[1], -1)).mT

    def rmatvec(self, r: Array) -> Array:
        layout, xp = self.layout, xv.array_namespace(r)
        R = self._forward(xp.reshape(r.mT, (-1, self.images.shape[0], *layout.rows)))
        correlated = xp.sum(xp.conj(xp.expand_dims(self.spectrum(), axis=0)) * R, axis=1)
        return xp.reshape(self._backward(correlated, layout.grid), (r.shape[1], -1)).mT

    def outer(self, r: Array, w: Array) -> StackedConvolution:
        layout, xp = self.layout, xv.array_namespace(r)
        R = self._forward(xp.reshape(r.mT, (-1, self.images.shape[0], *layout.rows)))
        W = self._forward(xp.reshape(w.mT, (-1, 1, *layout.grid)))
        images = self._backward(xp.sum(R * xp.conj(W), axis=0), tuple(self.images.shape[1:]))
        return StackedConvolution(images, self.kernel)

    def dense(self) -> Array:
        xp, n = xv.array_namespace(self.images), self.shape[1]
        return self.matvec(xp.eye(n, dtype=self.images.dtype, device=device(self.images)))

    def _forward(self, x: Array) -> Array:
        period = self.layout.period
        return xv.array_namespace(x).fft.rfftn(x, s=period, axes=_last(len(period)))

    def _backward(self, X: Array, size: tuple[int, ...]) -> Array:
        period = self.layout.period
        x = xv.array_namespace(X).fft.irfftn(X, s=period, axes=_last(len(period)))
        crop: Any = (Ellipsis, *(slice(n) for n in size))
        return x[crop]


def _last(n: int) -> tuple[int, ...]:
    return tuple(range(-n, 0))


def gram(M: StackedConvolution) -> Array:
    """``M^T M`` as an array, from one autocorrelation."""
    layout, X = M.layout, M.spectrum()
    xp = xv.array_namespace(X)
    power = xp.sum(xp.abs(X) ** 2, axis=0)
    lags = xp.fft.irfftn(xp.astype(power, X.dtype), s=layout.period, axes=_last(len(layout.period)))
    # entry (i, j) is the autocorrelation at the lag i - j, of the multi-indices on the kernel's grid
    at = np.indices(layout.grid).reshape(len(layout.grid), -1)
    lag = (at[:, :, None] - at[:, None, :]) % np.asarray(layout.period)[:, None, None]
    index = np.ravel_multi_index(tuple(lag), layout.period)
    backend = adapters.owner(M.images)
    places = backend.asarray(index.reshape(-1).astype(np.int32), dtype="int32", device=device(M.images))
    return xp.reshape(xp.take(xp.reshape(lags, (-1,)), places), index.shape)


class CorrelationFactor(NamedTuple):
    """``M^T M + lam I = L L^T``."""

    L: Array


@final
@dataclass(frozen=True)
class Correlation(LowerSolver):
    """Normal equations of a `StackedConvolution`, whose matrix is the autocorrelation of the images.

    Two transforms and a Cholesky factorisation of the size of the kernel, where QR would need the dense design: 166000
    rows for a photograph. Errors grow with the square of the condition, which the ridge bounds by ``|M|^2 / lam``; a
    matrix that is not positive definite in working precision is NaN and ends a solve.
    """

    def factor(self, backend: Backend, system: System) -> CorrelationFactor:
        M = system.M
        if not isinstance(M, StackedConvolution) or not system.ridge.plain:
            raise ProblemError(
                f"Correlation solves a StackedConvolution with one number lam and no Omega, got {type(M).__name__} and "
                f"{system.ridge!r:.80}"
            )
        G = gram(M)
        if system.ridge.present:
            xp = xv.array_namespace(G)
            G = G + system.ridge.lam * xp.eye(G.shape[0], dtype=G.dtype, device=device(G))
        return CorrelationFactor(backend.cholesky(G))

    def argmin(self, backend: Backend, system: System, factor: CorrelationFactor, y: Array) -> Array:
        return _solved(backend, factor, system.M.rmatvec(y))

    def adjoint(
        self, backend: Backend, system: System, factor: CorrelationFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        v = _solved(backend, factor, c)
        return Adjoint(system.M.matvec(v), ((r, v),), v)

    def diagnose(self, backend: Backend, system: System, factor: CorrelationFactor, y: Array) -> Diagnosis:
        xp = xv.array_namespace(factor.L)
        bad = xp.any(xp.isnan(factor.L))
        L = xp.where(bad, xp.ones_like(factor.L), factor.L)
        s = backend.svd(L / xp.sqrt(xp.sum(L * L, axis=1, keepdims=True)))[1]
        kappa = xp.max(s) / xp.min(s)
        return Diagnosis.of(bad, xp.where(bad, xp.full_like(kappa, xp.inf), kappa))


def _solved(backend: Backend, factor: CorrelationFactor, c: Array) -> Array:
    half = backend.solve_triangular(factor.L, c, lower=True)
    return backend.solve_triangular(factor.L, half, lower=True, transpose=True)


def differences(image: np.ndarray, taper: int = 0) -> np.ndarray:
    """Forward differences along rows and along columns, faded out over `taper` pixels at the borders.

    Parameters
    ----------
    image : array, shape (height, width)
    taper : int
        >= 0. What lies beyond the border took part in the blur; fading keeps that from looking like an edge.
    """
    if image.ndim != 2 or min(image.shape) < 2:
        raise ProblemError(f"an image must be an array of shape (height, width), both >= 2, got {image.shape}")
    g = np.stack([np.diff(image[:-1, :], axis=1), np.diff(image[:, :-1], axis=0)])
    if taper:
        down, right = (ramp(n, taper) for n in g.shape[1:])
        g = g * down[:, None] * right
    return g


def ramp(n: int, over: int) -> np.ndarray:
    """Numbers that rise from 0 to 1 over some places from either end."""
    near = np.minimum(np.arange(n), np.arange(n)[::-1]) + 0.5
    return 0.5 - 0.5 * np.cos(np.pi * np.minimum(1.0, near / over))


def problem(g: np.ndarray, size: int, ridge: float = RIDGE) -> Problem:
    """The deblurring problem of difference images, whose set is the l1 ball of radius 1.

    Parameters
    ----------
    g : array, shape (2, height, width)
        As of `differences`.
    size : int
        Height and width of the kernel, odd.
    ridge : float
        > 0, without units: ``lam = ridge |g|_2^2 / |g|_1^2``.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> import xvarpro_deblurring as deblurring
    >>> g = deblurring.differences(np.random.default_rng(0).normal(size=(16, 16)), taper=3)
    >>> fit = xv.solve(deblurring.problem(g, 3), deblurring.start(g), over=xv.sets.L1Ball(1.0), max_iter=20)
    >>> fit.w.shape, bool(fit.value < fit.trace.value[0])
    ((9,), True)
    """
    if size < 1 or size % 2 == 0 or size > min(g.shape[1:]):
        raise ProblemError(f"size must be odd and no larger than the image, got {size} for {g.shape[1:]}")
    positive(ridge=ridge)
    length = float(np.sum(np.abs(g)))
    if not length:
        raise ProblemError("the image is constant: nothing in it shows the blur")
    half = size // 2
    y = np.pad(g, ((0, 0), (half, half), (half, half)))  # so that the kernel of no blur is the one in the middle
    lam = ridge * float(np.sum(g * g)) / length**2
    return xv.separable(Blur(size), y.reshape(-1), lam=lam, solver=Correlation())


@final
@dataclass(frozen=True)
class Blur:
    """``M(u)`` for one size of the kernel, equal to another of that size: compiled loops are found again under it."""

    size: int

    def __call__(self, u: Array, data: Tree) -> StackedConvolution:
        return StackedConvolution(u, (self.size, self.size))


def start(g: np.ndarray) -> np.ndarray:
    """The blurred differences themselves, as if there were no blur, on the l1 sphere."""
    return g / np.sum(np.abs(g))
