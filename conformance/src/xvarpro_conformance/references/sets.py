"""Sets by their definitions, in plain NumPy: support function, membership, and the vertex that the rule for ties takes.

Ties are decided in rational arithmetic: two entries tie where their numbers are equal, not where rounding says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations, permutations, product
from typing import Any, NamedTuple

import numpy as np

from xvarpro import sets
from xvarpro.sets.interface import Set


class Known(NamedTuple):
    """A set for events of one shape, written out from its definition.

    Attributes
    ----------
    support : callable
        ``max Re <g, v>`` for gradients (*batch, *event), real or complex.
    vertex : callable
        The v of least ``<g, v>`` for one real gradient, by the documented rule where several are as good.
    outside : callable
        How far points (*batch, *event) are outside, as `Set.violation` promises it: relative to the size of the set.
    bound : bool
        Whether a violation may be a lower bound of that, good to a part in a thousand.
    """

    support: Callable[[np.ndarray], np.ndarray]
    vertex: Callable[[np.ndarray], np.ndarray]
    outside: Callable[[np.ndarray], np.ndarray]
    bound: bool = False


# by class: the reference of a set, for events of a shape
DEFINITIONS: dict[type, Callable[[Any, tuple[int, ...]], Known]] = {}


def known(C: Set, shape: tuple[int, ...]) -> Known:
    """The reference of a set, for events of that shape.

    Raises
    ------
    LookupError
        There is none: a set of the package is not compared with itself.
    """
    if type(C) not in DEFINITIONS:
        raise LookupError(f"{type(C).__name__} has no reference in xvarpro_conformance.references.sets")
    return DEFINITIONS[type(C)](C, shape)


def _of(*kinds: type) -> Callable[[Callable[[Any, tuple[int, ...]], Known]], Callable[[Any, tuple[int, ...]], Known]]:
    def enter(make: Callable[[Any, tuple[int, ...]], Known]) -> Callable[[Any, tuple[int, ...]], Known]:
        DEFINITIONS.update(dict.fromkeys(kinds, make))
        return make

    return enter


# -- words -------------------------------------------------------------------------------------------------------------


def inner(g: np.ndarray, v: np.ndarray, axes: int = 1) -> np.ndarray:
    """``Re <g, v>`` over the last axes."""
    out: np.ndarray = np.sum(np.real(np.conj(g) * v), axis=tuple(range(-axes, 0)))
    return out


def _exact(x: np.ndarray) -> list[Fraction]:
    return [Fraction(float(y)) for y in np.broadcast_to(x, np.shape(x)).ravel()]


def _first_largest(values: Sequence[Any]) -> int:
    return max(range(len(values)), key=lambda i: values[i])  # the first of those that tie


def _largest_first(values: Sequence[Any]) -> list[int]:
    return sorted(range(len(values)), key=lambda i: -values[i])  # stable


def _sign(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, -1.0, 1.0)  # zero counts as positive


def _at(n: int, i: int | Sequence[int], value: Any) -> np.ndarray:
    out = np.zeros(n)
    out[i] = value
    return out


def _excess(size: np.ndarray, radius: float) -> np.ndarray:
    return np.maximum(size - radius, 0.0) / (radius or 1.0)


def _norm(x: np.ndarray, p: float = 2.0) -> np.ndarray:
    out: np.ndarray = np.linalg.norm(x, ord=p, axis=-1)
    return out


def _unit(x: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(x)
    return x / length if length else x


def _falling(x: np.ndarray) -> np.ndarray:
    return -np.sort(-x, axis=-1)


def _worst(*terms: Any) -> np.ndarray:
    return np.maximum.reduce(np.broadcast_arrays(0.0, *terms))


# -- balls, boxes and simplices ----------------------------------------------------------------------------------------


@_of(sets.Box)
def _box(C: sets.Box, shape: tuple[int, ...]) -> Known:
    low, high = (np.broadcast_to(np.asarray(b, np.float64), shape) for b in (C.lower, C.upper))
    axes = tuple(range(-len(shape), 0))
    size = np.maximum(high - low, np.maximum(abs(low), abs(high)))
    size = np.where(size == 0, 1.0, size)
    return Known(
        lambda g: np.sum(np.maximum(g * low, g * high), axis=axes),
        lambda g: np.where(g < 0, high, low),
        lambda x: np.max(_worst(low - x, x - high) / size, axis=axes),
    )


@_of(sets.L1Ball)
def _l1(C: sets.L1Ball, shape: tuple[int, ...]) -> Known:
    def vertex(g: np.ndarray) -> np.ndarray:
        i = _first_largest(_exact(abs(g)))
        return _at(len(g), i, -C.radius * _sign(g[i]))

    return Known(lambda g: C.radius * abs(g).max(-1), vertex, lambda x: _excess(abs(x).sum(-1), C.radius))


@_of(sets.LinfBall)
def _linf(C: sets.LinfBall, shape: tuple[int, ...]) -> Known:
    return Known(
        lambda g: C.radius * abs(g).sum(-1),
        lambda g: -C.radius * _sign(g),
        lambda x: _excess(abs(x).max(-1), C.radius),
    )


@_of(sets.L2Ball)
def _l2(C: sets.L2Ball, shape: tuple[int, ...]) -> Known:
    c = np.broadcast_to(np.asarray(C.offset, np.float64), shape)
    size = max(float(np.linalg.norm(c)), C.radius) or 1.0
    return Known(
        lambda g: inner(g, c) + C.radius * _norm(g),
        lambda g: c - C.radius * _unit(g),
        lambda x: _worst(_norm(x - c) - C.radius) / size,
    )


@_of(sets.NonnegativeL2Ball)
def _nonnegative_l2(C: sets.NonnegativeL2Ball, shape: tuple[int, ...]) -> Known:
    return Known(
        lambda g: C.radius * _norm(np.maximum(g, 0.0)),
        lambda g: C.radius * _unit(np.maximum(-g, 0.0)),
        lambda x: _worst((-x).max(-1) / (C.radius or 1.0), _excess(_norm(x), C.radius)),
    )


@_of(sets.LpBall)
def _lp(C: sets.LpBall, shape: tuple[int, ...]) -> Known:
    q = C.p / (C.p - 1)

    def vertex(g: np.ndarray) -> np.ndarray:
        if not g.any():
            return 0 * g
        share = (abs(g) / abs(g).max()) ** (q - 1)
        return -C.radius * _sign(g) * share / np.linalg.norm(share, C.p)

    return Known(lambda g: C.radius * _norm(g, q), vertex, lambda x: _excess(_norm(x, C.p), C.radius))


@_of(sets.Ellipsoid)
def _ellipsoid(C: sets.Ellipsoid, shape: tuple[int, ...]) -> Known:
    (n,) = shape
    A = np.asarray(C.matrix, np.float64)
    A = A if A.ndim == 2 else np.diag(np.broadcast_to(A, n))
    c = np.broadcast_to(np.asarray(C.offset, np.float64), n)
    inverse = np.linalg.inv(A)
    size = max(float(np.linalg.norm(c) * np.sqrt(np.linalg.eigvalsh(A)[-1])), C.radius) or 1.0

    def length(x: np.ndarray, metric: np.ndarray) -> np.ndarray:
        return np.sqrt(np.einsum("...i,ij,...j", x, metric, x))

    def vertex(g: np.ndarray) -> np.ndarray:
        return c - C.radius * (inverse @ g) / (length(g, inverse) or 1.0)

    return Known(
        lambda g: inner(g, c) + C.radius * length(g, inverse),
        vertex,
        lambda x: _worst(length(x - c, A) - C.radius) / size,
    )


@_of(sets.Simplex)
def _simplex(C: sets.Simplex, shape: tuple[int, ...]) -> Known:
    return Known(
        lambda g: C.radius * g.max(-1),
        lambda g: _at(len(g), _first_largest(_exact(-g)), C.radius),
        lambda x: _worst((-x).max(-1), abs(x.sum(-1) - C.radius)) / (C.radius or 1.0),
    )


@_of(sets.CappedSimplex)
def _capped(C: sets.CappedSimplex, shape: tuple[int, ...]) -> Known:
    def vertex(g: np.ndarray) -> np.ndarray:
        i = _first_largest(_exact(-g))
        return _at(len(g), i, C.radius if g[i] < 0 else 0.0)

    return Known(
        lambda g: C.radius * np.maximum(g.max(-1), 0.0),
        vertex,
        lambda x: _worst((-x).max(-1), x.sum(-1) - C.radius) / (C.radius or 1.0),
    )


@_of(sets.WeightedSimplex)
def _weighted_simplex(C: sets.WeightedSimplex, shape: tuple[int, ...]) -> Known:
    a, low = (np.broadcast_to(np.asarray(x, np.float64), shape) for x in (C.weights, C.lower))
    room = C.bound - a @ low
    rise = room / a
    size = np.maximum(rise, abs(low))
    size = np.where(size == 0, 1.0, size)
    total = max(room, a @ abs(low)) or 1.0

    def vertex(g: np.ndarray) -> np.ndarray:
        i = _first_largest([-s / w for s, w in zip(_exact(g), _exact(a), strict=True)])
        return low + _at(len(g), i, rise[i] if g[i] < 0 else 0.0)

    return Known(
        lambda g: inner(g, low) + np.maximum((rise * g).max(-1), 0.0),
        vertex,
        lambda x: _worst(((low - x) / size).max(-1), ((x - low) @ a - room) / total),
    )


@_of(sets.WeightedL1Ball)
def _weighted_l1(C: sets.WeightedL1Ball, shape: tuple[int, ...]) -> Known:
    widths, c = (np.broadcast_to(np.asarray(x, np.float64), shape) for x in (C.widths, C.offset))
    wide = widths > 0
    weights = np.where(wide, 1 / np.where(wide, widths, 1.0), 0.0)
    unit, stray = max(float(weights @ abs(c)), 1.0), float(max(widths.max(), abs(c).max())) or 1.0

    def vertex(g: np.ndarray) -> np.ndarray:
        i = _first_largest([w * s for w, s in zip(_exact(widths), _exact(abs(g)), strict=True)])
        i = i if widths[i] > 0 else int(np.argmax(widths))
        return c + _at(len(g), i, -widths[i] * _sign(g[i]))

    def outside(x: np.ndarray) -> np.ndarray:
        size = abs(x - c)
        return _worst((size @ weights - 1) / unit, np.where(wide, 0.0, size).max(-1) / stray)

    return Known(lambda g: inner(g, c) + (widths * abs(g)).max(-1), vertex, outside)


@_of(sets.ContinuousKnapsack)
def _knapsack(C: sets.ContinuousKnapsack, shape: tuple[int, ...]) -> Known:
    a = np.broadcast_to(np.asarray(C.weights, np.float64), shape)

    def support(g: np.ndarray) -> np.ndarray:
        # the dual: min over y >= 0 of y bound + sum max(g - y a, 0), at 0 or where a term begins
        prices = np.concatenate([0 * g[..., :1], np.maximum(g / a, 0.0)], axis=-1)[..., None]
        rest = np.maximum(g[..., None, :] - prices * a, 0.0)
        return np.min(prices[..., 0] * C.bound + rest.sum(-1), axis=-1)

    def vertex(g: np.ndarray) -> np.ndarray:
        v, left, weights = np.zeros(len(g)), Fraction(C.bound), _exact(a)
        for i in _largest_first([-s / w for s, w in zip(_exact(g), weights, strict=True)]):
            if g[i] < 0:
                share = min(left / weights[i], Fraction(1))
                v[i], left = float(share), left - share * weights[i]
        return v

    return Known(
        support,
        vertex,
        lambda x: _worst((-x).max(-1), x.max(-1) - 1, (x @ a - C.bound) / (C.bound or 1.0)),
    )


# -- groups, sorted norms and sequences --------------------------------------------------------------------------------


def _groups(groups: Any, n: int) -> list[list[int]]:
    if isinstance(groups, int):
        return [list(range(i, min(i + groups, n))) for i in range(0, n, groups)]
    return [list(group) for group in groups]


@_of(sets.GroupL12Ball)
def _group_l12(C: sets.GroupL12Ball, shape: tuple[int, ...]) -> Known:
    groups = _groups(C.groups, *shape)

    def norms(x: np.ndarray) -> np.ndarray:
        return np.stack([_norm(x[..., G]) for G in groups], axis=-1)

    def vertex(g: np.ndarray) -> np.ndarray:
        G = groups[_first_largest([sum(s * s for s in _exact(g[G])) for G in groups])]
        return _at(len(g), G, -C.radius * _unit(g[G]))

    return Known(lambda g: C.radius * norms(g).max(-1), vertex, lambda x: _excess(norms(x).sum(-1), C.radius))


@_of(sets.GroupL1InfBall)
def _group_l1inf(C: sets.GroupL1InfBall, shape: tuple[int, ...]) -> Known:
    groups = _groups(C.groups, *shape)

    def vertex(g: np.ndarray) -> np.ndarray:
        G = groups[_first_largest([sum(_exact(abs(g[G]))) for G in groups])]
        return _at(len(g), G, -C.radius * _sign(g[G]))

    return Known(
        lambda g: C.radius * np.max([abs(g[..., G]).sum(-1) for G in groups], axis=0),
        vertex,
        lambda x: _excess(np.sum([abs(x[..., G]).max(-1) for G in groups], axis=0), C.radius),
    )


@_of(sets.KSparsePolytope)
def _k_sparse(C: sets.KSparsePolytope, shape: tuple[int, ...]) -> Known:
    def vertex(g: np.ndarray) -> np.ndarray:
        some = _largest_first(_exact(abs(g)))[: C.k]
        return _at(len(g), some, -C.radius * _sign(g[some]))

    return Known(
        lambda g: C.radius * _falling(abs(g))[..., : C.k].sum(-1),
        vertex,
        lambda x: _worst(_excess(abs(x).max(-1), C.radius), _excess(abs(x).sum(-1), C.k * C.radius)),
    )


def _beyond(x: np.ndarray, radius: float) -> np.ndarray:
    return _worst((-x).max(-1), x.max(-1) - radius) / (radius or 1.0)


@_of(sets.Hypersimplex)
def _hypersimplex(C: sets.Hypersimplex, shape: tuple[int, ...]) -> Known:
    total = C.k * C.radius
    return Known(
        lambda g: C.radius * _falling(g)[..., : C.k].sum(-1),
        lambda g: _at(len(g), _largest_first(_exact(-g))[: C.k], C.radius),
        lambda x: _worst(_beyond(x, C.radius), abs(x.sum(-1) - total) / (total or 1.0)),
    )


@_of(sets.UnitHypersimplex)
def _unit_hypersimplex(C: sets.UnitHypersimplex, shape: tuple[int, ...]) -> Known:
    return Known(
        lambda g: C.radius * np.maximum(_falling(g)[..., : C.k], 0.0).sum(-1),
        lambda g: _at(len(g), [i for i in _largest_first(_exact(-g))[: C.k] if g[i] < 0], C.radius),
        lambda x: _worst(_beyond(x, C.radius), _excess(x.sum(-1), C.k * C.radius)),
    )


@_of(sets.KNormBall)
def _k_norm(C: sets.KNormBall, shape: tuple[int, ...]) -> Known:
    def vertex(g: np.ndarray) -> np.ndarray:
        size = _exact(abs(g))
        one = _first_largest(size)
        # of two balls of which one holds the other only the larger has vertices of the hull
        if C.k == 1 or (C.k < len(g) and sum(size) > C.k * size[one]):
            return -C.radius / C.k * _sign(g)
        return _at(len(g), one, -C.radius * _sign(g[one]))

    return Known(
        lambda g: C.radius * np.maximum(abs(g).max(-1), abs(g).sum(-1) / C.k),
        vertex,
        lambda x: _excess(_falling(abs(x))[..., : C.k].sum(-1), C.radius),
    )


@_of(sets.OWLBall)
def _owl(C: sets.OWLBall, shape: tuple[int, ...]) -> Known:
    weights = np.broadcast_to(np.asarray(C.weights, np.float64), shape)

    def vertex(g: np.ndarray) -> np.ndarray:
        size, w, n = _exact(abs(g)), _exact(weights), len(g)
        order = _largest_first(size)
        # k entries are no vertex where one more costs nothing, nor, for k > 1, where all of them cost the same
        counts = [k for k in range(1, n + 1) if (k == n or w[k] > 0) and (k == 1 or w[k - 1] < w[0])]
        gains = [sum(size[i] for i in order[:k]) / sum(w[:k]) for k in counts]
        k = counts[_first_largest(gains)]
        some = order[:k]
        return _at(n, some, -C.radius / float(sum(w[:k])) * _sign(g[some]))

    return Known(
        lambda g: C.radius * np.max(np.cumsum(_falling(abs(g)), axis=-1) / np.cumsum(weights), axis=-1),
        vertex,
        lambda x: _excess(_falling(abs(x)) @ weights, C.radius),
    )


@_of(sets.Permutahedron)
def _permutahedron(C: sets.Permutahedron, shape: tuple[int, ...]) -> Known:
    (n,) = shape
    w = _falling(np.arange(n, 0.0, -1.0) if C.weights is None else np.asarray(C.weights, np.float64))
    size = abs(w).sum() or 1.0

    def outside(x: np.ndarray) -> np.ndarray:
        # majorised by w: no k entries sum to more than its k largest, and all to as much
        over = np.cumsum(_falling(x) - w, axis=-1)
        return _worst(over.max(-1), -over[..., -1]) / size

    return Known(
        lambda g: _falling(g) @ w,
        lambda g: _at(n, _largest_first(_exact(-g)), w),
        outside,
    )


@_of(sets.OrderedBox)
def _ordered(C: sets.OrderedBox, shape: tuple[int, ...]) -> Known:
    (n,) = shape
    steps = np.array([[C.lower] * k + [C.upper] * (n - k) for k in range(n + 1)])
    size = max(abs(C.lower), abs(C.upper)) or 1.0

    def vertex(g: np.ndarray) -> np.ndarray:
        exact = _exact(g)
        return steps[_first_largest([sum(exact[:k], Fraction(0)) for k in range(n + 1)])]

    return Known(
        lambda g: np.max(g @ steps.T, axis=-1),
        vertex,
        lambda x: _worst(C.lower - x.min(-1), x.max(-1) - C.upper, -np.diff(x, axis=-1).min(-1, initial=0.0)) / size,
    )


@_of(sets.TotalVariationBall)
def _variation(C: sets.TotalVariationBall, shape: tuple[int, ...]) -> Known:
    (n,) = shape

    def vertex(g: np.ndarray) -> np.ndarray:
        exact = _exact(g)
        mean = sum(exact) / n
        sums = [sum(exact[:k]) - k * mean for k in range(1, n)]
        best = _first_largest([abs(s) for s in sums])
        k, rise = best + 1, C.radius * (-1.0 if sums[best] < 0 else 1.0)
        return np.array([rise * (k / n - 1)] * k + [rise * k / n] * (n - k))

    def support(g: np.ndarray) -> np.ndarray:
        sums = np.cumsum(g - g.mean(-1, keepdims=True), axis=-1)
        return C.radius * abs(sums[..., :-1]).max(-1)

    def outside(x: np.ndarray) -> np.ndarray:
        mean = abs(x.sum(-1)) / n / (C.radius or 1.0)
        return _worst(mean, _excess(abs(np.diff(x, axis=-1)).sum(-1), C.radius))

    return Known(support, vertex, outside)


# -- matrices ----------------------------------------------------------------------------------------------------------


def _of_values(C: Set, shape: tuple[int, ...], values: Known) -> Known:
    """Matrices whose singular values lie in a set."""

    def singular(x: np.ndarray) -> np.ndarray:
        return np.linalg.svd(x, compute_uv=False)

    def vertex(g: np.ndarray) -> np.ndarray:
        U, s, Vh = np.linalg.svd(g, full_matrices=False)
        v = np.array([0.0 if t <= 1e-14 * s[0] else 1.0 for t in s]) * values.vertex(s)
        return (U * v) @ Vh

    return Known(lambda g: values.support(singular(g)), vertex, lambda x: values.outside(singular(x)))


@_of(sets.NuclearBall)
def _nuclear(C: sets.NuclearBall, shape: tuple[int, ...]) -> Known:
    return _of_values(C, shape, _l1(sets.L1Ball(C.radius), (min(shape),)))


@_of(sets.SpectralBall)
def _spectral(C: sets.SpectralBall, shape: tuple[int, ...]) -> Known:
    return _of_values(C, shape, _linf(sets.LinfBall(C.radius), (min(shape),)))


@_of(sets.SchattenBall)
def _schatten(C: sets.SchattenBall, shape: tuple[int, ...]) -> Known:
    return _of_values(C, shape, _lp(sets.LpBall(C.p, C.radius), (min(shape),)))


@_of(sets.Spectraplex, sets.UnitSpectrahedron, sets.Fantope)
def _of_eigenvalues(C: Any, shape: tuple[int, ...]) -> Known:
    """Hermitian matrices whose eigenvalues lie in a set; a gradient counts by its Hermitian part."""
    n, unit = shape[-1], 1.0
    if isinstance(C, sets.Fantope):
        values = _hypersimplex(sets.Hypersimplex(C.k), (n,))
    else:
        unit = C.radius or 1.0
        values = (_simplex if isinstance(C, sets.Spectraplex) else _capped)(C, (n,))

    def hermitian(x: np.ndarray) -> np.ndarray:
        return (x + np.conj(np.swapaxes(x, -2, -1))) / 2

    def vertex(g: np.ndarray) -> np.ndarray:
        w, Q = np.linalg.eigh(hermitian(g))
        return (Q * values.vertex(w)) @ np.conj(Q.T)

    def outside(x: np.ndarray) -> np.ndarray:
        asymmetry = abs(x - hermitian(x)).max((-2, -1)) / unit
        return _worst(values.outside(np.linalg.eigvalsh(hermitian(x))), asymmetry)

    return Known(lambda g: values.support(np.linalg.eigvalsh(hermitian(g))), vertex, outside)


@_of(sets.Birkhoff)
def _birkhoff(C: sets.Birkhoff, shape: tuple[int, ...]) -> Known:
    n = shape[-1]
    vertices = np.eye(n)[np.array(list(permutations(range(n))))]
    ones = np.ones(n)
    return _listed(vertices, lambda x: _sums_off(x, ones, ones, 1.0))


@_of(sets.Transport)
def _transport(C: sets.Transport, shape: tuple[int, ...]) -> Known:
    m, n = shape
    a = np.full(m, 1 / m) if C.a is None else np.asarray(C.a, np.float64)
    b = np.full(n, 1 / n) if C.b is None else np.asarray(C.b, np.float64)

    def least(g: np.ndarray) -> Any:
        from scipy.optimize import linprog

        rows = [np.outer(row, np.ones(n)).ravel() for row in np.eye(m)]
        columns = [np.outer(np.ones(m), column).ravel() for column in np.eye(n)]
        return linprog(g.ravel(), A_eq=np.array([*rows, *columns]), b_eq=np.concatenate([a, b]), method="highs")

    def support(g: np.ndarray) -> np.ndarray:
        return np.array([-least(-x).fun for x in g.reshape(-1, m, n)]).reshape(g.shape[:-2])

    return Known(support, lambda g: least(g).x.reshape(m, n), lambda x: _sums_off(x, a, b, max(a.max(), b.max())))


def _sums_off(x: np.ndarray, a: np.ndarray, b: np.ndarray, size: float) -> np.ndarray:
    rows, columns = abs(x.sum(-1) - a).max(-1), abs(x.sum(-2) - b).max(-1)
    return _worst((-x).max((-2, -1)), rows, columns) / size


# -- sets of points and sets of sets -----------------------------------------------------------------------------------


def _listed(vertices: np.ndarray, outside: Callable[[np.ndarray], np.ndarray]) -> Known:
    """The hull of points, of which the first comes first."""
    rows = vertices.reshape(len(vertices), -1)
    axes = vertices.ndim - 1

    def values(g: np.ndarray) -> np.ndarray:
        return g.reshape(*g.shape[: g.ndim - axes], -1) @ rows.T

    def vertex(g: np.ndarray) -> np.ndarray:
        slopes = -values(g)
        close = np.flatnonzero(slopes >= slopes.max() - 1e-9 * abs(slopes).max())
        exact = [-sum(s * x for s, x in zip(_exact(g), _exact(rows[i]), strict=True)) for i in close]
        return vertices[close[_first_largest(exact)]]

    return Known(lambda g: values(g).max(-1), vertex, outside)


@_of(sets.ConvexHull)
def _hull(C: sets.ConvexHull, shape: tuple[int, ...]) -> Known:
    atoms = np.asarray(C.atoms, np.float64)
    size = max(np.linalg.norm(atoms, axis=1)) or 1.0
    return _listed(atoms, lambda x: np.array([np.linalg.norm(y - nearest(atoms, y)) for y in x]) / size)


def nearest(points: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The nearest point of a hull: nonnegative least squares (Lawson and Hanson, least distance programming)."""
    from scipy.optimize import nnls

    # in units of the distance, so that neither row of the system is small next to the other
    shifted = (points - x).reshape(len(points), -1)
    unit = np.linalg.norm(shifted, axis=1).max() or 1.0
    shares, _ = nnls(np.vstack([shifted.T / unit, np.ones(len(points))]), _at(shifted.shape[1] + 1, -1, 1.0))
    return np.tensordot(shares / shares.sum(), points, axes=1)


