"""The blur of a photograph from coarse to fine, with nothing but the photograph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from xvarpro_experiments.trees import Array, Tree

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro_deblurring.blur import RIDGE, Blur, differences, gram, problem, start

CONTINUATION = (30.0, 10.0, 3.0, 1.0)  # factors on the ridge, one after the other: the strongest edges come first


def estimate(image: np.ndarray, size: int = 27, iterations: int = 15) -> np.ndarray:
    """The blur of a photograph, from coarse to fine: a kernel of shape (size, size), nonnegative, of sum 1.

    At every scale `problem` is solved for a falling ridge, from the edges that the scale before found. The kernel is
    eliminated, so that only edges are handed on. Nothing but the blurred image is used.

    The image is grey, of shape (height, width), and `size`, odd and >= 3, the side of a square that holds the kernel;
    `iterations` are for each factor on the ridge, at each scale.

    Examples
    --------
    >>> import xvarpro_deblurring as deblurring
    >>> kernel = deblurring.estimate(deblurring.scene(48).blurred, size=5, iterations=3)
    >>> kernel.shape, round(float(kernel.sum()), 12)
    ((5, 5), 1.0)
    """
    g, u = before(image, size, size, iterations)
    return spread_function(refined(u, g, size, iterations), g, size)


def before(image: np.ndarray, size: int, scale: int, iterations: int = 15) -> tuple[np.ndarray, np.ndarray]:
    """Differences of an image at a scale, and the start that the coarser scales lead to."""
    known = scales(size)
    if scale not in known:
        raise ProblemError(f"scale must be one of {known} for a kernel of size {size}, got {scale}")
    g, u = handed_on(image, size, known[0], None)
    for coarse, fine in itertools.pairwise(known[: known.index(scale) + 1]):
        g, u = handed_on(image, size, fine, refined(u, g, coarse, iterations))
    return g, u


def refined(u: np.ndarray, g: np.ndarray, scale: int, iterations: int) -> np.ndarray:
    """Edges at one scale, centred."""
    options: dict[str, Any] = {"max_iter": iterations, "tol": 1e-6, "progress": False}
    spectral, ball = xv.algorithms.SpectralProjectedGradient(), xv.sets.L1Ball(1.0)
    for factor in CONTINUATION:
        fit = xv.solve(problem(g, scale, RIDGE * factor), u, over=ball, algorithm=spectral, **options)
        u = fit.theta
    return centred(u, np.asarray(fit.w).reshape(scale, scale))


def scales(size: int) -> list[int]:
    """Sizes of the kernel from coarse to fine, odd, a factor of sqrt(2) or a little more apart."""
    if size < 3 or size % 2 == 0:
        raise ProblemError(f"size must be odd and >= 3, got {size}")
    found = [size]
    while found[-1] > 3:
        smaller = int(found[-1] / math.sqrt(2))
        found.append(max(3, min(smaller - 1 + smaller % 2, found[-1] - 2)))
    return found[::-1]


def handed_on(image: np.ndarray, size: int, scale: int, u: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Differences of the image at a scale, and where to start there, from the edges of the scale before if any."""
    smaller = resized(image, tuple(round(n * scale / size) for n in image.shape))
    g = differences(smaller, max(2, scale // 2 + 1))
    return g, start(g) if u is None else start(resized(u, g.shape[1:]))


def centred(u: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Edges moved by whole pixels so that the kernel's centre of mass comes to its middle."""
    mass = np.maximum(w, 0.0)
    total = float(np.sum(mass)) or 1.0
    centre = [float(np.sum(mass.sum(axis=1 - a) * np.arange(n))) / total for a, n in enumerate(w.shape)]
    offset = tuple(round(c - (n - 1) / 2) for c, n in zip(centre, w.shape, strict=True))
    return np.roll(u, offset, axis=(1, 2))


def amplitude(h: Array, data: Tree) -> Array:
    """``M(h)``: one column, the blurred edges of a kernel h; its weight is their amplitude."""
    return xv.array_namespace(h).expand_dims(data["R"] @ h, axis=1)


def spread_function(u: np.ndarray, g: np.ndarray, size: int, ridge: float = 1e-2) -> np.ndarray:
    """The kernel on the simplex that fits the edges: ``min 1/2 |a (h * u) - g|^2`` over ``h >= 0, sum h = 1`` and a.

    Another separable problem, the amplitude a eliminated, and a small one: its data are compressed to as many rows as
    the kernel has entries.
    """
    M, half = Blur(size)(u, None), size // 2
    y = np.pad(g, ((0, 0), (half, half), (half, half))).reshape(-1, 1)
    G = np.asarray(gram(M))
    R = np.linalg.cholesky(G + max(ridge, 1e-9) * G[0, 0] * np.eye(size * size)).T
    target = np.linalg.solve(R.T, np.asarray(M.rmatvec(y)))[:, 0]
    stated = xv.separable(amplitude, target, data={"R": R})
    h0 = np.full(size * size, 1.0 / size**2)
    h = xv.solve(stated, h0, over=xv.sets.Simplex(), max_iter=300, tol=1e-5, progress=False).theta
    return np.reshape(h, (size, size))


def resized(images: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Images at another size, by linear interpolation, averaged where they shrink."""
    down, right = (_interpolation(m, n) for m, n in zip(shape, images.shape[-2:], strict=True))
    return down @ images @ right.T


def _interpolation(m: int, n: int) -> np.ndarray:
    """Rows of weights: a triangle of the width of the coarser of two grids of m and n pixels over one interval."""
    width = max(1.0, n / m)
    at = (np.arange(m)[:, None] + 0.5) * (n / m) - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(at - np.arange(n)) / width)
    return weights / weights.sum(axis=1, keepdims=True)
