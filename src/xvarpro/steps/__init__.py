"""Rules for the step size along a feasible direction."""

from xvarpro.protocols import Search, StepRule
from xvarpro.steps.armijo import Armijo
from xvarpro.steps.short_step import ShortStep

__all__ = ["Armijo", "Search", "ShortStep", "StepRule"]
