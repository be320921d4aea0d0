"""Statistics of a batch: linear theory, as in `statistics.covariance`, for all problems at once.

It is for problems on boxes and free leaves whose parameters are well told apart. The others are left to
`statistics.theory`, one by one: those near a kink, nearly dependent ones, those in other sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from xvarpro import backends
from xvarpro.batch import small
from xvarpro.batch.driver import linear
from xvarpro.batch.lift import single
from xvarpro.batch.objective import Linear
from xvarpro.batch.prepare import Prepared
from xvarpro.batch.result import ManyResult
from xvarpro.core import trees
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.losses.interface import Loss
from xvarpro.lower import Bounded
from xvarpro.problem.problem import Problem
from xvarpro.sets import Box
from xvarpro.statistics import theory, weighting
from xvarpro.statistics.frames import on_host, vector
from xvarpro.statistics.linearised import STOPPED, held_by, unlike_least_squares
from xvarpro.statistics.standard_errors import EXACT, QUIET, ROUNDED

AT_ONCE = 2**17  # numbers in the tangents of the problems that are looked at together: as a cache holds
CLEAR, CLEAR_EPS = 1e-4, 1e4  # pivots of columns of length 1 above which parameters are told apart, or times eps
SHARE = 1e-3  # of standard errors, as rounding at its worst


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

    @cached_property
    def covariance(self) -> np.ndarray:
        """Covariances of theta's entries, then w's, row by row, (b, q, q): see `Statistics.covariance`."""
        return self._covariances()

    def __repr__(self) -> str:
        b, lines = len(self.data), [f"standard errors of {len(self.data)} problems, medians"]
        for name, leaves in (("theta", trees.leaves(self.theta_stderr)), ("w", [self.w_stderr])):
            errors = np.concatenate([np.abs(backends.to_numpy(x)).reshape(b, -1) for x in leaves], axis=1)
            shown = ", ".join(f"{_median(x):.3g}" for x in errors.T[:6])
            lines.append(f"  {name:<14}{shown}{', ...' if errors.shape[1] > 6 else ''}")
        lines.append(f"  reduced chi2  {_median(self.reduced_chi2):.3g}")
        return "\n".join([*lines, *(f"  {len(at)} from problem {at[0]} on: {why}" for why, at in self.reasons.items())])


class _Numbers(NamedTuple):
    """Of some problems, in the units of the caller; q entries are those of theta, then those of w, row by row."""

    errors: np.ndarray  # (b, q); of a complex w the real parts come first
    covariance: np.ndarray  # (b, q, q), or (b, 0, 0) where it is not asked for
    data: np.ndarray
    parameters: np.ndarray
    chi2: np.ndarray
    variance: np.ndarray
    deviance: np.ndarray
    exact: np.ndarray  # whether the residual is zero to rounding
    clear: np.ndarray  # whether all of this holds


class _Fit(NamedTuple):
    """One member of a batch."""

    stated: Problem
    theta: Tree
    w: Array
    loss: Loss | None


def statistics(
    fit: ManyResult, *, absolute_sigma: bool | None = None, sandwich: bool | None = None
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
           [0.018]])
    """
    problem = fit.stated
    loss: Loss | None = problem.levels[-1].loss
    plain = trees.changed(problem, lower=trees.changed(problem.lower, loss=None))
    if why := unlike_least_squares(plain):
        raise ProblemError(f"statistics need {why}")
    known = loss is not None and loss.likelihood
    return _Pass(fit, *theory.noise_from(loss, known, absolute_sigma, sandwich)).statistics()


