"""A set for every column of a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

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

    Notes
    -----
    LMO : that of `inner`, column by column
    Cost : that of `inner` per column
    Diameter : ``sqrt(columns) D``, D that of `inner`
    Projection : that of `inner`, column by column

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.Columns(xv.sets.Simplex()).lmo(np.array([[0.0, 2.0], [1.0, 1.0]]))
    array([[1., 0.],
           [0., 1.]])
    """

    inner: Set = field(default_factory=L2Ball)

    event_ndim = 2

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Set) or self.inner.event_ndim > 1:
            raise ProblemError(f"Columns needs a set of vectors, got {self.inner!r}")

    @property
    def polytope(self) -> bool:
        """A product of polytopes is one."""
        return self.inner.polytope

    @property
    def takes_complex(self) -> bool:
        return self.inner.takes_complex

    @property
    def compiles(self) -> bool:
        return self.inner.compiles

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

    def center(self, like: Array) -> Array:
        return _per_column(self.inner.center, like)

    @property
    def has_projection(self) -> bool:
        return self.inner.has_projection

    @property
    def has_faces(self) -> bool:
        return self.inner.has_faces

    def away(self, g: Array, x: Array) -> Array:
        return _per_column(self.inner.away, g, x)

    def tangent(self, d: Array, x: Array) -> Array:
        return _per_column(self.inner.tangent, d, x)

    def reach(self, d: Array, x: Array) -> Array:
        xp = array_namespace(x)
        alpha = self.inner.reach(xp.matrix_transpose(d), xp.matrix_transpose(x))
        return xp.min(alpha, axis=-1) if alpha.ndim else alpha


def _per_column(fun: Callable[..., Array], *arrays: Array) -> Array:
    xp = array_namespace(*arrays)
    return xp.matrix_transpose(fun(*(xp.matrix_transpose(x) for x in arrays)))
