"""Blind deblurring of a photograph: Example 3 in two dimensions, with a set and a support that identify the kernel.

``min 1/2 |w * u - g|^2 + lam/2 |w|^2  over a small kernel w and over |u|_1 <= 1``: g are the two difference images of
the blurred photograph, u those of the sharp one up to a factor. w is eliminated, u is theta. Where the Frobenius ball
of the paper lets u be g, filtered, the l1 ball asks for few, strong edges; what was lost on the way to g is up to w.

The scale of u and w is free, ``(t u, w / t)``, and at the best one the radius and the ridge together cost
``lam/2 (|u|_1 |w|_2)^2``: a wide kernel has a small l2 norm, so that the trivial answer, no blur, is the expensive one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from array_api_compat import device
from xvarpro_experiments.checks import positive
from xvarpro_experiments.trees import Array, Tree

import xvarpro as xv
from xvarpro import Problem
from xvarpro.backends import Backend
from xvarpro.errors import ProblemError
from xvarpro.lower import LowerSolver
from xvarpro.lower.interface import Adjoint, Diagnosis, System
from xvarpro.operators import Convolution

RIDGE = 0.3


@final
@dataclass(frozen=True)
class Blur:
    """``M(u)``: what a kernel of `size` x `size` makes of the images u, zero outside, above each other.

    As one array they are convolved along three axes; along the first of them, which counts images, with a number. Equal
    to another of that size: compiled loops are found again under it.
    """

    size: int

    def __call__(self, u: Array, data: Tree) -> Convolution:
        return Convolution(u, (1, self.size, self.size))


def gram(M: Convolution) -> Array:
    """``M^T M`` as an array, whose entry (i, j) is the autocorrelation of the images at the lag i - j."""
    X, axes = M.spectrum(True)[0, ..., 0], (0, 1, 2)
    xp = xv.array_namespace(X)
    lags = xp.fft.irfftn(xp.astype(xp.abs(X) ** 2, X.dtype), s=M.layout.period, axes=axes)
    near = tuple(slice(2 * n - 1) for n in M.signal)
    lags = xp.roll(lags, tuple(n - 1 for n in M.signal), axis=axes)[near]
    return Convolution(lags, M.signal, "valid").dense()


class Factor(NamedTuple):
    """``M^T M + lam I = L L^T``."""

    L: Array


@final
@dataclass(frozen=True)
class Correlation(LowerSolver):
    """Normal equations of a `Blur`, whose matrix is the autocorrelation of the images.

    A few transforms and a Cholesky factorisation of the size of the kernel, where QR would need the dense design:
    166000 rows for a photograph. Errors grow with the square of the condition, which the ridge bounds by
    ``|M|^2 / lam``; a matrix that is not positive definite in working precision is NaN and ends a solve.
    """

    def factor(self, backend: Backend, system: System) -> Factor:
        M, ridge = system
        if not isinstance(M, Convolution) or not ridge.plain:
            raise ProblemError(
                f"Correlation solves a Convolution with one number lam and no Omega, got {type(M).__name__} and "
                f"{ridge!r:.80}"
            )
        G = gram(M)
        eye = xv.array_namespace(G).eye(G.shape[0], dtype=G.dtype, device=device(G))
        return Factor(backend.cholesky(G + ridge.lam * eye))

    def argmin(self, backend: Backend, system: System, factor: Factor, y: Array) -> Array:
        return _solved(backend, factor, system.M.rmatvec(y))

    def adjoint(
        self, backend: Backend, system: System, factor: Factor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        v = _solved(backend, factor, c)
        return Adjoint(system.M.matvec(v), ((r, v),), v)

    def diagnose(self, backend: Backend, system: System, factor: Factor, y: Array) -> Diagnosis:
        xp = xv.array_namespace(factor.L)
        bad = xp.any(xp.isnan(factor.L))
        L = xp.where(bad, xp.ones_like(factor.L), factor.L)
        s = backend.svd(L / xp.sqrt(xp.sum(L * L, axis=1, keepdims=True)))[1]
        kappa = xp.max(s) / xp.min(s)
        return Diagnosis.of(bad, xp.where(bad, xp.full_like(kappa, xp.inf), kappa))


def _solved(backend: Backend, factor: Factor, c: Array) -> Array:
    half = backend.solve_triangular(factor.L, c, lower=True)
    return backend.solve_triangular(factor.L, half, lower=True, transpose=True)


def differences(image: np.ndarray, taper: int = 0) -> np.ndarray:
    """Forward differences of a (height, width) image along rows and columns, faded out over >= 0 pixels at the borders.

    What lies beyond a border took part in the blur; fading keeps that from looking like an edge.
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

    g, of shape (2, height, width), is as of `differences`; `size`, odd, the height and width of the kernel; `ridge` > 0
    has no units: ``lam = ridge |g|_2^2 / |g|_1^2``.

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


def start(g: np.ndarray) -> np.ndarray:
    """The blurred differences themselves, as if there were no blur, on the l1 sphere."""
    return g / np.sum(np.abs(g))
