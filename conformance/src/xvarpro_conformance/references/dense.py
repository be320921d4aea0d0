"""Reference problems of the suite as dense objectives of one vector in plain NumPy, derivatives written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro_conformance import problems
from xvarpro_conformance.problems import Reference
from xvarpro_conformance.references.sets import Known, known

Vector = np.ndarray
Matrix = np.ndarray


class Model(NamedTuple):
    """A design and its derivative."""

    matrix: Callable[[Vector], Matrix]
    pull: Callable[[Vector, Matrix], Vector]  # theta, G -> gradient of <G, M(theta)>


@dataclass(frozen=True)
class Objective:
    """``1/2 |M w - y|^2 + lam/2 |w|^2``, or with an upper level ``1/2 |M_U w - y_U|^2``, at the lower level's w.

    Attributes
    ----------
    lower, y, lam
        The lower level; y is a matrix of right-hand sides.
    held, by
        Where theta is held, and by which set.
    free
        Where theta is free, or None.
    upper, y_upper
        The upper level; None where there is one level.
    penalty, mu
        ``mu/2 penalty(theta)`` is added; the penalty returns its value and its gradient.
    """

    lower: Model
    y: Matrix
    lam: float
    by: Known
    held: slice = field(default_factory=lambda: slice(None))
    free: slice | None = None
    upper: Model | None = None
    y_upper: Matrix | None = None
    penalty: Callable[[Vector], tuple[float, Vector]] = lambda theta: (0.0, 0 * theta)
    mu: float = 0.0

    def stacked(self, theta: Vector) -> Matrix:
        """``[M; sqrt(lam) I]``, what the lower level is solved with."""
        M = self.lower.matrix(theta)
        return np.vstack([M, math.sqrt(self.lam) * np.eye(M.shape[1])])

    def w(self, theta: Vector) -> Matrix:
        """The minimiser of the lower level."""
        K = self.stacked(theta)
        rest = np.zeros((K.shape[0] - self.y.shape[0], self.y.shape[1]))
        found: Matrix = np.linalg.lstsq(K, np.vstack([self.y, rest]), rcond=None)[0]
        return found

    def value(self, theta: Vector) -> float:
        w = self.w(theta)
        if self.upper is None:
            r = self.lower.matrix(theta) @ w - self.y
            value = 0.5 * np.sum(r * r) + 0.5 * self.lam * np.sum(w * w)
        else:
            r = self.upper.matrix(theta) @ w - self.y_upper
            value = 0.5 * np.sum(r * r)
        return float(value + 0.5 * self.mu * self.penalty(theta)[0])

    def gradient(self, theta: Vector) -> Vector:
        """Equation (3) of the paper, with dense matrices."""
        w, M = self.w(theta), self.lower.matrix(theta)
        r = M @ w - self.y
        if self.upper is None:
            grad = self.lower.pull(theta, r @ w.T)  # grad_w f = 0: no adjoint
        else:
            M_U = self.upper.matrix(theta)
            r_U = M_U @ w - self.y_upper
            v = np.linalg.solve(M.T @ M + self.lam * np.eye(M.shape[1]), M_U.T @ r_U)
            grad = self.upper.pull(theta, r_U @ w.T) - self.lower.pull(theta, M @ v @ w.T + r @ v.T)
        return grad + 0.5 * self.mu * self.penalty(theta)[1]

    def floor(self, theta0: Vector) -> float:
        """What rounding of the objective is relative to: the larger of |f| at the start and 1/2 |y|^2."""
        y = self.y if self.y_upper is None else self.y_upper
        return max(abs(self.value(theta0)), 0.5 * float(np.sum(y * y)))

    def direction(self, theta: Vector) -> tuple[Vector, float, float]:
        """Algorithm 2 (BLMO) less theta, and both parts of the gap ``-<grad, d>``."""
        grad, d, gap_B = self.gradient(theta), np.zeros_like(theta), 0.0
        d[self.held] = self.by.vertex(grad[self.held]) - theta[self.held]
        gap_A = -float(grad @ d)
        if self.free is not None:
            gap_B = float(np.linalg.norm(grad[self.free]))
            d[self.free] = -grad[self.free] / gap_B
        return d, gap_A, gap_B

    def violation(self, theta: Vector) -> float:
        return float(self.by.outside(theta[self.held]))


def condition(f: Objective, theta: Vector) -> float:
    """Of what a QR factors, with columns of length 1: ``[M; sqrt(lam) I]``, or of a wide M ``[M^T; sqrt(lam) I]``."""
    M = f.lower.matrix(theta)
    M = M.T if M.shape[0] < M.shape[1] and f.lam else M
    K = np.vstack([M, math.sqrt(f.lam) * np.eye(M.shape[1])])
    s = np.linalg.svd(K / np.linalg.norm(K, axis=0), compute_uv=False)
    return float(s[0] / s[-1])


class Dense(NamedTuple):
    """A problem twice: as the package takes it, and as an `Objective` of one vector."""

    reference: Reference
    f: Objective

    @property
    def theta0(self) -> Vector:
        return np.concatenate([np.ravel(x) for x in _leaves(self.reference.theta0)])


def _leaves(theta: Any) -> list[np.ndarray]:
    return [theta[key] for key in sorted(theta)] if isinstance(theta, dict) else [theta]


def flat(theta: Any) -> Vector:
    """Theta of a result as one vector, by the names of its leaves."""
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in _leaves(theta)])


def decays(t: Vector) -> Model:
    """``exp(-t theta)``."""
    return Model(
        lambda theta: np.exp(-np.outer(t, theta)),
        lambda theta, G: -(G * t[:, None] * np.exp(-np.outer(t, theta))).sum(axis=0),
    )


def itself(shape: tuple[int, int]) -> Model:
    """``M(theta) = theta``."""
    return Model(lambda theta: theta.reshape(shape), lambda theta, G: G.ravel())


def scaled_columns(A: Matrix) -> Model:
    """``A diag(theta + 1/10)``."""
    return Model(lambda theta: A * (theta + 0.1), lambda theta, G: (A * G).sum(axis=0))


def units(X: Matrix) -> Model:
    """``tanh(X A) diag(s + 1/10)`` of theta = (A, s): four inputs, five units."""

    def matrix(theta: Vector) -> Matrix:
        out: Matrix = np.tanh(X @ theta[:20].reshape(4, 5)) * (theta[20:] + 0.1)
        return out

    def pull(theta: Vector, G: Matrix) -> Vector:
        H = np.tanh(X @ theta[:20].reshape(4, 5))
        dA = X.T @ (G * (theta[20:] + 0.1) * (1 - H * H))
        return np.concatenate([dA.ravel(), (G * H).sum(axis=0)])

    return Model(matrix, pull)


def _spread(theta: Vector) -> tuple[float, Vector]:
    A = np.concatenate([theta[:20], np.zeros(5)])
    return float(A @ A), 2 * A


def exponentials() -> Dense:
    """`problems.exponentials`."""
    made = problems.exponentials()
    return Dense(made, Objective(decays(np.asarray(made.problem.data)), _targets(made)[0], 1e-4, _set(made)))


def dictionary() -> Dense:
    """`problems.dictionary`."""
    made = problems.dictionary()
    return Dense(made, Objective(itself((20, 6)), _targets(made)[0], 1e-3, _set(made)))


def atoms() -> Dense:
    """`problems.atoms`."""
    made = problems.atoms()
    return Dense(made, Objective(itself((6, 3)), _targets(made)[0], 1e-2, _set(made)))


def network() -> Dense:
    """`problems.network`."""
    made = problems.network()
    data, (y, y_upper) = made.problem.data, _targets(made)
    f = Objective(
        units(data["train"]), y, 1e-2, known(xv.sets.CappedSimplex(), (5,)), slice(20, 25), slice(0, 20),
        units(data["validation"]), y_upper, _spread, 1e-3,
    )  # fmt: skip
    return Dense(made, f)


def wide() -> Dense:
    """`problems.wide`."""
    made = problems.wide()
    return Dense(made, Objective(scaled_columns(np.asarray(made.problem.data)), _targets(made)[0], 1e-1, _set(made)))


def bounded() -> Dense:
    """`exponentials` in a box that the fastest of the three rates would leave."""
    made = replace(problems.exponentials(), theta0=np.array([0.5, 3.0, 4.0]), over=xv.sets.Box(0.25, 5.0))
    return Dense(made, replace(of(exponentials).f, by=_set(made)))


def round_() -> Dense:
    """`wide` in a ball, where a vertex moves as far as the gradient does: rounding stays what it is."""
    made = replace(problems.wide(), theta0=np.full(16, 1 / 16), over=xv.sets.L2Ball(1.0))
    return Dense(made, replace(of(wide).f, by=_set(made)))


def _set(made: Reference) -> Known:
    return known(made.over, (made.theta0.size,))


def _targets(made: Reference) -> list[Matrix]:
    ys = [np.asarray(level.y) for level in made.problem.levels]
    return [y[:, None] if y.ndim == 1 else y for y in ys]


@cache
def of(make: Callable[[], Dense]) -> Dense:
    """A problem, made once."""
    return make()
