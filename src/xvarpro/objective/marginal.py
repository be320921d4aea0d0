"""Minus the log marginal likelihood: the reduced objective with the amplitudes w integrated out, not minimised over.

For the stacked ``A = [M; sqrt(lam) Omega] = Q R`` it adds ``log det R`` to the least squares of `Reduced`, which has
the factor already. The derivative of that by M is ``Q R^-H``, in the rows of M: one more cotangent, and the same VJP.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from xvarpro import lower
from xvarpro.backends import Backend, to_numpy
from xvarpro.core.namespace import device, is_array, namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import adjoint, plus, rounding, sum_
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import NO_RIDGE, Condensed, LowerSolver, Ridge, Volume
from xvarpro.lower.stack import as_columns, eye_like, stacked
from xvarpro.objective.in_memory import ModelOutputs, ModelStructure, Solved
from xvarpro.objective.least_squares import EvaluatedLevel, LevelOutputs, like_target, outers
from xvarpro.objective.passes import SURVEY, Block, Pass
from xvarpro.objective.reduced import Point, Reduced
from xvarpro.objective.reductions import added
from xvarpro.objective.streamed import Streamed, StreamedPoint
from xvarpro.operators import Stacked, Weighted
from xvarpro.operators.interface import Operator
from xvarpro.problem.noise import Noise
from xvarpro.problem.problem import Level, Problem
from xvarpro.problem.whitening import Whitening


class _Marginal:
    """What the objective in memory and that of chunks share."""

    problem: Any
    backend: Backend
    energy: Any

    @property
    def noise(self) -> Noise:
        found: Noise = self.problem.noise
        return found

    def size(self, value: Array) -> Array:
        xp = namespace_of(value)
        return xp.maximum(xp.abs(value), 0 * value + 0.5 * self.noise.freedom)

    def rounding(self, value: Array) -> Array:
        xp, size = self.backend.xp, self.size(value)
        return rounding(xp, size + xp.sqrt(size * self.energy))

    def restricted(self, indices: Array, lower: Any = None) -> Any:
        raise ProblemError(
            "a marginal likelihood is no sum over rows, of which mini-batches could be drawn; got a stochastic method. "
            "Leave algorithm= out"
        )

    def total(self, volume: Volume) -> Array:
        """V of `Noise`, from that of one right-hand side, or of as many as there are factors."""
        columns, Omega = self.noise.columns, self.noise.Omega
        if callable(self.problem.lower.lam):  # a prior that becomes flat at theta has no density there
            lam, sizes, xp = volume.ridge.lam, volume.sizes, self.backend.xp
            volume = volume._replace(sizes=xp.where(xp.all(lam > 0), sizes, xp.full_like(sizes, xp.nan)))
        if Omega is None:
            return columns * (volume._replace(ridge=NO_RIDGE).log_det() / volume.stack - self.prior(volume.ridge)[0])
        found = volume.log_det() * (columns / volume.stack)
        return found if volume.dual or not volume.ridge.present else found - columns * Omega

    def prior(self, ridge: Ridge) -> tuple[Array, Array, Array]:
        """`Ridge.log_det`, NaN where Omega has lost a rank, with which the flat amplitudes would be others."""
        noise, (found, by_lam, by_Omega, X) = self.noise, ridge.log_det(self.backend)
        xp = namespace_of(found)
        rank = xp.astype(xp.sum(xp.astype(xp.any(X != 0, axis=0), xp.int32)), found.dtype)
        lost = rank < X.shape[0] - noise.flat / (noise.parts * noise.columns) - 0.5
        return xp.where(lost, xp.full_like(found, xp.nan), found), by_lam, by_Omega


class Marginal(_Marginal, Reduced):
    """Of a problem with all rows in memory."""

    def levels(self, outputs: ModelOutputs) -> tuple[EvaluatedLevel, EvaluatedLevel]:
        low, _ = super().levels(outputs)
        if self.noise.mean is not None:  # w is then what is added to the mean
            low = low._replace(y=low.y - low.system.M.matvec(self.noise.mean))
        return low, low

    def solver(self, low: EvaluatedLevel) -> LowerSolver:
        found = super().solver(low)
        return found if isinstance(found, INTEGRATED) and self.noise.Omega is not None else lower.QR()

    def solution(self, solver: LowerSolver, low: EvaluatedLevel, factor: Any) -> tuple[Array, Array]:
        w, r = super().solution(solver, low, factor)
        return self._whole(w), r

    def _whole(self, w: Array) -> Array:
        return w if self.noise.mean is None else w + self.noise.mean

    def point_of(self, theta: Leaves, outputs: ModelOutputs, solved: Solved | None = None) -> Point:
        _, _, solver, system = solved = solved or self.solved(outputs)
        point = super().point_of(theta, outputs, solved)
        volume: Any = solver.volume(self.backend, system, point.factor)
        return point._replace(value=self.noise.density(point.value, self.total(volume)))

    def conditional(self, theta: Leaves) -> tuple[Array, Array, Array]:
        """Of w given theta: its mean, R of the stacked matrix, and S / 2."""
        outputs = self.evaluate(theta, self.constants)
        *_, system = solved = self.solved(outputs)
        point = super().point_of(theta, outputs, solved)
        w, *_ = self.lower_solution(point, outputs, solved)
        A = stacked(self.backend, system.M.dense(), system.ridge)
        return self._whole(w), self.backend.qr(A, mode="r")[1], point.value

    def slopes(self, point: Point, outputs: ModelOutputs) -> ModelOutputs:
        low, _, solver, system = solved = self.solved(outputs)
        w, r, *_ = self.lower_solution(point, outputs, solved)
        noise = self.noise
        precision = noise.precision(None if noise.sigma is not None else low.value(w, r))
        volume: Any = solver.volume(self.backend, system, point.factor)
        share, lam, Omega = noise.parts * noise.columns / volume.stack, outputs.lower.lam, None
        if noise.Omega is None:
            lam, Omega = self._ridge_slopes(outputs.lower, low.ridge, precision, w, volume)
        elif lam is not None:
            lam = 0.5 * precision * low.ridge.by_lam(w, w) + share * volume.by_lam(low.M.shape[1])
        M = self._outer(low.M, r, precision * self._whole(w), volume, share)
        y = None if outputs.lower.y is None else like_target(-precision * r, outputs.lower.y)
        return ModelOutputs(LevelOutputs(M, y, lam, Omega), None, None)

    def _ridge_slopes(self, outputs: LevelOutputs, ridge: Ridge, precision: Array, w: Array, volume: Volume) -> Any:
        """Cotangents of lam and of Omega: half of ``<Omega w, lam Omega w>``, of w and of columns of R^-1."""
        times, lam, Omega = self.noise.parts * self.noise.columns, None, None
        _, by_lam, by_Omega = self.prior(ridge)
        pairs = [(0.5 * precision, w), *((0.5 * times / volume.stack, p) for _, p in volume.pairs())]
        if outputs.lam is not None:
            xp = namespace_of(by_lam)
            by_lam = xp.reshape(by_lam if math.prod(ridge.lam.shape) > 1 else xp.sum(by_lam), ridge.lam.shape)
            lam = sum_(c * ridge.by_lam(v, v) for c, v in pairs) - times * by_lam
        if outputs.Omega is not None:
            Omega = sum_(c * ridge.by_Omega(v, v) for c, v in pairs) - times * by_Omega
        return lam, Omega

    def _outer(self, M: Operator, r: Array, w: Array, volume: Volume, share: float) -> Operator:
        """Cotangents of M, by one product where right-hand sides share its matrix; none of the roots of weights."""
        weighted: Any = M if isinstance(M, Weighted) and self.problem.lower.weights is not None else None
        shared, xp = (M if weighted is None else weighted.M), namespace_of(r)
        if shared.columns is not None:
            return outers(M, (r, w), *((q, share * p) for q, p in volume.pairs()))
        q, p = volume.pair()
        n = p.shape[-1]
        if weighted is not None and p.ndim == 3 and n <= 2 * p.shape[0] and not volume.dual:
            # of each H_j^-1 = p p^H, sum_j s_j^2 M H_j^-1, without an array of the size of all q
            inverses = xp.reshape(p @ adjoint(p), (-1, n * n))
            mixed = xp.reshape(xp.astype(weighted.s**2, p.dtype) @ inverses, (-1, n, n))
            r, q, p = weighted.s * r, (shared.dense()[:, None, :] @ mixed)[:, 0, :], eye_like(p[0, ...])
        elif weighted is not None:
            r, q = weighted.s * r, (weighted.s if q.ndim == 2 else weighted.s.mT[:, :, None]) * q
        p = share * as_columns(p)
        found: Operator = shared.outer(xp.concat([r, as_columns(q)], axis=1), xp.concat([w, p], axis=1))
        return found if weighted is None else Weighted(found, 0 * weighted.s)

    def scale(self, theta: Leaves) -> Array:
        """What the objective is a small difference of: half the target, in units of the noise."""
        low, *_ = solved = self.solved(outputs := self.evaluate(theta, self.constants))
        half = super().point_of(theta, outputs, solved).value
        return self.noise.precision(half) * low.size


INTEGRATED = lower.QR, lower.DualQR, lower.SVD  # solvers whose factor has the determinant


def _fold(block: Block, state: tuple[Any, Array], theta: Leaves) -> tuple[Any, Array]:
    """The rows condensed, with how many count, and the sum of logarithms of roots of their weights."""
    level = block.evaluate(theta)
    xp, weights = namespace_of(state[1]), level.weights
    weights = xp.broadcast_to(xp.asarray(weights, dtype=state[1].dtype), level.y.shape)
    used = weights > 0
    counts = xp.astype(used, state[1].dtype), 0.5 * xp.log(xp.where(used, weights, xp.ones_like(weights)))
    folded = block.accumulation.fold(block.backend, state[0], level.M.dense(), level.y)
    return folded, state[1] + xp.stack([xp.sum(x) for x in counts])


def _gradient(
    block: Block, total: Leaves, theta: Leaves, w: Array, inverse: Array, precision: Array, share: Array
) -> Leaves:
    """With the gradient of the rows of a block added, by ``M R^-1``, which are its rows of Q."""
    level, outputs, pullback = block.linearise(theta)
    r, Q = level.residual(w), level.system.M.matvec(inverse)
    cotangents = outers(level.M, (precision * r, w), (share * Q, inverse))
    slopes = pullback(LevelOutputs(cotangents, like_target(-precision * r, outputs.y), None))
    return plus(total, slopes)


FOLD, GRADIENT = Pass(_fold, SURVEY.merge), Pass(_gradient, added)


class StreamedMarginal(_Marginal, Streamed):
    """Of a problem whose rows come in chunks."""

    def _condensed(self, theta: Leaves) -> tuple[Condensed, int]:
        """All rows, and how many they are; `noise` has its constants then."""
        like = theta[0]
        zeros = namespace_of(like).zeros(2, dtype=like.dtype, device=device(like))
        (state, counts), rows = self.walk(0, FOLD, (self._start(theta), zeros), theta)
        data, roots = self.backend.to_floats([counts[0], counts[1]])
        flat = flat_amplitudes(self.problem.lower, self.structure.w_shape)
        self.problem = replace(self.problem, noise=self.noise.counted(data, flat, roots))
        return self._accumulation.condensed(self.backend, state), rows

    def conditional(self, theta: Leaves) -> tuple[Array, Array, Array]:
        """As `Marginal.conditional`."""
        condensed, _ = self._condensed(theta)
        return condensed.argmin(self.backend), condensed.R, 0.5 * condensed.rest

    def _point(self, theta: Leaves, ahead: bool) -> StreamedPoint:
        xp, ridge = namespace_of(theta[0]), self.problem.lower.ridge
        condensed, rows = self._condensed(theta)
        R, half, noise = condensed.R, 0.5 * condensed.rest, self.noise
        volume = self.total(Volume(ridge, xp.linalg.diagonal(R), lambda: (R, R)))
        value = noise.density(half, volume)
        if not ridge.definite:
            deficient = self._accumulation.deficient(self.backend, R, rows)
            value = xp.where(deficient, xp.full_like(value, xp.nan), value)
        precision = noise.precision(half) + 0 * half
        return StreamedPoint(theta, value, condensed.argmin(self.backend), R, precision, precision * condensed.energy())

    def gradient(self, point: StreamedPoint) -> Leaves:
        theta, w, R = point.theta, point.w, point.R
        inverse = self.backend.solve_triangular(R, eye_like(R))
        share = 0 * point.slope + self.noise.parts * self.noise.columns
        return self.walk(0, GRADIENT, self.penalty_gradient(theta), theta, w, inverse, point.slope, share)[0]


def settled(problem: Problem, structure: ModelStructure, backend: Backend, dtype: str, place: Any) -> Problem:
    """The prepared problem with the constants of its density; a ProblemError where there is none."""
    level, noise, (n, k) = problem.lower, problem.noise, structure.w_shape
    assert noise is not None
    if not structure.exact or not (level.solver is None or isinstance(level.solver, INTEGRATED)):
        remedy = "Leave solver= out: the design is made an array then" if level.solver else "Return an array from M"
        raise ProblemError(
            "a marginal likelihood needs the entries of the design, and a solver whose factor has its determinant: "
            f"lower.QR(), DualQR() or SVD(); got {level.solver or 'a design known by its products'}. {remedy}"
        )
    size, present = 0.0, callable(level.lam) or level.ridge.present
    blocks = isinstance(level.Omega, Stacked) and not problem.in_rows  # whose rows may depend on each other
    moving = callable(level.Omega) or (present and (blocks or not level.ridge.square))
    flat = float(k * (n - _rank(problem, structure))) if moving else flat_amplitudes(level, (n, k))
    if present and not moving and level.Omega is not None:
        size = float(np.linalg.slogdet(to_numpy(level.ridge.array).astype(complex))[1])
        if 0 < flat < n * k:
            raise ProblemError(
                "a prior that is flat in some amplitudes needs Omega to be the identity, or with fewer rows than "
                "amplitudes; got a lam with entries that are 0 and a square Omega. Give them a small lam"
            )

    def moved(x: Any) -> Array:
        kind = np.result_type(dtype, "complex64") if np.iscomplexobj(x) else dtype
        return backend.asarray(np.asarray(x, kind), device=place)

    parts = 2 if structure.complex_w else 1
    fields: dict[str, Any] = {"parts": parts, "columns": k, "Omega": None if moving else moved(size)}
    if noise.mean is not None:
        mean = to_numpy(noise.mean)
        shaped = mean.shape in ((n,), (n, 1), (n, k)) and (parts == 2 or np.isrealobj(mean))
        if not shaped or not np.isfinite(mean).all():
            raise ProblemError(
                f"prior must be the mean of w, finite, of shape ({n},) or {(n, k)}, real where w is; got {mean.dtype} "
                f"entries of shape {mean.shape}{' and some that are not finite' if shaped else ''}"
            )
        mean = np.broadcast_to(mean.reshape(n, -1), (n, k))
        fields["mean"] = moved(mean.astype(complex) if parts == 2 else mean)
    noise = replace(noise, **fields)
    if not problem.in_rows:
        noise = noise.counted(*_data(level.weights, (structure.rows[0], k), flat))
        noise = replace(noise, constant=moved(noise.constant), freedom=moved(noise.freedom))
    return replace(problem, noise=noise)


def flat_amplitudes(level: Level, shape: tuple[int, int]) -> float:
    """How many entries of w, (n, k), have no ridge; one that is a function of theta is > 0."""
    lam: Any = 1.0 if callable(level.lam) else to_numpy(level.lam) if level.ridge.present else 0.0
    return float(np.sum(np.broadcast_to(lam, shape) == 0))


def _rank(problem: Problem, structure: ModelStructure) -> int:
    """That of an Omega that moves or is not square; of a function of theta it is full."""
    level, out = problem.lower, structure.skeleton.fill(structure.arrays).lower  # each array as its shape and dtype
    lam: Any = level.lam if out.lam is None else np.ones(out.lam[0])
    refused = ["rows in chunks"] if problem.in_rows else []
    refused += [] if level.solver is None or isinstance(level.solver, lower.QR) else [repr(level.solver)]
    lam = to_numpy(lam) if is_array(lam) else np.asarray(lam)
    refused += [] if (lam > 0).all() and lam.shape[1:] in ((), (1,)) else ["another lam"]
    if refused:
        raise ProblemError(
            "a marginal likelihood with an Omega that is a function of theta or not square needs all rows in memory, "
            f"lower.QR(), and lam > 0, the same for all right-hand sides; got {refused[0]}"
        )
    shape = out.Omega[0] if callable(level.Omega) else ()
    return min(shape) if shape else int(np.linalg.matrix_rank(to_numpy(level.ridge.array)))


def _data(weights: Any, shape: tuple[int, int], flat: float) -> tuple[float, float, float]:
    """What `Noise.counted` takes, of a target (m, k)."""
    if isinstance(weights, Whitening):
        return shape[0] * shape[1], flat, shape[1] * weights.log_root
    used = np.broadcast_to(1.0 if weights is None else to_numpy(weights), shape)
    used = used[used > 0].astype(float)
    return used.size, flat, 0.5 * float(np.sum(np.log(used)))
