from xvarpro.algorithms.steps.armijo import Armijo
from xvarpro.algorithms.steps.backtracking import backtrack
from xvarpro.algorithms.steps.exact import ExactStep
from xvarpro.algorithms.steps.interface import Line, Search, StepRule
from xvarpro.algorithms.steps.open_loop import Constant, LogAdaptive, OpenLoop
from xvarpro.algorithms.steps.short_step import ShortStep

__all__ = [
    "Armijo",
    "Constant",
    "ExactStep",
    "Line",
    "LogAdaptive",
    "OpenLoop",
    "Search",
    "ShortStep",
    "StepRule",
    "backtrack",
]
