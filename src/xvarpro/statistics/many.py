"""Statistics of a batch: of all problems at once, of those in chunks, of those that were solved one by one."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from xvarpro import backends
from xvarpro.batch.driver import linear
from xvarpro.batch.lift import single
from xvarpro.batch.prepare import Prepared
from xvarpro.batch.shared import Shared, spread
from xvarpro.core import trees
from xvarpro.core.checks import pickled
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.losses.interface import Loss
from xvarpro.problem.problem import Problem
from xvarpro.statistics import theory, weighting
from xvarpro.statistics.constraints import uncalibrated
from xvarpro.statistics.frames import on_host, vector
from xvarpro.statistics.linearised import unlike_least_squares
from xvarpro.statistics.linearised_batch import CLEAR, LinearisedBatch, freedom
from xvarpro.statistics.shared_batch import Eliminated, covariances, eliminated
from xvarpro.statistics.standard_errors import BY_RESIDUALS, NO_NOISE, QUIET, Statistics, noise_variance

if TYPE_CHECKING:
    from xvarpro.fit.batch_result import ManyResult

T = TypeVar("T")
NUMBERS = ("data", "parameters", "dof", "chi2", "reduced_chi2", "aic")
AHEAD = 2  # chunks for each processor of this machine that an executor is handed at once
AT_ONCE = 2**17  # numbers in the tangents of the problems that are looked at together: as a cache holds
UNSURE = "near a kink, or with parameters that are nearly dependent, these errors may not hold"
HELD = "constraints are active: errors are not calibrated"
POOR = "the solve ended without success: errors are those of this point, which need not be a minimum"


@dataclass(frozen=True, eq=False)
class BatchStatistics:
    """Standard errors and goodness of the fits of a batch, one entry per problem in every array.

    Attributes
    ----------
    theta_stderr : pytree of arrays
        Leaves (b, ...), in theta's structure and framework: 0 for what a constraint holds, inf for what the data do not
        determine, NaN for a problem without errors, whose reason is given.
    w_stderr : array, shape (b, n) or (b, n, k)
        In that framework too; of a complex w, real and imaginary part are the errors of its parts.
    data : NumPy array of int, shape (b,)
        Numbers in the target whose weight is not 0; a complex one counts twice.
    parameters, dof, chi2, reduced_chi2, aic : NumPy arrays, shape (b,)
        As for one fit, see `statistics.Statistics`.
    reasons : dict
        Why numbers may mislead, a sentence each, with the indices of its problems.
    shared : tuple of str
        As of `ManyResult`. Numbers of data and parameters and chi2 add up to those of the one fit that they share.
    """

    theta_stderr: Tree
    w_stderr: Array
    data: np.ndarray
    parameters: np.ndarray
    dof: np.ndarray
    chi2: np.ndarray
    reduced_chi2: np.ndarray
    aic: np.ndarray
    reasons: dict[str, np.ndarray]
    _covariances: Callable[[], np.ndarray]
    shared: tuple[str, ...] = ()

    @cached_property
    def covariance(self) -> np.ndarray:
        """Covariances of theta's entries, then w's, row by row, (b, q, q): see `Statistics.covariance`."""
        return self._covariances()

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: covariances are computed, and the function that holds the solve is left out."""
        return {**vars(self), "covariance": self.covariance, "_covariances": None}

    def __repr__(self) -> str:
        b, lines = len(self.data), [f"standard errors of {len(self.data)} problems, medians"]
        theta = spread(self.theta_stderr, self.shared, b)
        for name, leaves in (("theta", trees.leaves(theta)), ("w", [self.w_stderr])):
            errors = np.concatenate([np.abs(backends.to_numpy(x)).reshape(b, -1) for x in leaves], axis=1)
            shown = ", ".join(map(_median, errors.T[:6]))
            lines.append(f"  {name:<14}{shown}{', ...' if errors.shape[1] > 6 else ''}")
        lines.append(f"  reduced chi2  {_median(self.reduced_chi2)}")
        for why, at in self.reasons.items():
            which = f"problem {at[0]}" if len(at) == 1 else f"{len(at)} problems (first: {at[0]})"
            lines.append(f"  {which}: {why}")
        return "\n".join(lines)


class _Member(NamedTuple):
    """What is asked of a fit, of one member of a batch."""

    stated: Problem
    theta: Tree
    w: Array
    loss: Loss | None


class _Numbers(NamedTuple):
    """Of some problems, in the units of the caller; q entries are those of theta, then those of w, row by row."""

    errors: np.ndarray  # (b, q); of a complex w the real parts come first
    covariance: np.ndarray  # (b, q, q), or (b, 0, 0) where it is not asked for
    data: np.ndarray
    parameters: np.ndarray
    chi2: np.ndarray
    deviance: np.ndarray
    exact: np.ndarray  # whether the residual is zero to rounding
    active: np.ndarray  # whether constraints are
    clear: np.ndarray  # whether all of this holds


