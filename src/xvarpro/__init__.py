"""Constrained variable projection, written once for NumPy, CuPy, PyTorch and JAX."""

import sys

from xvarpro.core.lazy import Aliases, attach
from xvarpro.fit.solve import solve as solve  # what every fit needs is loaded at once, all else on first use

__getattr__, __dir__, __all__ = attach(__name__)

# first: what lies below a module would be found, and run, a second time
sys.meta_path.insert(
    0,
    Aliases(
        {
            "xvarpro.implicit": "xvarpro.differentiation.implicit",
            "xvarpro.layers": "xvarpro.differentiation.layers",
            "xvarpro.many": "xvarpro.batch",
            "xvarpro.steps": "xvarpro.algorithms.steps",
        }
    ),
)
