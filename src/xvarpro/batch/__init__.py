"""Batches of independent problems: each has its own theta and w, all are solved together."""

from xvarpro.algorithms.levenberg_marquardt import LevenbergMarquardt
from xvarpro.batch.driver import solve_many
from xvarpro.batch.lift import lifted
from xvarpro.batch.minima import Minimum, Multistart
from xvarpro.batch.multistart import multistart
from xvarpro.batch.result import ManyResult
from xvarpro.problem.each import Each

__all__ = ["Each", "LevenbergMarquardt", "ManyResult", "Minimum", "Multistart", "lifted", "multistart", "solve_many"]
