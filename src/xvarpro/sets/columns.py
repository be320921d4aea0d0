"""A set for every column of a matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, final

from array_api_compat import array_namespace

from xvarpro.errors import ProblemError
from xvarpro.protocols import Array, Set
from xvarpro.sets.balls import L2Ball


@final
@dataclass(frozen=True)
class Columns(Set):
    """Matrices each of whose columns lies in `inner`: the product of one `inner` per column.

    Parameters
    ----------
    inner : Set
        A vector set or an elementwise one.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Columns(xv.sets.Simplex()).lmo(np.array([[0.0, 2.0], [1.0, 1.0]]))
    array([[1., 0.],
           [0., 1.]])
    """

    inner: Set = field(default_factory=L2Ball)

    event_ndim: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Set) or self.inner.event_ndim > 1:
            raise ProblemError(f"Columns needs a set of vectors, got {self.inner!r}")

    @property
    def polytope(self) -> bool:  # type: ignore[override]
        """A product of polytopes is one."""
        return self.inner.polytope

    def check(self, shape: tuple[int, ...]) -> None:
        if len(shape) < 2:
            raise ProblemError(f"Columns constrains a matrix: theta's leaf must have 2 or more axes, got shape {shape}")
        self.inner.check((shape[-2],))

    def lmo(self, g: Array) -> Array:
        return _per_column(self.inner.lmo, g)

    def project(self, x: Array) -> Array:
        return _per_column(self.inner.project, x)

    def diameter(self, like: Array) -> float:
        return math.sqrt(like.shape[-1]) * self.inner.diameter(like[..., :, 0])

    def violation(self, x: Array) -> Array:
        xp = array_namespace(x)
        worst = self.inner.violation(xp.matrix_transpose(x))
        return xp.max(worst, axis=-1) if worst.ndim else worst


def _per_column(fun, x: Array) -> Array:  # type: ignore[no-untyped-def]
    xp = array_namespace(x)
    return xp.matrix_transpose(fun(xp.matrix_transpose(x)))
