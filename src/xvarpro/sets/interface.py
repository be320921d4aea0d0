"""The interface of a convex set."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from xvarpro.backends import registry
from xvarpro.core import checks
from xvarpro.core.namespace import device, is_complex, namespace_of
from xvarpro.core.struct import Array, Struct
from xvarpro.errors import ProblemError, UnsupportedError
from xvarpro.sets.vectors import excess, real_inner

BENDS = 128  # faces that one path may meet


class Set(Struct):
    """A convex set `C`, compact where it is `bounded`, reached through its linear minimisation oracle.

    Elementwise sets (`event_ndim == 0`) act on every entry, vector sets (1) on the last axis, matrix sets (2) on the
    last two. Below, "a point" is an array of shape (*batch, *event), event being the last `event_ndim` axes; gradients
    and directions are shaped like points. One number per point has shape batch, shape () for an elementwise set.

    Inside a solve a vector set constrains the whole leaf, flattened: ``over=L1Ball(1.0)`` on a matrix is the entrywise
    l1 ball, ``over=Columns(L1Ball(1.0))`` one ball per column. The inner product is ``Re sum conj(g) v``.

    A new set defines `lmo`, `diameter` and `violation`.
    """

    # -- properties ----------------------------------------------------------------------------------------------------

    @property
    def event_ndim(self) -> int:
        """Number of trailing axes that make one point."""
        return 1

    @property
    def polytope(self) -> bool:
        """Whether the set is the convex hull of finitely many points, all of which `lmo` returns."""
        return False

    @property
    def bounded(self) -> bool:
        """Whether the set is bounded; the oracle needs it. One that is not defines `project` and `ahead`."""
        return True

    @property
    def strictly_convex(self) -> bool:
        """Whether the boundary contains no segment, as that of a Euclidean ball: every face is a point."""
        return False

    @property
    def spectral(self) -> bool:
        """Whether the set constrains singular values or eigenvalues: a projection decomposes the whole matrix."""
        return False

    @property
    def takes_complex(self) -> bool:
        """Whether points may be complex."""
        return False

    @property
    def compiles(self) -> bool:
        """Whether the oracle runs inside a compiled loop; one that calls a solver on the host does not."""
        return True

    @property
    def has_projection(self) -> bool:
        """Whether the set defines `project`."""
        return type(self).project is not Set.project

    @property
    def projects_quickly(self) -> bool:
        """Whether a projection takes little longer than the oracle: only then are methods that project the default."""
        return self.has_projection

    @property
    def has_faces(self) -> bool:
        """Whether the set defines `away`, `tangent` and `reach`."""
        return type(self).tangent is not Set.tangent

    @property
    def is_own(self) -> bool:
        """Whether the set is, or is made of, one that the package does not define."""
        return type(self).__module__.partition(".")[0] != "xvarpro" or any(map(_is_own, vars(self).values()))

    # -- the oracle ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def lmo(self, g: Array) -> Array:
        """``argmin <g, v> over v in C`` for a gradient g, (*batch, *event), in its shape and dtype.

        Ties go to the first index; ``lmo(0)`` is feasible and finite; the length of g does not count, be it 1e300 or
        1e-300.
        """

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        """``lmo(g)``, and how far ``<g, v>`` may lie above the minimum: shape batch, None where the oracle is exact.

        An inexact oracle under-estimates the Frank-Wolfe gap by at most that much.
        """
        return self.lmo(g), None

    def ahead(self, g: Array, x: Array) -> tuple[Array, Array]:
        """The way from x to the minimum of ``<g, v>``, entry by entry, and the part of g for which there is none.

        Shapes (*batch, *event). The way is 0 where the set has no bound down the slope. Optional, for sets that are
        not `bounded`.
        """
        raise NotImplementedError(f"{type(self).__name__} is bounded: use lmo")

    def support(self, g: Array) -> Array:
        """``max <g, v> over v in C``, shape batch; an upper bound of it where the oracle is not exact."""
        v, hidden = self.certified(-g)
        value = real_inner(g, v, self.event_ndim or v.ndim)
        return value if hidden is None else value + hidden

    def project(self, x: Array) -> Array:
        """The Euclidean projection of x, (*batch, *event), in its shape and dtype. Optional."""
        raise UnsupportedError(
            f"{type(self).__name__} offers no projection: use a Frank-Wolfe method, "
            "and center(x) or random_point(x) for a point of the set"
        )

    # -- size and feasibility ------------------------------------------------------------------------------------------

    @abstractmethod
    def diameter(self, like: Array) -> float:
        """Euclidean diameter of the set for one event, shaped as `like`; an upper bound where the class says so."""

    @abstractmethod
    def violation(self, x: Array) -> Array:
        """How far x, (*batch, *event), is outside: 0 inside, shape batch.

        Relative to the size of the set, as its radius or its largest bound: the units of theta do not count. For what
        is not finite, NaN or more than any tolerance.
        """

    def contains(self, x: Array, tol: float = 1e-9) -> Array:
        """Whether x violates the set by at most `tol`: boolean, shape batch."""
        return self.violation(x) <= tol

    def center(self, like: Array) -> Array:
        """A point in the relative interior, in the shape and dtype of `like`; the default is the origin."""
        return namespace_of(like).zeros_like(like)

    def random_point(self, like: Array, seed: int = 0) -> Array:
        """A random feasible point in the shape and dtype of `like`, the same on every framework.

        A mixture of eight vertices, not uniform: uniform points of most sets have no cheap algorithm.
        """
        xp, rng = namespace_of(like), np.random.default_rng(seed)
        shape = (8, *like.shape)
        g = rng.normal(size=shape) + (1j * rng.normal(size=shape) if is_complex(like) else 0.0)
        vertices = self.lmo(xp.asarray(g, dtype=like.dtype, device=device(like)))
        shares = rng.dirichlet(np.ones(8)).reshape(8, *(1,) * like.ndim)
        return xp.sum(xp.asarray(shares, dtype=like.dtype, device=device(like)) * vertices, axis=0)

    # -- faces, for methods that stay inside them; optional ------------------------------------------------------------

    def away(self, g: Array, x: Array) -> Array:
        """``argmax <g, v> over v in the smallest face that contains x``: the vertex to leave, (*batch, *event)."""
        raise NotImplementedError(f"{type(self).__name__} does not describe its faces")

    def tangent(self, d: Array, x: Array) -> Array:
        """Orthogonal projection of the direction d on the affine hull of the smallest face of x, (*batch, *event).

        d may have more batch axes than x.
        """
        raise NotImplementedError(f"{type(self).__name__} does not describe its faces")

    def reach(self, d: Array, x: Array) -> Array:
        """Largest alpha with ``x + alpha d`` in the set, shape batch; inf where d is zero.

        For a d that `tangent` returned, or that leads to a vertex.
        """
        raise NotImplementedError(f"{type(self).__name__} does not describe its faces")

    def slide(self, d: Array, x: Array) -> Array:
        """End of a path of length ``|d|`` from x along d that turns into each face that it meets, (*batch, *event).

        The default goes from face to face with `tangent` and `reach`.
        """
        xp, ndim = namespace_of(x), self.event_ndim
        shape = (*x.shape[: x.ndim - ndim], *(1,) * ndim) if ndim else ()
        State = tuple[Array, Array, Array]  # the point, the part of the path that is left, the number of faces

        def bend(state: State) -> State:
            y, left, n = state
            along = self.tangent(d, y)
            step = xp.minimum(xp.reshape(self.reach(along, y), shape), left)
            return y + step * along, left - step, n + 1

        def going(state: State) -> Array:
            return xp.any(state[1] > 0) & (state[2] < BENDS)

        left = xp.ones(shape, dtype=x.dtype, device=device(x))
        count = xp.zeros((), dtype=xp.int32, device=device(x))
        return registry.owner(x).while_loop(going, bend, (x, left, count))[0]

    # -- parameters ----------------------------------------------------------------------------------------------------

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise `ProblemError` if a leaf of theta of that shape cannot lie in the set."""

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        """Instances for one event of that shape: what the contract suite tests and the documentation measures.

        A class whose parameters depend on the shape, or that has more than one regime, overrides it.
        """
        return (cls(),)


class RadiusSet(Set):
    """A set whose size is its `radius`, >= 0."""

    radius: float

    numbers = ("radius",)

    def __post_init__(self) -> None:
        checks.nonnegative(self, "radius")


class NormBall(RadiusSet):
    """Ball ``{size(x) <= radius}`` of a norm."""

    @abstractmethod
    def _size(self, x: Array) -> Array:
        """The norm of x, (*batch, n), shape batch."""

    def violation(self, x: Array) -> Array:
        return excess(self._size(x), self.radius)


def _is_own(part: object) -> bool:
    return part.is_own if isinstance(part, Set) else isinstance(part, tuple) and any(map(_is_own, part))


def check_matrix(C: Set, shape: tuple[int, ...], square: bool = False) -> None:
    """Raise `ProblemError` if a leaf of that shape is no matrix, or no square one."""
    if len(shape) < 2 or (square and shape[-1] != shape[-2]):
        what = "a square matrix" if square else "a matrix"
        raise ProblemError(
            f"{type(C).__name__} constrains {what}: theta's leaf must have "
            f"{'two equal last axes' if square else '2 or more axes'}, got shape {shape}"
        )
