"""The interface of an optimisation method."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

from xvarpro.core.struct import Array, Leaves, Struct
from xvarpro.objective.interface import Objective
from xvarpro.sets.region import Region


class Counts(NamedTuple):
    """Work done so far: 0-d arrays in the dtype of theta, one type for a compiled loop to carry."""

    values: Array
    gradients: Array
    lmos: Array
    projections: Array
    batches: Array  # values, of those above, on a mini-batch alone


class Iterate(NamedTuple):
    """What every algorithm reports after every step. All arrays but those of theta are 0-d."""

    theta: Leaves
    value: Array
    gap_A: Array  # -<grad, d> of the constrained block: its Frank-Wolfe gap, but for `slack`
    gap_B: Array  # dual norm of the gradient of the free block, times the radius of its ball
    alpha_A: Array  # the step just taken, per block; 0 where none was found
    alpha_B: Array
    status: Array  # int32: 0 while running, else a `Status.code`
    counts: Counts
    bend: Array  # decrease that a model promises, over the square of the gap it follows; 0 until it is looked at
    slack: Array | float = 0.0  # what inexact oracles and lower levels may hide of the gap; reported as part of it
    decrease: Any = ()  # that a model of the objective promises over the whole set, 0-d; () without a model
    lower: Any = ()  # `LowerError` where the lower level is solved inexactly
    w: Any = ()  # of the lower level, (n, k), where the next one starts from it; else ()


class Algorithm(Struct):
    """An optimisation method as two pure functions of fixed-shape states.

    A state is any named tuple of arrays whose field `iterate` is an `Iterate`. The next step depends on nothing else,
    random draws included: it is what a checkpoint holds. No function may branch in Python on the
    value of an array: the same text runs eagerly and inside a compiled loop, which keeps shapes and dtypes.

    `f` is the reduced objective (`objective.interface.Objective`) and offers

    - ``f.point(theta)``: the point there, with ``point.theta`` and ``point.value``, 0-d; ``ahead=True`` where its
      gradient is likely to be asked for next;
    - ``f.gradient(point)``: leaves shaped like theta; ``f.value_and_gradient(theta)``: point and gradient;
    - ``f.rounding(value)``: by how much two values near `value` may differ without meaning anything;
    - ``f.backend``: ``while_loop(condition, body, state)`` and ``when(condition, fun, state)``.

    `region` holds the sets (`sets.region.Region`) and offers

    - ``region.blmo(theta, grad)``: Algorithm 2, with ``d``, ``gap_A``, ``gap_B`` and ``slack``;
    - ``region.project(theta)``, where `needs_projection` is True; ``region.violation(theta)``;
    - ``region.block(d, free)``: `d` with the leaves of the other block set to 0;
    - ``region.tangent(d, theta)``: the part of a direction in the smallest face of theta;
    - ``region.constrained``: (position of the leaf, set) pairs; ``region.free``: (positions, ball) pairs.

    ``algorithms.common`` has the functions that methods are written with.
    """

    @property
    def needs_projection(self) -> bool:
        """Whether every set of the region must offer a projection."""
        return False

    @property
    def takes_unbounded(self) -> bool:
        """Whether sets may be unbounded; where the oracle's answer is a step, it must exist."""
        return self.needs_projection

    @property
    def certifies_every_iteration(self) -> bool:
        """Whether value and gap of the iterate are exact after every iteration; if not, `finish` makes them so."""
        return True

    @property
    def monotone(self) -> bool:
        """Whether no iterate is worse than the one before it, by more than rounding; if not, the best one is kept."""
        return False

    @property
    def has_units(self) -> bool:
        """Whether its steps depend on the units of theta and of f, which are then as the user stated them."""
        return False

    def rows_of_batch(self, f: Objective) -> float:
        """Rows on which a value on a mini-batch evaluates the model; ``f.rows`` without mini-batches."""
        return f.rows

    def gauss_newton(self, state: Any) -> Array | None:
        """The Gauss-Newton matrix at the iterate, (p, p), where the method has it."""
        return None

    def nearer(self, state: Any) -> Any:
        """A first state whose steps stay nearer to its iterate, for another try; None where there is none."""
        return None

    @abstractmethod
    def init(self, f: Objective, region: Region, theta: Leaves) -> Any:
        """State at a feasible `theta`, with value and certificate."""

    @abstractmethod
    def advance(self, f: Objective, region: Region, state: Any) -> Any:
        """State after one iteration: same structure, shapes and dtypes."""

    def finish(self, f: Objective, region: Region, state: Any) -> Any:
        """State to report when the iterations have ended; called unless `certifies_every_iteration`."""
        return state
