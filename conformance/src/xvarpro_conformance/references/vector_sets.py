"""Sets of vectors by their definitions, in plain NumPy."""

from __future__ import annotations

import numpy as np

from xvarpro import sets
from xvarpro_conformance.references import definitions as words
from xvarpro_conformance.references.definitions import DEFINITIONS, Known, defines

# -- balls, boxes and simplices ----------------------------------------------------------------------------------------


DEFINITIONS.update(
    {
        sets.L1Ball: lambda C, _: Known(
            lambda g: C.radius * abs(g).max(-1), lambda x: words.excess(abs(x).sum(-1), C.radius), words.by_size
        ),
        sets.LinfBall: lambda C, _: Known(
            lambda g: C.radius * abs(g).sum(-1), lambda x: words.excess(abs(x).max(-1), C.radius), np.ones_like
        ),
        sets.NonnegativeL2Ball: lambda C, _: Known(
            lambda g: C.radius * words.norm(np.maximum(g, 0.0)),
            lambda x: words.worst((-x).max(-1) / (C.radius or 1.0), words.excess(words.norm(x), C.radius)),
            lambda g: np.where(g < 0, 0.0, 1.0),
        ),
        sets.LpBall: lambda C, _: Known(
            lambda g: C.radius * words.norm(g, C.p / (C.p - 1)), lambda x: words.excess(words.norm(x, C.p), C.radius)
        ),
        sets.Simplex: lambda C, _: Known(
            lambda g: C.radius * g.max(-1),
            lambda x: words.worst((-x).max(-1), abs(x.sum(-1) - C.radius)) / (C.radius or 1.0),
            words.by_value,
        ),
        sets.CappedSimplex: lambda C, _: Known(
            lambda g: C.radius * np.maximum(g.max(-1), 0.0),
            lambda x: words.worst((-x).max(-1), x.sum(-1) - C.radius) / (C.radius or 1.0),
            words.by_value,
        ),
        sets.KSparsePolytope: lambda C, _: Known(
            lambda g: C.radius * words.falling(abs(g))[..., : C.k].sum(-1),
            lambda x: words.worst(words.excess(abs(x).max(-1), C.radius), words.excess(abs(x).sum(-1), C.k * C.radius)),
            words.by_size,
        ),
        sets.Hypersimplex: lambda C, _: Known(
            lambda g: C.radius * words.falling(g)[..., : C.k].sum(-1),
            lambda x: words.worst(_beyond(x, C.radius), abs(x.sum(-1) - C.k * C.radius) / (C.k * C.radius or 1.0)),
            words.by_value,
        ),
        sets.UnitHypersimplex: lambda C, _: Known(
            lambda g: C.radius * np.maximum(words.falling(g)[..., : C.k], 0.0).sum(-1),
            lambda x: words.worst(_beyond(x, C.radius), words.excess(x.sum(-1), C.k * C.radius)),
            words.by_value,
        ),
        sets.KNormBall: lambda C, _: Known(
            lambda g: C.radius * np.maximum(abs(g).max(-1), abs(g).sum(-1) / C.k),
            lambda x: words.excess(words.falling(abs(x))[..., : C.k].sum(-1), C.radius),
            words.by_size,
        ),
    }
)


@defines(sets.Box)
def _box(C: sets.Box, shape: tuple[int, ...]) -> Known:
    low, high = (np.broadcast_to(np.asarray(b, np.float64), shape) for b in (C.lower, C.upper))
    axes = tuple(range(-len(shape), 0))
    size = np.maximum(high - low, np.maximum(abs(low), abs(high)))
    size = np.where(size == 0, 1.0, size)
    return Known(
        lambda g: np.sum(np.maximum(g * low, g * high), axis=axes),
        lambda x: np.max(words.worst(low - x, x - high) / size, axis=axes),
        np.ones_like,
    )


@defines(sets.L2Ball)
def _l2(C: sets.L2Ball, shape: tuple[int, ...]) -> Known:
    c = np.broadcast_to(np.asarray(C.offset, np.float64), shape)
    size = max(float(np.linalg.norm(c)), C.radius) or 1.0
    return Known(
        lambda g: words.inner(g, c) + C.radius * words.norm(g),
        lambda x: words.worst(words.norm(x - c) - C.radius) / size,
    )


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

    return Known(
        lambda g: words.inner(g, c) + C.radius * length(g, inverse),
        lambda x: words.worst(length(x - c, A) - C.radius) / size,
    )


@defines(sets.WeightedSimplex)
def _weighted_simplex(C: sets.WeightedSimplex, shape: tuple[int, ...]) -> Known:
    a, low = (np.broadcast_to(np.asarray(x, np.float64), shape) for x in (C.weights, C.lower))
    room = C.bound - a @ low
    rise = room / a
    size = np.maximum(rise, abs(low))
    size = np.where(size == 0, 1.0, size)
    total = max(room, a @ abs(low)) or 1.0

    return Known(
        lambda g: words.inner(g, low) + np.maximum((rise * g).max(-1), 0.0),
        lambda x: words.worst(((low - x) / size).max(-1), ((x - low) @ a - room) / total),
        lambda g: words.by_value(g, a),
    )


