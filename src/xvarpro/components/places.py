"""All places moved at once: the reduced objective of a search, for the library's Levenberg-Marquardt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from xvarpro import backends
from xvarpro.algorithms import LevenbergMarquardt
from xvarpro.components.atoms import Atoms
from xvarpro.core import trees
from xvarpro.driver.iteration import noise
from xvarpro.lower import L1, Nonnegative
from xvarpro.objective.gauss_newton import Local
from xvarpro.sets import Box
from xvarpro.sets.region import Region

DEPENDENT = 1e-7  # least sine of a column with those before it
ENOUGH = 1e-2  # of the variance of the noise: what a move may leave of half the sum of squares
HOPELESS = 30.0  # times the decrease that is promised: a start that is further above the lowest one is given up
SWEEPS = 2000  # of amplitudes with a penalty on the length of blocks

Frame: TypeAlias = tuple[np.ndarray, Any]  # an orthonormal basis (B, m, N) of what moves with w, and rows below it


class Amplitudes:
    """How amplitudes are solved: free, nonnegative, with a penalty ``tau |w_j|`` of each component."""

    numpy = backends.get("numpy")
    bounded: Any = Nonnegative().solver(None)

    def __init__(self, tau: float, nonnegative: bool, block: int, columns: int) -> None:
        self.tau, self.nonnegative, self.block = tau, nonnegative, block
        self.apart = nonnegative and columns > 1  # each response has weights at 0 of its own
        self.single = block * columns == 1

    def __call__(self, A: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, list[Frame]]:
        """Amplitudes (B, N, k) of columns A (B, m, N), and a frame of all responses, or one of each."""
        Q, R = np.linalg.qr(A)
        lost = ~(np.abs(np.diagonal(R, axis1=1, axis2=2)) > DEPENDENT * np.linalg.norm(A, axis=1)).all(axis=1)
        R = np.where(lost[:, None, None], np.eye(R.shape[1]), R)
        z = Q.conj().swapaxes(1, 2) @ Y
        if not (self.tau or self.nonnegative):
            return np.where(lost[:, None, None], np.nan, np.linalg.solve(R, z)), [(Q, None)]
        if not self.tau:
            w = self._nonnegative(R, z)
        elif self.single and not np.iscomplexobj(z):
            lasso: Any = L1(self.tau, self.nonnegative).solver(None)
            w = np.stack([lasso.weights(self.numpy, *x)[0] for x in zip(R, z, strict=True)])
        else:
            w = np.stack([self._grouped(*x) for x in zip(R, z, strict=True)])
        w = np.where(lost[:, None, None], np.nan, w)
        size = np.repeat(self.lengths(w), self.block, axis=1)
        # amplitudes at 0 stay there, and the curvature of the lengths of blocks holds the others back
        bend = 0 * size if self.single or not self.tau else np.sqrt(self.tau / np.where(size > 0, size, 1.0))
        frames: list[Frame] = []
        for part in np.split(w, w.shape[2], axis=2) if self.apart else [w]:
            held = (part == 0).all(axis=2)
            below = np.where(held, 1.0, np.nan_to_num(bend))[:, :, None] * np.eye(w.shape[1])
            Q = np.linalg.qr(np.concatenate([np.where(held[:, None, :], 0.0, A), below], axis=1))[0]
            frames.append((Q[:, : A.shape[1]], Q[:, A.shape[1] :]))
        return w, frames

    def lengths(self, w: np.ndarray) -> np.ndarray:
        """Of the amplitudes of each component, (B, n)."""
        size: np.ndarray = np.sqrt(np.sum(np.abs(w.reshape(len(w), -1, self.block, w.shape[2])) ** 2, axis=(2, 3)))
        return size

    def _nonnegative(self, R: np.ndarray, z: np.ndarray) -> np.ndarray:
        each = [self.bounded.weights(self.numpy, R, z[:, :, j].T)[0].T for j in range(z.shape[2])]
        return np.stack(each, axis=2)

    def _grouped(self, R: np.ndarray, z: np.ndarray) -> np.ndarray:
        """With ``tau |w_j|``, by the least of parabolas ``tau (|w_j|^2 / s_j + s_j) / 2`` above it, s_j the last."""
        G, c = R.conj().T @ R, R.conj().T @ z
        w = np.abs(c) / np.diagonal(G).real[:, None] if self.nonnegative else np.linalg.solve(G, c)
        keep = np.ones(len(c), dtype=bool)
        for _ in range(SWEEPS):
            pull = c - G @ w
            size, slope = (
                np.repeat(self.lengths(x[None])[0], self.block)
                for x in (w, np.maximum(pull, 0.0) if self.nonnegative else pull)
            )
            keep &= ~((size < 1e-6 * size.max()) & (slope <= self.tau))
            if not keep.any():
                return 0 * w
            before, w = w, 0 * w
            H = G[np.ix_(keep, keep)] + np.diag(self.tau / np.maximum(size[keep], 1e-9 * size.max()))
            if self.nonnegative:
                L = np.linalg.cholesky(H)
                w[keep] = self._nonnegative(L.T[None], np.linalg.solve(L, c[keep])[None])[0]
            else:
                w[keep] = np.linalg.solve(H, c[keep])
            if np.abs(w - before).max() <= 1e-10 * np.abs(w).max():
                break
        return w


class Places:
    """The reduced objective of b searches of n components each, at vectors (b, n p)."""

    backend = backends.get("numpy")
    problem: Any = SimpleNamespace(mu=0.0)

    def __init__(self, atoms: Atoms, Y: np.ndarray, basis: np.ndarray, amplitudes: Amplitudes) -> None:
        self.atoms, self.Y, self.basis, self.amplitudes = atoms, Y, basis, amplitudes

    def solved(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Columns (m, N), amplitudes (N, k), residual (m, k) and value at places X (n, p)."""
        A, _ = self.atoms.columns(X, self.basis)
        A = A.transpose(1, 0, 2).reshape(1, self.Y.shape[0], -1)
        w, r, value, _ = self._level(A)
        return A[0], w[0], r[0], float(value[0])

    def _level(self, A: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[Frame]]:
        w, frames = self.amplitudes(A, self.Y)
        r = A @ w - self.Y
        value = 0.5 * np.sum(np.abs(r) ** 2, axis=(1, 2))
        if self.amplitudes.tau:
            value = value + self.amplitudes.tau * self.amplitudes.lengths(w).sum(axis=1)
        return w, r, value, frames

    def local(self, x: np.ndarray) -> Local:
        b, p = len(x), self.atoms.lower.size
        n = x.shape[1] // p
        A, D = self.atoms.columns(x.reshape(-1, p), self.basis, slopes=True)
        m, block = A.shape[1:]
        A = A.reshape(b, n, m, block).transpose(0, 2, 1, 3).reshape(b, m, -1)
        w, r, value, frames = self._level(A)
        W = w.reshape(b, n, 1, block, -1)
        T = (D.reshape(b, n, p, m, block) @ W).transpose(0, 3, 1, 2, 4).reshape(b, m, n * p, -1)
        grad = np.einsum("bmqk,bmk->bq", T.conj(), r).real
        H = np.zeros((b, n * p, n * p))
        for j, (Q, below) in enumerate(frames):
            part = (T[..., j : j + 1] if len(frames) > 1 else T).reshape(b, m, -1)
            C = Q.conj().swapaxes(1, 2) @ part
            J = part - Q @ C
            J = J if below is None else np.concatenate([J, -below @ C], axis=1)
            J = J.reshape(b, J.shape[1], n * p, -1).transpose(0, 2, 1, 3).reshape(b, n * p, -1)
            H += (J @ J.conj().swapaxes(1, 2)).real
        return Local(value, grad, H, np.isnan(value))


