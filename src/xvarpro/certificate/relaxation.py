"""Lower bounds of ``min over w in W of 1/2 |M(theta) w - y(theta)|^2`` over boxes of theta.

With A = [M, y], any vector u(theta) and v = (-w, 1),

    1/2 |A(theta) v|^2  >=  u(theta)^T A(theta) v - 1/2 |u(theta)|^2,

which is linear in w. Here u(theta) is the residual at the centre of the box and its derivative there, so that what
multiplies the change of w vanishes to first order. What is left is a quadratic of theta and remainders of third order.
The change of w is bounded by the variational inequalities of the minimisers at the centre and at theta. Nothing is
assumed of how well w, u or any factorisation was computed; what rounding adds is bounded in the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xvarpro.certificate.intervals import EPS

MOVES = 0.5  # of its size: how much a row may change that counts in a second try
SWEEPS = 12  # over the coordinates of a convex quadratic


class Polynomial(NamedTuple):
    """A(s) for s in [-1, 1]^p: `terms` (b, 1 + p + p (p + 1) / 2, m, n + 1) of 1, s_k and s_k s_l, k <= l, up to `off`.

    `off` (b, m, n + 1) bounds what each entry may differ from the polynomial anywhere in the box.
    """

    terms: np.ndarray
    off: np.ndarray


class Bounds(NamedTuple):
    """Of each box: the bound, ``-inf`` where there is none; the objective at its centre; entries' parts in the loss."""

    lower: np.ndarray
    centre: np.ndarray
    parts: np.ndarray


def bounds(A: Polynomial, lower: np.ndarray, upper: np.ndarray, reach: float) -> Bounds:
    """The bounds of boxes for ``lower <= w <= upper``, or, where w >= 0, for those with residuals up to `reach`.

    Fewer squares are a lower bound: rows without enclosures, as at a pole, count as 0. Where that leaves no bound above
    0, so do rows that change much, both against their own size and that of the rows that do not.
    """
    with np.errstate(all="ignore"):
        change, size = np.abs(A.terms[:, 1:]).sum(1) + A.off, np.abs(A.terms[:, 0])
        known = np.isfinite(size + change).all(2)
        found = _of_rows(A, known, lower, upper, reach)
        change, size = (np.where(known, x[..., :-1].max(2), 0.0) for x in (change, size))
        steady = np.where(change < MOVES * size, size, 0.0)
        fewer = known & (change <= np.maximum(MOVES * size, MOVES**2 * np.sqrt(np.square(steady).sum(1))[:, None]))
        again = np.flatnonzero(~(found.lower > 0) & (fewer < known).any(1))
        if len(again):
            other = _of_rows(Polynomial(A.terms[again], A.off[again]), fewer[again], lower, upper, reach)
            better = other.lower > found.lower[again]
            found.lower[again[better]], found.parts[again[better]] = other.lower[better], other.parts[better]
    return found


def _of_rows(A: Polynomial, known: np.ndarray, lower: np.ndarray, upper: np.ndarray, reach: float) -> Bounds:
    """Those of some rows, with columns that get norms near 1: by powers of 2, which round nothing."""
    terms, off = np.where(known[:, None, :, None], A.terms, 0.0), np.where(known[..., None], A.off, 0.0)
    norms = np.sqrt(np.square(terms[:, 0, :, :-1]).sum(1))
    units = np.exp2(np.round(np.log2(np.where(norms > 0, norms, 1.0))))
    divisors = np.concatenate([units, np.ones((len(units), 1))], axis=-1)[:, None]
    scaled = Polynomial(terms / divisors[:, None], off / divisors)
    cone = not lower.any() and np.isinf(upper).all()
    most = _largest(scaled, reach) if cone else np.full(units.shape, np.inf)
    found = _bounds(scaled, lower * units, upper * units, most)
    bound = np.where(np.isfinite(found.lower), found.lower, -np.inf)
    return Bounds(bound, np.where(known.all(1), found.centre, np.inf), found.parts)


