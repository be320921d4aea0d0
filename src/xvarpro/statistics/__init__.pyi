from xvarpro.fit import plotting as plotting
from xvarpro.fit.intervals import Bootstrap, interval
from xvarpro.fit.profiles import Curve, Profile, profile
from xvarpro.fit.ridges import CrossValidation, RidgePath, cross_validate, ridge_path
from xvarpro.statistics.bands import Band, band
from xvarpro.statistics.intervals import IntervalMethod, Intervals, Linear
from xvarpro.statistics.prediction import fitted, predict, residuals
from xvarpro.statistics.reports import Report, report
from xvarpro.statistics.standard_errors import Propagated, Statistics
from xvarpro.statistics.theory import linear_theory

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
