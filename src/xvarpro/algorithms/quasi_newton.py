"""Quasi-Newton on the reduced objective: limited memory inside the active face, a step of another kind across."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, final

from xvarpro.algorithms._polish import FirstOrder, Projecting, Way, push, worked
from xvarpro.algorithms.accelerated import AcceleratedInFace
from xvarpro.algorithms.interface import Algorithm, Iterate
from xvarpro.algorithms.spectral import SpectralInFace, SpectralProjectedGradient
from xvarpro.backends import Backend
from xvarpro.core import checks
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import dot, inner, raveled, sub, unraveled
from xvarpro.errors import ProblemError
from xvarpro.objective.interface import Objective
from xvarpro.sets.region import Region


class QuasiNewtonState(NamedTuple):
    """State of a quasi-Newton method, n being the entries of theta."""

    iterate: Iterate
    rest: Any  # the first-order method's state, with () for its iterate
    pairs: Array  # (memory, 2, n), steps and changes of the gradient
    probe: Leaves  # a fixed direction
    face: Array  # (n,), the part of it that lies in the face, by which faces are distinguished
    calm: Array  # iterations since the face last changed
    recalled: Array  # whether pairs are remembered
    ready: Array  # whether the face will be settled if it stays
    way: tuple[Leaves, Array]  # in the face, and whether it is taken: found where the record is not yet read
    failed: Array  # whether the last pairs led nowhere, which are then forgotten
    lowest: tuple[Array, Array]  # objective and gap so far
    stalled: Array  # iterations since one of them fell by more than rounding


@dataclass(frozen=True)
class QuasiNewton(Algorithm):
    """L-BFGS in the affine hull of the active face once it has settled, first-order steps before that and across."""

    memory: int = 10
    settle: int = 20
    trust: float = 0.5
    gamma: float = 1e-4
    limit: int = 40

    patience = 40

    def __post_init__(self) -> None:
        checks.whole(self, "memory", 1)
        checks.whole(self, "settle", 0)
        checks.between(self, "trust", 0, 1)
        checks.between(self, "gamma", 0, 0.5)
        checks.whole(self, "limit", 1)

    @property
    def monotone(self) -> bool:
        return self.first_order.monotone

    @property
    @abstractmethod
    def first_order(self) -> FirstOrder:
        """The method that quasi-Newton steps take turns with."""

    def init(self, f: Objective, region: Region, theta: Leaves) -> QuasiNewtonState:
        base = self.first_order.init(f, region, theta)
        like = base.iterate.value
        xp = namespace_of(like)
        zero, n = xp.zeros_like(like), sum(math.prod(x.shape) for x in theta)
        # without structure: its part in a face is different for different faces
        probe = unraveled(xp.sin(xp.arange(1, n + 1, dtype=like.dtype, device=device(like))), theta)
        empty = xp.zeros((self.memory, 2, n), dtype=like.dtype, device=device(like))
        face = raveled(self.first_order.tangent(region, probe, theta))
        rest, lowest = base._replace(iterate=()), (like, _gap(base.iterate))
        calm = zero, *self._calm(zero)
        no_way = theta, zero > 0
        state = QuasiNewtonState(base.iterate, rest, empty, probe, face, *calm, no_way, zero > 0, lowest, zero)
        return state if self.settle else self._onward(f, region, state, base, zero)

    def _calm(self, calm: Array) -> tuple[Array, Array]:
        """Whether pairs are remembered, since earlier ones would be gone by the time they are wanted; and used."""
        return calm + self.memory >= self.settle, calm + 1 >= self.settle

    def _onward(
        self, f: Objective, region: Region, state: QuasiNewtonState, base: Any, calm: Array
    ) -> QuasiNewtonState:
        """The state where the first-order method's is `base`, and the face has been the same for `calm` iterations."""
        no_way = base.iterate.theta, calm < 0
        base, (d, taken) = f.backend.when(state.ready, partial(self._inside, f, region, state), (base, no_way))
        recalled, ready = self._calm(calm)
        return state._replace(
            iterate=base.iterate,
            rest=base._replace(iterate=()),
            calm=calm,
            recalled=recalled,
            ready=ready,
            way=(d, taken & (calm >= self.settle)),
        )

    def advance(self, f: Objective, region: Region, state: QuasiNewtonState) -> QuasiNewtonState:
        old, method = state.iterate, self.first_order
        before = state.rest._replace(iterate=old)
        d, taken = state.way
        if f.backend.compiled or f.backend.holds(taken):
            base = method.step(f, region, before, Way(d, taken, self.gamma, self.limit))
        else:
            base = method.advance(f, region, before)
        iterate = base.iterate
        xp = namespace_of(old.value)

        def remember(pairs: Array) -> Array:
            step, change = sub(iterate.theta, old.theta), sub(base.grad, before.grad)
            return push(pairs, xp.stack([raveled(step), raveled(change)]))

        pairs = f.backend.when(state.recalled, remember, f.backend.when(state.failed, xp.zeros_like, state.pairs))
        # a first-order step that led nowhere has the last word
        running = xp.full_like(iterate.status, Status.RUNNING.code)
        ended = iterate.status != running
        failed = taken & ended
        face = raveled(method.tangent(region, state.probe, iterate.theta))
        same = ~xp.any(face != state.face)
        calm = xp.where(ended, -xp.ones_like(state.calm), xp.where(same, state.calm + 1, xp.zeros_like(state.calm)))
        value, gap = state.lowest
        better = (value - iterate.value > f.rounding(iterate.value)) | (_gap(iterate) < 0.5 * gap)
        lowest = xp.minimum(value, iterate.value), xp.minimum(gap, _gap(iterate))
        stalled = xp.where(better, xp.zeros_like(calm), state.stalled + 1)
        out_of_patience = xp.full_like(running, Status.STALLED.code)
        code = xp.where(stalled < self.patience, xp.where(failed, running, iterate.status), out_of_patience)
        state = state._replace(pairs=pairs, face=face, failed=failed, lowest=lowest, stalled=stalled)
        return self._onward(f, region, state, base._replace(iterate=iterate._replace(status=code)), calm)

    def _inside(
        self, f: Objective, region: Region, state: QuasiNewtonState, now: tuple[Any, tuple[Leaves, Array]]
    ) -> tuple[Any, tuple[Leaves, Array]]:
        """A quasi-Newton direction in the face, taken unless most of what a first-order step promises is outside of it.

        The state comes with its work counted.
        """
        method, grad = self.first_order, now[0].grad
        b, base = method.direction(f, region, now[0])
        base = worked(base, projections=1 * method.needs_projection)
        theta = base.iterate.theta
        xp = namespace_of(*theta)
        q = raveled(method.tangent(region, grad, theta))
        pairs = raveled(method.tangent(region, unraveled(state.pairs, theta), theta), rows=2)
        S, Y = pairs[:, 0, :], pairs[:, 1, :]
        newton = unraveled(-_inverse_hessian(f.backend, S, Y, q, method.length(base)), theta)
        a = method.toward(f, region, newton, theta)
        slope = dot(grad, a)
        steep = slope < -(xp.finfo(q.dtype).eps ** 0.5) * xp.sqrt(dot(grad, grad) * dot(a, a))
        return base, (a, steep & (inner(q, raveled(b)) <= self.trust * dot(grad, b)))


