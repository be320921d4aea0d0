"""A solve as a layer of a PyTorch or JAX program: `layers.torch.Solve`, `layers.jax.solve`; see docs/layers.md.

Apart from the backends, only these modules import a framework, whose own functions define custom derivatives. The
derivative itself is that of `xvarpro.implicit`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, NamedTuple

from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError

__all__ = ["Solution", "jax", "torch"]


class Solution(NamedTuple):
    """Output of a layer.

    Attributes
    ----------
    theta : pytree of arrays
    w : array, shape (n,) or (n, k)
    value : array, 0-d
        The reduced objective.
    status : Status, or array of its codes where the layer is compiled
        It has no gradient; ``xv.Status.of(code)`` has the sentence.
    """

    theta: Tree
    w: Array
    value: Array
    status: Any


def no_third_derivative(*_: Any) -> Any:
    """In the place of the derivative of a second derivative."""
    raise ProblemError(
        "a layer has first and second derivatives only; got a third one. Take differences of the second, or leave the "
        "third derivative out"
    )


def __getattr__(name: str) -> ModuleType:
    """Import `layers.torch` or `layers.jax`, and with it the framework, on first use."""
    if name in ("torch", "jax"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'xvarpro.layers' has no attribute {name!r}")
