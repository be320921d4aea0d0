"""The convex hull of given points."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from xvarpro import backends
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._parameters import host
from xvarpro.sets._search import apply
from xvarpro.sets.interface import Set
from xvarpro.sets.vectors import beside, mask_at, norm, scaled


@final
@dataclass(frozen=True)
class ConvexHull(Set):
    """Convex hull of given atoms, along the last axis.

    Parameters
    ----------
    atoms : matrix
        One atom a row: k atoms of n entries. The unit segment if left out.

    Notes
    -----
    LMO : the atom with the least ``<g, a>``; first atom
    Cost : O(k n)
    Diameter : largest distance between two atoms
    Projection : Wolfe's method, O(k^3) a step

    The linear oracle reads the atoms once per point. The projection is Wolfe's (1976): the nearest point of the
    affine hull of a few atoms, each step one eigenvalue decomposition of a k x k matrix; `violation` is the distance
    to it. Both are meant for hulls of up to some hundred atoms.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.ConvexHull(np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]))
    >>> C.lmo(np.array([1.0, -1.0])), C.project(np.array([2.0, 2.0]))
    (array([0., 2.]), array([1., 1.]))
    """

    atoms: Array = field(default_factory=lambda: np.array([[0.0], [1.0]]))

    polytope = True

    def __post_init__(self) -> None:
        if isinstance(self.atoms, list | tuple):
            object.__setattr__(self, "atoms", np.asarray(self.atoms, dtype=np.float64))
        atoms = host(self.atoms)
        if atoms.ndim != 2 or not atoms.size or atoms.dtype.kind not in "iuf" or not np.isfinite(atoms).all():
            raise ProblemError(f"ConvexHull: atoms must be a finite matrix, one atom a row, got shape {atoms.shape}")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        n = math.prod(shape)
        grid = np.cos(np.arange(float((n + 3) * n)) ** 2).reshape(n + 3, n)
        return (cls(2.0 * np.eye(n)), cls(grid), cls(np.concatenate([grid[:2], grid[:1]]) + 1.0))

    def check(self, shape: tuple[int, ...]) -> None:
        if self.atoms.shape[1] != math.prod(shape):
            raise ProblemError(
                f"ConvexHull: atoms have {self.atoms.shape[1]} entries, theta's leaf of shape {shape} "
                f"has {math.prod(shape)}"
            )

    def lmo(self, g: Array) -> Array:
        xp = array_namespace(g)
        atoms = beside(self.atoms, g)
        best = xp.argmin(apply(atoms, scaled(g)[0]), axis=-1)
        return xp.reshape(xp.take(atoms, xp.reshape(best, (-1,)), axis=0), g.shape)

    def support(self, g: Array) -> Array:
        return array_namespace(g).max(apply(beside(self.atoms, g), g), axis=-1)

    def project(self, x: Array) -> Array:
        xp = array_namespace(x)
        atoms = beside(self.atoms, x)
        middle = xp.mean(atoms, axis=0)
        V = atoms - middle
        # units of the hull
        size = xp.max(norm(V))
        size = xp.where(size > 0, size, xp.ones_like(size))
        V = V / size
        z = (x - middle) / size
        # beyond this distance the direction alone has digits
        far, limit = norm(z), 0.01 / xp.finfo(x.dtype).eps
        z = z * xp.where(far > limit, limit / xp.where(far > limit, far, xp.ones_like(far)), xp.ones_like(far))
        shares = self._shares(V, z)
        return xp.sum(xp.expand_dims(shares, axis=-1) * atoms, axis=-2) + xp.where(x == x, xp.zeros_like(x), x)

    def _shares(self, V: Array, x: Array) -> Array:
        """Weights of the atoms `V`, longest 1, in their combination nearest to `x`."""
        xp = array_namespace(x)
        backend = backends.owner(x)
        k = V.shape[0]
        gram = xp.sum(xp.expand_dims(V, axis=0) * xp.expand_dims(V, axis=1), axis=-1)
        pull = apply(V, x)
        rounding = 4 * xp.finfo(x.dtype).eps * (1 + norm(x))[..., 0]
        eye = xp.eye(k, dtype=x.dtype, device=device(x))
        nearest = xp.argmin(0.5 * xp.sum(V * V, axis=-1) - pull, axis=-1, keepdims=True)
        basis = mask_at(pull, nearest)

        def combine(shares: Array) -> Array:
            return xp.sum(xp.expand_dims(shares, axis=-1) * V, axis=-2)

        def affine(basis: Array) -> Array:
            """Weights of the nearest point of the affine hull of the basis, refined once from its residual."""
            pair = xp.expand_dims(basis, axis=-1) & xp.expand_dims(basis, axis=-2)
            # the sum of weights is fixed, so its square may be added: that makes the matrix definite
            values, vectors = xp.linalg.eigh(xp.where(pair, gram + 1, eye))
            sound = values > k * xp.finfo(x.dtype).eps * values[..., -1:]
            inverse = xp.where(sound, 1 / xp.where(sound, values, xp.ones_like(values)), xp.zeros_like(values))
            inside = xp.astype(basis, x.dtype)

            def solve(right: Array) -> Array:
                turned = apply(xp.matrix_transpose(vectors), inside * right)
                return inside * apply(vectors, inverse * turned)

            ones = solve(inside)
            ones = ones / xp.sum(ones, axis=-1, keepdims=True)
            shares = solve(pull)
            shares = shares + (1 - xp.sum(shares, axis=-1, keepdims=True)) * ones
            more = solve(apply(V, x - combine(shares)))
            return shares + (more - xp.sum(more, axis=-1, keepdims=True) * ones)

        def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
            shares, basis, active, fresh, count = state
            target = affine(basis)
            low = basis & (target <= 0)
            blocked = xp.any(low, axis=-1)
            # towards the target as far as all weights stay >= 0
            drop = shares - target
            ratio = xp.where(low, shares / xp.where(drop > 0, drop, xp.ones_like(drop)), xp.inf)
            step = xp.expand_dims(xp.where(blocked, xp.min(ratio, axis=-1), xp.ones_like(ratio[..., 0])), axis=-1)
            moved = xp.where(step < 1, shares - step * drop, target)
            left = basis & ~(low & (ratio <= step))
            moved = xp.where(left & (moved > 0), moved, xp.zeros_like(moved))
            # an atom that cannot enter: the end of what rounding allows
            stuck = (fresh & blocked & (step[..., 0] <= 0)) | ~(xp.sum(moved, axis=-1) > 0)
            residual = combine(moved) - x
            distance = norm(residual)[..., 0]
            slope = apply(V, residual)
            best = mask_at(slope, xp.argmin(slope, axis=-1, keepdims=True))
            gain = xp.sum(slope * moved, axis=-1) - xp.min(slope, axis=-1)
            better = (gain > rounding * distance) & (distance > rounding)
            optimal = ~blocked & (~better | xp.any(best & basis, axis=-1))
            entering = xp.expand_dims(~blocked & ~optimal, axis=-1)
            going = active & ~stuck
            keep = xp.expand_dims(going, axis=-1)
            shares = xp.where(keep, moved, shares)
            basis = xp.where(keep, xp.where(entering, left | best, left), basis)
            return shares, basis, going & ~optimal, entering[..., 0], count + 1

        start = (
            xp.astype(basis, x.dtype),
            basis,
            pull[..., 0] == pull[..., 0],
            ~(pull[..., 0] == pull[..., 0]),
            xp.zeros((), dtype=xp.int32, device=device(x)),
        )
        budget = 8 * k + 64
        shares = backend.while_loop(lambda state: xp.any(state[2]) & (state[4] < budget), body, start)[0]
        return shares / xp.sum(shares, axis=-1, keepdims=True)

    def diameter(self, like: Array) -> float:
        atoms = host(self.atoms).astype(np.float64)
        return float(max(np.linalg.norm(atoms - atom, axis=1).max() for atom in atoms))

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        size = xp.max(norm(beside(self.atoms, x)))
        return norm(x - self.project(x))[..., 0] / xp.where(size > 0, size, xp.ones_like(size))

    def center(self, like: Array) -> Array:
        xp = array_namespace(like)
        return xp.zeros_like(like) + xp.mean(beside(self.atoms, like), axis=0)