def statistics(
    fit: ManyResult,
    *,
    absolute_sigma: bool | None = None,
    sandwich: bool | None = None,
    executor: Executor | None = None,
) -> BatchStatistics:
    """Standard errors, covariances and goodness of every fit of a batch, by linear theory.

    The numbers are those of `Result.statistics` of each problem by itself. A problem of another set than a box, with an
    active constraint whose multiplier is zero, or with parameters that are nearly dependent, takes some milliseconds.

    Parameters
    ----------
    fit : ManyResult
        Of separable problems without a penalty on theta.
    absolute_sigma, sandwich : bool, optional
        As for `statistics.linear_theory`; by default `absolute_sigma` is True for a log likelihood, and `sandwich` for
        other losses.
    executor : concurrent.futures.Executor, optional
        Where the chunks of problems that were solved in chunks are looked at, as for `solve_many`.

    Returns
    -------
    BatchStatistics

    Raises
    ------
    ProblemError
        The problem is of another kind; `absolute_sigma` and `sandwich` are both asked for.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(theta, axis=1) * t[None, :, None])
    >>> t, rates = np.linspace(0.0, 2.0, 64), np.array([[1.0], [3.0]])
    >>> y = np.exp(-rates * t) + 0.01 * np.random.default_rng(0).normal(size=(2, 64))
    >>> fit = xv.solve_many(xv.separable(M, y, data=t), np.full((2, 1), 2.0))
    >>> np.round(fit.statistics().theta_stderr, 3)
    array([[0.005],
           [0.025]])
    """
    problem = fit.stated
    loss: Loss | None = problem.levels[-1].loss
    plain = trees.changed(problem, lower=trees.changed(problem.lower, loss=None))
    if why := unlike_least_squares(plain):
        raise ProblemError(f"statistics need {why}")
    known = loss is not None and loss.likelihood
    if fit.chunks is not None:
        return _joined(fit, {"absolute_sigma": absolute_sigma, "sandwich": sandwich}, executor)
    if fit._fits is not None:
        return _gathered(fit, absolute_sigma, sandwich)
    noise = theory.noise_from(loss, known, absolute_sigma, sandwich)
    if fit.shared and (noise[1] or fit.prepared.problem.lower.ridge.present):
        what = "the sandwich formula" if noise[1] else "a ridge"
        raise ProblemError(f"statistics of problems that share leaves of theta need least squares without {what}")
    return (_SharedPass if fit.shared else _Pass)(fit, *noise).statistics()


def _part(options: dict[str, Any], fit: ManyResult, problem: Problem) -> dict[str, Any]:
    """Those of a chunk, whose pickle has no problem, without the data that covariances are made of."""
    found = statistics(dataclasses.replace(fit, _problem=problem), **options)
    return vars(found) | {"_covariances": None}


def _joined(fit: ManyResult, options: dict[str, Any], executor: Executor | None) -> BatchStatistics:
    """Of problems that were solved in chunks, chunk by chunk."""
    size, some = cast(int, fit.chunks), AHEAD * (os.cpu_count() or 1) if executor else 1
    slices = [slice(i, min(i + size, len(fit))) for i in range(0, len(fit), size)]
    parts, run = list[dict[str, Any]](), executor.map if executor else map
    for i in range(0, len(slices), some):  # an executor is handed all that `map` is given
        chunks = [fit.members(picked) for picked in slices[i : i + some]]
        with pickled():
            parts += run(partial(_part, options), chunks, [chunk.stated for chunk in chunks])
    reasons: dict[str, list[int]] = {}
    for picked, part in zip(slices, parts, strict=True):
        for why, at in part["reasons"].items():
            reasons.setdefault(why, []).extend((at + picked.start).tolist())

    names = ("theta_stderr", "w_stderr", *NUMBERS)
    numbers = [{name: part[name] for name in names} for part in parts]
    return BatchStatistics(
        **trees.map_leaves(lambda *x: namespace_of(x[0]).concat(x, axis=0), *numbers),
        reasons={why: np.asarray(at) for why, at in reasons.items()},
        _covariances=lambda: np.concatenate([statistics(fit.members(x), **options).covariance for x in slices]),
    )


