"""Images as rows for the autoencoder: real ones where the user has them, scikit-learn's digits elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from xvarpro.errors import ProblemError
from xvarpro_experiments import datasets
from xvarpro_experiments.checks import one_of, whole

_HELD_OUT = 397  # of the 1797 digits


@dataclass(frozen=True)
class Data:
    """Images as rows, centred by the mean of the training images: neither the decoder nor PCA has an offset then."""

    train: np.ndarray  # (samples, pixels), float64, in units of the largest intensity
    test: np.ndarray  # (test samples, pixels)
    mean: np.ndarray  # (pixels,)
    shape: tuple[int, ...]  # of an image: (height, width), or (channels, height, width)
    name: str
    source: str
    fallback: str = ""  # why these are not the real images; empty where they are

    def __post_init__(self) -> None:
        if self.train.shape[0] < 2 or self.test.shape[0] < 1 or self.train.shape[1] != self.test.shape[1]:
            raise ProblemError(
                "an autoencoder needs two training images and a test image of one size, "
                f"got arrays of shape {self.train.shape} and {self.test.shape}"
            )

    @cached_property
    def rms(self) -> float:
        """Root mean square of the centred training images: the encoder's inputs are divided by it."""
        flat = self.train.reshape(-1)
        return float(np.sqrt(np.dot(flat, flat) / flat.size))


def centred(
    train: np.ndarray,
    test: np.ndarray,
    shape: tuple[int, ...],
    name: str = "user",
    source: str = "",
    fallback: str = "",
) -> Data:
    """Images as rows, with the training mean taken from both parts."""
    mean = train.mean(axis=0)
    return Data(train - mean, test - mean, mean, tuple(shape), name, source, fallback)


def load(
    name: str = "mnist",
    samples: int | None = None,
    test_samples: int | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Data:
    """The first images of ``"mnist"``, ``"cifar10"`` or ``"digits"``, or the digits where these are not there.

    There are `samples` to train on and `test_samples`, all by default, of the files in `folder`, ``$XVARPRO_DATA`` by
    default.

    Examples
    --------
    >>> from xvarpro_experiments import autoencoder
    >>> data = autoencoder.load("digits")
    >>> data.train.shape, data.test.shape
    ((1400, 64), (397, 64))
    """
    one_of("data", name, ("mnist", "cifar10", "digits"))
    whole(samples=samples, test_samples=test_samples)
    counts, missing = (samples, test_samples), ""
    if name == "mnist":
        paths = [datasets.find_mnist(folder, train) for train in (True, False)]
        if None not in paths:
            grey = [datasets.mnist(path, n) for path, n in zip(paths, counts, strict=True) if path is not None]
            shape, source = (grey[0].side, grey[0].side), f"{grey[0].source}, {grey[1].X.shape[1]} test images"
            return centred(grey[0].X.T, grey[1].X.T, shape, name, source)
        missing = "training and test images of MNIST"
    elif name == "cifar10":
        if datasets.find_cifar10(folder) is not None:
            parts = [datasets.cifar10(folder, train, n) for train, n in zip((True, False), counts, strict=True)]
            train, test = (x.images.reshape(len(x.images), -1) / 255.0 for x in parts)
            source = f"{parts[0].source}, {len(test)} test images"
            return centred(train, test, parts[0].images.shape[1:], name, source)
        missing = "binary files of CIFAR-10"
    if missing and folder is not None:
        raise ProblemError(f"{folder} and its subfolders lack {missing}")
    X = datasets.digits().X.T
    train, test = X[:-_HELD_OUT][:samples], X[-_HELD_OUT:][:test_samples]
    source = f"scikit-learn digits, {len(train)} training images, {len(test)} test images"
    why = missing and f"No {missing} in ${datasets.VARIABLE}: this runs on scikit-learn's 8 x 8 digits"
    return centred(train, test, (8, 8), "digits", source, why)
