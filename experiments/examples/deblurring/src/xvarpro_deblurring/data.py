"""Photographs that a camera's shake has blurred, and one that is blurred here where there are none."""

from __future__ import annotations

import itertools
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.signal import convolve2d
from xvarpro_experiments.datasets import VARIABLE, find

from xvarpro.errors import ProblemError

GREY = np.array([0.299, 0.587, 0.114])  # weights of colours, by Rec. 601
_FIRST, _KERNELS = "im1_kernel1_img.png", "kernels_conv.npz"
_NAME = re.compile(r"im(\d+)_kernel(\d+)_img\.png")


@dataclass(frozen=True)
class Photograph:
    """A blurred image, with the truth about it where that is known."""

    blurred: np.ndarray  # (height, width), grey values in [0, 1]
    sharp: np.ndarray | None  # of that shape, up to a shift
    kernel: np.ndarray | None  # square, nonnegative, sum 1; `sharp` convolved with it is `blurred` up to shift, noise
    name: str
    source: str


def find_photographs(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Folder of the blurred photographs under `folder` or ``$XVARPRO_DATA``, None where there is none."""
    first = find([_FIRST], ("", "levin09"), folder)
    return None if first is None else first.parent


def photographs(folder: str | os.PathLike[str] | None = None) -> list[Photograph]:
    """The photographs of Levin, Weiss, Durand and Freeman (2009) that are there: ``im<I>_kernel<K>_img.png``, the sharp
    ones as ``gt/im<I>.png``, the kernels as ``kernel<K>`` in ``kernels_conv.npz``.
    """
    where = find_photographs(folder)
    if where is None:
        raise ProblemError(f"no {_FIRST} in {folder or f'${VARIABLE}'} or its subfolder levin09")
    kernels: dict[str, np.ndarray] = {}
    if (where / _KERNELS).is_file():
        with np.load(where / _KERNELS, allow_pickle=False) as file:
            kernels = {name: np.asarray(file[name], np.float64) for name in file.files}
    found = sorted((int(m[1]), int(m[2]), p) for p in where.iterdir() if (m := _NAME.fullmatch(p.name)))
    sharp = {i: read_grey(p) for i in {i for i, *_ in found} if (p := where / "gt" / f"im{i}.png").is_file()}
    return [
        Photograph(read_grey(p), sharp.get(i), kernels.get(f"kernel{k}"), f"image {i}, kernel {k}", "Levin et al. 2009")
        for i, k, p in found
    ]


def read_grey(path: str | os.PathLike[str]) -> np.ndarray:
    """A PNG image as grey values in [0, 1]."""
    from matplotlib.image import imread  # only here

    try:
        x = np.asarray(imread(Path(path)), np.float64)
    except (OSError, SyntaxError) as error:  # Pillow's word for a file that is no PNG
        raise ProblemError(f"{path} is not a readable PNG image: {error}") from error
    if x.ndim == 3:
        x = x[..., :3] @ GREY if x.shape[2] >= 3 else x[..., 0]
    return x


def scene(side: int = 255, size: int = 15, noise: float = 0.003, seed: int = 0, name: str = "flower.jpg") -> Photograph:
    """A photograph bundled with scikit-learn, blurred here by a random path of a camera.

    Its side is from 16 to 300 pixels, that of the square that holds the kernel odd. `noise` is a standard deviation in
    grey values of [0, 1], `seed` that of path and noise. The tiles of ``name="china.jpg"`` repeat too finely for a
    blind method to see their blur.
    """
    from sklearn.datasets import load_sample_image  # only here

    margin = size // 2
    if not 16 <= side <= 300 or size < 1 or size % 2 == 0 or side < size:
        raise ProblemError(f"scene needs a side from 16 to 300 and an odd size up to it, got {side} and {size}")
    whole = (load_sample_image(name) @ GREY / 255.0)[60:, 180:][: side + 2 * margin, : side + 2 * margin]
    rng = np.random.default_rng(seed)
    kernel = shake(size, rng)
    blurred = convolve2d(whole, kernel, mode="valid")
    blurred = np.clip(blurred + noise * rng.normal(size=(side, side)), 0.0, 1.0)
    sharp = whole[margin : margin + side, margin : margin + side]
    return Photograph(blurred, sharp, kernel, f"{name}, seed {seed}", "scikit-learn's sample image, blurred here")


def shake(size: int, rng: np.random.Generator) -> np.ndarray:
    """Kernel of a camera that moved along a smooth random path, its centre of mass in the middle."""
    # a few slow waves: smooth, and as wide as the square allows
    t, order = np.linspace(0.0, 1.0, 40 * size), np.arange(1, 5)
    waves = rng.normal(size=(2, 4)) / order
    phases = rng.uniform(0.0, 2 * math.pi, size=(2, 4, 1))
    path = np.sum(waves[..., None] * np.sin(math.pi * order[:, None] * t + phases), axis=1)
    path -= path.mean(axis=1, keepdims=True)
    path *= 0.45 * (size - 1) / max(float(np.max(np.abs(path))), 1e-12)
    path += (size - 1) / 2
    corner, kernel = path.astype(int), np.zeros((size + 1, size + 1))
    for step in itertools.product((0, 1), repeat=2):  # a place between pixels is shared by the four around it
        pixel = corner + np.reshape(step, (2, 1))
        np.add.at(kernel, tuple(pixel), np.prod(1 - np.abs(path - pixel), axis=0))
    kernel = kernel[:size, :size]
    return kernel / kernel.sum()
