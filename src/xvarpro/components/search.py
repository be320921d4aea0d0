"""The search: one component more, all places moved, until the criterion or the certificate says that it is enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xvarpro.components.atoms import Atoms
from xvarpro.components.grid import DualCertificate, Grid
from xvarpro.components.places import ENOUGH, Amplitudes, Places, move
from xvarpro.components.proof import proven

STARTS = 3  # best points of the grid from which a further component is tried
EXACT = 1e-13  # of the squared target: a residual below is none
ROUNDS = 100  # of a search with a weight, at most
ALIKE = 1e-4  # squared sine of the angle of two components that count as one


class State(NamedTuple):
    """Components of one order."""

    X: np.ndarray  # (n, p)
    A: np.ndarray  # their columns, (m, n b)
    w: np.ndarray  # (n b, k)
    r: np.ndarray  # residual, (m, k)
    value: float

    @property
    def n(self) -> int:
        return len(self.X)


class Search:
    """A grid and an objective, in which components are added, moved and removed."""

    def __init__(self, atoms: Atoms, nonnegative: bool, tau: float = 0.0) -> None:
        self.atoms, self.nonnegative, self.grid, self.tau = atoms, nonnegative, Grid(atoms, nonnegative), tau
        m, k = atoms.Y.shape
        amplitudes, self.plain = (Amplitudes(t, nonnegative, atoms.block, k) for t in (tau, 0.0))
        self.places = Places(atoms, atoms.Y, atoms.basis, amplitudes)
        parts = k * (1 + atoms.complex)
        self.each = atoms.lower.size + atoms.block * parts  # numbers of a component
        self.fixed = atoms.basis.shape[1] * parts
        self.energy = 0.5 * float(np.sum(np.abs(atoms.Y) ** 2))
        self.most = max((atoms.numbers - self.fixed - 1) // self.each, 0)
        self.none = State(np.zeros((0, atoms.lower.size)), np.zeros((m, 0)), np.zeros((0, k)), -atoms.Y, self.energy)

    def state(self, X: np.ndarray) -> State:
        """Of places (n, p), which it brings into order."""
        X = X[np.lexsort(X.T[::-1])]
        return State(X, *self.places.solved(X)) if len(X) else self.none

    def best(self, starts: np.ndarray, enough: float = ENOUGH) -> State | None:
        """From the start that leads to the lowest value; None where none leads to one."""
        X, values = move(self.places, starts, enough=enough)
        found = self.state(X[np.argmin(np.where(np.isfinite(values), values, np.inf))])
        return found if math.isfinite(found.value) else None

    def grown(self, state: State) -> State | None:
        """With one component more."""
        at = self.grid.peaks(self.grid.gains(state.r, np.linalg.qr(state.A)[0]), STARTS)
        if not at.size:
            return None
        return self.best(np.stack([np.concatenate([state.X, self.grid.X[i : i + 1]]) for i in at]))

    def without(self, state: State) -> State | None:
        """With one component less."""
        if state.n == 1:
            return self.none
        less = [np.delete(state.X, j, axis=0) for j in range(state.n)]
        first = np.argsort([self.state(X).value for X in less])[:STARTS]  # before they move
        return self.best(np.stack([less[j] for j in first]))

    def certificate(self, state: State, tol: float) -> DualCertificate:
        """For a weight tau, with a proof, or else for what BIC asks that a further component takes of ``|r|^2``."""
        if self.tau:
            found = self.grid.certificate(state.r, None, self.tau)[0]
            level = (1 + tol) * max(found.largest, 1.0)
            return replace(found, bound=proven(self.atoms, state.r, self.tau, self.nonnegative, level))
        share = -math.expm1((self.charge(state.n) - self.charge(state.n + 1)) / self.atoms.numbers)
        asked = math.sqrt(max(2 * state.value, EXACT * self.energy) * share)
        return self.grid.certificate(state.r, np.linalg.qr(state.A)[0], asked)[0]

    def bic(self, state: State) -> float:
        N = self.atoms.numbers
        return N * math.log(max(2 * state.value, EXACT * self.energy) / N) + self.charge(state.n)

    def charge(self, n: int) -> float:
        """What `bic` takes for n components: also for the ways to choose places among distinct ones (Chen, Chen)."""
        P = max(self.grid.distinct, 2.0 * n)
        ways = math.lgamma(P + 1) - math.lgamma(n + 1) - math.lgamma(P - n + 1)
        return math.log(self.atoms.numbers) * (self.fixed + n * self.each) + 2 * ways

    def held_out(self, folds: np.ndarray) -> Callable[[int], np.ndarray]:
        """The squares that searches of n components without a fold of the rows leave there, in one order of rows."""
        searches = [Search(self.atoms.without(folds == fold), self.nonnegative) for fold in np.unique(folds)]
        states: list[State | None] = [search.none for search in searches]
        done: list[np.ndarray] = []

        def squares(n: int) -> np.ndarray:
            while len(done) <= n:
                if done:
                    states[:] = [s and search.grown(s) for s, search in zip(states, searches, strict=True)]
                found = [s and self.atoms.missed(s.X, s.w, of.atoms) for s, of in zip(states, searches, strict=True)]
                parts = [x for x in found if x is not None]
                done.append(np.concatenate(parts) if len(parts) == len(found) else np.full(done[0].shape, np.inf))
            return done[n]

        return squares

    def with_weight(self, tol: float) -> State:
        """Components of least ``1/2 |r|^2 + tau sum |w_j|``."""
        state = self.none
        for _ in range(ROUNDS):
            _, new, size = self.grid.certificate(state.r, None, self.tau)
            above = size > 1 + tol
            if not above.any() or state.n >= self.most:
                break
            more = new[above & (size > 1 + 0.5 * (size[0] - 1))]
            before, state = state, self._moved(np.concatenate([state.X, self._apart(more)]))
            if not state.value < before.value - 1e-12 * self.energy:
                break
        return state

    def debiased(self, state: State) -> State:
        """Moved to where the residual is least, without a penalty; components that come together are one."""
        search = copy(self)
        search.places = Places(self.atoms, self.atoms.Y, self.atoms.basis, self.plain)
        return search._moved(state.X)

    def _moved(self, X: np.ndarray) -> State:
        while len(X):
            found = self.best(X[None], enough=1e-7)
            if found is None:
                X = X[:-1]
                continue
            size = self.places.amplitudes.lengths(found.w[None])[0]
            X = self._apart(found.X[np.argsort(-size)][: np.count_nonzero(size)])
            if len(X) == found.n:
                return found
        return self.none

    def _apart(self, X: np.ndarray) -> np.ndarray:
        """Places, the first ones first, without those whose atoms are those of others."""
        A = self.atoms.columns(X, self.atoms.basis)[0][:, :, 0]
        A = A / np.maximum(np.linalg.norm(A, axis=1, keepdims=True), 1e-300)
        alike = 1 - np.abs(A.conj() @ A.T) ** 2 <= ALIKE
        keep: list[int] = []
        for i in range(len(X)):
            keep += [] if alike[i, keep].any() else [i]
        return X[keep]
