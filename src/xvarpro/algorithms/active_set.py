"""Away-step, pairwise and blended pairwise conditional gradient over an explicit list of atoms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from xvarpro.algorithms._conditional_gradient import ConditionalGradientState, Move
from xvarpro.algorithms._corrective import Corrective, Mix, combine
from xvarpro.algorithms.common import add
from xvarpro.algorithms.interface import Iterate
from xvarpro.core import checks
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import dot, sum_
from xvarpro.errors import ProblemError
from xvarpro.objective.interface import Objective
from xvarpro.sets.region import Region

STALE = 32  # roundings of size eps after which the iterate is summed up anew from its atoms


class Active(NamedTuple):
    """Per constrained leaf K slots; a slot of weight 0 is empty."""

    atoms: tuple[Array, ...]  # (K, *shape of the leaf)
    weights: tuple[Array, ...]  # (K,), >= 0, sum 1
    drift: Array  # 0-d: how many roundings ``x = sum w a`` is off by, at most
    stale: Array  # 0-d: whether these are too many


class Exchange(NamedTuple):
    """What a move does to the weights: per active set the atom a to leave and s to enter, one-hot (K,)."""

    mix: Mix
    out: tuple[Array, ...]
    into: tuple[Array, ...]
    caps: tuple[Array, ...]  # step at which the weight of a reaches 0, 0-d


@final
@dataclass(frozen=True)
class ActiveSetFrankWolfe(Corrective):
    """Frank-Wolfe that keeps ``x = sum w_i a_i`` and can lower a weight: linear convergence on polytopes.

    It needs only the LMO of a set. A step removes weight from the atom with the largest ``<grad, a>`` as the correction
    says, at most until its weight is 0 and its slot empty. Every constrained leaf has its own atoms, so that n leaves
    of k atoms each represent k^n vertices of the product. One decision and one step length hold for all leaves. The
    start is the first atom.

    Equal vertices share a slot. When all slots are taken, the two atoms of least weight are replaced by their mean.
    That does not change x, but the two cannot be separated again; at a capacity of 2 this is plain Frank-Wolfe. Memory
    and time of an iteration grow with the capacity times the size of the leaves.

    Parameters
    ----------
    correction : Correction
        `BlendedPairwise`, `Pairwise` or `AwayStep`.
    step : StepRule
        As in `FrankWolfe`.
    blocks : Blocks
        `Separate` or `Together`: a step short for want of weight then does not hold a free block, or does.
    capacity : int
        Slots per leaf, >= 2. A point of a polytope needs one more than its dimension at most.

    Notes
    -----
    Oracle : LMO
    Per iteration : per search: values by `step`, 1 gradient, 1 LMO, and 1 LMO where a vertex enters
    Memory : ``capacity`` copies of the constrained leaves
    Polytope only : no; linear convergence on polytopes alone
    When : polytopes that are known by their LMO alone, solutions of few vertices

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, A):
    ...     return A @ xv.array_namespace(theta).expand_dims(theta, axis=1)
    >>> problem = xv.separable(M, np.ones(3), data=np.eye(3))
    >>> corner, over = np.array([1.0, 0.0, 0.0]), xv.sets.Simplex()
    >>> fit = xv.solve(problem, corner, over=over, algorithm=xv.algorithms.ActiveSetFrankWolfe(), tol=1e-9)
    >>> np.round(fit.theta, 4)
    array([0.3333, 0.3333, 0.3333])
    """

    capacity: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correction.in_face:
            raise ProblemError(
                f"ActiveSetFrankWolfe: correction must choose between atoms; got {self.correction!r}, which moves in "
                "the face of a point. Use InFaceFrankWolfe"
            )
        checks.whole(self, "capacity", 2)

    def carry(self, region: Region, theta: Leaves) -> Active:
        xp = namespace_of(*theta)
        atoms, weights = [], []
        for i, _ in region.constrained:
            x = theta[i]
            blank = xp.zeros((self.capacity - 1, *x.shape), dtype=x.dtype, device=device(x))
            atoms.append(xp.concat([xp.expand_dims(x, axis=0), blank]))
            weights.append(xp.astype(_one_hot(0, self.capacity, x), x.dtype))
        drift = xp.zeros((), dtype=theta[0].dtype, device=device(theta[0]))
        return Active(tuple(atoms), tuple(weights), drift, drift > STALE)

    def restore(self, f: Objective, region: Region, state: ConditionalGradientState) -> tuple[Iterate, Active]:
        def summed(state: tuple[Iterate, Active]) -> tuple[Iterate, Active]:
            iterate, active = state
            theta = list(iterate.theta)
            for (i, _), atoms, w in zip(region.constrained, active.atoms, active.weights, strict=True):
                theta[i] = namespace_of(w).reshape(w @ _flat(atoms), theta[i].shape)
            # a search compares with the value of the point that it starts from, to the last digit
            value = f.point(tuple(theta)).value
            iterate = iterate._replace(theta=tuple(theta), value=value, counts=add(iterate.counts, values=1))
            return iterate, active._replace(drift=0 * active.drift)

        return f.backend.when(state.carrier.stale, summed, (state.iterate, state.carrier))

    def move(self, f: Objective, region: Region, state: ConditionalGradientState) -> Move:
        theta, grad, forward = state.iterate.theta, state.grad, state.iterate.gap_A
        xp = namespace_of(forward)
        toward = region.block(state.d, free=False)
        away, inner = ([xp.zeros_like(x) for x in theta] for _ in range(2))
        out, into = [], []
        for (i, _), atoms, w in zip(region.constrained, state.carrier.atoms, state.carrier.weights, strict=True):
            score = _flat(atoms) @ xp.reshape(grad[i], (-1,))
            worst = xp.argmax(xp.where(w > 0, score, xp.full_like(score, -xp.inf)))
            best = xp.argmin(xp.where(w > 0, score, xp.full_like(score, xp.inf)))
            away[i], inner[i] = theta[i] - _pick(atoms, worst), _pick(atoms, best) - theta[i]
            out.append(_one_hot(worst, self.capacity, w))
            into.append(_one_hot(best, self.capacity, w))
        gaps = (forward, -dot(grad, tuple(away)), -dot(grad, tuple(inner)))
        mix = self.correction.mix(*gaps)
        pairs = zip(state.carrier.weights, out, into, strict=True)
        caps = tuple(_cap(mix, *which) for which in pairs)
        cap = xp.min(xp.stack(caps))
        # every leaf is a single atom: there is nothing to take away, and no direction
        cap = xp.where(xp.isfinite(cap), cap, xp.ones_like(cap))
        gap = sum_(c * g for c, g in zip(mix, gaps, strict=True))
        direction = combine(mix, (toward, tuple(away), tuple(inner)))
        return Move(direction, gap, cap, Exchange(mix, tuple(out), tuple(into), caps))

    def settle(
        self, f: Objective, region: Region, state: ConditionalGradientState, move: Move, alpha: Array, drop: Array
    ) -> tuple[Active, Array, Array]:
        xp = namespace_of(alpha)
        carrier, (mix, outs, intos, caps) = state.carrier, move.detail
        weights, dropped = [], alpha < 0
        scale = mix.away - mix.vertex - mix.inner
        for w, out, into, cap in zip(carrier.weights, outs, intos, caps, strict=True):
            gone = out & (alpha >= cap) & (mix.away > 0)
            # where the atom to leave is the vertex to enter, nothing moves
            dropped = dropped | (xp.any(gone) & (dot(move.d, move.d) > 0))
            change = mix.inner * xp.astype(into, w.dtype) - mix.away * xp.astype(out, w.dtype)
            w = (1 + alpha * scale) * w + alpha * change
            weights.append(xp.where(gone | ~(w > 0), xp.zeros_like(w), w))
        stretch = 1 + alpha * xp.maximum(scale, xp.zeros_like(scale))
        drift = carrier.drift * stretch + 1
        active = Active(carrier.atoms, tuple(weights), drift, drift > STALE)
        adds = alpha * mix.vertex > 0

        def added(active: Active) -> Active:
            # the direction of Algorithm 2 from the origin is the vertex to the last bit, which ``x + d`` is not
            vertex = region.blmo(tuple(xp.zeros_like(g) for g in state.grad), state.grad).d
            leaves = zip(region.constrained, active.atoms, active.weights, strict=True)
            atoms, weights = zip(*(_insert(a, w, vertex[i], alpha) for (i, _), a, w in leaves), strict=True)
            return active._replace(atoms=atoms, weights=weights)

        active = f.backend.when(adds, added, active)
        active = active._replace(weights=tuple(_normalised(w) for w in active.weights))
        return active, dropped, xp.astype(adds, alpha.dtype)


def _cap(mix: Mix, w: Array, out: Array, into: Array) -> Array:
    """The step at which the atom to leave has weight 0; inf where it is all there is, or is entered as well."""
    xp = namespace_of(w)
    weight = xp.sum(xp.where(out, w, xp.zeros_like(w)))
    # away from a, the other weights grow: what they are is known better than 1 - w
    others = xp.sum(xp.where(out, xp.zeros_like(w), w))
    leaving = mix.away - mix.vertex - mix.inner > 0
    room = xp.where(leaving, others, xp.ones_like(others))
    stays = (room <= 0) | ((mix.inner > 0) & xp.any(out & into))
    cap = xp.where(stays, xp.full_like(weight, xp.inf), weight / positive_or_one(room))
    return xp.where(mix.away > 0, cap, xp.ones_like(cap))


def _insert(atoms: Array, w: Array, v: Array, alpha: Array) -> tuple[Array, Array]:
    """The atom v with weight alpha: in the slot of an equal one, else in an empty one, else in one that a merger of
    the two lightest leaves empty.
    """
    xp = namespace_of(w)
    K = w.shape[0]
    same = xp.all(_flat(atoms) == xp.reshape(v, (1, -1)), axis=1)
    known, room = xp.any(same), xp.any(w <= 0)
    first = xp.argmin(w)
    rest = xp.where(_one_hot(first, K, w), xp.full_like(w, xp.inf), w)
    second = xp.argmin(rest)
    merge = ~(known | room)
    # `first` is an empty slot where there is one
    slot = _one_hot(xp.where(known, xp.argmax(xp.astype(same, xp.int32)), first), K, w)
    target = _one_hot(second, K, w) & merge
    light, heavy = xp.min(w), xp.min(rest)
    share = light / positive_or_one(light + heavy)
    a, b = _pick(atoms, first), _pick(atoms, second)
    mean = share * a + (1 - share) * b
    w = xp.where(target, light + heavy, xp.where(slot & merge, xp.zeros_like(w), w))
    atoms = xp.where(_rows(slot, atoms), v, xp.where(_rows(target, atoms), mean, atoms))
    return atoms, w + alpha * xp.astype(slot, w.dtype)


def _normalised(w: Array) -> Array:
    """Weights with sum 1, those of the size of its rounding set to 0."""
    xp = namespace_of(w)
    kept = xp.where(w > 2 * xp.finfo(w.dtype).eps, w, xp.zeros_like(w))
    return kept / xp.sum(kept)


def _flat(atoms: Array) -> Array:
    return namespace_of(atoms).reshape(atoms, (atoms.shape[0], -1))


def _pick(atoms: Array, index: Array) -> Array:
    xp = namespace_of(atoms)
    return xp.take(atoms, xp.reshape(index, (1,)), axis=0)[0, ...]


def _one_hot(index: Array | int, K: int, like: Array) -> Array:
    xp = namespace_of(like)
    return xp.arange(K, device=device(like)) == index


def _rows(mask: Array, atoms: Array) -> Array:
    return namespace_of(mask).reshape(mask, (-1, *(1,) * (atoms.ndim - 1)))
