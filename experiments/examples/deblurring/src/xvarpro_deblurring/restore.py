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
from xvarpro_experiments import deconvolution
from xvarpro_experiments.checks import positive

from xvarpro.errors import ProblemError
from xvarpro_deblurring.blur import ramp
from xvarpro_deblurring.data import Photograph
from xvarpro_deblurring.estimate import estimate

STAGES = 9  # of the half-quadratic splitting
KEPT = 0.75  # of the height or of the width, in a part
DOUBT = 2 / 3  # the error of the whole over how far parts, which err a little more, lie from it; both squared


class Restoration(NamedTuple):
    """What was made of a photograph."""

    image: np.ndarray  # like the photograph, in [0, 1]
    kernel: np.ndarray  # (size, size), nonnegative, sum 1; from the whole photograph
    trust: float  # how much of the sharpening was kept: at 0 the parts agree on nothing, and it is the photograph


def restore(image: np.ndarray, size: int = 27, iterations: int = 15) -> Restoration:
    """Estimate the blur of a photograph from nothing but the photograph, and undo what of it can be relied on.

    The image is grey, of shape (height, width), in [0, 1]; the other arguments are those of `estimate`.
    """
    if np.ndim(image) != 2 or not np.all(np.abs(np.asarray(image) - 0.5) < 0.6):  # noise may go beyond a little
        raise ProblemError(
            f"an image must have shape (height, width) and grey values in [0, 1]; got shape {np.shape(image)}, values "
            f"from {np.min(image):.3g} to {np.max(image):.3g}. Divide by 255, weigh colours, or fill in what is missing"
        )
    kernel, reach = estimate(image, size, iterations), size // 2
    sharpened, moved = aligned(sharpen(image, kernel), image, reach)
    others = (sharpen(image, estimate(part, size, iterations)) for part in parts(image, size))
    errors = [aligned(other, sharpened, reach)[1] for other in others]
    trust = max(0.0, 1 - DOUBT * float(np.median(errors)) / moved) if moved else 0.0
    return Restoration(image + trust * (sharpened - image), kernel, trust)


def parts(image: np.ndarray, size: int) -> list[np.ndarray]:
    """An image without a quarter at the bottom, the top, the right, the left; at least some kernels of that size."""
    down, right = (max(round(KEPT * n), min(n, 3 * size)) for n in image.shape)
    return [image[:down], image[-down:], image[:, :right], image[:, -right:]]


def aligned(image: np.ndarray, like: np.ndarray, reach: int, border: int | None = None) -> tuple[np.ndarray, float]:
    """`image` moved to where it is nearest to `like`, and the mean square of what is between them within a border.

    It moves by whole pixels, at most `reach` along each axis, the width of the border by default; what comes in is
    its own border. A kernel and an image are known up to a shift together.
    """
    width = reach if border is None else border
    moved = np.lib.stride_tricks.sliding_window_view(np.pad(image, reach, mode="edge"), image.shape)
    inside = (slice(width, -width or None),) * 2
    errors = [float(np.mean((x - like)[inside] ** 2)) for row in moved for x in row]
    best = int(np.argmin(errors))
    return moved[divmod(best, moved.shape[1])], errors[best]


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
    K = spectrum(kernel, y.shape)
    fade = np.minimum.outer(ramp(y.shape[0], pad), ramp(y.shape[1], pad))
    for _ in range(3):
        y = fade * y + (1 - fade) * np.fft.irfft2(K * np.fft.rfft2(y), y.shape)
    Y = np.conj(K) * np.fft.rfft2(y)
    step = np.array([[0.0, -1.0, 1.0]])
    D = [spectrum(d, y.shape) for d in (step, step.T)]
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
    return np.clip(np.fft.irfft2(X, y.shape)[pad:-pad, pad:-pad], 0.0, 1.0)


def psnr(image: np.ndarray, sharp: np.ndarray, shift: int = 8, border: int = 30) -> float:
    """Peak signal-to-noise ratio in dB of an image in [0, 1], at the best shift by whole pixels.

    A blind estimate, and a camera, move the image by an unknown amount.
    """
    if image.shape != sharp.shape or not 0 <= shift <= border or 2 * border >= min(sharp.shape):
        raise ProblemError(
            f"psnr needs two images of one shape and 0 <= shift <= border < half of it, got shapes {image.shape} and "
            f"{sharp.shape}, shift {shift}, border {border}"
        )
    error = aligned(image, sharp, shift, border)[1]
    return -10 * math.log10(error) if error else math.inf


def spectrum(kernel: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
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
    """`restore` a photograph from its blurred image alone, and compare with the truth where that is known."""
    began, blurred, sharp, true = time.perf_counter(), photograph.blurred, photograph.sharp, photograph.kernel
    image, kernel, trust = restore(blurred, size, iterations)
    seconds = time.perf_counter() - began
    border = min(30, blurred.shape[0] // 4)

    def dB(x: np.ndarray) -> float:
        return math.nan if sharp is None else psnr(x, sharp, min(8, border), border)

    known, match = (math.nan,) * 2 if true is None else (dB(sharpen(blurred, true)), kernel_match(kernel, true))
    return Deblurred(photograph.name, dB(blurred), dB(image), known, match, trust, seconds, image, kernel, photograph)


def kernel_match(found: np.ndarray, true: np.ndarray) -> float:
    """Cosine of two kernels, whatever their sizes, at the best shift; negative entries of `found` count as 0."""
    side = found.shape[0] + true.shape[0]
    a, b = (np.pad(k, [(0, side - n) for n in k.shape]) for k in (np.maximum(found, 0.0), true))
    return deconvolution.match(a, b)
