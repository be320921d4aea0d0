"""A photograph without its blur, as far as its own parts agree on what the blur is.

A wrong kernel makes an image worse than the blur did, and nothing in the image says so. But every part of a photograph
shows the same blur. Kernels that are estimated without a quarter of it, at the top, the bottom, the left or the right,
undo the blur in four ways, and how far these lie from that of the whole tells how much of what sharpening has changed
is error. That is taken back: with x the sharpened image, y the blurred one and E the error,
``y + max(0, 1 - |E|^2 / |x - y|^2) (x - y)`` is Stein's estimator of the sharp image around the blurred one (James and
Stein, 1961). The median of four distances is taken for ``|E|^2``: one part may be without any edge to go by.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from xvarpro_experiments.checks import positive
from xvarpro_experiments.deconvolution import match

from xvarpro.errors import ProblemError
from xvarpro_deblurring.blur import ramp
from xvarpro_deblurring.data import Photograph
from xvarpro_deblurring.estimate import estimate

STAGES = 9  # of the half-quadratic splitting
KEPT = 0.75  # of the height or of the width, in a part
DOUBT = 2 / 3  # the error of the whole over how far parts, which err a little more, lie from it; both squared


class Restoration(NamedTuple):
    """What was made of a photograph.

    Attributes
    ----------
    image : array
        Like the photograph, in [0, 1].
    kernel : array, shape (size, size)
        Nonnegative, sum 1; from the whole photograph.
    trust : float
        How much of the sharpening was kept, in [0, 1]: at 0 the parts agree on nothing, and `image` is the photograph.
    """

    image: np.ndarray
    kernel: np.ndarray
    trust: float


def restore(image: np.ndarray, size: int = 27, iterations: int = 15) -> Restoration:
    """Estimate the blur of a photograph from nothing but the photograph, and undo what of it can be relied on.

    Parameters
    ----------
    image : array, shape (height, width)
        Blurred, grey, in [0, 1].
    size, iterations : int
        As in `estimate`.
    """
    kernel = estimate(image, size, iterations)
    reach = size // 2
    sharpened = aligned(sharpen(image, kernel), image, reach)
    inside = (slice(reach, -reach), slice(reach, -reach))

    def apart(x: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean((x - y)[inside] ** 2))

    errors = []
    for part in parts(image, size):
        other = sharpen(image, estimate(part, size, iterations))
        errors.append(apart(aligned(other, sharpened, reach), sharpened))
    moved = apart(sharpened, image)
    trust = max(0.0, 1 - DOUBT * float(np.median(errors)) / moved) if moved else 0.0
    return Restoration(image + trust * (sharpened - image), kernel, trust)


def parts(image: np.ndarray, size: int) -> list[np.ndarray]:
    """An image without a quarter at the bottom, the top, the right, the left; at least some kernels of that size."""
    down, right = (max(round(KEPT * n), min(n, 3 * size)) for n in image.shape)
    return [image[:down], image[-down:], image[:, :right], image[:, -right:]]


def aligned(image: np.ndarray, like: np.ndarray, reach: int) -> np.ndarray:
    """`image` moved by whole pixels, at most `reach` along each axis, to where it is nearest to `like`.

    A kernel and an image are known up to a shift together.
    """
    inside = (slice(reach, -reach or None),) * 2
    return min(shifted(image, reach), key=lambda x: float(np.sum((x - like)[inside] ** 2)))


def shifted(image: np.ndarray, reach: int) -> list[np.ndarray]:
    """An image moved by whole pixels, at most `reach` along each axis; what comes in at a border is the border."""
    height, width = image.shape
    padded, n = np.pad(image, reach, mode="edge"), range(2 * reach + 1)
    return [padded[down : down + height, right : right + width] for down in n for right in n]


def sharpen(image: np.ndarray, kernel: np.ndarray, weight: float = 5e-4) -> np.ndarray:
    """``min 1/2 |k * x - y|^2 + weight (|D_1 x|_1 + |D_2 x|_1)`` in [0, 1], by half-quadratic splitting.

    The splitting's penalty doubles from stage to stage; every stage is a soft threshold and a division of spectra. The
    image is mirrored at its borders and faded into its own periodic blur there, so that the transform sees no jump.
    """
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or kernel.shape[0] % 2 == 0:
        raise ProblemError(f"a kernel must be square with an odd side, got shape {kernel.shape}")
    positive(weight=weight)
    pad = min(2 * len(kernel), *image.shape)
    y = np.pad(image, pad, mode="symmetric")
    K = _spectrum(kernel, y.shape)
    fade = np.minimum.outer(ramp(y.shape[0], pad), ramp(y.shape[1], pad))
    for _ in range(3):
        y = fade * y + (1 - fade) * np.fft.irfft2(K * np.fft.rfft2(y), y.shape)
    Y = np.conj(K) * np.fft.rfft2(y)
    step = np.array([[0.0, 0.0, 0.0], [0.0, -1.0, 1.0], [0.0, 0.0, 0.0]])
    D = [_spectrum(d, y.shape) for d in (step, step.T)]
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

    A blind estimate, and a camera, move the image by an unknown amount.
    """
    if image.shape != sharp.shape or not 0 <= shift <= border or 2 * border >= min(sharp.shape):
        raise ProblemError(
            f"psnr needs two images of one shape and 0 <= shift <= border < half of it, got shapes {image.shape} and "
            f"{sharp.shape}, shift {shift}, border {border}"
        )
    inside = (slice(border, -border or None),) * 2
    best = min(float(np.mean((x - sharp)[inside] ** 2)) for x in shifted(image, shift))
    return -10 * math.log10(best) if best else math.inf


