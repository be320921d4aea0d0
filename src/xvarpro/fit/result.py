"""What a solve returns: the record of it, and as its methods what follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from xvarpro.backends.registry import installed, known
from xvarpro.core import trees
from xvarpro.core.lazy import Method
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.problem.problem import Problem, with_loss
from xvarpro.results.outcome import Outcome

if TYPE_CHECKING:
    from xvarpro.bayes import evidence, sampling
    from xvarpro.certificate import search
    from xvarpro.fit import intervals, plotting, profiles, stored
    from xvarpro.statistics import bands, reports, theory


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
        Reduced objective at theta; of a `marginal` likelihood minus the log density, constants included.
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
        deterministic.
    seconds, setup_seconds : float
        Time in the iterations, and before them (moving data, compressing, compiling).
    recipe : Recipe
        Arguments of the solve, with which `verify` repeats it, and fingerprints of its arrays as they were then.
    loss : losses.Loss or None
        Of the level that the objective measures, with the scale that was used; None for least squares.
    """

    if TYPE_CHECKING:
        laplace = evidence.laplace
        statistics = theory.statistics
        report = reports.report
        interval = intervals.interval
        profile = profiles.profile
        sample = sampling.sample
        band = bands.band
        plot_fit = plotting.plot_fit
        plot_residuals = plotting.plot_residuals
        plot_correlation = plotting.plot_correlation
        plot_profile = plotting.plot_profile
        plot = plot_trace = plotting.plot_trace
        save = stored.save
        like = stored.like
        certify = search.certify
    else:
        laplace = Method("xvarpro.bayes.evidence.laplace")
        statistics = Method("xvarpro.statistics.theory.statistics")
        report = Method("xvarpro.statistics.reports.report")
        interval = Method("xvarpro.fit.intervals.interval")
        profile = Method("xvarpro.fit.profiles.profile")
        sample = Method("xvarpro.bayes.sampling.sample")
        band = Method("xvarpro.statistics.bands.band")
        plot_fit = Method("xvarpro.fit.plotting.plot_fit")
        plot_residuals = Method("xvarpro.fit.plotting.plot_residuals")
        plot_correlation = Method("xvarpro.fit.plotting.plot_correlation")
        plot_profile = Method("xvarpro.fit.plotting.plot_profile")
        plot = plot_trace = Method("xvarpro.fit.plotting.plot_trace")
        save = Method("xvarpro.fit.stored.save")
        like = Method("xvarpro.fit.stored.like")
        certify = Method("xvarpro.certificate.search.certify")

    @property
    def fitted(self) -> Array:
        """``M(theta) w`` for the problem's own data, shape (m,) or (m, k), of the upper level where there are two."""
        from xvarpro.statistics import prediction

        return prediction.fitted(self.stated, self.theta, self.w)

    @property
    def mean(self) -> Array:
        """What is expected of the target, as `fitted`: probabilities of `losses.Logistic` and `losses.Softmax`, means
        of counts; else `fitted` itself.
        """
        from xvarpro.statistics import prediction

        return prediction.fitted(self.stated, self.theta, self.w, mean=True)

    @property
    def residuals(self) -> Array:
        """Target minus `mean`, without weights."""
        from xvarpro.statistics import prediction

        return prediction.residuals(self.stated, self.theta, self.w)

    @property
    def weights(self) -> Array:
        """By what a robust loss multiplies the weights of the problem, shaped as `fitted`: near 0 for an outlier.

        That of `losses.Poisson` is ``1 / fitted``.
        """
        from xvarpro.statistics import weighting

        return weighting.factors(self)

    @property
    def least_squares(self) -> Problem:
        """The least-squares problem of its statistics, `stated` where there is no loss."""
        from xvarpro.statistics import weighting

        return weighting.least_squares(self)

    @property
    def deviance(self) -> float | None:
        """-2 times the log likelihood, less that of a model equal to each number of the target; None for least squares.

        It has no part of a ridge or of a penalty; NaN for a loss that is no log likelihood.
        """
        from xvarpro.statistics import weighting

        return weighting.deviance(self)

    def predict(self, data: Tree, *, mean: bool = False) -> Array:
        """The model at the solution for other `data`, such as other abscissae, ``M(theta, data) w``, (m,) or (m, k).

        With `mean`, as `mean` has it for the problem's own data.

        Raises
        ------
        ModelError
            M fails with this data.
        ProblemError
            w does not fit the design; the loss expects no mean.

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

        return prediction.predict(self.stated, self.theta, self.w, data, mean=mean)

    def attach(self, problem: Problem) -> Result:
        """The result with its problem, which a file or a pickle does not hold: then `statistics` and `predict` work.

        Parameters
        ----------
        problem : Problem
            That of the solve; one without a loss, or whose loss has no scale, gets the loss of the result.

        Returns
        -------
        Result

        Raises
        ------
        ProblemError
            Arrays or numbers of the problem are others than those of the solve, or functions: the objective at theta,
            which is evaluated once, is another one.
        """
        from xvarpro.driver.evaluate import value_and_gradient

        problem = with_loss(problem, self.loss)
        found = replace(self, _problem=problem, loss=problem.levels[-1].loss)
        solved, dtype = self.provenance["backend"], self.provenance["dtype"]
        there = solved if solved in known() and installed(solved) else None
        now = float(value_and_gradient(found.stated, self.theta, there, dtype=dtype)[0])
        rounding = 1e4 * float(np.finfo(dtype).eps)
        close = math.isclose(now, self.value, rel_tol=max(rounding, 1e-6), abs_tol=rounding * self.recipe.scale)
        if math.isfinite(self.value) and not close:
            raise ProblemError(
                f"attach needs the model functions of the solve; got an objective of {now:.10g} at theta, which was "
                f"{self.value:.10g}"
            )
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
            The framework of `like` cannot hold the dtype, as JAX float64 with ``jax_enable_x64`` off.

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
        from xvarpro.fit import stored

        found = stored.read(cls, path)
        return found if like is None else found.like(like)
