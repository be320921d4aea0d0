"""The atom of a search at many places at once, with its derivatives, on the backend that the data are of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.backends import Backend, exchange
from xvarpro.backends.failures import model_failures
from xvarpro.core import trees
from xvarpro.core.checks import described, shown
from xvarpro.core.namespace import is_complex, namespace_of
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.transfer import Transfer, destination
from xvarpro.errors import ModelError, ProblemError
from xvarpro.sets import Box
from xvarpro.statistics.frames import on_host
from xvarpro.statistics.names import entry_names

Atom = Callable[[Tree, Tree], Array]
IMAGE = "The pixels of an image are rows: pass y.ravel(), (m,), and raveled coordinates; (m, k) are k responses"
ADVICE = (
    "Compute with xp = xv.array_namespace(theta), which has the leaves of over: components are along their first axis"
)


@dataclass(frozen=True)
class Design:
    """The columns of all components, and the fixed ones that data hold too, as a design of `xv.separable`."""

    atom: Atom
    normalise: bool
    fixed_columns: int  # the second of a pair of data, which without them are no pair

    def __call__(self, theta: Tree, data: Tree) -> Array:
        pair = "data of a fit with fixed columns are a pair, as in predict((x, columns)), with as many rows each; got"
        if self.fixed_columns and not (isinstance(data, tuple) and len(data) == 2):
            raise ModelError(f"{pair} {described(data)}")
        own, columns = data if self.fixed_columns else (data, None)
        A = self.atom(theta, own)
        xp = namespace_of(A)
        if self.normalise:
            A = A / xp.sqrt(xp.sum(xp.real(A * xp.conj(A)) if is_complex(A) else A * A, axis=0))
        A = xp.reshape(A, (A.shape[0], -1))
        if columns is None:
            return A
        columns = columns if columns.ndim == 2 else columns[:, None]
        if columns.shape[0] != A.shape[0]:
            raise ModelError(f"{pair} {A.shape[0]} rows for x, and {columns.shape[0]} of columns")
        return xp.concat([A, xp.astype(columns, A.dtype)], axis=1)


class Atoms:
    """The atom, its box, and the data in the form that a search computes with, as NumPy's arrays.

    Rows are multiplied by the `root` of the weights; where amplitudes are `real` and numbers complex, imaginary parts
    are rows of their own. `Y` (m, k) is off the `basis` (m, f) of the fixed columns, a component is between `lower` and
    `upper` (p,) and has `block` columns.
    """

    def __init__(
        self, atom: Atom, y: Any, data: Tree, over: Any, weights: Any, fixed: Any, real: bool, normalise: bool,
        backend: str | Backend | None, device: Any, dtype: str | None,
    ) -> None:  # fmt: skip
        if not callable(atom):
            raise ProblemError(f"atom must be a function atom(theta, data) -> (m, n); got {described(atom)}")
        y, weights, fixed = (exchange.numbers(x, s) for x, s in ((y, "y"), (weights, "weights"), (fixed, "columns")))
        if not trees.is_array(y) or y.ndim not in (1, 2):
            raise ProblemError(f"y must be an array of shape (m,) or (m, k); got {described(y)}. {IMAGE}")
        m, real_y = y.shape[0], namespace_of(y).real(y) if is_complex(y) else y
        _, _, self.backend, self.dtype, self.device, _ = destination(real_y, backend, device, dtype)
        self._cast = Transfer(self.backend, self.dtype, self.device, warn=False).cast
        self.atom, self.normalise, self.y, self.weights = atom, normalise, y, weights
        self.data = exchange.arrays(data, "data")
        self._arrays, self._skeleton = trees.partition(trees.map_leaves(self._move, self.data))
        self.sets, self.treedef, self.names, self.shapes, self.lower, self.upper = _boxes(over)
        shapes = f"({m},), one per row of y: leave rows with gaps out by 0", f"({m},) or ({m}, f) for the rows of y"
        for name, x, most, shape in zip(("weights", "columns"), (weights, fixed), (1, 2), shapes, strict=True):
            if x is not None and not (trees.is_array(x) and 0 < x.ndim <= most and x.shape[0] == m):
                raise ProblemError(f"{name} must have shape {shape}; got {described(x)}. {IMAGE}")
        squares = np.ones(m) if weights is None else _host(weights)
        if not (np.isfinite(squares).all() and (squares >= 0).all()):
            raise ProblemError("weights must be finite and >= 0; got others. A weight of 0 leaves a row out")
        root, host = np.sqrt(squares)[:, None], _host(y).reshape(m, -1)
        if not np.isfinite(host[root[:, 0] > 0]).all():
            raise ProblemError("y must be finite where its weight is not 0; got NaN or inf. Give such rows weights=0")
        A = self._evaluate(np.stack([self.lower, 0.5 * (self.lower + self.upper), self.upper]), False)[0]
        self._check(A, m)
        self.block, numbers = A.shape[2], np.iscomplexobj(A) or np.iscomplexobj(host)
        self.stacked, self.complex = numbers and real, numbers and not real
        columns = np.zeros((m, 0)) if fixed is None else fixed if fixed.ndim == 2 else fixed[:, None]
        self.given, self._known = self._move(columns), (host, _host(columns))
        self._weigh(root)

    def _weigh(self, root: np.ndarray) -> None:
        self.root, (y, fixed) = root, self._known
        self.numbers = int((root > 0).sum()) * y.shape[1] * (1 + np.iscomplexobj(y))
        self.target, self.offsets = self._rows(y), self._rows(fixed)
        U, s, _ = np.linalg.svd(self.offsets, full_matrices=False)
        self.basis = U[:, s > 1e-10 * s.max(initial=0.0)]
        self.Y = off(self.basis, self.target)

    def without(self, rows: np.ndarray) -> Atoms:
        """The same, with weights of 0 for some rows (m,)."""
        other = copy(self)
        other._weigh(np.where(rows[:, None], 0.0, self.root))
        return other

    def missed(self, X: np.ndarray, w: np.ndarray, seen: Atoms) -> np.ndarray:
        """The squares that places X and amplitudes w leave, which were fitted to what is `seen`, in the other rows."""
        raw = self._evaluate(X, False)[0] if len(X) else np.zeros((0, len(self.root), self.block))
        A, S = self._rows(raw), seen._rows(raw)
        size = np.linalg.norm(S, axis=1) if self.normalise else np.ones(S.shape[::2])
        w = w / np.where(size > 0, size, 1.0).reshape(-1, 1)
        left, known = (x.target - y.transpose(1, 0, 2).reshape(y.shape[1], -1) @ w for x, y in ((self, A), (seen, S)))
        left = left - self.offsets @ np.linalg.lstsq(seen.offsets, known, rcond=None)[0]
        held = np.tile((seen.root < self.root)[:, 0], 1 + self.stacked)
        squares: np.ndarray = np.abs(left[held]) ** 2
        return squares

    def tree(self, X: np.ndarray) -> Tree:
        """Places (n, p) as theta of n components, leaves (n, ...)."""
        parts = np.split(X, np.cumsum([math.prod(s) for s in self.shapes])[:-1], axis=1)
        leaves = [self._move(x.reshape(len(X), *s)) for x, s in zip(parts, self.shapes, strict=True)]
        return trees.unflatten(self.treedef, leaves)

    def places(self, theta: Tree) -> np.ndarray:
        """The inverse of `tree`."""
        leaves = [_host(x) for x in trees.leaves(theta)]
        return np.concatenate([x.reshape(len(x), math.prod(x.shape[1:])) for x in leaves], axis=1)

    def columns(self, X: np.ndarray, basis: np.ndarray, slopes: bool = False) -> tuple[np.ndarray, Any]:
        """Columns at places X (n, p), (n, m, b), off an orthonormal `basis`; on request their slopes (n, p, m, b)."""
        A, D = self._evaluate(X, slopes)
        A, D = self._rows(A), None if D is None else self._rows(D)
        if self.normalise:
            size = np.linalg.norm(A, axis=1, keepdims=True)
            size = np.where(size > 0, size, 1.0)
            A = A / size
            if D is not None:
                along = np.sum(A.conj()[:, None] * D, axis=2, keepdims=True).real
                D = (D - along * A[:, None]) / size[:, None]
        return off(basis, A), None if D is None else off(basis, D)

    def _evaluate(self, X: np.ndarray, slopes: bool) -> tuple[np.ndarray, Any]:
        def fun(*operands: Array) -> Leaves:
            theta, arrays = operands[: len(self.shapes)], operands[len(self.shapes) :]
            return (self.atom(trees.unflatten(self.treedef, theta), self._skeleton.fill(arrays)),)

        def leaves(X: np.ndarray) -> Leaves:
            return tuple(trees.leaves(self.tree(X)))

        def host(A: Array) -> np.ndarray:
            return _host(_blocks(A, len(X))).transpose(1, 0, 2)

        with self.backend.scope(self.dtype), model_failures(self.backend, f"{ADVICE}. {IMAGE}", what="atom"):
            if not slopes:
                return host(fun(*leaves(X), *self._arrays)[0]), None
            (A,), push = self.backend.linearise(fun, leaves(X), self._arrays)
            # a column depends on its own place alone: one tangent moves all places
            moved = [host(push(leaves(e + 0 * X))[0]) for e in np.eye(X.shape[1])]
            return host(A), np.stack(moved, axis=1)

    def _check(self, A: np.ndarray, m: int) -> None:
        if A.shape[1] != m:
            raise ModelError(f"atom must return columns with the {m} rows of y; got {A.shape[1]}. {IMAGE}")
        alone = np.concatenate([self._evaluate(x[None], False)[0] for x in (self.lower, self.upper)])
        apart = np.abs(alone - A[[0, 2]]).max(initial=0.0, where=np.isfinite(A[[0, 2]]))
        if not apart <= 1e-4 * np.abs(A[np.isfinite(A)]).max(initial=0.0):
            raise ModelError(
                "atom must return a column for each component that depends on its own entries of theta alone; got "
                f"columns that differ by {apart:.2g} where other components are there too"
            )

    def _move(self, x: Any) -> Any:
        with self.backend.scope(self.dtype):
            return self._cast(x, "data") if trees.is_array(x) else x

    def _rows(self, A: np.ndarray) -> np.ndarray:
        A = np.where(self.root > 0, self.root * A, 0.0)
        return np.concatenate([A.real, A.imag], axis=-2) if self.stacked else A


def off(basis: np.ndarray, A: np.ndarray) -> np.ndarray:
    """What an orthonormal basis (m, f) leaves of columns (..., m, b)."""
    left: np.ndarray = A - basis @ (basis.conj().T @ A) if basis.shape[1] else A
    return left


def _host(x: Array) -> np.ndarray:
    host = backends.to_numpy(x)
    return host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)


def _blocks(A: Any, n: int) -> Any:
    """What an atom returned as (m, n, b)."""
    if not trees.is_array(A) or A.ndim not in (2, 3) or A.shape[1] != n:
        raise ModelError(
            f"atom must return columns of shape (m, n) for n components, or (m, n, b) for blocks of b; got "
            f"{described(A)} for n = {n}. {ADVICE}. {IMAGE}"
        )
    return A if A.ndim == 3 else namespace_of(A).expand_dims(A, axis=2)


def _boxes(over: Any) -> tuple[Any, Any, list[str], list[tuple[int, ...]], np.ndarray, np.ndarray]:
    """Boxes, structure, names of entries, shapes and bounds of the theta of one component."""

    def box(x: Any) -> Box:
        x = Box(*x) if isinstance(x, tuple) and len(x) == 2 else x
        if not isinstance(x, Box) or not x.bounded:
            raise ProblemError(
                "over must be a Box with finite bounds of the theta of one component, a pair (lower, upper), or a dict "
                f"of these; got {shown(x)}"
            )
        return x

    def ends(x: Box) -> np.ndarray:
        return np.stack(np.broadcast_arrays(*(np.asarray(on_host(b), dtype=float) for b in (x.lower, x.upper))))

    sets = {key: box(x) for key, x in over.items()} if isinstance(over, Mapping) else box(over)
    leaves, treedef = trees.flatten({k: ends(x) for k, x in sets.items()} if isinstance(sets, dict) else ends(sets))
    low, high = (np.concatenate([x[i].ravel() for x in leaves] or [np.zeros(0)]) for i in (0, 1))
    if not low.size or (low == high).any():
        raise ProblemError("over must leave every entry of theta room, lower < upper; got an entry without")
    names = entry_names(trees.unflatten(treedef, [x[0] for x in leaves]))
    return sets, treedef, names, [x.shape[1:] for x in leaves], low, high
