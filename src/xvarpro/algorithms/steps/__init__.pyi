from xvarpro.algorithms.steps.armijo import Armijo
from xvarpro.algorithms.steps.exact import ExactStep
from xvarpro.algorithms.steps.interface import StepRule
from xvarpro.algorithms.steps.open_loop import Constant, OpenLoop
from xvarpro.algorithms.steps.short_step import ShortStep

__all__ = [
    "Armijo",
    "Constant",
    "ExactStep",
    "OpenLoop",
    "ShortStep",
    "StepRule",
]
