"""Sets of vectors by their definitions, in plain NumPy.

Ties are decided in rational arithmetic: two entries tie where their numbers are equal, not where rounding says so.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from xvarpro import sets
from xvarpro_conformance.references import definitions as words
from xvarpro_conformance.references.definitions import Known, defines

# -- balls, boxes and simplices ----------------------------------------------------------------------------------------


@defines(sets.Box)
def _box(C: sets.Box, shape: tuple[int, ...]) -> Known:
    low, high = (np.broadcast_to(np.asarray(b, np.float64), shape) for b in (C.lower, C.upper))
    axes = tuple(range(-len(shape), 0))
    size = np.maximum(high - low, np.maximum(abs(low), abs(high)))
    size = np.where(size == 0, 1.0, size)
    return Known(
        lambda g: np.sum(np.maximum(g * low, g * high), axis=axes),
        lambda g: np.where(g < 0, high, low),
        lambda x: np.max(words.worst(low - x, x - high) / size, axis=axes),
    )


@defines(sets.L1Ball)
def _l1(C: sets.L1Ball, shape: tuple[int, ...]) -> Known:
    def vertex(g: np.ndarray) -> np.ndarray:
        i = words.first_largest(words.exact(abs(g)))
        return words.at(len(g), i, -C.radius * words.sign(g[i]))

    return Known(lambda g: C.radius * abs(g).max(-1), vertex, lambda x: words.excess(abs(x).sum(-1), C.radius))


@defines(sets.LinfBall)
def _linf(C: sets.LinfBall, shape: tuple[int, ...]) -> Known:
    return Known(
        lambda g: C.radius * abs(g).sum(-1),
        lambda g: -C.radius * words.sign(g),
        lambda x: words.excess(abs(x).max(-1), C.radius),
    )


@defines(sets.L2Ball)
def _l2(C: sets.L2Ball, shape: tuple[int, ...]) -> Known:
    c = np.broadcast_to(np.asarray(C.offset, np.float64), shape)
    size = max(float(np.linalg.norm(c)), C.radius) or 1.0
    return Known(
        lambda g: words.inner(g, c) + C.radius * words.norm(g),
        lambda g: c - C.radius * words.unit(g),
        lambda x: words.worst(words.norm(x - c) - C.radius) / size,
    )


@defines(sets.NonnegativeL2Ball)
def _nonnegative_l2(C: sets.NonnegativeL2Ball, shape: tuple[int, ...]) -> Known:
    return Known(
        lambda g: C.radius * words.norm(np.maximum(g, 0.0)),
        lambda g: C.radius * words.unit(np.maximum(-g, 0.0)),
        lambda x: words.worst((-x).max(-1) / (C.radius or 1.0), words.excess(words.norm(x), C.radius)),
    )


@defines(sets.LpBall)
def _lp(C: sets.LpBall, shape: tuple[int, ...]) -> Known:
    q = C.p / (C.p - 1)

    def vertex(g: np.ndarray) -> np.ndarray:
        if not g.any():
            return 0 * g
        share = (abs(g) / abs(g).max()) ** (q - 1)
        return -C.radius * words.sign(g) * share / np.linalg.norm(share, C.p)

    return Known(lambda g: C.radius * words.norm(g, q), vertex, lambda x: words.excess(words.norm(x, C.p), C.radius))


@defines(sets.Ellipsoid)
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
        lambda g: words.inner(g, c) + C.radius * length(g, inverse),
        vertex,
        lambda x: words.worst(length(x - c, A) - C.radius) / size,
    )


@defines(sets.Simplex)
def _simplex(C: sets.Simplex, shape: tuple[int, ...]) -> Known:
    return Known(
        lambda g: C.radius * g.max(-1),
        lambda g: words.at(len(g), words.first_largest(words.exact(-g)), C.radius),
        lambda x: words.worst((-x).max(-1), abs(x.sum(-1) - C.radius)) / (C.radius or 1.0),
    )


@defines(sets.CappedSimplex)
def _capped(C: sets.CappedSimplex, shape: tuple[int, ...]) -> Known:
    def vertex(g: np.ndarray) -> np.ndarray:
        i = words.first_largest(words.exact(-g))
        return words.at(len(g), i, C.radius if g[i] < 0 else 0.0)

    return Known(
        lambda g: C.radius * np.maximum(g.max(-1), 0.0),
        vertex,
        lambda x: words.worst((-x).max(-1), x.sum(-1) - C.radius) / (C.radius or 1.0),
    )


@defines(sets.WeightedSimplex)
def _weighted_simplex(C: sets.WeightedSimplex, shape: tuple[int, ...]) -> Known:
    a, low = (np.broadcast_to(np.asarray(x, np.float64), shape) for x in (C.weights, C.lower))
    room = C.bound - a @ low
    rise = room / a
    size = np.maximum(rise, abs(low))
    size = np.where(size == 0, 1.0, size)
    total = max(room, a @ abs(low)) or 1.0

    def vertex(g: np.ndarray) -> np.ndarray:
        i = words.first_largest([-s / w for s, w in zip(words.exact(g), words.exact(a), strict=True)])
        return low + words.at(len(g), i, rise[i] if g[i] < 0 else 0.0)

    return Known(
        lambda g: words.inner(g, low) + np.maximum((rise * g).max(-1), 0.0),
        vertex,
        lambda x: words.worst(((low - x) / size).max(-1), ((x - low) @ a - room) / total),
    )


@defines(sets.WeightedL1Ball)
def _weighted_l1(C: sets.WeightedL1Ball, shape: tuple[int, ...]) -> Known:
    widths, c = (np.broadcast_to(np.asarray(x, np.float64), shape) for x in (C.widths, C.offset))
    wide = widths > 0
    weights = np.where(wide, 1 / np.where(wide, widths, 1.0), 0.0)
    unit, stray = max(float(weights @ abs(c)), 1.0), float(max(widths.max(), abs(c).max())) or 1.0

    def vertex(g: np.ndarray) -> np.ndarray:
        i = words.first_largest([w * s for w, s in zip(words.exact(widths), words.exact(abs(g)), strict=True)])
        i = i if widths[i] > 0 else int(np.argmax(widths))
        return c + words.at(len(g), i, -widths[i] * words.sign(g[i]))

    def outside(x: np.ndarray) -> np.ndarray:
        size = abs(x - c)
        return words.worst((size @ weights - 1) / unit, np.where(wide, 0.0, size).max(-1) / stray)

    return Known(lambda g: words.inner(g, c) + (widths * abs(g)).max(-1), vertex, outside)


@defines(sets.ContinuousKnapsack)
def _knapsack(C: sets.ContinuousKnapsack, shape: tuple[int, ...]) -> Known:
    a = np.broadcast_to(np.asarray(C.weights, np.float64), shape)

    def support(g: np.ndarray) -> np.ndarray:
        # the dual: min over y >= 0 of y bound + sum max(g - y a, 0), at 0 or where a term begins
        prices = np.concatenate([0 * g[..., :1], np.maximum(g / a, 0.0)], axis=-1)[..., None]
        rest = np.maximum(g[..., None, :] - prices * a, 0.0)
        return np.min(prices[..., 0] * C.bound + rest.sum(-1), axis=-1)

    def vertex(g: np.ndarray) -> np.ndarray:
        v, left, weights = np.zeros(len(g)), Fraction(C.bound), words.exact(a)
        for i in words.largest_first([-s / w for s, w in zip(words.exact(g), weights, strict=True)]):
            if g[i] < 0:
                share = min(left / weights[i], Fraction(1))
                v[i], left = float(share), left - share * weights[i]
        return v

    return Known(
        support,
        vertex,
        lambda x: words.worst((-x).max(-1), x.max(-1) - 1, (x @ a - C.bound) / (C.bound or 1.0)),
    )


# -- groups, sorted norms and sequences --------------------------------------------------------------------------------


@defines(sets.GroupL12Ball)
def _group_l12(C: sets.GroupL12Ball, shape: tuple[int, ...]) -> Known:
    groups = words.groups_of(C.groups, *shape)

    def norms(x: np.ndarray) -> np.ndarray:
        return np.stack([words.norm(x[..., G]) for G in groups], axis=-1)

    def vertex(g: np.ndarray) -> np.ndarray:
        G = groups[words.first_largest([sum(s * s for s in words.exact(g[G])) for G in groups])]
        return words.at(len(g), G, -C.radius * words.unit(g[G]))

    return Known(lambda g: C.radius * norms(g).max(-1), vertex, lambda x: words.excess(norms(x).sum(-1), C.radius))


@defines(sets.GroupL1InfBall)
def _group_l1inf(C: sets.GroupL1InfBall, shape: tuple[int, ...]) -> Known:
    groups = words.groups_of(C.groups, *shape)

    def vertex(g: np.ndarray) -> np.ndarray:
        G = groups[words.first_largest([sum(words.exact(abs(g[G]))) for G in groups])]
        return words.at(len(g), G, -C.radius * words.sign(g[G]))

    return Known(
        lambda g: C.radius * np.max([abs(g[..., G]).sum(-1) for G in groups], axis=0),
        vertex,
        lambda x: words.excess(np.sum([abs(x[..., G]).max(-1) for G in groups], axis=0), C.radius),
    )


@defines(sets.KSparsePolytope)
def _k_sparse(C: sets.KSparsePolytope, shape: tuple[int, ...]) -> Known:
    def vertex(g: np.ndarray) -> np.ndarray:
        some = words.largest_first(words.exact(abs(g)))[: C.k]
        return words.at(len(g), some, -C.radius * words.sign(g[some]))

    return Known(
        lambda g: C.radius * words.falling(abs(g))[..., : C.k].sum(-1),
        vertex,
        lambda x: words.worst(words.excess(abs(x).max(-1), C.radius), words.excess(abs(x).sum(-1), C.k * C.radius)),
    )


def _beyond(x: np.ndarray, radius: float) -> np.ndarray:
    return words.worst((-x).max(-1), x.max(-1) - radius) / (radius or 1.0)


@defines(sets.Hypersimplex)
def _hypersimplex(C: sets.Hypersimplex, shape: tuple[int, ...]) -> Known:
    total = C.k * C.radius
    return Known(
        lambda g: C.radius * words.falling(g)[..., : C.k].sum(-1),
        lambda g: words.at(len(g), words.largest_first(words.exact(-g))[: C.k], C.radius),
        lambda x: words.worst(_beyond(x, C.radius), abs(x.sum(-1) - total) / (total or 1.0)),
    )


@defines(sets.UnitHypersimplex)
def _unit_hypersimplex(C: sets.UnitHypersimplex, shape: tuple[int, ...]) -> Known:
    return Known(
        lambda g: C.radius * np.maximum(words.falling(g)[..., : C.k], 0.0).sum(-1),
        lambda g: words.at(len(g), [i for i in words.largest_first(words.exact(-g))[: C.k] if g[i] < 0], C.radius),
        lambda x: words.worst(_beyond(x, C.radius), words.excess(x.sum(-1), C.k * C.radius)),
    )


@defines(sets.KNormBall)
def _k_norm(C: sets.KNormBall, shape: tuple[int, ...]) -> Known:
    def vertex(g: np.ndarray) -> np.ndarray:
        size = words.exact(abs(g))
        one = words.first_largest(size)
        # of two balls of which one holds the other only the larger has vertices of the hull
        if C.k == 1 or (C.k < len(g) and sum(size) > C.k * size[one]):
            return -C.radius / C.k * words.sign(g)
        return words.at(len(g), one, -C.radius * words.sign(g[one]))

    return Known(
        lambda g: C.radius * np.maximum(abs(g).max(-1), abs(g).sum(-1) / C.k),
        vertex,
        lambda x: words.excess(words.falling(abs(x))[..., : C.k].sum(-1), C.radius),
    )


@defines(sets.OWLBall)
def _owl(C: sets.OWLBall, shape: tuple[int, ...]) -> Known:
    weights = np.broadcast_to(np.asarray(C.weights, np.float64), shape)

    def vertex(g: np.ndarray) -> np.ndarray:
        size, w, n = words.exact(abs(g)), words.exact(weights), len(g)
        order = words.largest_first(size)
        # k entries are no vertex where one more costs nothing, nor, for k > 1, where all of them cost the same
        counts = [k for k in range(1, n + 1) if (k == n or w[k] > 0) and (k == 1 or w[k - 1] < w[0])]
        gains = [sum(size[i] for i in order[:k]) / sum(w[:k]) for k in counts]
        k = counts[words.first_largest(gains)]
        some = order[:k]
        return words.at(n, some, -C.radius / float(sum(w[:k])) * words.sign(g[some]))

    return Known(
        lambda g: C.radius * np.max(np.cumsum(words.falling(abs(g)), axis=-1) / np.cumsum(weights), axis=-1),
        vertex,
        lambda x: words.excess(words.falling(abs(x)) @ weights, C.radius),
    )


@defines(sets.Permutahedron)
def _permutahedron(C: sets.Permutahedron, shape: tuple[int, ...]) -> Known:
    (n,) = shape
    w = words.falling(np.arange(n, 0.0, -1.0) if C.weights is None else np.asarray(C.weights, np.float64))
    size = abs(w).sum() or 1.0

    def outside(x: np.ndarray) -> np.ndarray:
        # majorised by w: no k entries sum to more than its k largest, and all to as much
        over = np.cumsum(words.falling(x) - w, axis=-1)
        return words.worst(over.max(-1), -over[..., -1]) / size

    return Known(
        lambda g: words.falling(g) @ w,
        lambda g: words.at(n, words.largest_first(words.exact(-g)), w),
        outside,
    )


@defines(sets.OrderedBox)
def _ordered(C: sets.OrderedBox, shape: tuple[int, ...]) -> Known:
    (n,) = shape
    steps = np.array([[C.lower] * k + [C.upper] * (n - k) for k in range(n + 1)])
    size = max(abs(C.lower), abs(C.upper)) or 1.0

    def vertex(g: np.ndarray) -> np.ndarray:
        exact = words.exact(g)
        return steps[words.first_largest([sum(exact[:k], Fraction(0)) for k in range(n + 1)])]

    return Known(
        lambda g: np.max(g @ steps.T, axis=-1),
        vertex,
        lambda x: (
            words.worst(C.lower - x.min(-1), x.max(-1) - C.upper, -np.diff(x, axis=-1).min(-1, initial=0.0)) / size
        ),
    )


@defines(sets.TotalVariationBall)
def _variation(C: sets.TotalVariationBall, shape: tuple[int, ...]) -> Known:
    (n,) = shape

    def vertex(g: np.ndarray) -> np.ndarray:
        exact = words.exact(g)
        mean = sum(exact) / n
        sums = [sum(exact[:k]) - k * mean for k in range(1, n)]
        best = words.first_largest([abs(s) for s in sums])
        k, rise = best + 1, C.radius * (-1.0 if sums[best] < 0 else 1.0)
        return np.array([rise * (k / n - 1)] * k + [rise * k / n] * (n - k))

    def support(g: np.ndarray) -> np.ndarray:
        sums = np.cumsum(g - g.mean(-1, keepdims=True), axis=-1)
        return C.radius * abs(sums[..., :-1]).max(-1)

    def outside(x: np.ndarray) -> np.ndarray:
        mean = abs(x.sum(-1)) / n / (C.radius or 1.0)
        return words.worst(mean, words.excess(abs(np.diff(x, axis=-1)).sum(-1), C.radius))

    return Known(support, vertex, outside)
