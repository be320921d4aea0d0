"""Every set that `xvarpro.sets` exports, by what it promises.

What is compared are answers to gradients and points that every precision holds exactly. A tie is made of entries 0,
1 and 2, whose sums, means over 4 and quotients by the largest are exact: no rounding decides what is tied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from xvarpro import sets
from xvarpro.conformance.suite import Inapplicable, Measured, Target, alternate, check, exported, held
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import BackendNotInstalledError, ProblemError
from xvarpro.sets.interface import Set

SIZE = 4
TIED = CLEAR = 8
SOME = slice(TIED // 2, TIED + CLEAR // 2)  # those that are asked in other units
FAR = 2.0**100  # 1.3e30: what both precisions can be asked
BOUND = 2e-3  # a violation may be a bound that is good to a part in a thousand


@dataclass(frozen=True, eq=False)
class Case:
    """A set, the shape of one event, and the precisions in which it represents its class where sets are compiled."""

    C: Set
    shape: tuple[int, ...]
    turn: tuple[str, ...]

    @property
    def rounding(self) -> float:
        """In eps: a decomposition costs more digits than a comparison."""
        return float((200 if self.C.event_ndim == 2 else 40) * np.sqrt(np.prod(self.shape)))

    @property
    def ruled(self) -> bool:
        """Whether ties have a rule; equal singular values are equal up to rounding, and any vector is right."""
        return self.C.event_ndim < 2 or (self.C.polytope and self.C.compiles)

    @property
    def single(self) -> int:
        """The gradient that is asked by itself, too: one with ties where there is a rule for them."""
        return TIED - 1 if self.ruled else TIED

    @property
    def diameter(self) -> float:
        """Of the set, for one event."""
        return self.C.diameter(np.zeros(self.shape))


@cache
def cases() -> dict[str, Case]:
    """Every example that a class offers, of the first shape that it accepts; a newcomer is found by its export."""
    found: dict[str, Case] = {}
    for kind in exported(sets, Set):
        found |= {f"{kind.__name__} {i}": case for i, case in enumerate(_examples(kind))}
    return found


def _examples(kind: type[Set]) -> list[Case]:
    for shape in ((SIZE,), (SIZE, 3), (SIZE, SIZE)):
        fit = [C for C in kind.examples(shape) if C.event_ndim in (0, len(shape)) and _takes(C, shape)]
        if fit:
            turn = alternate(sets.__all__.index(kind.__name__))  # in which the first is compiled, for all of its class
            return [Case(C, shape, () if i else turn) for i, C in enumerate(fit)]
    return []


def _takes(C: Set, shape: tuple[int, ...]) -> bool:
    try:
        C.check(shape)
    except ProblemError:
        return False
    return True


def _with(offer: str) -> Callable[[], dict[str, Case]]:
    """The cases whose sets offer something."""
    return lambda: {name: case for name, case in cases().items() if getattr(case.C, offer)}


# -- what is asked -----------------------------------------------------------------------------------------------------


@cache
def gradients(shape: tuple[int, ...]) -> np.ndarray:
    """`TIED` gradients that are full of ties, then `CLEAR` ones that have none."""
    draw = np.random.default_rng(0)
    tied = draw.choice([-2.0, -1.0, 0.0, 2.0], size=(TIED, *shape))
    return np.concatenate([tied, held(2 * draw.normal(size=(CLEAR, *shape)))])


@cache
def starts(shape: tuple[int, ...]) -> np.ndarray:
    """Points to project: near, around and far away."""
    x = 3 * np.random.default_rng(2).normal(size=(9, *shape))
    x[::3] = np.round(x[::3])
    return held(x * np.repeat([2.0**-10, 1.0, 2.0**10], 3).reshape(-1, *(1,) * len(shape)))


def _vertices(case: Case) -> np.ndarray:
    return np.asarray(case.C.lmo(gradients(case.shape)[::3]))


def inside(case: Case) -> np.ndarray:
    """Vertices, points between two of them, and between three."""
    v = _vertices(case)
    return np.concatenate([v[:2], 0.5 * v[:2] + 0.5 * v[2:4], 0.5 * v[:2] + 0.25 * v[1:3] + 0.25 * v[3:5]])


def outside(case: Case) -> np.ndarray:
    """Points fifty times as far from the centre as a vertex."""
    center = case.C.center(np.zeros(case.shape))
    return center + 50 * (_vertices(case) - center)


# -- what is answered: one program for each set and precision, whatever the number of checks that look at it -----------


class Answers(NamedTuple):
    """What a set says to gradients, to the same in other units, to none, to one by itself, and to points."""

    vertices: np.ndarray
    up: np.ndarray  # FAR g
    down: np.ndarray  # g / FAR
    idle: np.ndarray  # 0 g
    alone: np.ndarray
    center: np.ndarray
    random: np.ndarray
    support: np.ndarray
    violations: tuple[np.ndarray, ...]  # of the vertices, inside, outside, not finite
    dtypes: tuple[str, ...]


def _ask(C: Set, g: Array, one: Array, *points: Array) -> tuple[Array, ...]:
    xp = namespace_of(g)
    some = g[SOME, ...]
    v = C.lmo(xp.concat([g, FAR * some, some / FAR, 0 * g[:1, ...]]))
    answers = v, C.lmo(one), C.center(one), C.random_point(one, 3), C.support(g)
    if C.event_ndim == 0:  # one violation for whatever it is given
        return *answers, *(C.violation(x) for x in (v, *points))
    return *answers, C.violation(xp.concat([v, *points]))


def answers(target: Target, case: Case) -> Answers:
    """The oracle's part of a set."""
    g = gradients(case.shape)
    lost = np.stack([np.where(np.arange(g[0].size).reshape(case.shape) == 2, x, g[-1]) for x in (np.nan, np.inf)])
    asked = inside(case), outside(case), lost
    found = _on(target, case).typed(_ask, case.C, g, g[case.single], *asked)
    v, alone, center, random, support, *violations = found.values
    n, some = len(g), len(g[SOME])
    vertices, up, down, idle = np.split(v, [n, n + some, n + 2 * some])
    if case.C.event_ndim:
        violations = np.split(violations[0], np.cumsum([len(v), *map(len, asked[:-1])]))
    return Answers(vertices, up, down, idle, alone, center, random, support, tuple(violations), found.dtypes)


