"""Statistics of fits: predictions, standard errors, covariances, intervals, reports."""

from xvarpro.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
