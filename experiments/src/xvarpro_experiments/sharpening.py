"""Deblurring with a kernel that is known, and how good an image is: what comes after a blind estimate."""

from __future__ import annotations

import math

import numpy as np

from xvarpro.errors import ProblemError

STAGES = 9


def sharpen(image: np.ndarray, kernel: np.ndarray, weight: float = 5e-4) -> np.ndarray:
    """``min 1/2 |k * x - y|^2 + weight (|D_1 x|_1 + |D_2 x|_1)`` in [0, 1], by half-quadratic splitting.

    The splitting's penalty doubles from stage to stage; every stage is a soft threshold and a division of spectra. The
    image is mirrored at its borders and faded into its own periodic blur there, so that the transform sees no jump.

    Parameters
    ----------
    image : array, shape (height, width)
        Blurred, in [0, 1].
    kernel : array, shape (size, size), size odd
    weight : float
        > 0, of the total variation.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro_experiments.sharpening import sharpen
    >>> flat = np.full((16, 16), 0.25)
    >>> bool(np.allclose(sharpen(flat, np.ones((3, 3)) / 9), flat))
    True
    """
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or kernel.shape[0] % 2 == 0:
        raise ProblemError(f"a kernel must be square with an odd side, got shape {kernel.shape}")
    if not 0 < weight < math.inf:
        raise ProblemError(f"weight must be a finite number > 0, got {weight}")
    pad = min(2 * len(kernel), *image.shape)
    y = np.pad(image, pad, mode="symmetric")
    K = _spectrum(kernel, y.shape)
    fade = np.minimum.outer(_ramp(y.shape[0], pad), _ramp(y.shape[1], pad))
    for _ in range(3):
        y = fade * y + (1 - fade) * np.fft.irfft2(K * np.fft.rfft2(y), y.shape)
    Y = np.conj(K) * np.fft.rfft2(y)
    steps = (np.array([[0.0, 0.0, 0.0], [0.0, -1.0, 1.0], [0.0, 0.0, 0.0]]),)
    D = [_spectrum(d, y.shape) for d in (steps[0], steps[0].T)]
    slopes = sum(np.abs(d) ** 2 for d in D)
    X = np.fft.rfft2(y)
    for stage in range(STAGES):
        penalty = 10 * weight * 2.0**stage
        right = Y.copy()
        for d in D:
            edges = np.fft.irfft2(d * X, y.shape)
            edges = np.sign(edges) * np.maximum(np.abs(edges) - weight / penalty, 0.0)
            right += penalty * np.conj(d) * np.fft.rfft2(edges)
        X = right / (np.abs(K) ** 2 + penalty * slopes)
    x = np.fft.irfft2(X, y.shape)[pad:-pad, pad:-pad]
    return np.clip(x, 0.0, 1.0)


def psnr(image: np.ndarray, sharp: np.ndarray, shift: int = 8, border: int = 30) -> float:
    """Peak signal-to-noise ratio in dB of an image in [0, 1], at the best shift by whole pixels.

    A blind estimate, and a camera, move the image by an amount that nobody knows.

    Parameters
    ----------
    image, sharp : array, shape (height, width)
    shift : int
        Largest one tried, along each axis, in [0, border].
    border : int
        Pixels of `sharp` that are left out at each side.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro_experiments.sharpening import psnr
    >>> sharp = np.random.default_rng(0).uniform(size=(20, 20))
    >>> round(psnr(np.roll(sharp, 2, axis=1) + 0.1, sharp, shift=3, border=4), 6)
    20.0
    """
    if image.shape != sharp.shape or not 0 <= shift <= border or 2 * border >= min(sharp.shape):
        raise ProblemError(
            f"psnr needs two images of one shape and 0 <= shift <= border < half of it, got shapes {image.shape} and "
            f"{sharp.shape}, shift {shift}, border {border}"
        )
    height, width = sharp.shape
    middle = sharp[border : height - border, border : width - border]
    best = min(
        float(np.mean((image[border + i : height - border + i, border + j : width - border + j] - middle) ** 2))
        for i in range(-shift, shift + 1)
        for j in range(-shift, shift + 1)
    )
    return -10 * math.log10(best) if best else math.inf


def _spectrum(kernel: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Transform of a kernel whose middle is the origin."""
    filled = np.zeros(shape)
    filled[: kernel.shape[0], : kernel.shape[1]] = kernel
    return np.fft.rfft2(np.roll(filled, (-(kernel.shape[0] // 2), -(kernel.shape[1] // 2)), axis=(0, 1)))


def _ramp(n: int, pad: int) -> np.ndarray:
    near = np.minimum(np.arange(n), np.arange(n)[::-1]) + 0.5
    return 0.5 - 0.5 * np.cos(np.pi * np.minimum(1.0, near / pad))
