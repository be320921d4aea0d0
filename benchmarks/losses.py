"""Losses on two levels: penalties of a logistic regression, and wrong labels, against rivals.

[XVARPRO_DATA=folder] python benchmarks/losses.py penalties|cleaning [--rows 1000]

CPU seconds. `penalties` learns one penalty for each of 16 regions of MNIST's images, odd digits against even ones, by
the loss of as many validation rows; `cleaning` a weight for each training row, a quarter of whose labels are wrong.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
from sklearn.linear_model import LogisticRegression
from xvarpro_experiments.datasets import find_mnist, mnist, read_idx

import xvarpro as xv

LOW, HIGH = -4.0, 9.0  # of logarithms of penalties


def digits(rows: int, pool: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """MNIST's first training images as rows, with means of pool x pool pixels, and their labels."""
    path = find_mnist()
    assert path is not None, "set XVARPRO_DATA to a folder with MNIST"
    X = mnist(path, rows).X.T.reshape(rows, 28 // pool, pool, 28 // pool, pool).mean(axis=(2, 4))
    return X.reshape(rows, -1), read_idx(path.parent / path.name.replace("images-idx3", "labels-idx1"))[:rows]


class Clock:
    """Values by CPU seconds since it was made."""

    def __init__(self) -> None:
        self.start, self.seen = time.process_time(), []

    def note(self, value: float, theta: Any) -> None:
        self.seen.append((time.process_time() - self.start, float(value), np.array(theta)))

    def reached(self, target: float) -> float:
        return next((s for s, value, _ in self.seen if value <= target), np.inf)

    @property
    def best(self) -> tuple[float, float, np.ndarray]:
        return min(self.seen, key=lambda found: found[1])


# -- penalties ---------------------------------------------------------------------------------------------------------


class Penalties:
    """A logistic regression with a penalty for each group of features, its training and its validation rows."""

    def __init__(self, rows: int) -> None:
        X, labels = digits(2 * rows)
        X = 4.0 * (X - X.mean(axis=0))
        self.A, self.B = X[:rows], X[rows:]
        self.y, self.z = np.split((labels % 2).astype(float), 2)
        row, column = np.divmod(np.arange(X.shape[1]), 14)
        self.groups = np.eye(16)[(row * 4 // 14) * 4 + column * 4 // 14]
        self.theta0 = np.full(16, 2.0)

    def lower(self, theta: np.ndarray, w: np.ndarray) -> tuple[float, np.ndarray]:
        lam, z = np.exp(self.groups @ theta), self.A @ w
        value = np.sum(np.logaddexp(0, z) - self.y * z) + 0.5 * np.sum(lam * w**2)
        return value, self.A.T @ (sigmoid(z) - self.y) + lam * w

    def upper(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        z = self.B @ w
        return float(np.sum(np.logaddexp(0, z) - self.z * z)), self.B.T @ (sigmoid(z) - self.z)

    def hessian(self, theta: np.ndarray, w: np.ndarray) -> np.ndarray:
        p = sigmoid(self.A @ w)
        return (self.A.T * (p * (1 - p))) @ self.A + np.diag(np.exp(self.groups @ theta))

    def implicit(self, theta: np.ndarray, w: np.ndarray) -> tuple[float, np.ndarray]:
        value, g = self.upper(w)
        v = scipy.linalg.solve(self.hessian(theta, w), g, assume_a="pos")
        return value, -self.groups.T @ (np.exp(self.groups @ theta) * w * v)

    # -- who competes

    def ours(self, clock: Clock, tol: float) -> None:
        def ridge(theta: Any, data: Any) -> Any:
            xp = xv.array_namespace(theta)
            return xp.exp(data["groups"] @ xp.expand_dims(theta, axis=1))

        problem = xv.bilevel(
            lower=xv.Level(lambda theta, data: data["A"], self.y, lam=ridge, loss="logistic"),
            upper=xv.Level(lambda theta, data: data["B"], self.z, loss="logistic"),
            data={"A": self.A, "B": self.B, "groups": self.groups},
        )
        xv.solve(
            problem,
            self.theta0,
            over=xv.sets.Box(LOW, HIGH),
            tol=tol,
            callback=lambda info: clock.note(info.value, info.theta),
            progress=False,
        )

    def by_hand(self, clock: Clock, inner: Callable[[np.ndarray, np.ndarray], np.ndarray], **options: Any) -> None:
        w = [np.zeros(self.A.shape[1])]

        def fun(theta: np.ndarray) -> tuple[float, np.ndarray]:
            w[0] = inner(theta, w[0])
            value, gradient = self.implicit(theta, w[0])
            clock.note(value, theta)
            return value, gradient

        bounds = [(LOW, HIGH)] * 16
        scipy.optimize.minimize(fun, self.theta0, jac=True, bounds=bounds, method="L-BFGS-B", options=options)

    def lbfgs(self, gtol: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        def inner(theta: np.ndarray, w: np.ndarray) -> np.ndarray:
            options = {"gtol": gtol, "ftol": 0, "maxiter": 5000, "maxfun": 10000, "maxcor": 30}
            return scipy.optimize.minimize(
                lambda w: self.lower(theta, w), w, jac=True, method="L-BFGS-B", options=options
            ).x

        return inner

    def newton(self, gtol: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        def inner(theta: np.ndarray, w: np.ndarray) -> np.ndarray:
            for _ in range(50):
                value, g = self.lower(theta, w)
                if np.abs(g).max() <= gtol:
                    break
                d, t = scipy.linalg.solve(self.hessian(theta, w), g, assume_a="pos"), 1.0
                while self.lower(theta, w - t * d)[0] > value + 1e-12 * abs(value) and t > 1e-6:
                    t *= 0.5
                w = w - t * d
            return w

        return inner

    def one_for_all(self, clock: Clock) -> None:
        """A grid of one penalty for all, by scikit-learn, then one pass over groups, each on a grid around the best."""

        def value(theta: np.ndarray) -> float:
            scale = np.exp(-0.5 * self.groups @ theta)
            model = LogisticRegression(C=1.0, fit_intercept=False, solver="newton-cholesky", tol=1e-6)
            w = scale * model.fit(self.A * scale, self.y).coef_[0]
            found = self.upper(w)[0]
            clock.note(found, theta)
            return found

        best = min((np.full(16, s) for s in np.linspace(LOW, HIGH, 27)), key=value)
        print(f"one penalty for all: {clock.best[1]:.4f} after {clock.seen[-1][0]:.2f} s")
        for _ in range(3):
            for j in range(16):
                trials = [best + step * np.eye(16)[j] for step in (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)]
                best = min((np.clip(theta, LOW, HIGH) for theta in trials), key=value)

    def jaxopt(self, clock: Clock, gtol: float) -> None:
        """Implicit differentiation by JAXopt; the clock begins after compilation."""
        import jax
        import jaxopt

        jax.config.update("jax_enable_x64", True)
        A, B, y, z, groups = map(jax.numpy.asarray, (self.A, self.B, self.y, self.z, self.groups))

        def loss(w: Any, theta: Any) -> Any:
            mu = A @ w
            return jax.numpy.sum(jax.nn.softplus(mu) - y * mu) + 0.5 * jax.numpy.sum(
                jax.numpy.exp(groups @ theta) * w**2
            )

        solver = jaxopt.LBFGS(loss, tol=gtol, maxiter=2000, history_size=30)

        def upper(theta: Any, w0: Any) -> Any:
            w = solver.run(w0, theta).params
            mu = B @ w
            return jax.numpy.sum(jax.nn.softplus(mu) - z * mu), w

        fun = jax.jit(jax.value_and_grad(upper, has_aux=True))
        w = [jax.numpy.zeros(A.shape[1])]
        jax.block_until_ready(fun(jax.numpy.asarray(self.theta0), w[0]))
        clock.start = time.process_time()

        def step(theta: np.ndarray) -> tuple[float, np.ndarray]:
            (value, w[0]), gradient = fun(jax.numpy.asarray(theta), w[0])
            clock.note(float(value), theta)
            return float(value), np.asarray(gradient)

        scipy.optimize.minimize(step, self.theta0, jac=True, bounds=[(LOW, HIGH)] * 16, method="L-BFGS-B")


def sigmoid(z: np.ndarray) -> np.ndarray:
    return scipy.special.expit(z)


def penalties(rows: int) -> None:
    given = Penalties(rows)
    entrants: dict[str, Callable[[Clock], None]] = {}
    for tol in (1e-2, 1e-4):
        entrants[f"xvarpro, tol {tol:g}"] = lambda clock, tol=tol: given.ours(clock, tol)
    for gtol in (1e-1, 1e-2, 1e-4, 1e-6):
        entrants[f"L-BFGS below to {gtol:g}, by hand"] = lambda clock, g=gtol: given.by_hand(clock, given.lbfgs(g))
    for gtol in (1e-2, 1e-6):
        entrants[f"Newton below to {gtol:g}, by hand"] = lambda clock, g=gtol: given.by_hand(clock, given.newton(g))
    for gtol in (1e-1, 1e-3):
        entrants[f"JAXopt, L-BFGS to {gtol:g}"] = lambda clock, g=gtol: given.jaxopt(clock, g)
    entrants["grid, then coordinates"] = given.one_for_all
    clocks = {}
    for name, run in entrants.items():
        clocks[name] = Clock()
        try:
            run(clocks[name])
        except ImportError as error:
            print(name, error)
            del clocks[name]
    exact = {
        name: given.upper(given.newton(1e-10)(clock.best[2], np.zeros(given.A.shape[1])))[0]
        for name, clock in clocks.items()
    }
    best = min(exact.values())
    print("method | loss at its theta | s to 1 % | s to 0.1 % | s to 0.01 % | evaluations | s in all")
    for name, clock in clocks.items():
        times = " | ".join(f"{clock.reached(best * (1 + a)):.2f}" for a in (1e-2, 1e-3, 1e-4))
        print(f"{name} | {exact[name]:.4f} | {times} | {len(clock.seen)} | {clock.seen[-1][0]:.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("penalties", "cleaning"))
    parser.add_argument("--rows", type=int, default=1000)
    given = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        globals()[given.part](given.rows)