def _bounds(A: Polynomial, lower: np.ndarray, upper: np.ndarray, most: np.ndarray) -> Bounds:
    P, off = A
    b, count, m, N = P.shape
    n, (p, i, j) = N - 1, _entries(count)
    M0, first, second = P[:, 0, :, :n], slice(1, p + 1), slice(p + 1, None)
    Q, R = np.linalg.qr(M0)
    w, free = _weights(R, np.einsum("bmn,bm->bn", Q, P[:, 0, :, n]), lower, upper)
    v = np.concatenate([-w, np.ones((b, 1))], axis=-1)
    X = np.einsum("bkmn,bn->bkm", P, v)  # the residual at this w
    r, inverse = X[:, 0], np.linalg.pinv(R)
    span = R * free[:, None, :]
    face = np.linalg.pinv(span)
    moved = np.einsum("bnj,bkmn,bm->bkj", face, P[:, first, :, :n] * free[:, None, None], r, optimize=True)
    moved = np.einsum("bij,bjl,bkl->bki", span, face, moved + np.einsum("bmn,bkm->bkn", Q, X[:, first]))
    u = X[:, first] - np.einsum("bmn,bkn->bkm", Q, moved)  # its derivative with the w that follows theta on its face
    U = np.concatenate([r[:, None], u, np.zeros_like(X[:, second])], axis=1)

    rounding = (m + N + 4 * p * p + 64) * EPS
    size, reach = np.abs(P).sum(1) + off, np.abs(U).sum(1)
    blur = rounding * np.einsum("bmn,bm->bn", size, reach)
    c, late = _product(P, U)  # A^T u
    late += np.einsum("bmn,bm->bn", off, reach) + blur

    # with the w of the centre
    squares = np.einsum("bkm,blm->bkl", U[:, : p + 1], U[:, : p + 1])
    q = np.einsum("bkn,bn->bk", c, v)
    q[:, 0] -= 0.5 * squares[:, 0, 0]
    q[:, first] -= squares[:, 0, first]
    q[:, second] -= np.where(i == j, 0.5, 1.0) * squares[:, 1 + i, 1 + j]
    H = np.zeros((b, p, p))
    H[:, i, j] = H[:, j, i] = np.where(i == j, 1.0, 0.5) * q[:, second]
    wide = np.einsum("bmn,bn->bm", off, np.abs(v))
    lost = np.abs(np.einsum("bkm,blm->bkl", X[:, second], u)).sum((1, 2)) + (wide * reach).sum(-1)
    lost += (np.abs(v) * blur).sum(-1) + rounding * (reach * reach).sum(-1)

    # |M inverse z| >= kept |z|, as long as the columns turn by less than their least singular value
    scaled = np.abs(inverse)
    turned = np.einsum("bkmn,bnj->bkmj", P[..., :n], inverse)
    error = np.eye(n) - np.einsum("bmn,bmj->bnj", turned[:, 0], turned[:, 0])
    loose = np.einsum("bmn,bnj->bmj", off[..., :n] + rounding * size[..., :n], scaled)
    turns = np.sqrt(np.square(turned[:, 1:]).sum((2, 3)))
    kept = np.sqrt(np.maximum(1 - np.sqrt(np.square(error).sum((1, 2))) - rounding * n, 0.0))
    kept = kept - (turns.sum(1) + np.sqrt(np.square(loose).sum((1, 2)))) * (1 + rounding) - rounding
    # the gradient in w at the centre's w, less a part of the centre's that points out of W, over the box: then
    # |M (w(theta) - w)|^2 <= - <gradient, w(theta) - w>
    e, high = _product(P[..., :n], X)
    outward = np.where(w == lower, np.minimum(e[:, 0], 0.0), np.maximum(e[:, 0], 0.0))
    e[:, 0] -= np.where(free, 0.0, outward)
    high += np.einsum("bmn,bm->bn", off[..., :n], np.abs(X).sum(1) + wide)
    high += np.einsum("bmn,bm->bn", size[..., :n], wide + rounding * np.einsum("bmn,bn->bm", size, np.abs(v)))
    radius = np.where(kept > 0, _norms(e, high, inverse) / np.square(np.maximum(kept, 1e-150)), np.inf)

    # what the change of w takes: from a box of w, or from a ball where there is one, in which the inverse misses none
    spread = np.abs(c[:, 1:]).sum(1) + late
    near = np.where(np.isfinite(radius)[:, None], radius[:, None] * np.sqrt(np.square(inverse).sum(-1)), np.inf)
    up = np.maximum(np.minimum(np.minimum(upper, most) - w, near), 0.0)
    down = np.maximum(np.minimum(w - np.maximum(lower, -most), near), 0.0)
    grows, falls = (np.maximum(sign * c[:, 0] + spread, 0.0)[:, :n] for sign in (1, -1))
    each = np.maximum(_times(up, grows), _times(down, falls))
    ball = radius * _norms(c[..., :n] * free[:, None], late[:, :n] * free, inverse) + np.where(free, 0.0, each).sum(-1)
    taken = np.where(np.isfinite(radius), np.minimum(ball, each.sum(-1)), each.sum(-1)) * (1 + 4 * rounding)
    bound = q[:, 0] + _least(q[:, first], H) - lost * (1 + rounding) - taken

    # what each entry of theta costs the bound, by the terms that have it: a product by both of its factors
    turn, plain = _of_entries(turns), _of_entries(np.sqrt(np.square(P[:, 1:, :, :n]).sum((2, 3))))
    cubic = 3 * _shares(plain)  # a remainder counts as of third order
    change, gradient = (
        _shares(_of_entries(_sizes(x, inverse)) + cubic * _sizes(y[:, None], np.abs(inverse)))
        for x, y in ((c[:, 1:, :n], late[:, :n]), (e[:, 1:], high))
    )
    change += np.where(ball <= each.sum(-1), gradient.T + 2 * turn.T / np.maximum(kept, 1e-3), 0.0).T
    parts = lost[:, None] * cubic + taken[:, None] * change
    return Bounds(bound, 0.5 * (r * r).sum(-1), parts)


