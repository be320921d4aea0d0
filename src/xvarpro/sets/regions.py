"""The feasible set of every problem of a batch, on vectors (b, p) that hold all leaves of a problem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from xvarpro.core import trees
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Leaves, Struct
from xvarpro.sets.interface import Set
from xvarpro.sets.region import Region
from xvarpro.sets.vectors import largest, or_one


@final
@dataclass(frozen=True)
class Regions(Struct):
    """One region for all problems of a batch.

    Parameters
    ----------
    region : Region
        Of a single problem.
    one : tuple of arrays
        Leaves of a single problem, for their shapes.
    """

    region: Region
    one: Leaves = ()

    def split(self, x: Array) -> Leaves:
        """Leaves (b, ...) of vectors (b, p)."""
        return trees.unraveled(x, self.one)

    def join(self, leaves: Leaves) -> Array:
        """Inverse of `split`."""
        return trees.raveled(leaves, rows=leaves[0].ndim - self.one[0].ndim)

    def _event(self, C: Set, x: Array, i: int) -> Array:
        """Axes of a leaf that make one point of a vector set become one; leading ones are the batch's."""
        if C.event_ndim != 1:
            return x
        shape = self.one[i].shape
        return namespace_of(x).reshape(x, (*x.shape[: x.ndim - len(shape)], math.prod(shape)))

    def _spread(self, x: Array, i: int) -> Array:
        """One number per problem in the shape of a leaf's batch, to broadcast."""
        return namespace_of(x).reshape(x, (-1, *(1,) * self.one[i].ndim))

    def nearest(self, x: Array, slope: Array) -> Array:
        """Nearest feasible points; of sets without a projection the vertices down the slope. Free leaves stay."""
        out = list(self.split(x))
        for i, C in self.region.constrained:
            if C.has_projection:
                point = C.project(self._event(C, out[i], i))
            else:
                point = C.lmo(self._event(C, self.split(slope)[i], i))
            out[i] = namespace_of(x).reshape(point, out[i].shape)
        return self.join(tuple(out))

    def vertices(self, slope: Array, x: Array) -> Array:
        """Points of the bounded sets down the slope; free leaves and unbounded ones are those of x."""
        out, g = list(self.split(x)), self.split(slope)
        for i, C in self.region.constrained:
            if C.bounded:
                out[i] = namespace_of(x).reshape(C.lmo(self._event(C, g[i], i)), out[i].shape)
        return self.join(tuple(out))

    def evened(self, x: Array) -> Array:
        """Vectors (b, p) with the largest entry of a leaf everywhere in it, unless its set is one of bounds."""
        xp, out = namespace_of(x), list(self.split(x))
        for i, C in self.region.constrained:
            if C.event_ndim:
                largest = xp.max(xp.reshape(out[i], (x.shape[0], -1)), axis=1)
                out[i] = self._spread(largest, i) + xp.zeros_like(out[i])
        return self.join(tuple(out))

    def tangents(self, x: Array) -> Array:
        """The matrices that project directions on the smallest face of each point, shape (b, p, p)."""
        xp = namespace_of(x)
        b, p = x.shape
        eye = xp.eye(p, dtype=x.dtype, device=device(x))[:, None, :]
        out = list(self.split(xp.broadcast_to(eye, (p, b, p))))
        at = self.split(xp.broadcast_to(x, (p, b, p)))
        for i, C in self.region.constrained:
            if C.has_faces:
                moved = C.tangent(self._event(C, out[i], i), self._event(C, at[i], i))
                out[i] = xp.reshape(moved, out[i].shape)
        return xp.permute_dims(self.join(tuple(out)), (1, 0, 2))

    def reach(self, d: Array, x: Array) -> Array:
        """The largest share of directions in faces, at most 1, that stays feasible, (b,)."""
        xp = namespace_of(x)
        share = xp.ones_like(x[:, 0])
        ways, leaves = self.split(d), self.split(x)
        for i, C in self.region.constrained:
            way, at = self._event(C, ways[i], i), self._event(C, leaves[i], i)
            if C.event_ndim:
                share = xp.minimum(share, C.reach(way, at))
            else:  # bounds of each entry: what the projection leaves of it
                end = at + way
                inside = (way == 0) | (C.project(end) == end)
                kept = xp.where(inside, 1, (C.project(end) - at) / or_one(way))
                share = xp.minimum(share, xp.min(xp.reshape(kept, (x.shape[0], -1)), axis=1))
        return xp.maximum(share, xp.zeros_like(share))

    def gaps(self, x: Array, grad: Array) -> tuple[Array, Array]:
        """Both parts of the gap of Algorithm 2 for every problem, (b,)."""
        xp = namespace_of(x)
        leaves, g = self.split(x), self.split(grad)
        gap_A = gap_B = xp.zeros((x.shape[0],), dtype=x.dtype, device=device(x))
        for i, C in self.region.constrained:
            if not C.bounded:
                way, rest = C.ahead(g[i], leaves[i])
                gap_A, gap_B = gap_A - _each(g[i] * way), gap_B + xp.sqrt(_each(rest * rest))
                continue
            v, hidden = C.certified(self._event(C, g[i], i))
            gap_A = gap_A - _each(g[i] * (xp.reshape(v, leaves[i].shape) - leaves[i]))
            if hidden is not None:
                gap_A = gap_A + _each(hidden)
        for group, ball in self.region.free:
            gap_B = gap_B + ball.radius * xp.sqrt(trees.sum_(_each(g[i] * g[i]) for i in group))
        return gap_A, gap_B

    def violation(self, x: Array) -> Array:
        """Largest relative violation of any set by any problem, 0-d."""
        xp = namespace_of(x)
        worst, leaves = xp.zeros((), dtype=x.dtype, device=device(x)), self.split(x)
        for i, C in self.region.constrained:
            if x.shape[0]:
                worst = xp.maximum(worst, largest(C.violation(self._event(C, leaves[i], i))))
        return worst


def _each(x: Array) -> Array:
    """Sums over all axes but the first."""
    return namespace_of(x).sum(x, axis=tuple(range(1, x.ndim))) if x.ndim > 1 else x
