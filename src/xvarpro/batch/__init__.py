"""Batches of independent problems: each has its own theta and w, all are solved together."""

from xvarpro.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
