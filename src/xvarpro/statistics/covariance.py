"""The covariance of theta and w by linear theory: how a solution answers to a small change of its target.

A separable problem near its solution is a least-squares problem in ``(dtheta, dw)`` with the Jacobian ``[X, M]``, X the
tangents of the residual with w held. With ``M = Q R`` and ``P = I - Q Q^T``, which leaves the Schur complement
``X^T P X`` for theta (Kaufman 1975), a change dy of the target moves

```
dtheta = (X^T P X)^-1 X^T P dy              from a QR of P X, on the directions in which the sets let theta move
dw     = R^-1 Q^T (dy - X dtheta)           with the rows of a ridge below those of M
```

and noise in y of standard deviations ``D``, independent from entry to entry, gives theta and w the covariance
``K D^2 K^T`` with K the matrix of these maps. A ridge biases an estimate: this is its spread alone. On a curved
boundary the constraint adds its curvature to ``X^T P X``. Source: Seber and Wild, Nonlinear Regression (1989), chapters
2 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from xvarpro.lower.weight_sets.subspace import exchanged, own_rows
from xvarpro.statistics.linearised import Linearised

FLAT = 1e-6  # eigenvalues of the derivative of a projection below which a direction is one that the sets forbid
STRAIGHT = 1e-9  # and of 1 minus it, below which the boundary has no curvature
ROUNDING = 10  # times the precision of a number: what differences of such numbers may be off by
# angles of tangents below which they are one: a solve tells theta no nearer, so that equal rates seldom end as the same
ALIKE, ALIKE_EPS = 1e-7, 1e3  # radians, or this times the precision
LOST = 1e4  # times the precision: a number that is less than this of its terms has no three digits
SHARE = 0.02  # of what the data say, as rounding at its worst: it was 26 times that of errors or more where measured
NEGLIGIBLE = 1e-9  # parts of a direction without information below which it leaves an entry alone
# angles of tangents below which rounding takes the digits of what a direction adds to errors: entries to which it adds
# more than this share of an error are open
FAINT, ADDED = 1e-8, 0.03


class Lower(NamedTuple):
    """The lower level of a right-hand side: ``[M; ridge] B = [Q; Q_ridge] R``, B its directions."""

    Q: np.ndarray  # (m, r)
    Q_ridge: np.ndarray
    answer: np.ndarray  # B R^-1 Q^T, (n, m): how w answers to the target
    ways: np.ndarray  # B
    null: np.ndarray  # (r, z), combinations of them that the data leave open
    slight: np.ndarray  # (z,), parts of these below which they leave an entry alone
    condition: float  # of M B, with columns of length 1


class Influence:
    """How theta and w answer to changes of the target, (m, k) real numbers, of a problem in real numbers.

    `theta` is ``dtheta / dy``, (p, m, k). The data do not determine the entries of `undetermined_theta`, (p,), and
    `undetermined_w`, (n, k): moving them changes no residual, to working precision. What those of `taken_up`, (p,), do,
    as factors of columns, w does as well. `imprecise` says whether parameters are so nearly dependent that rounding may
    leave fewer than three digits of errors. `parameters` is the trace of ``d(fitted) / dy``: directions of theta and w,
    less where there is a ridge; of compressed right-hand sides that of the target as given.
    """

    def __init__(self, at: Linearised) -> None:
        self.at = at
        (p, m, k), eps = at.X.shape, float(np.finfo(at.prepared.dtype).eps)
        self._k, self._least = k, LOST * eps
        designs = max(len(at.M), len(at.directions), len(at.ridge))
        self._lower = [_factored(at, j, eps) for j in range(designs)]
        self.parameters = at.columns / designs * sum(float(np.sum(low.Q**2)) for low in self._lower)

        X = np.ascontiguousarray(at.X.transpose(2, 1, 0))
        self._tangents = np.empty((k, at.w.shape[0], p))
        rows = np.zeros((k, m + len(self._lower[0].Q_ridge), p))
        rows[:, :m, :] = X
        for low, own in self._designs():
            self._tangents[own] = -low.answer @ X[own]
            rows[own] -= np.concatenate([low.Q, low.Q_ridge]) @ (low.Q.T @ X[own])
        rows = rows.transpose(1, 0, 2)
        kept, V = np.linalg.eigh(at.J)
        V, kept = V[:, kept > FLAT], kept[kept > FLAT]
        bent = np.where(1 - kept > STRAIGHT, 1 / kept - 1, 0.0)
        stack = np.concatenate([rows.reshape(-1, p) @ V, np.diag(np.sqrt(bent / at.step))])
        # where w explains nearly all of X the stack holds the rounding of X, and of Q: that of M times a condition
        off = np.array([ROUNDING + self.lower(j).condition for j in range(k)])
        lost = eps * np.linalg.norm((off * at.X).reshape(p, -1).T @ V, axis=0)
        left, whole = (_lengths(x.reshape(-1, p), 0) for x in (rows, eps * off[:, None, None] * X))
        self.taken_up = (left <= whole) & (whole > 0)
        slight = max(NEGLIGIBLE, ROUNDING * eps)
        inverse, Q, null, self._slight, share = _pseudo_inverse(stack, max(ALIKE, ALIKE_EPS * eps), slight, lost)
        self.imprecise = share > SHARE
        data = Q[: m * k]
        self._ways, self._null = V, null
        self.theta = (V @ inverse @ data.T).reshape(p, m, k)
        self.parameters += float(np.sum(data**2))
        self.undetermined_theta = _moved(V, np.abs(V), null, self._slight)
        self.undetermined_w = np.empty(at.w.shape, dtype=bool)
        for low, own in self._designs():
            self.undetermined_w[:, own] = self._lost(self._tangents[own], low, X[own]).T

    def _designs(self) -> Iterator[tuple[Lower, slice]]:
        """Lower levels, and the right-hand sides of each."""
        for j, low in enumerate(self._lower):
            yield low, slice(j, None, len(self._lower))

    def lower(self, j: int) -> Lower:
        """The lower level of right-hand side j."""
        return self._lower[j % len(self._lower)]

    def tangent(self, j: int) -> np.ndarray:
        """``dw / dtheta`` of right-hand side j, (n, p)."""
        found: np.ndarray = self._tangents[j]
        return found

    def covariance_of_theta(self, noise: np.ndarray) -> np.ndarray:
        """Covariance of theta, (p, p), for a target with these standard deviations, (m, k)."""
        moved = (self.theta * noise).reshape(len(self.theta), -1)
        return moved @ moved.T

    def errors_of_theta(self, noise: np.ndarray) -> np.ndarray:
        """Standard errors of theta, (p,)."""
        return _lengths((self.theta * noise).reshape(len(self.theta), -1))

    def errors_of_w(self, noise: np.ndarray) -> np.ndarray:
        """Standard errors of w, (n, k).

        Noise e of a right-hand side moves it by ``F e + T K e``, that of others has a covariance. NaN where rounding
        leaves nothing: where theta answers to what w would answer to, in the presence of a ridge.
        """
        answers = np.stack([low.answer for low in self._lower])[np.arange(self._k) % len(self._lower)]
        unit = _positive(self.errors_of_theta(noise))[:, None]  # squares in units of the user may leave the range
        K = (self.theta * noise).transpose(2, 0, 1) / unit
        own, none = K @ K.mT, np.zeros((1, len(unit), len(unit)))
        others = np.concatenate([none, np.cumsum(own, axis=0)[:-1]])
        others += np.concatenate([np.cumsum(own[::-1], axis=0)[-2::-1], none])
        T, F = self._tangents * unit.T, answers * noise.T[:, None, :]
        size = _positive(np.maximum(np.max(np.abs(T), axis=-1, initial=0.0), np.max(np.abs(F), axis=-1)))[..., None]
        T, F = T / size, F / size
        by_theta = T @ K
        found = np.sum((F + by_theta) ** 2, axis=-1) + np.maximum(np.sum((T @ others) * T, axis=-1), 0.0)
        terms = np.sum(F**2, axis=-1) + np.sum(by_theta**2, axis=-1)
        return (size[..., 0] * np.sqrt(np.where(found < self._least**2 * terms, np.nan, found))).T

    def _lost(self, tangent: np.ndarray, low: Lower, X: np.ndarray) -> np.ndarray:
        """Which entries of w the data leave open, by theta or by w itself."""
        # of an entry that theta leaves alone, the tangent is the rounding of this
        size = np.abs(low.answer) @ np.abs(X) @ np.abs(self._ways)
        by_theta = _moved(tangent @ self._ways, size, self._null, self._slight)
        return by_theta | _moved(low.ways, np.abs(low.ways), low.null, low.slight)

    def undetermined(self, by_theta: np.ndarray, by_w: np.ndarray, j: int) -> np.ndarray:
        """Which functions the data leave open, (q,); derivatives by theta (q, p), by w of right-hand side j (q, n)."""
        low = self.lower(j)
        along = (by_theta + by_w @ self.tangent(j)) @ self._ways
        size = np.abs(by_theta) + np.abs(by_w) @ (np.abs(low.answer) @ np.abs(self.at.X[:, :, j].T))
        found, by_ways = _moved(along, size @ np.abs(self._ways), self._null, self._slight), by_w @ low.ways
        return found | _moved(by_ways, np.abs(by_ways), low.null, low.slight)

    def of(self, by_theta: np.ndarray, by_w: np.ndarray) -> np.ndarray:
        """How a function answers that has derivatives (q, p) by theta and (q, n, k) by w; shape (q, m k)."""
        direct = by_theta + sum(by_w[:, :, j] @ self.tangent(j) for j in range(self._k))
        out = np.einsum("qp,pmk->qmk", direct, self.theta)
        for j in range(self._k):
            out[:, :, j] += by_w[:, :, j] @ self.lower(j).answer
        return out.reshape(len(out), -1)


def _lengths(A: np.ndarray, axis: int = 1) -> np.ndarray:
    """Of vectors whose squares may leave the range of numbers."""
    top = _positive(np.max(np.abs(A), axis=axis, keepdims=True, initial=0.0))
    return np.squeeze(top, axis) * np.linalg.norm(A / top, axis=axis)


def _positive(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 1.0)


def _factored(at: Linearised, j: int, eps: float) -> Lower:
    M, B = at.M[j % len(at.M)], at.directions[j % len(at.directions)]
    A = np.concatenate([M, at.ridge[j % len(at.ridge)]])
    B, _ = exchanged(B, own_rows(np, B), _lengths(A, 0))
    A = A @ B
    inverse, Q, null, slight, _ = _pseudo_inverse(A, eps, max(NEGLIGIBLE, ROUNDING * eps))
    m = M.shape[0]
    condition = float(np.linalg.norm(_lengths(A, 0)[:, None] * inverse))
    return Lower(Q[:m], Q[m:], B @ inverse @ Q[:m].T, B, null, slight, condition)


def _pseudo_inverse(
    A: np.ndarray, alike: float, slight: float, lost: Any = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """`inverse` and Q with ``A^+ = inverse Q^T`` in the units of A's columns, and a basis of what A maps to `alike`.

    And parts of each of these below which it leaves an entry alone, `slight` for most, and the largest share of a
    singular value that counts which `lost` may be. A direction that A maps to less than `alike`, but to more than
    rounding, counts in `inverse` as well: entries that it moves little have a share of it.

    Where the columns are differences, `lost` is what rounding may leave of them. Singular vectors have small rows, such
    as those of data next to a large ridge, to the precision of large ones, and mix columns of all sizes: `inverse` is
    triangular instead, and Q is ``A inverse``, made orthonormal once more.
    """
    A = np.where(_lengths(A, 0) > lost, A, 0.0)  # a column of rounding alone would mix with the others
    size = _positive(_lengths(A, 0))
    _, s, Vh = np.linalg.svd(A / size, full_matrices=A.shape[0] < A.shape[1])
    left = np.linalg.norm(Vh[: len(s)] * (lost / size), axis=1)
    # of the numbers, and of the decomposition in double precision
    eps, top = float(np.finfo(A.dtype).eps) * max(A.shape, default=0), np.max(s, initial=0.0)
    known = s > np.maximum(max(eps, min(alike, LOST * eps)) * top, left)
    separate = s > np.maximum(max(eps, alike) * top, left)
    truncated = np.append(~separate, np.ones(len(Vh) - len(s), bool))
    parts = np.full(len(Vh), slight)
    parts[: len(s)] = np.where((s > 1e2 * eps * top) & (s < FAINT * top), np.minimum(slight, ADDED * s), slight)
    null, parts = Vh[truncated].T, parts[truncated]
    null = np.where(np.abs(null) > parts, null, 0.0)
    R: Any = np.linalg.qr(Vh[: len(s)][known] / s[known, None], mode="r")
    inverse = R.T
    Q = (A / size) @ inverse
    L = np.linalg.cholesky(Q.T @ Q)
    inverse, Q = np.linalg.solve(L, inverse.T).T, np.linalg.solve(L, Q.T).T
    share = float(np.max(left[separate] / s[separate], initial=0.0))
    return inverse / size[:, None], Q, null / size[:, None], parts, share


def _moved(A: np.ndarray, size: np.ndarray, directions: np.ndarray, slight: np.ndarray) -> np.ndarray:
    """Entries of A times some direction that are more than rounding, `size` being that of the terms of A's entries."""
    return np.any(np.abs(A @ directions) > slight * (size @ np.abs(directions)), axis=-1)
