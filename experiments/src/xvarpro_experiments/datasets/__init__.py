"""Data for the experiments: what the user has, and what comes with scikit-learn where there is nothing else."""

from xvarpro_experiments.datasets._find import VARIABLE, find
from xvarpro_experiments.datasets.cifar import Labelled, cifar10, find_cifar10
from xvarpro_experiments.datasets.grey import Images, digits, find_mnist, images, mnist, read_idx

__all__ = [
    "VARIABLE", "Images", "Labelled", "cifar10", "digits", "find", "find_cifar10", "find_mnist", "images", "mnist",
    "read_idx",
]  # fmt: skip
