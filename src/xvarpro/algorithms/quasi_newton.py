"""Quasi-Newton on the reduced objective: limited memory inside the active face, a step of another kind across."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from array_api_compat import array_namespace, device

from xvarpro import checks
from xvarpro.algorithms._common import (
    add,
    bounded,
    curvature,
    feasible_search,
    moved,
    spectral_length,
    start,
    status,
)
from xvarpro.errors import ProblemError
from xvarpro.protocols import Algorithm, Array, Iterate, Leaves
from xvarpro.trees import dot, inner, plus, scaled, select, sub


class State(NamedTuple):
    """The iterate, its gradient, the Barzilai-Borwein length; steps S and changes of the gradient Y, one per row.

    `vertex` is the direction of Algorithm 2 where the method uses it, and `stalled` counts the iterations since value
    or gap last fell by more than rounding.
    """

    iterate: Iterate
    grad: Leaves
    vertex: Leaves
    length: Array
    S: Array
    Y: Array
    stalled: Array


@dataclass(frozen=True)
class QuasiNewton(Algorithm):
    """L-BFGS in the affine hull of the active face, and some other step to change the face."""

    memory: int = 10
    trust: float = 0.5
    gamma: float = 1e-4
    limit: int = 40

    patience = 3

    def __post_init__(self) -> None:
        name = type(self).__name__
        checks.limit(self, self.limit)
        if self.memory < 1:
            raise ProblemError(f"{name} needs memory >= 1, got {self.memory!r}")
        if not 0 < self.trust < 1:
            raise ProblemError(f"{name} needs 0 < trust < 1, got {self.trust!r}")
        if not 0 < self.gamma < 0.5:
            raise ProblemError(f"{name} needs 0 < gamma < 1/2, got {self.gamma!r}")

    @abstractmethod
    def tangent(self, region: Any, d: Leaves, theta: Leaves) -> Leaves:
        """The part of a direction along which the quasi-Newton model is made."""

    @abstractmethod
    def toward(self, f: Any, region: Any, d: Leaves, theta: Leaves) -> Leaves:
        """The feasible direction that stands for `d`."""

    @abstractmethod
    def across(self, f: Any, region: Any, state: State) -> Leaves:
        """A feasible direction of descent that may leave the face, to be followed up to a step of 1."""

    def vertex(self, d: Leaves) -> Leaves:
        """What `across` needs of Algorithm 2's direction."""
        return ()

    def init(self, f: Any, region: Any, theta: Leaves) -> State:
        iterate, grad, d = start(f, region, theta)
        L = curvature(f, theta, grad, d)
        xp = array_namespace(L)
        iterate = iterate._replace(counts=add(iterate.counts, values=1, gradients=1))
        size = sum(math.prod(x.shape) for x in theta)
        empty = xp.zeros((self.memory, size), dtype=L.dtype, device=device(L))
        return State(iterate, grad, self.vertex(d), 1 / L, empty, empty, 0 * L)

    def advance(self, f: Any, region: Any, state: State) -> State:
        iterate, grad, _, length, S, Y, stalled = state
        theta = iterate.theta
        xp = array_namespace(length)
        q = _flat(self.tangent(region, grad, theta))
        S_in, Y_in = (_flat(self.tangent(region, _unflat(P, theta), theta), rows=1) for P in (S, Y))
        newton = _unflat(-_inverse_hessian(f.backend, S_in, Y_in, q, length), theta)
        a, b = self.toward(f, region, newton, theta), self.across(f, region, state)
        slope_a, slope_b = dot(grad, a), dot(grad, b)
        # the share of the other step that stays in the face, by the decrease that it promises
        steep = slope_a < -(xp.finfo(q.dtype).eps ** 0.5) * xp.sqrt(dot(grad, grad) * dot(a, a))
        inside = steep & (inner(q, _flat(b)) <= self.trust * slope_b)
        d, slope = select(inside, a, b), xp.where(inside, slope_a, slope_b)
        value, slack = iterate.value, f.rounding(iterate.value)
        alpha, point, trials = feasible_search(f, theta, d, slope, value, value + slack, self.gamma, self.limit)
        new = f.gradient(point)
        direction = region.blmo(point.theta, new)
        dd = dot(d, d)
        progress = moved(alpha, dd, theta)
        gap, old_gap = direction.gap_A + direction.gap_B, iterate.gap_A + iterate.gap_B
        better = (value - point.value > slack) | (gap < 0.5 * old_gap)
        stalled = xp.where(better, 0 * stalled, stalled + 1)
        # a model that led nowhere is forgotten; a gradient step that did has the last word
        going = (progress | xp.any(S != 0)) & (stalled < self.patience)
        change = sub(new, grad)
        s, y = alpha * _flat(d), _flat(change)
        S, Y = (_push(xp.where(progress, P, xp.zeros_like(P)), row) for P, row in ((S, s), (Y, y)))
        iterate = Iterate(
            point.theta,
            point.value,
            direction.gap_A,
            direction.gap_B,
            alpha,
            alpha,
            status(slope, going),
            add(iterate.counts, values=trials, gradients=1, lmos=1, projections=2 * self.needs_projection),
            direction.slack,
        )
        next_length = bounded(spectral_length(alpha, d, dd, change, length), point.theta, dd, new)
        next_length = xp.where(progress, next_length, length)
        return State(iterate, new, self.vertex(direction.d), next_length, S, Y, stalled)


