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
from typing import Any, final

import numpy as np

import xvarpro as xv
from xvarpro import Problem
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro_experiments.convolutions import Correlation, StackedConvolution

RIDGE = 0.3


def design(u: Array, size: tuple[int, int]) -> StackedConvolution:
    """``M(u)``: convolution of a kernel with both difference images."""
    return StackedConvolution(u, size)


def differences(image: np.ndarray, taper: int = 0) -> np.ndarray:
    """Forward differences along rows and along columns, faded out over `taper` pixels at the borders.

    Parameters
    ----------
    image : array, shape (height, width)
    taper : int
        >= 0. What lies beyond the border took part in the blur; fading keeps that from looking like an edge.

    Returns
    -------
    array, shape (2, height - 1, width - 1)

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro_experiments import edges
    >>> edges.differences(np.array([[0.0, 1.0], [2.0, 5.0]])).ravel()
    array([1., 2.])
    """
    if image.ndim != 2 or min(image.shape) < 2:
        raise ProblemError(f"an image must be an array of shape (height, width), both >= 2, got {image.shape}")
    g = np.stack([np.diff(image[:-1, :], axis=1), np.diff(image[:, :-1], axis=0)])
    if taper:
        fades = []
        for n in g.shape[1:]:
            near = np.minimum(np.arange(n), np.arange(n)[::-1]) + 0.5
            fades.append(0.5 - 0.5 * np.cos(np.pi * np.minimum(1.0, near / taper)))
        g = g * fades[0][:, None] * fades[1]
    return g


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
    >>> from xvarpro_experiments import edges
    >>> g = edges.differences(np.random.default_rng(0).normal(size=(16, 16)), taper=3)
    >>> fit = xv.solve(edges.problem(g, 3), edges.start(g), over=xv.sets.L1Ball(1.0), max_iter=20)
    >>> fit.w.shape, bool(fit.value < fit.trace.value[0])
    ((9,), True)
    """
    if size < 1 or size % 2 == 0 or size > min(g.shape[1:]):
        raise ProblemError(f"size must be odd and no larger than the image, got {size} for {g.shape[1:]}")
    if not 0 < ridge < math.inf:
        raise ProblemError(f"ridge must be a finite number > 0, got {ridge}")
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
    """`design` for one size of the kernel, equal to another of that size: compiled loops are found again under it."""

    size: int

    def __call__(self, u: Array, data: Any) -> StackedConvolution:
        return design(u, (self.size, self.size))


def start(g: np.ndarray) -> np.ndarray:
    """The blurred differences themselves, as if there were no blur, on the l1 sphere."""
    return g / np.sum(np.abs(g))
