"""The problems of a batch to first order: linear theory, as in `statistics.covariance`, for all of them at once.

It is for problems on boxes and free leaves whose parameters are well separated: those near a kink, nearly dependent
ones and those in other sets are not `clear`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.batch import small
from xvarpro.batch.objective import Linear
from xvarpro.batch.prepare import Prepared
from xvarpro.lower import Bounded
from xvarpro.sets import Box, each
from xvarpro.sets.region import Region
from xvarpro.statistics.frames import on_host
from xvarpro.statistics.linearised import STOPPED, held_by
from xvarpro.statistics.standard_errors import ROUNDED, noise_variance

CLEAR, CLEAR_EPS = 1e-4, 1e4  # pivots of columns of length 1 above which parameters are distinct, or times eps
SHARE = 1e-3  # of standard errors, as rounding at its worst


class LinearisedBatch:
    """Some problems to first order, in the units of their work.

    There are b problems of p entries of theta, each with k right-hand sides for each of c designs. Entries that are
    `shared` with other problems are held.
    """

    def __init__(self, prepared: Prepared, members: np.ndarray, given: Linear, shared: tuple[int, ...] = ()) -> None:
        theta = backends.to_numpy(prepared.theta)[members].astype(np.float64)
        self.prepared, self.eps = prepared, float(np.finfo(prepared.dtype).eps)
        (self.b, self.p), (B, self.k, _), m = theta.shape, given.w.shape, given.r.shape[2]
        self.c = B // self.b
        used = given.r.shape if given.root is None else np.broadcast_to(given.root > 0, given.r.shape)
        self.data = np.full(self.b, self.c * self.k * m) if given.root is None else self._of_problem(used)
        self.data = self.data * (1 + np.iscomplexobj(given.r))
        at = _in_real_numbers(given)
        self.M, self.w, self.r, m = at.A[..., : at.r.shape[2]], at.w, at.r, at.r.shape[2]
        self.y, self.chi2 = at.w @ self.M - at.r, self._of_problem(at.r**2)
        self.deviance = np.full(self.b, np.nan) if at.deviance is None else self._of_problem(at.deviance)
        X = at.X.reshape(B, self.p, self.k, m)
        lengths = self._lengths(X)
        flat = max(STOPPED, self.eps**0.5) * lengths * np.sqrt(self.chi2)[:, None]
        bounds = each.plain(each.taken(prepared.region, lambda x: backends.to_numpy(x)[members]))
        slope = np.sum(self._by_theta(X * at.r[:, None]), axis=(2, 3, 4))
        held, kinks, self.active = self._held(bounds, theta, slope, flat)
        held[:, shared] = True
        self.silent = ~held & (lengths == 0)  # entries that nothing depends on
        held = held | (self.silent & bool(shared))
        on = np.ones((B, at.w.shape[2]), bool)
        if at.free is not None:
            on = at.free.astype(bool)
            near, stopped = self._near_kinks(at, on)
            kinks, self.active = kinks | (self._of_problem(near) > 0), self.active | (self._of_problem(stopped) > 0)

        self.low = _Orthogonal(at.A, on)
        rows = X.reshape(B, -1, m)
        along = rows @ self.low.Q[..., :m].mT
        left = -along @ self.low.Q
        left[..., :m] += rows
        self.T = self.low.solved(-along).reshape(self.b, self.c, self.p, self.k, -1)  # dw / dtheta
        left = left.reshape(B, self.p, self.k, -1)
        self.tangents, self.left = (self._by_theta(x).reshape(self.b, self.p, -1) for x in (X, left))
        self.high = _Orthogonal(self.left, ~held)
        self.Q = self.high.Q.reshape(self.b, self.p, self.c, self.k, -1)[..., :m]
        own = self._of_problem(self.low.Q[..., :m] ** 2)
        self.parameters = self.k * own + self._of_problem(self.Q**2)
        self.dof = freedom(self.data, self.parameters)
        pivot = np.min(self.low.pivot.reshape(self.b, -1), axis=1)
        share = np.max(np.where(held, 0.0, lengths / self._lengths(left)), axis=1)
        share = self.eps * (10 + 1 / pivot) * share / self.high.pivot
        least = max(CLEAR, CLEAR_EPS * self.eps)
        boxes = all(isinstance(C, Box) for _, C in prepared.region.constrained)
        self.clear = (pivot > least) & (self.high.pivot > least) & (share < SHARE) & ~kinks & boxes

    def _of_problem(self, x: np.ndarray) -> np.ndarray:
        """Sums over what belongs to a problem; of booleans, how many there are."""
        return np.sum(x.reshape(self.b, -1), axis=1)

    def _by_theta(self, x: np.ndarray) -> np.ndarray:
        """Numbers (b c, p, k, ...) as (b, p, c, k, ...)."""
        return np.moveaxis(x.reshape(self.b, self.c, *x.shape[1:]), 1, 2)

    def _lengths(self, x: np.ndarray) -> np.ndarray:
        return np.sqrt(np.sum(self._by_theta(x) ** 2, axis=(2, 3, 4)))

    @property
    def rounding(self) -> np.ndarray:
        """What the data are known to at best, squared and summed."""
        return self.eps**2 * self._of_problem(self.y**2)

    @property
    def exact(self) -> np.ndarray:
        """Whether the residual is zero to rounding."""
        terms = np.abs(self.y) + np.abs(self.w) @ np.abs(self.M)
        return self.chi2 <= (ROUNDED * self.eps) ** 2 * self._of_problem(terms**2)

    def noise(self, sigma: np.ndarray, sandwich: bool) -> np.ndarray:
        """Standard deviations of the data, (b, c, k, m) or with 1 for the last three; `sigma` is known where not 0."""
        rounding = self.rounding
        variance = noise_variance(self.chi2, self.dof, self.data, rounding)
        every = np.where(sigma > 0, sigma, np.sqrt(variance))[:, None, None, None]
        if not sandwich:
            return every
        own = np.abs(self.r).reshape(self.b, self.c, self.k, -1)
        share, least = (x[:, None, None, None] for x in (self.data / self.dof, rounding / self.data))
        return np.maximum(own * np.sqrt(share), np.sqrt(least))

    def answers(self, noise: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """How theta and w answer to each standard deviation of the data, (b, q, c k m), in units of the caller."""
        b, n, m = self.b, self.w.shape[2], self.r.shape[2]
        Q = self.Q.reshape(b, self.p, -1)
        K = self.high.solved(Q.mT).mT.reshape(self.Q.shape) * noise[:, None]
        K = K.reshape(b, self.p, -1)
        F = self.low.solved(self.low.Q[..., :m].mT).mT.reshape(b, self.c, n, m)
        noise = np.broadcast_to(noise, (b, self.c, self.k, m))
        of_w = []
        for i, j in np.ndindex(self.c, self.k):
            moved = (self.T[:, i, :, j].mT @ K).reshape(b, n, self.c, self.k, m)
            moved[:, :, i, j] += F[:, i] * noise[:, None, i, j]
            of_w.append(moved.reshape(b, n, -1) / scale[:, None, None])
        by_row = np.stack(of_w, axis=2).reshape(b, -1, K.shape[2])
        return np.concatenate([K / self.prepared.units[:, None], by_row], axis=1)

    def _held(
        self, region: Region, theta: np.ndarray, slope: np.ndarray, flat: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Entries of theta that are held, (b, p); problems that have one with a multiplier of 0, one not fixed."""
        held, stop = np.zeros(theta.shape, bool), 0
        kinks, active = np.zeros((2, len(theta)), bool)
        sets: dict[int, Any] = dict(region.constrained)
        for i, shape in enumerate(region.shapes):
            here = slice(stop, stop := stop + math.prod(shape))
            if isinstance(C := sets.get(i), Box):
                spread = (np.broadcast_to(on_host(x), (self.b, *shape)) for x in (C.lower, C.upper))
                lower, upper = (x.reshape(self.b, -1) for x in spread)
                g, zero = slope[:, here], flat[:, here]
                held[:, here] = held_by(theta[:, here], lower, upper, g, zero, self.eps)
                at = held[:, here] & (lower < upper)
                kinks |= np.any(at & (np.abs(g) <= zero), axis=1)
                active |= np.any(at, axis=1)
        return held, kinks, active

    def _near_kinks(self, at: Linear, on: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Entries of w that may be at a bound with a multiplier of 0, more than those that are; those at one."""
        W: Any = self.prepared.problem.lower.W
        w, lengths, ridge = at.w[:, 0], np.sqrt(np.sum(at.A**2, axis=2)), at.A[..., at.r.shape[2] :]
        slope = (self.M @ at.r.mT + ridge @ (ridge.mT @ at.w.mT))[..., 0]
        size = np.max(np.abs(w) * lengths, axis=1) + np.max(np.abs(self.y[:, 0]), axis=1)
        small = (100 * w.shape[1] * self.eps * size)[:, None]
        bounds = (W.lower, W.upper) if isinstance(W, Bounded) else (0.0, np.inf)
        n, columns = w.shape[1], (on_host(x) for x in bounds)
        columns = (x.reshape(x.shape[0], -1) if x.ndim else x for x in columns)
        lower, upper = (np.resize(np.broadcast_to(x, (n, self.c)).T, w.shape) for x in columns)
        near = lengths * np.minimum(np.abs(w - lower), np.abs(upper - w)) <= (self.eps**0.5 * size)[:, None]
        return np.where(on, near, np.abs(slope) <= 1e3 * small * lengths), ~on & (lower < upper)


class _Orthogonal:
    """Rows (b, n, m) made orthonormal; those that are not `on` have no part in it."""

    def __init__(self, rows: np.ndarray, on: np.ndarray) -> None:
        length = np.sqrt(np.sum(rows**2, axis=2))
        size = np.where(on & (length > 0), length, 1.0)
        unit = np.where(on[:, :, None], rows / size[:, :, None], 0.0)
        eye = np.eye(rows.shape[1])
        f: Any = small.factor(np.concatenate([unit, ~on[:, :, None] * eye], axis=2))
        self.Q: Any = f.Q[..., : rows.shape[2]]
        # of rows that are well separated the inverse has the digits of a solve
        self._inverse = small.solve_upper(f.R, np.broadcast_to(eye, f.R.shape)) * (on / size)[:, None, :]
        pivots = np.min(np.abs(np.linalg.diagonal(f.R)), axis=1)
        self.pivot = np.where(np.isfinite(pivots), pivots, 0.0)

    def solved(self, c: np.ndarray) -> np.ndarray:
        """Coefficients of the rows in their own units, for those of Q, (b, k, n)."""
        found: np.ndarray = c @ self._inverse
        return found


def freedom(data: np.ndarray, parameters: np.ndarray) -> np.ndarray:
    """Degrees of freedom, 0 where that is rounding."""
    dof = data - parameters
    return np.where(np.abs(dof) < 1e-9 * data, 0.0, dof)


def _in_real_numbers(at: Linear) -> Linear:
    """The same with real numbers only: rows of real parts before those of imaginary ones, and so for w."""
    if not any(np.iscomplexobj(x) for x in (at.A, at.r, at.X)):
        return at
    m = at.r.shape[2]

    def parts(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x.real, x.imag], axis=-1)

    def both(A: np.ndarray) -> np.ndarray:
        return np.concatenate([parts(A), parts(1j * A)], axis=1)

    A = np.concatenate([both(at.A[..., :m]), both(at.A[..., m:])], axis=2)
    return at._replace(A=A, w=parts(at.w), r=parts(at.r), X=parts(at.X))