def _by_distance(support: Callable[..., np.ndarray], vertex: Callable[..., np.ndarray], width: float) -> Known:
    """Outside by the distance, in units of a width: Frank-Wolfe steps, corrected over all vertices that were met."""

    def distance(x: np.ndarray) -> float:
        if not np.isfinite(x).all():
            return np.nan
        met = [vertex(-x)]
        for _ in range(100):
            p = nearest(np.array(met), x)
            v = vertex(p - x)
            if inner(x - p, v - p) <= 1e-4 * np.linalg.norm(x - p) ** 2 + 1e-9 * width**2:
                break
            met.append(v)
        return float(np.linalg.norm(x - p))

    return Known(support, vertex, lambda x: np.array([distance(y) for y in x]) / (width or 1.0), bound=True)


@_of(sets.Counted)
def _counted(C: sets.Counted, shape: tuple[int, ...]) -> Known:
    return known(C.inner, shape)


@_of(sets.Oracle)
def _oracle(C: sets.Oracle, shape: tuple[int, ...]) -> Known:
    """The examples take the oracles of sets that are known."""
    own: Any = C.fun
    of = known(own.__self__, shape)
    return of if C.outside is not None else _by_distance(of.support, of.vertex, C.width or 1.0)


@_of(sets.ShiftScale)
def _shift_scale(C: sets.ShiftScale, shape: tuple[int, ...]) -> Known:
    of, axes = known(C.inner, shape), len(shape)
    shift = np.broadcast_to(np.asarray(C.shift, np.float64), shape)
    return Known(
        lambda g: C.scale * of.support(g) + inner(g, shift, axes),
        lambda g: C.scale * of.vertex(g) + shift,
        lambda x: of.outside((x - shift) / C.scale),
    )


