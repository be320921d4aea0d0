"""Revival of dead units: a unit that is exactly zero has zero gradient, so no step of any method moves it again."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple, final

from xvarpro.algorithms.common import add
from xvarpro.algorithms.frank_wolfe import FrankWolfe
from xvarpro.algorithms.interface import Algorithm, Counts, Iterate
from xvarpro.backends import Backend
from xvarpro.backends.interface import select
from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import inner
from xvarpro.errors import ProblemError
from xvarpro.objective.interface import Objective
from xvarpro.sets.region import Region, event


class ReseededState(NamedTuple):
    """State of `Reseeded`; 0-d arrays but for the first two."""

    iterate: Iterate
    inner: Any  # state of the inner algorithm
    k: Array  # iterations done
    next: Array  # the iteration after which units are looked at next
    wait: Array  # iterations between the last two looks


class Trial(NamedTuple):
    """The best point so far and the work."""

    q: Array  # how many units to revive next
    value: Array
    theta: Leaves
    counts: Counts


@final
@dataclass(frozen=True)
class Reseeded(Algorithm):
    """Restarts of another algorithm with its dead units revived from the residual.

    A unit is a column of a matrix leaf of theta, with as many entries as the target has rows, such as an atom of a
    dictionary; it is dead where it is zero. Trials replace all of the dead units, half, a quarter, ..., or one by
    principal directions of the residual, and the trial with the lowest objective is kept. If the set has room, as a
    product of sets of columns has, these q units get the length of the average live unit. If all units share a budget,
    the point moves by ``s = q/(live + q)`` to a multiple of them in the set or, where no multiple is in it, to the
    vertex furthest in their direction.

    A trial that does not lower the objective is refused, and doubles the wait until the next one: under a shared budget
    dead units are often part of the minimiser. Every reseeding starts the inner algorithm anew.

    Parameters
    ----------
    inner : Algorithm
        What iterates.
    every : int
        Iterations between looks at the units, >= 1; one look more where the inner algorithm finds no descent.
    leaf : int or None
        Which leaf of theta holds the units, in the order of theta's leaves (a dict's by sorted key). None: the only
        matrix among them; a theta without any has no units, and the inner algorithm runs as it is.
    axis : int
        1 where units are columns, 0 where they are rows.

    Notes
    -----
    Oracle : that of `inner`
    Per iteration : that of `inner`; at a look at dead units a value, and per trial another and an LMO at most
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

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Algorithm) or isinstance(self.inner, Reseeded):
            raise ProblemError(f"Reseeded: inner must be an algorithm such as FrankWolfe(), got {self.inner!r}")
        checks.whole(self, "every", 1)
        if self.leaf is not None and (not isinstance(self.leaf, Integral) or isinstance(self.leaf, bool)):
            raise ProblemError(f"Reseeded: leaf must be the position of a leaf or None, got {self.leaf!r}")
        if isinstance(self.axis, bool) or self.axis not in (0, 1):
            raise ProblemError(f"Reseeded: axis must be 1 (units are columns) or 0 (rows), got {self.axis!r}")

    @property
    def needs_projection(self) -> bool:
        return self.inner.needs_projection

    takes_unbounded = False  # seeds are measured by the diameter

    @property
    def certifies_every_iteration(self) -> bool:
        return self.inner.certifies_every_iteration

    @property
    def monotone(self) -> bool:
        return self.inner.monotone

    @property
    def has_units(self) -> bool:
        return self.inner.has_units

    def rows_of_batch(self, f: Objective) -> float:
        return self.inner.rows_of_batch(f)

    def init(self, f: Objective, region: Region, theta: Leaves) -> ReseededState:
        at = self._position(theta)
        if at is not None and (rows := self._columns(theta[at]).shape[0]) != f.target_shape[0]:
            raise ProblemError(
                f"Reseeded: units must have as many entries as the target has rows, {f.target_shape[0]}; leaf {at} "
                f"holds units of {rows}. Name the leaf of the units with leaf= and axis="
            )
        inner = self.inner.init(f, region, theta)
        zero = 0 * inner.iterate.value
        return ReseededState(inner.iterate, inner, zero, zero + self.every, zero + self.every)

    def advance(self, f: Objective, region: Region, state: ReseededState) -> ReseededState:
        inner = self.inner.advance(f, region, state.inner)
        state = state._replace(iterate=inner.iterate, inner=inner, k=state.k + 1)
        at = self._position(inner.iterate.theta)
        if at is None:
            return state
        xp = namespace_of(state.k)
        due = (state.k >= state.next) | (inner.iterate.status != Status.RUNNING.code)
        due = due & xp.any(_dead(self._columns(inner.iterate.theta[at]))) & xp.isfinite(inner.iterate.value)
        return f.backend.when(due, lambda state: self._reseeded(f, region, state, at), state)

    def finish(self, f: Objective, region: Region, state: ReseededState) -> ReseededState:
        inner = self.inner.finish(f, region, state.inner)
        return state._replace(iterate=inner.iterate, inner=inner)

    def _position(self, theta: Leaves) -> int | None:
        """Position of the leaf that holds the units."""
        if self.leaf is not None:
            if not -len(theta) <= self.leaf < len(theta) or theta[self.leaf].ndim != 2:
                raise ProblemError(
                    f"Reseeded: leaf must name a matrix among the {len(theta)} leaves of theta, got {self.leaf}"
                )
            return self.leaf % len(theta)
        found = [i for i, x in enumerate(theta) if x.ndim == 2]
        if len(found) > 1:
            raise ProblemError(
                f"Reseeded: one matrix of theta holds the units; theta has {len(found)}, at {found}. Name it with leaf="
            )
        return found[0] if found else None

    def _columns(self, x: Array) -> Array:
        """The leaf with its units as columns, or back."""
        return x if self.axis else x.mT

    def _reseeded(self, f: Objective, region: Region, state: ReseededState, at: int) -> ReseededState:
        """The state after a look at dead units: from the best trial if that is lower, else as it was."""
        old, xp = state.iterate, namespace_of(state.k)
        best = self._best(f, region, old, at)
        taken = best.value < old.value  # NaN fails

        def restart(inner: Any) -> Any:
            fresh = self.inner.init(f, region, best.theta)
            return fresh._replace(iterate=fresh.iterate._replace(counts=add(fresh.iterate.counts, *best.counts)))

        counted = state.inner._replace(iterate=state.inner.iterate._replace(counts=best.counts))
        inner = f.backend.when(taken, restart, counted)
        # the step that the iterate reports is the one that led here, also where units were revived after it
        iterate = inner.iterate._replace(alpha_A=old.alpha_A, alpha_B=old.alpha_B)
        wait = xp.where(taken, xp.full_like(state.k, self.every), 2 * state.wait)
        return ReseededState(iterate, inner, state.k, state.k + wait, wait)

    def _best(self, f: Objective, region: Region, old: Iterate, at: int) -> Trial:
        """The best of the trials with q = all dead units, half of them, ..., one."""
        theta, D = old.theta, self._columns(old.theta[at])
        xp = namespace_of(D)
        dead = xp.astype(_dead(D), D.dtype)
        rank = xp.cumulative_sum(dead) - dead  # of a dead unit among them
        directions = _principal_directions(f, f.point(theta).r)
        most = directions.shape[1]
        index = xp.astype(xp.minimum(rank, xp.full_like(rank, most - 1)), xp.int32)
        seeds = dead * xp.take(directions, index, axis=1)
        live = xp.sum(1 - dead)
        length = xp.sqrt(inner(D, D) / xp.maximum(live, xp.ones_like(live)))

        def again(trial: Trial) -> Trial:
            Z = self._columns(seeds * xp.astype(rank < trial.q, D.dtype))
            there, lmos = _placed(f.backend, region, theta, at, Z, length, trial.q / (live + trial.q))
            value = f.point(there).value
            value, there = select(f.backend, value < trial.value, (value, there), (trial.value, trial.theta))
            return Trial(xp.floor(trial.q / 2), value, there, add(trial.counts, values=1, lmos=lmos))

        q = xp.minimum(xp.sum(dead), xp.full_like(live, most))
        # a first value that any number is below
        first = Trial(q, xp.full_like(old.value, xp.inf), theta, add(old.counts, values=1))
        return f.backend.while_loop(lambda trial: trial.q >= 1, again, first)


