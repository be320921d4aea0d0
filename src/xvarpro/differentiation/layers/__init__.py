"""A solve as a layer of somebody else's program: `layers.torch.Solve`, `layers.jax.solve`; see docs/layers.md.

This is the one place beside the backends that speaks a framework's own language: where a framework asks for a function
of its own to carry a gradient, nothing else will do. What is differentiated, and how, is `xvarpro.implicit`'s.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, NamedTuple

from xvarpro.core.struct import Array, Tree

__all__ = ["Solution", "jax", "torch"]


class Solution(NamedTuple):
    """What a layer returns.

    Attributes
    ----------
    theta : pytree of arrays
    w : array, shape (n,) or (n, k)
    value : array, 0-d
        The reduced objective.
    status : Status, or array of its codes where the layer is compiled
        No gradient comes from it; ``xv.Status.of(code)`` has the sentence.
    """

    theta: Tree
    w: Array
    value: Array
    status: Any


def __getattr__(name: str) -> ModuleType:
    """`layers.torch` and `layers.jax` without an import of their own; the framework is imported then."""
    if name in ("torch", "jax"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'xvarpro.layers' has no attribute {name!r}")
