"""Standard errors, covariances and the goodness of a fit, from its linearisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from xvarpro.backends.failures import model_failures
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.model_check import check_array
from xvarpro.errors import ModelError, ProblemError
from xvarpro.statistics import constraints
from xvarpro.statistics.covariance import Influence
from xvarpro.statistics.frames import aligned, on_host, vector
from xvarpro.statistics.linearised import Linearised

SHOWN = 30  # entries in a text
LARGEST = 5000  # entries of theta and w up to which their covariance is one matrix
IN_CHUNKS = "w comes in chunks of columns, fit.w_chunks(), and has standard errors only where y is one array"
NO_LIKELIHOOD = "the loss is no log likelihood of the data: AIC and BIC are not given"
NO_NOISE = "the residual is zero to rounding: standard errors measure rounding, not noise"
BY_RESIDUALS = "standard errors by the sandwich formula: each residual speaks for the noise of its datum"
EXACT = 100.0  # in eps of the target: a residual below says nothing of noise
ROUNDED = 1e3  # in eps of its terms: a residual below has less than three digits
OFF = 0.05  # standard errors that theta may be off by before that is said
# a design near the smallest numbers has weights near the largest: what is beyond them comes out as the error inf
QUIET: dict[str, Any] = {"over": "ignore", "invalid": "ignore", "divide": "ignore"}


class Propagated(NamedTuple):
    """A function of theta and w with its uncertainty, as NumPy arrays.

    Attributes
    ----------
    value : array
        As the function returns it.
    stderr : array
        Standard error of each entry, of the same shape.
    covariance : array, shape (q, q)
        Of the q entries, in order.
    """

    value: np.ndarray
    stderr: np.ndarray
    covariance: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Statistics:
    """Statistics of a fit, from `linear_theory`.

    Attributes
    ----------
    theta_stderr : pytree of arrays
        Standard errors of theta, in its structure and framework; 0 for what a constraint holds, inf for an entry that
        the data do not determine.
    data : int
        Numbers in the target whose weight is not 0; a complex one counts twice.
    parameters : float
        Parameters that the fit uses, the trace of ``d(fitted) / dy``: directions in which theta and w can move, fewer
        with a ridge.
    dof : float
        ``data - parameters``. Below 1/2 the fit takes all that the data have: the numbers below, but for chi2, are NaN.
    chi2 : float
        Weighted sum of squared residuals.
    residual_variance, reduced_chi2 : float
        ``chi2 / dof``, the estimated variance of an observation of weight 1; near 1 where weights are 1 / sigma^2.
    r_squared : float
        1 minus the share of the target's variance about its mean, column by column, that the residual has; NaN where
        the target does not vary.
    aic, bic : float
        Information criteria of Akaike and Schwarz, for the comparison of models of the same data: those of Gaussian
        noise of unknown variance, ``data log(chi2 / data) + 2 parameters`` up to a constant, or of a loss that is a log
        likelihood, ``deviance + 2 parameters``. NaN for other losses.
    deviance : float or None
        Of a fit by a loss, `Result.deviance`; None for least squares.
    variance : float
        Of an observation of weight 1: 1 with `absolute_sigma`, else `residual_variance`, or that of the target's
        rounding where it is more; chi2 where that is zero to rounding, of which many data tell no more than one.
    absolute_sigma : bool
        Whether the weights are taken for 1 / sigma^2 of the data.
    sandwich : bool
        Whether each residual speaks for the noise of its own datum.
    noise : NumPy array, shape (m, k)
        Standard deviations of the data times the roots of their weights, from which errors follow: the root of
        `variance`, or in a sandwich each residual's own size. Of right-hand sides in chunks, those of a compressed
        target; of rows in chunks, those of condensed ones.
    names, w_names : lists of str
        Of theta's entries, and of w's, row by row; of the rows of w alone where right-hand sides come in chunks.
    reasons : list of str
        Why numbers here may mislead, in sentences; empty where none is known.
    remarks : list of str
        Those of `reasons` that concern how the numbers came about.
    at : Linearised
        The problem to first order, from which all of this comes.
    influence : Influence
        How theta and w answer to changes of the target.
    """

    theta_stderr: Tree
    data: int
    parameters: float
    dof: float
    chi2: float
    residual_variance: float
    r_squared: float
    aic: float
    bic: float
    variance: float
    absolute_sigma: bool
    sandwich: bool
    noise: np.ndarray
    names: list[str]
    w_names: list[str]
    deviance: float | None
    at: Linearised
    influence: Influence
    remarks: list[str] = field(default_factory=list)
    w_shape: tuple[int, ...] | None = None  # where `at` has the rows of w one after the other

    @cached_property
    def w_stderr(self) -> Array:
        """Standard errors of w, (n,) or (n, k), in theta's framework; of a complex w those of both parts, as its parts.

        Right-hand sides in chunks have none.
        """
        if self.at.in_columns:
            raise ProblemError(IN_CHUNKS)
        with np.errstate(**QUIET):
            errors = or_inf(self.influence.errors_of_w(self.noise), self.influence.undetermined_w)
            return _shaped(_like_w(self.at, errors), self.w_shape)

    @property
    def reduced_chi2(self) -> float:
        """``chi2 / dof``."""
        return self.residual_variance

    @property
    def goodness(self) -> list[tuple[str, str]]:
        """What is said of the fit as a whole: names and values, those that there are."""
        found = {
            "data": self.data,
            "parameters": self.parameters,
            "degrees of freedom": self.dof,
            "deviance": math.nan if self.deviance is None else self.deviance,
            "chi2": self.chi2,
            "reduced chi2": self.reduced_chi2,
            "R2": self.r_squared,
            "AIC": self.aic,
            "BIC": self.bic,
        }
        numbers = [(name, x) for name, x in found.items() if math.isfinite(x)]
        counts = "data", "parameters", "degrees of freedom"  # all of their whole digits: 7999996 is not 8e+06
        digits = {name: max(6, len(f"{x:.0f}")) if name in counts else 6 for name, x in numbers}
        cells = [(name, f"{x:.{digits[name]}g}") for name, x in numbers]
        return [*cells, ("standard errors", self.noise_from)]

    @property
    def noise_from(self) -> str:
        """Where standard errors have the size of the noise from."""
        level = self.at.prepared.original.lower
        if self.absolute_sigma:
            given = "the covariance" if level.covariance is not None else "the weights as 1 / sigma^2"
            none = level.covariance is None and level.weights is None
            weights = "sigma = 1 for all data, as there are no weights" if none else given
            known = weights if self.deviance is None else "the loss as a log likelihood"
            return f"from {known} (absolute_sigma)"
        given = "weights are" if level.covariance is None else "the covariance is"
        return "from each residual (sandwich)" if self.sandwich else f"scaled by reduced chi2 ({given} relative)"

    def __repr__(self) -> str:
        errors = vector(self.errors)
        rows = zip(self.entries[:SHOWN], (f"{x:.6g}" for x in errors), strict=False)
        notes = ["", "notes", *(f"  {reason}" for reason in self.reasons)] if self.reasons else []
        return "\n".join(
            ["standard errors", *aligned(rows, len(errors) - SHOWN), "", "fit", *aligned(self.goodness), *notes]
        )

    @property
    def entries(self) -> list[str]:
        """Names of theta's entries and, unless right-hand sides come in chunks, of w's."""
        return [*self.names, *([] if self.at.in_columns else self.w_names)]

    @property
    def errors(self) -> list[Array]:
        """Their standard errors, as arrays."""
        return [*trees.leaves(self.theta_stderr), *([] if self.at.in_columns else [self.w_stderr])]

    @property
    def exact(self) -> bool:
        """Whether the residual is zero to rounding: it says nothing of noise then."""
        at = self.at.in_real_numbers
        eps = float(np.finfo(at.prepared.dtype).eps)
        terms = np.abs(at.y) + (np.abs(at.M) @ np.abs(at.w).T[:, :, None])[:, :, 0].T
        return self.chi2 <= (ROUNDED * eps * float(np.linalg.norm(terms))) ** 2

    @cached_property
    def limits(self) -> list[constraints.Limit]:
        """The constraint on each of `entries`."""
        return [*constraints.of_theta(self.at), *([] if self.at.in_columns else constraints.of_w(self.at))]

    @property
    def reasons(self) -> list[str]:
        """Why numbers here may mislead, in sentences."""
        return [*_reasons(self), *self.remarks]

    @property
    def theta_covariance(self) -> np.ndarray:
        """Covariance of theta's entries, shape (p, p), as a NumPy array: the first block of `covariance`."""
        p, w = len(self.influence.theta), self.influence.undetermined_w
        return self._covariance(np.eye(p, p + w.size))

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of theta's entries, then w's, shape (p + n k, p + n k), as a NumPy array.

        Rows of w follow one another; of a complex w the real parts come first. An entry that the data do not determine
        has the variance inf. Right-hand sides in chunks have `theta_covariance` alone.
        """
        if self.at.in_columns:
            raise ProblemError(
                "the covariance of theta and w needs all right-hand sides of the target in memory; got them in chunks. "
                "Use theta_covariance"
            )
        p, (n, k) = len(self.influence.theta), self.at.in_real_numbers.w.shape
        if p + n * k > LARGEST:
            raise ProblemError(
                f"the covariance of all entries is given for at most {LARGEST} of them; got {p + n * k}. Use "
                "theta_covariance, theta_stderr and w_stderr, or propagate what you need"
            )
        return self._covariance(np.eye(p + n * k))

    @property
    def correlation(self) -> np.ndarray:
        """Correlations in the order of `covariance`; NaN for an entry without spread, or one that is undetermined."""
        return correlated(self.covariance)

    def propagate(self, fun: Callable[[Tree, Array], Array]) -> Propagated:
        """A function of theta and w, and its standard errors by the delta method.

        Parameters
        ----------
        fun : callable
            ``fun(theta, w)`` -> real array, or a tuple or list of arrays, which are joined to a vector; differentiable,
            written for any backend, as a model is. Where right-hand sides come in chunks, of theta alone: w is NaN.

        Returns
        -------
        Propagated

        Raises
        ------
        ModelError
            The function returns no real array of the backend.
        ProblemError
            It depends on w, of which right-hand sides come in chunks.

        Examples
        --------
        >>> import numpy as np, xvarpro as xv
        >>> def M(theta, t):
        ...     xp = xv.array_namespace(theta)
        ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
        >>> t = np.linspace(0.0, 1.0, 50)
        >>> fit = xv.solve(xv.separable(M, np.exp(-3.0 * t) + 0.01 * np.sin(40 * t), data=t), np.array([2.0]))
        >>> life = fit.statistics().propagate(lambda theta, w: 1 / theta)
        >>> np.round(life.value, 2), np.round(life.stderr, 3)
        (array([0.33]), array([0.002]))
        """
        value, slopes = _derivatives(self.at, fun, self.w_shape)
        if self.at.in_columns and np.isnan(value).any():
            raise ProblemError(
                "functions of w need all right-hand sides of the target in memory; got them in chunks. Propagate a "
                "function of theta alone, or pass y as one array"
            )
        C = self._covariance(slopes)
        return Propagated(value, np.sqrt(np.diagonal(C)).reshape(value.shape), C)

    def fitted_stderr(self, column: int = 0) -> np.ndarray:
        """Standard errors of the fitted values of a right-hand side, (m,), as a NumPy array: for a confidence band.

        NaN where the target has no weight. A band for new observations adds the variance of their noise.
        """
        at = self.at.in_real_numbers
        root = at.row_by_row("standard errors of fitted values")
        if callable(self.at.prepared.problem.lower.y):
            raise ProblemError("fitted values have no standard errors where the target is a function of theta")
        by_theta, by_w = map(at.unwhitened, (at.X[:, :, column].T, at.M[column % len(at.M)]))
        error = self.product_stderr(by_theta, by_w, column)
        with np.errstate(invalid="ignore", divide="ignore"):
            return error / root[:, column]

    @np.errstate(**QUIET)
    def product_stderr(self, by_theta: np.ndarray, by_w: np.ndarray, column: int) -> np.ndarray:
        """Standard errors (q,) of what has derivatives (q, p) by theta, and (q, n) by w of one right-hand side.

        They are inf for what depends on directions that the data do not determine.
        """
        if self.w_shape is not None:
            raise ProblemError(
                "bands need a loss of every entry of y, and one column of rows in chunks; got another. Propagate the "
                "function"
            )
        p, (n, k) = by_theta.shape[1], self.at.in_real_numbers.w.shape
        units, of_column = np.eye(p + n), np.zeros((p + n, n, k))
        of_column[:, :, column] = units[:, p:]
        moved = self.influence.of(units[:, :p], of_column) * self.noise.ravel()
        root = np.linalg.qr(moved.T).R  # of the covariance: q are many, and q by m k numbers may be too many
        errors = np.linalg.norm(np.concatenate([by_theta, by_w], axis=1) @ root.T, axis=1)
        return or_inf(errors, self.influence.undetermined(by_theta, by_w, column))

    @np.errstate(**QUIET)
    def _covariance(self, slopes: np.ndarray) -> np.ndarray:
        """Of functions with these derivatives, (q, p + n k)."""
        found = self.influence
        p = len(found.theta)
        K = self.noise.ravel() * found.of(slopes[:, :p], slopes[:, p:].reshape(-1, *found.undetermined_w.shape))
        C = K @ K.T
        lost = np.concatenate([found.undetermined_theta, found.undetermined_w.ravel()])
        moved = np.any(slopes[:, lost] != 0, axis=1)
        C[moved, :], C[:, moved] = np.nan, np.nan
        C[moved, moved] = np.inf
        return C


def correlated(C: np.ndarray) -> np.ndarray:
    """Correlations of a covariance; NaN for an entry without spread, or one that is undetermined."""
    size = np.sqrt(np.diagonal(C))
    size = np.where(np.isfinite(size) & (size > 0), size, np.nan)
    return C / np.outer(size, size)


def noise_variance(chi2: Any, dof: Any, data: Any, rounding: Any) -> Any:
    """The variance of an observation of weight 1; data are known to `rounding`, squared and summed, at best.

    What a solve leaves of a residual of 0 is alike from one datum to the next: many do not average it out.
    """
    noisy = np.maximum(chi2 / dof, rounding / data)
    return np.where(chi2 <= EXACT**2 * rounding, np.maximum(chi2, rounding), noisy)


def or_inf(errors: np.ndarray, undetermined: np.ndarray) -> np.ndarray:
    """Errors that are infinite where the data do not determine what they are of."""
    return np.where(undetermined | np.isnan(errors), np.inf, errors)


def _reasons(s: Statistics) -> list[str]:
    said, found, W = [], s.influence, s.at.prepared.problem.lower.W
    undetermined_w = found.undetermined_w.any(axis=1) if s.at.in_columns else found.undetermined_w
    # of a complex w the real parts come first
    gone = np.concatenate([found.undetermined_theta, *undetermined_w.reshape(-1, len(s.w_names))])
    w_names = s.w_names * (undetermined_w.size // len(s.w_names))
    lost = [name for name, yes in zip([*s.names, *w_names], gone, strict=True) if yes]
    if lost:
        factors = [name for name, yes in zip(s.names, found.taken_up, strict=True) if yes]
        advice = f": w takes up what {constraints.listed(factors)} does, leave it out of the model" if factors else ""
        said.append(f"the data do not determine {constraints.listed(list(dict.fromkeys(lost)))}{advice}")
    if not s.at.in_columns:
        beyond = np.isinf(on_host(s.w_stderr).real.ravel()) & ~undetermined_w.reshape(-1, len(s.w_names)).any(axis=0)
        if beyond.any():
            without = constraints.listed([name for name, yes in zip(s.w_names, beyond, strict=True) if yes])
            said.append(f"rounding leaves no digits of the standard errors of {without}")
    if found.imprecise:
        said.append(
            "parameters are so nearly dependent that rounding may leave fewer than three digits of standard errors: "
            "compute in double precision, or fix one of them"
        )
    with np.errstate(**QUIET):
        errors, eps = found.errors_of_theta(s.noise), float(np.finfo(s.at.prepared.dtype).eps)
    coarse = (eps * np.abs(s.at.theta) > OFF * errors) & (errors > 0) & ~found.undetermined_theta
    if coarse.any() and not s.exact:
        near = [name for name, yes in zip(s.names, coarse, strict=True) if yes]
        said.append(
            f"rounding of {constraints.listed(near)} in {s.at.prepared.dtype} is more than {OFF:g} of the standard "
            "error: compute in double precision, or count from an origin near the data"
        )
    if s.dof < 0.5:
        said.append("there are no more data than parameters: the residual says nothing of the fit")
    if any(limit.kink for limit in s.limits):
        names = zip(s.entries, s.limits, strict=True)
        said.append(
            "constraints are active with a multiplier of zero, "
            f"{constraints.listed([name for name, limit in names if limit.kink])}: errors there are "
            "one-sided and not given, 0 in arrays, and linear theory does not hold for the others"
        )
    elif s.at.degenerate and not any(limit.multiplier for limit in s.limits[: len(s.names)]):
        said.append("a constraint is active with a multiplier of zero: linear theory does not hold there")
    if W is not None and W.penalises:
        said.append("a penalty biases w: errors are the spread of the entries that it does not hold at 0")
    if s.exact and not s.absolute_sigma:
        said.append(NO_NOISE)
    if s.sandwich:
        said.append(BY_RESIDUALS)
    return said


def _like_w(at: Linearised, x: np.ndarray) -> Array:
    """Numbers for w, (n, k) or real parts above imaginary ones, in the shape of the caller's w."""
    prepared, n = at.prepared, len(at.w)
    x = x if len(x) == n else x[:n] + 1j * x[n:]
    with prepared.backend.scope(prepared.dtype):
        return prepared.layout.array(prepared.to_backend(x[:, 0] if prepared.vector else x), prepared.backend)


