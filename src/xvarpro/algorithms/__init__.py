"""Methods on the reduced objective, all with the same certificate."""

from xvarpro.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
