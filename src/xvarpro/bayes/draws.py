"""Draws of what a marginal likelihood leaves open: their table, predictions, figure, and the way to ArviZ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro.backends import get, to_numpy
from xvarpro.core import trees
from xvarpro.core.checks import confidence, switch
from xvarpro.core.struct import Tree
from xvarpro.driver.transfer import CallerLayout
from xvarpro.errors import ProblemError
from xvarpro.problem.whitening import Whitening
from xvarpro.results.outcome import Outcome
from xvarpro.statistics.bands import Band, joined, observation_roots, parts_of
from xvarpro.statistics.frames import aligned
from xvarpro.statistics.names import each_name, given_names
from xvarpro.statistics.prediction import predict

if TYPE_CHECKING:
    from xvarpro.results.figures import Figure, FigureBase

SHOWN = 8  # columns of a figure
LISTED = 40  # rows of a table
OVERLAP = 0.01  # of the draws: that many of another order are said
TRUSTED = 0.1  # error of a log evidence: that of a hundred independent draws


@dataclass(frozen=True, repr=False, eq=False)
class Draws:
    """Draws of theta, w and the noise given the data, in NumPy's arrays; prints as a table.

    Attributes
    ----------
    theta : pytree of arrays, shape (n, ...)
        One after the other of a Markov chain: where a proposal was refused, the last one again.
    w : array, shape (n, rows) or (n, rows, k)
        Independent given theta.
    sigma : array, shape (n,)
        Standard deviation of a number of weight 1; where it is known, that.
    log_density : array, shape (n,)
        That of the data, and of theta where a density was given: ``log p(y | theta) + prior_theta(theta)``.
    acceptance : float
        Share of accepted proposals.
    log_evidence, log_evidence_error : float or None
        The logarithm of the integral of the density of the data times that of theta, from the proposals as importance
        samples, and its standard error, which above 0.1 is itself too small. The orders of ``components`` are counted,
        each once where they overlap.
        None where the set of theta has no bound and no density of it was given.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> x = np.linspace(0.0, 1.0, 40)
    >>> y = 2.0 * x**1.5 + 0.05 * np.cos(40 * x)
    >>> m = xv.marginal(xv.separable(lambda theta, x: x[:, None] ** theta, y, data=x), noise=0.05)
    >>> draws = xv.solve(m, np.array([1.0]), over=xv.sets.Box(0.1, 10.0)).sample(100)
    >>> list(draws.columns(["power"])), draws.predict(np.array([0.5, 2.0])).shape
    (['power', 'w[0]'], (100, 2))
    """

    theta: Tree
    w: np.ndarray
    sigma: np.ndarray
    log_density: np.ndarray
    acceptance: float
    log_evidence: float | None
    log_evidence_error: float | None
    _mixed: float
    _fit: Outcome
    _layout: CallerLayout

    def __len__(self) -> int:
        return len(self.sigma)

    @property
    def ess(self) -> np.ndarray:
        """Effective sample size of each entry of theta, (p,): of so many independent draws the mean has this error."""
        return np.array([effective_size(x) for x in self._flat().T])

    def columns(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Each real number that was drawn, (n,), by its name: theta, w, and sigma where it is not known."""
        of_theta, of_w = given_names(trees.map_leaves(lambda x: x[0], self.theta), self.w.shape[1:], names)
        parts = parts_of(self.w.reshape(len(self), -1))
        every = of_theta + [part + name for part in (["Re ", "Im "] if len(parts) > 1 else [""]) for name in of_w]
        found = dict(zip(every, np.concatenate([self._flat(), *parts], axis=1).T, strict=True))
        return found | ({} if self._known else {"sigma": self.sigma})

    def predict(self, data: Tree = None, *, noise: bool = False, seed: int = 0) -> np.ndarray:
        """``M(theta, data) w`` of every draw, or new observations, with noise: (n, m) or (n, m, k).

        Parameters
        ----------
        data : pytree, optional
            As for `Result.predict`; the problem's own by default, which rows in chunks do not have.
        noise : bool
            Add the noise of an observation, of the problem's weights for its own data, else of weight 1; of one of
            weight 0 the result is NaN. That of a covariance is refused.
        seed : int
            Of that noise.
        """
        switch("noise", noise)
        problem = self._fit.stated
        if data is None and problem.in_rows:
            raise ProblemError("predictions of a fit to rows in chunks need data=, such as those of a chunk; got none")
        if noise and (problem.lower.covariance is not None or isinstance(problem.lower.weights, Whitening)):
            raise ProblemError("noise of a covariance is not drawn for predictions; got noise=True. Add draws of yours")
        given = problem.data if data is None else data
        every = zip(*(tuple(map(np.asarray, x)) for x in trees.leaves(self.theta)), strict=True)
        thetas = (self._layout.to_caller(leaves, get("numpy")) for leaves in every)
        pairs = zip(thetas, self.w, strict=True)
        values = np.stack([to_numpy(predict(problem, theta, w, given)) for theta, w in pairs])
        if noise:
            draw, root = np.random.default_rng(seed), observation_roots(problem, data, None, values.shape[1:])
            parts = [draw.normal(size=values.shape) for _ in parts_of(values)]
            spread = np.expand_dims(self.sigma, tuple(range(1, values.ndim)))
            values = values + joined(parts) * spread / np.where(root > 0, root, np.nan)
        return values

    def band(self, data: Tree = None, level: float = 0.9, *, noise: bool = False, seed: int = 0) -> Band:
        """Mean and quantiles of `predict`: each point lies between these with the probability `level`."""
        confidence(level)
        values = self.predict(data, noise=noise, seed=seed)
        lower, upper = (
            joined([np.quantile(x, q, axis=0) for x in parts_of(values)]) for q in (0.5 - level / 2, 0.5 + level / 2)
        )
        return Band(values.mean(axis=0), lower, upper)

    def to_arviz(self) -> Any:
        """As an ``arviz.InferenceData`` of one chain: theta by its keys, w and sigma, ``lp`` among the statistics."""
        try:
            import arviz
        except ImportError as error:
            raise ImportError("to_arviz needs ArviZ: pip install arviz", name="arviz") from error
        leaves, treedef = trees.flatten(self.theta)
        keys = each_name(trees.unflatten(treedef, range(len(leaves))))
        w = {"w": self.w} if np.isrealobj(self.w) else {"w_real": self.w.real, "w_imag": self.w.imag}
        found = dict(zip(keys, leaves, strict=True)) | w | ({} if self._known else {"sigma": self.sigma})
        groups = {
            "posterior": {key: x[None] for key, x in found.items()},
            "sample_stats": {"lp": self.log_density[None]},
        }
        return arviz.from_dict(**groups) if hasattr(arviz, "InferenceData") else arviz.from_dict(groups)

    def plot(self, names: Sequence[str] | None = None, *, figure: FigureBase | None = None) -> Figure:
        """Histograms of up to eight numbers that were drawn, theta first, and pairs of them against each other.

        `names` are those of the entries of theta, `figure` is as for `Result.plot_fit`.
        """
        from xvarpro.results.figures import COLOURS, blank, tidy

        shown = list(self.columns(names).items())[:SHOWN]
        k = len(shown)
        fig = blank(figure, 1.6 + 1.4 * k, 1.2 + 1.4 * k)
        for (i, j), ax in np.ndenumerate(fig.subplots(k, k, sharex="col", squeeze=False)):
            (name, y), (below, x), first, last = shown[i], shown[j], j == 0 < i, i == k - 1
            ax.set_visible(j <= i)
            if j < i:
                ax.plot(x, y, ".", color=COLOURS[0], markersize=2, alpha=0.3)
            elif j == i:
                ax.hist(x, bins="auto", color="0.8")
                ax.set_yticks([])
            ax.set(xlabel=below if last else "", ylabel=name if first else "")
            ax.tick_params(labelleft=first, labelbottom=last)
            ax.locator_params(nbins=3)
            tidy(ax)
        return fig

    def __repr__(self) -> str:
        head = f"{len(self)} draws, {100 * self.acceptance:.0f} % of the proposals accepted"
        if self.acceptance < 0.1 or min(self.ess, default=len(self)) < 0.1 * len(self):
            head += ": the density is far from a normal one; use another sampler of problem.unconstrained(...)"
        if self._mixed > OVERLAP:
            head += f"\ncomponents overlap: {100 * self._mixed:.0f} % of the draws may be of another order of them"
        if self.log_evidence is not None and self.log_evidence_error is not None:
            head += f"\nlog evidence {self.log_evidence:.2f} +- {self.log_evidence_error:.2g}"
            if not self.log_evidence_error < TRUSTED:
                head += ", not to be trusted, the error included: a few of the proposals make up the integral"
        rows: list[tuple[str, ...]] = [("", "mean", "sd", "5 %", "95 %", "ess")]
        for name, x in list((columns := self.columns()).items())[:LISTED]:
            low, high = np.quantile(x, (0.05, 0.95))
            size = effective_size(x)
            rows.append((name, f"{x.mean():.6g}", f"{x.std():.3g}", f"{low:.6g}", f"{high:.6g}", f"{size:.3g}"))
        return "\n".join([head, *aligned(rows, len(columns) - LISTED)])

    @property
    def _known(self) -> bool:
        noise: Any = self._fit.stated.noise
        return noise.sigma is not None

    def _flat(self) -> np.ndarray:
        """Entries of theta, (n, p)."""
        return np.concatenate([x.reshape(len(self), -1) for x in trees.leaves(self.theta)], axis=1)


def effective_size(x: np.ndarray) -> float:
    """Of a chain (n,), by Geyer's initial monotone sequence of autocovariances (Statistical Science 7, 1992)."""
    n, off = len(x), x - x.mean()
    spectrum = np.fft.rfft(off, 2 * n)
    covariance = np.fft.irfft(spectrum * spectrum.conj())[:n]
    if n < 4 or covariance[0] <= 1e-24 * max(1.0, float(x @ x)):
        return float(n)
    pairs = (covariance[: n - n % 2].reshape(-1, 2) / covariance[0]).sum(axis=1)
    end = np.argmax(pairs <= 0) if (pairs <= 0).any() else len(pairs)
    time = 2 * float(np.minimum.accumulate(pairs[:end]).sum()) - 1
    return min(float(n), n / max(time, 1e-12))
