"""The least-squares problem of a level as a polynomial over boxes of theta."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.certificate.enclosures import Enclosure, cleared, enclosed, extended, halved, in_units
from xvarpro.certificate.intervals import EPS
from xvarpro.certificate.relaxation import Bounds, Polynomial, bounds
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError
from xvarpro.lower import Bounded, Nonnegative
from xvarpro.problem.problem import Problem

WORK, BATCH = 3e5, 256  # numbers in the terms of a round, and its boxes


def _polynomial(found: list[list[Enclosure]]) -> tuple[np.ndarray, np.ndarray]:
    """Terms and what they miss, of a design and a target at the centres and over the boxes."""
    M, y = found[0][:2]
    if M.ndim != 3 or y.ndim != 2:
        shapes = f"{M.shape[1:]} and {y.shape[1:]}"
        raise ProblemError(f"certify takes an array M of shape (m, n) and a target of shape (m,); got {shapes}")
    count = max(len(M.lo), len(y.lo))
    ends = [end for M, y, *_ in found for end in ((M.lo, y.lo[..., None]), (M.hi, y.hi[..., None]))]
    lo, hi, low, high = (np.concatenate([extended(x, count) for x in pair], axis=-1) for pair in ends)
    p = (math.isqrt(8 * count + 1) - 3) // 2
    i, j = np.triu_indices(p)
    scale = np.concatenate([np.ones(p + 1), np.where(i == j, 0.5, 1.0)])[:, None, None, None]
    with np.errstate(all="ignore"):
        middle = 0.5 * (lo + hi)
        off = np.maximum(hi - middle, middle - lo)
        off[p + 1 :] = np.maximum(high - middle, middle - low)[p + 1 :]
        return middle * scale, np.sum((off + 32 * EPS * np.abs(middle)) * scale, axis=0)


def _host(x: Any) -> np.ndarray:
    found = np.asarray(backends.to_numpy(x) if hasattr(x, "dtype") else x)
    if np.iscomplexobj(found):
        raise ProblemError("certify takes real numbers; got complex ones. Write real parts above imaginary ones")
    return found.astype(np.float64)


class Design:
    """``A(theta) = [M(theta), y(theta)]`` with weights and ridge, over boxes of theta."""

    def __init__(
        self, problem: Problem, shapes: Any, given: Any = None, alike: Sequence[int] = (), simplices: Any = None
    ) -> None:
        _check(problem)
        level = problem.lower
        self.M, self.W, self.shapes, self.batch = level.M, level.W, shapes, BATCH
        self.quotient, self.alike = True, list(alike)  # until these are seen to be none
        self.columns: Any = None  # of entries alike, once they are known
        self.ends: tuple[Any, Any] = (-math.inf if self.W is None else 0.0, math.inf)
        if isinstance(self.W, Bounded):
            self.ends = self.W.lower, self.W.upper
        self.cone = not isinstance(self.W, Bounded) and not level.lam  # then columns have no units
        leaves = (simplices or {}).items()  # those of all that is spent lack their last entry, which has what is left
        self.simplices = [(shapes[1][k][0], radius) for k, (radius, _) in leaves]
        self.spent = {k: radius for k, (radius, spent) in leaves if spent}
        self.data = trees.map_arrays(backends.to_numpy, problem.data)
        self.y: Any = level.y if callable(level.y) else _host(level.y)
        signed = np.shape(given) == (shapes[1][-1][0].stop,) and (np.abs(given) == 1).all()
        if given is not None and (not (callable(given) or signed) or callable(level.y) or self.spent):
            raise ProblemError(
                "bounds must be a function bounds(lower, upper, data) or 1 or -1 for each entry of theta, of a problem "
                f"whose y is an array, with no Simplex; got {given!r}"
            )
        self.given = partial(self.corners, np.asarray(given)) if signed else given
        self.rows = None if level.weights is None else np.sqrt(_host(level.weights))
        self.lam, self.Omega = float(_host(level.lam)), None if level.Omega is None else _host(level.Omega)

    def model(self, theta: Tree, data: Tree) -> tuple[Any, Any]:
        """The design and the target as functions of theta."""
        theta = self.whole(theta)
        y = self.y(theta, data) if callable(self.y) else namespace_of(trees.leaves(theta)[0]).asarray(self.y)
        return self.M(theta, data), y

    def whole(self, theta: Tree) -> Tree:
        """Theta with the last entry of each simplex."""
        leaves, treedef = trees.flatten(theta)
        for k, radius in self.spent.items():
            xp = namespace_of(leaves[k])
            leaves[k] = xp.concat([leaves[k], radius - xp.sum(leaves[k], axis=-1, keepdims=True)], axis=-1)
        return trees.unflatten(treedef, leaves)

    def tree(self, theta: np.ndarray) -> Tree:
        """Of a vector."""
        treedef, parts = self.shapes
        return self.whole(trees.unflatten(treedef, [theta[at].reshape(shape) for at, shape in parts]))

    def design(self, theta: np.ndarray) -> np.ndarray:
        """M as it is computed."""
        with np.errstate(all="ignore"):
            return _host(self.M(self.tree(theta), self.data))

    def bounds(self, lower: np.ndarray, upper: np.ndarray, reach: float) -> Bounds:
        """Those of boxes (b, p), for theta and w with residuals up to `reach`.

        A has forms with the squares of the problem, or fewer: each is for boxes with bounds below its limit so far.
        """
        b, p = lower.shape
        found = Bounds(np.full(b, -np.inf), np.full(b, np.inf), np.zeros((b, p)))
        forms = [(self.cleared, np.inf), (self.taylor, 0.5 * reach**2), (self.divided, 1e-300)]
        forms = forms[not self.quotient :] if self.given is None else [(self.given_values, np.inf)]
        for form, limit in forms:
            at = np.flatnonzero(~(found.lower >= limit))
            if not len(at) or (A := form(lower[at], upper[at])) is None:
                continue
            _, count, m, N = A.terms.shape
            if m < N - 1:
                raise ProblemError(
                    f"certify takes at least as many rows of M and Omega as columns; got {m} and {N - 1}"
                )
            self.batch = int(np.clip(WORK / (count * m * N), 8, BATCH))
            least, most = (np.broadcast_to(_host(x), (N - 1,)) for x in self.ends)
            other = bounds(A, least, most, reach)
            if form != self.cleared:
                found.centre[at] = np.minimum(found.centre[at], other.centre)
            better = other.lower > found.lower[at]
            found.lower[at[better]], found.parts[at[better]] = other.lower[better], other.parts[better]
        return found

    def taylor(self, lower: np.ndarray, upper: np.ndarray, units: bool = True) -> Polynomial:
        """A by its derivatives at the centres, and the enclosures of the second ones over the boxes."""
        then = in_units if units and self.cone else None
        return self.stacked(*_polynomial(enclosed(self.model, lower, upper, self.data, self.shapes, then)))

    def cleared(self, lower: np.ndarray, upper: np.ndarray) -> Polynomial | None:
        """Of a design ``B / q``, rows of ``[B, q y]`` over the largest ``|q|`` of the box: shorter, without poles."""
        found = enclosed(self.model, lower, upper, self.data, self.shapes, cleared)
        if not found[0]:
            self.quotient = False
            return None
        q = found[1][2]
        with np.errstate(all="ignore"):
            factors = (1 - 4 * EPS) / np.maximum(np.abs(q.lo[0]), np.abs(q.hi[0]))[..., None]
            terms, off = _polynomial(found)
            return self.stacked(terms * factors, (off + EPS * np.abs(terms).sum(0)) * factors * (1 + EPS))

    def divided(self, lower: np.ndarray, upper: np.ndarray) -> Polynomial | None:
        """With divided differences for columns of near entries that are alike: they span the same, or more."""
        if self.columns is None:
            self.columns = self.own_columns(lower[0] + (upper - lower)[0] * np.linspace(0.2, 0.8, lower.shape[1]))
        if not self.columns:
            return None
        A, width, run = self.taylor(lower, upper, units=False), upper - lower, np.zeros(len(lower), dtype=int)
        for k, (i, j) in enumerate(itertools.pairwise(self.alike), start=1):
            near = lower[:, j] - upper[:, i] <= 2 * np.maximum(width[:, i], width[:, j])
            run = np.where(near, run + 1, 0)
            for order in (1, 2):
                at = np.flatnonzero(run == order)
                if len(at):
                    self.difference(A, at, lower[at], upper[at], self.alike[k - order : k + 1])
        return A

    def difference(
        self, A: Polynomial, at: np.ndarray, lower: np.ndarray, upper: np.ndarray, entries: list[int]
    ) -> None:
        """Let columns f of the last of these entries be divided differences over them all, in boxes `at` of A.

        Of three entries it is ``f'' / 2`` somewhere in the interval of all. Of two, a and b, it is the mean of f'
        between them: ``f' + f'' ((a + b) / 2 - centre)`` at the centre, but for how much f'' changes. It is in units of
        half the interval, and counts the rounding of f where entries are further apart than 1e-3 of these.
        """
        (*_, i, j), low, high = entries, lower.copy(), upper.copy()
        low[:, j], high[:, j] = lower[:, entries].min(1), upper[:, entries].max(1)
        T, noise = (self.taylor(a, b, units=False) for a, b in ((low, high), (0.5 * (low + high),) * 2))
        (places, reach), (c, half) = halved(lower, upper), (x[:, [j]] for x in halved(low, high))
        shift = (0.5 * (places[:, [i]] + places[:, [j]]) - c) / half
        blur = 16 * EPS * (1 + np.maximum(np.abs(low), np.abs(high))[:, [j]] / half)
        square = 1 + lower.shape[1] + int(np.flatnonzero(np.equal(*np.triu_indices(lower.shape[1])))[j])
        for column in self.columns[j]:
            slope, bend = T.terms[:, 1 + j, :, column], T.terms[:, square, :, column]
            off = T.off[..., column] + 1e3 ** (len(entries) - 1) * noise.off[..., column]
            A.terms[at, :, :, column] = 0.0
            if len(entries) == 3:
                A.terms[at, 0, :, column], A.off[at, :, column] = bend, off
            else:
                A.terms[at, 0, :, column] = slope + 2 * bend * shift
                for entry in (i, j):
                    A.terms[at, 1 + entry, :, column] = bend * reach[:, [entry]] / half
                A.off[at, :, column] = 3 * off + blur * (np.abs(slope) + np.abs(bend))

    def own_columns(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        """Of each entry alike, the columns that have it and no other, if it takes its columns along; else none."""
        if self.W is not None or self.lam or len(self.alike) < 2:
            return {}
        p, q, moved = len(theta), self.alike, theta.copy()
        moved[q] = np.roll(theta[q], 1)
        unknown = np.where(np.eye(p, dtype=bool), np.nan, theta)  # a column without an entry does not see its NaN
        seen = np.stack([np.isnan(self.design(row)).any(0) for row in unknown])
        own = [np.flatnonzero(seen[i] & (seen.sum(0) == 1)) for i in q]
        before, after = self.design(theta), self.design(moved)
        pairs = list(zip(own[-1:] + own[:-1], own, strict=True))
        same = all(len(a) == len(b) > 0 and np.allclose(after[:, b], before[:, a]) for a, b in pairs)
        return dict(zip(q, own, strict=True)) if same else {}

    def corners(self, signs: np.ndarray, lower: np.ndarray, upper: np.ndarray, _data: Tree) -> list[np.ndarray]:
        """M where it is least and where it is largest, by the signs with which it changes with theta."""
        ends = (np.where(signs > 0, *pair) for pair in ((lower, upper), (upper, lower)))
        return [np.stack([self.design(theta) for theta in end]) for end in ends]

    def given_values(self, lower: np.ndarray, upper: np.ndarray) -> Polynomial:
        """A as a constant and what the user's bounds let it differ."""
        given: Any = self.given
        low, high = (_host(x) for x in given(lower, upper, self.data))
        if low.ndim != 3 or low.shape != high.shape or len(low) != len(lower):
            raise ProblemError(f"bounds must return two arrays (b, m, n); got shapes {low.shape} and {high.shape}")
        (b, m, n), p = low.shape, lower.shape[1]
        terms = np.zeros((1 + p + p * (p + 1) // 2, b, m, n + 1))
        terms[0, ..., :n], terms[0, ..., n] = 0.5 * (low + high), self.y
        off = np.concatenate([0.5 * (high - low), np.zeros((b, m, 1))], axis=-1)
        return self.stacked(terms, off + 32 * EPS * np.abs(terms[0]))

    def stacked(self, terms: np.ndarray, off: np.ndarray) -> Polynomial:
        """Rows times the roots of their weights, above those of the ridge."""
        if self.rows is not None:
            terms, off = terms * self.rows[:, None], off * self.rows[:, None]
        if self.lam:
            n = off.shape[-1] - 1
            Omega = np.eye(n) if self.Omega is None else self.Omega
            below = np.zeros((*terms.shape[:2], len(Omega), n + 1))
            below[0, ..., :n] = math.sqrt(self.lam) * Omega
            terms = np.concatenate([terms, below], axis=-2)
            off = np.concatenate([off, 4 * EPS * np.abs(below[0])], axis=-2)
        return Polynomial(terms.swapaxes(0, 1), off)


def _check(problem: Any) -> None:
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must come from xv.separable, or be a fit; got {type(problem).__name__}")
    level = problem.lower
    given = {
        "two levels, or a marginal likelihood": not problem.is_separable or problem.noise is not None,
        "a penalty R": problem.mu,
        f"the loss {level.loss!r}": level.loss is not None,
        "a covariance": level.covariance is not None,
        f"W={level.W!r}": not (level.W is None or isinstance(level.W, Nonnegative | Bounded)),
        f"y of shape {getattr(level.y, 'shape', None)}: one column is certified at a time, as y[:, 0]": not (
            callable(level.y) or getattr(level.y, "ndim", 0) == 1
        ),
        "weights that are no array (m,)": not (level.weights is None or getattr(level.weights, "ndim", 0) == 1),
        "a lam that is no number": callable(level.lam) or getattr(level.lam, "ndim", 0) > 0,
        "an Omega that is no array": not (level.Omega is None or getattr(level.Omega, "ndim", 0) == 2),
    }
    if found := [name for name, wrong in given.items() if wrong]:
        raise ProblemError(
            "certify takes a separable problem of squares with one target, a constant ridge, and w that is free, "
            f"Nonnegative or Bounded; got {found[0]}"
        )
