"""Statistics of fits: predictions, standard errors, covariances."""

from xvarpro.statistics.linear_theory import Propagated, Statistics, linear_theory
from xvarpro.statistics.prediction import fitted, predict, residuals

__all__ = ["Propagated", "Statistics", "fitted", "linear_theory", "predict", "residuals"]
