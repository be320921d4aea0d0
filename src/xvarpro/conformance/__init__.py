"""The same answer everywhere: the suite that a backend has to pass, and what it found."""

from xvarpro.conformance.exemptions import Exemption
from xvarpro.conformance.runner import Cell, Outcome, Report, run, targets
from xvarpro.conformance.suite import AREAS, Check, Inapplicable, Measured, Target, check

__all__ = [
    "AREAS",
    "Cell",
    "Check",
    "Exemption",
    "Inapplicable",
    "Measured",
    "Outcome",
    "Report",
    "Target",
    "check",
    "run",
    "targets",
]
