"""Every set that `xvarpro.sets` exports, by its definition.

What is asked are gradients and points that every precision holds exactly. A tie is made of entries 0, 1 and 2, whose
sums, means over 4 and quotients by the largest are exact: no rounding decides what is tied.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from xvarpro import sets
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import BackendNotInstalledError, ProblemError
from xvarpro.sets import norms
from xvarpro.sets.interface import Set
from xvarpro.sets.region import resolve
from xvarpro_conformance.frameworks import hooks
from xvarpro_conformance.references import sets as reference
from xvarpro_conformance.references.sets import inner
from xvarpro_conformance.suite import Inapplicable, Measured, Target, alternate, check, exported, held

SIZE = 4
TIED = CLEAR = 8
NEAR = 4
SOME = slice(TIED // 2, TIED + CLEAR // 2)  # those that are asked in other units
FAR = 2.0**100  # 1.3e30: what both precisions can be asked
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
        return reference.diameter(self.known, self.shape)

    @cached_property
    def vertices(self) -> np.ndarray:
        """Those for `gradients`."""
        return self.of(gradients(self.shape))

    @cached_property
    def size(self) -> float:
        """Of what is rounded: a point of the set, or the set."""
        return max(1.0, self.diameter, float(np.abs(self.vertices).max()))

    def of(self, g: np.ndarray) -> np.ndarray:
        """The vertices for gradients (n, *event)."""
        return np.array([self.known.vertex(x) for x in g])

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


def _with(offer: str) -> Callable[[], dict[str, Case]]:
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
    found = _on(target, case).typed(_ask, case.C, g, g[case.single], *points)
    v, alone, center, random, support, *violations = found.values
    n, some = len(g), len(g[SOME])
    vertices, up, down, idle = np.split(v, [n, n + some, n + 2 * some])
    if case.C.event_ndim:
        violations = np.split(violations[0], np.cumsum([len(v), *map(len, points[:-1])]))
    return Answers(vertices, up, down, idle, alone, center, random, support, tuple(violations), found.dtypes)


def _project(C: Set, x: Array) -> Array:
    return C.project(x)


def to_project(target: Target, case: Case) -> np.ndarray:
    """`starts`, points that are out of the set by half of the digits, then `inside`."""
    return np.concatenate([starts(case.shape), outside(case, 1 + target.eps**0.5), inside(case)])


def projections(target: Target, case: Case) -> np.ndarray:
    """Of `to_project`."""
    return _on(target, case).compute(_project, case.C, to_project(target, case))


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
    return _on(target, case).compute(_faces, case.C, g, d, x)


def _complex(C: Set, g: Array) -> tuple[Array, Array]:
    return C.lmo(g), C.support(g)


def _on(target: Target, case: Case) -> Target:
    return target if case.C.compiles else target.eager


def _of(what: Callable[[Target, Case], Any], target: Target, case: Case) -> Any:
    target.represent(case.turn)
    try:
        return target.once(what, case)
    except BackendNotInstalledError as error:  # a host solver
        raise Inapplicable(str(error)) from error


def _least(case: Case, g: np.ndarray) -> np.ndarray:
    """``min <g, v>``, of which sums over everything are compared: an elementwise set has one support."""
    return -case.known.support(-g)


# -- what is promised --------------------------------------------------------------------------------------------------


def everything() -> dict[str, Any]:
    """Everything that is exported with an oracle or a dual norm."""
    return {C.__name__: C for C in (*exported(sets, Set), *_norms())}


@check("sets", everything, against="definition")
def references(target: Target, kind: type) -> Iterator[Measured]:
    """What the package exports is compared with a definition, which shares nothing with it."""
    if issubclass(kind, norms.Norm):
        yield Measured("its dual norm is written out", kind in DUAL, True)
        return
    examples = [case for case in cases().values() if type(case.C) is kind]
    yield Measured("it has examples", bool(examples), True)
    for case in examples:
        yield Measured("its vertices reach the support", *_reached(case), 1e-13)


def _reached(case: Case) -> tuple[np.ndarray, np.ndarray]:
    g = gradients(case.shape)
    return case.inner(g, case.vertices), _least(case, g)


@check("sets", cases, against="closed form")
def oracle(target: Target, case: Case) -> Iterator[Measured]:
    """Vertices have the least product with the gradient, whatever its size, and of ties are those of the rule.

    A gradient alone has the vertex that it has in a batch; points, support and violation have its precision.
    """
    found, g, tolerance = _of(answers, target, case), asked(target, case), case.rounding * target.eps
    got, idle, size = found.vertices, found.idle[0], 8 * tolerance
    if case.ruled:
        yield Measured("vertices where there are ties", got[:TIED], case.vertices[:TIED], size)
        yield Measured("vertices where entries are nearly equal", got[-NEAR:], case.of(g[-NEAR:]), size)
        yield Measured("vertex for a gradient of zero", idle, case.known.vertex(np.zeros(case.shape)), size)
    yield Measured("vertices", got[TIED:-NEAR], case.vertices[TIED:], size)
    yield Measured("<g, v>", case.inner(g, got), _least(case, g), tolerance)
    yield Measured("finite for a gradient of zero", bool(np.isfinite(idle).all()), True)
    yield _member("violation for a gradient of zero", case, idle[None], tolerance)
    if case.C.event_ndim:
        yield Measured("vertex for a gradient alone", found.alone, got[case.single], size)
    some, want = gradients(case.shape)[SOME], case.vertices[SOME]
    ruled = slice(0 if case.ruled else TIED - SOME.start, None)
    for name, v in (("times 2^100", found.up), ("times 2^-100", found.down)):
        yield Measured(f"vertices, {name}", v[ruled], want[ruled], size)
        yield Measured(f"<g, v>, {name}", case.inner(some, v), _least(case, some), tolerance)
    yield Measured("precision", found.dtypes, (target.dtype,) * len(found.dtypes))


def _member(what: str, case: Case, x: np.ndarray, tolerance: float) -> Measured:
    """That points lie in the set, by its definition."""
    off = np.asarray(case.known.outside(x))
    if case.known.bound:  # a distance, good to a few parts in 10^5 where it is 0
        off = np.where(off <= 1e-4, 0.0, off)
    return Measured(what, off, np.zeros_like(off), tolerance, 1.0)


@check("sets", cases, against="closed form")
def support(target: Target, case: Case) -> Iterator[Measured]:
    """The support function is the largest product with a point of the set."""
    got, g = _of(answers, target, case).support, asked(target, case)
    want = case.known.support(g)
    size = float(np.linalg.norm(g)) * case.size
    tolerance = case.rounding * target.eps
    if isinstance(case.C, sets.Transport):
        tolerance = max(tolerance, 1e-9)  # an upper bound, by the tolerance of its solver
    yield Measured("support", got, want if case.C.event_ndim else want.sum(), tolerance, size)


@check("sets", cases, against="closed form")
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


@check("sets", cases, against="definition")
def centre_and_diameter(target: Target, case: Case) -> Iterator[Measured]:
    """The centre lies inside of all bounds that are not equations; the diameter is the largest distance of vertices."""
    got, tolerance = _of(answers, target, case).center, 8 * case.rounding * target.eps
    yield _member("violation of the centre", case, got[None], tolerance)
    g = gradients(case.shape)
    high, low = case.known.support(g), _least(case, g)
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


@check("sets", cases, against="closed form")
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
    yield _member("violation", case, p, tolerance * float(lengths.max()))
    ahead = np.maximum(case.known.support(x - p) - case.inner(x - p, p), 0.0)
    yield Measured(
        "<x - Px, v - Px> <= 0", ahead / (lengths * (lengths + case.diameter)), 0 * ahead, 4 * tolerance, 1.0
    )


@check("sets", _with("has_projection"), against="definition")
def projection(target: Target, case: Case) -> Iterator[Measured]:
    """A projection is a member, and no vertex is on the side of the point that was projected; a member stays."""
    p, x, tolerance = _of(projections, target, case), to_project(target, case), case.rounding * target.eps
    for some in (slice(0, 3), slice(3, 6), slice(6, 9), slice(9, None)):  # what is far is rounded more
        yield from _nearest(case, x[some], p[some], tolerance)
    n = len(inside(case))
    yield Measured("projections of points inside", p[-n:], x[-n:], tolerance, case.size)


def projected() -> dict[str, Case]:
    """The first case of every class with a projection."""
    found = {type(case.C): name for name, case in reversed(_with("has_projection")().items())}
    return {name: case for name, case in cases().items() if name in found.values()}


@check("sets", projected, dtypes=("float64",), against="definition")
def transformed_projection(target: Target, case: Case) -> Iterator[Measured]:
    """Under a framework's transformations, mapped and compiled, a projection has the slope of its values."""
    if target.backend.compiled and not case.C.compiles:
        raise Inapplicable("a solver on the host is not compiled")
    alike = (type(v.C) for v in projected().values() if type(v.C).__module__ == type(case.C).__module__)
    target.represent(("float64",) if type(case.C) is next(alike) else ())  # classes of a file project alike
    draw, size = np.random.default_rng(5), min(case.diameter, 1e3)
    n, d = draw.normal(size=(2, 3, *case.shape))
    n = n / np.sqrt(case.inner(n, n)).reshape(-1, *(1,) * len(case.shape))
    middle = np.asarray(case.C.center(np.zeros(case.shape)))
    x = middle + size * n * np.array([1e-3, 1.5, 40.0]).reshape(-1, *(1,) * len(case.shape))
    with target.scope():
        project = target.send_tree(case.C).project
        found = hooks(target.backend).transformed(project, target.send(x), target.send(d))
        if found is None:
            raise Inapplicable("the framework has no transformations")
        values, along, gradient = map(target.host, found)
    step = 1e-6 * size * d
    ends = (np.stack([np.asarray(case.C.project(y)) for y in z]) for z in (x, x + step, x - step))
    want, ahead, behind = ends
    slope = (ahead - behind) / (2e-6 * size)
    yield Measured("values", values, want, case.rounding * target.eps, case.size)
    yield Measured("derivative along d", along, slope, 1e-6, 1.0)
    yield Measured("gradient in reverse, of a slope that is symmetric", gradient, slope, 1e-6, 1.0)


