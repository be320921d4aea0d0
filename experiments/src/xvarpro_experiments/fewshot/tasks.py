"""An episode as a task: what it was made of, and certificates that do not build the whole network again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from xvarpro import Problem, Result, backends
from xvarpro.core import trees
from xvarpro.core.struct import Tree
from xvarpro_experiments.fewshot.problem import Features, Split, head
from xvarpro_experiments.methods import Task

LARGE = 1_000_000  # entries of theta from which on the networks of all methods and episodes are not kept


@dataclass(frozen=True)
class FewShotTask(Task):
    """A task that remembers what it was made of.

    Parameters
    ----------
    features : callable
    splits : tuple of Split
        The lower one first.
    pool : Problem
        One split of all shots.
    shown : callable
        Features of the test images and of the shots at a theta, computed once for all that asks for them.
    """

    features: Features | None = None
    splits: tuple[Split, ...] = ()
    pool: Problem | None = None
    shown: Callable[[Tree], tuple[np.ndarray, np.ndarray]] | None = None

    @property
    def runs_on(self) -> backends.Backend:
        """The backend; theta0 is of NumPy."""
        return backends.get(self.backend or "numpy")

    def certify(self, theta: Tree, problem: Problem | None = None) -> Result | None:
        """As of any task; of a large network head and objective alone, from the features that its test needs anyway."""
        if self.shown is None or self._start is None or not _finite(theta):
            return super().certify(theta, problem)
        M, (lower, upper) = np.asarray(self.shown(theta)[1]), self.splits
        if self.pool is not None and problem is self.pool:
            lam: Any = self.pool.lower.lam
            w = head(M, self.shots[1], lam)
            r = M @ w - self.shots[1]
            value = 0.5 * float(np.sum(r * r)) + 0.5 * lam * float(np.sum(w * w))
        else:
            lam = self.problem.lower.lam
            w = head(M[: len(lower.Y)], np.asarray(lower.Y), lam)
            r = M[len(lower.Y) :] @ w - upper.Y
            value = 0.5 * float(np.sum(r * r))
        return replace(with_head(self._start, w), theta=theta, value=value, gap_A=math.nan, gap_B=math.nan)

    @cached_property
    def _start(self) -> Result | None:
        """The certificate of a large theta0; None of a small one."""
        return super().certify(self.theta0) if entries(self.theta0) > LARGE else None

    @property
    def shots(self) -> tuple[np.ndarray, np.ndarray]:
        """All examples and their targets."""
        return np.concatenate([s.X for s in self.splits]), np.concatenate([s.Y for s in self.splits])


def entries(theta: Tree) -> int:
    """How many numbers theta has."""
    return sum(int(x.size) for x in trees.leaves(theta))


def _finite(theta: Tree) -> bool:
    return all(bool(np.all(np.isfinite(x))) for x in trees.leaves(theta))


def with_head(certificate: Result, w: np.ndarray) -> Result:
    """A certificate at the theta of a method whose head is its own."""
    return replace(certificate, _w=w, _weights=None)
