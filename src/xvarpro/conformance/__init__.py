"""The suite that a backend has to pass: the same answers on every backend and every processor."""

from xvarpro.conformance.exemptions import Exemption
from xvarpro.conformance.frameworks import Hooks
from xvarpro.conformance.runner import run, targets
from xvarpro.conformance.suite import Check, Inapplicable, Measured, Target, check

__all__ = ["Check", "Exemption", "Hooks", "Inapplicable", "Measured", "Target", "check", "run", "targets"]
