"""What the methods that take mass away from a bad vertex share: which way they go, and one iteration around it.

Frank-Wolfe only ever adds a vertex v. With a, the worst vertex that carries the iterate x, and s, the best one, there
are three directions to choose from, ``v - x``, ``x - a`` and ``s - x``; every variant is a sum of some of them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, final

from xvarpro.algorithms._blocks import Separate, Sequential, masked, of_pair
from xvarpro.algorithms.common import add, along, arrived, measured, moved, start, status
from xvarpro.algorithms.interface import Algorithm, Iterate
from xvarpro.algorithms.steps import ShortStep
from xvarpro.algorithms.steps.interface import StepRule
from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array, Leaves, Struct
from xvarpro.core.trees import dot, sum_
from xvarpro.errors import ProblemError


class Mix(NamedTuple):
    """Coefficients, 0 or 1, of ``v - x``, ``x - a`` and ``s - x`` in the direction."""

    vertex: Array | float
    away: Array | float
    inner: Array | float


class Move(NamedTuple):
    """A direction of the constrained leaves, 0 on the free ones."""

    d: Leaves
    gap: Array  # -<grad, d>
    cap: Array  # largest step, finite and > 0
    mix: Mix
    out: tuple[Array, ...] = ()  # per active set, one-hot: the atom a
    into: tuple[Array, ...] = ()  # per active set, one-hot: the atom s
    caps: tuple[Array, ...] = ()  # per active set: where the weight of a reaches 0


class Correction(Struct):
    """Which of the three directions a step takes, from how much each promises."""

    in_face: ClassVar[bool] = False  # whether the inner direction is one of the face, not the way to a vertex of it

    @abstractmethod
    def mix(self, forward: Array, away: Array, inner: Array) -> Mix:
        """From ``-<grad, d>`` of the three directions, all >= 0 but for rounding; with `in_face`, from the decrease
        that each one promises.
        """


@final
@dataclass(frozen=True)
class AwayStep(Correction):
    """Toward the best vertex, or away from the worst atom, whichever promises more (Guelat, Marcotte 1986).

    Notes
    -----
    Direction : ``v - x`` or ``x - a``, whichever promises more
    When : a baseline

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.ActiveSetFrankWolfe(xv.algorithms.AwayStep()).correction
    AwayStep()
    """

    def mix(self, forward: Array, away: Array, inner: Array) -> Mix:
        return either(forward >= away, forward, Mix(0.0, 1.0, 0.0))


@final
@dataclass(frozen=True)
class Pairwise(Correction):
    """Mass from the worst atom straight to the best vertex (Lacoste-Julien, Jaggi 2015).

    Notes
    -----
    Direction : ``v - a``
    When : a baseline; steps may swap one atom for another

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.InFaceFrankWolfe(xv.algorithms.Pairwise()).correction
    Pairwise()
    """

    def mix(self, forward: Array, away: Array, inner: Array) -> Mix:
        one = array_namespace(forward).ones_like(forward)
        return Mix(one, one, 0 * one)


@final
@dataclass(frozen=True)
class BlendedPairwise(Correction):
    """Mass from the worst atom to the best one while that promises as much as a new vertex, then the vertex (BPCG;
    Tsuji, Tanaka, Pokutta 2022). Fewest atoms, and no step that swaps one for another.

    Notes
    -----
    Direction : ``s - a`` while that promises as much as ``v - x``, then ``v - x``
    When : the default of `ActiveSetFrankWolfe`: the fewest atoms

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.ActiveSetFrankWolfe().correction
    BlendedPairwise()
    """

    def mix(self, forward: Array, away: Array, inner: Array) -> Mix:
        return either(~(away + inner >= forward), forward, Mix(0.0, 1.0, 1.0))


def either(ahead: Array, like: Array, other: Mix) -> Mix:
    """Toward the vertex where `ahead` holds, else `other`."""
    xp = array_namespace(like)
    pairs = zip(Mix(1.0, 0.0, 0.0), other, strict=True)
    return Mix(*(xp.where(ahead, xp.full_like(like, a), xp.full_like(like, b)) for a, b in pairs))


class State(NamedTuple):
    """The iterate, its gradient, the direction of Algorithm 2, each search's memory, and what carries the iterate."""

    iterate: Iterate
    grad: Leaves
    d: Leaves
    memory: tuple[Array, ...]
    carrier: Any


