"""Sets by their definitions, in plain NumPy: support functions, membership, vertices, and inequalities of faces."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np

from xvarpro import sets
from xvarpro_conformance.references import written_sets  # noqa: F401  (importing it enters them)
from xvarpro_conformance.references.definitions import DEFINITIONS, Known, diameter, inner, known

__all__ = ["DEFINITIONS", "Known", "Polytope", "diameter", "inner", "known", "polytope"]

# -- faces: from inequalities ------------------------------------------------------------------------------------------


class Polytope(NamedTuple):
    """``{x : A x <= b}``; an equation is two inequalities."""

    A: np.ndarray
    b: np.ndarray

    @property
    def size(self) -> float:
        return float(max(1e-300, abs(self.b).max()))

    def tight(self, x: np.ndarray) -> np.ndarray:
        """Which inequalities x meets with equality: they make its smallest face."""
        return self.b - self.A @ x <= 1e-6 * self.size

    def tangent(self, d: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The part of d along which no tight inequality changes."""
        met = self.A[self.tight(x)]
        return d - np.linalg.pinv(met, rcond=1e-10) @ (met @ d) if len(met) else d

    def reach(self, d: np.ndarray, x: np.ndarray) -> float:
        """The last alpha at which ``A (x + alpha d) <= b``."""
        best = np.inf
        for row, bound in zip(self.A, self.b, strict=True):
            rise = row @ d
            if rise > 1e-9 * np.linalg.norm(row) * np.linalg.norm(d):
                best = min(best, max(bound - row @ x, 0.0) / rise)
        return best

    def slide(self, d: np.ndarray, x: np.ndarray) -> np.ndarray:
        """End of the path of length ``|d|`` that turns into each face."""
        left = 1.0
        for _ in range(len(self.b) + 1):
            along = self.tangent(d, x)
            step = min(self.reach(along, x), left)
            if not left or not np.linalg.norm(along) > 1e-9 * np.linalg.norm(d):
                break
            x, left = x + step * along, left - step
        return x

    @property
    def vertices(self) -> np.ndarray:
        """Where as many inequalities as there are entries are met, and all others hold."""
        n = self.A.shape[1]
        rows = np.array(list(combinations(range(len(self.b)), n)))
        some = rows[abs(np.linalg.det(self.A[rows])) > 1e-9]
        points = np.linalg.solve(self.A[some], self.b[some][..., None])[..., 0]
        points = points[(points @ self.A.T <= self.b + 1e-9 * self.size).all(-1)]
        _, first = np.unique(np.round(points, 9), axis=0, return_index=True)
        return points[np.sort(first)] + 0.0


def polytope(C: Any, n: int) -> Polytope:
    """The inequalities of a set of vectors of n entries that describes its faces."""
    eye = np.eye(n)
    if isinstance(C, sets.Box | sets.LinfBall):
        ends = (C.lower, C.upper) if isinstance(C, sets.Box) else (-C.radius, C.radius)
        low, high = (np.broadcast_to(np.asarray(b, np.float64), n) for b in ends)
        return Polytope(np.concatenate([eye, -eye]), np.concatenate([high, -low]))
    if isinstance(C, sets.L1Ball):
        return Polytope(np.array(list(product((-1.0, 1.0), repeat=n))), np.full(2**n, C.radius))
    if isinstance(C, sets.Simplex | sets.CappedSimplex):
        A, b = np.vstack([-eye, np.ones(n), -np.ones(n)]), np.append(np.zeros(n), [C.radius, -C.radius])
        return Polytope(A, b) if isinstance(C, sets.Simplex) else Polytope(A[:-1], b[:-1])
    if isinstance(C, sets.WeightedSimplex):
        a, low = (np.broadcast_to(np.asarray(x, np.float64), n) for x in (C.weights, C.lower))
        return Polytope(np.vstack([-eye, a]), np.append(-low, C.bound))
    if isinstance(C, sets.ShiftScale):
        A, b = polytope(C.inner, n)
        return Polytope(A / C.scale, b + A @ np.broadcast_to(np.asarray(C.shift, np.float64), n) / C.scale)
    if isinstance(C, sets.Product):
        sizes = C.sizes or (n // len(C.sets),) * len(C.sets)
        parts = [polytope(part, size) for part, size in zip(C.sets, sizes, strict=True)]
        A, at = np.zeros((sum(len(p.b) for p in parts), n)), np.cumsum([0, *sizes])
        row = 0
        for p, start in zip(parts, at, strict=False):
            A[row : row + len(p.b), start : start + p.A.shape[1]] = p.A
            row += len(p.b)
        return Polytope(A, np.concatenate([p.b for p in parts]))
    raise LookupError(f"{type(C).__name__} has no inequalities in xvarpro_conformance.references.sets")