@final
@dataclass(frozen=True)
class ProjectedQuasiNewton(QuasiNewton):
    """L-BFGS in the affine hull of the active face, projected; a spectral projected gradient step to change the face.

    Every pair of the memory is projected on the directions of the current face before it is used, so that the model
    outlives a change of the face; once the face has settled this is L-BFGS inside it, and the end of a solve is
    superlinear in practice. The step goes to the projection of the quasi-Newton point, a feasible direction, where at
    least the share `trust` of what a projected gradient step promises lies inside the face, else along that projected
    gradient step (Bertsekas 1982; Schmidt, Kim, Sra 2012; Hager, Zhang 2006). Sets that do not describe their faces are
    treated by projection alone.

    Parameters
    ----------
    memory : int
        Pairs kept, >= 1.
    trust : float
        In (0, 1).
    gamma : float
        Share of the predicted decrease that is asked for, in (0, 1/2).
    limit : int
        Trials after which the line search gives up.

    Notes
    -----
    Oracle : projection; faces where the set describes them; LMO for the certificate
    Per iteration : a value per trial, 1 gradient, 1 LMO, 2 projections
    Memory : ``2 memory`` vectors, more while it works
    Polytope only : no
    When : the last digits: superlinear in practice once the face has settled

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.ProjectedQuasiNewton(memory=5).memory
    5
    """

    needs_projection = True

    def tangent(self, region: Any, d: Leaves, theta: Leaves) -> Leaves:
        return region.tangent(d, theta)

    def toward(self, f: Any, region: Any, d: Leaves, theta: Leaves) -> Leaves:
        return sub(region.project(plus(theta, d)), theta)

    def across(self, f: Any, region: Any, state: State) -> Leaves:
        return self.toward(f, region, scaled(-state.length, state.grad), state.iterate.theta)


@final
@dataclass(frozen=True)
class InFaceQuasiNewton(QuasiNewton):
    """L-BFGS inside the smallest face of the iterate, without projections: Frank-Wolfe with a superlinear end.

    The quasi-Newton step, or a spectral gradient step, turns into each face that it meets. Where Algorithm 2's vertex
    promises to descend further by the curvature that the last step met, and most of that lies outside of the face, the
    step goes there. Free leaves are part of the model, whatever the constrained ones do. A set that does not describe
    its faces (`Set.has_faces`) takes Frank-Wolfe steps.

    Parameters
    ----------
    memory : int
        Pairs kept, >= 1.
    trust : float
        Share of the other step that has to lie in the face for a quasi-Newton step, in (0, 1).
    gamma : float
        Share of the predicted decrease that is asked for, in (0, 1/2).
    limit : int
        Trials after which the line search gives up.

    Notes
    -----
    Oracle : LMO, and the faces where the set describes them
    Per iteration : a value per trial, 1 gradient, 1 LMO, and work in the face
    Memory : ``2 memory`` vectors, more while it works
    Polytope only : no; without faces its steps are those of `FrankWolfe`
    When : sets with faces and no projection; the polish of Frank-Wolfe

    On boxes, simplices and l1 balls a step turns into all faces at once, for about the price of a projection inside the
    face; elsewhere from one to the next.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, A):
    ...     return A @ xv.array_namespace(theta).expand_dims(theta, axis=1)
    >>> problem = xv.separable(M, np.ones(3), data=np.eye(3))
    >>> corner, over = np.array([1.0, 0.0, 0.0]), xv.sets.Simplex()
    >>> fit = xv.solve(problem, corner, over=over, algorithm=xv.algorithms.InFaceQuasiNewton(), tol=1e-9)
    >>> np.round(fit.theta, 4)
    array([0.3333, 0.3333, 0.3333])
    """

    def tangent(self, region: Any, d: Leaves, theta: Leaves) -> Leaves:
        d = region.tangent(d, theta)
        without = {i for i, C in region.constrained if not C.has_faces}
        return tuple(0 * x if i in without else x for i, x in enumerate(d))

    def toward(self, f: Any, region: Any, d: Leaves, theta: Leaves) -> Leaves:
        return sub(region.slide(f.backend, d, theta), theta)

    def across(self, f: Any, region: Any, state: State) -> Leaves:
        length, grad = state.length, state.grad
        down = self.toward(f, region, scaled(-length, grad), state.iterate.theta)
        if not region.constrained:
            return down
        inside, vertex = region.block(down, free=False), region.block(state.vertex, free=False)
        step, most = _parabola(grad, vertex, length)
        _, least = _parabola(grad, inside, length)
        ahead = select(most > least, scaled(step, vertex), inside)
        return plus(ahead, region.block(down, free=True))

    def vertex(self, d: Leaves) -> Leaves:
        return d


