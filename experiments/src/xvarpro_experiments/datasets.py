"""Data for the experiments: what the user has, and what comes with scikit-learn where there is nothing else."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xvarpro.errors import ProblemError

VARIABLE = "XVARPRO_DATA"


def find(names: Iterable[str], below: Iterable[str], folder: str | os.PathLike[str] | None = None) -> Path | None:
    """The first file or folder of such a name below `folder` or ``$XVARPRO_DATA``, None where there is none."""
    root = folder or os.environ.get(VARIABLE)
    if not root:
        return None
    names = tuple(names)
    return next((p for sub in below for name in names if (p := Path(root, sub, name)).exists()), None)


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


# in the binary layout: a byte of label and 3 x 32 x 32 bytes of colour for every image
_TRAIN, _TEST = tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"
_RECORD = 1 + 3 * 32 * 32


@dataclass(frozen=True)
class Labelled:
    """Colour images, shape (samples, 3, 32, 32), uint8, with their classes, 0 to 9."""

    images: np.ndarray
    labels: np.ndarray
    source: str


def find_cifar10(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Folder of CIFAR-10's binary files under `folder` or ``$XVARPRO_DATA``, None where there is none."""
    batch = find([_TEST], ("", "cifar-10-batches-bin", "cifar10", "cifar10/cifar-10-batches-bin"), folder)
    return None if batch is None else batch.parent


def cifar10(folder: str | os.PathLike[str] | None = None, train: bool = True, samples: int | None = None) -> Labelled:
    """The first `samples` images of the training batches that are there, or of the test batch."""
    where = find_cifar10(folder)
    if where is None:
        raise ProblemError(f"no {_TEST} in {folder or f'${VARIABLE}'} or its subfolders: CIFAR-10 in its binary layout")
    paths = [p for name in (_TRAIN if train else (_TEST,)) if (p := where / name).is_file()]
    if not paths:
        raise ProblemError(f"{where} holds no {_TRAIN[0]}")
    records = np.concatenate([_records(path) for path in paths])[:samples]
    images = np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, 32, 32)
    part = "training" if train else "test"
    return Labelled(images, records[:, 0].astype(np.int64), f"CIFAR-10, {len(records)} {part} images")


def _records(path: Path) -> np.ndarray:
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    if raw.size == 0 or raw.size % _RECORD:
        raise ProblemError(f"{path} holds {raw.size} bytes, not a whole number of records of {_RECORD}")
    return raw.reshape(-1, _RECORD)
