"""The least-squares problem of a level as a polynomial over boxes of theta."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.certificate.enclosures import Enclosure, cleared, enclosed, extended, in_units
from xvarpro.certificate.intervals import EPS
from xvarpro.certificate.relaxation import Bounds, Polynomial, bounds
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.lower import Bounded, Nonnegative
from xvarpro.problem.problem import Problem

WORK, BATCH = 3e5, 256  # numbers in the terms of a round, and its boxes


def _polynomial(M: Enclosure, y: Enclosure) -> tuple[np.ndarray, np.ndarray]:
    """Terms and what they miss, of a design and a target at the centres and over the boxes."""
    if M.ndim != 3 or y.ndim != 2:
        shapes = f"{M.shape[1:]} and {y.shape[1:]}"
        raise ProblemError(f"certify takes an array M of shape (m, n) and a target of shape (m,); got {shapes}")
    count, b = max(len(M.lo), len(y.lo)), M.shape[0] // 2
    pairs = ((M.lo, y.lo[..., None]), (M.hi, y.hi[..., None]))
    ends = [np.concatenate([extended(x, count) for x in pair], axis=-1) for pair in pairs]
    (lo, low), (hi, high) = ((x[:, :b], x[:, b:]) for x in ends)
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

    def __init__(self, problem: Problem, shapes: Any, given: Callable[..., tuple[Array, Array]] | None = None) -> None:
        _check(problem)
        level = problem.lower
        self.M, self.W, self.shapes, self.given, self.batch = level.M, level.W, shapes, given, BATCH
        self.quotient = True  # until it is seen to be none
        self.ends: tuple[Any, Any] = (-math.inf if self.W is None else 0.0, math.inf)
        if isinstance(self.W, Bounded):
            self.ends = self.W.lower, self.W.upper
        self.cone = not isinstance(self.W, Bounded) and not level.lam  # then columns have no units
        self.data = trees.map_arrays(backends.to_numpy, problem.data)
        self.y: Any = level.y if callable(level.y) else _host(level.y)
        if given is not None and (not callable(given) or callable(level.y)):
            raise ProblemError("bounds must be a function bounds(lower, upper, data), of a problem whose y is an array")
        self.rows = None if level.weights is None else np.sqrt(_host(level.weights))
        self.lam, self.Omega = float(_host(level.lam)), None if level.Omega is None else _host(level.Omega)

    def model(self, theta: Tree, data: Tree) -> tuple[Any, Any]:
        """The design and the target as functions of theta."""
        y = self.y(theta, data) if callable(self.y) else namespace_of(trees.leaves(theta)[0]).asarray(self.y)
        return self.M(theta, data), y

    def bounds(self, lower: np.ndarray, upper: np.ndarray, reach: float) -> Bounds:
        """Those of boxes (b, p), for theta and w with residuals up to `reach`: of one form of A after another.

        The next form is for boxes that the last one leaves with a bound below its limit.
        """
        b, p = lower.shape
        found = Bounds(np.full(b, -np.inf), np.full(b, np.inf), np.zeros((b, p)))
        for form, limit in self.forms(0.5 * reach**2):
            at = np.flatnonzero(~(found.lower >= limit))
            if not len(at) or (A := form(lower[at], upper[at])) is None:
                continue
            _, count, m, N = A.terms.shape
            if m < N - 1:
                raise ProblemError(f"certify takes at least as many rows of M and Omega as columns; got {m} and {N - 1}")
            self.batch = int(np.clip(WORK / (count * m * N), 8, BATCH))
            least, most = (np.broadcast_to(_host(x), (N - 1,)) for x in self.ends)
            other = bounds(A, least, most, reach)
            if form != self.cleared:
                found.centre[at] = np.minimum(found.centre[at], other.centre)
            better = other.lower > found.lower[at]
            found.lower[at[better]], found.parts[at[better]] = other.lower[better], other.parts[better]
        return found

    def forms(self, value: float) -> list[tuple[Callable[..., Polynomial | None], float]]:
        """Functions of boxes that have the least squares of the problem, or fewer, each with a limit."""
        if self.given is not None:
            return [(self.given_values, np.inf)]
        return [(self.cleared, value), (self.taylor, value)]

    def taylor(self, lower: np.ndarray, upper: np.ndarray) -> Polynomial:
        """A by its derivatives at the centres, and the enclosures of the second ones over the boxes."""
        M, y = enclosed(self.model, lower, upper, self.data, self.shapes)
        return self.stacked(*_polynomial(in_units(M) if self.cone else M, y))

    def cleared(self, lower: np.ndarray, upper: np.ndarray) -> Polynomial | None:
        """Of a design ``B / q``, rows of ``[B, q y]`` over the largest ``|q|`` in the box: no longer, and without poles."""
        found = cleared(*enclosed(self.model, lower, upper, self.data, self.shapes)) if self.quotient else []
        self.quotient = bool(found)
        if not found:
            return None
        q = found[2][len(lower) :]
        with np.errstate(all="ignore"):
            factors = (1 - 4 * EPS) / np.maximum(np.abs(q.lo[0]), np.abs(q.hi[0]))[..., None]
            terms, off = _polynomial(*found[:2])
            return self.stacked(terms * factors, (off + EPS * np.abs(terms).sum(0)) * factors * (1 + EPS))

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
        "a target that is no array (m,) and no function": not (callable(level.y) or getattr(level.y, "ndim", 0) == 1),
        "weights that are no array (m,)": not (level.weights is None or getattr(level.weights, "ndim", 0) == 1),
        "a lam that is no number": callable(level.lam) or getattr(level.lam, "ndim", 0) > 0,
        "an Omega that is no array": not (level.Omega is None or getattr(level.Omega, "ndim", 0) == 2),
    }
    if found := [name for name, wrong in given.items() if wrong]:
        raise ProblemError(
            "certify takes a separable problem of squares with one target, a constant ridge, and w that is free, "
            f"Nonnegative or Bounded; got {found[0]}"
        )
