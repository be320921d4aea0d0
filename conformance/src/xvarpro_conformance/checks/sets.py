"""Every set that `xvarpro.sets` exports, by its definition.

What is asked are gradients and points that every precision holds exactly. A tie is made of entries 0, 1 and 2, whose
sums, means over 4 and quotients by the largest are exact: no rounding decides what is tied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from xvarpro import sets
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import BackendNotInstalledError, ProblemError
from xvarpro.sets.interface import Set
from xvarpro_conformance.problems import held
from xvarpro_conformance.references import sets as reference
from xvarpro_conformance.references.sets import inner
from xvarpro_conformance.suite import Inapplicable, Measured, Target, alternate, check, exported

SIZE = 4
TIED = CLEAR = 8
NEAR = 4
SOME = slice(TIED // 2, TIED + CLEAR // 2)  # those that are asked in other units
FAR = 2.0**100  # 1.3e30: what both precisions can be asked
LITTLE = 2.0**-10  # of a gradient whose entries are 0, 1 and 2
BOUND = 2e-3  # a violation may be a bound that is good to a part in a thousand


@dataclass(frozen=True, eq=False)
class Case:
    """A set, the shape of one event, and the precisions in which it represents its class where sets are compiled."""

    C: Set
    shape: tuple[int, ...]
    turn: tuple[str, ...] = ("float64", "float32")

    @cached_property
    def known(self) -> reference.Known:
        """What the set is by definition."""
        return reference.known(self.C, self.shape)

    @cached_property
    def diameter(self) -> float:
        """Of the set, for one event."""
        return reference.diameter(self.C, self.shape)

    @cached_property
    def vertices(self) -> np.ndarray:
        """Those for `gradients`."""
        return self.of(gradients(self.shape))

    @cached_property
    def size(self) -> float:
        """Of what is rounded: a point of the set, or the set."""
        return max(1.0, self.diameter, float(np.abs(self.vertices).max()))

    def of(self, g: np.ndarray) -> np.ndarray:
        """The vertices for gradients (n, *event), by NumPy."""
        return np.asarray(self.C.lmo(g))

    def inner(self, g: np.ndarray, v: np.ndarray) -> np.ndarray:
        """``Re <g, v>`` of each of (n, *event)."""
        return inner(g, v, len(self.shape))

    @property
    def rounding(self) -> float:
        """In eps: a decomposition costs more digits than a comparison."""
        return float((200 if self.C.event_ndim >= 2 else 40) * np.sqrt(np.prod(self.shape)))

    @property
    def ruled(self) -> bool:
        """Whether ties have a rule; equal singular values are equal up to rounding, and any vector is right."""
        return self.C.event_ndim < 2 or (self.C.polytope and self.C.compiles)

    @property
    def single(self) -> int:
        """The gradient that is asked by itself, too: one with ties where there is a rule for them."""
        return TIED - 1 if self.ruled else TIED


@cache
def cases() -> dict[str, Case]:
    """Every example that a class offers, of the first shape that it accepts; a newcomer is found by its export."""
    found: dict[str, Case] = {}
    for kind in exported(sets, Set):
        found |= {f"{kind.__name__} {i}": case for i, case in enumerate(_examples(kind))}
    return found


# with sizes and middles that the examples of their classes leave at 1 and 0
MORE: tuple[Set, ...] = (
    sets.Box(np.array([-1.0, 0.0, 2.0, -3.0]), np.array([1.0, 4.0, 2.5, -3.0])),
    sets.CappedSimplex(0.5),
    sets.Columns(sets.Hypersimplex(2, 0.5)),
    sets.L1Ball(2.5),
    sets.L2Ball(0.5, np.linspace(-1.0, 2.0, SIZE)),
    sets.LinfBall(0.75),
    sets.NonnegativeL2Ball(2.5),
    sets.Rows(sets.KSparsePolytope(2, 0.5)),
    sets.Simplex(3.0),
)


def _examples(kind: type[Set]) -> list[Case]:
    for shape in ((SIZE,), (SIZE, 3), (SIZE, SIZE), (SIZE, 2, 1, 1)):
        fit = [
            C
            for C in (*kind.examples(shape), *(C for C in MORE if type(C) is kind))
            if C.event_ndim in (0, len(shape)) and _takes(C, shape)
        ]
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


def offering(offer: str) -> Callable[[], dict[str, Case]]:
    """The cases whose sets offer something."""
    return lambda: {name: case for name, case in cases().items() if getattr(case.C, offer)}


# -- what is asked -----------------------------------------------------------------------------------------------------


@cache
def gradients(shape: tuple[int, ...]) -> np.ndarray:
    """`TIED` gradients that are full of ties, then `CLEAR` ones that have none."""
    draw = np.random.default_rng(0)
    tied = draw.choice([-2.0, -1.0, 0.0, 2.0], size=(TIED, *shape))
    tied[0], tied[1] = 1.0, -1.0
    tied[2] = np.where(np.arange(tied[0].size).reshape(shape) == 1, -1.0, -0.0)
    return np.concatenate([tied, held(2 * draw.normal(size=(CLEAR, *shape)))])


@cache
def near(shape: tuple[int, ...], eps: float) -> np.ndarray:
    """Gradients whose entries are equal but for a few hundred roundings: in half of the digits they would tie."""
    size, draw = int(np.prod(shape)), np.random.default_rng(1)
    found = []
    for sign in (1.0, -1.0, np.where(np.arange(size) % 2, 1.0, -1.0), draw.choice([-1.0, 1.0], size)):
        apart = 2.0 ** (np.arange(size) % 4) * 256 * eps
        found.append(sign * (1 - draw.permutation(apart)))
    return np.array(found).reshape(NEAR, *shape)


@cache
def starts(shape: tuple[int, ...]) -> np.ndarray:
    """Points to project: near, around and far away."""
    x = 3 * np.random.default_rng(2).normal(size=(9, *shape))
    x[::3] = np.round(x[::3])
    return held(x * np.repeat([2.0**-10, 1.0, 2.0**10], 3).reshape(-1, *(1,) * len(shape)))


def inside(case: Case) -> np.ndarray:
    """Vertices, points between two of them, and between three."""
    v = case.vertices[::3]
    return np.concatenate([v[:2], 0.5 * v[:2] + 0.5 * v[2:4], 0.5 * v[:2] + 0.25 * v[1:3] + 0.25 * v[3:5]])


def outside(case: Case, times: float = 50.0) -> np.ndarray:
    """Points so many times as far from the middle of the vertices as these are."""
    v = case.vertices[::3]
    return v.mean(axis=0) + times * (v - v.mean(axis=0))


def astride(case: Case) -> np.ndarray:
    """Points in and out of the set by a part of its size."""
    x = inside(case)
    away = np.random.default_rng(3).normal(size=x.shape)
    return held(x + 2.0**-5 * case.size * away)


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
    violations: tuple[np.ndarray, ...]  # of the vertices, inside, astride, outside, not finite
    dtypes: tuple[str, ...]


def _ask(C: Set, g: Array, one: Array, *points: Array) -> tuple[Array, ...]:
    xp = namespace_of(g)
    some = g[SOME, ...]
    asked = xp.concat([g, FAR * some, some / FAR, 0 * g[:2, ...]])
    v = xp.reshape(C.lmo(xp.reshape(asked, (2, -1, *one.shape))), asked.shape)  # two batch axes
    answers = v, C.lmo(one), C.center(one), C.random_point(one, 3), C.support(g)
    if C.event_ndim == 0:  # one violation for whatever it is given
        return *answers, *(C.violation(x) for x in (v, *points))
    return *answers, C.violation(xp.concat([v, *points]))


def asked(target: Target, case: Case) -> np.ndarray:
    """The gradients that a target is asked."""
    return np.concatenate([gradients(case.shape), near(case.shape, target.eps)])


def answers(target: Target, case: Case) -> Answers:
    """The oracle's part of a set."""
    g = asked(target, case)
    lost = np.stack([np.where(np.arange(g[0].size).reshape(case.shape) == 2, x, g[-1]) for x in (np.nan, np.inf)])
    points = inside(case), astride(case), outside(case), lost
    found = on(target, case).typed(_ask, case.C, g, g[case.single], *points)
    v, alone, center, random, support, *violations = found.values
    n, some = len(g), len(g[SOME])
    vertices, up, down, idle = np.split(v, [n, n + some, n + 2 * some])
    if case.C.event_ndim:
        violations = np.split(violations[0], np.cumsum([len(v), *map(len, points[:-1])]))
    return Answers(vertices, up, down, idle, alone, center, random, support, tuple(violations), found.dtypes)


