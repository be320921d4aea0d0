"""How the blocks of theta step: together, one after the other, at once with a step each, or one per iteration."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple, final

import numpy as np

from xvarpro.algorithms.common import along, arrived, measured, moved, start, status
from xvarpro.algorithms.interface import Iterate
from xvarpro.algorithms.steps.interface import Line, StepRule
from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array, Leaves, Struct
from xvarpro.core.trees import dot, scaled, sum_
from xvarpro.errors import ProblemError


class State(NamedTuple):
    """The iterate, the direction at it, what the step rule carries for each search, and whose turn it is."""

    iterate: Iterate
    d: Leaves
    memory: Any
    turn: Any = ()


class Blocks(Struct):
    """How the blocks step: which searches an iteration makes, along what, and from which gradient."""

    @abstractmethod
    def init(self, rule: StepRule, f: Any, region: Any, theta: Leaves) -> State:
        """State at `theta`, with value and certificate."""

    @abstractmethod
    def advance(self, rule: StepRule, cap: float, f: Any, region: Any, state: State) -> State:
        """One iteration; the certificate of the new iterate is that of all blocks."""


class Sequential(Blocks):
    """Searches one after the other, each from the gradient at the point where the last one ended."""

    @abstractmethod
    def searches(self, region: Any) -> tuple[tuple[bool, bool], ...]:
        """One (steps A, steps B) pair per search."""

    def init(self, rule: StepRule, f: Any, region: Any, theta: Leaves) -> State:
        iterate, grad, d = start(f, region, theta)
        memory = []
        for pair in self.searches(region):
            L, iterate = measured(rule, f, grad, masked(region, d, pair), iterate)
            memory.append(of_pair(rule, pair).init(L))
        return State(iterate, d, tuple(memory))

    def advance(self, rule: StepRule, cap: float, f: Any, region: Any, state: State) -> State:
        iterate, d, memory = state.iterate, state.d, list(state.memory)
        xp = array_namespace(iterate.value)
        alpha = {True: 0 * iterate.value, False: 0 * iterate.value}
        progress = alpha[True] > 0
        for i, (A, B) in enumerate(self.searches(region)):
            step, before = masked(region, d, (A, B)), iterate.theta
            dd = dot(step, step)
            gap = iterate.gap_A + iterate.gap_B if A and B else iterate.gap_A if A else iterate.gap_B
            largest = xp.full_like(dd, cap if A and region.constrained else 1.0)
            line = along(f, iterate, step, gap, dd, largest)
            found = of_pair(rule, (A, B)).search(line, memory[i])
            progress = progress | moved(found.alpha, dd, before)
            iterate, _, d = arrived(f, region, iterate, found.point, found.n_values, found.n_gradients)
            memory[i] = found.memory
            alpha |= {block: found.alpha for block, steps in ((True, A), (False, B)) if steps}
        iterate = iterate._replace(alpha_A=alpha[True], alpha_B=alpha[False], status=status(iterate.value, progress))
        return State(iterate, d, tuple(memory))


@final
@dataclass(frozen=True)
class Together(Sequential):
    """One alpha for both blocks (the paper).

    Notes
    -----
    Searches : one for both blocks, one alpha
    Per iteration : 1 gradient, 1 LMO
    When : the paper; theta of one block

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.FrankWolfe(blocks=xv.algorithms.Together()).blocks
    Together()
    """

    def searches(self, region: Any) -> tuple[tuple[bool, bool], ...]:
        return ((True, True),)


@final
@dataclass(frozen=True)
class Separate(Sequential):
    """The free block first, then the constrained one from the new gradient, each with its own alpha and its own L.

    A jump to a vertex then cannot be held back by a network, nor the other way round (Wang, Lu, Mazumder 2020). It
    costs one more gradient where both blocks exist.

    Notes
    -----
    Searches : one per block, the free one first
    Per iteration : 1 gradient, 1 LMO per block
    When : constrained and free leaves together

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.FrankWolfe(blocks=xv.algorithms.Separate(), cap=0.1).cap
    0.1
    """

    def searches(self, region: Any) -> tuple[tuple[bool, bool], ...]:
        return tuple(reversed(_present(region)))


@final
@dataclass(frozen=True)
class Simultaneous(Blocks):
    """Both blocks from one gradient, each with its own alpha: short steps for ``blocks * L`` of each block.

    ``f(theta + d_A + d_B) <= f + <grad, d> + L_A |d_A|^2 + L_B |d_B|^2`` holds where L_A and L_B bound the curvature
    within their blocks and f is convex (Braun, Pokutta, Woodstock 2024 for one block at a time); the value at the trial
    is checked against it, and both L are raised where it fails. An estimated pair keeps the ratio measured at the start
    for as long as only one of them is wrong: then `Separate` is the better choice.

    Notes
    -----
    Searches : one for both blocks, an alpha each
    Per iteration : 1 gradient, 1 LMO
    When : gradients are dear and L of both blocks is known; with `ShortStep` alone

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.FrankWolfe(xv.steps.ShortStep(L=(10.0, 0.1)), xv.algorithms.Simultaneous()).blocks
    Simultaneous()
    """

    def init(self, rule: StepRule, f: Any, region: Any, theta: Leaves) -> State:
        iterate, grad, d = start(f, region, theta)
        memory = []
        for pair in _present(region):
            L, iterate = measured(rule, f, grad, masked(region, d, pair), iterate)
            memory.append(of_pair(rule, pair).init(L))
        return State(iterate, d, array_namespace(iterate.value).stack(memory, axis=-1))

    def advance(self, rule: StepRule, cap: float, f: Any, region: Any, state: State) -> State:
        iterate, d = state.iterate, state.d
        xp, theta = array_namespace(iterate.value), iterate.theta
        present = _present(region)
        parts = [masked(region, d, pair) for pair in present]
        gap = xp.stack([iterate.gap_A if A else iterate.gap_B for A, _ in present])
        dd = xp.stack([dot(part, part) for part in parts])
        caps = _array([cap if A else 1.0 for A, _ in present], iterate.value)

        def point(alpha: Array) -> Any:
            steps = [scaled(alpha[i, ...], part) for i, part in enumerate(parts)]
            return f.point(tuple(sum_((x, *step)) for x, *step in zip(theta, *steps, strict=True)))

        def slope(point: Any) -> Array:
            grad = f.gradient(point)
            return xp.stack([dot(grad, part) for part in parts])

        inflated = len(parts) * dd
        found = rule.search(Line(f.backend, point, iterate.value, gap, inflated, caps, slope), state.memory)
        zero = xp.zeros_like(iterate.value)
        alpha = {A: found.alpha[i, ...] for i, (A, _) in enumerate(present)}
        length = xp.sum(found.alpha * found.alpha * dd)
        progress = moved(xp.ones_like(length), length, theta)
        iterate, _, d = arrived(f, region, iterate, found.point, found.n_values, found.n_gradients)
        iterate = iterate._replace(
            alpha_A=alpha.get(True, zero), alpha_B=alpha.get(False, zero), status=status(zero, progress)
        )
        return State(iterate, d, found.memory)


class Turn(NamedTuple):
    """What picks the next part, which parts could not move from here, and what each part promises."""

    pick: Array
    stalled: Array
    gaps: Array


class InTurn(Blocks):
    """One part of theta per iteration: a constrained leaf, or the leaves of one free ball.

    Each part has its own L, or its own clock. The gradient and the certificate are those of all parts. A solve ends for
    want of descent when no part has moved since the last one that did.
    """

    @abstractmethod
    def first(self) -> tuple[int, ...]:
        """What `following` starts from."""

    @abstractmethod
    def following(self, pick: Array, n: int) -> tuple[Array, Array]:
        """Index of one of n parts, 0-d int32, and what the next call starts from."""

    def init(self, rule: StepRule, f: Any, region: Any, theta: Leaves) -> State:
        iterate, grad, d = start(f, region, theta)
        xp, parts = array_namespace(iterate.value), _parts(region)
        memory = []
        for i, (_, free) in enumerate(parts):
            L, iterate = measured(rule, f, grad, _only(region, d, i), iterate)
            memory.append(rule.of_block(free).init(L))
        turn = Turn(
            xp.asarray(self.first(), dtype=xp.int32, device=device(iterate.value)),
            xp.zeros((len(parts),), dtype=xp.bool, device=device(iterate.value)),
            _gaps(region, grad, d),
        )
        return State(iterate, d, xp.stack(memory), turn)

    def advance(self, rule: StepRule, cap: float, f: Any, region: Any, state: State) -> State:
        iterate, d, memory, turn = state
        xp, parts = array_namespace(iterate.value), _parts(region)
        index, pick = self.following(turn.pick, len(parts))
        chosen = xp.arange(len(parts), dtype=xp.int32, device=device(index)) == index

        def of_chosen(table: Array) -> Array:
            rows = xp.reshape(chosen, (len(parts), *(1,) * (table.ndim - 1)))
            return xp.sum(xp.where(rows, table, xp.zeros_like(table)), axis=0)

        only = list(d)
        for i, (leaves, _) in enumerate(parts):
            for j in leaves:
                only[j] = xp.where(chosen[i, ...], d[j], xp.zeros_like(d[j]))
        step = tuple(only)
        dd = dot(step, step)
        largest = of_chosen(_array([1.0 if free else cap for _, free in parts], iterate.value))
        mine = of_chosen(memory)
        found = rule.search(along(f, iterate, step, of_chosen(turn.gaps), dd, largest), mine)
        progress = moved(found.alpha, dd, iterate.theta)
        iterate, grad, d = arrived(f, region, iterate, found.point, found.n_values, found.n_gradients)
        rows = xp.reshape(chosen, (len(parts), *(1,) * (memory.ndim - 1)))
        memory = xp.where(rows, xp.expand_dims(found.memory, axis=0), memory)
        stalled = (turn.stalled | chosen) & ~progress
        is_free = xp.any(chosen & xp.asarray([free for _, free in parts], dtype=xp.bool, device=device(index)))
        zero = xp.zeros_like(iterate.value)
        iterate = iterate._replace(
            alpha_A=xp.where(is_free, zero, found.alpha),
            alpha_B=xp.where(is_free, found.alpha, zero),
            status=status(zero, ~xp.all(stalled)),
        )
        return State(iterate, d, memory, Turn(pick, stalled, _gaps(region, grad, d)))


@final
@dataclass(frozen=True)
class Cyclic(InTurn):
    """One constrained leaf, or the leaves of one free ball, per iteration, in their order (Beck, Pauwels, Sabach 2015).

    Notes
    -----
    Searches : one, for the leaf whose turn it is
    Per iteration : 1 gradient, 1 LMO
    When : several leaves of very different curvature

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.FrankWolfe(blocks=xv.algorithms.Cyclic()).blocks
    Cyclic()
    """

    def first(self) -> tuple[int, ...]:
        return (0,)

    def following(self, pick: Array, n: int) -> tuple[Array, Array]:
        return pick[0, ...], (pick + 1) % n


@final
@dataclass(frozen=True)
class Randomised(InTurn):
    """One constrained leaf, or the leaves of one free ball, per iteration, drawn (Lacoste-Julien et al. 2013).

    The draws are those of three small congruential generators (Wichmann, Hill 1982) in 32-bit integers: the same on
    every framework.

    Parameters
    ----------
    seed : int
        >= 0.

    Notes
    -----
    Searches : one, for a leaf that is drawn
    Per iteration : 1 gradient, 1 LMO
    When : as `Cyclic`, where a fixed order might go round in circles

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.FrankWolfe(blocks=xv.algorithms.Randomised(seed=1)).blocks
    Randomised(seed=1)
    """

    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.seed, Integral) or isinstance(self.seed, bool) or self.seed < 0:
            raise ProblemError(f"Randomised needs a seed >= 0, a whole number, got {self.seed!r}")

    def first(self) -> tuple[int, ...]:
        return tuple(np.random.default_rng(self.seed).integers(1, 30000, size=3).tolist())

    def following(self, pick: Array, n: int) -> tuple[Array, Array]:
        xp = array_namespace(pick)
        factors, moduli = (
            xp.asarray(x, dtype=xp.int32, device=device(pick)) for x in ((171, 172, 170), (30269, 30307, 30323))
        )
        drawn = (pick * factors) % moduli
        return xp.sum(drawn, dtype=xp.int32) % n, drawn


# -- what they share ---------------------------------------------------------------------------------------------------


def _present(region: Any) -> tuple[tuple[bool, bool], ...]:
    """(steps A, steps B) of each block that theta has, the constrained one first."""
    blocks = (((True, False), region.constrained), ((False, True), region.free))
    return tuple(pair for pair, there in blocks if there)


def _parts(region: Any) -> tuple[tuple[tuple[int, ...], bool], ...]:
    """The leaves that step as one, and whether they are free: each constrained leaf, each free ball."""
    return (*(((i,), False) for i, _ in region.constrained), *((group, True) for group, _ in region.free))


def _only(region: Any, d: Leaves, part: int) -> Leaves:
    """`d` with the leaves of the other parts set to 0."""
    kept, _ = _parts(region)[part]
    return tuple(x if j in kept else array_namespace(x).zeros_like(x) for j, x in enumerate(d))


def _gaps(region: Any, grad: Leaves, d: Leaves) -> Array:
    """``-<grad, d>`` of each part, shape (parts,)."""
    rows = [-dot(tuple(grad[j] for j in leaves), tuple(d[j] for j in leaves)) for leaves, _ in _parts(region)]
    return array_namespace(grad[0]).stack(rows)


def masked(region: Any, d: Leaves, pair: tuple[bool, bool]) -> Leaves:
    return d if all(pair) else region.block(d, free=pair[1])


def of_pair(rule: StepRule, pair: tuple[bool, bool]) -> StepRule:
    return rule if all(pair) else rule.of_block(free=pair[1])


def _array(numbers: list[float], like: Array) -> Array:
    return array_namespace(like).asarray(numbers, dtype=like.dtype, device=device(like))
