"""Weights in an affine subspace ``w = w0 + B a``: given as such, by equations, by known or by shared entries."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.checks import shown
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import LowerSolver
from xvarpro.lower.qr import QR
from xvarpro.lower.stack import as_one, joined
from xvarpro.lower.weight_sets._nothing import Nothing
from xvarpro.lower.weight_sets.interface import WeightSet, numbers, taken
from xvarpro.lower.weight_sets.subspace import InSubspace, exchanged, own_rows, units

FEW = 2**12  # products of rows and entries that take no time in fractions


@final
@dataclass(frozen=True)
class Affine(WeightSet):
    """``w = w0 + B a``, with the coefficients `a` free.

    The lower level is solved for `a`; `w` is then the projection of the unconstrained minimiser onto the subspace in
    the norm of ``H = M^H M + lam Omega^H Omega`` (paper, section 3.3), and depends smoothly on M.

    Parameters
    ----------
    w0 : array, shape (n,) or (n, k), or None
        A point of the subspace, one for all right-hand sides or one for each; None is 0.
    B : array, shape (n, r)
        Columns that span its directions, linearly independent, r <= n; none where `w` is w0.

    Raises
    ------
    ProblemError
        Shapes that do not fit, NaN or inf, columns of B that are dependent.

    Examples
    --------
    Two weights that sum to one:

    >>> import numpy as np, xvarpro as xv
    >>> A, y = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([1.0, 1.0, 0.0])
    >>> W = xv.lower.Affine(np.array([1.0, 0.0]), np.array([[1.0], [-1.0]]))
    >>> problem = xv.separable(lambda theta, data: theta * data, y, data=A, W=W)
    >>> xv.solve(problem, np.ones(1), over=xv.sets.Box(1.0, 1.0)).w
    array([0.5, 0.5])
    """

    real = False

    w0: Array | None = None
    B: Array = REQUIRED

    def __post_init__(self) -> None:
        B = numbers("Affine", "B", self.B, 2, empty=True)
        rank = int(np.sum(self._reduced()[1] >= 0))
        if rank < B.shape[1]:
            raise ProblemError(
                f"Affine: the {B.shape[1]} columns of B must be linearly independent, got rank {rank}: leave out "
                "those that follow from others"
            )
        if self.w0 is not None and (got := numbers("Affine", "w0", self.w0, 1, 2)).shape[0] != B.shape[0]:
            raise ProblemError(f"Affine: w0 must have {B.shape[0]} rows, as B has; got {got.shape[0]}")

    @property
    def size(self) -> int:
        return self.B.shape[0]

    @property
    def columns(self) -> int | None:
        return self.w0.shape[1] if self.w0 is not None and self.w0.ndim == 2 else None

    @property
    def linear(self) -> bool:
        return self.w0 is None or not to_numpy(self.w0).any()

    def dimension(self, n: int) -> int:
        return self.B.shape[1]

    @property
    def has_choice(self) -> bool:
        """Some entry depends on others, or goes with one from a point of its own, so that these may change places."""
        rows, columns = (np.count_nonzero(to_numpy(self.B), axis=axis) > 1 for axis in (1, 0))
        return bool(np.any(rows) or (self.w0 is not None and np.any(columns)))

    def resolved(self, lengths: np.ndarray | None = None) -> Affine:
        A, rows = self._reduced()
        B, rows = (A.T, rows) if lengths is None else exchanged(A.T, rows, lengths)
        w0 = np.zeros(self.size) if self.w0 is None else to_numpy(self.w0)
        return _affine(w0 - B @ w0[rows], B)

    def _reduced(self) -> tuple[np.ndarray, np.ndarray]:
        """``B^T`` with the identity in some of its columns, and these."""
        B = to_numpy(self.B)
        rows = own_rows(np, B)
        return (B.T, rows) if np.array_equal(B[rows], np.eye(len(rows))) else eliminated(B.T, len(B))

    def directions(self, w: np.ndarray) -> list[np.ndarray]:
        return [to_numpy(self.resolved().B)]

    def joined(self, k: int) -> Affine:
        xp, B = namespace_of(self.B), self.B
        B = joined(B, xp.eye(k, dtype=B.dtype, device=device(B))[None, :, :])
        return trees.changed(self, B=B, w0=None if self.w0 is None else as_one(self.w0, k))

    def part(self, indices: Array, scale: float) -> Affine:
        return self if self.w0 is None else trees.changed(self, w0=taken(self.w0, indices, scale))

    def solver(self, given: LowerSolver | None) -> LowerSolver:
        inner = Nothing() if self.B.shape[1] == 0 else QR() if given is None else given
        return InSubspace(inner, self.B, self.w0)

    @classmethod
    def examples(cls, n: int) -> tuple[Affine, ...]:
        draw = np.random.default_rng(n)
        B = draw.normal(size=(n, max(1, n - 1)))
        known = Fixed(np.ones(n, bool), 2.0), Fixed(np.array([n - 1]), np.array([0.5]), n)
        return (
            cls(None, B),
            cls(draw.normal(size=n), B),
            cls(draw.normal(size=(n, 3)), B),
            *known,
            Shared(np.arange(n) // 2),
        )


@final
@dataclass(frozen=True)
class Equality(WeightSet):
    """``C w = d``.

    Parameters
    ----------
    C : array, shape (p, n)
        Linearly independent rows, p <= n.
    d : number or array, shape (p,) or (p, k)
        One right-hand side for all columns of w, or one for each.

    Raises
    ------
    ProblemError
        Shapes that do not fit, NaN or inf, equations that contradict each other or follow from each other.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> A, y = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([1.0, 1.0, 0.0])
    >>> W = xv.lower.Equality(np.ones((1, 2)), 1.0)
    >>> problem = xv.separable(lambda theta, data: theta * data, y, data=A, W=W)
    >>> np.round(xv.solve(problem, np.ones(1), over=xv.sets.Box(1.0, 1.0)).w, 12)
    array([0.5, 0.5])
    """

    real = False

    C: Array = REQUIRED
    d: Array | float = 0.0

    def __post_init__(self) -> None:
        C, d = numbers("Equality", "C", self.C, 2), numbers("Equality", "d", self.d, 0, 1, 2)
        p, n = C.shape
        if d.ndim and d.shape[0] != p:
            raise ProblemError(f"Equality: d must have {p} rows, one for each row of C; got {d.shape[0]}")
        reduced, unknowns = self._eliminated()
        follow = unknowns < 0
        if off := np.max(np.abs(reduced[follow, n:]), initial=0.0):
            raise ProblemError(f"Equality: no w satisfies C w = d: the equations contradict each other by {off:.3g}")
        if follow.any():
            raise ProblemError(
                f"Equality: the {p} rows of C are linearly dependent (rank {p - np.sum(follow)}): leave out the "
                "equations that follow from others"
            )

    @property
    def size(self) -> int:
        return self.C.shape[1]

    @property
    def columns(self) -> int | None:
        return self.resolved().columns

    @property
    def linear(self) -> bool:
        return self.resolved().linear

    def dimension(self, n: int) -> int:
        return n - self.C.shape[0]

    def directions(self, w: np.ndarray) -> list[np.ndarray]:
        return self.resolved().directions(w)

    def joined(self, k: int) -> Affine:
        return self.resolved().joined(k)

    def part(self, indices: Array, scale: float) -> WeightSet:
        return self.resolved().part(indices, scale)

    def solver(self, given: LowerSolver | None) -> LowerSolver:
        return self.resolved().solver(given)

    def resolved(self, lengths: np.ndarray | None = None) -> Affine:
        reduced, unknowns = self._eliminated(lengths)
        if np.any(unknowns < 0):  # differences that are less than rounding in these units
            return self.resolved().resolved(lengths)
        n = self.size
        free = np.setdiff1d(np.arange(n), unknowns)
        B = np.zeros((n, free.size), reduced.dtype)
        w0 = np.zeros((n, reduced.shape[1] - n), reduced.dtype)
        B[free], B[unknowns], w0[unknowns] = np.eye(free.size), -reduced[:, free], reduced[:, n:]
        return _affine(w0, B)

    def _eliminated(self, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        C, d = to_numpy(self.C), to_numpy(self.d)
        d = d.reshape(len(C), -1) if d.ndim else np.broadcast_to(d, (len(C), 1))
        return eliminated(np.concatenate([C, d], axis=1), C.shape[1], lengths)

    @classmethod
    def examples(cls, n: int) -> tuple[Equality, ...]:
        return (cls(np.ones((1, n)), 1.0), cls(np.ones((1, n)), np.arange(3.0)[None, :])) if n > 1 else ()


def Fixed(where: Array, values: Array | float = 0.0, n: int | None = None) -> Affine:
    """Some entries of w are known, or all of them: theta is then all that is fitted.

    Parameters
    ----------
    where : array of bool, shape (n,), or of whole numbers
        Which entries: a mask, or their indices.
    values : number or array, shape (f,) or (f, k)
        Their values, in the order of the entries: one for all, one for each, or one for each and each column of w.
    n : int, optional
        The length of w; needed with indices.

    Raises
    ------
    ProblemError
        Indices that are out of range or repeated, shapes that do not fit, NaN or inf.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> W = xv.lower.Fixed(np.array([True, False]), 1.0)
    >>> problem = xv.separable(lambda theta, data: theta * data, np.array([1.0, 3.0]), data=np.eye(2), W=W)
    >>> xv.solve(problem, np.ones(1), over=xv.sets.Box(1.0, 1.0)).w
    array([1., 3.])
    """
    order, n = _entries(where, n)
    known = numbers("Fixed", "values", values, 0, 1, 2)
    if known.ndim and known.shape[0] != order.size:
        raise ProblemError(
            f"Fixed: values must have {order.size} rows, one for each entry that is fixed; got {known.shape[0]}"
        )
    w0 = np.zeros((n, known.shape[1] if known.ndim == 2 else 1), np.result_type(known, np.float32))
    w0[order] = known[:, None] if known.ndim == 1 else known
    return _affine(w0, np.eye(n)[:, np.setdiff1d(np.arange(n), order)])


def _entries(where: Array, n: int | None) -> tuple[np.ndarray, int]:
    found = to_numpy(where)
    if found.ndim == 1 and found.dtype.kind == "b" and n in (None, found.size):
        return np.flatnonzero(found), found.size
    if found.ndim != 1 or found.dtype.kind not in "iu":
        got = shown(where) + (": ravel it" if found.ndim > 1 else "")
        raise ProblemError(f"Fixed: where must be a mask of shape (n,) or a vector of indices, got {got}")
    if not isinstance(n, int) or n < 1:
        raise ProblemError(f"Fixed: indices need the length of w, a whole number >= 1: pass n, got {n!r}")
    if len({int(i) for i in found}) < found.size or not ((found >= 0) & (found < n)).all():
        raise ProblemError(f"Fixed: indices must be different and from 0 to {n - 1}, got {found.tolist()}")
    return found, n


def Shared(groups: Array) -> Affine:
    """Entries of w with the same label are equal.

    Parameters
    ----------
    groups : array of whole numbers, shape (n,)
        The label of each entry.

    Raises
    ------
    ProblemError
        Anything that is no vector of whole numbers.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> W = xv.lower.Shared(np.array([0, 0, 1]))
    >>> problem = xv.separable(lambda theta, data: theta * data, np.array([1.0, 3.0, 5.0]), data=np.eye(3), W=W)
    >>> np.round(xv.solve(problem, np.ones(1), over=xv.sets.Box(1.0, 1.0)).w, 12)
    array([2., 2., 5.])
    """
    labels = to_numpy(groups)
    if labels.ndim != 1 or not labels.size or labels.dtype.kind not in "iu":
        raise ProblemError(f"Shared: groups must be a vector of whole numbers, got {shown(groups)}")
    found, index = np.unique(labels, return_inverse=True)
    return Affine(None, np.eye(found.size)[index])


def _affine(w0: np.ndarray, B: np.ndarray) -> Affine:
    """An `Affine` prepared for a solve: `w0` a matrix, or None where it is 0."""
    return Affine((w0[:, None] if w0.ndim == 1 else w0) if w0.any() else None, B)


def eliminated(A: np.ndarray, n: int, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows with the span of those of A, the identity in some of their first n columns, and these, by row.

    A row that follows from others is 0 there, and has -1. Of the rows that are left the next is the one of which the
    largest entry is most, so that entries keep their digits whatever the units of rows and columns.
    """
    eps = np.finfo(np.result_type(A, np.float32)).eps
    double, given = np.result_type(A, np.float64), A
    A = np.array(A, np.result_type(A, np.longdouble))  # differences of large entries, where there are more digits
    size, columns = np.abs(A), np.full(len(A), -1)  # of the terms of entries
    unit = np.ones(n) if lengths is None else units(lengths)
    while True:
        entries = np.where(np.abs(A) > 8 * len(A) * eps * size, np.abs(A), 0.0)
        left = np.flatnonzero((columns < 0) & np.any(entries[:, :n], axis=1))
        if not left.size:
            A[columns < 0] = np.where(entries > 0, A, 0.0)[columns < 0]
            lost = np.finfo(A.dtype).eps * size > np.finfo(double).eps * np.abs(A)
            if np.any(lost & (A != 0)) and np.all(columns >= 0) and A.size * len(A) <= FEW:
                A = np.where(A == 0, 0.0, _exactly(given, columns))
            return A.astype(double), columns
        shares = entries[left, :n] / unit
        i = left[np.argmin(np.sum(shares / np.max(shares, axis=1, keepdims=True), axis=1))]
        j = columns[i] = np.argmax(entries[i, :n] / unit)
        size[i], A[i] = size[i] / abs(A[i, j]), A[i] / A[i, j]
        others = np.where(np.arange(len(A)) == i, 0.0, A[:, j])[:, None]
        A, size = A - others * A[i], size + np.abs(others) * size[i]
        A[:, :n][np.abs(A[:, :n]) <= 4 * eps * size[:, :n]] = 0.0
        A[:, j] = np.arange(len(A)) == i


def _exactly(A: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The rows with the identity in these columns, in fractions: a complex number is a block of real ones."""
    U = A[:, columns]
    if np.iscomplexobj(A):
        U, A = np.block([[U.real, -U.imag], [U.imag, U.real]]), np.concatenate([A.real, A.imag])
    both = np.concatenate([U, A], axis=1).astype(float)
    E, p = np.vectorize(Fraction, otypes=[object])(both), len(U)
    for j in range(p):
        i = j + np.argmax(np.abs(E[j:, j]))
        E[[i, j]] = E[[j, i]]
        E[j] = E[j] / E[j, j]
        E = E - np.where(np.arange(p) == j, 0, E[:, j])[:, None] * E[j]
    X = E[:, p:].astype(float)
    return X if p == len(columns) else X[: len(columns)] + 1j * X[len(columns) :]
