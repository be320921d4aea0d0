"""Powers of two that bring targets and parameters near 1, so that no square leaves the range of the precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from xvarpro import backends, sets
from xvarpro.backends import Backend, exchange
from xvarpro.core import trees
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import REQUIRED, Array, Leaves, Struct, Tree
from xvarpro.lower.weight_sets.interface import WeightSet
from xvarpro.objective.least_squares import EvaluatedLevel, is_complex_design
from xvarpro.problem.problem import Level, Problem, by_level
from xvarpro.sets.interface import Set
from xvarpro.sets.region import Region


def near_one(sizes: np.ndarray, dtype: str, within: float = 2.0**10) -> np.ndarray:
    """The powers of two that bring numbers near 1; 1 for those within a factor of `within` of it, for 0 and NaN."""
    most = math.frexp(float(np.finfo(dtype).max))[1] - 2
    far = np.isfinite(sizes) & ((sizes < 1 / within) | (sizes > within))
    return np.where(far, np.ldexp(1.0, -np.clip(np.frexp(sizes)[1], -most, most)), 1.0)


def targets_near_one(problem: Problem, backend: Backend, dtype: str) -> tuple[Problem, float]:
    """The problem with its targets times a power of two that brings them near 1, and that power.

    ``w`` and its set are multiplied by it and the objective by its square. Nothing is rounded; targets within a factor
    of 1024 of 1 are left as they are, and so are those that are functions or come in chunks.
    """
    levels = problem.levels
    ys: list[Any] = [level.y for level in levels]
    if not all(trees.is_array(y) and math.prod(y.shape) for y in ys):
        return problem, 1.0
    size = max(float(largest(y)) for y in exchange.readable(*ys))
    unit = float(near_one(np.asarray(size), dtype))
    if unit == 1.0:
        return problem, unit
    W = levels[0].W
    if W is not None:
        W = W.part(backend.xp.arange(ys[0].shape[1], device=device(ys[0])), unit)
    losses = [level.loss and level.loss.in_units(unit) for level in levels]
    if any(level.loss is not None and loss is None for level, loss in zip(levels, losses, strict=True)):
        return problem, 1.0
    lower = replace(levels[0], y=unit * ys[0], W=W, loss=losses[0])
    fields: dict[str, Any] = {"lower": lower, "mu": problem.mu * unit * unit}
    if len(levels) > 1:
        fields["upper"] = replace(levels[1], y=unit * ys[1], loss=losses[1])
    return replace(problem, **fields), unit


def largest(y: Array, axis: tuple[int, ...] | None = None) -> Array:
    """The largest size of its entries, all of them or those along some axes."""
    xp = namespace_of(y)
    if trees.is_complex(y):
        return xp.max(xp.abs(y), axis=axis)
    # two passes over real numbers are faster than one more array of their size
    return xp.maximum(xp.max(y, axis=axis), -xp.min(y, axis=axis))


def for_design(W: WeightSet, low: EvaluatedLevel, like: Array) -> WeightSet:
    """The set resolved for a design and its ridge, with lengths of columns by products with vectors of random signs."""
    (m, n), xp = low.M.shape, namespace_of(like)
    probes = trees.signs(tuple(xp.zeros((size, 1), dtype=like.dtype, device=device(like)) for size in (m, n)))
    rows, w = map(trees.complexified, probes) if is_complex_design(low.M) else probes
    squares = xp.abs(low.M.rmatvec(rows)) ** 2 + xp.abs(low.slope(w, 0 * rows))
    return W.resolved(np.max(backends.to_numpy(squares), axis=1) ** 0.5)


@final
@dataclass(frozen=True)
class _OfScaled(Struct):
    """A function of theta, called with every leaf times its factor."""

    fun: Callable[..., Any] = REQUIRED
    factors: tuple[float, ...] = ()

    def __call__(self, theta: Tree, *data: Tree) -> Any:
        leaves, treedef = trees.flatten(theta)
        return self.fun(trees.unflatten(treedef, multiplied(leaves, self.factors)), *data)


def multiplied(leaves: Sequence[Array], factors: Sequence[float]) -> Leaves:
    """Leaves times a number each."""
    return tuple(x if c == 1.0 else c * x for x, c in zip(leaves, factors, strict=True))


def theta_near_one(
    problem: Problem, region: Region, theta: Leaves, backend: Backend, dtype: str
) -> tuple[Problem, Region, Leaves, tuple[float, ...]]:
    """The problem, its sets and its start with leaves that are far from 1 times powers of two, and these.

    Only leaves whose squares would come near the ends of the range of `dtype` are changed, and none whose `Free` has a
    norm or a radius of its own.
    """
    units = [_unit(backend.to_numpy(x), dtype) for x in theta]
    for group, ball in region.free:
        if ball != sets.Free():
            for i in group:
                units[i] = 1.0
    if all(unit == 1.0 for unit in units):
        return problem, region, theta, tuple(units)
    factors = tuple(1 / unit for unit in units)

    def scaled(level: Level) -> Level:
        own: dict[str, Any] = {
            name: _OfScaled(f, factors) for name in ("M", "y", "lam", "Omega") if callable(f := getattr(level, name))
        }
        return replace(level, **own)

    R = None if problem.R is None else _OfScaled(problem.R, factors)
    constrained = tuple((i, _scaled_set(C, units[i])) for i, C in region.constrained)
    region = replace(region, constrained=constrained)
    return by_level(problem, scaled, R=R), region, multiplied(theta, units), tuple(units)


def _unit(x: np.ndarray, dtype: str) -> float:
    """The power of two for a leaf: that of the middle of its sizes."""
    sizes = np.abs(x[np.isfinite(x) & (x != 0)]).astype(np.float64)
    middle = math.sqrt(sizes.min()) * math.sqrt(sizes.max()) if sizes.size else 0.0
    return float(near_one(np.asarray(middle), dtype, within=float(np.finfo(dtype).max) ** 0.25))


def _scaled_set(C: Set, unit: float) -> Set:
    if unit == 1.0:
        return C
    return sets.Box(unit * C.lower, unit * C.upper) if isinstance(C, sets.Box) else sets.ShiftScale(C, unit)
