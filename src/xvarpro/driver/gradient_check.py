"""Whether the gradient of a problem is that of its values: comparisons with differences, along one direction."""

from __future__ import annotations

import numpy as np

from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.driver.prepare import Prepared
from xvarpro.errors import ModelError
from xvarpro.objective.interface import Objective

REACH = np.geomspace(1e-3, 1.0, 7)  # steps, relative to theta: a small one meets no edge of a model that goes in steps
IN_STEPS = (
    "a model must be differentiable; got one whose derivatives by {} are 0, while the objective changes by {:.2g}: it "
    "is rounded, goes in steps, or is saturated, as tanh of inputs that are not scaled. Leave the rounding out, scale "
    "the inputs, or give xv.special.external a larger step="
)


def certify_gradient(prepared: Prepared) -> None:
    """Raise a `ModelError` where slopes and differences differ by more than rounding and curvature."""
    theta, eps = prepared.theta, float(np.finfo(prepared.dtype).eps)
    d, unit = _direction(prepared, theta)
    if unit == 0:
        return
    with prepared.backend.scope(prepared.dtype):
        h = min(0.5, eps ** (1 / 3) * unit)  # theta + 2 h d is feasible
        found = [prepared.call(_value, trees.axpy(t * h, d, theta), once=True) for t in (0.0, 0.5, 1.5, 2.0)]
        values, roundings = ([float(x) for x in column] for column in zip(*found, strict=True))
        at = [prepared.call(gradient, trees.axpy(t * h, d, theta), once=True) for t in (0.5, 1.0, 1.5)]
        low, slope, high = (float(trees.dot(g, d)) for g in at)
        length = float(trees.dot(at[1], at[1]) * trees.dot(d, d)) ** 0.5
    wide, narrow = (values[3] - values[0]) / (2 * h), (values[2] - values[1]) / h
    # where the slope bends, as w does that leave a face, the values rise by one of those between
    unsure = 4 * abs(wide - narrow) + abs(high - low) + eps**0.5 * length + max(roundings) / h
    if abs(narrow - slope) > unsure + eps ** (1 / 3) * max(abs(narrow), abs(slope)):
        raise ModelError(
            f"the gradient must be that of the objective; got {slope:.6g} along a direction where values rise "
            f"by {narrow:.6g}, give or take {unsure:.1g}. A part of the model may hide from the derivative: take "
            ".detach(), .item(), float(), stop_gradient and constants computed from theta out of it"
        )
    if slope == 0 and (words := steps(prepared, theta)):
        raise ModelError(words)


def steps(prepared: Prepared, theta: Leaves) -> str:
    """Words on values that change with entries that are where a solve has started, and with derivatives of 0 there too.

    A saddle has derivatives of 0 in one place alone. A rounded model has them all around, and its values change
    further away than a small step leads.
    """
    eps = float(np.finfo(prepared.dtype).eps)
    same = [abs(x - start) <= eps**0.5 * abs(start) for x, start in zip(theta, prepared.theta, strict=True)]
    if not any(bool(namespace_of(x).any(x)) for x in same):
        return ""
    vectors = {i for i, C in prepared.region.constrained if C.event_ndim}  # sets that hold no entry by itself
    d, unit = _direction(prepared, theta)
    with prepared.backend.scope(prepared.dtype):
        g = prepared.call(gradient, theta, once=True)
        value, rounding = (float(x) for x in prepared.call(_value, theta, once=True))
        # where w takes up what an entry does between two steps, 0 but for rounding
        each = zip(same, g, d, strict=True)
        still = [x & ((slope == 0) | ((v != 0) & (abs(slope * v) * unit <= rounding))) for x, slope, v in each]
        still = [x & namespace_of(x).all(x) if i in vectors else x for i, x in enumerate(still)]
        d = tuple(namespace_of(x).where(keep, x, 0 * x) for x, keep in zip(d, still, strict=True))
        if not any(bool(namespace_of(x).any(x != 0)) for x in d):
            return ""
        end = 1.0 if prepared.region.constrained else np.inf  # where sets end; what is free goes on
        for far in REACH:  # now and then a difference meets an edge, and is not 0
            there = trees.axpy(min(end, float(far) * unit), d, theta)
            change = abs(float(prepared.call(_value, there, once=True)[0]) - value)
            # of nearly dependent columns rounding is more than that of values
            if (
                change > rounding * eps**-0.5
                and abs(float(trees.dot(prepared.call(gradient, there, once=True), d))) * unit <= rounding
            ):
                pairs = zip(trees.paths(prepared.tree(theta)), map(prepared.backend.to_numpy, still), strict=True)
                parts = [n if x.all() else f"entries {np.flatnonzero(x)[:3]} of {n}" for n, x in pairs if x.any()]
                return IN_STEPS.format(", ".join(parts), change)
    return ""


def _direction(prepared: Prepared, theta: Leaves) -> tuple[Leaves, float]:
    """A feasible direction that is drawn, and the multiple of it that is as long as theta; 0 where none is."""
    draw, backend = np.random.default_rng(0), prepared.backend
    with backend.scope(prepared.dtype):
        # a step of the size of the largest entry would be many times that of one in other units
        sizes = [np.abs(backend.to_numpy(x)) for x in theta]
        units = [np.where(x > 0, x, np.max(x, initial=0.0) or 1.0) for x in sizes]
        g = [(draw.normal(size=unit.shape) * unit).astype(prepared.dtype) for unit in units]
        d = prepared.region.blmo(theta, tuple(backend.asarray(x, device=prepared.device) for x in g)).d
        longest, size = (max(float(namespace_of(x).max(namespace_of(x).abs(x))) for x in a) for a in (d, theta))
    return d, (size or 1.0) / longest if longest else 0.0


def _value(f: Objective, theta: Leaves) -> tuple[Array, Array]:
    """The objective, and by how much it may be off by rounding."""
    f = f.with_lower_tolerance(0.0)
    value = f.point(theta).value
    f.energy = f.scale(theta)
    return value, f.rounding(value)


def gradient(f: Objective, theta: Leaves) -> Leaves:
    """That of the objective, as a function that backends compile."""
    found: Leaves = f.with_lower_tolerance(0.0).value_and_gradient(theta)[1]
    return found