def move(
    f: Places, X: np.ndarray, most: int = 60, enough: float = ENOUGH, together: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Places from b starts, (b, n, p), to where the objective is least nearby, and its values there.

    Starts are of one search where they are `together`: those that will not be the lowest end early.
    """
    b, n, p = X.shape
    x = X.reshape(b, -1)
    box = Box(np.tile(f.atoms.lower, n), np.tile(f.atoms.upper, n))
    region, method = Region(((0, box),), shapes=((n * p,),)), LevenbergMarquardt()
    energy = np.full(b, 0.5 * np.sum(np.abs(f.Y) ** 2))
    with np.errstate(all="ignore"):
        point: Any = trees.map_leaves(np.array, method.first(f, region, x, f.local(x)))
        going = np.ones(b, dtype=bool)
        for _ in range(most):
            going &= point.decrease > enough * point.local.value / f.atoms.numbers + 1e-15 * energy
            going &= (not together) | (point.local.value - HOPELESS * point.decrease <= np.nanmin(point.local.value))
            at = np.flatnonzero(going)
            if not at.size:
                break
            some = trees.map_leaves(lambda a, at=at: a[at], point)
            trial: Any = method.trial(f, region, some)
            margin = noise(some.local.value, energy[at])
            after, _, lost = method.after(f, region, some, trial, f.local(trial[0]), margin)
            trees.map_leaves(lambda a, part, at=at: a.__setitem__(at, part), point, after)
            going[at] &= ~lost
    return point.theta.reshape(b, n, p), point.local.value
