"""Where a new component is looked for: a grid as dense as the atom changes, and the certificate on it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from xvarpro.components.atoms import Atoms, off
from xvarpro.components.places import Amplitudes, Places, move

LINE_STEP, STEP = 0.1, 0.6  # angle between neighbours on a grid of one entry of theta, and of several, in radians
MOST = 2**24  # numbers in the columns of a grid
RIGHT = 0.5 * math.pi  # angle between atoms that have nothing in common
SAMPLES = 129  # samples of a line along which the angle is measured
LEAST = 1e-6  # squared sine of an atom with the columns of others, below which it is one of these
STARTS = 8  # best points of the grid from which the maximum of a certificate is looked for


@dataclass(frozen=True, eq=False)
class DualCertificate:
    """How much a further component could bring, over the box of its parameters.

    Attributes
    ----------
    at, values : arrays, shapes (g, p) and (g,)
        Places of the grid, entries of theta in the order of its leaves, and the certificate there. With a `weight`
        ``|a(theta)^H r| / tau``: 1 at the components, and at most 1 everywhere at the optimum. Otherwise the root of
        the share that an atom could take of what BIC asks of a further component: above 1 it would pay.
    largest, where : float, array of shape (p,)
        The maximum, over the grid and what steps of Gauss and Newton from its best points have led to, and its place.
    angle : float
        Between neighbours on the grid, in radians, at most: how densely was looked.
    bound : float
        What the certificate is proven to be nowhere above in the box, by enclosures of the atom: ``1 + tol`` times
        `largest`, or times 1 where that is below. inf without a weight, for complex atoms, blocks of
        unit columns, and functions without an enclosure.
    shape : tuple of int
        Points along each entry.
    """

    at: np.ndarray
    values: np.ndarray
    largest: float
    where: np.ndarray
    angle: float
    bound: float
    shape: tuple[int, ...]


class Grid:
    """Points spaced by the angle through which the normalised atom turns, with their columns, computed once."""

    def __init__(self, atoms: Atoms, one_sided: bool) -> None:
        self.atoms, self.one_sided = atoms, one_sided
        self.angle = LINE_STEP if atoms.lower.size == 1 else STEP
        lines = [self._line(j) for j in range(atoms.lower.size)]
        self.distinct = math.prod(max(turned[-1] / RIGHT, 1.0) for _, turned in lines)
        most = max(MOST // (len(atoms.Y) * atoms.block), 2 * len(lines))
        while math.prod(counts := [1 + math.ceil(turned[-1] / self.angle) for _, turned in lines]) > most:
            self.angle *= 1.1
        axes = [
            np.interp(np.linspace(0.0, turned[-1], n), turned, t) if n > 1 else np.array([0.5 * (t[0] + t[-1])])
            for (t, turned), n in zip(lines, counts, strict=True)
        ]
        self.shape = tuple(counts)
        self.X = np.stack([x.ravel() for x in np.meshgrid(*axes, indexing="ij")], axis=1)
        A, _ = atoms.columns(self.X, atoms.basis)
        A = np.where(np.isfinite(A), A, 0.0)  # (g, m, b)
        self.gram = A.conj().swapaxes(1, 2) @ A
        self.flat = A.transpose(1, 0, 2).reshape(A.shape[1], -1).conj().T.copy()

    def _line(self, j: int) -> tuple[np.ndarray, np.ndarray]:
        """Samples of an entry of theta, and the angle through which the atom has turned up to each."""
        low, high = self.atoms.lower, self.atoms.upper
        t = np.linspace(low[j], high[j], SAMPLES)
        if low[j] > 0:
            t = np.unique(np.concatenate([t, np.geomspace(low[j], high[j], SAMPLES)]))
        t, rate = np.clip(t, low[j], high[j]), np.zeros(t.size)
        for share in (0.25, 0.5, 0.75):  # of the other entries
            X = np.tile(low + share * (high - low), (t.size, 1))
            X[:, low > 0] = (np.abs(low) ** (1 - share) * np.abs(high) ** share)[low > 0]
            X[:, j] = t
            A, D = self.atoms.columns(X, self.atoms.basis, slopes=True)
            D, size = D[:, j], np.sum(np.abs(A) ** 2, axis=1, keepdims=True)
            size = np.where(size > 0, size, 1.0)
            D = D - A * (np.sum(A.conj() * D, axis=1, keepdims=True) / size)  # a turn of phase is none
            turn = np.sqrt((np.sum(np.abs(D) ** 2, axis=1, keepdims=True) / size).max(axis=(1, 2)))
            rate = np.maximum(rate, np.where(np.isfinite(turn), turn, 0.0))
        return t, np.concatenate([[0.0], np.cumsum(0.5 * (rate[1:] + rate[:-1]) * np.diff(t))])

    def gains(self, r: np.ndarray, Q: np.ndarray | None) -> np.ndarray:
        """What each atom takes of ``|r|^2``, (g,), off the columns Q of others; with Q=None without a projection."""
        g, b, _ = self.gram.shape
        S = self._pulls((self.flat @ -r).reshape(g, b, -1))
        if Q is None:
            found: np.ndarray = np.sum(np.abs(S) ** 2, axis=(1, 2))
            return found
        Z = (self.flat @ Q).reshape(g, b, -1)
        left = self.gram - Z @ Z.conj().swapaxes(1, 2)
        whole = np.diagonal(self.gram, axis1=1, axis2=2).real
        turned = np.diagonal(left, axis1=1, axis2=2).real > LEAST * whole
        seen = np.all(turned & (whole > 0), axis=1, keepdims=True)
        left = np.where(seen[:, :, None], left, 0.0) + (1e-9 * whole + ~seen)[:, :, None] * np.eye(b)
        return np.where(seen[:, 0], np.sum(S.conj() * np.linalg.solve(left, S), axis=(1, 2)).real, 0.0)

    def _pulls(self, S: np.ndarray) -> np.ndarray:
        return np.maximum(S.real, 0.0) if self.one_sided else S

    def peaks(self, values: np.ndarray, most: int) -> np.ndarray:
        """Numbers of the largest maxima on the grid, the largest first."""
        v = values.reshape(self.shape)
        around, top = np.pad(v, 1, constant_values=-np.inf), v > 0
        for axis, n in enumerate(self.shape):
            for first in (0, 2):
                at = [slice(1, -1)] * v.ndim
                at[axis] = slice(first, first + n)
                top &= v >= around[tuple(at)]
        found = np.flatnonzero(top)
        return found[np.argsort(-values[found])][:most]

    def certificate(
        self, r: np.ndarray, Q: np.ndarray | None, asked: float
    ) -> tuple[DualCertificate, np.ndarray, np.ndarray]:
        """The certificate of a residual, the maxima near its best points, and the values there.

        `asked` is tau, or the root of what a component off the columns Q of the others has to take of ``|r|^2``.
        """
        gains = self.gains(r, Q)
        best, values = self.peaks(gains, STARTS), np.sqrt(gains) / asked
        X, found = self.X[best], values[best]
        if len(X):
            basis = self.atoms.basis if Q is None else np.concatenate([self.atoms.basis, Q], axis=1)
            free = Amplitudes(0.0, self.one_sided, self.atoms.block, r.shape[1])
            one = Places(self.atoms, off(basis, -r), basis, free)
            moved, value = move(one, X[:, None, :], most=30, together=False)
            if Q is None:
                S = self._pulls(self.atoms.columns(moved[:, 0], basis)[0].conj().swapaxes(1, 2) @ -r)
                taken = np.sum(np.abs(S) ** 2, axis=(1, 2))
            else:
                taken = np.maximum(np.sum(np.abs(one.Y) ** 2) - 2 * value, 0.0)
            moves = np.sqrt(taken) / asked
            X, found = np.where((moves > found)[:, None], moved[:, 0], X), np.fmax(moves, found)
            order = np.argsort(-found)
            X, found = X[order], found[order]
        largest, where = (float(found[0]), X[0]) if len(X) else (0.0, self.X[0])
        return DualCertificate(self.X, values, largest, where, self.angle, math.inf, self.shape), X, found
