"""The same solve on several backends: where they part, how fast, and what rounding explains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from xvarpro import backends as registry
from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.struct import Tree
from xvarpro.driver.evaluate import value_and_gradient
from xvarpro.driver.run import IterationInfo
from xvarpro.driver.solve import solve
from xvarpro.errors import ProblemError
from xvarpro.problem.problem import Problem
from xvarpro.results.result import Result

# of two objectives, relative: in float64 what rounding leaves after hundreds of iterations of a method that does not
# amplify it; in float32 as much more as its epsilon is larger
TOLERANCE = {"float64": 1e-9, "float32": 1e-2}
SPACING = 1.3  # of the iterates that are looked at closely, in the logarithm of their number


@dataclass(frozen=True)
class Apart:
    """How far a backend is from the reference, at the iterates that were looked at.

    Attributes
    ----------
    theta : array
        ``|theta - theta_ref| / |theta_ref|``.
    gradient : array
        Distance of the gradients of both backends at the *reference's* iterate: the error of one evaluation, whatever
        became of the iterates before. Relative to the gradient at the start where that is larger: near a minimum the
        gradient is a small difference of large terms, and its own size says nothing about its error.
    """

    theta: np.ndarray
    gradient: np.ndarray


@dataclass(frozen=True)
class Comparison:
    """Runs of one method from one start in one precision, by backend.

    Attributes
    ----------
    fits : mapping of str to Result
        The first is the reference.
    looked_at : array of int
        Iterations at which theta and the gradient were compared.
    apart : mapping of str to Apart
        By backend, the reference left out.
    predicted : array
        Machine epsilon times the condition of the lower level at the reference's iterates: what the relative error of a
        gradient may be for rounding alone.
    """

    fits: Mapping[str, Result]
    looked_at: np.ndarray
    apart: Mapping[str, Apart]
    predicted: np.ndarray

    @property
    def iterations(self) -> int:
        """The fewest that any backend made."""
        return min(fit.n_iter for fit in self.fits.values())

    @property
    def value_difference(self) -> np.ndarray:
        """Largest difference of two objectives at every iteration, relative to the larger; NaN where one is."""
        values = np.stack([fit.trace.value[: self.iterations + 1] for fit in self.fits.values()])
        return np.ptp(values, axis=0) / np.max(np.abs(values), axis=0)

    @property
    def relative_difference(self) -> float:
        """The largest `value_difference`."""
        return float(np.max(self.value_difference))

    @property
    def first_difference(self) -> int | None:
        """First iteration at which two backends took different steps, None where all are equal, bit for bit."""
        traces = [fit.trace.alpha_A for fit in self.fits.values()], [fit.trace.alpha_B for fit in self.fits.values()]
        found = [n for steps in traces for a, b in combinations(steps, 2) if (n := _first(a, b)) is not None]
        return min(found, default=None)

    @property
    def same_bits(self) -> bool:
        """Whether objectives, gaps, steps and the last theta are equal, bit for bit."""
        first, *others = (_bits(fit) for fit in self.fits.values())
        return all(other == first for other in others)

    @property
    def tolerance(self) -> float:
        """Of two objectives, by the coarsest precision."""
        return max(TOLERANCE[fit.provenance["dtype"]] for fit in self.fits.values())

    @property
    def agree(self) -> bool:
        """Whether the objectives agree to `tolerance` and all steps are equal."""
        return self.relative_difference <= self.tolerance and self.first_difference is None

    @property
    def excess(self) -> float:
        """Largest difference of two gradients at one point in units of what is predicted; NaN where none was taken."""
        ratios = [float(np.max(a.gradient / self.predicted)) for a in self.apart.values() if a.gradient.size]
        return max(ratios, default=math.nan)

    @property
    def verdict(self) -> str:
        """One sentence."""
        *names, last = self.fits
        who = f"{', '.join(names)} and {last}"
        digits = f"to {self.relative_difference:.1e} relative"
        if self.first_difference is None:
            steps = f"the same {self.iterations} step sizes"
        else:
            steps = f"different step sizes from iteration {self.first_difference} on"
        same = "the same objective" if self.relative_difference <= self.tolerance else "objectives that are equal only"
        gradients = (
            "" if math.isnan(self.excess) else f"; gradients at one point within {self.excess:.2g} eps x condition"
        )
        return f"{who}: {same} {digits}, {steps}{gradients}"

    def record(self) -> dict[str, Any]:
        """Everything as JSON takes it."""
        return {
            "backends": [
                {
                    "backend": name,
                    "objective": fit.value,
                    "iterations": fit.n_iter,
                    "seconds": fit.seconds,
                    "setup_seconds": fit.setup_seconds,
                    "provenance": fit.provenance,
                }
                for name, fit in self.fits.items()
            ],
            "iterations": self.iterations,
            "relative_difference": self.relative_difference,
            "tolerance": self.tolerance,
            "same_step_sizes": self.first_difference is None,
            "first_different_step": self.first_difference,
            "same_bits": self.same_bits,
            "looked_at": self.looked_at.tolist(),
            "theta_difference": {name: a.theta.tolist() for name, a in self.apart.items()},
            "gradient_difference": {name: a.gradient.tolist() for name, a in self.apart.items()},
            "predicted": self.predicted.tolist(),
            "excess": self.excess,
            "agree": self.agree,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        head = f"{'iteration':>9}  {'value':>8}  " + "".join(
            f"{'theta ' + n:>16}  {'gradient ' + n:>19}  " for n in self.apart
        )
        lines = [self.verdict, head + f"{'eps x cond':>10}"]
        for i, n in enumerate(self.looked_at):
            cells = "".join(f"{a.theta[i]:>16.1e}  {a.gradient[i]:>19.1e}  " for a in self.apart.values())
            lines.append(f"{n:>9}  {self.value_difference[n]:>8.1e}  {cells}{self.predicted[i]:>10.1e}")
        return "\n".join(lines)

    def plot(self) -> Any:
        """The differences against iterations, log scale; a matplotlib Figure."""
        from xvarpro.results.plotting import plot_comparison  # matplotlib is optional

        return plot_comparison(self)


def compare(
    problem: Problem,
    theta0: Tree,
    *,
    over: Any = None,
    backends: Sequence[str],
    algorithm: Algorithm | None = None,
    max_iter: int = 300,
    tol: float = 0.0,
    dtype: str = "float64",
    progress: bool | None = False,
) -> Comparison:
    """Solve one problem on several backends, each on its default device, and say where they part.

    Parameters
    ----------
    problem : Problem
    theta0 : pytree of arrays
    over : Set or pytree of sets
        As in `solve`.
    backends : sequence of str
        Two or more; the first is the reference.
    algorithm : Algorithm, optional
        As in `solve`. Methods that decide by comparing objectives with powers of a constant, as
        ``algorithms.cr_varpro()``, take identical steps as long as rounding does not decide; those that divide
        differences of gradients never do.
    max_iter : int
        Iterations on each.
    tol : float
        As in `solve`; 0 so that all of them go on to `max_iter`.
    dtype : str
        ``"float64"`` or ``"float32"``: of all.
    progress : bool, optional
        As in `solve`.

    Returns
    -------
    Comparison

    Raises
    ------
    ProblemError
        Fewer than two backends, or one of them twice; and what `solve` raises.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> t = np.linspace(0.0, 2.0, 50)
    >>> problem = xv.separable(M, np.exp(-t) + np.exp(-5.0 * t), data=t, lam=1e-6)
    >>> found = xv.compare(problem, np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 10.0),
    ...                    backends=["numpy", "array-api-strict"], algorithm=xv.algorithms.cr_varpro(), max_iter=20)
    >>> found.agree, found.first_difference
    (True, None)
    """
    names = list(backends)
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise ProblemError(f"compare needs two or more different backends, such as 'numpy' and 'torch': got {names}")
    leaves, treedef = trees.flatten(theta0)
    start = trees.unflatten(treedef, [np.asarray(to_numpy(x), dtype=dtype) for x in leaves])
    fits, paths = {}, {}
    for name in names:
        kept = _Kept()
        fits[name] = solve(
            problem,
            start,
            over=over,
            algorithm=algorithm,
            tol=tol,
            max_iter=max_iter,
            callback=kept,
            backend=name,
            dtype=dtype,
            progress=progress,
        )
        paths[name] = {0: start, **kept.thetas, fits[name].n_iter: fits[name].theta}
    looked_at = sorted(set.intersection(*(set(path) for path in paths.values())))
    reference, *others = names
    at = [paths[reference][n] for n in looked_at]
    gradients = {name: [_gradient(problem, theta, name, dtype) for theta in at] for name in names}
    first = float(np.linalg.norm(_flat(gradients[reference][0])))
    apart = {
        name: Apart(
            np.asarray([distance(paths[name][n], theta) for n, theta in zip(looked_at, at, strict=True)]),
            np.asarray([distance(g, h, first) for g, h in zip(gradients[name], gradients[reference], strict=True)]),
        )
        for name in others
    }
    conditions = [
        solve(problem, theta, over=over, max_iter=0, backend=reference, dtype=dtype, progress=False).verified.condition
        for theta in at
    ]
    predicted = np.finfo(dtype).eps * np.maximum(np.asarray(conditions), 1.0)
    return Comparison(fits, np.asarray(looked_at), apart, predicted)


class _Kept:
    """A callback that keeps an iterate now and then, the same ones on every backend."""

    def __init__(self) -> None:
        self.thetas: dict[int, Tree] = {}
        self._next = 1

    def __call__(self, info: IterationInfo) -> None:
        if info.iteration >= self._next:
            self._next = math.ceil(SPACING * info.iteration + 0.1)
            self.thetas[info.iteration] = info.theta


def _gradient(problem: Problem, theta: Tree, name: str, dtype: str) -> Tree:
    return value_and_gradient(problem, theta, registry.get(name), dtype=dtype)[1]


def _flat(tree: Tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in trees.flatten(tree)[0]])


def distance(a: Tree, b: Tree, size: float = 0.0) -> float:
    """Euclidean distance relative to b, or to `size` where that is larger."""
    x, y = _flat(a), _flat(b)
    size = max(size, float(np.linalg.norm(y)))
    gap = float(np.linalg.norm(x - y))
    return gap / size if size else gap


def _bits(fit: Result) -> list[bytes]:
    t = fit.trace
    arrays = [t.value, t.gap_A, t.gap_B, t.alpha_A, t.alpha_B, *trees.leaves(fit.theta)]
    return [to_numpy(x).tobytes() for x in arrays]


def _first(a: np.ndarray, b: np.ndarray) -> int | None:
    n = min(a.size, b.size)
    apart = np.flatnonzero(a[:n] != b[:n])  # NaN differs from itself
    if apart.size:
        return int(apart[0])
    return None if a.size == b.size else n
