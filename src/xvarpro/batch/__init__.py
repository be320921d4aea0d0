"""Batches of independent problems: each has its own theta and w, all are solved together."""

from xvarpro.batch.driver import solve_many
from xvarpro.batch.methods import LevenbergMarquardt, Method, ShortStep, SpectralGradient, choose
from xvarpro.batch.prepare import Each
from xvarpro.batch.region import Regions
from xvarpro.batch.result import ManyResult

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
