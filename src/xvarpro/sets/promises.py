"""Whether a set keeps what its methods promise, by the inequalities that define an oracle and a projection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.backends import Backend
from xvarpro.core.namespace import device, dtype_name
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets.interface import Set
from xvarpro.sets.region import event

DRAWN = 8  # gradients, and as many mixtures of their vertices


def check(C: Set, shape: tuple[int, ...], backend: str | Backend | None = None) -> None:
    """Check a set of your own: that its methods keep what the interface promises.

    Gradients and points are drawn at random, always the same. What is looked at, in this order: no point that is
    known has a smaller ``<g, s>`` than ``lmo(g)``; what `lmo` returns, and mixtures of it, have no `violation`;
    `center` is a point of the set; `diameter` is no smaller than a distance of two points; points beyond the minimum
    of `lmo` have a violation; where `violation` ends along rays from the center, `lmo` has points as far out; and of
    `project`, where the class defines it, ``<x - P, s - P> <= 0`` for all points s, which only the nearest point P
    fulfils, and ``<P - x, s>`` is no smaller at P than at ``lmo(P - x)``.

    Parameters
    ----------
    C : Set
    shape : tuple of int
        Of the leaf of theta that the set shall hold.
    backend : str or Backend, optional
        Whose arrays the methods are given; NumPy's by default.

    Raises
    ------
    ProblemError
        Naming the class, the first property that does not hold, and the numbers. Properties hold to half of the
        digits: what is wrong is rarely wrong by less.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.sets.check(xv.sets.Simplex(2.0), (5,))
    >>> xv.sets.check(xv.sets.Oracle(lambda g: np.sign(g)), (5,))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    xvarpro.errors.ProblemError: Oracle: lmo(g) must minimise <g, s> over the set; got 1.54 at lmo(g), and 1.06 at...
    """
    if not isinstance(C, Set):
        raise ProblemError(f"check needs a set, an object of a class derived from xv.sets.Set; got {type(C).__name__}")
    if not (isinstance(shape, tuple | list) and all(isinstance(n, int | np.integer) for n in shape)):
        got = type(shape).__name__
        raise ProblemError(f"shape must be a tuple of integers; got {got}. Of an array pass its shape, theta0.shape")
    C.check(tuple(shape))
    target = backend if isinstance(backend, Backend) else backends.get(backend or "numpy")
    with target.scope("float64"):
        check_promises(C, target, target.asarray(np.zeros(shape)))


class Promises:
    """The methods of a set on NumPy's arrays, each answer checked; `like` is a leaf that the set holds."""

    def __init__(self, C: Set, backend: Backend, like: Array) -> None:
        self.C, self.backend, self.like = C, backend, event(C, like)
        self.name = type(C).__name__
        self.tol = 10 * float(np.finfo(dtype_name(like)).eps) ** 0.5

    def lmo(self, g: np.ndarray) -> tuple[np.ndarray, float]:
        """A minimiser of ``<g, s>``, and by how much it may miss the minimum."""
        v, hidden = self.C.certified(self._array(g))
        return self._numpy(v, "lmo"), 0.0 if hidden is None else float(np.sum(self.backend.to_numpy(hidden)))

    def project(self, x: np.ndarray) -> np.ndarray:
        """The nearest point."""
        return self._numpy(self.C.project(self._array(x)), "project")

    def center(self) -> np.ndarray:
        """The centre."""
        return self._numpy(self.C.center(self.like), "center")

    def violation(self, x: np.ndarray) -> float:
        """How far a point is outside."""
        return float(np.max(self.backend.to_numpy(self.C.violation(self._array(x)))))

    def is_member(self, x: np.ndarray, what: str, advice: str) -> None:
        """Check that a point lies in the set."""
        off = self.violation(x)
        if not off <= self.tol:
            raise ProblemError(
                f"{self.name}: {what} must lie in the set, with a violation of 0; got one of {off:.3g}. {advice}"
            )

    def is_minimiser(self, g: np.ndarray, points: Iterable[np.ndarray]) -> None:
        """Check that no point has a smaller ``<g, s>`` than what the oracle returns."""
        v, hidden = self.lmo(g)
        for x in points:
            least, other = np.vdot(g, v).real, np.vdot(g, x).real
            size = np.linalg.norm(g) * (np.linalg.norm(v) + np.linalg.norm(x))
            if not least - hidden <= other + self.tol * size:
                raise ProblemError(
                    f"{self.name}: lmo(g) must minimise <g, s> over the set; got {least:.3g} at lmo(g), and "
                    f"{other:.3g} at another point of the set. Its sign may be wrong: a minimum is wanted. Or "
                    "violation is 0 beyond the set"
                )

    def is_nearest(self, x: np.ndarray, points: Iterable[np.ndarray] = ()) -> None:
        """Check the projection of x by its variational inequality, at what the oracle finds and at `points`."""
        p = self.project(x)
        ahead = [self.lmo(p - x)[0]] if self.C.bounded else []
        for s in (*ahead, *points):
            found = np.vdot(x - p, s - p).real
            size = np.linalg.norm(x - p) + np.linalg.norm(s - p)
            length = np.linalg.norm(x) + np.linalg.norm(s) + np.linalg.norm(p)
            if not found <= self.tol * size * length:
                nearer = np.linalg.norm(x - s)
                raise ProblemError(
                    f"{self.name}: project(x) must be the nearest point of the set, where <x - P, s - P> <= 0 for all "
                    f"of its points s; got {found:.3g} at distance {np.linalg.norm(x - p):.3g} from x, for a point s "
                    f"of the set at distance {nearer:.3g}"
                )

    def _array(self, x: np.ndarray) -> Array:
        return self.backend.asarray(x.astype(dtype_name(self.like)), device=device(self.like))

    def _numpy(self, x: Any, method: str) -> np.ndarray:
        shape = getattr(x, "shape", None)
        if shape != self.like.shape or dtype_name(x) != dtype_name(self.like):
            got = type(x).__name__ if shape is None else f"{tuple(shape)} and {dtype_name(x)}"
            raise ProblemError(
                f"{self.name}: {method} must return an array with the shape and dtype of its argument, "
                f"{tuple(self.like.shape)} and {dtype_name(self.like)}; got {got}"
            )
        return self.backend.to_numpy(x).astype(np.float64)


