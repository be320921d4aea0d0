"""What a solve returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from xvarpro.backends import Backend
from xvarpro.core import trees
from xvarpro.core.struct import Array, Tree
from xvarpro.problem.problem import Problem
from xvarpro.results.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure, FigureBase
    from pandas import DataFrame

    from xvarpro.problem.parameters import Parameters
    from xvarpro.statistics import Band, IntervalMethod, Intervals, Report, Statistics


# entries of theta, and theirs times those of w, up to which a result prints as its report: within seconds
REPORTED, TERMS = 100, 300_000


@dataclass(frozen=True, repr=False, eq=False)
class Result(Outcome):
    """Outcome of `solve`.

    Attributes
    ----------
    theta : pytree of arrays
        The best iterate, in theta0's structure, framework and device.
    value : float
        Reduced objective at theta.
    gap_A, gap_B : float
        Frank-Wolfe gap of the constrained block; dual norm of the free block's gradient times the radius of its ball.
    status : Status
    n_iter : int
    counts : Counts
    trace : Trace
    verified : Verified
    algorithm : str
        The one that ran, with its parameters.
    provenance : dict
        Backend, device, dtype, versions, precision switches, processor and threads, and whether the solve was
        deterministic. ``["exchange"]`` counts arrays by origin: of ``"torch to jax"`` so many were shared, which are
        never written to, and so many copied.
    seconds, setup_seconds : float
        Time in the iterations, and before them (moving data, compressing, compiling).
    recipe : Recipe
        Arguments of the solve, with which `verify` repeats it, and fingerprints of its arrays as they were then.
    """

    @property
    def fitted(self) -> Array:
        """``M(theta) w`` for the problem's own data, shape (m,) or (m, k), of the upper level where there are two."""
        from xvarpro.statistics import prediction

        return prediction.fitted(self.stated, self.theta, self.w)

    @property
    def residuals(self) -> Array:
        """Target minus `fitted`, without weights."""
        from xvarpro.statistics import prediction

        return prediction.residuals(self.stated, self.theta, self.w)

    def predict(self, data: Tree) -> Array:
        """The model at the solution for other `data`, ``M(theta, data) w``: see `xvarpro.statistics.predict`.

        Examples
        --------
        >>> import numpy as np, xvarpro as xv
        >>> t = np.linspace(0.0, 1.0, 9)
        >>> problem = xv.separable(lambda theta, t: t[:, None] ** theta, 3.0 * t**2, data=t)
        >>> fit = xv.solve(problem, np.array([1.0]), over=xv.sets.Box(0.5, 5.0), tol=1e-9)
        >>> np.round(fit.predict(np.array([2.0])), 6)
        array([12.])
        """
        from xvarpro.statistics import prediction

        return prediction.predict(self.stated, self.theta, self.w, data)

    def statistics(
        self, *, absolute_sigma: bool = False, sandwich: bool | None = None, backend: str | Backend | None = None
    ) -> Statistics:
        """Standard errors, covariance and goodness of the fit: see `xvarpro.statistics.linear_theory`.

        Parameters are its `absolute_sigma`, `sandwich` and `backend`; by default `sandwich` is True for a result of
        `solve_robust` whose sigma is not known.

        Examples
        --------
        >>> import numpy as np, xvarpro as xv
        >>> def M(theta, t):
        ...     xp = xv.array_namespace(theta)
        ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
        >>> t = np.linspace(0.0, 1.0, 50)
        >>> fit = xv.solve(xv.separable(M, np.exp(-3.0 * t) + 0.01 * np.sin(40 * t), data=t), np.array([2.0]))
        >>> fit.statistics().theta_stderr.round(3), fit.statistics().dof
        (array([0.015]), 48.0)
        """
        from xvarpro.statistics.standard_errors import theory

        problem = self.least_squares
        if sandwich is None:
            sandwich = problem is not self._problem and not absolute_sigma
        given = (self.theta, self.recipe.over, self._prepared, absolute_sigma, sandwich, self.deviance)
        found = theory(problem, *given, backend=backend)
        if not self.success:
            found.remarks.append(
                f"the solve ended with {self.status.name}: errors are those of this point, which need not be a minimum"
            )
        # k standard errors raise the objective by k^2 / 2 variances, and tol^2 of it may be left
        value = max(self.value, 0.0)
        left = self.recipe.tol * math.sqrt(2 * value / found.variance) if found.variance > 0 else 0.0
        if left > 1:
            found.remarks.append(
                f"tol is relative to the objective, {value:.1e}, and leaves theta up to {left:.1g} standard errors "
                "off: solve with a smaller one, or without the ridge or the penalty that outweighs the residual"
            )
        return found

    def attach(self, problem: Problem) -> Result:
        """The result with its problem, which a file or a pickle does not hold: then `statistics` and `predict` work.

        Parameters
        ----------
        problem : Problem
            That of the solve.

        Returns
        -------
        Result

        Raises
        ------
        ProblemError
            Arrays or numbers of the problem are others than those of the solve.
        """
        found = replace(self, _problem=problem)
        _ = found.stated
        return found

    def __str__(self) -> str:
        """`report`, where standard errors cost little, and no other process has a part in them; else what is known."""
        from xvarpro.statistics import reports

        size, w = sum(math.prod(x.shape) for x in trees.leaves(self.theta)), self._w
        if self._alone and w is not None and size <= REPORTED and size * math.prod(w.shape) <= TERMS:
            return str(self.report())
        return reports.outline(self, w)

    def _repr_html_(self) -> str:
        import html  # in notebooks alone

        return self.report()._repr_html_() if self._alone else f"<pre>{html.escape(str(self))}</pre>"

    @property
    def _alone(self) -> bool:
        """Whether statistics ask no other process, which would wait for one that only shows its result."""
        return self._problem is None or self._problem.group is None

    def report(
        self,
        names: Sequence[str] | Mapping[str, Any] | Parameters | None = None,
        amplitudes: Sequence[str] | None = None,
        *,
        absolute_sigma: bool = False,
        correlation: float = 0.5,
    ) -> Report:
        """Parameters and amplitudes with errors and bounds, goodness of fit, correlations, what was verified.

        Parameters are `names`, `amplitudes`, `absolute_sigma` and `correlation`: see `xvarpro.statistics.report`.

        Examples
        --------
        >>> import numpy as np, xvarpro as xv
        >>> x = np.linspace(0.0, 1.0, 20)
        >>> y = 2.0 * x**1.5 + 0.01 * np.cos(30 * x)
        >>> fit = xv.solve(xv.separable(lambda theta, x: x[:, None] ** theta, y, data=x), np.array([1.0]))
        >>> fit.report(["exponent"], ["slope"]).to_frame()["value"].round(1).to_dict()
        {'exponent': 1.5, 'slope': 2.0}
        """
        from xvarpro.statistics import report

        return report(self, names, amplitudes, absolute_sigma=absolute_sigma, correlation=correlation)

    def to_frame(
        self,
        names: Sequence[str] | Mapping[str, Any] | Parameters | None = None,
        amplitudes: Sequence[str] | None = None,
        *,
        absolute_sigma: bool = False,
    ) -> DataFrame:
        """Parameters and amplitudes of `report` as a pandas data frame: values, errors, bounds, multipliers."""
        return self.report(names, amplitudes, absolute_sigma=absolute_sigma).to_frame()

    def interval(
        self,
        level: float = 0.95,
        by: IntervalMethod | str | None = None,
        *,
        names: Sequence[str] | Mapping[str, Any] | Parameters | None = None,
        amplitudes: Sequence[str] | None = None,
        absolute_sigma: bool = False,
    ) -> Intervals:
        """Confidence intervals of theta's entries, and of w's.

        Parameters are `level`, `by`, `names`, `amplitudes` and `absolute_sigma`: see `xvarpro.statistics.interval`.

        Examples
        --------
        >>> import numpy as np, xvarpro as xv
        >>> x = np.linspace(0.0, 1.0, 20)
        >>> y = 2.0 * x**1.5 + 0.01 * np.cos(30 * x)
        >>> fit = xv.solve(xv.separable(lambda theta, x: x[:, None] ** theta, y, data=x), np.array([1.0]))
        >>> found = fit.interval(0.9, "profile")
        >>> bool(found.lower[0] < 1.5 < found.upper[0])
        True
        """
        from xvarpro.statistics import interval

        return interval(self, level, by, names=names, amplitudes=amplitudes, absolute_sigma=absolute_sigma)

    def band(
        self,
        data: Tree = None,
        level: float = 0.95,
        *,
        prediction: bool = False,
        absolute_sigma: bool = False,
        weights: Array | float | None = None,
    ) -> Band:
        """The model for the problem's data or for other data, with a confidence band or one for new observations.

        Parameters are `data`, `level`, `prediction`, `absolute_sigma` and `weights`: see `xvarpro.statistics.band`.

        Examples
        --------
        >>> import numpy as np, xvarpro as xv
        >>> x = np.linspace(0.0, 1.0, 20)
        >>> y = 2.0 * x**1.5 + 0.01 * np.cos(30 * x)
        >>> fit = xv.solve(xv.separable(lambda theta, x: x[:, None] ** theta, y, data=x), np.array([1.0]))
        >>> np.round(fit.band(np.array([2.0])), 2)
        array([[5.65],
               [5.58],
               [5.72]])
        """
        from xvarpro.statistics import band

        return band(self, data, level, prediction=prediction, absolute_sigma=absolute_sigma, weights=weights)

    def plot_fit(
        self,
        x: Array | Sequence[Any] | None = None,
        *,
        column: int = 0,
        xlabel: str = "",
        ylabel: str = "",
        names: Sequence[str] | None = None,
        level: float | None = 0.95,
        prediction: bool = False,
        absolute_sigma: bool = False,
        points: int = 400,
        figure: FigureBase | None = None,
    ) -> Figure:
        """Data, the fit with its confidence band and its components, and the residuals below.

        Parameters are `x`, `column`, `xlabel`, `ylabel`, `names` of components, `level` or None, `prediction`,
        `absolute_sigma`, `points` and `figure`: see `xvarpro.statistics.plotting.plot_fit`.
        """
        from xvarpro.statistics.plotting import plot_fit

        return plot_fit(
            self,
            x,
            column=column,
            xlabel=xlabel,
            ylabel=ylabel,
            names=names,
            level=level,
            prediction=prediction,
            absolute_sigma=absolute_sigma,
            points=points,
            figure=figure,
        )

    def plot_residuals(
        self,
        x: Array | Sequence[Any] | None = None,
        *,
        column: int = 0,
        xlabel: str = "",
        ylabel: str = "",
        figure: FigureBase | None = None,
    ) -> Figure:
        """Residuals along x, their histogram, and their quantiles against those of a normal distribution.

        Parameters are `x`, `column`, `xlabel`, `ylabel` and `figure`: see `xvarpro.statistics.plotting.plot_residuals`.
        """
        from xvarpro.statistics.plotting import plot_residuals

        return plot_residuals(self, x, column=column, xlabel=xlabel, ylabel=ylabel, figure=figure)

    def plot_correlation(
        self,
        names: Sequence[str] | Mapping[str, Any] | Parameters | None = None,
        amplitudes: Sequence[str] | None = None,
        *,
        absolute_sigma: bool = False,
        figure: FigureBase | None = None,
    ) -> Figure:
        """Correlations of theta's entries and w's, from -1 in red to 1 in blue.

        Parameters are `names`, `amplitudes`, `absolute_sigma` and `figure`: see
        `xvarpro.statistics.plotting.plot_correlation`.
        """
        from xvarpro.statistics.plotting import plot_correlation

        return plot_correlation(self, names, amplitudes, absolute_sigma=absolute_sigma, figure=figure)

    def plot_profile(
        self,
        entry: int | str = 0,
        *,
        level: float = 0.95,
        points: int = 21,
        width: float = 3.0,
        xlabel: str = "",
        absolute_sigma: bool = False,
        figure: FigureBase | None = None,
    ) -> Figure:
        """The profile of an entry of theta: how the objective rises where it is held elsewhere, and linear theory.

        Parameters are `entry`, `level`, `points`, `width`, `xlabel`, `absolute_sigma` and `figure`: see
        `xvarpro.statistics.plotting.plot_profile`.
        """
        from xvarpro.statistics.plotting import plot_profile

        return plot_profile(
            self,
            entry,
            level=level,
            points=points,
            width=width,
            xlabel=xlabel,
            absolute_sigma=absolute_sigma,
            figure=figure,
        )

    def plot_trace(self, *, figure: FigureBase | None = None) -> Figure:
        """Objective and gap against iterations, log scale unless the objective takes negative values."""
        from xvarpro.results.plotting import plot_trace  # matplotlib is optional

        return plot_trace(self.trace, figure)

    plot = plot_trace

    def save(self, path: str | PathLike[str], problem: str | None = None) -> None:
        """Write the result and the arguments of the solve to one ``.npz`` file, without pickle.

        The file is written whole or not at all: where writing fails or the process is killed, an older file stays. Of a
        module it holds the parameters, as a dict by dotted name, buffers and what else is frozen; `load` with
        ``like=net`` makes it a module again.

        Parameters
        ----------
        path : path
        problem : str, optional
            Name of a function without arguments that returns ``(problem, theta0)`` or ``(problem, theta0, over)``:
            ``package.module:function`` or ``file.py:function``. A file cannot store functions; `verify` calls this one
            if it is trusted. A relative path to a ``.py`` file that exists is stored as seen from the folder of `path`.

        Raises
        ------
        ProblemError
            theta holds something other than arrays in dicts with string keys, lists and tuples; `problem` is no name.
        OSError
            The file cannot be written.

        Examples
        --------
        >>> import os, tempfile, numpy as np, xvarpro as xv
        >>> t = np.linspace(0.0, 1.0, 9)[:, None]
        >>> fit = xv.solve(xv.separable(lambda theta, t: t**theta, t[:, 0], data=t), np.array([2.0]))
        >>> path = os.path.join(tempfile.mkdtemp(), "fit.npz")
        >>> fit.save(path, problem="mine.py:powers")
        >>> xv.Result.load(path).recipe.problem
        'mine.py:powers'
        """
        from xvarpro.results import stored

        stored.write(self, path, problem)

    @classmethod
    def load(cls, path: str | PathLike[str], like: Tree = None) -> Result:
        """Read a file of `save`.

        Nothing is unpickled, no code is run, and an array is read only where the file holds as much as it claims.

        Parameters
        ----------
        path : path
        like : pytree of arrays, optional
            Of theta's structure and shapes: theta comes back in its containers, theta and w as arrays of its
            framework, on its devices. A module comes back as a module with the parameters and the buffers of the file;
            of its own it keeps those that the file lacks, with a warning. Without it they are NumPy's.

        Raises
        ------
        ProblemError
            The file is none of `save`, is damaged, or has another format; `like` does not fit theta.
        ExchangeError
            The framework of `like` cannot hold the dtype.

        Examples
        --------
        >>> import os, tempfile, numpy as np, torch, xvarpro as xv
        >>> t = np.linspace(0.0, 1.0, 9)[:, None]
        >>> fit = xv.solve(xv.separable(lambda theta, t: t**theta, t[:, 0], data=t), np.array([2.0]))
        >>> path = os.path.join(tempfile.mkdtemp(), "fit.npz")
        >>> fit.save(path)
        >>> type(xv.Result.load(path, like=torch.zeros(1)).theta)
        <class 'torch.Tensor'>
        """
        from xvarpro.results import stored

        found = stored.read(cls, path)
        return found if like is None else found.like(like)

    def like(self, like: Tree) -> Result:
        """The result with theta in the containers of `like`, theta and w as arrays of its framework: see `load`."""
        from xvarpro.results import stored

        return stored.converted(self, like)
