from xvarpro.fit import plotting as plotting
from xvarpro.fit.intervals import Bootstrap
from xvarpro.fit.profiles import Curve, Profile
from xvarpro.fit.ridges import CrossValidation, RidgePath, cross_validate, ridge_path
from xvarpro.statistics.bands import Band
from xvarpro.statistics.intervals import Intervals, Linear
from xvarpro.statistics.reports import Report
from xvarpro.statistics.standard_errors import Propagated, Statistics
from xvarpro.statistics.theory import linear_theory

__all__ = [
    "Band",
    "Bootstrap",
    "CrossValidation",
    "Curve",
    "Intervals",
    "Linear",
    "Profile",
    "Propagated",
    "Report",
    "RidgePath",
    "Statistics",
    "cross_validate",
    "linear_theory",
    "ridge_path",
]
