"""Convex sets, each reached through its linear minimisation oracle."""

from xvarpro.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
