"""Grey images as columns: MNIST where the user has it, the digits that come with scikit-learn anywhere."""

from __future__ import annotations

import gzip
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xvarpro.errors import ProblemError
from xvarpro_experiments.datasets._find import find

_MNIST = {True: "train-images-idx3-ubyte.gz", False: "t10k-images-idx3-ubyte.gz"}  # training images, test images


@dataclass(frozen=True)
class Images:
    """Grey images as columns of X, shape (side * side, samples), intensities in [0, 1]."""

    X: np.ndarray
    side: int
    source: str


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """Array of unsigned bytes in an IDX file, gzipped or not."""
    raw = Path(path).read_bytes()
    try:
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, OSError, zlib.error) as error:
        raise ProblemError(f"{path} is a damaged gzip file: {error}") from error
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ProblemError(f"{path} is not an IDX file of unsigned bytes")
    ndim = raw[3]
    if len(raw) < 4 + 4 * ndim:
        raise ProblemError(f"{path} ends before its header does")
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", ndim, 4))
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * ndim)
    if values.size != np.prod(shape):
        raise ProblemError(f"{path} declares the shape {shape} but holds {values.size} values")
    return values.reshape(shape)


def find_mnist(folder: str | os.PathLike[str] | None = None, train: bool = True) -> Path | None:
    """Path of MNIST's training or test images under `folder` or ``$XVARPRO_DATA``, None where there are none."""
    return find((_MNIST[train], _MNIST[train].removesuffix(".gz")), ("", "mnist"), folder)


def mnist(path: str | os.PathLike[str], samples: int | None = None) -> Images:
    """The first `samples` images of one of MNIST's files."""
    images = read_idx(path)
    if images.ndim != 3 or not images.size or images.shape[1] != images.shape[2]:
        raise ProblemError(f"{path} must hold square images, (samples, side, side); got an array of {images.shape}")
    images = images[:samples]
    n, side, _ = images.shape
    X = np.ascontiguousarray(images.reshape(n, side * side).T, dtype=np.float64) / 255.0
    part = "test" if Path(path).name.startswith("t10k") else "training"
    return Images(X, side, f"MNIST, {n} {part} images")


def digits(samples: int | None = None) -> Images:
    """The 8 x 8 digits bundled with scikit-learn."""
    from sklearn.datasets import load_digits  # only here

    X = load_digits().data[:samples].T / 16.0
    return Images(np.ascontiguousarray(X), 8, f"scikit-learn digits, {X.shape[1]} images")


def images(samples: int | None = None, folder: str | os.PathLike[str] | None = None) -> Images:
    """MNIST where `folder` or ``$XVARPRO_DATA`` has it, else the bundled digits."""
    path = find_mnist(folder)
    if path is None and folder is not None:
        raise ProblemError(f"no {_MNIST[True]} in {folder} or its subfolder mnist")
    return digits(samples) if path is None else mnist(path, samples)
