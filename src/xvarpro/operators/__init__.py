"""Designs M(theta): structured matrices, which a lower level may know through their products alone."""

from xvarpro.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
