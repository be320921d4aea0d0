"""One iteration of conditional gradient methods, search by search, and how the blocks of theta take turns in it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.algorithms.common import add, along, arrived, curvature, moved, start, status
from xvarpro.algorithms.interface import Algorithm, Iterate
from xvarpro.algorithms.steps.interface import StepRule
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves, Struct
from xvarpro.core.trees import dot
from xvarpro.errors import ProblemError
from xvarpro.objective.interface import Objective
from xvarpro.sets.region import Region


class Blocks(Struct):
    """How the blocks step: which searches an iteration makes, each from the gradient where the last one ended."""

    @abstractmethod
    def searches(self, region: Region) -> tuple[tuple[bool, bool], ...]:
        """One pair per search: whether it moves the constrained block A, whether it moves the free block B."""


@final
@dataclass(frozen=True)
class Together(Blocks):
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

    def searches(self, region: Region) -> tuple[tuple[bool, bool], ...]:
        return ((True, True),)


@final
@dataclass(frozen=True)
class Separate(Blocks):
    """The free block first, then the constrained one from the new gradient, each with its own alpha and its own L.

    So neither block limits the step of the other (Wang, Lu, Mazumder 2020). It costs one more gradient where both
    blocks exist.

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

    def searches(self, region: Region) -> tuple[tuple[bool, bool], ...]:
        blocks = (((False, True), region.free), ((True, False), region.constrained))
        return tuple(pair for pair, leaves in blocks if leaves)


class Move(NamedTuple):
    """A direction to search along."""

    d: Leaves
    gap: Array  # -<grad, d>, 0-d
    cap: Array  # largest step, finite and > 0, 0-d
    detail: Any = ()  # what the method's `settle` needs of it


class ConditionalGradientState(NamedTuple):
    """State of a conditional gradient method."""

    iterate: Iterate
    grad: Leaves
    d: Leaves  # of Algorithm 2, at the iterate
    memory: tuple[Array, ...]  # of the step rule, per search
    carrier: Any  # what the method knows the iterate by, such as atoms; arrays of fixed shapes


class ConditionalGradient(Algorithm):
    """Searches along directions that vertices of the set give; a method says which way the constrained block goes."""

    step: StepRule
    blocks: Blocks

    def _check(self) -> None:
        name = type(self).__name__
        if not isinstance(self.step, StepRule):
            raise ProblemError(f"{name}: step must be one of xvarpro.steps, such as steps.Armijo(); got {self.step!r}")
        if not isinstance(self.blocks, Blocks):
            raise ProblemError(f"{name}: blocks must be Together() or Separate(); got {self.blocks!r}")
        if isinstance(self.blocks, Together) and self.step.of_block(free=True) is not self.step:
            raise ProblemError(
                f"{name}: Together() takes one step for both blocks and needs one constant; got {self.step!r}. "
                "Pass one L, or blocks=Separate()"
            )

    def carry(self, region: Region, theta: Leaves) -> Any:
        """First carrier."""
        return ()

    def restore(self, f: Objective, region: Region, state: ConditionalGradientState) -> tuple[Iterate, Any]:
        """The iterate without the rounding that steps have left in it, and its carrier."""
        return state.iterate, state.carrier

    @abstractmethod
    def move(self, f: Objective, region: Region, state: ConditionalGradientState) -> Move:
        """The direction of the constrained leaves, 0 on the free ones."""

    def settle(
        self, f: Objective, region: Region, state: ConditionalGradientState, move: Move, alpha: Array, drop: Array
    ) -> tuple[Any, Array, Array]:
        """The carrier after a step `alpha` from the state that lowered the objective by `drop`; whether that step is
        progress, however short; LMO calls made.
        """
        return state.carrier, alpha < 0, 0 * alpha

    def init(self, f: Objective, region: Region, theta: Leaves) -> ConditionalGradientState:
        iterate, grad, d = start(f, region, theta)
        memory = []
        for pair in self.blocks.searches(region):
            L = namespace_of(iterate.value).ones_like(iterate.value)
            if self.step.uses_curvature:
                L, calls = curvature(f, theta, grad, _of_search(region, d, pair))
                iterate = iterate._replace(counts=add(iterate.counts, values=calls, gradients=calls))
            memory.append(self._rule(pair).init(L))
        return ConditionalGradientState(iterate, grad, d, tuple(memory), self.carry(region, theta))

    def advance(self, f: Objective, region: Region, state: ConditionalGradientState) -> ConditionalGradientState:
        memory = list(state.memory)
        zero = 0 * state.iterate.value
        alpha = {True: zero, False: zero}  # of block A, of block B
        progress, lmos = zero > 0, zero
        for i, pair in enumerate(self.blocks.searches(region)):
            A, B = pair
            corrects = A and bool(region.constrained)
            if corrects:
                iterate, carrier = self.restore(f, region, state)
                state = state._replace(iterate=iterate, carrier=carrier)
                move = self.move(f, region, state)
                if B and region.free:
                    move = _with_ball(region, move, state)
            else:
                move = Move(_of_search(region, state.d, pair), state.iterate.gap_B, zero + 1)
            iterate, dd = state.iterate, dot(move.d, move.d)
            found = self._rule(pair).search(along(f, iterate, move.d, move.gap, dd, move.cap), memory[i])
            progress = progress | moved(found.alpha, dd, iterate.theta)
            carrier = state.carrier
            if corrects:
                drop = iterate.value - found.point.value
                carrier, dropped, extra = self.settle(f, region, state, move, found.alpha, drop)
                progress, lmos = progress | dropped, lmos + extra
            iterate, grad, d = arrived(f, region, iterate, found.point, found.n_values, found.n_gradients)
            state = state._replace(iterate=iterate, grad=grad, d=d, carrier=carrier)
            memory[i] = found.memory
            alpha |= {block: found.alpha for block, steps in ((True, A), (False, B)) if steps}
        iterate = state.iterate._replace(
            alpha_A=alpha[True],
            alpha_B=alpha[False],
            status=status(zero, progress),
            counts=add(state.iterate.counts, lmos=lmos),
        )
        return state._replace(iterate=iterate, memory=tuple(memory))

    def _rule(self, pair: tuple[bool, bool]) -> StepRule:
        return self.step if all(pair) else self.step.of_block(free=pair[1])


def _of_search(region: Region, d: Leaves, pair: tuple[bool, bool]) -> Leaves:
    return d if all(pair) else region.block(d, free=pair[1])


def _with_ball(region: Region, move: Move, state: ConditionalGradientState) -> Move:
    """The move together with the step of block B, which leaves its ball for alpha > 1."""
    xp = namespace_of(move.gap)
    free = {i for group, _ in region.free for i in group}
    both = tuple(state.d[i] if i in free else x for i, x in enumerate(move.d))
    return move._replace(d=both, gap=move.gap + state.iterate.gap_B, cap=xp.minimum(move.cap, xp.ones_like(move.cap)))
