"""Conditional gradient with steps inside the smallest face of the iterate: no list of atoms, memory O(n)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

from xvarpro.algorithms._conditional_gradient import ConditionalGradientState, Move
from xvarpro.algorithms._corrective import Correction, Corrective, Mix, combine, either
from xvarpro.algorithms.common import chosen, moved
from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import corner, dot, inner, sub, sum_
from xvarpro.objective.interface import Objective
from xvarpro.sets.region import Region, event


@final
@dataclass(frozen=True)
class InFaceGradient(Correction):
    """A gradient step inside the face, bent into each face that it meets, or a step toward the best vertex (after
    Freund, Grigas, Mazumder 2017). It takes the one that promises more descent, by the curvature of the last steps.

    The steps converge as gradient descent does, whatever the angles at the vertices of the face.

    Notes
    -----
    Direction : a gradient step bent into the faces that it meets, or ``v - x``
    When : the default of `InFaceFrankWolfe`, and for it alone

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.InFaceFrankWolfe().correction
    InFaceGradient()
    """

    in_face: ClassVar[bool] = True

    def mix(self, forward: Array, away: Array, inner: Array) -> Mix:
        return either(~(inner >= forward), forward, (0.0, 0.0, 1.0))


@final
@dataclass(frozen=True)
class InFaceFrankWolfe(Corrective):
    """Frank-Wolfe whose corrections come from the smallest face that holds the iterate (Garber, Meshi 2016; Freund,
    Grigas, Mazumder 2017): linear convergence on polytopes without a list of atoms.

    The worst and the best vertex are those of the face, found by its own linear minimisation, and a step ends at the
    boundary of the set. Each leaf of theta moves in its own face. One step length holds for all, so that many small
    sets shorten each other's steps. A set that does not describe its faces (`Set.has_faces`) takes Frank-Wolfe steps.

    Parameters
    ----------
    correction : Correction
        `InFaceGradient`, `BlendedPairwise`, `Pairwise` or `AwayStep`.
    step : StepRule
        As in `FrankWolfe`.
    blocks : Blocks
        `Separate` or `Together`.

    Notes
    -----
    Oracle : LMO, and the faces where the set describes them
    Per iteration : per search: values by `step`, 1 gradient, 1 LMO, and work in the face
    Memory : a few vectors
    Polytope only : no; without faces its steps are those of `FrankWolfe`
    When : sets with faces where no projection is wanted; solutions of many vertices

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, A):
    ...     return A @ xv.array_namespace(theta).expand_dims(theta, axis=1)
    >>> problem = xv.separable(M, np.ones(3), data=np.eye(3))
    >>> corner, over = np.array([1.0, 0.0, 0.0]), xv.sets.Simplex()
    >>> fit = xv.solve(problem, corner, over=over, algorithm=xv.algorithms.InFaceFrankWolfe(), tol=1e-9)
    >>> np.round(fit.theta, 4)
    array([0.3333, 0.3333, 0.3333])
    """

    correction: Correction = field(default_factory=InFaceGradient)

    def carry(self, region: Region, theta: Leaves) -> Array:
        """Curvature that the last steps met; 0 before the first."""
        return 0 * corner(theta[0])

    def move(self, f: Objective, region: Region, state: ConditionalGradientState) -> Move:
        theta, grad, forward, carrier = state.iterate.theta, state.grad, state.iterate.gap_A, state.carrier
        xp = namespace_of(forward)
        if self.correction.in_face:  # which leaves out the way from a vertex
            away = inner = _path(region, theta, grad, carrier)
        else:
            away, inner = _vertices(region, theta, grad)
        parts = region.block(state.d, free=False), away, inner
        gaps = (forward, -dot(grad, parts[1]), -dot(grad, parts[2]))
        promise: tuple[Array, ...] = gaps
        if self.correction.in_face:
            promise = tuple(_decrease(g, dot(part, part), carrier) for g, part in zip(gaps, parts, strict=True))
        mix = self.correction.mix(*promise)
        d = _without_rounding(combine(mix, parts), mix, parts)
        cap = xp.ones_like(forward)
        if not self.correction.in_face:  # how far the last piece of a path could go on is a matter of rounding
            cap = xp.where(mix.vertex - mix.away - mix.inner > 0, cap, _reach(region, d, theta))
        # a face that ends at once, up to the rounding of the objective: leave it by the vertex
        stuck = ~moved(2.0**-12 * cap, dot(d, d), theta) | ~xp.isfinite(cap)
        vertex = Mix(*(xp.full_like(forward, c) for c in (1.0, 0.0, 0.0)))
        d, mix, cap = chosen(stuck, (parts[0], vertex, xp.ones_like(cap)), (d, mix, cap))
        gap = sum_(c * g for c, g in zip(mix, gaps, strict=True))
        return Move(d, gap, cap)

    def settle(
        self, f: Objective, region: Region, state: ConditionalGradientState, move: Move, alpha: Array, drop: Array
    ) -> tuple[Array, Array, Array]:
        xp = namespace_of(alpha)
        expected, square = alpha * move.gap, alpha * alpha * dot(move.d, move.d)
        # a difference of values that rounding has eaten says nothing
        known = (square > 0) & (drop > 0) & (expected - drop > 2.0**-20 * expected)
        curved = 2 * (expected - drop) / positive_or_one(square)
        # an estimate that is too small lets a path promise more than the step then takes of it
        return xp.where(known, xp.maximum(curved, 0.5 * state.carrier), state.carrier), alpha < 0, 0 * alpha


def _decrease(gap: Array, dd: Array, L: Array) -> Array:
    """The largest decrease along a direction, on a parabola of curvature L, within a step of 1."""
    xp = namespace_of(gap)
    curved, one = L * dd, xp.ones_like(gap)
    best = gap / xp.where(curved > 0, curved, one)
    alpha = xp.where(curved > 0, xp.minimum(best, one), one)
    return alpha * (gap - 0.5 * alpha * curved)


def _without_rounding(d: Leaves, mix: Mix, parts: tuple[Leaves, ...]) -> Leaves:
    """The mix `d` of `parts`, 0 on leaves where they cancel: a long step would magnify the rounding left there."""

    def kept(x: Array, *terms: Array) -> Array:
        xp = namespace_of(x)
        whole = sum_(c * c * inner(part, part) for c, part in zip(mix, terms, strict=True))
        return xp.where(inner(x, x) > (16 * xp.finfo(x.dtype).eps) ** 2 * whole, x, 0)

    return tuple(kept(*leaf) for leaf in zip(d, *parts, strict=True))


def _vertices(region: Region, theta: Leaves, grad: Leaves) -> tuple[Leaves, Leaves]:
    """``x - a`` and ``s - x`` for the worst and the best vertex of the face."""
    away, inner = ([namespace_of(x).zeros_like(x) for x in theta] for _ in range(2))
    for i, C in region.constrained:
        if C.has_faces:
            x, g = event(C, theta[i]), event(C, grad[i])
            xp = namespace_of(x)
            away[i] = xp.reshape(x - C.away(g, x), theta[i].shape)
            inner[i] = xp.reshape(C.away(-g, x) - x, theta[i].shape)
    # in exact arithmetic the projection changes nothing; it keeps what rounding left of a sum from growing with a step
    return region.tangent(tuple(away), theta), region.tangent(tuple(inner), theta)


def _path(region: Region, theta: Leaves, grad: Leaves, L: Array) -> Leaves:
    """To the end of a gradient step of length ``1 / L`` that bends into each face it meets."""
    xp = namespace_of(*theta)
    length = xp.where(L > 0, 1 / positive_or_one(L), xp.zeros_like(L))
    end = region.slide(tuple(-length * g for g in grad), theta)
    return region.block(sub(end, theta), free=False)


def _reach(region: Region, d: Leaves, theta: Leaves) -> Array:
    """Largest step along d that stays in every set; inf where d is 0."""
    xp = namespace_of(*theta)
    reaches = []
    for i, C in region.constrained:
        if C.has_faces:
            reaches.append(xp.min(C.reach(event(C, d[i]), event(C, theta[i]))))
        else:  # the direction to a vertex, or 0
            some = xp.max(xp.abs(d[i])) > 0
            one = xp.ones_like(corner(d[i]))
            reaches.append(xp.where(some, one, xp.full_like(one, xp.inf)))
    return xp.min(xp.stack(reaches))