def _shaped(w: Array, shape: tuple[int, ...] | None) -> Array:
    return w if shape is None else namespace_of(w).reshape(w, shape)


def _derivatives(
    at: Linearised, fun: Callable[[Tree, Array], Array], w_shape: tuple[int, ...] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Value of a function at the solution, and its derivatives by all entries of theta and w, (q, p + n k)."""
    prepared, backend = at.prepared, at.prepared.backend

    def called(*arrays: Array) -> Array:
        *theta, w = arrays
        value = fun(prepared.tree(tuple(theta)), _shaped(w[:, 0] if prepared.vector else w, w_shape))
        parts = list(value) if isinstance(value, tuple | list) and value else [value]
        for part in parts:
            if isinstance(part, Real) and not trees.is_array(part):
                raise ModelError(
                    "a function to propagate must return arrays, such as theta[0] / theta[1]; got a number, which has "
                    "no derivative. Leave float() out"
                )
            check_array(part, "a function to propagate", arrays[0], prepared.dtype)
        return parts[0] if parts[0] is value else trees.raveled(tuple(parts))

    def flat(*arrays: Array) -> Leaves:
        value = called(*arrays)
        return (namespace_of(value).reshape(value, (-1,)),)

    with backend.scope(prepared.dtype), model_failures(backend):
        primals = (*prepared.theta, prepared.to_backend(np.nan * at.w if at.in_columns else at.w))
        value = backend.to_numpy(called(*primals))
        _, pullback = backend.vjp(flat, primals)
        units = np.eye(value.size, dtype=prepared.dtype)
        pulled = [[backend.to_numpy(x) for x in pullback((prepared.to_backend(unit),))] for unit in units]
    slopes = np.empty((value.size, len(at.theta) + at.in_real_numbers.w.size))
    for i, (*by_theta, by_w) in enumerate(pulled):
        parts = (by_w.real, by_w.imag)[: 1 + (len(at.in_real_numbers.w) > len(by_w))]
        slopes[i] = np.concatenate([x.ravel() for x in (*by_theta, *parts)])
    return value.astype(np.float64), slopes
