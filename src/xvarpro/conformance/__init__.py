"""The same answer everywhere: the suite that a backend has to pass, and what it found."""

from xvarpro.conformance.exemptions import Exemption
from xvarpro.conformance.renderings import read, write
from xvarpro.conformance.report import Cell, Outcome, Report
from xvarpro.conformance.runner import run, targets
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
    "read",
    "run",
    "targets",
    "write",
]
