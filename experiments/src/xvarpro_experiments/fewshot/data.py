"""Backbones of the few-shot experiment and the episodes that are drawn for them."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from xvarpro.errors import ProblemError
from xvarpro_experiments import datasets
from xvarpro_experiments.checks import one_of
from xvarpro_experiments.fewshot.problem import Features, Split, layer, targets
from xvarpro_experiments.trees import Array, Tree, size

HALVES = ("validation", "test")  # images are split in two: episodes of the one choose numbers, those of the other count


@dataclass(frozen=True)
class Scaled:
    """Features in other units: ``scale`` times as large. With ``lam scale^2`` the problem stays what it is."""

    features: Features
    scale: float

    def __call__(self, theta: Tree, X: Array) -> Array:
        return self.scale * self.features(theta, X)


@dataclass(frozen=True)
class Backbone:
    """A network whose first layers are frozen, and what they make of some images."""

    features: Features  # the trained layers, ``features(theta, X)``
    theta0: Tree  # their pretrained weights
    X: np.ndarray  # (samples, ...), what the frozen layers made of the images, computed once
    labels: np.ndarray  # (samples,), integers from 0 to ways - 1
    half: np.ndarray  # (samples,), 0 for images of validation episodes, 1 for those of test episodes
    source: str

    @property
    def ways(self) -> int:
        """Classes."""
        return int(np.max(self.labels)) + 1

    @property
    def size(self) -> int:
        """Entries of theta."""
        return size(self.theta0)


@dataclass(frozen=True)
class Episode:
    """What is learned from, two splits with `shots` examples of every class, and the images X that it is tested on."""

    lower: Split
    upper: Split
    X: np.ndarray
    labels: np.ndarray


def episode(backbone: Backbone, shots: int, tests: int, seed: int, half: str = "test") -> Episode:
    """Shots of two splits, and other images to test on, as many of each class."""
    if min(shots, tests) < 1 or seed < 0:
        raise ProblemError(f"shots and tests must be >= 1, seed >= 0, got {shots}, {tests}, {seed}")
    one_of("half", half, HALVES)
    which = HALVES.index(half)
    rng = np.random.default_rng([which, seed])
    mine = backbone.half == which
    drawn = [rng.permutation(np.flatnonzero(mine & (backbone.labels == c))) for c in range(backbone.ways)]
    if min(map(len, drawn)) <= 2 * shots:
        raise ProblemError(
            f"an episode of {shots} + {shots} shots needs more than {2 * shots} {half} images of every class, "
            f"got {min(map(len, drawn))}"
        )
    parts = (slice(shots), slice(shots, 2 * shots), slice(2 * shots, 2 * shots + tests))
    *shown, rest = (np.concatenate([d[part] for d in drawn]) for part in parts)
    one, two = (Split(backbone.X[i], targets(backbone.labels[i], backbone.ways, backbone.X.dtype)) for i in shown)
    return Episode(lower=two, upper=one, X=backbone.X[rest], labels=backbone.labels[rest])


def digits_backbone(folder: str | os.PathLike[str] | None = None, dtype: Any = np.float64) -> Backbone:
    """A network of three tanh layers, pretrained here on the digits 0 to 4, for episodes with 5 to 9.

    MNIST's test images from `folder`, or where ``$XVARPRO_DATA`` has them, else the digits that come with scikit-learn.
    The first two layers are frozen, the third is theta.
    """
    H, labels, A, b, source = _pretrained(str(folder or os.environ.get(datasets.VARIABLE, "")), folder is not None)
    half = np.random.default_rng(0).permutation(len(labels)) % 2
    return Backbone(layer, {"A": A.astype(dtype), "b": b.astype(dtype)}, H.astype(dtype), labels, half, source)


@cache
def _pretrained(folder: str, required: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, str]:
    """What the first two layers make of the digits 5 to 9, their labels from 0, the third layer, and its source."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    images, labels, source = _labelled_digits(folder, required)
    known = labels < 5
    iterations = max(10, 60_000 // np.count_nonzero(known))
    network = MLPClassifier((128, 64, 64), activation="tanh", random_state=0, max_iter=iterations)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # its limit is meant: features, not a classifier
        network.fit(images[known], labels[known])
    score = 100 * float(network.score(images[known], labels[known]))
    H = images[~known]
    for A, b in zip(network.coefs_[:2], network.intercepts_[:2], strict=True):
        H = np.tanh(H @ A + b)
    source += f"; 3 tanh layers pretrained on 0-4 ({score:.1f} % right there), episodes with 5-9"
    return H, labels[~known] - 5, network.coefs_[2], network.intercepts_[2], source


def _labelled_digits(folder: str, required: bool) -> tuple[np.ndarray, np.ndarray, str]:
    path = datasets.find_mnist(folder)
    if path is not None:
        for test in (path.with_name(path.name.replace("train-images", "t10k-images")), path):
            names = test.with_name(test.name.replace("images-idx3", "labels-idx1"))
            if test.is_file() and names.is_file():
                images, labels = datasets.read_idx(test), datasets.read_idx(names).astype(np.int64)
                if images.ndim != 3 or labels.shape != images.shape[:1]:
                    said = f"{names} must hold a label for each image of {test.name}"
                    raise ProblemError(f"{said}; got arrays of {labels.shape} and {images.shape}")
                n = min(10000, len(images))
                return images[:n].reshape(n, -1) / 255.0, labels[:n], f"MNIST, {n} images"
    if required:
        raise ProblemError(
            f"data must be a folder with images of MNIST and their labels, or have a subfolder mnist; got {folder}"
        )
    from sklearn.datasets import load_digits  # only here

    images, labels = load_digits(return_X_y=True)
    return images / 16.0, labels.astype(np.int64), f"scikit-learn digits, {len(images)} images"
