"""Constrained variable projection, written once for NumPy, CuPy, PyTorch and JAX."""

from xvarpro.core.lazy import attach
from xvarpro.fit.solve import solve as solve  # what every fit needs is loaded at once, all else on first use

__getattr__, __dir__, __all__ = attach(__name__)
