"""Rules for the step size along a feasible direction."""

from xvarpro.protocols import Line, Search, StepRule
from xvarpro.steps.armijo import Armijo
from xvarpro.steps.exact import ExactStep
from xvarpro.steps.open_loop import Constant, LogAdaptive, OpenLoop
from xvarpro.steps.short_step import ShortStep

__all__ = ["Armijo", "Constant", "ExactStep", "Line", "LogAdaptive", "OpenLoop", "Search", "ShortStep", "StepRule"]
