"""Statistics of fits: predictions, standard errors, covariances, intervals, reports."""

from xvarpro.statistics.bootstrap import Bootstrap
from xvarpro.statistics.intervals import IntervalMethod, Intervals, Linear, interval
from xvarpro.statistics.linear_theory import Propagated, Statistics, linear_theory
from xvarpro.statistics.prediction import fitted, predict, residuals
from xvarpro.statistics.profile import Curve, Profile, profile
from xvarpro.statistics.report import Report, report

__all__ = [
    "Bootstrap",
    "Curve",
    "IntervalMethod",
    "Intervals",
    "Linear",
    "Profile",
    "Propagated",
    "Report",
    "Statistics",
    "fitted",
    "interval",
    "linear_theory",
    "predict",
    "profile",
    "report",
    "residuals",
]