class _Pass:
    """A look at all problems of a batch."""

    def __init__(self, fit: ManyResult, absolute: bool, sandwich: bool) -> None:
        self.fit, self.absolute, self.sandwich = fit, absolute, sandwich
        self.prepared: Prepared = fit.prepared
        self.loss: Loss | None = fit.stated.levels[-1].loss
        self.eps = float(np.finfo(self.prepared.dtype).eps)
        self.reasons: dict[str, list[int]] = {}

    @np.errstate(**QUIET)
    def statistics(self) -> BatchStatistics:
        found, p = self.numbers(), self.prepared.theta.shape[1]
        dof = _freedom(found.data, found.parameters)
        unlikely = found.data * np.log(found.chi2 / found.data) if self.loss is None else found.deviance
        likely = (dof >= 0.5) & (self.loss is None or self.loss.likelihood)
        return BatchStatistics(
            theta_stderr=self.prepared.measures(found.errors[:, :p]),
            w_stderr=self.prepared.array(self._shaped(found.errors[:, p:])),
            data=found.data,
            parameters=found.parameters,
            dof=dof,
            chi2=found.chi2,
            reduced_chi2=np.where(dof >= 0.5, found.chi2 / dof, np.nan),
            aic=np.where(likely, unlikely + 2 * found.parameters, np.nan),
            reasons={why: np.asarray(at) for why, at in self.reasons.items()},
            _covariances=lambda: _Pass(self.fit, self.absolute, self.sandwich).numbers(True).covariance,
        )

    def _shaped(self, x: np.ndarray) -> np.ndarray:
        shape = tuple(self.fit.w.shape)
        half = math.prod(shape[1:])
        return (x if x.shape[1] == half else x[:, :half] + 1j * x[:, half:]).reshape(shape)

    @np.errstate(**QUIET)
    def numbers(self, covariance: bool = False) -> _Numbers:
        """Of all problems; `reasons` says why they may mislead."""
        fit, (b, p) = self.fit, self.prepared.theta.shape
        entries = p * dict(self.prepared.found)["M_L"][0][0] * math.prod(fit.w.shape[2:])
        count = max(1, -(-b * entries // AT_ONCE))
        size, found = -(-b // count), None
        for i in range(count):
            # the last one looks at some again: a compiled function is compiled for a size
            members = np.arange(size) + min(i * size, b - size)
            part = self._of(members, covariance)
            found = found or _Numbers(*(np.empty((b, *x.shape[1:]), dtype=x.dtype) for x in part))
            for whole, x in zip(found, part, strict=True):
                whole[members] = x
        assert found is not None
        self._say("the solve ended without success: errors are those of this point, which need not be a minimum", ~fit.success)
        if not self.absolute:
            self._say("the residual is zero to rounding: standard errors measure rounding, not noise", found.clear & found.exact)
        dead = ~np.isfinite(np.sum(np.abs(on_host(fit.w)).reshape(b, -1), axis=1))
        self._say("w is NaN or inf", dead)
        for i in np.flatnonzero(~found.clear & ~dead):
            for whole, x in zip(found, self._alone(found, int(i), covariance), strict=True):
                whole[i] = x
        return found

    def _say(self, why: str, at: np.ndarray) -> None:
        if at.any():
            self.reasons.setdefault(why, []).extend(np.flatnonzero(at).tolist())

    def _alone(self, found: _Numbers, i: int, covariance: bool) -> _Numbers:
        """The numbers of one problem, by the theory of one."""
        fit = self.fit
        theta = trees.map_leaves(lambda x: x[i, ...], fit.theta)
        one = _Fit(single(fit.stated, i), theta, fit.w[i, ...], self.loss)
        given = (theta, fit.over, None, self.absolute, self.sandwich, weighting.deviance(one))
        try:
            s = theory.theory(weighting.least_squares(one), *given)
        except ProblemError as error:
            self.reasons.setdefault(str(error), []).append(i)
            return _Numbers(*(x[i] for x in found))._replace(errors=np.full(found.errors.shape[1], np.nan))
        for why in s.reasons:
            self.reasons.setdefault(why, []).append(i)
        w = on_host(s.w_stderr).reshape(s.at.w.shape)
        errors = [vector(s.theta_stderr), w.real.ravel(), *([w.imag.ravel()] if np.iscomplexobj(w) else [])]
        C = s.covariance if covariance else np.zeros((0, 0))
        deviance = math.nan if s.deviance is None else s.deviance
        return _Numbers(np.concatenate(errors), C, s.data, s.parameters, s.chi2, s.variance, deviance, s.exact, True)

    def _of(self, members: np.ndarray, covariance: bool) -> _Numbers:
        """The numbers of some problems, all at once."""
        at, prepared = linear(self.prepared, members), self.prepared
        theta = backends.to_numpy(prepared.theta)[members].astype(np.float64)
        (b, p), (B, k, _) = theta.shape, at.w.shape
        c = self.columns = B // b  # right-hand sides with a design of their own
        root = np.ones(at.r.shape) if at.root is None else np.broadcast_to(at.root, at.r.shape)
        data = np.sum((root > 0).reshape(b, -1), axis=1) * (1 + np.iscomplexobj(at.r))
        at = _in_real_numbers(at, p)
        n, m = at.w.shape[2], at.r.shape[2]
        M, X = at.A[..., :m], at.X.reshape(B, p, k, m)

        def summed(x: np.ndarray) -> np.ndarray:
            """Over all entries of a right-hand side and over those of a problem."""
            return np.sum(x.reshape(b, -1), axis=1)

        def together(x: np.ndarray) -> np.ndarray:
            """(B, p, ...) as (b, p, c, ...)."""
            return np.moveaxis(x.reshape(b, c, *x.shape[1:]), 1, 2)

        lengths = np.sqrt(np.sum(together(X) ** 2, axis=(2, 3, 4)))
        chi2 = summed(at.r**2)
        slope = np.sum(together(X * at.r[:, None]), axis=(2, 3, 4))
        flat = max(STOPPED, self.eps**0.5) * lengths * np.sqrt(chi2)[:, None]
        held, kinks = self._held(theta, slope, flat)
        y = at.w @ M - at.r
        on = np.ones((B, n), bool) if at.free is None else at.free.astype(bool)
        if at.free is not None:
            kinks = kinks | self._kinks(at, y, m).reshape(b, -1).any(axis=1)

        low = _Orthogonal(at.A, on, m)
        rows = X.reshape(B, p * k, m)
        along = rows @ low.Q[..., :m].mT
        rest = -along @ low.Q
        rest[..., :m] += rows
        T = low.solved(-along).reshape(b, c, p, k, n)
        F = low.solved(low.Q[..., :m].mT).mT.reshape(b, c, n, m)
        J = together(rest.reshape(B, p, k, -1))
        high = _Orthogonal(J.reshape(b, p, -1), ~held)
        Q = high.Q[..., : c * k * J.shape[-1]]
        K = high.solved(Q.mT).mT.reshape(b, p, *J.shape[2:])[..., :m]
        parameters = k * summed(low.Q[..., :m] ** 2) + summed(Q.reshape(b, p, *J.shape[2:])[..., :m] ** 2)

        dof = _freedom(data, parameters)
        rounding = self.eps**2 * summed(y**2)
        scale = np.broadcast_to(prepared.y_units, (len(self.fit),))[members]  # by which the units here differ
        if self.absolute:
            variance = scale**2
        else:
            off = np.maximum(chi2 / dof, rounding / data)
            variance = np.where(chi2 <= EXACT**2 * rounding, np.maximum(chi2, rounding), off)
        noise = np.broadcast_to(np.sqrt(variance)[:, None, None, None], (b, c, k, m))
        if self.sandwich:
            least = np.sqrt(rounding / data)[:, None, None, None]
            noise = np.maximum(np.abs(at.r).reshape(noise.shape) * np.sqrt(data / dof)[:, None, None, None], least)
        K = (K * noise[:, None]).reshape(b, p, -1)
        unit = np.concatenate([np.full(math.prod(x), 1 / u) for x, u in zip(prepared.region.shapes, prepared.theta_units, strict=True)])
        answers = [K * unit[:, None]]
        for column in np.ndindex(c, k):
            G = (T[:, column[0], :, column[1]].mT @ K).reshape(b, n, c, k, m)
            G[:, :, *column] += F[:, column[0]] * noise[:, None, *column]
            answers.append(G.reshape(b, n, -1) / scale[:, None, None])
        G = np.concatenate([answers[0], np.stack(answers[1:], axis=2).reshape(b, n * c * k, -1)], axis=1)
        share = self.eps * (10 + 1 / low.pivot.reshape(b, c).min(axis=1)) / high.pivot
        share = share * np.max(np.where(held, 0, lengths / np.sqrt(np.sum(J**2, axis=(2, 3, 4)))), axis=1)
        least = max(CLEAR, CLEAR_EPS * self.eps)
        clear = (low.pivot.reshape(b, c).min(axis=1) > least) & (high.pivot > least) & (share < SHARE) & ~kinks
        clear &= (dof >= 0.5) | self.absolute
        terms = np.abs(y) + np.abs(at.w) @ np.abs(M)
        exact = chi2 <= (ROUNDED * self.eps) ** 2 * summed(terms**2)
        return _Numbers(
            np.linalg.norm(G, axis=2),
            G @ G.mT if covariance else np.zeros((b, 0, 0)),
            data,
            parameters,
            chi2 / scale**2,
            variance / scale**2,
            np.full(b, np.nan) if at.deviance is None else summed(at.deviance),
            exact,
            clear & self._in_boxes,
        )

    @property
    def _in_boxes(self) -> bool:
        return all(isinstance(C, Box) for _, C in self.prepared.region.constrained)

    def _held(self, theta: np.ndarray, slope: np.ndarray, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which entries of theta are held by a bound, (b, p), and which problems have one with a multiplier of 0."""
        held, kinks, stop = np.zeros(theta.shape, bool), np.zeros(len(theta), bool), 0
        sets: dict[int, Any] = dict(self.prepared.region.constrained)
        for i, shape in enumerate(self.prepared.region.shapes):
            here = slice(stop, stop := stop + math.prod(shape))
            if isinstance(C := sets.get(i), Box):
                lower, upper = (np.ravel(np.broadcast_to(on_host(x), shape)) for x in (C.lower, C.upper))
                g, zero = slope[:, here], flat[:, here]
                held[:, here] = held_by(theta[:, here], lower, upper, g, zero, self.eps)
                kinks |= np.any(held[:, here] & (np.abs(g) <= zero) & (lower < upper), axis=1)
        return held, kinks

    def _kinks(self, at: Linear, y: np.ndarray, m: int) -> np.ndarray:
        """Which right-hand sides may have a w at a bound with a multiplier of 0."""
        W: Any = self.prepared.problem.lower.W
        w, lengths, ridge = at.w[:, 0], np.sqrt(np.sum(at.A**2, axis=2)), at.A[..., m:]
        slope = (at.A[..., :m] @ at.r.mT + ridge @ (ridge.mT @ at.w.mT))[..., 0]
        size = np.max(np.abs(w) * lengths, axis=1) + np.max(np.abs(y[:, 0]), axis=1)
        small = (100 * w.shape[1] * self.eps * size)[:, None]
        bounds = (on_host(W.lower), on_host(W.upper)) if isinstance(W, Bounded) else (np.zeros(1), np.full(1, np.inf))
        # of each right-hand side in turn
        columns = (x.reshape(len(x), -1) if x.ndim else x.reshape(1, 1) for x in bounds)
        lower, upper = (np.resize(np.broadcast_to(x, (w.shape[1], self.columns)).T, w.shape) for x in columns)
        near = lengths * np.minimum(np.abs(w - lower), np.abs(upper - w)) <= (self.eps**0.5 * size)[:, None]
        held = ~at.free.astype(bool)
        return np.any(np.where(held, np.abs(slope) <= 1e3 * small * lengths, near), axis=1)


class _Orthogonal:
    """Rows (b, n, m) at length 1, those that are held apart, as ``R^T Q``."""

    def __init__(self, rows: np.ndarray, on: np.ndarray, m: int = 0) -> None:
        length = np.sqrt(np.sum(rows**2, axis=2))
        self.on, self.size = on, np.where(on & (length > 0), length, 1.0)
        unit = np.where(on[:, :, None], rows / self.size[:, :, None], 0.0)
        f = small.factor(np.concatenate([unit, ~on[:, :, None] * np.eye(rows.shape[1])], axis=2))
        self.Q = f.Q[..., : rows.shape[2]]
        units = np.broadcast_to(np.eye(rows.shape[1]), f.R.shape)
        # of columns that are told apart the inverse has all digits that are asked for
        self.inverse = small.solve_upper(f.R, units) * (self.on / self.size)[:, None, :]
        pivots = np.abs(np.diagonal(f.R, axis1=1, axis2=2))
        self.pivot = np.min(np.where(np.isfinite(pivots), pivots, 0.0), axis=1)

    def solved(self, c: np.ndarray) -> np.ndarray:
        """Coefficients of the rows in their own units, for those of Q, (b, k, n)."""
        found: np.ndarray = c @ self.inverse
        return found


def _freedom(data: np.ndarray, parameters: np.ndarray) -> np.ndarray:
    dof = data - parameters
    return np.where(np.abs(dof) < 1e-9 * data, 0.0, dof)


def _in_real_numbers(at: Linear, p: int) -> Linear:
    """The same with real numbers only: rows of real parts before those of imaginary ones, and so for w."""
    if not any(np.iscomplexobj(x) for x in (at.A, at.r, at.X)):
        return at
    m = at.r.shape[2]

    def parts(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x.real, x.imag], axis=-1)

    def both(A: np.ndarray) -> np.ndarray:
        return np.concatenate([parts(A), parts(1j * A)], axis=1)

    A = np.concatenate([both(at.A[..., :m]), both(at.A[..., m:])], axis=2)
    return at._replace(A=A, w=parts(at.w), r=parts(at.r), X=parts(at.X))


def _median(x: np.ndarray) -> float:
    return float(np.median(x[np.isfinite(x)])) if np.isfinite(x).any() else math.nan
