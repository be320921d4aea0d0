"""Batches of independent problems: each has its own theta and w, all are solved together."""

from xvarpro.many.driver import solve_many
from xvarpro.many.methods import LevenbergMarquardt, Method, ShortStep, SpectralGradient, choose
from xvarpro.many.prepare import Each
from xvarpro.many.region import Regions
from xvarpro.many.result import ManyResult

__all__ = [
    "Each",
    "LevenbergMarquardt",
    "ManyResult",
    "Method",
    "Regions",
    "ShortStep",
    "SpectralGradient",
    "choose",
    "solve_many",
]
