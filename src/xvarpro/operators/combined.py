"""Products and sums of designs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, final

from xvarpro.core.struct import Array
from xvarpro.core.trees import sum_
from xvarpro.errors import ProblemError
from xvarpro.operators._conversion import common_columns, dense_forms, parts_of
from xvarpro.operators.interface import Dense, Operator, drawn


@final
@dataclass(frozen=True, init=False)
class Composition(Operator):
    """``A B ...``: the last one acts first. Solved by its dense form.

    Parameters
    ----------
    *factors : operators or arrays
        Each as wide as the next is high.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> M = xv.operators.Composition(np.ones((1, 2)), xv.operators.Diagonal(np.array([2.0, 3.0])))
    >>> M.matvec(np.ones((2, 1)))
    array([[5.]])
    """

    factors: tuple[Any, ...]

    def __init__(self, *factors: Any) -> None:
        parts = parts_of("Composition", factors)
        shapes = [tuple(f.shape) for f in parts]
        if any(a[1] != b[0] for a, b in pairwise(shapes)):
            raise ProblemError(f"Composition needs factors that fit, each as wide as the next is high: got {shapes}")
        object.__setattr__(self, "factors", parts)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.factors[0].shape[0], self.factors[-1].shape[1]) if self.factors else (0, 0)

    @property
    def columns(self) -> int | None:
        return common_columns("Composition", self.factors)

    def matvec(self, w: Array) -> Array:
        return reduce(lambda x, f: f.matvec(x), reversed(self.factors), w)

    def rmatvec(self, r: Array) -> Array:
        return reduce(lambda x, f: f.rmatvec(x), self.factors, r)

    def outer(self, r: Array, w: Array) -> Composition:
        ahead = [w]  # what each factor is applied to, the last one first
        for f in reversed(self.factors[1:]):
            ahead.append(f.matvec(ahead[-1]))
        found = []
        for f, x in zip(self.factors, reversed(ahead), strict=True):
            found.append(f.outer(r, x))
            r = f.rmatvec(r) if len(found) < len(self.factors) else r
        return Composition(*found)

    @property
    def explicit(self) -> bool:
        return all(factor.explicit for factor in self.factors)

    def dense(self) -> Array:
        return reduce(lambda A, B: A @ B, dense_forms(self.factors))

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        m, n = shape
        inner = max(m, n)
        three = cls(drawn(m, inner), 2 + drawn(inner, inner), drawn(inner, n, seed=1))
        return cls(drawn(*shape)), three, cls(drawn(m, inner), Dense(drawn(2, inner, n)))


@final
@dataclass(frozen=True, init=False)
class Sum(Operator):
    """``A + B + ...``. Solved by its dense form.

    Parameters
    ----------
    *terms : operators or arrays, all of shape (m, n)

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> M = xv.operators.Sum(np.ones((2, 2)), xv.operators.Diagonal(np.array([2.0, 3.0])))
    >>> M.matvec(np.ones((2, 1)))[:, 0]
    array([4., 5.])
    """

    terms: tuple[Any, ...]

    def __init__(self, *terms: Any) -> None:
        parts = parts_of("Sum", terms)
        if len({tuple(t.shape) for t in parts}) > 1:
            raise ProblemError(f"Sum needs terms of one shape, got {[tuple(t.shape) for t in parts]}")
        object.__setattr__(self, "terms", parts)

    @property
    def shape(self) -> tuple[int, int]:
        return self.terms[0].shape if self.terms else (0, 0)

    @property
    def columns(self) -> int | None:
        return common_columns("Sum", self.terms)

    def matvec(self, w: Array) -> Array:
        return sum_(t.matvec(w) for t in self.terms)

    def rmatvec(self, r: Array) -> Array:
        return sum_(t.rmatvec(r) for t in self.terms)

    def outer(self, r: Array, w: Array) -> Sum:
        return Sum(*(t.outer(r, w) for t in self.terms))

    @property
    def explicit(self) -> bool:
        return all(term.explicit for term in self.terms)

    def dense(self) -> Array:
        return sum_(dense_forms(self.terms))

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        return cls(drawn(*shape), drawn(*shape, seed=1)), cls(drawn(*shape), Dense(drawn(2, *shape)))