def check_promises(C: Set, backend: Backend, like: Array) -> None:
    """As `check`, with arrays like one of a backend, inside its scope."""
    of, draw = Promises(C, backend, like), np.random.default_rng(0)
    shape = tuple(of.like.shape)
    g = draw.normal(size=(DRAWN // 2, *shape))
    g = np.concatenate([g, -g])
    if C.bounded:
        vertices = np.stack([of.lmo(x)[0] for x in (*g, 0 * g[0])])
    else:
        vertices = np.stack([of.project(x) for x in g])
    mixtures = np.tensordot(draw.dirichlet(np.ones(len(vertices)), DRAWN), vertices, axes=1)
    points = [*vertices, *mixtures]
    for x in g if C.bounded else ():
        of.is_minimiser(x, points)
    for x in points:
        of.is_member(x, "what lmo returns, and mixtures of it," if C.bounded else "project(x)", "See violation(x)")
    c = of.center()
    of.is_member(c, "center", "The default is the origin: define center(like)")
    points.append(c)
    if C.bounded:
        for x in g:
            of.is_minimiser(x, [c])
        distance, width = max(np.linalg.norm(x - y) for x in points for y in points), float(C.diameter(of.like))
        if not distance <= width + of.tol * max(np.linalg.norm(x) for x in points):
            raise ProblemError(
                f"{of.name}: diameter must be the largest distance of two points of the set, or more; got {width:.3g}, "
                f"and two points at distance {distance:.3g}"
            )
    largest = max(np.linalg.norm(x) for x in points)
    spread = max(np.linalg.norm(x - c) for x in points)
    size = spread if spread > of.tol * largest else largest or 1.0  # a set may be a point
    ways = [size * x / np.linalg.norm(x) for x in g]
    for way, v in zip(ways, vertices, strict=False) if C.bounded else ():
        if not of.violation(v - way) > 0:
            raise ProblemError(
                f"{of.name}: violation must be more than 0 outside of the set; got {of.violation(v - way):.3g} at "
                "a point beyond the minimum of <g, s>"
            )
    for x in (*mixtures[: DRAWN // 2], of.backend.to_numpy(of.like)) if C.bounded else ():
        way = 2 * size * (x - c) / max(np.linalg.norm(x - c), of.tol * size)
        inside = (s for s in (c + 0.8**k * way for k in range(12)) if of.violation(s) <= of.tol**2)  # rounding at most
        end = next(inside, c)
        of.is_minimiser(c - end, [end])
    if C.has_projection:
        for x in (*points, *(c + t * way for way in ways for t in (0.1, 1.0, 10.0))):
            of.is_nearest(x, points)
            p = of.project(x)
            of.is_member(p, "project(x)", "See project and violation")
            if C.bounded:
                of.is_minimiser(p - x, [p])
