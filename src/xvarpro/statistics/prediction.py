"""What a model says at a solution: fitted values, residuals, predictions for other data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.backends import exchange
from xvarpro.backends.failures import model_failures
from xvarpro.core import trees
from xvarpro.core.checks import switch
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.transfer import Transfer, destination
from xvarpro.errors import ProblemError
from xvarpro.objective.least_squares import as_matrix
from xvarpro.operators.interface import Operator, as_operator
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.problem import Level, Problem
from xvarpro.problem.row_chunks import RowChunks
from xvarpro.problem.samples import plain
from xvarpro.results.outcome import joined


def predict(problem: Problem, theta: Tree, w: Array, data: Tree, *, mean: bool = False) -> Array:
    """What `Result.predict` returns, of any theta and w: of the level whose residual the objective measures."""
    switch("mean", mean)
    model = _Model(problem, theta)
    return model.returned(next(model.products(w, [data], mean)))


def fitted(problem: Problem, theta: Tree, w: Array, *, mean: bool = False) -> Array:
    """``M(theta) w`` for the problem's own data, all chunks joined, (m,) or (m, k), or the mean that it gives."""
    model = _Model(problem, theta)
    return model.returned(model.fitted(w, mean))


def residuals(problem: Problem, theta: Tree, w: Array) -> Array:
    """``y - M(theta) w``, or y less the mean that a loss expects, unweighted, shaped as `fitted`."""
    model = _Model(problem, theta)
    with model.scope:
        if isinstance(model.level.y, ColumnChunks):
            target = joined(map(model.transfer.plain, model.level.y), axis=1)
            return model.returned(target - model.fitted(w, mean=True))
        return model.returned(joined(model.residuals(w), axis=0))


def by_parts(problem: Problem, theta: Tree, w: Array) -> Iterator[tuple[Tree, np.ndarray, np.ndarray, np.ndarray]]:
    """Data as given, ``M(theta) w``, target and weights, (m, k) each, of all rows or of one chunk after the other.

    As NumPy's numbers in double precision; the target has the prediction for a gap.
    """
    model = _Model(problem, theta)
    for data, target in model.pieces:
        with model.scope:
            moved = model.moved(data)
            y: Any = target(model.theta, moved) if callable(target) else target
            given: Any = model.level.weights
            given = given(moved) if callable(given) else np.ones(1) if given is None else given
            found: Any = (as_matrix(backends.to_numpy(x)) for x in (*model.products(w, [moved]), y, given))
        mu, y, weights = (x.astype(float) for x in found)
        weights = np.broadcast_to(weights, mu.shape)
        yield data, mu, np.where(weights > 0, y, mu), weights


def components(problem: Problem, theta: Tree, w: Array, column: int = 0, supply: Iterable[Tree] | None = None) -> Array:
    """``M_j w_j``, the part of each column of the design in the fit of a right-hand side, shape (m, n).

    For the problem's own data, or for those that are supplied, joined.
    """
    model = _Model(problem, theta)
    supply = (data for data, _ in model.pieces) if supply is None else supply
    with model.scope, model_failures(model.backend):
        w = as_matrix(model.transfer.plain(w))
        parts = (model.design(model.theta, model.moved(data), w, column) * w[:, column] for data in supply)
        return joined(parts, axis=0)


def sensitivities(
    problem: Problem, theta: Tree, w: Array, column: int, supply: Iterable[Tree]
) -> tuple[np.ndarray, np.ndarray]:
    """Derivatives of ``M(theta, data) w`` of a right-hand side by theta, (m, p), and by w, (m, n), for all data."""
    model = _Model(problem, theta)
    leaves, rows = model.leaves, []
    with model.scope, model_failures(model.backend):
        w = as_matrix(model.transfer.plain(w))
        flat = trees.raveled(leaves)
        eye = namespace_of(flat).eye(flat.shape[0], dtype=flat.dtype, device=device(flat))
        for data in supply:
            # as in a solve, arrays of the data are of theta's namespace, whichever of them a model asks for it
            constants, held = trees.partition(model.moved(data))

            def product(*arrays: Array, held: trees.Skeleton = held) -> Leaves:
                theta = trees.unflatten(model.layout.treedef, arrays[: len(leaves)])
                M = model.design(theta, held.fill(arrays[len(leaves) :]), w, column)
                return M @ w[:, column], M

            (_, M), push = model.backend.linearise(product, leaves, constants)
            X = [push(trees.unraveled(eye[j, :], leaves))[0] for j in range(flat.shape[0])]
            rows.append((np.stack([model.backend.to_numpy(x) for x in X], axis=1), model.backend.to_numpy(M)))
    by_theta, by_w = map(np.concatenate, zip(*rows, strict=True))
    return by_theta, by_w


