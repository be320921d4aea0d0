"""Which constraints are active at a solution, and with what multipliers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.struct import Array
from xvarpro.driver.prepare import Prepared
from xvarpro.lower import L1, Bounded, Nonnegative, Simplex
from xvarpro.sets import Box
from xvarpro.sets.interface import Set
from xvarpro.sets.region import event
from xvarpro.statistics.linearised import STOPPED, Linearised

ZERO = 1e-12  # entries that are rounding next to the largest


class Limit(NamedTuple):
    """The constraint on one entry of theta or w."""

    lower: float = -np.inf
    upper: float = np.inf
    note: str = ""  # what is active, in words; equations that all points of a set fulfil are not
    # by how much the objective would fall per unit of the entry beyond its bound, or grow on the flatter side of the 0
    # of an l1 penalty; where the entry cannot move alone, the length of the gradient along the set; 0 where none is
    multiplier: float = 0.0
    held: bool = False  # whether the entry cannot move in the face of the solution
    kink: bool = False  # whether it is there with a multiplier of 0, to rounding: its derivatives are one-sided
    rounding: float = 0.0  # size below which its value is 0


def of_theta(at: Linearised) -> list[Limit]:
    """The constraint on each entry of theta."""
    sets: dict[int, Any] = dict(at.prepared.region.constrained)
    zeros = at.flat
    out: list[Limit] = []
    for i, leaf in enumerate(at.prepared.theta):
        x, C = backends.to_numpy(leaf).astype(float), sets.get(i)
        here = slice(len(out), len(out) + x.size)
        J, g, zero = at.J[here, here], at.gradient[here], zeros[here]
        if C is None:
            out += [Limit()] * x.size
        elif isinstance(C, Box):
            lower, upper = _broadcast(C.lower, x.shape), _broadcast(C.upper, x.shape)
            held = np.diagonal(J) == 0
            out += _between(x, lower, upper, held, g, held & (np.abs(g) <= zero))
        else:
            out += _on_face(at.prepared, C, leaf, J, g, zero)
    return out


def ranges_of_theta(at: Linearised) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least and largest value of each entry of theta in its set, and whether it may move without the others."""
    sets: dict[int, Any] = dict(at.prepared.region.constrained)
    out = []
    with at.prepared.backend.scope(at.prepared.dtype):
        for i, leaf in enumerate(at.prepared.theta):
            C, n = sets.get(i), backends.to_numpy(leaf).size
            if isinstance(C, Box):
                ends = [_broadcast(b, leaf.shape).ravel() for b in (C.lower, C.upper)]
            elif C is None or not C.bounded:
                ends = [np.full(n, -np.inf), np.full(n, np.inf)]
            else:
                ends = [np.diagonal(x) for x in _ends(at.prepared, C, leaf, np.eye(n))]
            out.append([*ends, np.full(n, C is None or isinstance(C, Box))])
    lower, upper, alone = (np.concatenate(parts) for parts in zip(*out, strict=True))
    return lower.astype(float), upper.astype(float), alone


def of_w(at: Linearised) -> list[Limit]:
    """The constraint on each entry of w, row by row."""
    W, w, slope = at.prepared.problem.lower.W, at.w.real, at.slope.real
    still = np.stack([~np.any(B, axis=1) for B in at.directions], axis=1)
    still = np.broadcast_to(still[: len(w)], w.shape)  # in real numbers those of imaginary parts follow
    if isinstance(W, Bounded | Nonnegative):
        lower, upper = (W.lower, W.upper) if isinstance(W, Bounded) else (0.0, np.inf)
        lower, upper = (b[:, None] if trees.is_array(b) and b.ndim == 1 else b for b in (lower, upper))
        lower, upper = _broadcast(lower, w.shape), _broadcast(upper, w.shape)
        kinks = _kinks(at, np.minimum(w - lower, upper - w), slope)
        return _between(w, lower, upper, still | kinks, slope, kinks)
    if isinstance(W, Simplex):
        slope = np.where(w > 0, 0.0, slope - np.sum(slope * w, axis=0) / W.total)  # without the multiplier of the sum
        kinks = _kinks(at, w, slope)
        return _between(w, 0.0, W.total, still | kinks, slope, kinks)
    if isinstance(W, L1):
        slack = W.alpha + slope if W.nonnegative else W.alpha - np.abs(slope)
        kinks = _kinks(at, np.abs(w), slack)
        return _between(w, 0.0 if W.nonnegative else -np.inf, np.inf, still | kinks, slack, kinks, "held at 0")
    known, free = Limit(note="fixed", held=True), Limit()
    return [known if fixed else free for fixed in still.ravel().tolist()]


