"""Statistics of fits: predictions, standard errors, covariances, intervals, reports."""

from xvarpro.statistics.bands import Band, band
from xvarpro.statistics.bootstrap import Bootstrap
from xvarpro.statistics.intervals import IntervalMethod, Intervals, Linear, interval
from xvarpro.statistics.prediction import fitted, predict, residuals
from xvarpro.statistics.profiles import Curve, Profile, profile
from xvarpro.statistics.reports import Report, report
from xvarpro.statistics.ridges import RidgePath, ridge_path
from xvarpro.statistics.standard_errors import Propagated, Statistics, linear_theory
from xvarpro.statistics.validation import CrossValidation, cross_validate

__all__ = [
    "Band",
    "Bootstrap",
    "CrossValidation",
    "Curve",
    "IntervalMethod",
    "Intervals",
    "Linear",
    "Profile",
    "Propagated",
    "Report",
    "RidgePath",
    "Statistics",
    "band",
    "cross_validate",
    "fitted",
    "interval",
    "linear_theory",
    "predict",
    "profile",
    "report",
    "residuals",
    "ridge_path",
]
