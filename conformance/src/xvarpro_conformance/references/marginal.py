"""Marginal likelihoods in a hundred digits, by determinants and inverses of dense covariances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np

import xvarpro as xv
from xvarpro.core.struct import Array, Tree
from xvarpro_conformance.problems import held

DIGITS = 100


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
    def problem(self) -> xv.Marginal:
        lam: Any = _ridge if self.lam is None else self.lam
        weights = self.weights
        if weights is not None and weights.shape[1] == 1:
            weights = weights[:, 0]
        level = {"lam": lam, "Omega": self.Omega, "weights": weights, "solver": self.solver}
        data: dict[str, Array] = {"A": self.A}
        noise = self.noise
        if self.covariance is not None:
            noise = self.covariance
        return xv.marginal(xv.separable(_design, self.y, data=data, **level), noise, self.mean)

    def value(self, theta: Any = None) -> Any:
        """Minus the log density, and the sum of the sizes of its terms, in long numbers."""
        with mpmath.workdps(DIGITS):
            return _value(self, [mpmath.mpf(float(t)) for t in self.theta] if theta is None else theta)

    def gradient(self) -> np.ndarray:
        """By central differences with steps of 1e-30: right to 50 digits."""
        with mpmath.workdps(DIGITS):
            at, h = [mpmath.mpf(float(t)) for t in self.theta], mpmath.mpf(10) ** -30
            found = []
            for i in range(len(at)):
                ahead, behind = (self.value([t + s * h * (i == j) for j, t in enumerate(at)])[0] for s in (1, -1))
                found.append(float((ahead - behind) / (2 * h)))
        return np.array(found)

    def hessian(self, u: np.ndarray) -> np.ndarray:
        """Its product with u, by differences as of `gradient`, with steps of 1e-20."""
        h = mpmath.mpf(10) ** -20
        signs = [(s, t) for s in (1, -1) for t in (1, -1)]
        with mpmath.workdps(DIGITS):
            at, along = ([mpmath.mpf(float(x)) for x in v] for v in (self.theta, u))

            def moved(i: int, s: int, t: int) -> Any:
                steps = [s * d + t * (i == j) for j, d in enumerate(along)]
                return self.value([a + step * h for a, step in zip(at, steps, strict=True)])[0]

            rows = [sum(s * t * moved(i, s, t) for s, t in signs) / (4 * h * h) for i in range(len(at))]
        return np.array([float(x) for x in rows])


def _design(theta: Array, data: Tree) -> Array:
    xp = xv.array_namespace(theta)
    A = data["A"]
    t = xp.astype(theta, A.dtype) if theta.dtype != A.dtype else theta
    return A[0, ...] + xp.sum(t[: A.shape[0] - 1, None, None] * A[1:, ...], axis=0)


def _ridge(theta: Array, data: Tree) -> Array:
    return xv.array_namespace(theta).exp(theta[-1])


def _matrix(x: np.ndarray) -> Any:
    return mpmath.matrix(x.tolist())


def _log_det(A: Any) -> Any:
    return mpmath.log(abs(mpmath.det(A))) if A.rows else mpmath.mpf(0)


def _value(case: Case, theta: Any) -> Any:
    p, (_, m, n) = len(case.A) - 1, case.A.shape
    M = _matrix(case.A[0])
    for t, part in zip(theta[:p], case.A[1:], strict=True):
        M = M + t * _matrix(part)
    k, beta = case.y.shape[1], 2 if np.iscomplexobj(case.A) or np.iscomplexobj(case.y) else 1
    weights = np.broadcast_to(np.ones((m, 1)) if case.weights is None else case.weights, (m, k))
    lam = [[mpmath.exp(theta[-1])] * k for _ in range(n)]
    if case.lam is not None:
        lam = np.broadcast_to(case.lam, (n, k)).tolist()
    Omega = mpmath.eye(n) if case.Omega is None else _matrix(case.Omega)
    S, volume, nu, roots = mpmath.mpf(0), mpmath.mpf(0), 0, mpmath.mpf(0)
    sizes = mpmath.mpf(0)
    for j in range(k):
        rows = [i for i in range(m) if weights[i, j] > 0]
        W = mpmath.diag([mpmath.mpf(float(weights[i, j])) for i in rows])
        if case.covariance is not None:
            C = case.covariance
            W = _matrix(C if C.ndim == 2 else C[abs(np.subtract.outer(range(m), range(m)))]) ** -1
        P = mpmath.diag([mpmath.mpf(lam[i][j]) for i in range(n)])
        prior = Omega.H * P * Omega
        A = mpmath.matrix([[M[i, c] for c in range(n)] for i in rows])
        mean = mpmath.zeros(n, 1) if case.mean is None else _matrix(case.mean.reshape(n, 1))
        b = mpmath.matrix([case.y[i, j].item() for i in rows]) - A * mean
        H = A.H * W * A + prior
        u = mpmath.lu_solve(H, A.H * W * b)
        r = A * u - b
        S += mpmath.re((r.H * W * r + u.H * prior * u)[0])
        positive = [c for c in range(n) if lam[c][j] > 0]
        nu += beta * (len(rows) - (n - len(positive)))
        half = _log_det(H) / 2
        if positive:
            half -= sum(mpmath.log(mpmath.mpf(lam[c][j])) for c in positive) / 2 + _log_det(Omega)
        volume += beta * half
        roots += beta * _log_det(W) / 2
        sizes += beta * (abs(_log_det(H)) + abs(_log_det(W)))
    nu = mpmath.mpf(nu)
    if isinstance(case.noise, float) or case.covariance is not None:
        sigma = mpmath.mpf(case.noise if case.covariance is None else 1)
        terms = [nu / 2 * mpmath.log(2 * mpmath.pi * sigma**2), S / (2 * sigma**2)]
    else:
        a, b = (mpmath.mpf(x) for x in case.noise or (0, 0))
        terms = [nu / 2 * mpmath.log(2 * mpmath.pi), (a + nu / 2) * mpmath.log(b + S / 2), -mpmath.loggamma(a + nu / 2)]
        terms += [mpmath.loggamma(a), -a * mpmath.log(b)] if a else []
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