@final
@dataclass(frozen=True)
class ProjectedQuasiNewton(QuasiNewton):
    """A polish for projected gradient methods: L-BFGS inside the active face, once that has settled.

    Until the face has been the same for `settle` iterations, `base` makes the steps: the first faces of a solve are not
    those of a good minimum, and a fast method would end in them. Then a step goes to the projection of the quasi-Newton
    point, a feasible direction, as long as the face holds at least the share `trust` of the descent that a projected
    gradient step promises. Otherwise `base` makes the step (Bertsekas 1982; Schmidt, Kim, Sra 2012; Hager, Zhang 2006).
    The end of a solve is superlinear in practice where `memory` covers the face. Every pair of the memory is projected
    on the directions of the face before it is used. Sets that do not describe their faces are treated by projection
    alone.

    Parameters
    ----------
    memory : int
        Pairs kept, >= 1.
    settle : int
        Iterations without a change of the face before the model is used, >= 0.
    trust : float
        Share of a first-order step's promise that has to lie in the face, in (0, 1).
    gamma : float
        Share of the predicted decrease that is asked for, in (0, 1/2).
    limit : int
        Trials after which the line search gives up.
    base : SpectralProjectedGradient or AcceleratedProjectedGradient
        What steps otherwise: the former for a few parameters, the latter where some of them are free or many.

    Notes
    -----
    Oracle : projection; faces where the set describes them; LMO for the certificate
    Per iteration : those of `base`; in the face a value per trial, 1 gradient, 1 LMO, two projections
    Memory : ``2 memory`` vectors, more while it works
    Polytope only : no
    When : the default; the last digits

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.ProjectedQuasiNewton(memory=5).memory
    5
    """

    base: FirstOrder = field(default_factory=SpectralProjectedGradient)

    needs_projection = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.base, Projecting):
            raise ProblemError(
                "ProjectedQuasiNewton: base must be SpectralProjectedGradient() or AcceleratedProjectedGradient(), "
                f"got {self.base!r}"
            )

    @property
    def first_order(self) -> FirstOrder:
        return self.base


