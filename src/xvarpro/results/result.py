"""What a solve returns, and its file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from xvarpro import backends
from xvarpro.backends import Backend, exchange, modules, to_numpy
from xvarpro.core import trees
from xvarpro.core.namespace import device as device_of
from xvarpro.core.namespace import dtype_name
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError, warn_caller
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.loading import relocated
from xvarpro.problem.problem import Problem
from xvarpro.results.provenance import check as check_provenance
from xvarpro.results.recipe import Recipe, changed, check_finite
from xvarpro.results.serialization import checked, decode, encode, opaque
from xvarpro.results.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure, FigureBase
    from pandas import DataFrame

    from xvarpro.problem.parameters import Parameters
    from xvarpro.results.files import ArrayFile
    from xvarpro.statistics import Band, IntervalMethod, Intervals, Report, Statistics


FAR_UNITS = 1e6  # between sizes of entries of theta, from which on an end without descent speaks of units
CANCELS = 1e4  # terms over their sum, from which on a result says that they cancel
FORMAT = 5  # of the files
# entries of theta, and theirs times those of w, up to which a result prints as its report: within seconds
REPORTED, TERMS = 100, 300_000


@dataclass(frozen=True)
class Verified:
    """Measurements at the theta that is returned.

    Attributes
    ----------
    violation : float
        Largest violation of a set, relative to its size.
    condition : float
        Condition number of the matrix that the lower-level solver factored, with columns scaled to length 1, so that
        it does not depend on the units of w; unscaled for `SVD`, whose minimum-norm solution depends on them. The
        gradient's relative error is at most about this times the machine epsilon. inf if the factorisation failed.
    units, dead_units : int
        Number of columns of the lower design, and of those that are zero, with a ridge also to rounding of the largest:
        atoms or latents that contribute nothing, have zero gradient and stay zero. The status does not speak of them.
    kinks : int
        Number of entries of w at a bound with a multiplier of 0 to working precision. There the one-sided derivatives
        of w differ, and the gradient of a bilevel problem jumps; that of a separable problem is continuous.
    lower_residual : float
        Relative residual of an iterative lower-level solver, the larger of w's and the adjoint's; 0 for a direct one.
    gradient_error : float
        Estimated Euclidean norm of the resulting error of the gradient, which the gap includes; 0 for a direct solver.
    cancellation : float
        The largest term ``|w_j| |M_j|`` over ``|y|``, to its order: where it is far above 1, terms of opposite signs
        cancel. 0 of rows in chunks.
    """

    violation: float
    condition: float
    units: int
    dead_units: int
    kinks: int = 0
    lower_residual: float = 0.0
    gradient_error: float = 0.0
    cancellation: float = 0.0


@dataclass(frozen=True)
class Counts:
    """Work of a solve: objective values, gradients, calls of the LMO, projections, factorisations, rows.

    `rows` are those on which values evaluated M, of both levels, certificates included, the checks before and after
    the iterations not; right-hand sides where mini-batches are drawn from these. What is not a mini-batch has all of
    them. Chunks count with their mean.
    """

    values: int
    gradients: int
    lmos: int
    projections: int
    factorisations: int
    rows: int


@dataclass(frozen=True, repr=False, eq=False)
class Result:
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

    theta: Tree
    value: float
    gap_A: float
    gap_B: float
    status: Status
    n_iter: int
    counts: Counts
    trace: Trace
    verified: Verified
    algorithm: str
    provenance: dict[str, Any]
    seconds: float
    setup_seconds: float
    recipe: Recipe
    _problem: Problem | None = None
    _weights: Callable[[], Iterator[Array]] | None = None
    _w: Array | None = None
    _held: Mapping[str, np.ndarray] | None = None  # of the modules of theta, where it comes from a file without them
    _continuation: Callable[[], Any] | None = None  # see driver.checkpoint
    _prepared: Any = None  # a `driver.prepare.Prepared`, where the solve was one of this process

    @property
    def gap(self) -> float:
        """``gap_A + gap_B``."""
        return self.gap_A + self.gap_B

    @property
    def success(self) -> bool:
        """Whether the tolerance was met, or as much of it as the precision allows."""
        return self.status.success

    @property
    def w(self) -> Array:
        """The eliminated variable at theta, shape (n,) or (n, k), for the target as given.

        For `ColumnChunks` and for a large target of many columns it is solved for on first access, from the arrays of
        the problem, which must not have changed; `w_chunks` does it in blocks.
        """
        w = joined(self.w_chunks())
        object.__setattr__(self, "_w", w)
        return w

    def w_chunks(self) -> Iterator[Array]:
        """Yield blocks of columns of w: the chunks of a `ColumnChunks` target, else a number, or w itself if known."""
        if self._w is not None:
            return iter((self._w,))
        return self._weights() if self._weights else iter(())

    @property
    def in_columns(self) -> bool:
        """Whether right-hand sides come in chunks, and so w with what belongs to it."""
        return self._problem is not None and isinstance(self._problem.lower.y, ColumnChunks)

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
        """The model at the solution for other data, ``M(theta, data) w``, in theta's framework.

        Parameters
        ----------
        data : pytree
            As the problem's `data`, with other abscissae or samples.

        Returns
        -------
        array, shape (m,) or (m, k)

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
        """Standard errors, covariance and goodness of the fit, by linear theory.

        Parameters
        ----------
        absolute_sigma : bool
            Whether the problem's weights are 1 / sigma^2 of the data. Otherwise they are relative, and the residual
            gives the variance.
        sandwich : bool, optional
            Let each residual speak for the noise of its own datum: errors that do not rely on the weights. By default
            so for a result of `solve_robust` whose sigma is not known.
        backend : str, optional
            Where to compute derivatives; theta's own by default.

        Returns
        -------
        Statistics

        Raises
        ------
        ProblemError
            See `xvarpro.statistics.linear_theory`, which this calls.

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

    @property
    def stated(self) -> Problem:
        """The problem, unchanged since the solve; a `ProblemError` where it is not known or has changed."""
        if self._problem is None:
            raise ProblemError(
                "fitted values and statistics need the problem, which a file and a pickle do not hold; got a result "
                "without one. Use result.attach(problem)"
            )
        if found := changed(self._problem, self.recipe.fingerprints):
            raise ProblemError(
                f"fitted values and statistics need the problem as it was solved; got another {', '.join(found)}. "
                "Solve again, or pass copies of your arrays to the problem"
            )
        return self._problem

    @property
    def least_squares(self) -> Problem:
        """The least-squares problem whose statistics are those of the result: `stated`, or what a loss makes of it."""
        return self.stated

    @property
    def standardised(self) -> Problem:
        """The problem whose weights are the inverse variances of its data, as far as they are known: `stated` here."""
        return self.stated

    @property
    def deviance(self) -> float | None:
        """That of a fit by another loss, see `RobustResult`; None for least squares."""
        return None

    @property
    def message(self) -> str:
        """The status as a sentence, and what to do next."""
        advice, condition = self.status.advice, self.verified.condition
        stuck = self.status in (Status.NO_DESCENT, Status.STALLED)
        if stuck and condition > np.finfo(self.provenance["dtype"]).eps ** -0.3:
            advice = (
                f"The columns of M(theta) are nearly dependent there, condition {condition:.1e}, as where two rates "
                f"become equal{self._cancelled}: leave one out, keep them apart by bounds, bound the amplitudes by "
                "W=xv.lower.Nonnegative(), add a ridge lam, or start elsewhere, as by xv.multistart."
            )
        if self.status is Status.NO_DESCENT and self._problem is not None and self._problem.in_rows:
            advice += (
                " Every pass over the chunks must give the same rows: one that draws or augments anew has no descent."
            )
        sizes = np.concatenate([np.abs(to_numpy(x)).ravel() for x in trees.leaves(self.theta)])
        least, most = np.min(sizes[sizes > 0], initial=np.inf), np.max(sizes, initial=0.0)
        if self.status is Status.NO_DESCENT and most >= FAR_UNITS * least:
            advice += (
                f" Entries of theta have sizes from {least:.0e} to {most:.0e}: measure them in units that bring them "
                "near 1, so that steps of every method move all of them."
            )
        return f"{self.status.sentence} {advice}"

    @property
    def _cancelled(self) -> str:
        """Words on terms that cancel, where they do."""
        found = self.verified.cancellation
        return f", and terms of opposite signs cancel: |w| |M| is {found:.0e} times |y|" if found > CANCELS else ""

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: w is computed, and functions that hold the solve are left out."""
        private = ("_problem", "_weights", "_continuation", "_prepared")
        return {**vars(self), "_w": self.w, **dict.fromkeys(private)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        modules.adopt(trees.leaves(self.theta))  # a module of a class that this process has not met

    @property
    def summary(self) -> list[str]:
        """Lines on the solve: objective, gap, work, what was verified, where it was computed."""
        v, c = self.verified, self.counts
        inexact = f"lower residual {v.lower_residual:.1e}, gradient error {v.gradient_error:.1e} (estimated)"
        return [
            f"  objective   {self.value:.10g}",
            f"  gap         {self.gap_A:.3g} (constrained), {self.gap_B:.3g} (free)",
            f"  iterations  {self.n_iter} in {self.seconds:.3g} s (set-up {self.setup_seconds:.3g} s)",
            f"  work        {c.values} values, {c.gradients} gradients, {c.lmos} LMOs, {c.projections} projections",
            f"  verified    violation {v.violation:.1e}, condition {v.condition:.1e}",
            f"              {v.dead_units} of {v.units} columns of M(theta) are zero",
            *([f"              entries of w at a bound with a multiplier of zero: {v.kinks}"] if v.kinks else []),
            *([f"              {inexact}"] if v.lower_residual else []),
            *([f"              columns nearly dependent{self._cancelled}"] if self._cancelled else []),
            f"  algorithm   {self.algorithm}",
            f"  computed    {', '.join(f'{k} {x}' for k, x in self.provenance.items() if not isinstance(x, dict))}",
        ]

    @property
    def headline(self) -> str:
        """The status, and `message` where it is no success."""
        return f"{self.status.name}: {self.status.sentence if self.success else self.message}"

    def __repr__(self) -> str:
        return "\n".join([self.headline, *self.summary])

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
        """Parameters and amplitudes with standard errors and bounds, goodness of fit, correlations, what was verified.

        Parameters
        ----------
        names : sequence or dict of str, or Parameters, optional
            For the entries of theta: a dict with its keys, or a list in the order of its leaves, with keys in
            alphabetical order; by default keys and indices. `Parameters` add those that are fixed or tied, with their
            errors.
        amplitudes : sequence of str, optional
            For the rows of w, or for all its entries, row by row.
        absolute_sigma : bool
            Whether the problem's weights are 1 / sigma^2 of the data.
        correlation : float
            Correlations of at least this size are listed, in [0, 1].

        Returns
        -------
        Report
            Prints as a text, shows as tables in notebooks; ``to_html()`` is their HTML, ``to_frame()`` a data frame of
            pandas. Where there are no standard errors it says why. Right-hand sides in chunks have no amplitudes in it.

        Raises
        ------
        ProblemError
            There are more or fewer names than entries, or `correlation` is not in [0, 1].

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

        Parameters
        ----------
        level : float
            In (0, 1).
        by : IntervalMethod or str, optional
            ``xv.statistics.Linear()``, the default, ``Profile()`` or ``Bootstrap(samples)``; or "linear", "profile" or
            "bootstrap".
        names, amplitudes : optional
            As for `report`.
        absolute_sigma : bool
            Whether the problem's weights are 1 / sigma^2 of the data.

        Returns
        -------
        Intervals

        Raises
        ------
        ProblemError
            As `statistics`; the method is not for this problem; w is complex.
        ImportError
            Quantiles need SciPy.

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

        Parameters
        ----------
        data : pytree, optional
            As for `predict`; the problem's own by default.
        level : float
            In (0, 1): each point is covered by itself with this probability.
        prediction : bool
            Add the noise of an observation.
        absolute_sigma : bool
            Whether the problem's weights are 1 / sigma^2 of the data.
        weights : number or array, shape (m,) or (m, k), optional
            Of new observations, for `prediction`; by default the problem's own for its own data.

        Returns
        -------
        Band
            ``value``, ``lower`` and ``upper``, NumPy arrays.

        Raises
        ------
        ProblemError, ModelError
            See `xvarpro.statistics.band`, which this calls.

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

        Curves are computed between the samples too where these are few, the problem's `data` hold abscissae as floats
        in which `x` is linear, and each row of M depends on its own one alone, which is checked at the samples.
        Elsewhere, as for convolutions, rows in chunks, whole numbers, which may be labels, and what the data do not
        determine, curves join values at the samples.

        Residuals are scaled by the roots of their weights, those of counts by the roots of what is expected. Data of
        weight 0 are hollow; they do not set the limits and may lie beyond them. In a global fit each data set has axes
        of its own, and only the components that are not zero throughout it; real and imaginary part have axes each.

        Parameters
        ----------
        x : array, shape (m,), or list of arrays, optional
            Abscissae, numbers or dates, a list for data sets whose rows follow one another; by default the only array
            of that length in the problem's `data`, or the only list of arrays of that length together, else the index.
        column : int
            The right-hand side that is drawn.
        xlabel, ylabel : str
            With units in brackets, such as ``"signal (V)"``; residuals without weights have those of `ylabel`.
        names : sequence of str, optional
            Of the components, one per column of M; those of one name share a colour. None is drawn where there are more
            than 6 names, or one component only.
        level : float or None
            Of the bands, in (0, 1), by linear theory; None for none. They are left out where there are no standard
            errors.
        prediction : bool
            Draw the band of new observations too, with the noise of those at the samples.
        absolute_sigma : bool
            Whether the problem's weights are 1 / sigma^2 of the data, which are then drawn with bars of sigma.
        points : int
            How many a curve has at least where there are fewer samples; 0 joins values at the samples.
        figure : matplotlib Figure or SubFigure, optional
            Where to draw, such as ``plt.figure()`` or a part of another figure; by default a new one, unknown to
            pyplot.

        Returns
        -------
        matplotlib Figure
            The given one or a new one, which ``figure.savefig("fit.pdf")`` saves.

        Raises
        ------
        ProblemError
            There is no such right-hand side, or `x` or `names` have another length; `x` holds neither numbers nor
            dates; `level` is not in (0, 1); a band for observations is asked of a fit by another
            loss.
        ModelError
            M fails between the samples.
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

        Parameters
        ----------
        x, column, xlabel
            As for `plot_fit`. Residuals are scaled as there; those without weight are left out.
        ylabel : str
            Of the residuals, with units; by default "residual", or "weighted residual" where weights scale them.
        figure : matplotlib Figure or SubFigure, optional
            As for `plot_fit`.

        Returns
        -------
        matplotlib Figure

        Raises
        ------
        ProblemError
            There is no such right-hand side, or `x` has another length or holds neither numbers nor dates.
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

        Parameters
        ----------
        names, amplitudes : optional
            As for `report`. Beyond 30 entries only some names are written; of a complex w the real parts come first.
        absolute_sigma : bool
            As for `report`.
        figure : matplotlib Figure or SubFigure, optional
            As for `plot_fit`.

        Returns
        -------
        matplotlib Figure

        Raises
        ------
        ProblemError
            As `linear_theory`; there are more or fewer names than entries.
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

        The height is the profile t of Bates and Watts, the signed root of the rise of twice the objective over the
        variance of the noise.

        Parameters
        ----------
        entry : int or str
            Of theta, in the order of its leaves, or its name in the report, such as ``"theta[0]"``.
        level : float
            Whose confidence interval is marked, in (0, 1).
        points, width
            As for `xvarpro.statistics.profile`.
        xlabel : str
        absolute_sigma : bool
            As for `report`: whether the variance of the noise is 1 over the weights.
        figure : matplotlib Figure or SubFigure, optional
            As for `plot_fit`.

        Returns
        -------
        matplotlib Figure

        Raises
        ------
        ProblemError
            As `profile`; `level` is not in (0, 1).
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
        from xvarpro.results.files import write_atomically

        arrays = {f"trace_{name}": getattr(self.trace, name) for name in _TRACE}
        tree, recipe = encode(modules.by_name(self.theta), "theta", arrays), self.recipe
        if lost := opaque(decode(tree, "theta", arrays)):
            raise ProblemError(
                "Result.save needs theta as arrays in dicts with string keys, lists and tuples; it holds "
                f"{lost.what}: save its leaves yourself"
            )
        folder = os.path.dirname(os.fsdecode(path))
        named, begins = (recipe.problem, recipe.folder) if problem is None else (problem, "")
        if named is not None:
            named = relocated(named, begins, folder)
        arrays |= self._numbers_held
        meta = {
            "format": FORMAT,
            "theta": tree,
            "recipe": replace(recipe, problem=named).write(arrays),
            "status": self.status.name,
            "counts": asdict(self.counts),
            "verified": asdict(self.verified),
            **{k: getattr(self, k) for k in _PLAIN},
        }
        arrays["w"] = to_numpy(self.w)
        text = np.array(json.dumps(meta))
        write_atomically(path, lambda file: np.savez(file, allow_pickle=False, meta=text, **arrays))

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
        from xvarpro.results.files import reading

        name = os.fsdecode(path)
        with reading(path, "Result.save") as file:
            meta = json.loads(file.text("meta"), parse_int=_whole)
            written = meta["format"]
            found = cls(**_parsed(meta, file, os.path.dirname(name))) if written == FORMAT else None
        if "forms" in meta:
            raise ProblemError(
                f"Result.load reads files of Result.save; {name} is a checkpoint of a solve. Go on with it, with "
                f"xv.solve(problem, theta0, ..., resume={name!r})"
            )
        if found is None:
            raise ProblemError(
                f"Result.load reads format {FORMAT}; {name} has format {str(written)[:80]}: use the version of xvarpro "
                "that wrote it"
            )
        return found if like is None else found.like(like)

    @property
    def _numbers_held(self) -> dict[str, np.ndarray]:
        """Buffers and frozen parameters of theta's modules, but for what a file cannot store."""
        from xvarpro.results.files import NUMBERS

        found: dict[str, np.ndarray] = {}
        for name, x in (modules.held(self.theta) or self._held or {}).items():
            try:
                host = to_numpy(x)
            except TypeError:  # a sparse tensor, or a dtype that NumPy does not have
                continue
            if host.dtype.kind in NUMBERS:
                found[name] = host
        return found

    def like(self, like: Tree) -> Result:
        """The result with theta in the containers of `like`, theta and w as arrays of its framework: see `load`."""
        like = modules.taken(like)
        if _shapes(like) != _shapes(self.theta):
            raise ProblemError(f"like must hold arrays of the shapes {_shapes(self.theta)}; got {_shapes(like)}")
        leaves, treedef = trees.flatten(like)
        stored = self._numbers_held
        held = stored if modules.architectures(like) else {}  # dicts and arrays have no place for them

        def moved(x: Array, other: Array) -> Array:
            return exchange.move(x, backends.owner(other), dtype=dtype_name(x), device=device_of(other))

        def ordered(tree: Tree) -> list[Array]:
            # by name: the order of leaves is that of keys in a dict, that of insertion in an OrderedDict
            named = dict(zip(trees.paths(tree), trees.leaves(tree), strict=True))
            return [named[name] for name in trees.paths(like)]

        found = [moved(x, other) for x, other in zip(ordered(self.theta), leaves, strict=True)]
        theta = modules.own(modules.holding(trees.unflatten(treedef, found), held))
        treedef = trees.flatten(theta)[1]
        if lacking := modules.held(like).keys() - held.keys():
            warn_caller(
                f"of what the module holds besides its parameters, such as statistics of BatchNorm, {len(lacking)} of "
                f"{len(modules.held(like))} arrays are not in the file: those of like are taken, which must be those "
                "of the solve",
                UserWarning,
            )
        return replace(
            self,
            theta=theta,
            _w=moved(self.w, leaves[0]),
            _held=stored,
            recipe=replace(self.recipe, theta0=trees.unflatten(treedef, ordered(self.recipe.theta0))),
        )


_PLAIN = {
    "value": float, "gap_A": float, "gap_B": float, "n_iter": int, "algorithm": str, "provenance": dict,
    "seconds": float, "setup_seconds": float,
}  # fmt: skip
_TRACE = tuple(f.name for f in fields(Trace))


def joined(blocks: Iterable[Array]) -> Array:
    """Blocks of columns as one array; a vector is one block."""
    parts = list(blocks)
    return parts[0] if len(parts) == 1 else trees.array_namespace(parts[0]).concat(parts, axis=1)


def _whole(digits: str) -> int:
    if len(digits) > 19:
        raise ProblemError(f"it holds {digits[:19]}..., a whole number of more than 64 bits")
    return int(digits)


def _shapes(tree: Tree) -> dict[str, tuple[int, ...]]:
    named = zip(trees.paths(tree), trees.leaves(tree), strict=True)
    return {name: tuple(getattr(x, "shape", ())) for name, x in named}


def _parsed(meta: Any, file: ArrayFile, folder: str) -> dict[str, Any]:
    """The fields of a result from a file, or a ProblemError that says what in the file is none of a result."""
    parts = {"theta": object, "recipe": dict, "status": str, "counts": dict, "verified": dict}
    meta = checked(meta, {"format": int, **parts, **_PLAIN}, "result")
    check_provenance(meta["provenance"])
    dtype = meta["provenance"]["dtype"]
    recipe = Recipe.read(meta["recipe"], file, dtype, folder)
    theta = decode(meta["theta"], "theta", file)
    check_finite(theta, "theta", dtype)
    if _shapes(theta) != _shapes(recipe.theta0):
        raise ProblemError(f"theta has the shapes {_shapes(theta)}, and its start {_shapes(recipe.theta0)}")
    if meta["status"] not in Status.__members__:
        raise ProblemError(f"there is no status {meta['status'][:80]}")
    status = Status[meta["status"]]
    if status.success and not all(math.isfinite(meta[name]) for name in ("value", "gap_A", "gap_B")):
        raise ProblemError(f"value and gap of a result that {status.name} must be finite")
    first, *rest = _TRACE
    trace = {first: file.array(f"trace_{first}", "fiu", (None,))}
    length = len(trace[first])
    if not 1 <= length <= meta["n_iter"] + 1:
        raise ProblemError(f"its trace has {length} entries after {meta['n_iter']} iterations")
    trace |= {name: file.array(f"trace_{name}", "fiu", (length,)) for name in rest}
    w = file.array("w", "fc")
    if w.ndim not in (1, 2) or w.real.dtype != dtype:
        raise ProblemError(f"w has shape {w.shape} and dtype {w.dtype} after a solve in {dtype}")
    return {
        **{name: meta[name] for name in _PLAIN},
        "theta": theta,
        "status": status,
        "counts": Counts(**checked(meta["counts"], get_type_hints(Counts), "counts")),
        "verified": Verified(**checked(meta["verified"], get_type_hints(Verified), "verified")),
        "trace": Trace(**trace),
        "_w": w,
        "_held": file.named("held_"),
        "recipe": recipe,
    }
