"""What the methods that take mass away from a bad vertex share: which way they go, and one iteration around it.

Frank-Wolfe only ever adds a vertex v. With a, the worst vertex that carries the iterate x, and s, the best one, there
are three directions to choose from, ``v - x``, ``x - a`` and ``s - x``; every variant is a sum of some of them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, final

from xvarpro.algorithms._conditional_gradient import Blocks, ConditionalGradient, Separate
from xvarpro.algorithms.steps import ShortStep
from xvarpro.algorithms.steps.interface import StepRule
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves, Struct
from xvarpro.core.trees import sum_
from xvarpro.errors import ProblemError


class Mix(NamedTuple):
    """Coefficients of ``v - x``, ``x - a`` and ``s - x`` in the direction: 0-d, 0 or 1."""

    vertex: Array
    away: Array
    inner: Array


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
        return either(forward >= away, forward, (0.0, 1.0, 0.0))


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
        one = namespace_of(forward).ones_like(forward)
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
        return either(~(away + inner >= forward), forward, (0.0, 1.0, 1.0))


def either(ahead: Array, like: Array, other: tuple[float, float, float]) -> Mix:
    """Toward the vertex where `ahead` holds, else the mix `other`."""
    xp = namespace_of(like)
    pairs = zip((1.0, 0.0, 0.0), other, strict=True)
    return Mix(*(xp.where(ahead, xp.full_like(like, a), xp.full_like(like, b)) for a, b in pairs))


@dataclass(frozen=True)
class Corrective(ConditionalGradient):
    """Frank-Wolfe with a `Correction`; the carrier holds the atoms, or what is known of the face."""

    correction: Correction = field(default_factory=BlendedPairwise)
    step: StepRule = field(default_factory=ShortStep)
    blocks: Blocks = field(default_factory=Separate)

    def __post_init__(self) -> None:
        if not isinstance(self.correction, Correction):
            raise ProblemError(
                f"{type(self).__name__}: correction must be one such as BlendedPairwise(); got {self.correction!r}"
            )
        self._check()


def combine(mix: Mix, parts: tuple[Leaves, Leaves, Leaves]) -> Leaves:
    """The sum of the three directions, with the coefficients of `mix`."""
    return tuple(sum_(c * x for c, x in zip(mix, leaf, strict=True)) for leaf in zip(*parts, strict=True))
