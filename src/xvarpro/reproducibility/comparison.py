"""One solve on several backends: how far objectives, iterates and gradients differ, against what rounding predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro import backends as registry
from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.struct import Tree
from xvarpro.driver.destination import destination
from xvarpro.driver.evaluate import value_and_gradient
from xvarpro.driver.run import IterationInfo
from xvarpro.driver.solve import solve
from xvarpro.errors import ProblemError
from xvarpro.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from xvarpro.algorithms.interface import Algorithm
    from xvarpro.problem.problem import Problem

# of two objectives, relative: in float64 what rounding leaves after hundreds of iterations of a method that does not
# amplify it; in float32 as much more as its epsilon is larger
TOLERANCE = {"float64": 1e-9, "float32": 1e-2}
SPACING = 1.3  # ratio of the numbers of two sampled iterates


@dataclass(frozen=True)
class Deviation:
    """Differences of one backend from the reference, at the sampled iterates.

    Attributes
    ----------
    theta : array
        ``|theta - theta_ref| / |theta_ref|``.
    gradient : array
        Difference of both backends' gradients at the *reference's* iterate, relative to the larger of the gradients
        there and at the start. It is the error of one evaluation, independent of earlier iterates. Near a minimum the
        gradient is a small difference of large terms, so its own norm would be no scale for its error.
    """

    theta: np.ndarray
    gradient: np.ndarray


@dataclass(frozen=True)
class Comparison:
    """Runs of one algorithm from one start in one precision, by backend.

    Attributes
    ----------
    fits : mapping of str to Result
        The first is the reference.
    sampled : array of int
        Iterations at which theta and the gradient were compared.
    deviations : mapping of str to Deviation
        By backend, without the reference.
    predicted : array
        Machine epsilon times the condition number of the lower level at the reference's sampled iterates: the relative
        error of a gradient that rounding alone explains.
    """

    fits: Mapping[str, Result]
    sampled: np.ndarray = field(default_factory=lambda: np.zeros(0))
    deviations: Mapping[str, Deviation] = field(default_factory=dict)
    predicted: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def iterations(self) -> int:
        """Number of iterations that all backends made."""
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
        """First iteration at which two backends took different steps; None if all are equal, bit for bit."""
        pairs = combinations([fit.trace for fit in self.fits.values()], 2)
        found = (_first_difference(getattr(a, k), getattr(b, k)) for a, b in pairs for k in ("alpha_A", "alpha_B"))
        return min((n for n in found if n is not None), default=None)

    @property
    def same_bits(self) -> bool:
        """Whether objectives, gaps, steps and the last theta are equal, bit for bit."""
        first, *others = (_bits(fit) for fit in self.fits.values())
        return all(other == first for other in others)

    @property
    def tolerance(self) -> float:
        """Relative tolerance of two objectives, for the coarsest dtype."""
        return max(TOLERANCE[fit.provenance["dtype"]] for fit in self.fits.values())

    @property
    def agree(self) -> bool:
        """Whether the objectives agree to `tolerance` and all steps are equal."""
        return self.relative_difference <= self.tolerance and self.first_difference is None

    @property
    def excess(self) -> float:
        """Largest difference of two gradients at one point in units of `predicted`; NaN if none was computed."""
        ratios = [float(np.max(d.gradient / self.predicted)) for d in self.deviations.values() if d.gradient.size]
        return max(ratios, default=math.nan)

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        *names, last = self.fits
        same = "the same objective" if self.relative_difference <= self.tolerance else "objectives that are equal only"
        if self.first_difference is None:
            steps = f"the same {self.iterations} step sizes"
        else:
            steps = f"different step sizes from iteration {self.first_difference} on"
        within = f"; gradients at one point within {self.excess:.2g} eps x condition"
        return (
            f"{', '.join(names)} and {last}: {same} to {self.relative_difference:.1e} relative, {steps}"
            f"{'' if math.isnan(self.excess) else within}"
        )

    def record(self) -> dict[str, Any]:
        """All of it as JSON types."""
        return {
            "backends": [
                {"backend": name, "objective": fit.value, "iterations": fit.n_iter}
                | {key: getattr(fit, key) for key in ("seconds", "setup_seconds", "provenance")}
                for name, fit in self.fits.items()
            ],
            "iterations": self.iterations,
            "relative_difference": self.relative_difference,
            "tolerance": self.tolerance,
            "same_step_sizes": self.first_difference is None,
            "first_different_step": self.first_difference,
            "same_bits": self.same_bits,
            "sampled": self.sampled.tolist(),
            "theta_difference": {name: d.theta.tolist() for name, d in self.deviations.items()},
            "gradient_difference": {name: d.gradient.tolist() for name, d in self.deviations.items()},
            "predicted": self.predicted.tolist(),
            "excess": self.excess,
            "agree": self.agree,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        names = "".join(f"{'theta ' + name:>16}  {'gradient ' + name:>19}  " for name in self.deviations)
        lines = [self.verdict, f"{'iteration':>9}  {'value':>8}  {names}{'eps x cond':>10}"]
        for i, n in enumerate(self.sampled):
            cells = "".join(f"{d.theta[i]:>16.1e}  {d.gradient[i]:>19.1e}  " for d in self.deviations.values())
            lines.append(f"{n:>9}  {self.value_difference[n]:>8.1e}  {cells}{self.predicted[i]:>10.1e}")
        return "\n".join(lines)

    def plot(self) -> Figure:
        """Draw the differences of objectives at every iteration, and of theta and gradients at the sampled ones.

        The gradients are those of both backends at one point; machine epsilon times the condition number is drawn for
        comparison. A matplotlib Figure, on a log scale.
        """
        from xvarpro.results.plotting import COLOURS, Figure, positive, tidy  # matplotlib is optional

        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        ax = figure.subplots()
        n = np.arange(self.iterations + 1)
        ax.plot(n, positive(self.value_difference), color=COLOURS[-1], linewidth=1.0, label="objective, all backends")
        for i, (name, deviation) in enumerate(self.deviations.items()):
            colour = COLOURS[i % (len(COLOURS) - 1)]
            for y, style, label in (
                (deviation.theta, "o-", f"theta, {name}"),
                (deviation.gradient, "s--", f"gradient at one point, {name}"),
            ):
                ax.plot(self.sampled, positive(y), style, color=colour, markersize=4, label=label)
        ax.plot(self.sampled, self.predicted, color="0.5", linestyle=":", label="eps x condition")
        ax.set_xscale("symlog", linthresh=1)
        ax.set_yscale("log")
        ax.set_xlabel("iteration")
        ax.set_ylabel(f"relative difference from {next(iter(self.fits))}")
        tidy(ax)
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
        return figure


def compare(
    problem: Problem,
    theta0: Tree,
    over: Tree = None,
    *,
    backends: Sequence[str],
    algorithm: Algorithm | None = None,
    max_iter: int = 300,
    tol: float = 0.0,
    dtype: str = "float64",
    progress: bool | None = False,
) -> Comparison:
    """Solve one problem on several backends, each on its default device, and measure their differences.

    Parameters
    ----------
    problem : Problem
    theta0 : pytree of arrays
    over : Set or pytree of sets
        As in `solve`.
    backends : sequence of str
        Two or more; the first is the reference.
    algorithm : Algorithm, optional
        As in `solve`. Algorithms that choose among powers of a constant, such as ``algorithms.cr_varpro()``, take
        identical steps until rounding decides one; those that divide differences of gradients never do.
    max_iter : int
        Iterations on each.
    tol : float
        As in `solve`; with 0 all backends run to `max_iter`.
    dtype : str
        ``"float64"`` or ``"float32"``, the same for all.
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
    names = list(backends) if isinstance(backends, Sequence) and not isinstance(backends, str) else []
    if len(names) < 2 or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ProblemError(
            f"backends must be two or more different names, such as ['numpy', 'torch']; got {backends!r}"
        )
    given = destination(theta0, None, None, None)
    start = trees.unflatten(given.layout.treedef, [to_numpy(x) for x in given.leaves])
    options: dict[str, Any] = {"algorithm": algorithm, "tol": tol, "max_iter": max_iter, "progress": progress}
    fits, paths = {}, {}
    for name in names:
        recorded = _Recorder()
        fit = solve(problem, start, over=over, backend=name, dtype=dtype, callback=recorded, **options)
        fits[name], paths[name] = fit, {0: start, **recorded.thetas, fit.n_iter: fit.theta}
    sampled = sorted(set.intersection(*(set(path) for path in paths.values())))
    reference, *others = names
    at = [paths[reference][n] for n in sampled]
    gradients = {
        name: [value_and_gradient(problem, theta, registry.get(name), dtype=dtype)[1] for theta in at] for name in names
    }
    first = float(np.linalg.norm(_flat(gradients[reference][0])))
    deviations = {
        name: Deviation(
            np.asarray([distance(paths[name][n], theta) for n, theta in zip(sampled, at, strict=True)]),
            np.asarray([distance(g, h, first) for g, h in zip(gradients[name], gradients[reference], strict=True)]),
        )
        for name in others
    }
    conditions = [
        solve(problem, theta, over=over, max_iter=0, backend=reference, dtype=dtype, progress=False).verified.condition
        for theta in at
    ]
    predicted = np.finfo(dtype).eps * np.maximum(np.asarray(conditions), 1.0)
    return Comparison(fits, np.asarray(sampled), deviations, predicted)


