"""Sets by their definitions, in plain NumPy: of vectors, of matrices, of listed points, and made of sets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np

from xvarpro import sets
from xvarpro.sets.interface import Set
from xvarpro_conformance.references import definitions as words
from xvarpro_conformance.references.definitions import DEFINITIONS, Known, defines, known

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


# -- matrices ----------------------------------------------------------------------------------------------------------


def _of_values(values: Known) -> Known:
    """Matrices whose singular values lie in a set."""

    def singular(x: np.ndarray) -> np.ndarray:
        return np.linalg.svd(x, compute_uv=False)

    return Known(lambda g: values.support(singular(g)), lambda x: values.outside(singular(x)))


DEFINITIONS.update(
    {
        sets.NuclearBall: lambda C, shape: _of_values(known(sets.L1Ball(C.radius), (min(shape),))),
        sets.SpectralBall: lambda C, shape: _of_values(known(sets.LinfBall(C.radius), (min(shape),))),
        sets.SchattenBall: lambda C, shape: _of_values(known(sets.LpBall(C.p, C.radius), (min(shape),))),
    }
)


@defines(sets.Spectraplex, sets.UnitSpectrahedron, sets.Fantope)
def _of_eigenvalues(C: Any, shape: tuple[int, ...]) -> Known:
    """Hermitian matrices whose eigenvalues lie in a set; a gradient counts by its Hermitian part."""
    n, unit = shape[-1], 1.0
    if isinstance(C, sets.Fantope):
        values = known(sets.Hypersimplex(C.k), (n,))
    else:
        unit = C.radius or 1.0
        of_trace = sets.Simplex if isinstance(C, sets.Spectraplex) else sets.CappedSimplex
        values = known(of_trace(C.radius), (n,))

    def hermitian(x: np.ndarray) -> np.ndarray:
        return (x + np.conj(np.swapaxes(x, -2, -1))) / 2

    def outside(x: np.ndarray) -> np.ndarray:
        asymmetry = abs(x - hermitian(x)).max((-2, -1)) / unit
        return words.worst(values.outside(np.linalg.eigvalsh(hermitian(x))), asymmetry)

    return Known(lambda g: values.support(np.linalg.eigvalsh(hermitian(g))), outside)


@defines(sets.Birkhoff)
def _birkhoff(C: sets.Birkhoff, shape: tuple[int, ...]) -> Known:
    n = shape[-1]
    vertices = np.eye(n)[np.array(list(permutations(range(n))))]
    ones = np.ones(n)
    return _listed(vertices, lambda x: _sums_off(x, ones, ones, 1.0))


@defines(sets.Transport)
def _transport(C: sets.Transport, shape: tuple[int, ...]) -> Known:
    m, n = shape
    a = np.full(m, 1 / m) if C.a is None else np.asarray(C.a, np.float64)
    b = np.full(n, 1 / n) if C.b is None else np.asarray(C.b, np.float64)

    def largest(g: np.ndarray) -> float:
        from scipy.optimize import linprog

        rows = [np.outer(row, np.ones(n)).ravel() for row in np.eye(m)]
        columns = [np.outer(np.ones(m), column).ravel() for column in np.eye(n)]
        A, sums = np.array([*rows, *columns]), np.concatenate([a, b])
        return -float(linprog(-g.ravel(), A_eq=A, b_eq=sums, method="highs").fun)

    def support(g: np.ndarray) -> np.ndarray:
        return np.array([largest(x) for x in g.reshape(-1, m, n)]).reshape(g.shape[:-2])

    return Known(support, lambda x: _sums_off(x, a, b, max(a.max(), b.max())))


def _sums_off(x: np.ndarray, a: np.ndarray, b: np.ndarray, size: float) -> np.ndarray:
    rows, columns = abs(x.sum(-1) - a).max(-1), abs(x.sum(-2) - b).max(-1)
    return words.worst((-x).max((-2, -1)), rows, columns) / size


# -- sets of points and sets of sets -----------------------------------------------------------------------------------


def _listed(vertices: np.ndarray, outside: Callable[[np.ndarray], np.ndarray]) -> Known:
    """The hull of points."""
    rows, axes = vertices.reshape(len(vertices), -1), vertices.ndim - 1
    return Known(lambda g: (g.reshape(*g.shape[: g.ndim - axes], -1) @ rows.T).max(-1), outside)


@defines(sets.ConvexHull)
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
    shares, _ = nnls(np.vstack([shifted.T / unit, np.ones(len(points))]), np.append(0 * shifted[0], 1.0))
    return np.tensordot(shares / shares.sum(), points, axes=1)


def _by_distance(C: Set, support: Callable[..., np.ndarray], width: float) -> Known:
    """Outside by the distance, in units of a width: Frank-Wolfe steps, corrected over all vertices that were met."""

    def distance(x: np.ndarray) -> float:
        if not np.isfinite(x).all():
            return np.nan
        met = [np.asarray(C.lmo(-x))]
        for _ in range(100):
            p = nearest(np.array(met), x)
            v = np.asarray(C.lmo(p - x))
            if words.inner(x - p, v - p) <= 1e-4 * np.linalg.norm(x - p) ** 2 + 1e-9 * width**2:
                break
            met.append(v)
        return float(np.linalg.norm(x - p))

    return Known(support, lambda x: np.array([distance(y) for y in x]) / (width or 1.0), bound=True)


@defines(sets.Oracle)
def _oracle(C: sets.Oracle, shape: tuple[int, ...]) -> Known:
    """The examples take the oracles of sets that are known."""
    own: Any = C.fun
    of = known(own.__self__, shape)
    return of if C.outside is not None else _by_distance(C, of.support, C.width or 1.0)


@defines(sets.ShiftScale)
def _shift_scale(C: sets.ShiftScale, shape: tuple[int, ...]) -> Known:
    of, axes = known(C.inner, shape), len(shape)
    shift = np.broadcast_to(np.asarray(C.shift, np.float64), shape)
    return Known(
        lambda g: C.scale * of.support(g) + words.inner(g, shift, axes),
        lambda x: of.outside((x - shift) / C.scale),
        of.ties,
    )


@defines(sets.Flattened)
def _flattened(C: sets.Flattened, shape: tuple[int, ...]) -> Known:
    matrix = int(np.prod(shape[: C.rows])), int(np.prod(shape[C.rows :]))
    of = known(C.inner, matrix)

    def rows(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[: x.ndim - len(shape)], *matrix)

    return Known(lambda g: of.support(rows(g)), lambda x: of.outside(rows(x)))


@defines(sets.LinearImage)
def _image(C: sets.LinearImage, shape: tuple[int, ...]) -> Known:
    A = np.eye(shape[0]) if C.matrix is None else np.asarray(C.matrix, np.float64)
    of = known(C.inner, A.shape[1:])
    shift = np.broadcast_to(np.asarray(C.shift, np.float64), shape)
    width = np.linalg.norm(A, 2) * words.diameter(C.inner, A.shape[1:])
    return _by_distance(C, lambda g: of.support(g @ A) + words.inner(g, shift), width)


@defines(sets.MinkowskiSum)
def _sum(C: sets.MinkowskiSum, shape: tuple[int, ...]) -> Known:
    parts = [known(part, shape) for part in C.sets]
    width = sum(words.diameter(part, shape) for part in C.sets)
    return _by_distance(C, lambda g: np.sum([part.support(g) for part in parts], axis=0), width)


@defines(sets.HullOfUnion)
def _union(C: sets.HullOfUnion, shape: tuple[int, ...]) -> Known:
    parts = [known(part, shape) for part in C.sets]

    # its diameter is a bound, and no more is known of the unit of a violation: centres are the package's
    width = C.diameter(np.zeros(shape))
    return _by_distance(C, lambda g: np.max([part.support(g) for part in parts], axis=0), width)


def _of_blocks(blocks: list[tuple[Known, Any]], shape: tuple[int, ...]) -> Known:
    """A product: each set with where its vector is in a point."""

    def ties(g: np.ndarray) -> np.ndarray:
        way = np.zeros(shape)
        for of, at in blocks:
            way[at] = of.ties(g[at]) if of.ties else 0.0
        return way

    return Known(
        lambda g: np.sum([of.support(g[at]) for of, at in blocks], axis=0),
        lambda x: np.max([of.outside(x[at]) for of, at in blocks], axis=0),
        ties,
    )


DEFINITIONS.update(
    {
        sets.Columns: lambda C, shape: _of_blocks(
            [(known(C.inner, shape[:1]), (..., slice(None), j)) for j in range(shape[1])], shape
        ),
        sets.Rows: lambda C, shape: _of_blocks(
            [(known(C.inner, shape[1:]), (..., i, slice(None))) for i in range(shape[0])], shape
        ),
        sets.Groups: lambda C, shape: _of_blocks(
            [(known(C.inner, (len(G),)), (..., G)) for G in words.groups_of(C.groups, *shape)], shape
        ),
    }
)


@defines(sets.Product)
def _blocks(C: sets.Product, shape: tuple[int, ...]) -> Known:
    sizes = C.sizes or (shape[0] // len(C.sets),) * len(C.sets)
    ends = np.cumsum(sizes)
    cuts = [(..., slice(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    return _of_blocks([(known(part, (n,)), at) for part, n, at in zip(C.sets, sizes, cuts, strict=True)], shape)
