"""The interface of a set for `w`, or a penalty on it: what a lower level needs beyond least squares."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from xvarpro import backends
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Struct
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import LowerSolver, System
from xvarpro.operators.interface import Operator


class WeightSet(Struct):
    """A closed convex set, column by column, in which the lower level looks for ``w``, shape (n, k).

    The lower level is then ``argmin over w in W of 1/2 |M w - y|^2 + lam/2 |Omega w|^2``, plus a `penalty` on w where
    the class has one.
    """

    penalises: ClassVar[bool] = False  # whether `penalty` may be other than 0
    real: ClassVar[bool] = True  # whether w has no imaginary part in it

    @property
    def size(self) -> int | None:
        """The length n of w that the set is made for; None where it fits any."""
        return None

    @property
    def columns(self) -> int | None:
        """The number k of right-hand sides that it is made for; None where it fits any."""
        return None

    @property
    def linear(self) -> bool:
        """Whether w V is in the set for every w in it and every matrix V: then right-hand sides may be compressed."""
        return False

    def dimension(self, n: int) -> int:
        """Unknowns per right-hand side that the set leaves of `n`."""
        return n

    def check(self, n: int, k: int | None) -> None:
        """Raise `ProblemError` if weights of shape (n, k) cannot lie in the set; an unknown `k` is None."""
        name = type(self).__name__
        if self.size not in (None, n):
            raise ProblemError(
                f"{name} must be made for length {n}, the number of columns of M(theta); got {self.size}"
            )
        if self.columns not in (None, 1) and k not in (None, self.columns):
            raise ProblemError(
                f"{name} must have one column, or one for each of the {k} right-hand sides of y; got {self.columns}"
            )

    def penalty(self, w: Array) -> Array | float:
        """What `w` adds to the level, 0-d."""
        return 0.0

    @abstractmethod
    def directions(self, w: np.ndarray) -> list[np.ndarray]:
        """Columns, (n, r), that span the directions in which a solution may move: one for all columns of w, or each.

        Among the rows of each are all of the identity.
        """

    def resolved(self, lengths: np.ndarray | None = None) -> WeightSet:
        """The same set, prepared for a solve: on the host, for a design with columns of these lengths, (n,)."""
        return self

    @property
    def has_choice(self) -> bool:
        """Whether it is resolved to something else for other lengths."""
        return False

    def joined(self, k: int) -> WeightSet | None:
        """The set of one column that has all k columns of w, row by row; None where that is none of these sets."""
        return None

    def part(self, indices: Array, scale: float) -> WeightSet:
        """The set of `scale` times the columns at `indices`: what goes with ``scale * y[:, indices]``."""
        return self

    @abstractmethod
    def solver(self, given: LowerSolver | None) -> LowerSolver:
        """What solves the lower level within the set; `given` is what the user asked for, and may be refused."""

    @classmethod
    @abstractmethod
    def examples(cls, n: int) -> tuple[WeightSet, ...]:
        """Instances for weights of length `n`: what the contract suite tests."""


# -- parameters --------------------------------------------------------------------------------------------------------


def numbers(owner: str, name: str, value: Any, *ndims: int, finite: bool = True, empty: bool = False) -> np.ndarray:
    """The values of a parameter; `ProblemError` for one that is no array of numbers with that many axes.

    One that may be `empty` may have no columns.
    """
    try:
        values = backends.to_numpy(value)
    except (TypeError, ValueError):
        values = np.asarray(None)
    bad = (
        values.dtype.kind not in "iufc"
        or values.ndim not in ndims
        or 0 in values.shape[: 1 if empty else None]
        or np.isnan(values).any()
    )
    if bad or (finite and not np.isfinite(values).all()):
        shapes = {0: "a number", 1: "a vector", 2: "a matrix"}
        wanted = " or ".join(shapes[d] for d in ndims)
        marked = getattr(value, "of_problems", False)
        got = "Each" if marked else repr(value)
        got = f"shape {values.shape}, {values.dtype}" if values.dtype.kind in "iufc" else got
        got += ". Bounds of each problem, xv.Each, are for theta alone: W is the same for all" if marked else ""
        numeric = "finite numbers" if finite else "numbers, none of them NaN"
        raise ProblemError(f"{owner}: {name} must be {wanted} of {numeric}, got {got}")
    return values


def refuse_solver(owner: WeightSet, given: LowerSolver | None) -> None:
    """Raise `ProblemError` where a solver is given to a set that has its own."""
    if given is not None:
        raise ProblemError(
            f"{type(owner).__name__} needs a level without solver=, since it has its own; got solver={given!r}"
        )


def one_design(system: System) -> Operator:
    """Refuse a design or a ridge per right-hand side: a set is solved for with one factorisation."""
    columns = system.M.columns or system.ridge.columns
    if columns is not None:
        raise ProblemError(
            f"W needs one design and one ridge for all right-hand sides; got {columns}, one for each: solve for each "
            "by itself, or leave out W"
        )
    return system.M


def taken(x: Array, indices: Array, scale: float) -> Array:
    """``scale * x`` at some of its columns; of a single one, which is for all, at that one."""
    if x.ndim == 2 and x.shape[1] > 1:
        x = namespace_of(x).take(x, indices, axis=1)
    return scale * x
