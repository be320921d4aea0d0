"""The suite that a backend has to pass: the same answers on every backend and every processor."""

from xvarpro_conformance.frameworks import Exemption, Hooks
from xvarpro_conformance.runner import run, targets
from xvarpro_conformance.suite import Check, Inapplicable, Measured, Target, check

__all__ = ["Check", "Exemption", "Hooks", "Inapplicable", "Measured", "Target", "check", "run", "targets"]