def uncalibrated(names: Sequence[str], limits: Sequence[Limit]) -> list[str]:
    """What to know of errors where constraints are active; nothing where none is."""
    pairs = zip(names, limits, strict=True)
    active = [name for name, limit in pairs if limit.note not in ("", "fixed") and not limit.kink]
    said = f"constraints are active, {listed(active)}: errors and intervals are not calibrated"
    return [said] if active else []


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def _kinks(at: Linearised, off: np.ndarray, multiplier: np.ndarray) -> np.ndarray:
    """Entries of w at a bound with a multiplier of 0, each to rounding, by what `Result.verified` counts them with.

    In units in which columns of the design have length 1; `off` is the distance to the bound.
    """
    n, k = at.w.shape
    eps = float(np.finfo(at.prepared.dtype).eps)
    lengths = np.sqrt(np.sum(np.abs(at.M) ** 2, axis=1) + np.sum(np.abs(at.ridge) ** 2, axis=1)).T
    lengths = np.broadcast_to(np.where(lengths > 0, lengths, 1.0), (n, k))
    u = off * lengths
    size = np.max(np.abs(at.w) * lengths, axis=0) + np.max(np.abs(at.y), axis=0)
    small = 100 * n * eps * size
    flat = np.abs(multiplier) <= small * lengths
    condition = np.ones(k)
    for j in np.flatnonzero(np.any(flat & (u > 0) & (u <= eps**0.5 * size), axis=0)):
        free = u[:, j] > 0
        A = np.concatenate([at.M[j % len(at.M)], at.ridge[j % len(at.ridge)]])[:, free] / lengths[free, j]
        condition[j] = np.linalg.cond(A)
    return flat & (u <= condition * small)


def _between(
    x: np.ndarray, lower: Any, upper: Any, held: np.ndarray, slope: np.ndarray, kinks: np.ndarray, word: str = ""
) -> list[Limit]:
    out, size = [], float(np.max(np.abs(x), initial=0.0))
    columns = (_broadcast(lower, x.shape), _broadcast(upper, x.shape), x, held, slope, kinks)
    for a, b, value, stops, g, kink in zip(*(column.ravel().tolist() for column in columns), strict=True):
        low = value - a <= b - value
        note = "fixed" if a == b else (word or f"at {'lower' if low else 'upper'} bound") if stops else ""
        zero = stops and (word or (a if low else b) == 0) and (kink or abs(value) <= ZERO * size)
        rounding = abs(value) if zero else 0.0
        out.append(Limit(a, b, note, abs(g) if note else 0.0, bool(note), kink and a < b, rounding))
    return out


def _broadcast(bound: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(backends.to_numpy(bound) if trees.is_array(bound) else bound, shape)


def _tolerance(prepared: Prepared) -> float:
    return max(STOPPED, float(np.finfo(prepared.dtype).eps) ** 0.5)


def _on_face(
    prepared: Prepared, C: Set, leaf: Array, J: np.ndarray, gradient: np.ndarray, zero: np.ndarray
) -> list[Limit]:
    """Of a set that ties entries together: J is that of a free point unless the face is smaller than the set."""
    n, tol = len(J), _tolerance(prepared)
    if np.min(np.linalg.eigvalsh(J), initial=1.0) >= 1 - tol:
        return [Limit()] * n
    hull = _hull(prepared, C, leaf, tol)
    fixed, still = ~np.any(np.abs(hull) > tol, axis=0), np.diagonal(J) <= tol
    held = still & ~fixed
    # ways in the set in which no entry moves that is held, and those that move one of these by 1 each
    _, s, Vt = np.linalg.svd(hull[:, held].T)
    ways = Vt[int(np.sum(s > tol)) :] @ hull
    bent = ~still & np.any(np.abs(J - ways.T @ ways) > tol, axis=1)
    normal = float(np.linalg.norm(hull @ gradient - hull @ (J @ gradient)))
    size, zero = np.full(n, normal), np.where(held, zero, np.max(zero))
    if np.sum(s > tol) == np.sum(held):
        size[held] = np.abs(gradient @ hull.T @ np.linalg.pinv(hull[:, held].T))
    name = " ".join(repr(trees.map_arrays(backends.to_numpy, C)).split())
    rounding = 8 * float(np.finfo(prepared.dtype).eps) * float(np.max(np.abs(backends.to_numpy(leaf)), initial=0.0))
    out = []
    for j in range(n):
        note = "fixed" if fixed[j] else f"held by {name:.60}" if held[j] else f"on the boundary of {name:.60}"
        active = held[j] or bent[j]
        out.append(
            Limit(
                note=note if active or fixed[j] else "",
                multiplier=float(size[j]) if active else 0.0,
                held=bool(still[j]),
                kink=bool(active and size[j] <= zero[j]),
                rounding=rounding if still[j] else 0.0,
            )
        )
    return out


def _hull(prepared: Prepared, C: Set, leaf: Array, tol: float) -> np.ndarray:
    """Orthonormal rows that span the directions between points of a set, (r, n).

    Its two ends along a direction differ by a vector of these, unless the direction is normal to all of them.
    """
    n = backends.to_numpy(leaf).size
    hull, normal = np.zeros((0, n)), np.eye(n)
    for _ in range(n):
        first, last = _ends(prepared, C, leaf, normal)
        apart = last - first
        wide = np.sum(apart * normal, axis=1) > tol * np.linalg.norm(apart, axis=1)
        if not wide.any():
            break
        found = apart[wide] / np.linalg.norm(apart[wide], axis=1)[:, None]
        _, s, Vt = np.linalg.svd(np.concatenate([hull, found]))
        rank = int(np.sum(s > tol))
        hull, normal = Vt[:rank], Vt[rank:]
    return hull


def _ends(prepared: Prepared, C: Set, leaf: Array, ways: np.ndarray) -> list[np.ndarray]:
    """The points of a set that are least and most in each of some directions, two arrays of the shape of `ways`."""
    with prepared.backend.scope(prepared.dtype):
        g = prepared.to_backend(ways.reshape(len(ways), *event(C, leaf).shape))
        return [backends.to_numpy(C.lmo(x)).reshape(ways.shape).astype(float) for x in (g, -g)]
