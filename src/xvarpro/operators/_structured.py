"""What structured designs share: the gradient of a product, taken by the framework's own derivative."""

from __future__ import annotations

from dataclasses import dataclass

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.operators.interface import Operator


@dataclass(frozen=True)
class Structured(Operator):
    """A design whose `matvec` is written with array-API functions of its fields: its gradient needs no formula."""

    def outer(self, r: Array, w: Array) -> Operator:
        arrays, skeleton = trees.partition(self)
        moving = tuple(x for x in arrays if floating(x))
        held = tuple(x for x in arrays if not floating(x))

        if not moving:
            return self

        def product(*given: Array) -> Leaves:
            own, rest = iter(given[: len(moving)]), iter(given[len(moving) : -1])
            filled = skeleton.fill([next(own) if floating(x) else next(rest) for x in arrays])
            return (filled.matvec(given[-1]),)

        _, pullback = backends.owner(r).vjp(product, moving, (*held, w))
        gradients, rest = iter(pullback((r,))), iter(held)
        # indices have no gradient, and are returned as they are
        return skeleton.fill([next(gradients) if floating(x) else next(rest) for x in arrays])


def floating(x: Array) -> bool:
    """Whether theta may move the entries of an array."""
    xp = namespace_of(x)
    return xp.isdtype(x.dtype, ("real floating", "complex floating"))
