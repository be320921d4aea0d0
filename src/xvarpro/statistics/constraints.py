"""Which constraints are active at a solution, and with what multipliers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.lower import Bounded, Nonnegative
from xvarpro.sets import Box
from xvarpro.sets.region import event
from xvarpro.statistics.linearised import Linearised

STOPPED = 1e-6  # a projection's derivative keeps less than 1 minus this of a direction that a constraint stops


class Limit(NamedTuple):
    """The constraint on one entry of theta or w.

    Attributes
    ----------
    lower, upper : float
        Bounds; infinite where there are none.
    note : str
        What is active, in words; empty where nothing is.
    multiplier : float
        By how much the objective would fall per unit of the entry beyond its bound; on the boundary of another set, the
        length of the gradient of the whole leaf. 0 where nothing is active.
    """

    lower: float = -np.inf
    upper: float = np.inf
    note: str = ""
    multiplier: float = 0.0


def of_theta(at: Linearised) -> list[Limit]:
    """The constraint on each entry of theta."""
    sets: dict[int, Any] = dict(at.prepared.region.constrained)
    out: list[Limit] = []
    for i, leaf in enumerate(at.prepared.theta):
        x, C = backends.to_numpy(leaf), sets.get(i)
        here = slice(len(out), len(out) + x.size)
        if isinstance(C, Box):
            out += _between(x, (C.lower, C.upper), at.gradient[here])
        else:
            out += [Limit() if C is None else _inside(C, at.J[here, here], at.gradient[here])] * x.size
    return out


def ranges_of_theta(at: Linearised) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least and largest value of each entry of theta in its set, and whether it may move without the others."""
    sets: dict[int, Any] = dict(at.prepared.region.constrained)
    out = []
    with at.prepared.backend.scope(at.prepared.dtype):
        for i, leaf in enumerate(at.prepared.theta):
            C, n = sets.get(i), backends.to_numpy(leaf).size
            if isinstance(C, Box):
                ends: Any = [backends.to_numpy(b) if trees.is_array(b) else b for b in (C.lower, C.upper)]
                ends = [np.broadcast_to(b, leaf.shape).ravel() for b in ends]
            elif C is None or not C.bounded:
                ends = [np.full(n, -np.inf), np.full(n, np.inf)]
            else:
                units = at.prepared.to_backend(np.eye(n).reshape(n, *event(C, leaf).shape))
                points = [backends.to_numpy(C.lmo(g)).reshape(n, n) for g in (units, -units)]
                ends = [np.diagonal(x) for x in points]
            out.append([*ends, np.full(n, C is None or isinstance(C, Box))])
    lower, upper, alone = (np.concatenate(parts) for parts in zip(*out, strict=True))
    return lower.astype(float), upper.astype(float), alone


def of_w(at: Linearised) -> list[Limit]:
    """The constraint on each entry of w, row by row."""
    W = at.prepared.problem.lower.W
    if not isinstance(W, Bounded | Nonnegative):
        return [Limit()] * at.w.size
    bounds = (W.lower, W.upper) if isinstance(W, Bounded) else (0.0, np.inf)
    columns = (b[:, None] if trees.is_array(b) and b.ndim == 1 else b for b in bounds)
    return _between(at.w.real, tuple(columns), at.slope.real)


def uncalibrated(names: Sequence[str], limits: Sequence[Limit]) -> list[str]:
    """What to know of errors where constraints are active; nothing where none is."""
    active = [name for name, limit in zip(names, limits, strict=True) if limit.note not in ("", "fixed")]
    more = f" and {len(active) - 6} more" if len(active) > 6 else ""
    said = f"constraints are active, {', '.join(active[:6])}{more}: errors and intervals are not calibrated"
    return [said] if active else []


def kinks_of_w(at: Linearised) -> int:
    """Entries of w at a bound whose multiplier is 0 to half of the digits: on which side they stay is open."""
    eps = float(np.finfo(at.prepared.dtype).eps)
    sizes = np.linalg.norm(at.M, axis=1).T * np.linalg.norm(at.residual, axis=0)
    sizes = np.broadcast_to(sizes, at.w.shape).ravel()
    limits = zip(of_w(at), sizes, strict=True)
    return sum(limit.note.startswith("at") and limit.multiplier <= eps**0.5 * size for limit, size in limits)


def _between(x: np.ndarray, bounds: tuple[Any, ...], slope: np.ndarray) -> list[Limit]:
    lower, upper = (np.broadcast_to(backends.to_numpy(b) if trees.is_array(b) else b, x.shape).ravel() for b in bounds)
    out = []
    for a, b, value, g in zip(lower.tolist(), upper.tolist(), x.ravel().tolist(), slope.ravel().tolist(), strict=True):
        note = "fixed" if a == b else f"at {'lower' if value <= a else 'upper'} bound" if value in (a, b) else ""
        out.append(Limit(a, b, note, abs(g) if note else 0.0))
    return out


def _inside(C: Any, J: np.ndarray, gradient: np.ndarray) -> Limit:
    kept = np.linalg.eigvalsh(J)
    if np.min(kept, initial=1.0) >= 1 - STOPPED:
        return Limit()
    name = repr(trees.map_arrays(backends.to_numpy, C))
    way = f"on the boundary of {name}, free in {np.sum(kept > STOPPED)} of {len(kept)} directions"
    return Limit(note=way, multiplier=float(np.linalg.norm(gradient)))
