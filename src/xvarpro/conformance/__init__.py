"""The suite that a backend has to pass: the same answers on every backend and every processor."""

from xvarpro.conformance.exemptions import Exemption
from xvarpro.conformance.record import read, write
from xvarpro.conformance.report import Cell, Outcome, Proof, Report
from xvarpro.conformance.runner import run, targets
from xvarpro.conformance.suite import AGAINST, AREAS, Check, Inapplicable, LeftOut, Measured, Target, check

__all__ = [
    "AGAINST",
    "AREAS",
    "Cell",
    "Check",
    "Exemption",
    "Inapplicable",
    "LeftOut",
    "Measured",
    "Outcome",
    "Proof",
    "Report",
    "Target",
    "check",
    "read",
    "run",
    "targets",
    "write",
]