def _project(C: Set, x: Array) -> Array:
    return C.project(x)


def projections(target: Target, case: Case) -> np.ndarray:
    """Of `starts`, then of `inside`."""
    return _on(target, case).compute(_project, case.C, np.concatenate([starts(case.shape), inside(case)]))


def _faces(C: Set, g: Array, d: Array, x: Array) -> tuple[Array, ...]:
    tangent, toward = C.tangent(d, x), C.lmo(g) - x
    return C.away(g, x), tangent, toward, C.reach(tangent, x), C.reach(toward, x), C.slide(d, x)


def faces(target: Target, case: Case) -> tuple[np.ndarray, ...]:
    """What the face of each of `inside` allows."""
    g = gradients(case.shape)[TIED:]
    x = inside(case)
    return _on(target, case).compute(_faces, case.C, g[: len(x)], g[-len(x) :], x)


def _lmo(C: Set, g: Array) -> Array:
    return C.lmo(g)


def _on(target: Target, case: Case) -> Target:
    return target if case.C.compiles else target.eager


def _of(what: Callable[[Target, Case], Any], target: Target, case: Case) -> Any:
    target.represent(case.turn)
    try:
        return target.once(what, case)
    except BackendNotInstalledError as error:  # a host solver
        raise Inapplicable(str(error)) from error