def roots(problem: Problem, rows: int, column: int) -> np.ndarray:
    """Roots of the weights of a right-hand side, (rows,), which give its residuals noise of one size."""
    level: Level = problem.upper or problem.lower
    if level.covariance is not None:
        return np.diagonal(backends.to_numpy(level.covariance)).astype(float) ** -0.5
    if level.weights is None:
        return np.ones(rows)
    y: Any = level.y
    given = joined((level.weights(data) for data, _ in y), 0) if callable(level.weights) else level.weights
    weights = backends.to_numpy(given)
    return np.sqrt(weights if weights.ndim == 1 else weights[:, column % weights.shape[1]], dtype=float)


class _Model:
    """The level whose residual the objective measures, on theta's own framework."""

    def __init__(self, problem: Problem, theta: Tree) -> None:
        to = destination(theta, None, None, None, problem=problem)
        self.level: Level = problem.upper or problem.lower
        self.data = problem.data
        self.backend, self.dtype = to.backend, to.dtype
        self.layout, self.transfer = to.layout, Transfer(to.backend, to.dtype, to.device, warn=False)
        with self.scope:
            self.leaves = tuple(map(self.transfer.plain, to.leaves))
        self.theta = trees.unflatten(to.layout.treedef, self.leaves)

    @property
    def scope(self) -> AbstractContextManager[Any]:
        return self.backend.scope(self.dtype)

    @property
    def pieces(self) -> Iterator[tuple[Tree, Any]]:
        y: Any = self.level.y
        return iter(y if isinstance(y, RowChunks) else [(self.data, y)])

    def operator(self, theta: Tree, data: Tree, w: Array) -> Operator:
        """``M(theta, data)``; designs that are not as many as the right-hand sides would be broadcast to these."""
        M = as_operator(self.level.M(theta, data))
        if M.columns not in (None, k := math.prod(w.shape[1:])):
            raise ProblemError(
                f"M(theta, data) must have shape (m, n), or (k, m, n) with k = {k}, one for each right-hand side; got "
                f"{(M.columns, *M.shape)}. Pass data with axes as in the solve"
            )
        return M

    def design(self, theta: Tree, data: Tree, w: Array, column: int) -> Array:
        """``M(theta, data)`` of a right-hand side as one array, (m, n)."""
        M = self.operator(theta, data, w).dense()
        return M if M.ndim == 2 else M[column, ...]

    def returned(self, x: Array) -> Array:
        """An array as the caller's."""
        return self.layout.array(x, self.backend)

    def fitted(self, w: Array, mean: bool = False) -> Array:
        """``M(theta) w`` for the problem's own data, or the mean that it gives."""
        return joined(self.products(w, (data for data, _ in self.pieces), mean), axis=0)

    def products(self, w: Array, supply: Iterable[Tree], mean: bool = False) -> Iterator[Array]:
        """``M(theta, data) w`` for each of the data, or the mean that it gives."""
        loss = self.level.loss if mean else None
        with self.scope, model_failures(self.backend):
            w = self.transfer.plain(w)
            for data in supply:
                M = self.operator(self.theta, self.moved(data), w)
                if M.shape[1] != w.shape[0]:
                    raise ProblemError(f"w must have {M.shape[1]} rows, one per column of M; got {w.shape[0]}")
                product = M.matvec(as_matrix(w))
                product = product if loss is None else loss.mean(product)
                yield product[:, 0] if w.ndim == 1 else product

    def residuals(self, w: Array) -> Iterator[Array]:
        """The target less its mean, of one pass: another may have the rows in another order."""
        for data, y in self.pieces:
            (mean,) = self.products(w, [data], mean=True)
            yield (y(self.theta, self.moved(data)) if callable(y) else self.transfer.plain(y)) - mean

    def moved(self, data: Tree) -> Tree:
        """Data as arrays of theta's framework."""
        if trees.is_array(data) and isinstance(self.data, dict):
            needed = ", ".join(trees.paths(self.data, "data"))
            raise ProblemError(f"data must hold {needed} as the problem's do; got one array")
        with self.scope:
            leaves, names, treedef = trees.named(exchange.arrays(data, "data"), "data")
            pairs = zip(leaves, names, strict=True)
            cast = [self.transfer.cast(x, n) if trees.is_array(x) else x for x, n in pairs]
            return plain(trees.unflatten(treedef, cast))
