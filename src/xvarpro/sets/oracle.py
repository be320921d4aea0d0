"""Any function as a set."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from xvarpro.core import checks
from xvarpro.core.namespace import is_array
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets._nearest_point import distance_bound
from xvarpro.sets.balls import L1Ball
from xvarpro.sets.interface import Set
from xvarpro.sets.simplex import Simplex


@final
@dataclass(frozen=True)
class Oracle(Set):
    """Any function ``g -> argmin <g, v>`` as a set.

    What is not given is derived from the function: `violation` is a lower bound on the distance, 0 inside; `center` is
    a mixture of eight vertices, which is feasible.

    Parameters
    ----------
    fun : callable
        Takes a gradient and returns a point of the set of its shape, framework and dtype. Leading axes are batch axes.
    width : float, optional
        An upper bound on the diameter, >= 0; inf if not given.
    outside : callable, optional
        ``x -> violation``, batch shape.
    projection : callable, optional
        ``x -> nearest point``.
    ndim : int
        Trailing axes that make one point: 1 for vectors, 2 for matrices.
    vertices : bool
        Whether `fun` returns one of finitely many points.
    compiled : bool
        Whether `fun` runs inside a compiled loop.

    Notes
    -----
    LMO : ``fun(g)``; ties are its own
    Cost : that of `fun`
    Diameter : upper bound, ``width``; inf if not given
    Projection : as given, else none

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> C = xv.sets.Oracle(lambda g: -np.sign(g), width=2.0)
    >>> C.lmo(np.array([3.0, -1.0]))
    array([-1.,  1.])
    """

    fun: Callable[[Array], Array]
    width: float | None = None
    outside: Callable[[Array], Array] | None = None
    projection: Callable[[Array], Array] | None = None
    ndim: int = 1
    vertices: bool = False
    compiled: bool = True

    is_own = True

    def __post_init__(self) -> None:
        for name in ("fun", "outside", "projection"):
            value = getattr(self, name)
            if not callable(value) and (name == "fun" or value is not None):
                raise ProblemError(f"Oracle: {name} must be a function of one array, got {value!r}")
        if self.width is not None:
            checks.nonnegative(self, "width")
        if self.ndim not in (1, 2):
            raise ProblemError(f"Oracle: ndim must be 1 for vectors or 2 for matrices, got {self.ndim!r}")
        for name in ("vertices", "compiled"):
            if not isinstance(getattr(self, name), bool):
                raise ProblemError(f"Oracle: {name} must be True or False, got {getattr(self, name)!r}")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        C = L1Ball(2.0)
        given = cls(C.lmo, C.diameter(np.zeros(shape)), C.violation, C.project, vertices=True)
        return given, cls(Simplex().lmo, Simplex().diameter(np.zeros(shape)), vertices=True)

    @property
    def event_ndim(self) -> int:
        return self.ndim

    @property
    def polytope(self) -> bool:
        return self.vertices

    @property
    def compiles(self) -> bool:
        return self.compiled

    @property
    def has_projection(self) -> bool:
        return self.projection is not None

    def lmo(self, g: Array) -> Array:
        v = self.fun(g)
        if not is_array(v) or v.shape != g.shape or v.dtype != g.dtype:
            raise ProblemError(
                f"Oracle: fun must return an array with the shape and dtype of its argument, {tuple(g.shape)} and "
                f"{g.dtype}; got {checks.described(v)}{f' of dtype {v.dtype}' if is_array(v) else ''}"
            )
        return v

    def project(self, x: Array) -> Array:
        return Set.project(self, x) if self.projection is None else self.projection(x)

    def diameter(self, like: Array) -> float:
        """As given: an upper bound."""
        return math.inf if self.width is None else self.width

    def violation(self, x: Array) -> Array:
        if self.outside is not None:
            return self.outside(x)
        return distance_bound(self, x) / (self.width or 1.0)

    def center(self, like: Array) -> Array:
        return self.random_point(like)
