"""Marginal likelihoods in a hundred digits, by determinants and inverses of dense covariances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro.core.struct import Array, Tree
from xvarpro_conformance.problems import held
from xvarpro_conformance.references.designs import adjoint
from xvarpro_conformance.references.digits import digits, numbers, real, rounded, solution
from xvarpro_conformance.references.lower import step, written


@dataclass(frozen=True)
class Case:
    """A problem with ``M(theta) = A[0] + theta[0] A[1] + ...``, and what the density of its target is made of.

    `lam` may be a number, an array, or None for ``exp(theta[-1])``. `noise` is what `marginal` takes.
    """

    A: np.ndarray  # (p + 1, m, n)
    y: np.ndarray  # (m, k)
    theta: np.ndarray
    lam: Any = 0.0
    Omega: np.ndarray | None = None
    weights: np.ndarray | None = None  # (m, 1) or (m, k)
    covariance: np.ndarray | None = None
    noise: Any = 1.0
    mean: np.ndarray | None = None  # (n,)
    condition: float = 1.0  # of the stacked matrix, to its order
    solver: Any = None

    @property
    def stated(self) -> xv.Problem:
        """The least squares that w has."""
        lam: Any = _ridge if self.lam is None else self.lam
        weights = self.weights
        if weights is not None and weights.shape[1] == 1:
            weights = weights[:, 0]
        level = {"lam": lam, "Omega": self.Omega, "weights": weights, "solver": self.solver}
        return xv.separable(_design, self.y, data={"A": self.A}, **level)

    @property
    def problem(self) -> xv.Marginal:
        return xv.marginal(self.stated, self.noise if self.covariance is None else self.covariance, self.mean)

    def value(self, *steps: np.ndarray) -> Any:
        """Minus the log density, 1e-20 of each of some steps away, and the sum of the sizes of its terms."""
        return _value(self, digits(self.theta) + sum(digits(x) * step() for x in steps))

    def gradient(self) -> np.ndarray:
        """By differences."""
        start, _ = self.value()
        return rounded([(self.value(e)[0] - start) / step() for e in np.eye(self.theta.size)])

    def hessian(self, u: np.ndarray) -> np.ndarray:
        """Its product with u, by differences of differences."""
        start, side, eye = self.value()[0], self.value(u)[0], np.eye(self.theta.size)
        return rounded([((self.value(u, e)[0] - side) - (self.value(e)[0] - start)) / step() ** 2 for e in eye])


def _design(theta: Array, data: Tree) -> Array:
    xp = xv.array_namespace(theta)
    A = data["A"]
    t = xp.astype(theta, A.dtype) if theta.dtype != A.dtype else theta
    return A[0, ...] + xp.sum(t[: A.shape[0] - 1, None, None] * A[1:, ...], axis=0)


def _ridge(theta: Array, data: Tree) -> Array:
    return xv.array_namespace(theta).exp(theta[-1])


def _log_det(A: np.ndarray) -> Any:
    return numbers().log(abs(numbers().det(numbers().matrix(A.tolist()))))


def _value(case: Case, theta: Any) -> Any:
    mp, level = numbers(), case.stated.lower
    low, C = written(level, level.M, theta, {"A": digits(case.A)}), case.covariance
    m, k = low.y.shape
    n, beta = low.lam.shape[0], 2 if np.iscomplexobj(case.A) or np.iscomplexobj(case.y) else 1
    if C is not None:
        C = digits(C if C.ndim == 2 else C[abs(np.subtract.outer(range(m), range(m)))])
    mean = digits(np.zeros(n) if case.mean is None else case.mean)
    S = volume = roots = sizes = mp.mpf(0)
    nu = 0
    for j in range(k):
        heavy, lam = ([x for x in column[:, j] if x > 0] for column in (low.heavy, low.lam))
        W = np.diag(low.heavy[:, j]) if C is None else solution(C, np.eye(m))
        prior = adjoint(low.Omega) @ (low.lam[:, j : j + 1] * low.Omega)
        A, b = low.A[j], low.y[:, j] - low.A[j] @ mean
        H = adjoint(A) @ W @ A + prior
        u = solution(H, adjoint(A) @ (W @ b))
        r = A @ u - b
        S += np.sum(real(np.conj(r) * (W @ r))).item() + np.sum(real(np.conj(u) * (prior @ u))).item()
        nu += beta * (len(heavy) - (n - len(lam)))
        log_H, log_W = _log_det(H), sum(map(mp.log, heavy)) if C is None else -_log_det(C)
        prior_volume = sum(map(mp.log, lam)) / 2 + _log_det(low.Omega) if lam else 0
        volume += beta * (log_H / 2 - prior_volume)
        roots += beta * log_W / 2
        sizes += beta * (abs(log_H) + abs(log_W))
    half = mp.mpf(nu) / 2
    if isinstance(case.noise, float) or C is not None:
        sigma = mp.mpf(case.noise if C is None else 1)
        terms = [half * mp.log(2 * mp.pi * sigma**2), S / (2 * sigma**2)]
    else:
        a, b = (mp.mpf(x) for x in case.noise or (0, 0))
        terms = [half * mp.log(2 * mp.pi), (a + half) * mp.log(b + S / 2), -mp.loggamma(a + half)]
        terms += [mp.loggamma(a), -a * mp.log(b)] if a else []
    terms += [volume, -roots]
    return sum(terms), sizes + sum(abs(x) for x in terms)


def drawn(
    draw: np.random.Generator,
    ridge: str,
    noise: Any = 1.3,
    *,
    complex_: bool = False,
    shape: tuple[int, int] = (7, 3),
    columns: int = 2,
    condition: float = 10.0,
    Omega: bool = False,
    weights: str = "",
    mean: bool = False,
    solver: Any = None,
) -> Case:
    """A problem with random numbers; `ridge` and `weights` are kinds of these."""
    m, n = shape

    def normal(*shape: int) -> np.ndarray:
        return draw.normal(size=shape) + (1j * draw.normal(size=shape) if complex_ else 0)

    few = min(m, n)
    U, V = (np.linalg.qr(normal(size, size))[0] for size in (m, n))
    A0 = (U[:, :few] * condition ** -np.linspace(0, 1, few)) @ V[:few, :]
    A = held(np.stack([A0, *(0.1 / condition * normal(m, n) for _ in range(2))]))
    lam: Any = {
        "flat": 0.0,
        "number": 0.3,
        "rows": draw.uniform(0.1, 2, (n, 1)),
        "some": np.array([[0.0], [0.5], *[[1.0]] * (n - 2)]),
        "columns": draw.uniform(0.1, 2, (1, columns)),
        "entries": draw.uniform(0.1, 2, (n, columns)),
        "theta": None,
    }[ridge]
    B = draw.normal(size=(m, m))
    heavy = {"rows": (m, 1), "entries": (m, columns)}.get(weights)
    W = None if heavy is None else held(draw.uniform(0.5, 2, heavy))
    if weights == "entries" and W is not None:
        W[0, 0] = 0.0
    return Case(
        A,
        held(normal(m, columns)),
        held(draw.normal(size=3 if lam is None else 2)),
        held(lam) if isinstance(lam, np.ndarray) else lam,
        held(draw.normal(size=(n, n)) + 3 * np.eye(n)) if Omega else None,
        W,
        {"covariance": held(B @ B.T + np.eye(m)), "toeplitz": 0.5 ** np.arange(m)}.get(weights),
        noise,
        held(normal(n)) if mean else None,
        condition,
        solver,
    )
