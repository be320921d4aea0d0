"""One solve on several backends: whether theta agrees, and where and why it parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro.backends import to_numpy
from xvarpro.core import trees
from xvarpro.core.struct import Tree
from xvarpro.driver.destination import destination
from xvarpro.driver.run import IterationInfo
from xvarpro.driver.solve import solve
from xvarpro.errors import ProblemError
from xvarpro.reproducibility.agreement import (
    GRADIENT,
    Evaluation,
    Pair,
    Path,
    Relation,
    Site,
    apart,
    distance,
    erring,
    first_different_step,
    flat,
)
from xvarpro.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure, FigureBase

    from xvarpro.algorithms.interface import Algorithm
    from xvarpro.problem.problem import Problem

SPACING = 1.3  # ratio of the numbers of two sampled iterates
MEMORY = 2**28  # bytes of iterates that are kept of one solve


@dataclass(frozen=True)
class Deviation:
    """Differences of one backend from the reference, at the sampled iterates.

    Attributes
    ----------
    theta : array
        ``|theta - theta_ref| / |theta_ref|``, in the leaf where it is largest.
    gradient : array
        Difference of both backends' gradients at the *reference's* iterate, relative to the largest of the gradients
        there and at the start and of ``s / |theta|``, s being ``1/2 |y|^2`` or the first objective if that is larger.
        It is the error of one evaluation, independent of earlier iterates. Near a minimum the gradient is a small
        difference of terms as large as the last of the three, so its own norm would be no scale for its error.
    value : array
        The same for the objective, relative to ``|f| + (|f| s)^(1/2) + eps s``.
    """

    theta: np.ndarray
    gradient: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class Runs:
    """Solves of one problem by one algorithm from one start, by name.

    Attributes
    ----------
    fits : mapping of str to Result
        The first is the reference.
    """

    fits: Mapping[str, Result]

    @property
    def iterations(self) -> int:
        """Number of iterations that all of them made."""
        return min(fit.n_iter for fit in self.fits.values())

    @property
    def value_difference(self) -> np.ndarray:
        """Largest difference of two objectives at every iteration, relative to the larger; NaN where one is."""
        values = np.stack([fit.trace.value[: self.iterations + 1] for fit in self.fits.values()])
        largest = np.max(np.abs(values), axis=0)
        return np.ptp(values, axis=0) / np.where(largest == 0, 1.0, largest)

    @property
    def relative_difference(self) -> float:
        """The largest `value_difference`."""
        return float(np.max(self.value_difference))

    @property
    def first_different_step(self) -> int | None:
        """First iteration at which two took steps of different sizes; None if all are equal, bit for bit."""
        pairs = combinations([fit.trace for fit in self.fits.values()], 2)
        return min((n for a, b in pairs if (n := first_different_step(a, b)) is not None), default=None)

    @property
    def same_bits(self) -> bool:
        """Whether objectives, gaps, steps and the last theta are equal, bit for bit."""
        first, *others = (_bits(fit) for fit in self.fits.values())
        return all(other == first for other in others)

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        *names, last = self.fits
        return f"{', '.join(names)} and {last}: {self._path}"

    @property
    def _path(self) -> str:
        n = self.first_different_step
        steps = f"the same {self.iterations} step sizes" if n is None else f"different step sizes from iteration {n} on"
        return f"objectives equal to {self.relative_difference:.1e} relative, {steps}"

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
            "first_different_step": self.first_different_step,
            "same_bits": self.same_bits,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Comparison(Runs):
    """Solves by one algorithm from one start in one precision, by backend, and how they are related.

    Attributes
    ----------
    relations : mapping of str to Relation
        By backend, without the reference.
    sampled : array of int
        Iterations at which theta, objective and gradient were compared.
    deviations : mapping of str to Deviation
        By backend, without the reference.
    predicted : array
        Machine epsilon times the condition number of the lower level at the reference's sampled iterates: the relative
        error of a gradient that rounding alone explains.
    rounding : array
        Relative difference of theta there that rounding explains: 30 times the largest `predicted` so far for each
        iteration, and at most half of the digits.
    """

    relations: Mapping[str, Relation] = field(default_factory=dict)
    sampled: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    deviations: Mapping[str, Deviation] = field(default_factory=dict)
    predicted: np.ndarray = field(default_factory=lambda: np.zeros(0))
    rounding: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def first_difference(self) -> int | None:
        """First recorded iterate at which theta differs by more than `rounding`; None if none does."""
        found = (relation.first_difference for relation in self.relations.values())
        return min((n for n in found if n is not None), default=None)

    @cached_property
    def w_distance(self) -> float:
        """The largest distance of a w from the reference's, relative."""
        first, *others = (fit.w for fit in self.fits.values())
        return max(distance(w, first) for w in others)

    @property
    def agree(self) -> bool:
        """Whether all have found the same theta and w, as far as the problem determines them, and none errs."""
        same = bool(self.relations) and all(relation.agrees for relation in self.relations.values())
        return same and (self._ends != {"same"} or self.w_distance <= max(self._half, float(self.rounding[-1])))

    @property
    def _ends(self) -> set[str]:
        return {relation.end for relation in self.relations.values()}

    @property
    def _half(self) -> float:
        """Half of the digits."""
        return float(np.finfo(next(iter(self.fits.values())).provenance["dtype"]).eps ** 0.5)

    @property
    def excess(self) -> float:
        """Largest difference of two gradients at one point in units of `predicted`; NaN if none was computed."""
        ratios = [float(np.max(d.gradient / self.predicted)) for d in self.deviations.values() if d.gradient.size]
        return max(ratios, default=math.nan)

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        *names, last = self.fits
        worst = max(relation.distance for relation in self.relations.values())
        if any(relation.fault for relation in self.relations.values()):
            said = "a backend errs"
        elif self.agree:
            same = self._ends == {"same"} and self.w_distance <= self._half
            said = "agree" if same else "agree as far as the problem determines theta and w"
        elif self._ends == {"same"}:
            said = "agree about theta, not about w"
        else:
            said = "two solutions" if "different" not in self._ends else "do not agree"
        return (
            f"{', '.join(names)} and {last}: {said}; theta {worst:.1e} apart, w {self.w_distance:.1e}, {self._path}; "
            f"gradients at one point within {self.excess:.2g} eps x condition"
        )

    @property
    def sentences(self) -> list[str]:
        """What is known of each backend but the reference: of the ends, of the iterates, and of errors."""
        found = [(name, said) for name, r in self.relations.items() for said in (r.sentence, r.reason, r.fault) if said]
        return [f"{name}: {said}" for name, said in found]

    @property
    def table(self) -> str:
        """The differences at the sampled iterates."""
        names = "".join(f"{'theta ' + name:>16}  {'gradient ' + name:>19}  " for name in self.deviations)
        lines = [f"{'iteration':>9}  {'value':>8}  {names}{'rounding':>10}  {'eps x cond':>10}"]
        for i, n in enumerate(self.sampled):
            cells = "".join(f"{d.theta[i]:>16.1e}  {d.gradient[i]:>19.1e}  " for d in self.deviations.values())
            known = f"{self.rounding[i]:>10.1e}  {self.predicted[i]:>10.1e}"
            lines.append(f"{n:>9}  {self.value_difference[n]:>8.1e}  {cells}{known}")
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        """All of it as JSON types."""
        return {
            **super().record(),
            "agree": self.agree,
            "w_distance": self.w_distance,
            "first_difference": self.first_difference,
            "relations": {name: {**vars(r), "agrees": r.agrees} for name, r in self.relations.items()},
            "sampled": self.sampled.tolist(),
            "theta_difference": {name: d.theta.tolist() for name, d in self.deviations.items()},
            "gradient_difference": {name: d.gradient.tolist() for name, d in self.deviations.items()},
            "value_difference": {name: d.value.tolist() for name, d in self.deviations.items()},
            "rounding": self.rounding.tolist(),
            "predicted": self.predicted.tolist(),
            "excess": self.excess,
        }

    def __str__(self) -> str:
        return "\n".join([self.verdict, *self.sentences, self.table])

    def plot(self, *, figure: FigureBase | None = None) -> Figure:
        """Draw the differences of objectives at every iteration, and of theta and gradients at the sampled ones.

        The gradients are those of both backends at one point; machine epsilon times the condition number is drawn for
        comparison. On a log scale, in a new matplotlib Figure or the caller's.
        """
        from xvarpro.results.plotting import COLOURS, blank, positive, tidy  # matplotlib is optional

        fig = blank(figure, 6.4, 4.2)
        ax = fig.subplots()
        n = np.arange(self.iterations + 1)
        ax.plot(n, positive(self.value_difference), color=COLOURS[-1], linewidth=1.0, label="objective, all backends")
        for i, (name, deviation) in enumerate(self.deviations.items()):
            colour = COLOURS[i % (len(COLOURS) - 1)]
            for y, style, label in (
                (deviation.theta, "o-", f"theta, {name}"),
                (deviation.gradient, "s--", f"gradient at one point, {name}"),
            ):
                shown = label if np.any(y > 0) else f"{label}: equal"  # a log scale has no place for zero
                ax.plot(self.sampled, positive(y), style, color=colour, markersize=4, label=shown)
        ax.plot(self.sampled, self.rounding, color="0.5", linestyle="-.", label="theta, by rounding")
        ax.plot(self.sampled, self.predicted, color="0.5", linestyle=":", label="eps x condition")
        ax.set_xscale("symlog", linthresh=1)
        ax.set_yscale("log")
        ax.set_xlabel("iteration")
        ax.set_ylabel(f"relative difference from {next(iter(self.fits))}")
        tidy(ax)
        fig.legend(loc="outside upper center", ncols=2, frameon=False)
        return fig


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
    """Solve one problem on several backends, each on its default device, and find out whether theta agrees.

    Where theta differs by more than rounding explains, the reference is solved again, three times, with data changed by
    one machine epsilon: how far its own iterates move then is what rounding does here.

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
        identical steps until rounding decides one; those that divide differences of gradients amplify rounding.
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

    def run(problem: Problem, name: str) -> Path:
        recorded = _Recorder(start)
        try:
            fit = solve(problem, start, over=over, backend=name, dtype=dtype, callback=recorded, **options)
        except ProblemError as error:
            raise ProblemError(f"on {name}: {error}") from error
        return Path(name, fit, recorded.thetas, Site(problem, over, name, dtype))

    reference, *others = paths = [run(problem, name) for name in names]
    common = sorted(set.intersection(*(set(path.thetas) for path in paths)))
    points = _Points(paths)
    for n in _spread(common):
        points.add(n)
    pairs = [Pair(reference, path, lambda changed: run(changed, names[0]), points) for path in others]
    for pair in pairs:
        if (first := pair.first_difference) is not None:
            for k in {first - 1, first} & set(common):
                points.add(k)
    sampled = sorted(points.found)
    return Comparison(
        fits={path.name: path.fit for path in paths},
        relations={pair.other.name: pair.relation(points.fault(pair.other)) for pair in pairs},
        sampled=np.asarray(sampled),
        deviations={path.name: points.deviation(path, sampled) for path in others},
        predicted=np.asarray([points.predictions[n] for n in sampled]),
        rounding=np.asarray([points.rounding(n) for n in sampled]),
    )


class _Points:
    """Evaluations of all backends at the reference's iterates."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths, self.reference = paths, paths[0]
        self.found: dict[int, dict[str, Evaluation]] = {}
        self.predictions: dict[int, float] = {}
        self.eps = float(np.finfo(self.reference.site.dtype).eps)

    def add(self, n: int) -> None:
        """Evaluate at iterate `n`."""
        if n in self.found:
            return
        theta, site = self.reference.thetas[n], self.reference.site
        self.found[n] = {path.name: path.site.at(theta) for path in self.paths}
        where: dict[str, Any] = {"over": site.over, "backend": site.backend, "dtype": site.dtype}
        here = solve(site.problem, theta, max_iter=0, progress=False, **where).verified
        inexact = here.gradient_error / self.size(n) if here.gradient_error else 0.0
        self.predictions[n] = self.eps * max(here.condition, 1.0) + inexact

    @property
    def predicted(self) -> float:
        """The largest prediction."""
        return max(self.predictions.values())

    def rounding(self, n: int) -> float:
        """The relative difference of theta at iterate `n` that rounding explains.

        Each step is off by as much as its gradient, relative, and the errors of steps add up. A tolerance above half of
        the digits would call equal what has nothing in common.
        """
        worst = max(x for k, x in self.predictions.items() if k <= max(n, 0))
        return min(GRADIENT * (n + 1) * worst, math.sqrt(self.eps))

    def size(self, n: int) -> float:
        """What differences of gradients at iterate `n` are relative to."""
        theta = float(np.linalg.norm(flat(self.reference.thetas[n])))
        terms = self.reference.fit.recipe.scale / theta if theta else 0.0
        return max(self._gradient(n), self._gradient(0), terms) or 1.0

    def _gradient(self, n: int) -> float:
        return float(np.linalg.norm(flat(self.found[n][self.reference.name].gradient)))

    def deviation(self, path: Path, sampled: Sequence[int]) -> Deviation:
        """Differences of a backend from the reference at sampled iterates."""
        start, mine = self.reference.thetas[0], self.reference.thetas
        theta = [apart(path.thetas[n], mine[n], start) for n in sampled]
        offs = [self._off(path, n) for n in sampled]
        return Deviation(np.asarray(theta), *(np.asarray(x) for x in zip(*offs, strict=True)))

    def _off(self, path: Path, n: int) -> tuple[float, float]:
        mine, other = self.found[n][self.reference.name], self.found[n][path.name]
        whole = self.reference.fit.recipe.scale
        scale = abs(mine.value) + math.sqrt(abs(mine.value) * whole) + self.eps * whole
        gap = abs(other.value - mine.value)
        gradient = float(np.linalg.norm(flat(other.gradient) - flat(mine.gradient))) / self.size(n)
        return gradient, gap / scale if scale else gap

    def fault(self, path: Path) -> str:
        """The largest difference at one point that rounding does not explain, and who errs; empty if there is none."""
        for i, what in enumerate(("gradient", "objective")):
            ratios = {n: self._off(path, n)[i] / (GRADIENT * self.predictions[n]) for n in self.found}
            n = max(ratios, key=lambda n: math.inf if math.isnan(ratios[n]) else ratios[n])
            if ratios[n] <= 1:
                continue
            who = erring(self.reference.thetas[n], self.reference, path) if what == "gradient" else None
            said = f"{who} errs: its gradient contradicts its own values" if who else "one of both errs"
            return (
                f"{said}; at iterate {n} of {self.reference.name} both {what}s differ by {self._off(path, n)[i]:.1e} "
                f"relative, where rounding explains {GRADIENT * self.predictions[n]:.1e}"
            )
        return ""


class _Recorder:
    """A callback that stores all iterates, or every second, fourth, ... where those would fill the memory."""

    def __init__(self, start: Tree) -> None:
        self.thetas: dict[int, Tree] = {0: start}
        self._every, self._most = 1, max(64, MEMORY // max(1, flat(start).nbytes))

    def __call__(self, info: IterationInfo) -> None:
        if info.iteration % self._every == 0:
            self.thetas[info.iteration] = info.theta
        if len(self.thetas) > self._most:
            self._every *= 2
            self.thetas = {n: theta for n, theta in self.thetas.items() if n % self._every == 0}


def _spread(numbers: Sequence[int]) -> list[int]:
    """The first and the last of increasing numbers, and some between that lie ever further apart."""
    kept, following = [], 0
    for n in numbers:
        if n >= following or n == numbers[-1]:
            kept.append(n)
            following = math.ceil(SPACING * n + 0.1)
    return kept


def _bits(fit: Result) -> list[bytes]:
    t = fit.trace
    arrays = [t.value, t.gap_A, t.gap_B, t.alpha_A, t.alpha_B, *trees.leaves(fit.theta)]
    return [to_numpy(x).tobytes() for x in arrays]
