"""A problem's arrays on their way to the backend: by name, in one dtype, checked, each of them once."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from xvarpro.backends import Backend, exchange
from xvarpro.core import trees
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.lower.stack import condition_of, deficient
from xvarpro.objective.least_squares import as_matrix, scaled
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.problem import Level, Problem
from xvarpro.problem.row_chunks import RowChunks, Stream

FLOATS = {"float32": "complex64", "float64": "complex128"}
BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "complex64": 32, "float64": 64, "complex128": 64}


class PrecisionWarning(UserWarning):
    """Data of a wider dtype than theta0 was rounded to theta0's."""


class Transfer:
    """Moves the arrays of a problem, by name, so that a message can name what it is about. `warn`: of rounded data."""

    def __init__(
        self, to: Backend, dtype: str, device: Any, warn: bool = True, tally: exchange.Tally | None = None
    ) -> None:
        self.to, self.dtype, self.device, self.warn, self.tally = to, dtype, device, warn, tally

    def __call__(self, x: Array, name: str, real: bool = False, gaps: bool = False) -> Array:
        """As `cast`; refuses NaN and inf, unless there may be `gaps`."""
        moved = self.cast(x, name, real)
        if exchange.dtype_name(x) in BITS and not gaps:
            self._finite(moved, name)
        return moved

    def cast(self, x: Array, name: str, real: bool = False) -> Array:
        """`real`: whole numbers count as data for arithmetic, not as indices or labels."""
        kind = exchange.dtype_name(x)
        want = None
        if kind in BITS:
            want = FLOATS[self.dtype] if kind.startswith("complex") else self.dtype
            if BITS[kind] > BITS[self.dtype] and self.warn:
                warnings.warn(
                    f"{name} is {kind} and theta0 is {self.dtype}: the solve follows theta0, so {name} is rounded to "
                    f"{want}. Pass theta0 in {kind} to keep its digits",
                    PrecisionWarning,
                    stacklevel=7,
                )
        elif real:
            want = self.dtype
        return exchange.move(x, self.to, dtype=want, device=self.device, tally=self.tally)

    def _finite(self, x: Array, name: str) -> None:
        if not bool(self.to.xp.all(self.to.xp.isfinite(x))):
            raise ProblemError(f"{name} contains NaN or inf")

    def problem(self, problem: Problem) -> Problem:
        single = problem.is_separable
        leaves, treedef = trees.flatten(problem.data)
        names = trees.paths(problem.data, "data")
        data = [self(x, name) if trees.is_array(x) else x for x, name in zip(leaves, names, strict=True)]
        return replace(
            problem,
            lower=self._level(problem.lower, "" if single else "lower."),
            upper=None if problem.upper is None else self._level(problem.upper, "upper."),
            data=trees.unflatten(treedef, data),
        )

    def _level(self, level: Level, prefix: str) -> Level:
        y, Omega, weights = level.y, level.Omega, level.weights
        if trees.is_array(level.lam) or (trees.is_array(y) and y.ndim > 2):
            raise ProblemError(
                f"{prefix}y of three axes, or {prefix}lam of one, states a batch of problems: use xv.solve_many"
            )
        if weights is not None:
            weights = as_matrix(self(weights, f"{prefix}weights", real=True))
            if not bool(self.to.xp.all(weights >= 0)):
                raise ProblemError(f"{prefix}weights must be >= 0: they weigh squared residuals")
        if trees.is_array(y):
            name = f"{prefix}y"
            y = self.weighed(self(y, name, real=True, gaps=weights is not None), weights, name)
        elif isinstance(y, ColumnChunks):
            if weights is not None and weights.shape[1] > 1:
                raise ProblemError(f"{prefix}weights by entry need {prefix}y as an array: its chunks share one design")
            blocks, gaps = y, weights is not None
            y = ColumnChunks(
                lambda: (
                    self.weighed(self(x, f"{prefix}y, chunk {i}", real=True, gaps=gaps), weights, f"chunk {i}")
                    for i, x in enumerate(blocks)
                )
            )
        elif isinstance(y, RowChunks):
            later = Transfer(self.to, self.dtype, self.device, warn=False, tally=self.tally)
            y = replace(y, source=Stream(y, prefix.replace(".", " "), self, later))
        if Omega is not None:
            name = f"{prefix}Omega"
            if trees.is_array(Omega):
                Omega = self(Omega, name, real=True)
                if prefix != "upper.":  # a ridge that only judges need not make anything unique
                    _check_invertible(self.to, Omega, name)
            else:
                Omega = trees.map_arrays(lambda x: self(x, name, real=True), Omega)
        W = level.W
        if W is not None:
            W = trees.map_arrays(
                lambda x: exchange.move(x, self.to, dtype=self._kind(x), device=self.device, tally=self.tally),
                W.resolved(),
            )
        solver = trees.map_arrays(lambda x: self(x, f"{prefix}solver"), level.solver)
        return replace(level, y=y, Omega=Omega, weights=weights, W=W, solver=solver)

    def _kind(self, x: Array) -> str:
        return FLOATS[self.dtype] if exchange.dtype_name(x).startswith("complex") else self.dtype

    def weighed(self, y: Array, weights: Array | None, name: str) -> Array:
        """A target as a matrix, its entries scaled by the roots of their weights."""
        y = as_matrix(y)
        if weights is None:
            return y
        if weights.shape[0] != y.shape[0] or weights.shape[1] not in (1, y.shape[1]):
            raise ProblemError(
                f"weights of shape {tuple(weights.shape)} do not fit {name} of shape {tuple(y.shape)}: "
                "one for each row, or one for each entry"
            )
        xp = self.to.xp
        y = xp.where(xp.broadcast_to(weights > 0, y.shape), y, xp.zeros_like(y))
        self._finite(y, f"{name}, where its weight is not 0,")
        return scaled(y, xp.sqrt(weights))


def _check_invertible(backend: Backend, Omega: Array, name: str) -> None:
    R = backend.qr_r(Omega)
    if bool(deficient(backend, R, R.shape[0])):
        raise ProblemError(
            f"{name} is singular in {backend.dtype_name(Omega)}: its condition, columns scaled to length 1, is "
            f"{float(condition_of(backend, R)):.2g}. The ridge |Omega w|^2 needs an invertible matrix: a difference "
            "operator needs a row for the mean, and a form w^T P w takes a factor of P = Omega^T Omega, which an "
            "indefinite P does not have"
        )
