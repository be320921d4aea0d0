"""Losses of a level: what it pays for its prediction ``M(theta) w`` of a target."""

from xvarpro.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
