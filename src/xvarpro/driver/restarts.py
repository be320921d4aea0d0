"""Where a solve goes on after it has ended: at a lower point that is known, or is found next to the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xvarpro.algorithms.interface import Iterate
from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.namespace import positive_or_one
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Leaves
from xvarpro.driver.iteration import Tracked, negligible_gap
from xvarpro.driver.prepare import Prepared
from xvarpro.objective.decrease import MANY
from xvarpro.objective.interface import Objective

if TYPE_CHECKING:
    from xvarpro.driver.run import Run

STEPS = 10  # products with the Hessian at most, which are all of it up to as many parameters
OTHERS = 8  # other values of an entry of theta that a closed weight has left, in equal steps and in equal ratios
DEPENDENT = -0.3  # power of the machine epsilon: a condition of M from which on its columns are dependent
PARTED = 0.5, -0.5, 0.1, -0.1  # steps along a direction without curvature, such as that in which two equal rates part
AROUND = np.array([0.1, 0.03, 0.01])  # of the size of a single theta: where another of many minima may be


# what is looked for among b ends, with vectors (b, p) on the host: for which, (b,), and the steps that are tried there
Look = tuple[np.ndarray, Iterator[np.ndarray]]


class End(NamedTuple):
    """The point at which a run has ended."""

    theta: Leaves
    value: float
    least: float  # by how much another point must be lower to be taken for lower
    margin: float  # what rounding of the value is


def restart(run: Run) -> Tracked | None:
    """The first state at a lower point than the last iterate, or at the same where the method may be worn out."""
    found, value, margin = run.best()
    last = found is run.state.iterate
    worn = not (run.status.success and last) and not run.modelled
    if worn and value < run.restarted - margin:
        run.restarted = value
        return run.started(found.theta)
    if not last:
        return None
    end = End(found.theta, value, max(margin, run.tol * abs(value)), margin)
    return _opened(run, end) or _below(run, end) or _nearer(run, found)


def kinked(prepared: Prepared) -> bool:
    """Whether the objective is a function on a line with kinks, hence with many small minima."""
    return prepared.problem.kinked and sum(math.prod(x.shape) for x in prepared.theta) == 1


def _nearer(run: Run, found: Iterate) -> Tracked | None:
    """The start with steps that stay nearer to it, once, where columns of M have become dependent on the way.

    Two terms that have become one, with weights of opposite signs that grow, are left by no step.
    """
    prepared = run.prepared
    if run.status is not Status.NO_DESCENT or run.state.best or not prepared.structure.exact:
        return None
    if not dependent(to_numpy(prepared.call(_condition, found.theta, once=True))):
        return None
    state = run.algorithm.nearer(run.started(prepared.theta).state)
    return None if state is None else Tracked.of(state, found)


def _opened(run: Run, end: End) -> Tracked | None:
    """The first state where another value of an entry of theta that a closed weight has left behind is lower."""
    B, prepared = run.algorithm.gauss_newton(run.state.state), run.prepared
    if B is None or not _has_faces(prepared):
        return None

    def moved(step: np.ndarray) -> np.ndarray:
        return _vector(_moved(prepared, end.theta, step[0])).astype(np.float64)[None, :]

    _, steps = left_behind(_vector(end.theta)[None, :], to_numpy(B)[None, ...], moved)
    return None if run.late else _at_lowest(run, [step for (step,) in steps], end)


def _has_faces(prepared: Prepared) -> bool:
    W = prepared.problem.lower.W
    return not (W is None or W.linear)


def _at_lowest(run: Run, steps: list[np.ndarray], end: End) -> Tracked | None:
    """The first state after that of some steps which leads lowest, where that is lower than the end."""
    prepared = run.prepared
    points = [_moved(prepared, end.theta, step) for step in steps]
    values = np.asarray(prepared.backend.to_floats([prepared.call(_value, point) for point in points]))
    run.worked((len(points), 0, 0, 0, 0))
    below = np.where(values < end.value - end.least, values, np.inf)
    return run.started(points[int(np.argmin(below))]) if (below < np.inf).any() else None


def _moved(prepared: Prepared, theta: Leaves, step: np.ndarray) -> Leaves:
    """The feasible point after a step, (p,)."""
    return prepared.region.moved(_leaves(prepared, theta, step), theta)


def _leaves(prepared: Prepared, theta: Leaves, step: np.ndarray) -> Leaves:
    parts = trees.unraveled(step, theta)
    return tuple(prepared.backend.asarray(x, dtype=prepared.dtype, device=prepared.device) for x in parts)


def _vector(theta: Leaves) -> np.ndarray:
    return to_numpy(trees.raveled(theta))


def _below(run: Run, end: End) -> Tracked | None:
    """The first state at a point next to a saddle, lower than it by more than the tolerance; None at a minimum.

    On a line with kinks, at the lowest of some points around. None also where the time limit ends the search.
    A minimum has the status of one then.
    """
    prepared = run.prepared
    few = sum(math.prod(x.shape) for x in end.theta) <= MANY
    if not few or not prepared.structure.exact or prepared.problem.in_rows:
        return None
    on_a_line = kinked(prepared)
    if run.status.success and not on_a_line and _well_determined(run):
        return None
    scale, eps = _scale(prepared, end.theta), float(np.finfo(prepared.dtype).eps)
    if on_a_line:
        steps = [sign * share * scale for share in AROUND for sign in (1, -1)]
        return _at_lowest(run, steps, end)

    def probe(step: np.ndarray) -> np.ndarray:
        if run.late:
            raise TimeoutError
        return run.slope(end.theta, _leaves(prepared, end.theta, step))

    try:
        steps, slope, left, newton = curvature(probe, scale, eps)
    except TimeoutError:
        return None
    if steps and _has_faces(prepared):  # where weights meet their bounds a Hessian is one-sided: entry by entry too
        steps += [0.25 * sign * row for row in np.diag(scale) for sign in (1, -1)]
    B = run.algorithm.gauss_newton(run.state.state)
    if B is not None:  # at bounds a Hessian does not see two equal rates
        flat, apart = without_curvature(_vector(end.theta)[None, :], to_numpy(B)[None, ...])
        steps += [step for (step,) in apart if flat.all()]
    least = run.tol * run.tol * abs(end.value)  # tol**2 of a large float raises
    # where the method's own matrix is singular, what it promises is rounding, divided by nearly 0
    ended, certified = run.status is not Status.CONVERGED and left <= max(end.margin, least), _is_certified(run)
    if ended and not certified and (state := _after(run, end, newton)) is not None:
        return state
    if not run.status.success and not slope <= max(run.tol, eps**0.5) * abs(end.value):
        return None  # descent has not come to its end: what its gradients say is in doubt
    if ended and certified:
        run.end_with(Status.CONVERGED if left <= least else Status.ROUNDING)
    for step in steps:
        if run.late:
            return None
        state = run.started(_moved(prepared, end.theta, step))
        if prepared.backend.to_floats([state.iterate.value])[0] < end.value - end.least:
            return state
        run.worked(prepared.backend.to_floats(state.iterate.counts))
    # where a weight opens, the method's own matrix is that of one side, and entries of closed weights bend nowhere
    opens = run.status is Status.ROUNDING and not (ended or certified) and _has_faces(prepared)
    return _after(run, end, newton) if opens and newton is not None else None


def _after(run: Run, end: End, step: np.ndarray) -> Tracked | None:
    """The first state after a step that halves the gap, and raises the value by no more than rounding."""
    floats, here = run.prepared.backend.to_floats, run.state.iterate
    state = run.started(_moved(run.prepared, end.theta, step))
    value, gap, before = floats([state.iterate.value, state.iterate.gap_A, here.gap_A])
    if gap <= 0.5 * before and value <= end.value + end.margin:
        return state
    run.worked(floats(state.iterate.counts))
    return None


def _scale(prepared: Prepared, theta: Leaves) -> np.ndarray:
    """The size of each entry of theta, > 0; one that goes to 0 is measured by where it began."""
    pairs = zip(theta, prepared.theta, strict=True)
    sizes = [np.maximum(*(np.abs(prepared.backend.to_numpy(x)) for x in pair)) for pair in pairs]
    host: Leaves = tuple(x.astype(np.float64) for x in sizes)
    size = np.asarray(trees.raveled(host))
    size = np.where(size > 0, size, size.mean() or 1.0)
    found: Any = prepared.region.evened(size[None, :])
    return np.asarray(found)[0, :]


def _is_certified(run: Run) -> bool:
    """Whether the gap of the sets at the last iterate is below the tolerance."""
    it, dtype = run.state.iterate, run.prepared.dtype
    floats = run.prepared.backend.to_floats([it.gap_A + it.slack, it.value])
    gap, value, floor, tol = (np.asarray(x, dtype=dtype) for x in (*floats, run.floor, run.tol))
    return bool(gap <= negligible_gap(value, tol, floor))


def _well_determined(run: Run) -> bool:
    """Whether the method's own matrix shows that the objective bends up in every direction.

    Where columns of the Jacobian have length 1, the terms that a Gauss-Newton matrix leaves out are of the order of
    the residual, relative to the target.
    """
    B = run.algorithm.gauss_newton(run.state.state)
    if B is None or run.record.done == 0:
        return False
    B = to_numpy(B).astype(np.float64)
    size = np.sqrt(np.diagonal(B))
    value, floor = run.prepared.backend.to_floats([run.state.iterate.value])[0], run.floor
    left_out = max(math.sqrt(abs(value) / floor), float(np.finfo(run.prepared.dtype).eps) ** 0.5) if floor else 0.0
    return bool(size.all()) and bool(np.linalg.eigvalsh(B / np.outer(size, size))[0] > left_out)


def left_behind(x: np.ndarray, B: np.ndarray, moved: Callable[[np.ndarray], np.ndarray]) -> Look:
    """Entries that a closed weight has left behind, which do nothing or have gone to a bound; others of their values.

    `B` are Gauss-Newton matrices, and ``moved(step)`` the feasible points next to ``x + step``.
    """
    units, bends = np.eye(x.shape[1]), np.diagonal(B, axis1=1, axis2=2)
    reach = 1e3 * positive_or_one(np.abs(x))
    low, high = (
        np.stack([moved(sign * reach * unit)[:, j] for j, unit in enumerate(units)], axis=1) for sign in (-1, 1)
    )
    asked = (low < high) & ((bends == 0) | (x == low) | (x == high))

    def steps() -> Iterator[np.ndarray]:
        for j in np.flatnonzero(asked.any(axis=0)):
            for end in _between(low[:, j], high[:, j]):
                yield np.where(asked[:, j], end - x[:, j], 0)[:, None] * units[j]

    return asked.any(axis=1), steps()


def _between(low: np.ndarray, high: np.ndarray) -> Iterator[np.ndarray]:
    """Values between two ends: in equal steps, and where 0 is not among them in equal ratios."""
    shares = np.linspace(0.0, 1.0, OTHERS + 2)[1:-1, None]
    near, far = np.sort(np.abs([low, high]), axis=0)
    near, apart, even = np.maximum(near, 1e-3 * far), low * high >= 0, low + (high - low) * shares
    yield from even
    if apart.any():
        yield from np.where(apart, np.sign(low + high) * near * (far / positive_or_one(near)) ** shares, even)


def without_curvature(x: np.ndarray, B: np.ndarray, moved: object = None) -> Look:
    """Problems whose model has no curvature along a direction, as next to a saddle; both ways along it.

    The entry that changes most does so by its own size.
    """
    eps, B = np.finfo(x.dtype).eps, B.astype(np.float64)
    size = np.sqrt(np.abs(np.diagonal(B, axis1=1, axis2=2)))
    known = (size > 0).all(axis=1) & np.isfinite(size).all(axis=1)
    down = np.zeros_like(size)
    bends, vectors = np.linalg.eigh(B[known] / size[known, :, None] / size[known, None, :])
    steps, own = vectors[:, :, 0] / size[known], np.abs(x[known])
    own = np.where(own > 0, own, np.mean(own, axis=1, keepdims=True))
    reach = np.max(np.abs(steps) / positive_or_one(own), axis=1)
    down[known] = np.where(bends[:, 0] <= eps**0.5, 1 / reach, 0.0)[:, None] * steps
    return down.any(axis=1), (step * down for step in PARTED)


def dependent(condition: np.ndarray) -> np.ndarray:
    """Where columns of M have become dependent on the way: of a solve that began nearer to its start they may not."""
    found: np.ndarray = condition > float(np.finfo(condition.dtype).eps) ** DEPENDENT
    return found


class Curvature(NamedTuple):
    """What the Hessian at a point says."""

    steps: list[np.ndarray]  # along which the objective bends down most, both ways, from long to short
    slope: float  # the length of the gradient in the metric, a difference of objectives
    left: float  # decrease that a quadratic model promises, where that bends up in every direction; else inf
    step: Any = None  # to the lowest point of that model along the directions in which it does, (p,)


def curvature(probe: Callable[[np.ndarray], np.ndarray], scale: np.ndarray, eps: float) -> Curvature:
    """The curvature of the objective in the smallest face of theta.

    Parameters
    ----------
    probe : callable
        The gradient in the face of theta after a step, (p,) -> (p,).
    scale : array, (p,)
        The size of each entry of theta, > 0: the metric, so that units do not count.
    eps : float
        Machine epsilon of the gradients.

    Notes
    -----
    The method of Lanczos on the scaled Hessian, with products by differences of gradients, from a fixed vector without
    any symmetry.
    """
    h, start = eps ** (1 / 3), probe(np.zeros_like(scale))
    v = np.random.default_rng(0).normal(size=scale.size)
    basis = np.zeros((0, scale.size))
    rows: list[np.ndarray] = []
    for _ in range(min(scale.size, STEPS)):
        v = v / np.linalg.norm(v)
        basis = np.vstack([basis, v])
        rows.append(scale * (probe(h * scale * v) - start) / h)
        if not np.isfinite(rows[-1]).all():
            return Curvature([], np.inf, np.inf)
        # once is enough: what is left is longer than h, and its part along the basis is rounding, eps / h of it
        v = rows[-1] - basis.T @ (basis @ rows[-1])
        ended = not np.linalg.norm(v) > h * np.linalg.norm(rows)
        if ended:
            break
    H = basis @ np.transpose(rows)
    slope = float(np.linalg.norm(scale * start))
    bends, vectors = np.linalg.eigh(0.5 * (H + H.T))
    noise = h * bends[-1]  # where the largest in size is below 0 it is far below any noise
    if bends[0] < -noise:
        down = scale * (vectors[:, 0] @ basis)
        return Curvature([sign * 0.25**j * down for j in range(5) for sign in (0.5, -0.5)], slope, np.inf)
    if not ended:
        return Curvature([], slope, np.inf)
    # an end before all directions are met says that the others bend as these do, less exactly
    up = bends > (noise if len(bends) == scale.size else h**0.5 * bends[-1])
    along, bends = np.where(up, vectors.T @ (basis @ (scale * start)), 0.0), np.where(up, bends, 1.0)
    gain, rest = float(0.5 * np.sum(along**2 / bends)), float(max(slope**2 - np.sum(along**2), 0.0))
    left = gain + 0.5 * rest / float(bends[0]) if up.all() else np.inf
    return Curvature([], slope, left, -scale * ((vectors @ (along / bends)) @ basis))


def parabola(slope: np.ndarray, H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By how much the lowest point lies below, (b,), inf where there is none, and the step to it, (b, p).

    H are Hessians by differences, (b, p, p). The step is along the directions in which they bend up.
    """
    known = np.isfinite(H).all(axis=(1, 2)) & np.isfinite(slope).all(axis=1)
    bends, vectors = np.linalg.eigh(np.where(known[:, None, None], 0.5 * (H + H.mT), 0.0))
    up = bends > np.finfo(H.dtype).eps ** (1 / 3) * bends[:, -1:]
    along = np.where(up, (slope[:, None, :] @ vectors)[:, 0, :], 0.0) / np.where(up, bends, 1.0)
    left = 0.5 * np.sum(along * along * bends, axis=1)
    return np.where(up.all(axis=1), left, np.inf), -(vectors @ along[:, :, None])[:, :, 0]


def _condition(f: Objective, theta: Leaves) -> Array:
    return f.diagnose(theta).condition


def _value(f: Objective, theta: Leaves) -> Array:
    value: Array = f.point(theta).value
    return value