def _spectrum(kernel: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Transform of a kernel whose middle is the origin."""
    filled = np.zeros(shape)
    filled[: kernel.shape[0], : kernel.shape[1]] = kernel
    return np.fft.rfft2(np.roll(filled, (-(kernel.shape[0] // 2), -(kernel.shape[1] // 2)), axis=(0, 1)))


@dataclass(frozen=True)
class Deblurred:
    """A photograph before and after, in dB where the sharp one is known; NaN elsewhere."""

    name: str
    blurred: float
    deblurred: float
    known: float
    match: float
    trust: float
    seconds: float
    image: np.ndarray
    kernel: np.ndarray
    photograph: Photograph

    def record(self) -> dict[str, Any]:
        """For a table."""
        return {key: x for key, x in vars(self).items() if isinstance(x, (str, float))}


def deblur(photograph: Photograph, size: int = 27, iterations: int = 15) -> Deblurred:
    """Estimate the blur of a photograph, undo what is sure of it, and compare with the truth where that is known.

    Parameters
    ----------
    photograph : Photograph
        Only its blurred image is used before the comparison.
    size, iterations
        As in `restore`.
    """
    began = time.perf_counter()
    image, kernel, trust = restore(photograph.blurred, size, iterations=iterations)
    seconds = time.perf_counter() - began
    sharp, true = photograph.sharp, photograph.kernel
    border = min(30, photograph.blurred.shape[0] // 4)
    shift = min(8, border)

    def dB(x: np.ndarray) -> float:
        return float("nan") if sharp is None else psnr(x, sharp, shift, border)

    return Deblurred(
        photograph.name,
        dB(photograph.blurred),
        dB(image),
        float("nan") if true is None else dB(sharpen(photograph.blurred, true)),
        float("nan") if true is None else kernel_match(kernel, true),
        trust,
        seconds,
        image,
        kernel,
        photograph,
    )


def kernel_match(found: np.ndarray, true: np.ndarray) -> float:
    """Cosine of two kernels, whatever their sizes, at the best shift; negative entries of `found` count as 0."""
    side = found.shape[0] + true.shape[0]
    a, b = (np.zeros((side, side)) for _ in range(2))
    a[: found.shape[0], : found.shape[1]] = np.maximum(found, 0.0)
    b[: true.shape[0], : true.shape[1]] = true
    return match(a, b)