@_of(sets.Flattened)
def _flattened(C: sets.Flattened, shape: tuple[int, ...]) -> Known:
    matrix = int(np.prod(shape[: C.rows])), int(np.prod(shape[C.rows :]))
    of = known(C.inner, matrix)

    def rows(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[: x.ndim - len(shape)], *matrix)

    return Known(
        lambda g: of.support(rows(g)), lambda g: of.vertex(rows(g)).reshape(shape), lambda x: of.outside(rows(x))
    )


@_of(sets.LinearImage)
def _image(C: sets.LinearImage, shape: tuple[int, ...]) -> Known:
    A = np.eye(shape[0]) if C.matrix is None else np.asarray(C.matrix, np.float64)
    of = known(C.inner, A.shape[1:])
    shift = np.broadcast_to(np.asarray(C.shift, np.float64), shape)
    return _by_distance(
        lambda g: of.support(g @ A) + inner(g, shift),
        lambda g: A @ of.vertex(g @ A) + shift,
        np.linalg.norm(A, 2) * diameter(of, A.shape[1:]),
    )


@_of(sets.MinkowskiSum)
def _sum(C: sets.MinkowskiSum, shape: tuple[int, ...]) -> Known:
    parts = [known(part, shape) for part in C.sets]
    return _by_distance(
        lambda g: np.sum([part.support(g) for part in parts], axis=0),
        lambda g: np.sum([part.vertex(g) for part in parts], axis=0),
        sum(diameter(part, shape) for part in parts),
    )


