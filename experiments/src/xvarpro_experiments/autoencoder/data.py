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
_NAMES = ("mnist", "cifar10", "digits")


@dataclass(frozen=True)
class Data:
    """Images as rows, centred by the mean of the training images: neither the decoder nor PCA has an offset then.

    Attributes
    ----------
    train : array, shape (samples, pixels), float64
        In units of the largest intensity.
    test : array, shape (test samples, pixels), float64
    mean : array, shape (pixels,)
    shape : tuple of int
        Of an image: (height, width), or (channels, height, width).
    name, source : str
    fallback : str
        Why these are not the real images; empty where they are.
    """

    train: np.ndarray
    test: np.ndarray
    mean: np.ndarray
    shape: tuple[int, ...]
    name: str
    source: str
    fallback: str = ""

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
    """The first images of a data set, or the digits where it is not there.

    Parameters
    ----------
    name : str
        ``"mnist"``, ``"cifar10"`` or ``"digits"``.
    samples, test_samples : int, optional
        All that there are by default.
    folder : path, optional
        Where the files are; ``$XVARPRO_DATA`` by default.

    Examples
    --------
    >>> from xvarpro_experiments import autoencoder
    >>> data = autoencoder.load("digits")
    >>> data.train.shape, data.test.shape
    ((1400, 64), (397, 64))
    """
    one_of("data", name, _NAMES)
    whole(samples=1 if samples is None else samples, test_samples=1 if test_samples is None else test_samples)
    if name == "mnist":
        train, test = datasets.find_mnist(folder), datasets.find_mnist(folder, train=False)
        if train is not None and test is not None:
            learnt, held = datasets.mnist(train, samples), datasets.mnist(test, test_samples)
            shape = (learnt.side, learnt.side)
            return centred(learnt.X.T, held.X.T, shape, name, f"{learnt.source}, {held.X.shape[1]} test images")
        missing = "MNIST's training and test images"
    elif name == "cifar10":
        if datasets.find_cifar10(folder) is not None:
            parts = [datasets.cifar10(folder, part, n) for part, n in ((True, samples), (False, test_samples))]
            train_rows, test_rows = (x.images.reshape(len(x.images), -1) / 255.0 for x in parts)
            shape, source = parts[0].images.shape[1:], f"{parts[0].source}, {len(test_rows)} test images"
            return centred(train_rows, test_rows, shape, name, source)
        missing = "CIFAR-10's binary files"
    else:
        return _digits(samples, test_samples, "")
    if folder is not None:
        raise ProblemError(f"{folder} and its subfolders lack {missing}")
    where = f"${datasets.VARIABLE}" if os.environ.get(datasets.VARIABLE) else f"${datasets.VARIABLE}, which is not set,"
    return _digits(samples, test_samples, f"{where} holds no {missing}: this runs on scikit-learn's 8 x 8 digits")


def _digits(samples: int | None, test_samples: int | None, fallback: str) -> Data:
    X = datasets.digits().X.T
    train, test = X[:-_HELD_OUT][:samples], X[-_HELD_OUT:][:test_samples]
    source = f"scikit-learn digits, {len(train)} training images, {len(test)} test images"
    return centred(train, test, (8, 8), "digits", source, fallback)