class _Recorder:
    """A callback that stores the iterates 1, 2, 3, 4, 6, 8, ...: the same ones on every backend."""

    def __init__(self) -> None:
        self.thetas: dict[int, Tree] = {}
        self._next = 1

    def __call__(self, info: IterationInfo) -> None:
        if info.iteration >= self._next:
            self._next = math.ceil(SPACING * info.iteration + 0.1)
            self.thetas[info.iteration] = info.theta


def _flat(tree: Tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in trees.leaves(tree)])


def distance(a: Tree, b: Tree, size: float = 0.0) -> float:
    """Euclidean distance of a and b, relative to the larger of ``|b|`` and `size`."""
    x, y = _flat(a), _flat(b)
    size = max(size, float(np.linalg.norm(y)))
    gap = float(np.linalg.norm(x - y))
    return gap / size if size else gap


def _bits(fit: Result) -> list[bytes]:
    t = fit.trace
    arrays = [t.value, t.gap_A, t.gap_B, t.alpha_A, t.alpha_B, *trees.leaves(fit.theta)]
    return [to_numpy(x).tobytes() for x in arrays]


def _first_difference(a: np.ndarray, b: np.ndarray) -> int | None:
    n = min(a.size, b.size)
    different = np.flatnonzero(a[:n] != b[:n])  # NaN differs from itself
    if different.size:
        return int(different[0])
    return None if a.size == b.size else n
