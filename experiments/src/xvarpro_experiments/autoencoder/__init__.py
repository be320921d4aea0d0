"""Sparse autoencoder with latent-dimension selection, Example 1: see `problem` and `experiment`."""

from xvarpro_experiments.autoencoder.comparison import LATENTS, LOSS, experiment, setting
from xvarpro_experiments.autoencoder.data import Data, centred, load
from xvarpro_experiments.autoencoder.methods import PCA, Adam
from xvarpro_experiments.autoencoder.model import (
    active,
    over,
    pca_loss,
    principal_axes,
    problem,
    reconstruction_loss,
    start,
)
from xvarpro_experiments.methods import quasi_newton

__all__ = [
    "LATENTS", "LOSS", "PCA", "Adam", "Data", "active", "centred", "experiment", "load",
    "over", "pca_loss", "principal_axes", "problem", "quasi_newton", "reconstruction_loss", "setting", "start",
]  # fmt: skip