@cache
def far_away(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Points 2^24 sizes away, and the nearest ones of a polytope: of those draws that are far enough to be alone."""
    draw, size = np.random.default_rng(9), max(case.diameter, 1.0)
    x = draw.normal(size=(10, *case.shape))
    for i in range(4):
        x[i] = 0.0
        x[i].flat[draw.integers(x[i].size)] = (-1.0) ** i
    x = held(x) * 2.0**24 * size
    p, further = (np.asarray(case.C.project(y)) for y in (x, 4 * x))
    axes = tuple(range(1, x.ndim))
    alone = np.abs(p - further).max(axis=axes) <= 1e-9 * case.size
    return x[alone], p[alone]


@check("sets", lambda: {k: v for k, v in _with("has_projection")().items() if v.C.polytope}, against="definition")
def far_projection(target: Target, case: Case) -> Iterator[Measured]:
    """Once a point is far from a polytope, further away along its ray changes nothing, to 1e30 times the size."""
    target.represent(())
    x, want = far_away(case)
    for power in (0, 16, 40, 76):
        p = target.eager.compute(_project, case.C, x * 2.0**power)
        yield Measured(f"2^{24 + power} sizes away", p, want, case.rounding * target.eps, case.size)


@check("sets", _with("has_faces"), against="definition")
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


@check("sets", _with("takes_complex"), against="closed form")
def complex_numbers(target: Target, case: Case) -> Iterator[Measured]:
    """Points for complex gradients are members with the least real part of the product, and projections the nearest."""
    target.represent(case.turn)
    g, x = gradients(case.shape)[TIED:], starts(case.shape)
    g, x, tolerance = g + 1j * g[::-1], x + 1j * x[:, ::-1], case.rounding * target.eps
    got, most = _on(target, case).compute(_complex, case.C, g)
    if not case.known.bound:
        yield _member("violation", case, got, tolerance)
    yield Measured("Re <g, v>", case.inner(g, got), _least(case, g), tolerance)
    yield Measured("support", most, case.known.support(g), tolerance)
    if case.C.has_projection:
        p = _on(target, case).compute(_project, case.C, x)
        for some in (slice(0, 3), slice(3, 6), slice(6, 9)):
            yield from _nearest(case, x[some], p[some], tolerance)


# -- several sets and free blocks --------------------------------------------------------------------------------------


def _columns(g: np.ndarray) -> np.ndarray:
    """Lengths of columns; an array with one axis is one."""
    return np.linalg.norm(g if g.ndim > 1 else g[:, None], axis=0)


def _rows(g: np.ndarray) -> np.ndarray:
    return np.linalg.norm(g if g.ndim > 1 else g[None, :], axis=1)


def _singular(g: np.ndarray) -> np.ndarray:
    return np.linalg.svd(g if g.ndim > 1 else g[None, :], compute_uv=False)


def _entries(g: np.ndarray) -> np.ndarray:
    return np.abs(g).ravel()


# of each norm the numbers that it looks at in an array, how the norm sums these up, and its dual
DUAL: dict[type, tuple[Callable[[np.ndarray], np.ndarray], Any, Any]] = {
    norms.L2: (_entries, 2, 2),
    norms.Sign: (_entries, np.inf, 1),
    norms.L1: (_entries, 1, np.inf),
    norms.ColumnNorm: (_columns, np.inf, 1),
    norms.RowNorm: (_rows, np.inf, 1),
    norms.Spectral: (_singular, np.inf, 1),
}


def _norms() -> list[Any]:
    kinds = (kind for kind in vars(norms).values() if inspect.isclass(kind) and issubclass(kind, norms.Norm))
    return [kind for kind in kinds if not inspect.isabstract(kind)]


def blocks() -> dict[str, Any]:
    """A set and a free block with each norm, and gradients with ties there."""
    over = (sets.L1Ball(2.0), sets.Box(-1.0, 2.0), sets.Simplex(3.0), sets.NonnegativeL2Ball(), sets.LinfBall(0.5))
    return {
        kind.__name__: (kind(), Case(over[i % len(over)], (SIZE,), alternate(i))) for i, kind in enumerate(_norms())
    }


def _blmo(C: Set, ball: sets.Free, theta: Tree, g: Tree) -> tuple[Array, ...]:
    leaves, _ = trees.flatten(theta)
    region = resolve((C, ball), theta)
    way = region.blmo(tuple(leaves), tuple(trees.leaves(g)))
    return *way.d, way.gap_A, way.gap_B, region.violation(tuple(leaves))


@check("sets", blocks, against="closed form")
def gap(target: Target, case: tuple[norms.Norm, Case]) -> Iterator[Measured]:
    """The Frank-Wolfe gap is ``<g, x - v>`` in the set and the radius times the dual norm in the free block."""
    norm, of = case
    target.represent(of.turn)
    draw, radius = np.random.default_rng(6), 0.5
    x, free = inside(of)[-1], (np.zeros((3, 4)), np.zeros(5))
    g = held(draw.normal(size=SIZE)), (held(draw.normal(size=(3, 4))), draw.choice([-1.0, 0.0, 1.0], 5))
    dA, *dB, gap_A, gap_B, off = target.compute(_blmo, of.C, sets.Free(norm, radius), (x, free), g)
    tolerance = of.rounding * target.eps
    yield Measured("direction of the set", dA, of.known.vertex(g[0]) - x, tolerance)
    yield Measured("gap of the set", gap_A, of.known.support(-g[0]) + g[0] @ x, tolerance)
    numbers, own, dual = DUAL[type(norm)]
    size = radius * np.linalg.norm(np.concatenate([numbers(y) for y in g[1]]), dual)
    yield Measured("gap of the free block", gap_B, size, tolerance)
    steepest = -sum(np.sum(y * d) for y, d in zip(g[1], dB, strict=True))
    yield Measured("-<g, d> of the free block", steepest, size, tolerance)
    length = np.linalg.norm(np.concatenate([numbers(d) for d in dB]), own)
    yield Measured("length of its step", length, radius, tolerance)
    yield Measured("violation", off, 0.0, tolerance, 1.0)


def _half(C: Set, x: Array, g: Array) -> tuple[Array, ...]:
    region = resolve(C, x)
    way = region.blmo((x,), (g,))
    return *way.d, way.gap_A, way.gap_B, C.project(x + g), C.violation(x + g)


@check("sets", against="closed form")
def half_bounded(target: Target, _: None) -> Iterator[Measured]:
    """Where a box has no bound down the slope, the gradient counts by its length, elsewhere by the way to the bound."""
    low, high = np.array([0.0, -np.inf, -1.0, -np.inf]), np.array([np.inf, 3.0, 2.0, np.inf])
    x, g = np.array([2.0, 1.0, 0.5, -7.0]), np.array([-3.0, -1.0, 2.0, 4.0])
    d, gap_A, gap_B, p, off = target.compute(_half, sets.Box(low, high), x, g)
    # to the upper and to the lower bound there are; along the slope (-3, 4), of length 5, where there is none
    want = np.array([0.6, 2.0, -1.5, -0.8])
    yield Measured("direction", d, want, 4 * target.eps)
    yield Measured("gap of the bounds", gap_A, 5.0, 4 * target.eps)
    yield Measured("gap without bounds", gap_B, 5.0, 4 * target.eps)
    yield Measured("projection", p, np.array([0.0, 0.0, 2.0, -3.0]))
    yield Measured("violation", off, 1.0, 4 * target.eps)  # the first entry by itself


# -- inexact oracles ---------------------------------------------------------------------------------------------------


class Inexact(NamedTuple):
    """A set whose oracle may stop short of the minimum, and the most that it may report as slack, of the minimum."""

    of: Case
    aimed: float = np.inf


def certificates() -> dict[str, Inexact]:
    """Solvers that find the minimum to their tolerance, and some that stop far short of it."""
    good, poor = sets.Lanczos(), sets.Lanczos(width=2, depth=2, restarts=1, tol=0.5)
    loose = sets.Lanczos(width=2, depth=2, restarts=1, tol=0.5, gram=False)
    nuclear, wide, square = sets.NuclearBall(1.0, poor), (30, 40), (30, 30)
    double, single = (alternate(i) for i in (0, 1))  # where programs are compiled, one stands for each solver
    return {
        "NuclearBall": Inexact(Case(sets.NuclearBall(2.0, good), wide, double), 1e-5),
        "NuclearBall, poor": Inexact(Case(nuclear, wide, ())),
        "NuclearBall, tall, without Gram matrix": Inexact(Case(sets.NuclearBall(1.0, loose), wide[::-1], ())),
        "Spectraplex": Inexact(Case(sets.Spectraplex(3.0, good), square, ()), 1e-5),
        "Spectraplex, poor": Inexact(Case(sets.Spectraplex(1.0, poor), square, single)),
        "UnitSpectrahedron, poor": Inexact(Case(sets.UnitSpectrahedron(2.0, poor), square, ())),
        "ShiftScale, poor": Inexact(Case(sets.ShiftScale(nuclear, 3.0, 0.5), wide, ())),
        "MinkowskiSum, poor": Inexact(Case(sets.MinkowskiSum((nuclear, sets.SpectralBall(0.1))), wide, ())),
        "HullOfUnion, poor": Inexact(Case(sets.HullOfUnion((nuclear, sets.SpectralBall(0.01))), wide, ())),
        "Transport": Inexact(Case(sets.Transport(), (SIZE, 3)), 1e-9),
    }


def _certify(C: Set, g: Array) -> tuple[Any, ...]:
    v, slack = C.certified(g)
    return v, slack, C.support(-g)


@check("sets", certificates, against="definition")
def certified(target: Target, case: Inexact) -> Iterator[Measured]:
    """What an inexact oracle leaves of the minimum is at most what it reports, by dense decompositions."""
    of, draw = case.of, np.random.default_rng(7)
    target.represent(of.turn)
    g = held(draw.normal(size=(2, *of.shape)))
    try:
        v, slack, most = _on(target, of).compute(_certify, of.C, g)
    except BackendNotInstalledError as error:
        raise Inapplicable(str(error)) from error
    least, reached, tolerance = _least(of, g), of.inner(g, v), 20 * target.eps * np.sqrt(g[0].size)
    size = float(np.abs(least).max())
    for what, short in (
        ("what is missing beyond the slack", reached - least - slack),
        ("what lies below the minimum", least - reached),
        ("what the support leaves out", -least - most),
    ):
        yield Measured(what, np.maximum(short, 0.0), 0 * short, tolerance, size)
    if not of.known.bound:
        yield _member("violation", of, v, tolerance)
    yield Measured("the slack is what was aimed at", bool(np.all(slack <= case.aimed * size + tolerance * size)), True)
