"""Joint baselines: both blocks as variables, nothing eliminated.

They follow the package's `Algorithm` seam, so that the same driver runs, times and traces them on any problem. Their
objective is their own, J at their w; ``solve(problem, theta, max_iter=0)`` gives the reduced one. For a separable
problem it is never larger.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import TypeVar

from xvarpro.algorithms import SpectralProjectedGradient
from xvarpro_experiments.rivals._common import JointMethod, Periodic
from xvarpro_experiments.rivals.alternating import IPALM, AlternatingLeastSquares, palm
from xvarpro_experiments.rivals.objective import Joint
from xvarpro_experiments.rivals.reduced import ReducedAdam
from xvarpro_experiments.rivals.simultaneous import JointAdam, Jointly, JointProjectedGradient

T = TypeVar("T")

__all__ = [
    "BASELINES",
    "GRIDS",
    "IPALM",
    "AlternatingLeastSquares",
    "Joint",
    "JointAdam",
    "JointMethod",
    "JointProjectedGradient",
    "Jointly",
    "Periodic",
    "ReducedAdam",
    "palm",
    "tune",
]

# as their papers state them
BASELINES: dict[str, JointMethod] = {
    "joint PG, 1/L": JointProjectedGradient(),
    "joint accelerated PG": Jointly(),
    "joint spectral PG": Jointly(SpectralProjectedGradient()),
    "PALM": palm(),
    "iPALM": IPALM(),
    "alternating least squares": AlternatingLeastSquares(),
}

# with parameters that have to be tried: `tune` takes the best of each
GRIDS: dict[str, tuple[Periodic, ...]] = {
    "joint PG, best fixed step": tuple(JointProjectedGradient(step=10.0**k) for k in range(-9, 3)),
    "joint Adam, best rate": tuple(JointAdam(10.0 ** (k / 2)) for k in range(-10, 1)),
    "iPALM, tuned": tuple(IPALM(b, s) for b, s in itertools.product((0.0, 0.3, 0.6, None), (0.9, 1.5))),
}


def tune(candidates: Iterable[T], score: Callable[[T], float]) -> T:
    """The candidate with the smallest score, the first of equals; one that is not finite loses.

    Parameters
    ----------
    candidates : iterable
        Such as an entry of `GRIDS`.
    score : callable
        What a short run of the candidate ended at, usually the reduced objective from start 0.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro_experiments import rivals
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> t = np.linspace(0.0, 1.0, 50)
    >>> problem, box = xv.separable(M, np.exp(-3.0 * t), data=t, lam=1e-6), xv.sets.Box(0.0, 10.0)
    >>> def score(method):
    ...     fit = xv.solve(problem, np.array([1.0]), over=box, algorithm=method, max_iter=100)
    ...     return float(xv.value_and_gradient(problem, fit.theta)[0])
    >>> rivals.tune(rivals.GRIDS["joint PG, best fixed step"], score).step
    0.1
    """

    def key(method: T) -> tuple[bool, float]:
        value = score(method)
        return not math.isfinite(value), value

    return min(candidates, key=key)