def project_to(C: Set, x: Array) -> Array:
    """A projection as a function to compile."""
    return C.project(x)


def to_project(target: Target, case: Case) -> np.ndarray:
    """`starts`, points that are out of the set by half of the digits, then `inside`."""
    return np.concatenate([starts(case.shape), outside(case, 1 + target.eps**0.5), inside(case)])


def projections(target: Target, case: Case) -> np.ndarray:
    """Of `to_project`."""
    return on(target, case).compute(project_to, case.C, to_project(target, case))


def _faces(C: Set, g: Array, d: Array, x: Array) -> tuple[Array, ...]:
    tangent, toward = C.tangent(d, x), C.lmo(g) - x
    return C.away(g, x), tangent, toward, C.reach(tangent, x), C.reach(toward, x), C.slide(d, x)


class OnFaces(NamedTuple):
    """Points on faces of all dimensions, gradients and directions there."""

    x: np.ndarray
    g: np.ndarray
    d: np.ndarray


@cache
def on_faces(case: Case) -> OnFaces:
    """Mixtures of one to four vertices."""
    vertices, draw = reference.polytope(case.C, *case.shape).vertices, np.random.default_rng(4)
    mixtures = ([1.0],) * 3 + ([0.5, 0.5],) * 4 + ([0.5, 0.25, 0.25],) * 4 + ([0.25] * 4,) * 4
    x = [m @ vertices[draw.permutation(len(vertices))[: len(m)]] for m in mixtures if len(m) <= len(vertices)]
    g, d = held(draw.normal(size=(2, len(x), *case.shape)))
    return OnFaces(np.array(x), g, d)