@_of(sets.HullOfUnion)
def _union(C: sets.HullOfUnion, shape: tuple[int, ...]) -> Known:
    parts = [known(part, shape) for part in C.sets]

    def vertex(g: np.ndarray) -> np.ndarray:
        found = [part.vertex(g) for part in parts]
        return found[_first_largest([-inner(g, v, len(shape)) for v in found])]

    def support(g: np.ndarray) -> np.ndarray:
        return np.max([part.support(g) for part in parts], axis=0)

    # its diameter is a bound, and no more is known of the unit of a violation: centres are the package's
    return _by_distance(support, vertex, C.diameter(np.zeros(shape)))


def _of_blocks(blocks: list[tuple[Known, Any]], shape: tuple[int, ...]) -> Known:
    """A product: each set with where its vector is in a point."""

    def vertex(g: np.ndarray) -> np.ndarray:
        v = np.zeros(shape)
        for of, at in blocks:
            v[at] = of.vertex(g[at])
        return v

    return Known(
        lambda g: np.sum([of.support(g[at]) for of, at in blocks], axis=0),
        vertex,
        lambda x: np.max([of.outside(x[at]) for of, at in blocks], axis=0),
    )


@_of(sets.Columns)
def _columns(C: sets.Columns, shape: tuple[int, ...]) -> Known:
    return _of_blocks([(known(C.inner, shape[:1]), (..., slice(None), j)) for j in range(shape[1])], shape)