def _parabola(grad: Leaves, d: Leaves, length: Array) -> tuple[Array, Array]:
    """The step up to 1 that is best along `d` for a curvature of 1 / length, and the decrease that it promises."""
    xp = array_namespace(length)
    gap, dd = -dot(grad, d), dot(d, d)
    full = length * gap >= dd
    alpha = xp.where(full, xp.ones_like(dd), length * gap / xp.where(dd > 0, dd, xp.ones_like(dd)))
    alpha = xp.where(gap > 0, alpha, xp.zeros_like(alpha))
    return alpha, alpha * gap - 0.5 * alpha * alpha * dd / length


def _inverse_hessian(backend: Any, S: Array, Y: Array, q: Array, length: Array) -> Array:
    """``H q`` with the compact form of L-BFGS (Byrd, Nocedal, Schnabel 1994); pairs without curvature are left out."""
    xp = array_namespace(q)
    sy = xp.sum(S * Y, axis=1)
    yy = xp.sum(Y * Y, axis=1)
    good = sy > (100 * xp.finfo(q.dtype).eps) * xp.sqrt(xp.sum(S * S, axis=1) * yy)
    # rows scaled to <s, y> = 1
    scale = xp.expand_dims(xp.where(good, 1 / xp.sqrt(xp.where(good, sy, xp.ones_like(sy))), xp.zeros_like(sy)), axis=1)
    S, Y = scale * S, scale * Y
    yy = xp.where(good, yy / xp.where(good, sy, xp.ones_like(sy)), xp.zeros_like(yy))
    # the newest good pair sets the scale: the last entry of a running choice
    weight = xp.astype(good, q.dtype)
    n = xp.arange(1, S.shape[0] + 1, dtype=q.dtype, device=device(q))
    newest = weight * xp.astype(n * weight == xp.max(n * weight), q.dtype)
    ratio = xp.sum(newest * yy)
    gamma = xp.where(ratio > 0, 1 / xp.where(ratio > 0, ratio, xp.ones_like(ratio)), length)
    one = xp.eye(S.shape[0], dtype=q.dtype, device=device(q))
    R = xp.triu(S @ Y.mT, k=1) + one
    column = xp.expand_dims(q, axis=1)
    p = backend.solve_triangular(R, S @ column)
    Yq = Y @ column
    t = backend.solve_triangular(R, xp.expand_dims(weight, axis=1) * p + gamma * (Y @ (Y.mT @ p) - Yq), transpose=True)
    return gamma * q + (S.mT @ t - gamma * (Y.mT @ p))[:, 0]


def _flat(tree: Leaves, rows: int = 0) -> Array:
    """Leaves as one vector, or as rows of a matrix."""
    xp = array_namespace(*tree)
    parts = [xp.reshape(x, (*x.shape[:rows], -1)) for x in tree]
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)


def _unflat(v: Array, like: Leaves) -> Leaves:
    """Inverse of `_flat`, over leading axes too."""
    xp, out, at = array_namespace(v), [], 0
    for x in like:
        n = math.prod(x.shape)
        out.append(xp.reshape(v[..., at : at + n], (*v.shape[:-1], *x.shape)))
        at += n
    return tuple(out)


def _push(rows: Array, row: Array) -> Array:
    xp = array_namespace(rows)
    return xp.concat([rows[1:, :], xp.expand_dims(row, axis=0)])