def faces(target: Target, case: Case) -> tuple[np.ndarray, ...]:
    """What the face of each of `on_faces` allows."""
    x, g, d = on_faces(case)
    return on(target, case).compute(_faces, case.C, g, d, x)


def _complex(C: Set, g: Array) -> tuple[Array, Array]:
    return C.lmo(g), C.support(g)


def on(target: Target, case: Case) -> Target:
    """The target, without its compiler where the set is solved for on the host."""
    return target if case.C.compiles else target.eager


def _of(what: Callable[[Target, Case], Any], target: Target, case: Case) -> Any:
    target.represent(case.turn)
    try:
        return target.once(what, case)
    except BackendNotInstalledError as error:  # a host solver
        raise Inapplicable(str(error)) from error


def least(case: Case, g: np.ndarray) -> np.ndarray:
    """``min <g, v>``, of which sums over everything are compared: an elementwise set has one support."""
    return -case.known.support(-g)


# -- what is promised --------------------------------------------------------------------------------------------------


@check("sets", cases)
def oracle(target: Target, case: Case) -> Iterator[Measured]:
    """Vertices are members, have the least product with the gradient, whatever its size, and are those of NumPy.

    Of ties they are those of the rule. A gradient alone has the vertex that it has in a batch; points, support and
    violation have its precision.
    """
    found, g, tolerance = _of(answers, target, case), asked(target, case), case.rounding * target.eps
    got, idle, size = found.vertices, found.idle[0], 8 * tolerance
    yield member("violation of vertices, by definition", case, got, size)
    yield Measured("<g, v>", case.inner(g, got), least(case, g), tolerance)
    yield Measured("finite for a gradient of zero", bool(np.isfinite(idle).all()), True)
    yield member("violation for a gradient of zero", case, idle[None], tolerance)
    ruled = slice(0 if case.ruled else TIED, -NEAR)
    want = case.of(g)
    yield Measured("vertices", got[ruled], want[ruled], size)
    if case.ruled:
        yield Measured("vertex for a gradient of zero", idle, case.of(0 * g[:1])[0], size)
        yield Measured("vertices where entries are nearly equal", got[-NEAR:], want[-NEAR:], size)
        if case.known.ties is not None:  # it is the one that is best alone once the gradient has moved by little
            tied, alike = np.concatenate([g[:TIED], 0 * g[:1]]), np.concatenate([got[:TIED], found.idle[:1]])
            aside = tied + LITTLE * np.array([case.known.ties(x) for x in tied])
            lost, little = case.inner(aside, alike) - least(case, aside), max(1e-6 * LITTLE, size)
            yield Measured("what is lost a little aside of ties", lost, 0 * lost, little, case.size)
        lost = case.inner(g[-NEAR:], got[-NEAR:]) - least(case, g[-NEAR:])
        yield Measured("<g, v> where entries are nearly equal", lost, 0 * lost, 32 * target.eps, case.size)
    if case.C.event_ndim:
        yield Measured("vertex for a gradient alone", found.alone, got[case.single], size)
    some, ruled = gradients(case.shape)[SOME], slice(0 if case.ruled else TIED - SOME.start, None)
    for name, v in (("times 2^100", found.up), ("times 2^-100", found.down)):
        yield Measured(f"vertices, {name}", v[ruled], want[SOME][ruled], size)
        yield Measured(f"<g, v>, {name}", case.inner(some, v), least(case, some), tolerance)
    yield Measured("precision", found.dtypes, (target.dtype,) * len(found.dtypes))


