"""Losses on two levels: penalties of a logistic regression, and wrong labels, against rivals.

[XVARPRO_DATA=folder] python benchmarks/losses.py penalties|cleaning|fewshot|network [--rows 1000] [--images cifar10]

CPU seconds. `penalties` learns one penalty for each of 16 regions of MNIST's images, odd digits against even ones, by
the loss of as many validation rows; `cleaning` a weight for each training row, a quarter of whose labels are wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse.linalg
import scipy.special
from sklearn.linear_model import LogisticRegression
from xvarpro_experiments import fewshot, race
from xvarpro_experiments.datasets import cifar10, find_mnist, mnist, read_idx
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.fewshot.accuracy import ACCURACY, notes
from xvarpro_experiments.fewshot.methods import Validated
from xvarpro_experiments.methods import Solver

import xvarpro as xv

LOW, HIGH = -4.0, 9.0  # of logarithms of penalties


def digits(rows: int, pool: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """MNIST's first training images as rows, with means of pool x pool pixels, and their labels."""
    path = find_mnist()
    assert path is not None, "set XVARPRO_DATA to a folder with MNIST"
    X = mnist(path, rows).X.T.reshape(rows, 28 // pool, pool, 28 // pool, pool).mean(axis=(2, 4))
    return X.reshape(rows, -1), read_idx(path.parent / path.name.replace("images-idx3", "labels-idx1"))[:rows]


def photographs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-10's first training images as rows, means of 4 x 4 pixels in three colours, and their labels."""
    found = cifar10(samples=rows)
    return found.images.reshape(rows, 3, 8, 4, 8, 4).mean(axis=(3, 5)).reshape(rows, -1) / 255, found.labels


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
    """Training and validation rows, and who competes on them."""

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

    def ours(self, clock: Clock, tol: float, algorithm: Any) -> None:
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
            algorithm=algorithm,
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
        entrants[f"xvarpro, tol {tol:g}"] = lambda clock, tol=tol: given.ours(clock, tol, None)
    soon = xv.algorithms.ProjectedQuasiNewton(settle=0)
    entrants["xvarpro, quasi-Newton from the start"] = lambda clock: given.ours(clock, 1e-4, soon)
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


# -- cleaning ----------------------------------------------------------------------------------------------------------


def cleaning(rows: int, wrong: float = 0.25, lam: float = 1.0) -> None:
    """Weights of rows as theta: targets are weights times classes, so that a loss has that weight."""
    X, labels = digits(3 * rows, pool=4)
    X = np.hstack([4.0 * (X - X.mean(axis=0)), np.ones((3 * rows, 1))])
    rng = np.random.default_rng(0)
    bad = rng.permutation(np.arange(rows) < wrong * rows)
    seen = np.where(bad, (labels[:rows] + rng.integers(1, 10, rows)) % 10, labels[:rows])
    (A, B, T), Y, Z = np.split(X, 3), np.eye(10)[seen], np.eye(10)[labels[rows : 2 * rows]]
    kept = int(rows * (1 - wrong))
    problem = xv.bilevel(
        lower=xv.Level(
            lambda theta, data: data["A"],
            lambda theta, data: xv.array_namespace(theta).expand_dims(theta, axis=1) * data["Y"],
            lam=lam,
            loss="softmax",
        ),
        upper=xv.Level(lambda theta, data: data["B"], Z, loss="softmax"),
        data={"A": A, "B": B, "Y": Y},
    )

    def below(theta: np.ndarray, w: np.ndarray, gtol: float) -> np.ndarray:
        def fun(w: np.ndarray) -> tuple[float, np.ndarray]:
            W = w.reshape(A.shape[1], 10)
            value, slope = cross_entropy(A @ W, theta[:, None] * Y)
            return value + 0.5 * lam * np.sum(W**2), (A.T @ slope + lam * W).ravel()

        options = {"gtol": gtol, "ftol": 0, "maxiter": 2000, "maxcor": 20}
        return scipy.optimize.minimize(fun, w, jac=True, method="L-BFGS-B", options=options).x

    def fitted(theta: np.ndarray, where: str) -> str:
        W = below(theta, np.zeros(A.shape[1] * 10), 1e-6).reshape(-1, 10)
        right = np.mean(np.argmax(T @ W, axis=1) == labels[2 * rows :])
        return f"{where}: validation loss {cross_entropy(B @ W, Z)[0]:.1f}, accuracy of other rows {right:.3f}"

    def found(order: np.ndarray) -> str:
        return f"{100 * np.mean(bad[np.argsort(order, kind='stable')[: rows - kept]]):.1f} % found"

    def report(name: str, clock: Clock) -> None:
        print(fitted(clock.best[2], name), found(clock.best[2]), len(clock.seen), "values", end=":")
        for value in (1000.0, 800.0, 700.0, 650.0, 620.0, 600.0, 590.0):
            at = next((at for at in clock.seen if at[1] <= value), None)
            if at is not None:
                print(f" {value:g} after {at[0]:.2f} s, {found(at[2])};", end="")
        print(f" {clock.seen[-1][0]:.2f} s in all", flush=True)

    theta0 = np.full(rows, kept / rows)
    C = xv.sets.UnitHypersimplex(kept)
    print(fitted(np.ones(rows), "all rows"), fitted(1.0 - bad, "right rows"), fitted(theta0, "start"), sep="\n")
    for name, (D, y) in {"all": (A, seen), "validation": (B, labels[rows : 2 * rows])}.items():
        model = LogisticRegression(C=1 / lam, fit_intercept=False, max_iter=500).fit(D, y)
        print("least likely under the fit of", name, "rows:", found(model.predict_proba(A)[np.arange(rows), seen]))
    for name, algorithm in {"the default": None, "spectral": xv.algorithms.SpectralProjectedGradient()}.items():
        clock = Clock()
        xv.solve(
            problem,
            theta0,
            over=C,
            algorithm=algorithm,
            max_iter=40,
            tol=1e-2,
            progress=False,
            callback=lambda info, clock=clock: clock.note(info.value, info.theta),
        )
        report(f"xvarpro, {name}", clock)
    for gtol in (1.0,):
        for rate in (1e-2, 3e-2, 1e-1):
            clock, theta, w = Clock(), theta0, np.zeros(A.shape[1] * 10)
            while clock.seen == [] or (len(clock.seen) < 100 and clock.seen[-1][0] < 12):
                w = below(theta, w, gtol)
                W = w.reshape(-1, 10)
                P = scipy.special.softmax(A @ W, axis=1)
                value, slope = cross_entropy(B @ W, Z)
                clock.note(value, theta)

                def hessian(v: np.ndarray, W: Any = W, P: Any = P, theta: Any = theta) -> np.ndarray:
                    V = v.reshape(W.shape)
                    D = A @ V
                    return (A.T @ (theta[:, None] * P * (D - np.sum(P * D, axis=1, keepdims=True))) + lam * V).ravel()

                H = scipy.sparse.linalg.LinearOperator((w.size, w.size), matvec=hessian, dtype=float)
                v, _ = scipy.sparse.linalg.cg(H, (B.T @ slope).ravel(), rtol=1e-3, maxiter=200)
                g = -np.sum((P - Y) * (A @ v.reshape(W.shape)), axis=1)
                theta = np.asarray(C.project(theta - rate * g / np.abs(g).mean()))
            report(f"projected gradient, L-BFGS below to {gtol:g}, step {rate:g}", clock)


# -- networks ----------------------------------------------------------------------------------------------------------


def network(rows: int, images: str, seconds: float = 5.0, ridge: float = 1e-3) -> None:
    """A tanh layer of 32 units and a softmax head: eliminated, against end-to-end Adam on the same objective."""
    import torch

    torch.set_num_threads(1)

    X, labels = digits(rows) if images == "mnist" else photographs(rows)
    X = 4.0 * (X - X.mean(axis=0))
    Y, lam, n = np.eye(10)[labels], ridge * rows, X.shape[1]
    rng = np.random.default_rng(0)
    theta0 = {"A": rng.normal(size=(n, 32)) / n**0.5, "b": np.zeros(32)}

    def design(theta: Any, data: Any) -> Any:
        xp = xv.array_namespace(theta)
        H = xp.tanh(data @ theta["A"] + theta["b"])
        return xp.concat([H, xp.ones_like(H[:, :1])], axis=1)

    def weight(theta: Any) -> Any:
        return xv.array_namespace(theta).sum(theta["A"] ** 2)

    problem = xv.separable(design, Y, data=X, lam=lam, R=weight, mu=lam, loss="softmax")
    clocks = {}
    for name in ("numpy", "torch"):
        clock = clocks[f"head eliminated, {name}"] = Clock()
        xv.solve(
            problem,
            theta0,
            backend=name,
            max_iter=400,
            tol=1e-3,
            progress=False,
            callback=lambda info, clock=clock: clock.note(info.value, 0.0) or clock.seen[-1][0] > seconds,
        )
    A, T = torch.asarray(X), torch.asarray(labels.astype(np.int64))
    for batch in (256, rows):
        for rate in (1e-3, 3e-3, 1e-2, 3e-2):
            torch.manual_seed(0)
            x = [torch.asarray(v).clone().requires_grad_() for v in (theta0["A"], theta0["b"], np.zeros((33, 10)))]
            adam, clock, lost = torch.optim.Adam(x, rate), Clock(), 0.0

            def loss(at: Any, x: Any = x) -> Any:
                H = torch.tanh(A[at] @ x[0] + x[1])
                terms = torch.nn.functional.cross_entropy(H @ x[2][:-1] + x[2][-1], T[at], reduction="sum")
                return terms * (rows / len(T[at])) + 0.5 * lam * ((x[0] ** 2).sum() + (x[2] ** 2).sum())

            while not clock.seen or clock.seen[-1][0] < seconds:
                for at in torch.randperm(rows).split(batch):
                    adam.zero_grad()
                    loss(at).backward()
                    adam.step()
                begun = time.process_time()
                with torch.no_grad():
                    value = float(loss(slice(None)))
                clock.seen.append((begun - clock.start - lost, value, 0.0))
                lost += time.process_time() - begun
            clocks[f"Adam, batches of {batch}, rate {rate:g}"] = clock
    best = min(clock.best[1] for clock in clocks.values())
    print("method | s to 20 % | 5 % | 1 % above the best | best | values")
    for name, clock in clocks.items():
        times = " | ".join(f"{clock.reached(best * (1 + a)):.2f}" for a in (0.2, 0.05, 0.01))
        print(f"{name} | {times} | {clock.best[1]:.2f} | {len(clock.seen)}")


# -- few shots ---------------------------------------------------------------------------------------------------------


def fewshots(episodes: int) -> None:
    """The episodes of digits of the few-shot experiment: heads by least squares and by cross-entropy."""
    found = fewshot.experiment("digits", validation=2)
    validation = found.methods[0].episodes
    K = len(found.task(0).splits[0].Y[0])

    def softmax(task: Any, lam: float, split: bool) -> xv.Problem:
        below, above = task.splits if split else (None, None)
        if not split:
            X, Y = task.shots
            return xv.separable(
                Features(task.features, "all"), Y + 1 / K, data={"all": X}, lam=lam * task.lam, loss="softmax"
            )
        return xv.bilevel(
            lower=xv.Level(Features(task.features, "lower"), below.Y + 1 / K, lam=lam * task.lam, loss="softmax"),
            upper=xv.Level(Features(task.features, "upper"), above.Y + 1 / K, loss="softmax"),
            data={"lower": below.X, "upper": above.X},
        )

    methods = [m for m in found.methods if "default" in m.name or m.name == "frozen ridge"]
    for split in (False, True):
        trials = tuple(
            Solver(f"ridge times {lam:g}", "ours", None, lambda task, lam=lam, split=split: softmax(task, lam, split))
            for lam in (1.0, 0.1, 0.01)
        )
        name = f"xvarpro's default, {'two splits' if split else 'one split'}, softmax"
        methods.append(Validated(name, "ours", trials, validation, ACCURACY))
    done = race.run(dataclasses.replace(found, methods=tuple(methods)), Budget(30, 20.0), range(100, 100 + episodes))
    print("\n".join(notes(done)))
    for name in done.names:
        print(name, done.of(name)[0].run_as[-60:])


@dataclasses.dataclass(frozen=True)
class Features:
    """The design of a split."""

    features: Any
    split: str

    def __call__(self, theta: Any, data: Any) -> Any:
        return self.features(theta, data[self.split])


def cross_entropy(mu: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    below = mu - mu.max(axis=1, keepdims=True)
    log = np.log(np.exp(below).sum(axis=1, keepdims=True))
    return float(np.sum(y * (log - below))), y.sum(axis=1, keepdims=True) * np.exp(below - log) - y


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("penalties", "cleaning", "fewshot", "network"))
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--lam", type=float, default=1.0)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--images", choices=("mnist", "cifar10"), default="mnist")
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if given.part == "fewshot":
            fewshots(given.episodes)
        elif given.part == "network":
            network(given.rows, given.images, given.seconds)
        elif given.part == "cleaning":
            cleaning(given.rows, lam=given.lam)
        else:
            penalties(given.rows)