def _of_entries(x: np.ndarray) -> np.ndarray:
    """Sizes of terms (b, count - 1), all but the constant, by the entries of theta that they have."""
    p, i, j = _entries(x.shape[1] + 1)
    return np.stack([x[:, k] + x[:, p:][:, (i == k) | (j == k)].sum(1) for k in range(p)], axis=1)


def _shares(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(x.sum(1), 1e-300)[:, None]


def _sizes(terms: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """``|inverse^T c|`` of each term c."""
    return np.asarray(np.sqrt(np.square(np.einsum("bkn,bni->bki", terms, inverse)).sum(-1)))


def _entries(count: int) -> tuple[int, np.ndarray, np.ndarray]:
    """How many entries theta has, and the pairs of the terms of second order."""
    p = next(p for p in range(count) if 1 + p + p * (p + 1) // 2 == count)
    return p, *np.triu_indices(p)


def _product(P: np.ndarray, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``P(s)^T X(s)``, for terms (b, k, m, n) and (b, k, m): up to the second order, and a bound of the others."""
    p, i, j = _entries(P.shape[1])
    all_ = np.einsum("bkmn,blm->bkln", P, X, optimize=True)
    found = all_[:, 0] + all_[:, :, 0]
    found[:, 0] = all_[:, 0, 0]
    found[:, p + 1 :] += all_[:, 1 + i, 1 + j] + np.where(i == j, 0.0, 1.0)[:, None] * all_[:, 1 + j, 1 + i]
    rest = np.abs(all_[:, 1:, 1:])
    return found, rest.sum((1, 2)) - rest[:, :p, :p].sum((1, 2))


def _norms(terms: np.ndarray, off: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """A bound of ``|inverse^T c(s)|`` over the box, for terms (b, k, n)."""
    return np.asarray(_sizes(terms, inverse).sum(-1) + _sizes(off[:, None], np.abs(inverse))[:, 0])


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Products in which 0 times infinity is 0."""
    return np.where(b == 0, 0.0, a * np.where(b == 0, 1.0, b))


def _least(g: np.ndarray, H: np.ndarray) -> np.ndarray:
    """A lower bound of ``g^T s + s^T H s`` over ``[-1, 1]^p``, by Frank-Wolfe's gap of a convex quadratic below it."""
    p, size = g.shape[-1], np.abs(H).sum((1, 2))
    sound = np.isfinite(size + np.abs(g).sum(1))
    g, H = np.where(sound[:, None], g, 0.0), np.where(sound[:, None, None], H, 0.0)
    shift = np.maximum(0.0, -np.linalg.eigvalsh(H)[:, 0]) + 64 * p * EPS * np.where(sound, size, 0.0)
    C = H + shift[:, None, None] * np.eye(p)
    s = np.zeros_like(g)
    for k in list(range(p)) * SWEEPS:
        slope = g[:, k] + 2 * np.einsum("bl,bl->b", C[:, k], s) - 2 * C[:, k, k] * s[:, k]
        s[:, k] = np.clip(-slope / np.maximum(2 * C[:, k, k], 1e-300), -1.0, 1.0)
    bent = np.einsum("bkl,bl->bk", C, s)
    slope = g + 2 * bent
    gap = (slope * s + np.abs(slope)).sum(1)
    found = (g * s + s * bent).sum(1) - gap - p * shift - 64 * p * p * EPS * (np.abs(g).sum(1) + size)
    return np.where(sound, found, -np.inf)


def _weights(R: np.ndarray, z: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Minimisers of ``|R w - z|`` between bounds, and which of them are free, by exchanges of those that violate."""
    free = np.ones((len(R), R.shape[-1]), dtype=bool)
    bound = np.where(np.isfinite(lower), lower, np.where(np.isfinite(upper), upper, 0.0)) * np.ones(free.shape)
    noise = 64 * EPS * np.sqrt(np.square(R).sum(1) * np.square(z).sum(1)[:, None])
    for step in range(2 ** R.shape[-1] + 2 * R.shape[-1]):
        held = np.where(free, 0.0, bound)
        rest = z - np.einsum("bij,bj->bi", R, held)
        w = held + np.einsum("bij,bj->bi", np.linalg.pinv(R * free[:, None, :]), rest) * free
        slope = np.einsum("bij,bi->bj", R, np.einsum("bij,bj->bi", R, w) - z)
        below, above = free & (w < lower), free & (w > upper)
        back = ~free & np.where(bound == lower, slope < -noise, slope > noise)
        wrong = below | above | back
        if not wrong.any():
            break
        if step > R.shape[-1]:  # all together may cycle, the last alone does not
            wrong &= np.cumsum(wrong[:, ::-1], axis=1)[:, ::-1] == 1
        bound = np.where(below & wrong, lower, np.where(above & wrong, upper, bound))
        free ^= wrong
    inside = np.clip(w, lower, upper)
    return inside, (inside > lower) & (inside < upper)


def _largest(A: Polynomial, reach: float) -> np.ndarray:
    """Upper bounds (b, n) of each entry of a ``w >= 0`` with ``|M(theta) w - y(theta)| <= reach`` somewhere in a box.

    Any vector x says ``sum_k (x^T a_k) w_k <= x^T y + |x| reach``. For entry j, x is the shortest of ``a_j`` plus a
    nonnegative combination of the other columns: no x^T a_k is negative then at the centre. Those that are in the box
    bring the entries into each other's bounds, which a linear system undoes.
    """
    P, off = A
    b, _, m, N = P.shape
    n = N - 1
    Q, R = np.linalg.qr(P[:, 0, :, :n])
    low, top = np.empty((b, n, n)), np.empty((b, n))
    for j in range(n):
        others = R[..., np.arange(n) != j]
        w = _weights(others, -R[..., j], np.zeros(n - 1), np.full(n - 1, np.inf))[0] if n > 1 else np.zeros((b, 0))
        x = np.einsum("bmi,bi->bm", Q, R[..., j] + np.einsum("bij,bj->bi", others, w))
        x /= np.sqrt((x * x).sum(-1))[:, None]
        terms = np.einsum("bkmn,bm->bkn", P, x)
        spread = np.abs(terms[:, 1:]).sum(1)
        spread += np.einsum("bmn,bm->bn", off + 4 * m * EPS * (np.abs(P).sum(1) + off), np.abs(x))
        low[:, j], top[:, j] = (terms[:, 0] - spread)[:, :n], (terms[:, 0] + spread)[:, n] + reach * (1 + m * EPS)
    own = np.einsum("bjj->bj", low)
    sound = np.isfinite(low).all((1, 2)) & np.isfinite(top).all(1) & (own > 0).all(1)
    own = np.where(sound[:, None], own, 1.0)
    c = np.where(sound[:, None], np.maximum(top, 1e-9 * reach) / own, 1.0)
    T = np.where(sound[:, None, None], np.maximum(-low, 0.0) / own[..., None], 0.0)
    # w <= c + T w says w <= f for any f > 0 with f - T f > c: that f shows the powers of T to fall
    f = np.einsum("bij,bj->bi", np.linalg.pinv(np.eye(n) - T), c) * (1 + 1e-6)
    sound &= ((f > 0) & (f - np.einsum("bij,bj->bi", T, f) > c * (1 + 64 * n * EPS))).all(1)
    return np.where(sound[:, None], f, np.inf)