def _gathered(fit: ManyResult, absolute_sigma: bool | None, sandwich: bool | None) -> BatchStatistics:
    """Of problems that were solved one after the other."""
    found: list[Statistics | None] = []
    reasons: dict[str, list[int]] = {}
    for i, one in enumerate(fit._fits):
        s, why = None, ["w is NaN or inf"]
        if one is not None:
            try:
                s = one.statistics(absolute_sigma=absolute_sigma, sandwich=sandwich)
                why = _reasons(s)
            except ProblemError as error:
                why = [str(error)]
        found.append(s)
        for reason in why:
            reasons.setdefault(reason, []).append(i)

    def stacked(errors: list[Any], like: Array) -> Array:
        xp = namespace_of(like)
        blank = xp.full(like.shape[1:], xp.nan, dtype=like.dtype, device=device(like))
        return xp.stack([blank if x is None else x for x in errors], axis=0)

    def numbers(name: str) -> Any:
        return np.array([np.nan if s is None else getattr(s, name) for s in found])

    def covariances() -> np.ndarray:
        every = [None if s is None else s.covariance for s in found]
        blank = next(np.full(C.shape, np.nan) for C in every if C is not None)
        return np.stack([blank if C is None else C for C in every])

    leaves, treedef = trees.flatten(fit.theta)
    errors = zip(*([None] * len(leaves) if s is None else trees.leaves(s.theta_stderr) for s in found), strict=True)
    return BatchStatistics(
        theta_stderr=trees.unflatten(treedef, [stacked(list(x), y) for x, y in zip(errors, leaves, strict=True)]),
        w_stderr=stacked([None if s is None else s.w_stderr for s in found], fit.w),
        **{name: numbers(name) for name in NUMBERS},
        reasons={why: np.asarray(at) for why, at in reasons.items()},
        _covariances=covariances,
    )


