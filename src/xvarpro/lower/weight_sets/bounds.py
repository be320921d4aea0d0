"""Weights between bounds, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.core.struct import Array
from xvarpro.core.trees import changed, is_array
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import LowerSolver
from xvarpro.lower.stack import as_one
from xvarpro.lower.weight_sets._faces import InBox
from xvarpro.lower.weight_sets.interface import WeightSet, numbers, refuse_solver, taken


@final
@dataclass(frozen=True)
class Nonnegative(WeightSet):
    """``w >= 0``: nonnegative least squares, for all right-hand sides at once.

    M must have full column rank, or the level a ridge, so that w is unique. Complex M and y are fitted by a real w.
    Columns of w whose search does not end in ``100 + 10 n`` steps are NaN.

    The gradient of a separable problem exists and is continuous wherever w is unique. That of a bilevel one exists
    where no weight sits at 0 with a multiplier of 0; ``Result.verified.kinks`` counts those that do.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> A, y = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([1.0, -1.0])
    >>> problem = xv.separable(lambda theta, data: theta * data, y, data=A, W=xv.lower.Nonnegative())
    >>> xv.solve(problem, np.ones(1), over=xv.sets.Box(1.0, 1.0)).w
    array([1., 0.])
    """

    def joined(self, k: int) -> Nonnegative:
        return self

    def solver(self, given: LowerSolver | None) -> LowerSolver:
        refuse_solver(self, given)
        return InBox()

    def directions(self, w: np.ndarray) -> list[np.ndarray]:
        return _free(w.real > 0)

    @classmethod
    def examples(cls, n: int) -> tuple[Nonnegative, ...]:
        return (cls(),)


@final
@dataclass(frozen=True)
class Bounded(WeightSet):
    """``lower <= w <= upper``, entry by entry; differentiable where `Nonnegative` is.

    Parameters
    ----------
    lower, upper : number or array, shape (n,) or (n, k)
        They may be infinite, and equal where an entry is known.

    Raises
    ------
    ProblemError
        NaN, shapes that do not fit, a lower bound above the upper one or at inf.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> W = xv.lower.Bounded(0.0, np.array([1.0, 5.0]))
    >>> problem = xv.separable(lambda theta, data: theta * data, np.array([2.0, 3.0]), data=np.eye(2), W=W)
    >>> xv.solve(problem, np.ones(1), over=xv.sets.Box(1.0, 1.0)).w
    array([1., 3.])
    """

    lower: Array | float = 0.0
    upper: Array | float = 1.0

    def __post_init__(self) -> None:
        lower, upper = (
            numbers("Bounded", name, getattr(self, name), 0, 1, 2, finite=False) for name in ("lower", "upper")
        )
        for name, values in (("lower", lower), ("upper", upper)):
            if values.dtype.kind == "c":
                raise ProblemError(f"Bounded: {name} must be real, got {values.dtype}")
            if values.ndim == 0:
                object.__setattr__(self, name, float(values))
            elif not is_array(getattr(self, name)):
                object.__setattr__(self, name, values)
        a, b = (x[:, None] if x.ndim == 1 else x for x in (lower, upper))
        if a.ndim and b.ndim and (a.shape[0] != b.shape[0] or 1 < a.shape[1] != b.shape[1] > 1):
            raise ProblemError(f"Bounded: lower has shape {lower.shape} and upper has shape {upper.shape}")
        if not ((a <= b) & (a < np.inf) & (b > -np.inf)).all():
            raise ProblemError(
                "Bounded: every lower bound must be at most the upper one, not inf, and no upper bound -inf; got lower "
                f"up to {lower.max():g} and upper down to {upper.min():g}"
            )

    @property
    def _arrays(self) -> list[Array]:
        return [x for x in (self.lower, self.upper) if is_array(x)]

    @property
    def size(self) -> int | None:
        return self._arrays[0].shape[0] if self._arrays else None

    @property
    def columns(self) -> int | None:
        return max((x.shape[1] for x in self._arrays if x.ndim == 2), default=None)

    def joined(self, k: int) -> Bounded:
        lower, upper = (as_one(x, k) if is_array(x) else x for x in (self.lower, self.upper))
        return changed(self, lower=lower, upper=upper)

    def part(self, indices: Array, scale: float) -> Bounded:
        lower, upper = (taken(x, indices, scale) if is_array(x) else scale * x for x in (self.lower, self.upper))
        return changed(self, lower=lower, upper=upper)

    def solver(self, given: LowerSolver | None) -> LowerSolver:
        refuse_solver(self, given)
        return InBox(self.lower, self.upper)

    def directions(self, w: np.ndarray) -> list[np.ndarray]:
        own = w.real
        lower, upper = (to_numpy(x).astype(own.dtype) for x in (self.lower, self.upper))
        lower, upper = (np.broadcast_to(x[:, None] if x.ndim == 1 else x, w.shape) for x in (lower, upper))
        return _free((own > lower) & (own < upper))

    @classmethod
    def examples(cls, n: int) -> tuple[Bounded, ...]:
        draw = np.random.default_rng(n)
        lower = draw.normal(size=(n, 3))
        return cls(), cls(-np.inf, np.abs(draw.normal(size=n))), cls(lower, lower + np.abs(draw.normal(size=(n, 1))))


def _free(entries: np.ndarray) -> list[np.ndarray]:
    return [np.eye(len(entries))[:, column] for column in entries.T]