def member(what: str, case: Case, x: np.ndarray, tolerance: float) -> Measured:
    """That points lie in the set, by its definition."""
    off = np.asarray(case.known.outside(x))
    if case.known.bound:  # a distance, good to a few parts in 10^5 where it is 0
        off = np.where(off <= 1e-4, 0.0, off)
    return Measured(what, off, np.zeros_like(off), tolerance, 1.0)


@check("sets", cases)
def support(target: Target, case: Case) -> Iterator[Measured]:
    """The support function is the largest product with a point of the set."""
    got, g = _of(answers, target, case).support, asked(target, case)
    want = case.known.support(g)
    size = float(np.linalg.norm(g)) * case.size
    tolerance = case.rounding * target.eps
    if isinstance(case.C, sets.Transport):
        tolerance = max(tolerance, 1e-9)  # an upper bound, by the tolerance of its solver
    yield Measured("support", got, want if case.C.event_ndim else want.sum(), tolerance, size)


@check("sets", cases)
def violation(target: Target, case: Case) -> Iterator[Measured]:
    """A violation is 0 inside, the excess over the worst bound outside, in units of the set, and no NaN is inside."""
    got = _of(answers, target, case)
    tolerance = case.rounding * target.eps
    within, between, beyond, far, lost = got.violations
    yield Measured("violation of vertices", within, np.zeros_like(within), tolerance, 1.0)
    yield Measured("violation inside", between, np.zeros_like(between), tolerance, 1.0)
    for what, some, x in (("near the boundary", beyond, astride(case)), ("far away", far, outside(case))):
        want = np.asarray(case.known.outside(x))
        want = want if case.C.event_ndim else want.max()
        close = BOUND if case.known.bound else tolerance
        yield Measured(f"violation {what}", some, want, close, max(1.0, float(np.linalg.norm(want))))
    yield Measured("what is not finite is no member", bool(np.any(lost <= 1e-9)), False)


@check("sets", cases)
def centre_and_diameter(target: Target, case: Case) -> Iterator[Measured]:
    """The centre lies inside of all bounds that are not equations; the diameter is the largest distance of vertices."""
    got, tolerance = _of(answers, target, case).center, 8 * case.rounding * target.eps
    yield member("violation of the centre", case, got[None], tolerance)
    g = gradients(case.shape)
    high, low = case.known.support(g), least(case, g)
    room = np.minimum(high - case.inner(g, got), case.inner(g, got) - low)
    yield Measured(
        "the centre is no point of the boundary", bool(np.all(room >= 1e-3 * (high - low) - tolerance)), True
    )
    with target.scope():
        diameter = target.send_tree(case.C).diameter(target.send(np.zeros(case.shape)))
    if type(case.C) in AT_MOST:
        yield Measured("the diameter is a bound", case.diameter <= diameter * (1 + tolerance), True)
        yield Measured("the bound is of the size of the set", diameter <= AT_MOST[type(case.C)] * case.diameter, True)
    else:
        yield Measured("diameter", diameter, case.diameter, tolerance)


# whose diameter is an upper bound, and by how much it is above the distances of the examples' vertices
AT_MOST = {
    sets.ContinuousKnapsack: 1.2,
    sets.HullOfUnion: 2.01,
    sets.LinearImage: 1.6,
    sets.MinkowskiSum: 1.2,
    sets.Transport: 1.2,
    sets.Oracle: 1.01,
}


