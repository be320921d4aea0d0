"""Batches of independent problems: each has its own theta and w, all are solved together."""

from xvarpro.algorithms.levenberg_marquardt import LevenbergMarquardt
from xvarpro.batch.driver import solve_many
from xvarpro.batch.prepare import Each
from xvarpro.batch.result import ManyResult

__all__ = ["Each", "LevenbergMarquardt", "ManyResult", "solve_many"]
