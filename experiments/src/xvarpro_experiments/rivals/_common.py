"""What the baselines share: their state, their start, their certificate every few iterations."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from xvarpro.algorithms.common import add, counts, status
from xvarpro.algorithms.interface import Algorithm, Iterate
from xvarpro.core import checks
from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array, Leaves
from xvarpro.errors import ProblemError
from xvarpro.sets.region import Region
from xvarpro_experiments.rivals.objective import Joint, lift


class State(NamedTuple):
    """The iterate, the w beside it, iterations done, and what the method carries."""

    iterate: Iterate
    w: Array
    k: Array
    memory: Any


class Step(NamedTuple):
    """One iteration of a baseline: the new point, what it carries on, and the work."""

    z: Leaves
    memory: Any
    alpha_theta: Array
    alpha_w: Array
    values: Any = 0
    gradients: Any = 1
    projections: Any = 1


class JointMethod(Algorithm):
    """A method on the joint objective; its traced value and gaps are those of J."""

    needs_projection: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Periodic(JointMethod):
    """A joint method without a line search: it does not need J, which is computed now and then for the record.

    It starts from theta0 and the w that is optimal for it. Between certificates the trace repeats the last.

    Parameters
    ----------
    certify : int
        Iterations between certificates, >= 1.
    """

    certify: int = 20

    def __post_init__(self) -> None:
        whole(self, "certify")

    def init(self, f: Any, region: Region, theta: Leaves) -> State:
        J, C = Joint(f), lift(region, theta)
        z = (*theta, J.best_w(theta))
        value, gap_A, gap_B = J.certificate(C, z)
        zero = 0 * value
        iterate = Iterate(theta, value, gap_A, gap_B, zero, zero, status(zero), counts(zero, 1, 1, 1))
        return State(iterate, z[-1], zero, self._memory(J, C, z))

    def advance(self, f: Any, region: Region, state: State) -> State:
        old = state.iterate
        J, C = Joint(f), lift(region, old.theta)
        made = self._step(J, C, (*old.theta, state.w), state.memory, state.k)
        k = state.k + 1
        due = k % self.certify == 0
        value, gap_A, gap_B = f.backend.when(due, lambda _: J.certificate(C, made.z), (old.value, old.gap_A, old.gap_B))
        n = array_namespace(k).astype(due, k.dtype)
        work = add(old.counts, values=made.values + n, gradients=made.gradients, lmos=n, projections=made.projections)
        *theta, w = made.z
        iterate = Iterate(tuple(theta), value, gap_A, gap_B, made.alpha_theta, made.alpha_w, status(k), work)
        return State(iterate, w, k, made.memory)

    @abstractmethod
    def _memory(self, J: Joint, C: Region, z: Leaves) -> Any:
        """What the method carries from the start."""

    @abstractmethod
    def _step(self, J: Joint, C: Region, z: Leaves, memory: Any, k: Array) -> Step:
        """One iteration after `k` others."""


def whole(owner: object, *names: str) -> None:
    """Refuse fields that are not whole numbers >= 1."""
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ProblemError(f"{type(owner).__name__}: {name} must be a whole number >= 1, got {value!r}")


def positive(owner: object, *names: str) -> None:
    """Refuse fields that are not finite numbers > 0."""
    for name in names:
        checks.nonnegative(owner, name)
        if not getattr(owner, name):
            raise ProblemError(f"{type(owner).__name__}: {name} must be > 0, got 0")
