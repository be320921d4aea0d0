"""Statistics of fits: predictions, standard errors, covariances, reports."""

from xvarpro.statistics.linear_theory import Propagated, Statistics, linear_theory
from xvarpro.statistics.prediction import fitted, predict, residuals
from xvarpro.statistics.report import Report, report

__all__ = ["Propagated", "Report", "Statistics", "fitted", "linear_theory", "predict", "report", "residuals"]
