"""Algorithm 1 of the paper, CR-VarPro: conditional gradient on the reduced objective."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from array_api_compat import array_namespace

from xvarpro.algorithms._common import add, curvature, moved, start, status
from xvarpro.errors import ProblemError
from xvarpro.protocols import Algorithm, Array, Iterate, Leaves, Search, StepRule, Struct
from xvarpro.steps import Armijo, ShortStep
from xvarpro.trees import axpy, dot


class State(NamedTuple):
    """The iterate, the direction at it, and what the step rule carries for each search of an iteration."""

    iterate: Iterate
    d: Leaves
    memory: tuple[Array, ...]


class Blocks(Struct):
    """How the blocks step: which searches an iteration makes."""

    @abstractmethod
    def searches(self, region: Any) -> tuple[tuple[bool, bool], ...]:
        """One (steps A, steps B) pair per search."""


@final
@dataclass(frozen=True)
class Together(Blocks):
    """One alpha for both blocks (the paper).

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
class Separate(Blocks):
    """The free block first, then the constrained one from the new gradient, each with its own alpha and its own L.

    A jump to a vertex then cannot be held back by a network, nor the other way round (Wang, Lu, Mazumder 2020). It
    costs one more gradient where both blocks exist.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.FrankWolfe(blocks=xv.algorithms.Separate(), cap=0.1).cap
    0.1
    """

    def searches(self, region: Any) -> tuple[tuple[bool, bool], ...]:
        present = (((False, True), region.free), ((True, False), region.constrained))
        return tuple(pair for pair, there in present if there)


@final
@dataclass(frozen=True)
class FrankWolfe(Algorithm):
    """Conditional gradient with a linear minimisation oracle on block A and a ball step on block B.

    Parameters
    ----------
    step : StepRule
        `steps.Armijo` or `steps.ShortStep`; the default estimates L by backtracking.
    blocks : Blocks
        `Together` (the paper) or `Separate`.
    cap : float
        Largest step of block A, in (0, 1]: a full step to a vertex of a ball zeroes everything else.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.FrankWolfe(cap=0.5).cap
    0.5
    """

    step: StepRule = field(default_factory=ShortStep)
    blocks: Blocks = field(default_factory=Together)
    cap: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.cap <= 1:
            raise ProblemError(f"FrankWolfe needs 0 < cap <= 1, got {self.cap!r}")
        if not isinstance(self.blocks, Blocks):
            raise ProblemError(f"blocks must be Together() or Separate(), got {self.blocks!r}")
        if not isinstance(self.step, StepRule):
            raise ProblemError(f"step must be one of xvarpro.steps, such as xv.steps.Armijo(), got {self.step!r}")

    def init(self, f: Any, region: Any, theta: Leaves) -> State:
        iterate, grad, d = start(f, region, theta)
        memory = []
        for pair in self.blocks.searches(region):
            L = array_namespace(iterate.value).ones_like(iterate.value)
            if self.step.uses_curvature:
                L = curvature(f, theta, grad, _masked(region, d, pair))
                iterate = iterate._replace(counts=add(iterate.counts, values=1, gradients=1))
            memory.append(self.step.init(L))
        return State(iterate, d, tuple(memory))

    def advance(self, f: Any, region: Any, state: State) -> State:
        iterate, d, memory = state.iterate, state.d, list(state.memory)
        alpha = {True: 0 * iterate.value, False: 0 * iterate.value}
        progress = alpha[True] > 0
        for i, (A, B) in enumerate(self.blocks.searches(region)):
            along, before = _masked(region, d, (A, B)), iterate.theta
            dd = dot(along, along)
            found = self._search(f, region, iterate, along, dd, memory[i], A, B)
            progress = progress | moved(found.alpha, dd, before)
            grad = f.gradient(found.point)
            direction = region.blmo(found.point.theta, grad)
            memory[i], d = found.memory, direction.d
            alpha |= {block: found.alpha for block, steps in ((True, A), (False, B)) if steps}
            iterate = iterate._replace(
                theta=found.point.theta,
                value=found.point.value,
                gap_A=direction.gap_A,
                gap_B=direction.gap_B,
                counts=add(iterate.counts, values=found.n_values, gradients=1, lmos=1),
            )
        iterate = iterate._replace(alpha_A=alpha[True], alpha_B=alpha[False], status=status(iterate.value, progress))
        return State(iterate, d, tuple(memory))

    def _search(
        self, f: Any, region: Any, iterate: Iterate, d: Leaves, dd: Array, memory: Array, A: bool, B: bool
    ) -> Search:
        gap = iterate.gap_A + iterate.gap_B if A and B else iterate.gap_A if A else iterate.gap_B
        cap = self.cap if A and region.constrained else 1.0
        return self.step.search(
            f.backend, lambda alpha: f.point(axpy(alpha, d, iterate.theta)), iterate.value, gap, dd, memory, cap
        )


def _masked(region: Any, d: Leaves, pair: tuple[bool, bool]) -> Leaves:
    return d if all(pair) else region.block(d, free=pair[1])


def cr_varpro(delta: float = 0.5, gamma: float = 1e-4) -> FrankWolfe:
    """The paper's configuration: one Armijo step from alpha = 1 for both blocks.

    Parameters
    ----------
    delta, gamma : float
        Armijo's constants, which the paper leaves open.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.cr_varpro().step
    Armijo(delta=0.5, gamma=0.0001, warm=False, limit=60)
    """
    return FrankWolfe(Armijo(delta, gamma), Together())
