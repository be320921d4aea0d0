"""What a certificate is nowhere above in its box, proven by intervals that are rounded outwards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.certificate import intervals as iv
from xvarpro.certificate.enclosures import Enclosure, enclosed, extended
from xvarpro.components.atoms import Atoms
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError

WORK, BOXES = 2e5, 10_000  # numbers in a column of all boxes of a round, and boxes after which it is given up
MARGIN = 1 + 1e-12  # for the rounding of the sums here


def proven(atoms: Atoms, r: np.ndarray, tau: float, one_sided: bool, level: float) -> float:
    """`level`, where no atom of the box has ``|a^T r| > level tau`` for a residual r (m, k); inf where that is open.

    Boxes are split until ``(level tau)^2 |a|^2 - |a^T r|^2`` is above 0 all over each, by its enclosure and those of
    its derivatives. Open are atoms with complex numbers, with blocks of unit columns, or with functions that have no
    enclosure.
    """
    if atoms.complex or atoms.stacked or (atoms.normalise and atoms.block > 1):
        return math.inf

    def squares(theta: Tree, data: tuple[Tree, np.ndarray, np.ndarray]) -> tuple[Any, Any, Any]:
        A = atoms.atom(theta, data[0])
        xp = namespace_of(A)
        A = xp.reshape(A, (A.shape[0], atoms.block)) * data[1]
        pulls = xp.reshape(xp.matmul(data[2], A), (-1,))
        return (level * tau) ** 2 * (xp.sum(A * A) if atoms.normalise else 1.0), pulls * pulls, pulls

    data = trees.map_arrays(backends.to_numpy, atoms.data), atoms.root, -r.T
    ends = np.cumsum([math.prod(s) for s in atoms.shapes]).tolist()
    parts = [(slice(end - math.prod(s), end), (1, *s)) for end, s in zip(ends, atoms.shapes, strict=True)]
    whole, p, count = atoms.upper - atoms.lower, len(atoms.lower), 0
    lower, upper = atoms.lower[None], atoms.upper[None]
    while len(lower):
        at = max(len(lower) - int(WORK / len(r)), 0)  # from here on, the last ones, which are the smallest
        low, high, count = lower[at:], upper[at:], count + len(lower[at:])
        try:
            here, wide = enclosed(squares, low, high, data, (atoms.treedef, parts))
        except (ProblemError, TypeError):  # functions of another framework take no enclosure
            return math.inf
        pulls = here[2]
        known = np.maximum(pulls.lo[0], 0.0) ** 2 + (0.0 if one_sided else np.minimum(pulls.hi[0], 0.0) ** 2)
        if count > BOXES or (known.sum(axis=1) > here[0].hi[0] * MARGIN).any():
            return math.inf
        counted = ~((wide[2].hi[0] <= 0) & one_sided)
        least, parts_of = _least(*(_margin(found[0], found[1], counted) for found in (here, wide)))
        parts_of = np.where(np.isfinite(parts_of).all(axis=1, keepdims=True), parts_of, (high - low) / whole)
        k = np.argmax(parts_of, axis=1)[~(least > 0)]
        low, high = (np.repeat(x[~(least > 0)][None], 2, axis=0) for x in (low, high))
        rows = np.arange(len(k))
        high[0, rows, k] = low[1, rows, k] = 0.5 * (low[0, rows, k] + high[0, rows, k])
        lower, upper = (np.concatenate([x[:at], y.reshape(-1, p)]) for x, y in ((lower, low), (upper, high)))
    return level


def _margin(most: Enclosure, squares: Enclosure, counted: np.ndarray) -> Enclosure:
    """What is left of `most`, (b,), less the squares (b, n) that are counted."""
    some = np.where(counted, squares.lo, 0.0), np.where(counted, squares.hi, 0.0)
    return Enclosure(
        *iv.add((extended(most.lo, len(some[0])), extended(most.hi, len(some[0]))), iv.neg(iv.total(some, 2)))
    )


def _least(f: Enclosure, wide: Enclosure) -> tuple[np.ndarray, np.ndarray]:
    """Lower bounds of a number over boxes, (b,), and what each entry of theta takes from them, (b, p).

    By the value and slopes at the centres, enclosures f, and second derivatives over the boxes, in `wide`.
    """
    p = (math.isqrt(8 * len(f.lo) + 1) - 3) // 2
    parts = np.maximum(np.abs(f.lo[1 : p + 1]), np.abs(f.hi[1 : p + 1]))
    for i, j, low, high in zip(*np.triu_indices(p), wide.lo[p + 1 :], wide.hi[p + 1 :], strict=True):
        down = 0.5 * np.maximum(np.abs(low), np.abs(high)) if i < j else 0.25 * np.maximum(-low, 0.0)
        parts[i], parts[j] = parts[i] + down, parts[j] + down
    return np.fmax(f.lo[0] - MARGIN * parts.sum(axis=0), wide.lo[0]), parts.T
