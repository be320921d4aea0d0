"""Dead units brought back: a unit that is exactly zero has zero gradient, so no step of any method moves it again."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, NamedTuple, final

from xvarpro.algorithms.common import add
from xvarpro.algorithms.frank_wolfe import FrankWolfe
from xvarpro.algorithms.interface import Algorithm, Counts, Iterate
from xvarpro.core.namespace import array_namespace
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves, Struct
from xvarpro.core.trees import inner, select
from xvarpro.errors import ProblemError

LONGEST = 2.0**20  # iterations that a wait may grow to


class Seeds(Struct):
    """Where new units come from."""

    def check(self, f: Any, rows: int) -> None:
        """Raise `ProblemError` where a unit of that many entries is no place for the seeds of `f`."""

    @abstractmethod
    def columns(self, f: Any, point: Any) -> Array:
        """Directions for new units as columns, the best first; a column of zeros seeds nothing."""


class OfResidual(Seeds):
    """Seeds that are directions in the space of the target."""

    def check(self, f: Any, rows: int) -> None:
        m = f.target_shape[0]
        if rows != m:
            raise ProblemError(
                f"units of {rows} entries cannot be seeded from a target of {m} rows: name the leaf that holds them "
                f"(leaf=, axis=), or derive seeds of your own from {Seeds.__module__}.Seeds"
            )


@final
@dataclass(frozen=True)
class WorstSamples(OfResidual):
    """What is left of the worst-represented columns of the target, the largest residual first.

    One pass over the residual. Of a compressed target they are the columns that stand for the samples.

    Notes
    -----
    Directions : columns of the residual, the longest first
    Cost : one pass over the residual and a sort
    When : the default; seeds that look like data

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.Reseeded().seeds
    WorstSamples()
    """

    def columns(self, f: Any, point: Any) -> Array:
        rest = -point.r
        xp = array_namespace(rest)
        return xp.take(rest, xp.argsort(-xp.sum(rest * rest, axis=0), stable=True), axis=1)


@final
@dataclass(frozen=True)
class PrincipalDirections(OfResidual):
    """Principal directions of the residual, the largest first, each with its largest entry positive.

    They are the directions that lower the objective fastest, to the first order in the squared length of a unit;
    orthogonal, so that two units never get the same; and the same whether or not the target was compressed.

    Notes
    -----
    Directions : left singular vectors of the residual
    Cost : an SVD on the shorter side
    When : several units at once; compressed targets

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.Reseeded(seeds=xv.algorithms.PrincipalDirections()).seeds
    PrincipalDirections()
    """

    def columns(self, f: Any, point: Any) -> Array:
        r = point.r
        xp = array_namespace(r)
        wide = r.shape[1] > r.shape[0]
        U, s, _ = f.backend.svd(r @ r.mT if wide else r)
        top = xp.max(s)
        # beyond rounding: of a Gram matrix the squares of the singular values
        kept = s > (max(r.shape) * xp.finfo(s.dtype).eps) * top
        best = xp.argmax(xp.abs(U), axis=0)
        peak = xp.take_along_axis(U, xp.expand_dims(best, axis=0), axis=0)
        return xp.where(peak < 0, -U, U) * xp.astype(xp.expand_dims(kept, axis=0), U.dtype)


class State(NamedTuple):
    """The iterate, the inner algorithm's state, iterations done, the one at which units are looked at next, the wait
    that follows it, and the reseedings done.
    """

    iterate: Iterate
    inner: Any
    k: Array
    next: Array
    wait: Array
    times: Array


class Trial(NamedTuple):
    """How many units to revive next, the best point so far, and the work."""

    q: Array
    value: Array
    theta: Leaves
    counts: Counts


@final
@dataclass(frozen=True)
class Reseeded(Algorithm):
    """Another algorithm, whose dead units are re-seeded from the data, as scikit-learn does for unused atoms.

    A unit is a column of a matrix leaf of theta: an atom of a dictionary. Where some are dead, q of them are revived,
    for q = all, half, a quarter, ..., 1, and the trial with the lowest objective is kept. Where the set has room, as a
    product of sets of columns has, seeds as long as the average live unit are added. Where it has none, as a budget
    that all units share, the point moves by ``s = q/(live + q)`` to a point C of the set that is made of the seeds
    alone: a multiple of them, else their projection, else a vertex (LMO only). Convexity keeps that feasible.

    A reseeding that does not lower the objective is not taken, unless `rise` allows it. So a monotone method stays
    one, its theory holds from the last reseeding on, and units that no trial can use stay dead: under a shared budget
    a dead unit is often the minimiser's own choice, and reviving it at any cost would make the method go round in
    circles. ``rise > 0`` pays deliberately for leaving such a point; `times` then bounds the sum. Every reseeding
    starts the inner algorithm anew, as its memory is of another point; one that was refused doubles the wait to the
    next. All of it is counted.

    Parameters
    ----------
    inner : Algorithm
        What iterates.
    every : int
        Iterations between looks at the units, >= 1; where the inner algorithm finds no descent they are looked at once
        more.
    leaf : int or None
        Which leaf of theta holds the units, in the order of theta's leaves (a dict's by sorted key). None: the only
        matrix among them; a theta without any has no units, and the inner algorithm runs as it is.
    axis : int
        1 where units are columns, 0 where they are rows.
    below : float
        A unit is dead if its largest entry is at most `below` times that of all; in [0, 1). 0: exactly zero.
    rise : float
        Largest rise of the objective that a reseeding may cost, relative to it; >= 0.
    times : int
        Reseedings at most, >= 0.
    seeds : Seeds
        `WorstSamples` or `PrincipalDirections`.

    Notes
    -----
    Oracle : that of `inner`
    Per iteration : that of `inner`; at a look at dead units a value, and per trial another and an LMO or a projection
    Memory : that of `inner` and a few vectors
    Polytope only : no
    When : units die: dictionaries and networks under a budget

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> y = np.random.default_rng(0).normal(size=(6, 50))
    >>> problem = xv.separable(lambda theta, data: theta, y, lam=1e-3)
    >>> D0 = np.zeros((6, 4))
    >>> D0[0, 0] = 1.0  # one atom of four
    >>> fit = xv.solve(problem, D0, over=xv.sets.L1Ball(1.0), algorithm=xv.algorithms.Reseeded(), max_iter=60)
    >>> fit.verified.dead_units
    0
    """

    inner: Algorithm = field(default_factory=FrankWolfe)
    every: int = 10
    leaf: int | None = None
    axis: int = 1
    below: float = 0.0
    rise: float = 0.0
    times: int = 20
    seeds: Seeds = field(default_factory=WorstSamples)

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Algorithm) or isinstance(self.inner, Reseeded):
            raise ProblemError(f"Reseeded needs an algorithm such as FrankWolfe() to run, got {self.inner!r}")
        for name, least in (("every", 1), ("times", 0)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise ProblemError(f"Reseeded needs {name} >= {least}, a whole number, got {value!r}")
        if self.leaf is not None and (not isinstance(self.leaf, Integral) or isinstance(self.leaf, bool)):
            raise ProblemError(f"Reseeded needs the position of a leaf or None, got leaf={self.leaf!r}")
        if self.axis not in (0, 1):
            raise ProblemError(f"Reseeded needs axis=1 (units are columns) or 0 (rows), got {self.axis!r}")
        if not isinstance(self.below, Real) or not 0 <= self.below < 1:
            raise ProblemError(f"Reseeded needs 0 <= below < 1, got {self.below!r}")
        if not isinstance(self.rise, Real) or not 0 <= self.rise < float("inf"):
            raise ProblemError(f"Reseeded needs a finite rise >= 0, got {self.rise!r}")
        if not isinstance(self.seeds, Seeds):
            raise ProblemError(f"seeds must be WorstSamples() or PrincipalDirections(), got {self.seeds!r}")

    @property
    def needs_projection(self) -> bool:
        """Whether the inner algorithm projects."""
        return self.inner.needs_projection

    def init(self, f: Any, region: Any, theta: Leaves) -> State:
        at = self._at(theta)
        if at is not None:
            self.seeds.check(f, self._units(theta[at]).shape[0])
        inner = self.inner.init(f, region, theta)
        zero = 0 * inner.iterate.value
        return State(inner.iterate, inner, zero, zero + self.every, zero + self.every, zero)

    def advance(self, f: Any, region: Any, state: State) -> State:
        inner = self.inner.advance(f, region, state.inner)
        state = state._replace(iterate=inner.iterate, inner=inner, k=state.k + 1)
        at = self._at(inner.iterate.theta)
        if at is None:
            return state
        xp = array_namespace(state.k)
        stuck = inner.iterate.status != Status.RUNNING.code
        due = ((state.k >= state.next) | stuck) & (state.times < self.times)
        due = due & xp.any(self._dead(self._units(inner.iterate.theta[at]))) & xp.isfinite(inner.iterate.value)
        return f.backend.when(due, lambda state: self._reseeded(f, region, state, at), state)

    @property
    def stochastic(self) -> bool:
        return self.inner.stochastic

    def finish(self, f: Any, region: Any, state: State) -> State:
        inner = self.inner.finish(f, region, state.inner)
        return state._replace(iterate=inner.iterate, inner=inner)

    # -- which units ---------------------------------------------------------------------------------------------------

    def _at(self, theta: Leaves) -> int | None:
        """Position of the leaf that holds the units."""
        if self.leaf is not None:
            if not -len(theta) <= self.leaf < len(theta) or theta[self.leaf].ndim != 2:
                raise ProblemError(f"leaf={self.leaf} names no matrix among the {len(theta)} leaves of theta")
            return self.leaf % len(theta)
        found = [i for i, x in enumerate(theta) if x.ndim == 2]
        if len(found) > 1:
            raise ProblemError(f"theta has {len(found)} matrices, at {found}: say which holds the units, with leaf=")
        return found[0] if found else None

    def _units(self, x: Array) -> Array:
        """The leaf with its units as columns, or back."""
        return x if self.axis else x.mT

    def _dead(self, D: Array) -> Array:
        """Mask of the dead columns; NaN is alive."""
        xp = array_namespace(D)
        size = xp.max(xp.abs(D), axis=0)
        return size <= self.below * xp.max(size)

    # -- new ones ------------------------------------------------------------------------------------------------------

    def _reseeded(self, f: Any, region: Any, state: State, at: int) -> State:
        """The state after a look at dead units: from the best trial if that is good enough, else as it was."""
        old, xp = state.iterate, array_namespace(state.k)
        best = self._best(f, region, old, at)
        # strictly lower for rise = 0; NaN fails
        taken = best.value < old.value + self.rise * xp.abs(old.value)

        def restart(inner: Any) -> Any:
            fresh = self.inner.init(f, region, best.theta)
            work = Counts(*(a + b for a, b in zip(fresh.iterate.counts, best.counts, strict=True)))
            return fresh._replace(iterate=fresh.iterate._replace(counts=work))

        counted = state.inner._replace(iterate=state.inner.iterate._replace(counts=best.counts))
        inner = f.backend.when(taken, restart, counted)
        # the step that the iterate reports is the one that led here, also where units were revived after it
        iterate = inner.iterate._replace(alpha_A=old.alpha_A, alpha_B=old.alpha_B)
        wait = xp.where(taken, xp.full_like(state.k, self.every), xp.minimum(2 * state.wait, 0 * state.k + LONGEST))
        times = state.times + xp.astype(taken, state.times.dtype)
        return State(iterate, inner, state.k, state.k + wait, wait, times)

    def _best(self, f: Any, region: Any, old: Iterate, at: int) -> Trial:
        """The best of the trials with q = all dead units, half of them, ..., one."""
        theta = old.theta
        D, point = self._units(theta[at]), f.point(theta)
        xp = array_namespace(D)
        dead = self._dead(D)
        one = xp.astype(dead, D.dtype)
        rank = xp.cumulative_sum(one) - one  # of a dead unit among them
        seeds = _unit_length(self.seeds.columns(f, point))
        last = seeds.shape[1] - 1
        index = xp.astype(xp.minimum(rank, xp.full_like(rank, last)), xp.int32)
        seeds = xp.take(seeds, index, axis=1) * xp.expand_dims(one * xp.astype(rank <= last, D.dtype), axis=0)
        live = xp.sum(1 - one)
        length = xp.sqrt(inner(D, D) / xp.maximum(live, xp.ones_like(live)))

        def again(trial: Trial) -> Trial:
            revived = seeds * xp.expand_dims(xp.astype(rank < trial.q, D.dtype), axis=0)
            there, work = self._placed(f, region, theta, at, revived, length, trial.q / (live + trial.q))
            value = f.point(there).value
            value, there = select(value < trial.value, (value, there), (trial.value, trial.theta))
            return Trial(xp.floor(trial.q / 2), value, there, add(trial.counts, *work))

        q = xp.minimum(xp.sum(one), xp.full_like(live, last + 1))
        # a first value that any number is below
        first = Trial(q, xp.full_like(old.value, xp.inf), theta, add(old.counts, values=1))
        return f.backend.while_loop(lambda trial: trial.q >= 1, again, first)

    def _placed(
        self, f: Any, region: Any, theta: Leaves, at: int, seeds: Array, length: Array, share: Array
    ) -> tuple[Leaves, tuple[Array, ...]]:
        """Theta with the seeds in it, feasible, and the work as (values, gradients, LMOs, projections)."""
        xp = array_namespace(seeds)
        eps = xp.finfo(seeds.dtype).eps
        Z = self._units(seeds)
        one, zero = xp.ones_like(share), xp.zeros_like(share)
        allowed = xp.maximum(region.violation(theta), zero + 16 * eps)

        def put(x: Array) -> Leaves:
            return (*theta[:at], x, *theta[at + 1 :])

        added = put(theta[at] + length * Z)
        room = (region.violation(added) <= allowed) & (length > 0)
        sets = dict(region.constrained)
        if at not in sets:
            return added, (one, zero, zero, zero)
        size = sets[at].diameter(xp.reshape(Z, (-1,)) if sets[at].event_ndim == 1 else Z)

        # For a norm's ball one division by 1 + violation ends on the boundary, the next ones take away its rounding.
        def shorter(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            n, t, outside = carry
            t = t / (1 + outside)
            return n + 1, t, region.violation(put(t * Z))

        t = xp.full_like(share, size)
        first = (zero, t, region.violation(put(t * Z)))
        _, t, outside = f.backend.while_loop(lambda c: ~(c[2] <= allowed) & (c[0] < 8), shorter, first)
        multiple = outside <= allowed
        project = sets[at].has_projection

        def otherwise(_: Array) -> Array:
            if project:
                return region.project(put(xp.where(length > 0, length, zero + size) * Z))[at]
            slopes = tuple(-Z if i == at else xp.zeros_like(x) for i, x in enumerate(theta))
            return theta[at] + region.blmo(theta, slopes).d[at]

        made = f.backend.when(~(room | multiple), otherwise, t * Z)
        moved = put(theta[at] + share * (made - theta[at]))
        work = xp.where(room | multiple, zero, one)
        return select(room, added, moved), (one, zero, *((zero, work) if project else (work, zero)))


def _unit_length(x: Array) -> Array:
    """Columns of Euclidean length 1; zeros stay."""
    xp = array_namespace(x)
    top = xp.max(xp.abs(x), axis=0, keepdims=True)
    x = x / xp.where(top > 0, top, xp.ones_like(top))
    length = xp.sqrt(xp.sum(x * x, axis=0, keepdims=True))
    return x / xp.where(length > 0, length, xp.ones_like(length))
