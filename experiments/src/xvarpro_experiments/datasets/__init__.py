"""Data for the experiments: what the user has, and what comes with scikit-learn where there is nothing else."""

from xvarpro_experiments.datasets._find import VARIABLE
from xvarpro_experiments.datasets.cifar import Labelled, cifar10, find_cifar10
from xvarpro_experiments.datasets.grey import Images, digits, find_mnist, images, mnist, read_idx
from xvarpro_experiments.datasets.photographs import Photograph, find_photographs, photographs, scene

__all__ = [
    "VARIABLE", "Images", "Labelled", "Photograph", "cifar10", "digits", "find_cifar10", "find_mnist",
    "find_photographs", "images", "mnist", "photographs", "read_idx", "scene",
]  # fmt: skip
