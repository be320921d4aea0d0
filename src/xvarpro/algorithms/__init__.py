"""Methods on the reduced objective, all with the same certificate."""

from __future__ import annotations

from xvarpro.algorithms.accelerated import AcceleratedProjectedGradient
from xvarpro.algorithms.frank_wolfe import FrankWolfe, Separate, Together, cr_varpro
from xvarpro.algorithms.spectral import SpectralProjectedGradient
from xvarpro.protocols import Algorithm

__all__ = [
    "AcceleratedProjectedGradient",
    "Algorithm",
    "FrankWolfe",
    "Separate",
    "SpectralProjectedGradient",
    "Together",
    "choose",
    "cr_varpro",
]


def choose(has_projection: bool) -> Algorithm:
    """The default: spectral projected gradient where every set has a projection, else adaptive Frank-Wolfe.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.choose(has_projection=True)
    SpectralProjectedGradient(memory=10, gamma=0.0001, limit=40)
    """
    return SpectralProjectedGradient() if has_projection else FrankWolfe(blocks=Separate())
