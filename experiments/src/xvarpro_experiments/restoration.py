"""A photograph without its blur, as far as its own parts agree on what the blur is.

A wrong kernel makes an image worse than the blur did, and nothing in the image says so. But every part of a photograph
shows the same blur. Kernels that are estimated without a quarter of it, at the top, the bottom, the left or the right,
undo the blur in four ways, and how far these lie from that of the whole tells how much of what sharpening has changed
is error. That is taken back: with x the sharpened image, y the blurred one and E the error,
``y + max(0, 1 - |E|^2 / |x - y|^2) (x - y)`` is Stein's estimator of the sharp image around the blurred one (James and
Stein, 1961). The median of four distances stands for ``|E|^2``: one part may be without any edge to go by.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from xvarpro_experiments.pyramid import estimate
from xvarpro_experiments.sharpening import sharpen

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


def restore(image: np.ndarray, size: int = 27, weight: float = 5e-4, **options: Any) -> Restoration:
    """Estimate the blur of a photograph from nothing but the photograph, and undo what of it can be relied on.

    Parameters
    ----------
    image : array, shape (height, width)
        Blurred, grey, in [0, 1].
    size : int
        As in `pyramid.estimate`.
    weight : float
        As in `sharpening.sharpen`.
    **options
        Of `pyramid.estimate`.

    Examples
    --------
    >>> from xvarpro_experiments.datasets import scene
    >>> from xvarpro_experiments.restoration import restore
    >>> found = restore(scene(48).blurred, size=5, iterations=3)
    >>> found.image.shape, 0 <= found.trust <= 1
    ((48, 48), True)
    """
    kernel = estimate(image, size, **options).kernel
    reach = size // 2
    sharpened = aligned(sharpen(image, kernel, weight), image, reach)
    inside = (slice(reach, -reach), slice(reach, -reach))

    def apart(x: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean((x - y)[inside] ** 2))

    errors = []
    for part in parts(image, size):
        other = sharpen(image, estimate(part, size, **options).kernel, weight)
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

    A kernel and an image are known up to a shift together. What comes in at a border is the border.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro_experiments.restoration import aligned
    >>> x = np.random.default_rng(0).uniform(size=(16, 16))
    >>> moved = aligned(np.roll(x, (1, -2), axis=(0, 1)), x, 3)
    >>> bool((moved[3:-3, 3:-3] == x[3:-3, 3:-3]).all())
    True
    """
    height, width = image.shape
    padded = np.pad(image, reach, mode="edge")
    shifts = [
        padded[down : down + height, right : right + width]
        for down in range(2 * reach + 1)
        for right in range(2 * reach + 1)
    ]
    inside = (slice(reach, -reach), slice(reach, -reach))
    return min(shifts, key=lambda x: float(np.sum((x - like)[inside] ** 2)))