def _placed(
    backend: Backend, region: Region, theta: Leaves, at: int, Z: Array, length: Array, share: Array
) -> tuple[Leaves, Array]:
    """Theta with the seeds Z in it, feasible, and the calls of the LMO."""
    xp = namespace_of(Z)
    allowed = xp.maximum(region.violation(theta), xp.full_like(share, 16 * xp.finfo(Z.dtype).eps))

    def put(x: Array) -> Leaves:
        return (*theta[:at], x, *theta[at + 1 :])

    added = put(theta[at] + length * Z)
    C = dict(region.constrained).get(at)
    if C is None:
        return added, 0 * share
    # one division by 1 + violation ends on the boundary of a norm's ball
    size = C.diameter(event(C, Z))
    multiple = (size / (1 + region.violation(put(size * Z)))) * Z
    vertex = theta[at] + region.blmo(theta, put(-Z)).d[at]
    found = select(backend, region.violation(put(multiple)) <= allowed, multiple, vertex)
    room = (region.violation(added) <= allowed) & (length > 0)
    there = select(backend, room, added, put(theta[at] + share * (found - theta[at])))
    return there, xp.ones_like(share)


def _dead(D: Array) -> Array:
    """Mask of the columns that are exactly zero; NaN is alive."""
    xp = namespace_of(D)
    return xp.max(xp.abs(D), axis=0) <= 0


def _principal_directions(f: Objective, r: Array) -> Array:
    """Left singular vectors of the residual, (m, k), the largest first, 0 beyond its rank; largest entries positive."""
    xp = namespace_of(r)
    U, s, _ = f.backend.svd(r @ r.mT if r.shape[1] > r.shape[0] else r)
    # beyond rounding: of a Gram matrix the squares of the singular values
    kept = s > (max(r.shape) * xp.finfo(s.dtype).eps) * xp.max(s)
    peak = xp.take_along_axis(U, xp.expand_dims(xp.argmax(xp.abs(U), axis=0), axis=0), axis=0)
    return xp.where(peak < 0, -U, U) * xp.astype(xp.expand_dims(kept, axis=0), U.dtype)
