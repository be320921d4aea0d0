from xvarpro.algorithms._conditional_gradient import Separate, Together
from xvarpro.algorithms._corrective import AwayStep, BlendedPairwise, Pairwise
from xvarpro.algorithms.accelerated import AcceleratedProjectedGradient
from xvarpro.algorithms.active_set import ActiveSetFrankWolfe
from xvarpro.algorithms.choice import choose
from xvarpro.algorithms.frank_wolfe import FrankWolfe, cr_varpro
from xvarpro.algorithms.in_face import InFaceFrankWolfe, InFaceGradient
from xvarpro.algorithms.interface import Algorithm
from xvarpro.algorithms.levenberg_marquardt import LevenbergMarquardt
from xvarpro.algorithms.quasi_newton import InFaceQuasiNewton, ProjectedQuasiNewton
from xvarpro.algorithms.reseed import Reseeded
from xvarpro.algorithms.spectral import SpectralProjectedGradient
from xvarpro.algorithms.stochastic import (
    Momentum,
    StochasticFrankWolfe,
    StochasticProjectedGradient,
    VarianceReduced,
)
from xvarpro.algorithms.updates import SGD, Adam, Optax
from xvarpro.objective.mini_batch import AllRows, SameBatch, SecondBatch

__all__ = [
    "SGD",
    "AcceleratedProjectedGradient",
    "ActiveSetFrankWolfe",
    "Adam",
    "Algorithm",
    "AllRows",
    "AwayStep",
    "BlendedPairwise",
    "FrankWolfe",
    "InFaceFrankWolfe",
    "InFaceGradient",
    "InFaceQuasiNewton",
    "LevenbergMarquardt",
    "Momentum",
    "Optax",
    "Pairwise",
    "ProjectedQuasiNewton",
    "Reseeded",
    "SameBatch",
    "SecondBatch",
    "Separate",
    "SpectralProjectedGradient",
    "StochasticFrankWolfe",
    "StochasticProjectedGradient",
    "Together",
    "VarianceReduced",
    "choose",
    "cr_varpro",
]