def _both(what: Callable[[Target, Case], Any], target: Target, case: Case) -> tuple[Any, Any]:
    return _of(what, target, case), _of(what, target.reference, case)


def _inner(g: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.sum(np.real(np.conj(g) * v), axis=tuple(range(1, g.ndim)))


# -- what is promised --------------------------------------------------------------------------------------------------


@check("sets", cases)
def oracle(target: Target, case: Case) -> Iterator[Measured]:
    """Vertices equal NumPy's in double precision, and ties are broken alike."""
    got, want = (x.vertices for x in _both(answers, target, case))
    g, tolerance = gradients(case.shape), case.rounding * target.eps
    if case.ruled:
        yield Measured("vertices where there are ties", got[:TIED], want[:TIED], 8 * tolerance)
    yield Measured("vertices", got[TIED:], want[TIED:], 8 * tolerance)
    yield Measured("<g, v>", _inner(g, got), _inner(g, want), tolerance)


@check("sets", cases)
def scale_of_the_gradient(target: Target, case: Case) -> Iterator[Measured]:
    """The oracle depends on the direction only: gradients from 1e-30 to 1e30 have the same vertex."""
    got = _of(answers, target, case)
    g, want, tolerance = gradients(case.shape)[SOME], got.vertices[SOME], case.rounding * target.eps
    ruled = slice(0 if case.ruled else TIED - SOME.start, None)
    for name, v in (("times 2^100", got.up), ("times 2^-100", got.down)):
        yield Measured(f"vertices, {name}", v[ruled], want[ruled], 8 * tolerance)
        yield Measured(f"<g, v>, {name}", _inner(g, v), _inner(g, want), tolerance)


@check("sets", cases)
def gradient_of_zero(target: Target, case: Case) -> Iterator[Measured]:
    """The vertex of a zero gradient is feasible, and equals NumPy's where ties have a rule."""
    got, want = _both(answers, target, case)
    yield Measured("finite", bool(np.isfinite(got.idle).all()), True)
    outside = case.C.violation(got.idle)
    yield Measured("violation", outside, np.zeros_like(outside), case.rounding * target.eps, 1.0)
    if case.ruled:
        yield Measured("point", got.idle, want.idle, 8 * case.rounding * target.eps)


@check("sets", cases)
def support(target: Target, case: Case) -> Iterator[Measured]:
    """The support function equals NumPy's in double precision."""
    got, want = _both(answers, target, case)
    size = float(np.linalg.norm(gradients(case.shape)) * (case.diameter + np.linalg.norm(want.vertices[0])))
    yield Measured("support", got.support, want.support, case.rounding * target.eps, max(size, 1.0))


@check("sets", cases)
def feasibility(target: Target, case: Case) -> Iterator[Measured]:
    """Vertices violate nothing; points far outside and points that are not finite do."""
    got, want = _both(answers, target, case)
    tolerance = case.rounding * target.eps
    for name, some in zip(("vertices", "points inside"), got.violations, strict=False):
        yield Measured(f"violation of {name}", some, np.zeros_like(some), tolerance, 1.0)
    far, lost = got.violations[2:]
    yield Measured("violation outside", far, want.violations[2], max(tolerance, BOUND))
    yield Measured("what is not finite is no member", bool(np.any(lost <= 1e-9)), False)


@check("sets", cases)
def precision(target: Target, case: Case) -> Iterator[Measured]:
    """Points, support and violation have the precision of the gradient."""
    found = _of(answers, target, case).dtypes
    yield Measured("precision", found, (target.dtype,) * len(found))


@check("sets", cases)
def batches(target: Target, case: Case) -> Iterator[Measured]:
    """A gradient alone has the vertex that it has in a batch, to rounding."""
    if case.C.event_ndim == 0:
        raise Inapplicable("an elementwise set has no batch axes")
    got = _of(answers, target, case)
    yield Measured("vertex", got.alone, got.vertices[case.single], 8 * case.rounding * target.eps)


@check("sets", cases)
def centre_and_diameter(target: Target, case: Case) -> Iterator[Measured]:
    """The centre lies in the set; centre and diameter equal NumPy's."""
    got, want = _both(answers, target, case)
    tolerance = 8 * case.rounding * target.eps
    yield Measured("centre", got.center, want.center, tolerance, max(1.0, case.diameter))
    with target.scope():
        diameter = target.send_tree(case.C).diameter(target.send(np.zeros(case.shape)))
    yield Measured("diameter", diameter, case.diameter, tolerance)


@check("sets", cases)
def random_points(target: Target, case: Case) -> Iterator[Measured]:
    """The same seed gives the same point on every backend, and it is feasible."""
    got, want = _both(answers, target, case)
    yield Measured("point", got.random, want.random, 8 * case.rounding * target.eps, max(1.0, case.diameter))
    with target.reference.scope():
        outside = case.C.violation(got.random)
    yield Measured("violation", outside, np.zeros_like(outside), case.rounding * target.eps, 1.0)


@check("sets", _with("has_projection"))
def projection(target: Target, case: Case) -> Iterator[Measured]:
    """Projections equal NumPy's, and NumPy's oracle certifies that they are the nearest points."""
    p, want = _both(projections, target, case)
    x, tolerance = starts(case.shape), case.rounding * target.eps
    size, n = float(np.linalg.norm(x)) + case.diameter, len(x)
    for name, some in (
        ("near", slice(0, 3)),
        ("around", slice(3, 6)),
        ("far", slice(6, 9)),
        ("inside", slice(n, None)),
    ):
        # what is rounded has the size of the point, or of the set
        span = max(case.diameter, *(float(np.linalg.norm(y)) for y in (x[some], want[some])))
        yield Measured(f"projections of points {name}", p[some], want[some], tolerance, span)
    with target.reference.scope():
        outside, y = case.C.violation(p), case.C.lmo(p[:n] - x)
    yield Measured("violation", outside, np.zeros_like(outside), tolerance * size, 1.0)
    ahead = np.maximum(_inner(x - p[:n], y - p[:n]), 0.0)
    lengths = np.sqrt(_inner(x, x)) + 1
    yield Measured(
        "<x - Px, v - Px> <= 0", ahead / (lengths * (lengths + case.diameter)), 0 * ahead, 4 * tolerance, 1.0
    )


@check("sets", _with("has_faces"))
def faces_of_points(target: Target, case: Case) -> Iterator[Measured]:
    """The away vertex, the directions within a face, their reach and their end equal NumPy's."""
    (away, tangent, _, *reach, end), (left, stays, ahead, *far, there) = _both(faces, target, case)
    tolerance, size = 8 * case.rounding * target.eps, max(case.diameter, 1.0)
    yield Measured("vertices to leave", away, left, tolerance)
    yield Measured("tangents", tangent, stays, tolerance, size)
    for i, (name, d) in enumerate((("along a tangent", stays), ("towards a vertex", ahead))):
        moves = np.linalg.norm(d.reshape(len(d), -1), axis=1) > 1e-3 * size
        some = moves if np.ndim(far[i]) else ()
        yield Measured(f"reach {name}", np.asarray(reach[i])[some], np.asarray(far[i])[some], tolerance)
    yield Measured("slides", end, there, tolerance, size)


@check("sets", _with("takes_complex"))
def complex_gradients(target: Target, case: Case) -> Iterator[Measured]:
    """Points for complex gradients equal NumPy's in double precision."""
    target.represent(case.turn)
    g = gradients(case.shape)[TIED:]
    g = g + 1j * g[::-1]
    got, want = (_on(t, case).compute(_lmo, case.C, g) for t in (target, target.reference))
    yield Measured("points", got, want, 8 * case.rounding * target.eps)
    yield Measured("Re <g, v>", _inner(g, got), _inner(g, want), case.rounding * target.eps)