class _Pass:
    """A look at all problems of a batch, and why numbers may mislead."""

    def __init__(self, fit: ManyResult, absolute: bool, sandwich: bool) -> None:
        self.fit, self.absolute, self.sandwich = fit, absolute, sandwich
        self.whole: Prepared = fit.prepared
        self.prepared = self.whole.apart()
        self.loss: Loss | None = fit.stated.levels[-1].loss
        self.reasons: dict[str, list[int]] = {}

    @np.errstate(**QUIET)
    def statistics(self) -> BatchStatistics:
        found, p = self.numbers(), self.prepared.theta.shape[1]
        dof = freedom(found.data, found.parameters)
        unlikely = found.data * np.log(found.chi2 / found.data) if self.loss is None else found.deviance
        likely = (dof >= 0.5) & (not self.fit.shared if self.loss is None else self.loss.likelihood)
        return BatchStatistics(
            theta_stderr=self.whole.measures(found.errors[:, :p]),
            w_stderr=self.prepared.array(self._shaped(found.errors[:, p:])),
            data=found.data,
            parameters=found.parameters,
            dof=dof,
            chi2=found.chi2,
            reduced_chi2=np.where(dof >= 0.5, found.chi2 / dof, np.nan),
            aic=np.where(likely, unlikely + 2 * found.parameters, np.nan),
            reasons={why: np.asarray(at) for why, at in self.reasons.items()},
            shared=self.fit.shared,
            _covariances=lambda: type(self)(self.fit, self.absolute, self.sandwich).numbers(True).covariance,
        )

    def _shaped(self, x: np.ndarray) -> np.ndarray:
        shape = tuple(self.fit.w.shape)
        half = math.prod(shape[1:])
        return (x if x.shape[1] == half else x[:, :half] + 1j * x[:, half:]).reshape(shape)

    @np.errstate(**QUIET)
    def numbers(self, covariance: bool = False) -> _Numbers:
        fit, found = self.fit, self._gathered(partial(self._together, covariance=covariance))
        dead = ~np.isfinite(np.sum(np.abs(on_host(fit.w)).reshape(len(fit), -1), axis=1))
        self._say("w is NaN or inf", dead)
        self._say(POOR, ~fit.success & ~dead)
        if not self.absolute:
            self._say(NO_NOISE, found.clear & found.exact)
        if self.sandwich:
            self._say(BY_RESIDUALS, found.clear)
        self._say(HELD, found.clear & found.active)
        for i in np.flatnonzero(~found.clear & ~dead):
            for whole, x in zip(found, self._alone(found, int(i), covariance), strict=True):
                whole[i] = x
        return found

    def _gathered(self, look: Callable[[np.ndarray], T]) -> T:
        """What `look` finds of all problems, some of them at a time: tuples of arrays."""
        b, p = self.prepared.theta.shape
        size = p * dict(self.prepared.found)["M_L"][0][0] * math.prod(self.fit.w.shape[2:])
        size = -(-b // -(-b * size // AT_ONCE))
        # the last slice looks at some again: a compiled function is compiled for a size
        slices = [np.arange(size) + min(i, b - size) for i in range(0, b, size)]
        parts: list[Any] = [look(members) for members in slices]
        found = parts[0]._make(np.empty((b, *x.shape[1:]), x.dtype) for x in parts[0])
        for members, part in zip(slices, parts, strict=True):
            for whole, x in zip(found, part, strict=True):
                whole[members] = x
        return found

    def _say(self, why: str, at: np.ndarray) -> None:
        if at.any():
            self.reasons.setdefault(why, []).extend(np.flatnonzero(at).tolist())

    def _together(self, members: np.ndarray, covariance: bool) -> _Numbers:
        scale = np.broadcast_to(self.prepared.y_units, (len(self.fit),))[members]
        at = LinearisedBatch(self.prepared, members, linear(self.prepared, members))
        noise = at.noise(self.absolute * scale, self.sandwich)
        moved = at.answers(noise, scale)
        enough = at.dof >= (-np.inf if self.absolute else 0.5)
        return _Numbers(
            np.linalg.norm(moved, axis=2),
            moved @ moved.mT if covariance else np.zeros((len(members), 0, 0)),
            at.data,
            at.parameters,
            at.chi2 / scale**2,
            at.deviance,
            at.exact,
            at.active,
            at.clear & enough,
        )

    def _alone(self, found: _Numbers, i: int, covariance: bool) -> _Numbers:
        """The numbers of one problem, by the theory of one."""
        fit = self.fit
        theta = trees.map_leaves(lambda x: x[i, ...], fit.theta)
        one: Any = _Member(single(fit.stated, i), theta, fit.w[i, ...], self.loss)
        given = (theta, single(fit.over, i), None, self.absolute, self.sandwich, weighting.deviance(one))
        try:
            s = theory.theory(weighting.least_squares(one), *given)
        except ProblemError as error:
            self.reasons.setdefault(str(error), []).append(i)
            return _Numbers(*(x[i] for x in found))._replace(errors=np.full(found.errors.shape[1], np.nan))
        for why in _reasons(s):
            self.reasons.setdefault(why, []).append(i)
        w = on_host(s.w_stderr).reshape(s.at.w.shape)
        errors = [vector(s.theta_stderr), w.real.ravel(), *([w.imag.ravel()] if np.iscomplexobj(w) else [])]
        C = s.covariance if covariance else np.zeros((0, 0))
        deviance = np.nan if s.deviance is None else s.deviance
        numbers: Any = (s.data, s.parameters, s.chi2, deviance, s.exact, False, True)
        return _Numbers(np.concatenate(errors), C, *numbers)


class _SharedPass(_Pass):
    """A look at problems that share leaves of theta: one fit, with one noise."""

    def numbers(self, covariance: bool = False) -> _Numbers:
        whole, fit, prepared = cast(Shared, self.whole), self.fit, self.prepared
        shared, unit, p = whole.sharing.shared, prepared.y_units[:1], len(prepared.units)

        def look(members: np.ndarray) -> Eliminated:
            return eliminated(LinearisedBatch(prepared, members, linear(prepared, members), shared), shared, unit)

        every = self._gathered(look)
        alive = np.isfinite(np.sum(every.triangle, axis=(1, 2)) + every.chi2)
        if not alive.any():
            raise ProblemError("standard errors need a problem whose data determine its parameters; got none")
        some = Eliminated(*(x[alive] for x in every))
        blank = whole.free & ~np.any(some.triangle, axis=(0, 1))  # what nothing depends on
        C, parameters, pivot = covariances(some, whole.free & ~blank)
        chi2, data, rounding = (np.sum(x) for x in (some.chi2, some.data, some.rounding))
        dof = data - np.sum(parameters)
        if not self.absolute and dof < 0.5:
            raise ProblemError(f"standard errors need more data than parameters; got {data} and {data - dof:.6g}")
        found = np.full(every.held.shape, np.nan)
        found[alive] = C * (unit**2 if self.absolute else noise_variance(chi2, dof, data, rounding))
        errors = np.sqrt(np.diagonal(found, axis1=1, axis2=2))
        errors[:, :p][every.silent] = np.inf
        errors[:, shared] = np.where(blank, np.inf, errors[alive][0, shared])
        every.parameters[alive] = parameters
        dead = ~np.isfinite(every.chi2)
        self._say("w is NaN or inf", dead)
        self._say(POOR, ~fit.success)
        self._say(HELD, ~dead & every.active)
        self._say(UNSURE, ~dead & (~every.clear | (pivot < CLEAR)))
        if not self.absolute:
            self._say(NO_NOISE, ~dead & bool(some.exact.all()))
        plain = every.data, every.parameters, every.chi2 / unit**2, every.deviance
        return _Numbers(errors, found, *plain, every.exact, every.active, every.clear)


def _reasons(s: Statistics) -> list[str]:
    return [*s.reasons, *([HELD] if uncalibrated(s.entries, s.limits) else [])]


def _median(x: np.ndarray) -> str:
    finite = x[np.isfinite(x)]
    return f"{np.median(finite):.3g}" if finite.size else "undetermined" if np.isinf(x).any() else "nan"
