"""Columns of designs for curves and spectra: peaks, decays, oscillations, polynomials, and how they are joined."""

from xvarpro.models.composition import columns
from xvarpro.models.kinetics import decays, exponentials, oscillations
from xvarpro.models.peaks import gaussians, lorentzians, pseudo_voigts
from xvarpro.models.polynomials import polynomials

__all__ = [
    "columns",
    "decays",
    "exponentials",
    "gaussians",
    "lorentzians",
    "oscillations",
    "polynomials",
    "pseudo_voigts",
]