@final
@dataclass(frozen=True)
class InFaceQuasiNewton(QuasiNewton):
    """L-BFGS inside the smallest face of the iterate, without projections: Frank-Wolfe with a superlinear end.

    Until the face has been the same for `settle` iterations, it makes gradient steps by conditional gradient sliding
    (Lan, Zhou 2016), of Barzilai-Borwein length or accelerated. They turn into each face they meet, and up to five
    Frank-Wolfe steps toward the projection, with a vertex each, open others. Then it makes quasi-Newton steps inside
    the face, as long as these promise at least the share `trust` of the descent of the others. Free leaves are part of
    the model. If a set does not describe its faces (`Set.has_faces`), all steps go toward vertices.

    Parameters
    ----------
    memory, settle, trust, gamma, limit
        As in `ProjectedQuasiNewton`.
    momentum : bool
        Whether gradient steps are accelerated, as those of `AcceleratedProjectedGradient`: better minima where leaves
        are free, as in networks.

    Notes
    -----
    Oracle : LMO, and the faces where the set describes them
    Per iteration : a value per trial, 1 gradient, 2 LMOs, at most 5 more on the way to vertices, and work in the face
    Memory : ``2 memory`` vectors, more while it works
    Polytope only : no; without faces all steps go toward vertices
    When : sets with faces and no projection; the polish of Frank-Wolfe

    On boxes, simplices and l1 balls a step turns into all faces at once, for about the price of a projection inside the
    face. On other sets it turns from one face to the next.

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

    momentum: bool = False

    @property
    def first_order(self) -> FirstOrder:
        return AcceleratedInFace() if self.momentum else SpectralInFace()


def _inverse_hessian(backend: Backend, S: Array, Y: Array, q: Array, length: Array) -> Array:
    """``H q`` with the compact form of L-BFGS (Byrd, Nocedal, Schnabel 1994); pairs without curvature are left out."""
    xp = namespace_of(q)
    # the rows are as long as theta: products with them are made, copies of them are not
    SY, YY = S @ Y.mT, Y @ Y.mT
    sy, yy, ss = (xp.linalg.diagonal(G) for G in (SY, YY, S @ S.mT))
    good = sy > (100 * xp.finfo(q.dtype).eps) * xp.sqrt(ss * yy)
    # rows scaled to <s, y> = 1
    scale = xp.where(good, 1 / xp.sqrt(xp.where(good, sy, xp.ones_like(sy))), xp.zeros_like(sy))
    column = xp.expand_dims(scale, axis=1)
    yy = scale * scale * yy
    # the newest good pair sets the scale: the last entry of a running choice
    weight = xp.astype(good, q.dtype)
    n = xp.arange(1, S.shape[0] + 1, dtype=q.dtype, device=device(q))
    newest = weight * xp.astype(n * weight == xp.max(n * weight), q.dtype)
    ratio = xp.sum(newest * yy)
    gamma = xp.where(ratio > 0, 1 / positive_or_one(ratio), length)
    R = xp.triu(column * SY * scale, k=1) + xp.eye(S.shape[0], dtype=q.dtype, device=device(q))
    p = backend.solve_triangular(R, xp.expand_dims(scale * (S @ q), axis=1))
    YYp = column * (YY @ (column * p))
    Yq = xp.expand_dims(scale * (Y @ q), axis=1)
    t = backend.solve_triangular(R, xp.expand_dims(weight, axis=1) * p + gamma * (YYp - Yq), transpose=True)
    return gamma * (q - Y.mT @ (column * p)[:, 0]) + S.mT @ (column * t)[:, 0]


def _gap(iterate: Iterate) -> Array:
    return iterate.gap_A + iterate.gap_B
