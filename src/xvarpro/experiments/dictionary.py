"""Dictionary learning under an entrywise l1 budget, the paper's Example 2, and the methods that compete on it.

``min 1/2 |D W - X|^2 + lam/2 |W|^2  over W and over |D|_1 <= radius``: the codes W are eliminated, the dictionary D is
theta. The paper drops the factor 1/2.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro import Problem, Result
from xvarpro.errors import ProblemError
from xvarpro.experiments.agreement import Agreement
from xvarpro.experiments.rivals import IPALM, JointMethod, JointProjectedGradient
from xvarpro.protocols import Algorithm, Array


def design(theta: Array, data: Any) -> Array:
    """``M(theta) = D``. A module's function: compiled loops are found again under it."""
    return theta


def problem(X: Array, lam: float = 1e-5, compress: bool = True) -> Problem:
    """The dictionary problem of images X.

    Parameters
    ----------
    X : array, shape (pixels, samples)
    lam : float
        Ridge on the codes, >= 0.
    compress : bool
        Whether a solve may replace the samples by as many columns as there are pixels.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro.experiments import dictionary
    >>> X = np.random.default_rng(0).normal(size=(6, 40))
    >>> D0 = dictionary.start(X, atoms=3, radius=1.0, seed=0)
    >>> fit = xv.solve(dictionary.problem(X), D0, over=xv.sets.L1Ball(1.0), max_iter=50)
    >>> bool(fit.value < fit.trace.value[0])
    True
    """
    return xv.separable(design, X, lam=lam, compress=compress)


def start(X: Array, atoms: int, radius: float = 1.0, seed: int = 0) -> np.ndarray:
    """Gaussian dictionary with ``|D|_1 = radius``, drawn with NumPy: every backend starts from the same bits.

    Parameters
    ----------
    X : array, shape (pixels, samples)
        Only its height is used.
    atoms : int
        >= 1.
    radius : float
        Of the l1 ball, > 0.
    seed : int
        >= 0.

    Returns
    -------
    array, shape (pixels, atoms), float64
    """
    for name, value in (("atoms", atoms), ("radius", radius)):
        if not 0 < value < math.inf:
            raise ProblemError(f"{name} must be a finite number > 0, got {value}")
    if seed < 0:
        raise ProblemError(f"seed must be >= 0, got {seed}")
    D = np.random.default_rng(seed).normal(size=(X.shape[0], atoms))
    return D * (radius / np.sum(np.abs(D)))


@dataclass(frozen=True)
class Method:
    """A name in the table and what it runs."""

    name: str
    algorithm: Algorithm

    @property
    def joint(self) -> bool:
        """Whether it keeps W as a variable beside D."""
        return isinstance(self.algorithm, JointMethod)


PAPER = Method("CR-VarPro (the paper)", xv.algorithms.cr_varpro())
METHODS = (
    PAPER,
    Method("Frank-Wolfe, adaptive L", xv.algorithms.FrankWolfe()),
    Method("accelerated projected gradient", xv.algorithms.AcceleratedProjectedGradient()),
    Method("spectral projected gradient", xv.algorithms.SpectralProjectedGradient()),
    Method("joint projected gradient, 1/L", JointProjectedGradient()),
    Method("joint iPALM", IPALM()),
)


@dataclass(frozen=True)
class Task:
    """One instance: data, start, set, and where to compute.

    Parameters
    ----------
    X : array, shape (pixels, samples)
    D0 : array, shape (pixels, atoms)
        In X's dtype, which is the dtype of the work.
    lam, radius : float
    backend, device : str, optional
        As in `xvarpro.solve`.
    """

    X: np.ndarray
    D0: np.ndarray
    lam: float = 1e-5
    radius: float = 1.0
    backend: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        problem(self.X, self.lam)  # refuses a bad ridge before any work

    @property
    def over(self) -> xv.sets.L1Ball:
        """The feasible set."""
        return xv.sets.L1Ball(self.radius)

    def solve(self, algorithm: Algorithm | None, problem: Problem, D: np.ndarray, **limits: Any) -> Result:
        """`xvarpro.solve` from D; a dead atom is a number in the table here, not a warning."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", xv.DeadUnitsWarning)
            return xv.solve(
                problem,
                D,
                over=self.over,
                algorithm=algorithm,
                backend=self.backend,
                device=self.device,
                **limits,
            )

    @cached_property
    def judge(self) -> Problem:
        """The reduced problem with its data compressed once, for evaluations off the clock."""
        return problem(xv.compress(self.X), self.lam)

    def certify(self, D: np.ndarray) -> Result | None:
        """Reduced objective and gap at D, None where D is not finite."""
        return self.solve(None, self.judge, D, max_iter=0, progress=False) if np.all(np.isfinite(D)) else None

    def value(self, D: np.ndarray) -> float:
        """Reduced objective at D, NaN where D is not finite."""
        if not np.all(np.isfinite(D)):
            return math.nan
        return float(xv.value_and_gradient(self.judge, D, self.backend, device=self.device)[0])


def compare(task: Task, backends: Sequence[str], iterations: int = 50) -> Agreement:
    """The paper's method from the same start on several backends, each on its default device.

    Parameters
    ----------
    task : Task
        In float64, the precision in which backends can be expected to agree.
    backends : sequence of str
        At least two.
    iterations : int
        On each.
    """
    limits = {"tol": 0.0, "max_iter": iterations, "progress": False}
    tasks = {name: replace(task, backend=name, device=None) for name in backends}
    stated = problem(task.X, task.lam)
    return Agreement({name: on.solve(PAPER.algorithm, stated, task.D0, **limits) for name, on in tasks.items()})
