"""Sparse autoencoder with latent-dimension selection, Example 1: see `problem`, `experiment` and `sweep`."""

from xvarpro_experiments.autoencoder.comparison import (
    LATENTS,
    LOSS,
    MSE,
    Setting,
    collapse,
    experiment,
    quasi_newton,
    setting,
)
from xvarpro_experiments.autoencoder.data import Data, centred, load
from xvarpro_experiments.autoencoder.methods import PCA, Adam
from xvarpro_experiments.autoencoder.model import (
    RHO,
    Kept,
    active,
    over,
    pca_loss,
    principal_axes,
    problem,
    reconstruction_loss,
    start,
)
from xvarpro_experiments.autoencoder.selection import sweep

__all__ = [
    "LATENTS", "LOSS", "MSE", "PCA", "RHO", "Adam", "Data", "Kept", "Setting", "active", "centred", "collapse",
    "experiment", "load", "over", "pca_loss", "principal_axes", "problem", "quasi_newton", "reconstruction_loss",
    "setting", "start", "sweep",
]  # fmt: skip