@check("sets", cases)
def random_points(target: Target, case: Case) -> Iterator[Measured]:
    """A random point mixes eight vertices that its seed alone determines."""
    draw = np.random.default_rng(3)
    vertices, shares = case.of(draw.normal(size=(8, *case.shape))), draw.dirichlet(np.ones(8))
    want = np.tensordot(shares, vertices, axes=1)
    yield Measured(
        "point", _of(answers, target, case).random, want, 8 * case.rounding * target.eps, max(1.0, case.diameter)
    )


def _nearest(case: Case, x: np.ndarray, p: np.ndarray, tolerance: float) -> Iterator[Measured]:
    """What makes p the nearest points: they are members, and nothing of the set is further along ``x - p``."""
    lengths = np.sqrt(case.inner(x, x)) + case.size
    yield member("violation", case, p, tolerance * float(lengths.max()))
    ahead = np.maximum(case.known.support(x - p) - case.inner(x - p, p), 0.0)
    yield Measured(
        "<x - Px, v - Px> <= 0", ahead / (lengths * (lengths + case.diameter)), 0 * ahead, 4 * tolerance, 1.0
    )


@check("sets", offering("has_projection"))
def projection(target: Target, case: Case) -> Iterator[Measured]:
    """A projection is a member, and no vertex is on the side of the point that was projected; a member stays."""
    p, x, tolerance = _of(projections, target, case), to_project(target, case), case.rounding * target.eps
    for some in (slice(0, 3), slice(3, 6), slice(6, 9), slice(9, None)):  # what is far is rounded more
        yield from _nearest(case, x[some], p[some], tolerance)
    n = len(inside(case))
    yield Measured("projections of points inside", p[-n:], x[-n:], tolerance, case.size)


@check("sets", offering("has_faces"))
def faces_of_points(target: Target, case: Case) -> Iterator[Measured]:
    """Vertex to leave, tangent, reach and end of a path are those of the inequalities that hold with equality."""
    away, tangent, _, *reach, end = _of(faces, target, case)
    x, g, d = on_faces(case)
    of, tolerance = reference.polytope(case.C, *case.shape), 8 * case.rounding * target.eps
    met = np.array([of.tight(y) for y in x])
    off = [np.where(some, of.b - of.A @ a, 0.0) for some, a in zip(met, away, strict=True)]
    yield Measured("the vertex to leave is in the face", np.array(off), np.zeros_like(off), tolerance, case.size)
    spans = [of.vertices[[not (some & ~of.tight(v)).any() for v in of.vertices]] for some in met]
    most = np.array([(span @ y).max() for span, y in zip(spans, g, strict=True)])
    yield Measured("<g, vertex to leave>", case.inner(g, away), most, tolerance)
    along = np.array([of.tangent(v, y) for v, y in zip(d, x, strict=True)])
    yield Measured("tangents", tangent, along, tolerance, case.size)
    ways = along, case.of(g) - x
    for name, got, way in zip(("along a tangent", "towards a vertex"), reach, ways, strict=True):
        moves = np.linalg.norm(way, axis=1) > 1e-3 * case.size
        want = np.array([of.reach(v, y) for v, y in zip(way[moves], x[moves], strict=True)])
        got = got[moves] if np.ndim(got) else got
        yield Measured(f"reach {name}", got, want if np.ndim(got) else want.min(), tolerance)
    ends = np.array([of.slide(v, y) for v, y in zip(d, x, strict=True)])
    yield Measured("slides", end, ends, tolerance, case.size)


@check("sets", offering("takes_complex"))
def complex_numbers(target: Target, case: Case) -> Iterator[Measured]:
    """Points for complex gradients are members with the least real part of the product, and projections the nearest."""
    target.represent(case.turn)
    g, x = gradients(case.shape)[TIED:], starts(case.shape)
    g, x, tolerance = g + 1j * g[::-1], x + 1j * x[:, ::-1], case.rounding * target.eps
    got, most = on(target, case).compute(_complex, case.C, g)
    if not case.known.bound:
        yield member("violation", case, got, tolerance)
    yield Measured("Re <g, v>", case.inner(g, got), least(case, g), tolerance)
    yield Measured("support", most, case.known.support(g), tolerance)
    if case.C.has_projection:
        p = on(target, case).compute(project_to, case.C, x)
        for some in (slice(0, 3), slice(3, 6), slice(6, 9)):
            yield from _nearest(case, x[some], p[some], tolerance)
