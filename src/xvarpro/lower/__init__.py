"""Lower-level solvers: one factorisation answers for `w`, for the adjoint and for the condition number."""

from xvarpro.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
