"""Methods on the reduced objective, all with the same certificate."""

from __future__ import annotations

from xvarpro.algorithms._blocks import Cyclic, Randomised, Separate, Simultaneous, Together
from xvarpro.algorithms._corrective import AwayStep, BlendedPairwise, Pairwise
from xvarpro.algorithms.accelerated import AcceleratedProjectedGradient
from xvarpro.algorithms.active_set import ActiveSetFrankWolfe
from xvarpro.algorithms.frank_wolfe import FrankWolfe, cr_varpro
from xvarpro.algorithms.in_face import InFaceFrankWolfe, InFaceGradient
from xvarpro.algorithms.quasi_newton import InFaceQuasiNewton, ProjectedQuasiNewton
from xvarpro.algorithms.reseed import PrincipalDirections, Reseeded, WorstSamples
from xvarpro.algorithms.spectral import SpectralProjectedGradient
from xvarpro.algorithms.stochastic import Momentum, StochasticFrankWolfe, VarianceReduced
from xvarpro.protocols import Algorithm

__all__ = [
    "AcceleratedProjectedGradient",
    "ActiveSetFrankWolfe",
    "Algorithm",
    "AwayStep",
    "BlendedPairwise",
    "Cyclic",
    "FrankWolfe",
    "InFaceFrankWolfe",
    "InFaceGradient",
    "InFaceQuasiNewton",
    "Momentum",
    "Pairwise",
    "PrincipalDirections",
    "ProjectedQuasiNewton",
    "Randomised",
    "Reseeded",
    "Separate",
    "Simultaneous",
    "SpectralProjectedGradient",
    "StochasticFrankWolfe",
    "Together",
    "VarianceReduced",
    "WorstSamples",
    "choose",
    "cr_varpro",
]


SMALL = 64  # entries of theta up to which the spectral method was the faster one


def choose(has_projection: bool, size: int) -> Algorithm:
    """The default, by the sets and the number of entries of theta.

    Spectral projected gradient for a few rates or weights, where it needs a third of the evaluations; accelerated
    projected gradient for dictionaries and networks, where it ends lower; Frank-Wolfe with an estimated L where some
    set has no projection. ``benchmarks/default.py`` prints the measurements behind the rule.

    Parameters
    ----------
    has_projection : bool
        Whether every set offers a projection.
    size : int
        Entries of theta.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.choose(has_projection=True, size=3)
    SpectralProjectedGradient(memory=10, gamma=0.0001, limit=40)
    >>> xv.algorithms.choose(has_projection=True, size=100_000)
    AcceleratedProjectedGradient(shrink=0.8, grow=2.0, limit=60)
    """
    if not has_projection:
        return FrankWolfe(blocks=Separate())
    return SpectralProjectedGradient() if size <= SMALL else AcceleratedProjectedGradient()
