"""Rules for the step size along a feasible direction."""

from xvarpro.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