@dataclass(frozen=True)
class Corrective(Algorithm):
    """Frank-Wolfe with a `Correction`; a subclass says what carries the iterate: atoms, or the face it lies in."""

    correction: Correction = field(default_factory=BlendedPairwise)
    step: StepRule = field(default_factory=ShortStep)
    blocks: Sequential = field(default_factory=Separate)

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.correction, Correction):
            raise ProblemError(f"{name} needs a correction such as BlendedPairwise(), got {self.correction!r}")
        if not isinstance(self.step, StepRule):
            raise ProblemError(f"{name}: step must be one of xvarpro.steps, such as ShortStep(), got {self.step!r}")
        if not isinstance(self.blocks, Sequential):
            raise ProblemError(f"{name}: blocks must be Together() or Separate(), got {self.blocks!r}")

    @abstractmethod
    def carry(self, region: Any, theta: Leaves) -> Any:
        """What carries the iterate at the start; arrays of fixed shapes."""

    @abstractmethod
    def move(self, f: Any, region: Any, theta: Leaves, grad: Leaves, d: Leaves, forward: Array, carrier: Any) -> Move:
        """The direction on the constrained leaves, from Algorithm 2's and its gap `forward`."""

    def restore(self, f: Any, region: Any, iterate: Iterate, carrier: Any) -> tuple[Iterate, Any]:
        """The iterate without the rounding that steps have left in it, and its value."""
        return iterate, carrier

    def settle(
        self, f: Any, region: Any, grad: Leaves, carrier: Any, move: Move, alpha: Array, drop: Array
    ) -> tuple[Any, Array, Array]:
        """What carries the iterate after a step `alpha` that lowered the objective by `drop`; whether that is progress,
        however short; LMO calls made.
        """
        return carrier, alpha < 0, 0 * alpha

    def init(self, f: Any, region: Any, theta: Leaves) -> State:
        iterate, grad, d = start(f, region, theta)
        memory = []
        for pair in self.blocks.searches(region):
            L, iterate = measured(self.step, f, grad, masked(region, d, pair), iterate)
            memory.append(of_pair(self.step, pair).init(L))
        return State(iterate, grad, d, tuple(memory), self.carry(region, theta))

    def advance(self, f: Any, region: Any, state: State) -> State:
        iterate, grad, d, carrier = state.iterate, state.grad, state.d, state.carrier
        memory = list(state.memory)
        zero = 0 * iterate.value
        alpha = {True: zero, False: zero}
        progress, lmos = zero > 0, zero
        for i, (A, B) in enumerate(self.blocks.searches(region)):
            corrects = A and bool(region.constrained)
            if corrects:
                iterate, carrier = self.restore(f, region, iterate, carrier)
                move = self.move(f, region, iterate.theta, grad, d, iterate.gap_A, carrier)
                whole = _with_ball(region, move, d, iterate.gap_B) if B and region.free else move
            else:
                whole = Move(masked(region, d, (A, B)), iterate.gap_B, zero + 1, Mix(zero, zero, zero))
            dd = dot(whole.d, whole.d)
            line = along(f, iterate, whole.d, whole.gap, dd, whole.cap)
            found = of_pair(self.step, (A, B)).search(line, memory[i])
            progress = progress | moved(found.alpha, dd, iterate.theta)
            if corrects:
                drop = iterate.value - found.point.value
                carrier, dropped, extra = self.settle(f, region, grad, carrier, whole, found.alpha, drop)
                progress, lmos = progress | dropped, lmos + extra
            iterate, grad, d = arrived(f, region, iterate, found.point, found.n_values, found.n_gradients)
            memory[i] = found.memory
            alpha |= {block: found.alpha for block, steps in ((True, A), (False, B)) if steps}
        iterate = iterate._replace(
            alpha_A=alpha[True],
            alpha_B=alpha[False],
            status=status(iterate.value, progress),
            counts=add(iterate.counts, lmos=lmos),
        )
        return State(iterate, grad, d, tuple(memory), carrier)


def _with_ball(region: Any, move: Move, d: Leaves, gap: Array) -> Move:
    """The move and the step of block B together: above 1 that leaves its ball."""
    xp = array_namespace(gap)
    along = tuple(x + y for x, y in zip(move.d, region.block(d, free=True), strict=True))
    return move._replace(d=along, gap=move.gap + gap, cap=xp.minimum(move.cap, xp.ones_like(move.cap)))


def combine(mix: Mix, parts: tuple[Leaves, Leaves, Leaves]) -> Leaves:
    """The direction that a mix of the three stands for."""
    return tuple(sum_(c * x for c, x in zip(mix, leaf, strict=True)) for leaf in zip(*parts, strict=True))