@defines(sets.WeightedL1Ball)
def _weighted_l1(C: sets.WeightedL1Ball, shape: tuple[int, ...]) -> Known:
    widths, c = (np.broadcast_to(np.asarray(x, np.float64), shape) for x in (C.widths, C.offset))
    wide = widths > 0
    weights = np.where(wide, 1 / np.where(wide, widths, 1.0), 0.0)
    unit, stray = max(float(weights @ abs(c)), 1.0), float(max(widths.max(), abs(c).max())) or 1.0

    def outside(x: np.ndarray) -> np.ndarray:
        size = abs(x - c)
        return words.worst((size @ weights - 1) / unit, np.where(wide, 0.0, size).max(-1) / stray)

    def ties(g: np.ndarray) -> np.ndarray:
        if widths[0] == 0 and not (widths * g).any():
            return widths  # the first has no vertex of its own: the widest one comes first
        return wide * words.by_size(g, 1 / np.where(wide, widths, 1.0))

    return Known(
        lambda g: words.inner(g, c) + (widths * abs(g)).max(-1),
        outside,
        ties,
    )


@defines(sets.ContinuousKnapsack)
def _knapsack(C: sets.ContinuousKnapsack, shape: tuple[int, ...]) -> Known:
    a = np.broadcast_to(np.asarray(C.weights, np.float64), shape)

    def support(g: np.ndarray) -> np.ndarray:
        # the dual: min over y >= 0 of y bound + sum max(g - y a, 0), at 0 or where a term begins
        prices = np.concatenate([0 * g[..., :1], np.maximum(g / a, 0.0)], axis=-1)[..., None]
        rest = np.maximum(g[..., None, :] - prices * a, 0.0)
        return np.min(prices[..., 0] * C.bound + rest.sum(-1), axis=-1)

    return Known(
        support,
        lambda x: words.worst((-x).max(-1), x.max(-1) - 1, (x @ a - C.bound) / (C.bound or 1.0)),
        lambda g: words.by_value(g, a),
    )


# -- groups, sorted norms and sequences --------------------------------------------------------------------------------


@defines(sets.GroupL12Ball)
def _group_l12(C: sets.GroupL12Ball, shape: tuple[int, ...]) -> Known:
    groups = words.groups_of(C.groups, *shape)

    def norms(x: np.ndarray) -> np.ndarray:
        return np.stack([words.norm(x[..., G]) for G in groups], axis=-1)

    return Known(
        lambda g: C.radius * norms(g).max(-1),
        lambda x: words.excess(norms(x).sum(-1), C.radius),
        lambda g: g * words.falling_over(groups),
    )


@defines(sets.GroupL1InfBall)
def _group_l1inf(C: sets.GroupL1InfBall, shape: tuple[int, ...]) -> Known:
    groups = words.groups_of(C.groups, *shape)

    return Known(
        lambda g: C.radius * np.max([abs(g[..., G]).sum(-1) for G in groups], axis=0),
        lambda x: words.excess(np.sum([abs(x[..., G]).max(-1) for G in groups], axis=0), C.radius),
        lambda g: words.sign(g) * words.falling_over(groups),
    )


def _beyond(x: np.ndarray, radius: float) -> np.ndarray:
    return words.worst((-x).max(-1), x.max(-1) - radius) / (radius or 1.0)


@defines(sets.OWLBall)
def _owl(C: sets.OWLBall, shape: tuple[int, ...]) -> Known:
    weights = np.broadcast_to(np.asarray(C.weights, np.float64), shape)

    return Known(
        lambda g: C.radius * np.max(np.cumsum(words.falling(abs(g)), axis=-1) / np.cumsum(weights), axis=-1),
        lambda x: words.excess(words.falling(abs(x)) @ weights, C.radius),
        words.by_size,
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
        outside,
        words.by_value,
    )


@defines(sets.OrderedBox)
def _ordered(C: sets.OrderedBox, shape: tuple[int, ...]) -> Known:
    (n,) = shape
    steps = np.array([[C.lower] * k + [C.upper] * (n - k) for k in range(n + 1)])
    size = max(abs(C.lower), abs(C.upper)) or 1.0

    return Known(
        lambda g: np.max(g @ steps.T, axis=-1),
        lambda x: (
            words.worst(C.lower - x.min(-1), x.max(-1) - C.upper, -np.diff(x, axis=-1).min(-1, initial=0.0)) / size
        ),
        lambda g: -np.ones(n),  # the first of the sums is the largest
    )


@defines(sets.TotalVariationBall)
def _variation(C: sets.TotalVariationBall, shape: tuple[int, ...]) -> Known:
    (n,) = shape

    def support(g: np.ndarray) -> np.ndarray:
        sums = np.cumsum(g - g.mean(-1, keepdims=True), axis=-1)
        return C.radius * abs(sums[..., :-1]).max(-1)

    def outside(x: np.ndarray) -> np.ndarray:
        mean = abs(x.sum(-1)) / n / (C.radius or 1.0)
        return words.worst(mean, words.excess(abs(np.diff(x, axis=-1)).sum(-1), C.radius))

    def ties(g: np.ndarray) -> np.ndarray:
        sums = np.cumsum(g - g.mean())
        return np.diff(words.sign(sums) * np.arange(n - 1.0, -1.0, -1.0), prepend=0.0)

    return Known(support, outside, ties)