@_of(sets.Rows)
def _rows(C: sets.Rows, shape: tuple[int, ...]) -> Known:
    return _of_blocks([(known(C.inner, shape[1:]), (..., i, slice(None))) for i in range(shape[0])], shape)


@_of(sets.Groups)
def _by_group(C: sets.Groups, shape: tuple[int, ...]) -> Known:
    return _of_blocks([(known(C.inner, (len(G),)), (..., G)) for G in _groups(C.groups, *shape)], shape)


@_of(sets.Product)
def _blocks(C: sets.Product, shape: tuple[int, ...]) -> Known:
    sizes = C.sizes or (shape[0] // len(C.sets),) * len(C.sets)
    ends = np.cumsum(sizes)
    cuts = [(..., slice(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    return _of_blocks([(known(part, (n,)), at) for part, n, at in zip(C.sets, sizes, cuts, strict=True)], shape)


# -- what follows from these -------------------------------------------------------------------------------------------


def diameter(of: Known, shape: tuple[int, ...]) -> float:
    """The largest distance of two vertices that are met from many directions, each step going on from the farthest."""
    n, best = int(np.prod(shape)), 0.0
    draw = np.random.default_rng(0)
    signs = np.array(list(product((-1.0, 0.0, 1.0), repeat=n))[: 3**n // 2]) if n <= 4 else np.eye(n)[:2]
    for u in np.concatenate([signs, draw.normal(size=(6, n))]).reshape(-1, *shape):
        length = 0.0
        for _ in range(100):
            apart = of.vertex(-u) - of.vertex(u)
            longer = float(np.linalg.norm(apart))
            if longer <= length * (1 + 1e-13):
                break
            length, u = longer, apart
        best = max(best, length)
    return best


# -- faces: from inequalities ------------------------------------------------------------------------------------------


class Polytope(NamedTuple):
    """``{x : A x <= b}``; an equation is two inequalities."""

    A: np.ndarray
    b: np.ndarray

    @property
    def size(self) -> float:
        return float(max(1e-300, abs(self.b).max()))

    def tight(self, x: np.ndarray) -> np.ndarray:
        """Which inequalities x meets with equality: they make its smallest face."""
        return self.b - self.A @ x <= 1e-6 * self.size

    def tangent(self, d: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The part of d along which no tight inequality changes."""
        met = self.A[self.tight(x)]
        return d - np.linalg.pinv(met, rcond=1e-10) @ (met @ d) if len(met) else d

    def reach(self, d: np.ndarray, x: np.ndarray) -> float:
        """The last alpha at which ``A (x + alpha d) <= b``."""
        best = np.inf
        for row, bound in zip(self.A, self.b, strict=True):
            rise = row @ d
            if rise > 1e-9 * np.linalg.norm(row) * np.linalg.norm(d):
                best = min(best, max(bound - row @ x, 0.0) / rise)
        return best

    def slide(self, d: np.ndarray, x: np.ndarray) -> np.ndarray:
        """End of the path of length ``|d|`` that turns into each face."""
        left = 1.0
        for _ in range(len(self.b) + 1):
            along = self.tangent(d, x)
            step = min(self.reach(along, x), left)
            if not left or not np.linalg.norm(along) > 1e-9 * np.linalg.norm(d):
                break
            x, left = x + step * along, left - step
        return x

    @property
    def vertices(self) -> np.ndarray:
        """Where as many inequalities as there are entries are met, and all others hold."""
        n = self.A.shape[1]
        rows = np.array(list(combinations(range(len(self.b)), n)))
        some = rows[abs(np.linalg.det(self.A[rows])) > 1e-9]
        points = np.linalg.solve(self.A[some], self.b[some][..., None])[..., 0]
        points = points[(points @ self.A.T <= self.b + 1e-9 * self.size).all(-1)]
        _, first = np.unique(np.round(points, 9), axis=0, return_index=True)
        return points[np.sort(first)] + 0.0


def polytope(C: Any, n: int) -> Polytope:
    """The inequalities of a set of vectors of n entries that describes its faces."""
    eye = np.eye(n)
    if isinstance(C, sets.Box):
        low, high = (np.broadcast_to(np.asarray(b, np.float64), n) for b in (C.lower, C.upper))
        return Polytope(np.concatenate([eye, -eye]), np.concatenate([high, -low]))
    if isinstance(C, sets.LinfBall):
        return Polytope(np.concatenate([eye, -eye]), np.full(2 * n, C.radius))
    if isinstance(C, sets.L1Ball):
        return Polytope(np.array(list(product((-1.0, 1.0), repeat=n))), np.full(2**n, C.radius))
    if isinstance(C, sets.Simplex):
        return Polytope(
            np.vstack([-eye, np.ones(n), -np.ones(n)]), np.concatenate([np.zeros(n), [C.radius, -C.radius]])
        )
    if isinstance(C, sets.CappedSimplex):
        return Polytope(np.vstack([-eye, np.ones(n)]), np.append(np.zeros(n), C.radius))
    if isinstance(C, sets.WeightedSimplex):
        a, low = (np.broadcast_to(np.asarray(x, np.float64), n) for x in (C.weights, C.lower))
        return Polytope(np.vstack([-eye, a]), np.append(-low, C.bound))
    if isinstance(C, sets.ShiftScale):
        A, b = polytope(C.inner, n)
        return Polytope(A / C.scale, b + A @ np.broadcast_to(np.asarray(C.shift, np.float64), n) / C.scale)
    if isinstance(C, sets.Counted):
        return polytope(C.inner, n)
    if isinstance(C, sets.Product):
        sizes = C.sizes or (n // len(C.sets),) * len(C.sets)
        parts = [polytope(part, size) for part, size in zip(C.sets, sizes, strict=True)]
        A, at = np.zeros((sum(len(p.b) for p in parts), n)), np.cumsum([0, *sizes])
        row = 0
        for p, start in zip(parts, at, strict=False):
            A[row : row + len(p.b), start : start + p.A.shape[1]] = p.A
            row += len(p.b)
        return Polytope(A, np.concatenate([p.b for p in parts]))
    raise LookupError(f"{type(C).__name__} has no inequalities in xvarpro_conformance.references.sets")
