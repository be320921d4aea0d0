"""How exact the reduced gradient is: lower-level solvers on every backend, next to autodiff, against 50 digits.

python benchmarks/accuracy.py [--draws 24]       some minutes; of one draw more than half a minute of a processor

Designs are ``M(theta) = A + sum theta_k B_k`` at theta = 0 with arrays of the dtype, so that the problem handed over
is exact and all error is the algorithm's. The promises are checked here; the exit status says whether one is broken.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np

import xvarpro as xv
from xvarpro import lower
from xvarpro.lower.interface import LowerSolver

ROWS, COLUMNS, UPPER_ROWS, PARAMETERS = 24, 6, 20, 5
DIGITS = 50
BACKENDS = ("numpy", "torch", "jax")
CONDITIONS = {"float64": (1e1, 1e2, 1e4, 1e6, 1e8, 1e10, 1e12), "float32": (1e1, 1e2, 1e3, 1e5, 1e8)}
# with square roots that are exact: rounding them would be an error of the problem
RIDGES = {"float64": 2.0**-34, "float32": 2.0**-16}
SMALL = {"float64": 1e-8, "float32": 1e-4}
VANISHING = (2.0**-14, 2.0**-26, 2.0**-40, 2.0**-60, 2.0**-100, 0.0)


class Case(NamedTuple):
    """One kind of problem; `residual` is the size of what the lower level does not fit, next to what it does."""

    bilevel: bool
    residual: float
    lam: float
    dtype: str
    wide: bool = False

    def __str__(self) -> str:
        levels = f"bilevel, lower residual {self.residual:g}" if self.bilevel else "separable"
        ridge = f"lam = 2^{np.log2(self.lam):.0f}" if self.lam else "no ridge"
        return f"{self.dtype}, {'wide, ' if self.wide else ''}{levels}, {ridge}"


class Draw(NamedTuple):
    """Arrays of the lower level, and of the upper one where there is one: design, its directions, target, its own."""

    A: np.ndarray
    B: np.ndarray
    y: np.ndarray
    C: np.ndarray
    AU: np.ndarray | None = None
    BU: np.ndarray | None = None
    yU: np.ndarray | None = None
    CU: np.ndarray | None = None

    def condition(self, lam: float) -> float:
        """2-norm condition number of the matrix that is factored, the dual one for a wide design."""
        s = np.sqrt(np.linalg.svd(self.A.astype(float), compute_uv=False) ** 2 + lam)
        return float(s.max() / s.min())


@cache
def draw(case: Case, cond: float, seed: int) -> Draw:
    rng = np.random.default_rng(seed)
    m, n = (COLUMNS, ROWS) if case.wide else (ROWS, COLUMNS)
    k = min(m, n)
    U = np.linalg.qr(rng.normal(size=(m, k)))[0]
    V = np.linalg.qr(rng.normal(size=(n, k)))[0]
    A = ((U * np.logspace(0, -np.log10(cond), k)) @ V.T).astype(case.dtype)
    B, C = rng.normal(size=(PARAMETERS, m, n)), rng.normal(size=(PARAMETERS, m))
    y = A @ rng.normal(size=n) + case.residual * rng.normal(size=m)
    arrays = [A, B, y, C]
    if case.bilevel:
        arrays += [rng.normal(size=s) for s in ((UPPER_ROWS, n), (PARAMETERS, UPPER_ROWS, n))]
        arrays += [rng.normal(size=s) for s in ((UPPER_ROWS,), (PARAMETERS, UPPER_ROWS))]
    return Draw(*(x.astype(case.dtype) for x in arrays))


@cache
def reference(case: Case, cond: float, seed: int) -> np.ndarray:
    """The gradient from `DIGITS` digits, of which normal equations lose twice those of the condition, at most 24.

    Derivatives of w are taken forwards, along every parameter, which no method under test does.
    """
    with mp.workdps(DIGITS):
        A, B, y, C, AU, BU, yU, CU = (None if x is None else _exact(x) for x in draw(case, cond, seed))
        lam = mp.mpf(case.lam)
        w, derivative = _wide(A, y, lam) if case.wide else _tall(A, y, lam)
        slopes = [derivative(dA, dy) for dA, dy in zip(B, C, strict=True)]
        if not case.bilevel:
            AU, BU, yU, CU = A, B, y, C
        r, own = AU * w - yU, 0 if case.bilevel else lam  # the ridge is a part of the value of one level
        pairs = zip(BU, CU, slopes, strict=True)
        return np.array([float(mp.fdot(r, AU * dw + dA * w - dy) + own * mp.fdot(w, dw)) for dA, dy, dw in pairs])


def _exact(x: np.ndarray) -> Any:
    """A vector or matrix in multiple precision; a list of them where there is one per parameter."""
    x = x.astype(float)
    return [mp.matrix(part.tolist()) for part in x] if x.shape[0] == PARAMETERS else mp.matrix(x.tolist())


def _tall(A: Any, y: Any, lam: Any) -> tuple[Any, Callable[[Any, Any], Any]]:
    H = A.T * A + lam * mp.eye(A.cols)
    w = mp.lu_solve(H, A.T * y)
    r = y - A * w
    return w, lambda dA, dy: mp.lu_solve(H, dA.T * r + A.T * (dy - dA * w))


def _wide(A: Any, y: Any, lam: Any) -> tuple[Any, Callable[[Any, Any], Any]]:
    K = A * A.T + lam * mp.eye(A.rows)
    a = mp.lu_solve(K, y)

    def derivative(dA: Any, dy: Any) -> Any:
        da = mp.lu_solve(K, dy - dA * (A.T * a) - A * (dA.T * a))
        return dA.T * a + A.T * da

    return A.T * a, derivative


SOLVERS = {"QR": lower.QR(), "DualQR": lower.DualQR()}


def moving(at: str, along: str) -> Callable[[Any, Any], Any]:
    """An array of the data that theta moves along others."""

    def model(theta: Any, data: Any) -> Any:
        xp, x = xv.array_namespace(theta), data[at]
        return x + xp.sum(xp.reshape(theta, (theta.shape[0], *(1,) * x.ndim)) * data[along], axis=0)

    return model


LOWER = moving("A", "B"), moving("y", "C")
UPPER = moving("AU", "BU"), moving("yU", "CU")


def gradient(case: Case, data: Draw, solver: LowerSolver, backend: str) -> np.ndarray:
    """The package's gradient of the problem; NaN where the package says that there is none."""
    arrays = {name: x for name, x in data._asdict().items() if x is not None}
    if case.bilevel:
        level = xv.Level(*LOWER, lam=case.lam, solver=solver)
        problem = xv.bilevel(lower=level, upper=xv.Level(*UPPER), data=arrays)
    else:
        problem = xv.separable(*LOWER, data=arrays, lam=case.lam, solver=solver)
    value, slope = xv.value_and_gradient(problem, np.zeros(PARAMETERS, case.dtype), backend=backend)
    # no value, no answer: at such a point a solve ends with a status
    return slope if np.isfinite(value) else np.full_like(slope, np.nan)


def torch_gradient(how: str, case: Case, data: Draw) -> np.ndarray:
    import torch

    tensors = [None if x is None else torch.from_numpy(x) for x in data]
    theta = torch.zeros(PARAMETERS, dtype=tensors[0].dtype, requires_grad=True)

    def lstsq(M: Any, y: Any) -> Any:
        return torch.linalg.lstsq(M, y[:, None], driver="gels").solution[:, 0]

    _objective(torch, lstsq, how, case, theta, tensors).backward()
    return theta.grad.numpy()


def jax_gradient(how: str, case: Case, data: Draw) -> np.ndarray:
    import jax

    with jax.enable_x64(case.dtype == "float64"), jax.default_matmul_precision("highest"):
        return np.asarray(_jax_gradient(how, case)(np.zeros(PARAMETERS, case.dtype), tuple(data)))


@cache
def _jax_gradient(how: str, case: Case) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    def lstsq(M: Any, y: Any) -> Any:
        return jnp.linalg.lstsq(M, y, rcond=0.0)[0]

    return jax.jit(jax.grad(partial(_objective, jnp, lstsq, how, case)))


def _objective(xp: Any, lstsq: Any, how: str, case: Case, theta: Any, data: Any) -> Any:
    """No route truncates small singular values, which would only cost it digits."""

    def moved(at: Any, steps: Any) -> Any:
        return at + (theta @ steps.reshape(PARAMETERS, -1)).reshape(at.shape)

    A, B, y, C, AU, BU, yU, CU = data
    S, f = moved(A, B), moved(y, C)
    if case.lam:
        n = S.shape[1]
        S = xp.concatenate([S, case.lam**0.5 * xp.eye(n, dtype=S.dtype)])
        f = xp.concatenate([f, xp.zeros(n, dtype=S.dtype)])
    if how == "lstsq":
        w = lstsq(S, f)
    else:
        w = xp.linalg.pinv(S, rtol=0.0) @ f if how == "pinv" else xp.linalg.solve(S.T @ S, S.T @ f)
    r = moved(AU, BU) @ w - moved(yU, CU) if case.bilevel else S @ w - f
    return 0.5 * (r * r).sum()


ROUTES = ("pinv", "lstsq", "solve")
AUTODIFF: dict[str, Callable[[Case, Draw], np.ndarray]] = {
    f"autodiff {name} {how}": partial(run, how)
    for (name, run), how in product((("torch", torch_gradient), ("jax", jax_gradient)), ROUTES)
}


def through_normal_pinv(case: Case, data: Draw) -> np.ndarray:
    """The adjoint with a pseudo-inverse of the n x n normal matrix: what the dual form is there to replace."""
    A, B, y, C, AU, BU, yU, CU = (x.astype(float) for x in data)
    P = np.linalg.pinv(A.T @ A + case.lam * np.eye(A.shape[1]))
    w = P @ (A.T @ y)
    r, s = A @ w - y, AU @ w - yU
    v = P @ (AU.T @ s)
    return np.array([s @ (BU[k] @ w - CU[k]) - (B[k] @ w - C[k]) @ (A @ v) - r @ (B[k] @ v) for k in range(len(B))])


def measure(run: Callable[[Case, Draw], Any], case: Case, cond: float, draws: int) -> np.ndarray:
    """Relative errors of a method over the draws; inf where it has no answer."""
    errors = []
    for seed in range(draws):
        want = reference(case, cond, seed)
        try:
            with np.errstate(all="ignore"):
                got = np.asarray(run(case, draw(case, cond, seed)), dtype=float)
        except Exception:
            if run not in AUTODIFF.values():
                raise
            got = np.full_like(want, np.nan)  # the frameworks raise what they like where they give up
        errors.append(np.linalg.norm(got - want) / np.linalg.norm(want) if np.isfinite(got).all() else np.inf)
    return np.array(errors)


OURS = {
    f"{name} {backend}": partial(gradient, solver=solver, backend=backend)
    for (name, solver), backend in product(SOLVERS.items(), BACKENDS)
}


class Table(NamedTuple):
    """Errors of every method on one kind of problem: by name an array (condition, draw)."""

    case: Case
    conditions: tuple[float, ...]
    factored: np.ndarray  # condition of the matrix that is factored, ridge included: (condition, draw)
    errors: dict[str, np.ndarray]

    def best_rival(self) -> np.ndarray:
        """The median of the autodiff route that is the best, for every condition anew."""
        return np.min([np.median(self.errors[name], axis=1) for name in AUTODIFF], axis=0)


def tables(draws: int) -> Iterator[Table]:
    for dtype, conditions in CONDITIONS.items():
        for lam in (0.0, RIDGES[dtype]):
            kinds = [Case(False, 1.0, lam, dtype), *(Case(True, r, lam, dtype) for r in (1.0, SMALL[dtype]))]
            for case in [*kinds, Case(True, 1.0, lam, dtype, wide=True)]:
                factored = [[draw(case, cond, seed).condition(lam) for seed in range(draws)] for cond in conditions]
                errors = {
                    name: np.array([measure(run, case, cond, draws) for cond in conditions])
                    for name, run in (OURS | AUTODIFF).items()
                }
                yield Table(case, conditions, np.array(factored), errors)


def vanishing(draws: int, cond: float = 1e2) -> dict[str, np.ndarray]:
    """Errors on wide problems in float64 while the ridge goes to zero, by method: (ridge, draw)."""
    runs = {name: run for name, run in OURS.items() if name.startswith("DualQR")}
    runs["pseudo-inverse of the normal matrix"] = through_normal_pinv
    cases = [Case(True, 1.0, lam, "float64", wide=True) for lam in VANISHING]
    return {name: np.array([measure(run, case, cond, draws) for case in cases]) for name, run in runs.items()}


class Bar(NamedTuple):
    """A promise, the worst ratio measured against what it allows, and where that was."""

    text: str
    allowed: float
    worst: float
    where: str

    @property
    def met(self) -> bool:
        return bool(self.worst <= self.allowed)

    def __str__(self) -> str:
        worst = f"{self.worst:.2g}" if self.met else f"**broken**: {self.worst:.2g}"
        return f"| {self.text} | {self.allowed:g} | {worst} | {self.where} |"


def bars(found: list[Table], limits: dict[str, np.ndarray]) -> list[Bar]:
    """What is promised of the gradient, checked. Where a solver refuses to answer it is not wrong."""
    eps = {dtype: float(np.finfo(dtype).eps) for dtype in CONDITIONS}
    within: dict[str, list[tuple[float, str]]] = {"float64": [], "float32": []}
    default, small = [], []
    for t, backend in product(found, BACKENDS):
        errors, where = t.errors[f"{'DualQR' if t.case.wide else 'QR'} {backend}"], f"{t.case}, {backend}"
        ratios = errors.max(axis=1) / (eps[t.case.dtype] * t.factored.max(axis=1))
        within[t.case.dtype].append(_worst(ratios, errors, t, where))
        default.append(_worst(np.median(errors, axis=1) / t.best_rival(), errors, t, where))
        if t.case.bilevel and t.case.residual < 1 and t.case.dtype == "float64":
            small.append(default[-1])
    ours = np.max([x.max() for name, x in limits.items() if name.startswith("DualQR")])
    naive = np.median(limits["pseudo-inverse of the normal matrix"][-1])
    return [
        *(
            Bar(f"error of `QR` and `DualQR` in {dtype}, in every draw, over eps cond", most, *max(within[dtype]))
            for dtype, most in (("float64", 10.0), ("float32", 30.0))
            if within[dtype]
        ),
        Bar(
            f"the same on wide designs as lam goes to 0; the pseudo-inverse of the normal matrix: off by {naive:.2g}",
            10.0,
            ours / (eps["float64"] * 1e2),
            "wide, cond 1e2",
        ),
        Bar("their median error, over that of the best autodiff route", 3.0, *max(default)),
        Bar("the same for two levels with a small lower residual, in float64", 1.0, *max(small)),
    ]


def _worst(ratios: np.ndarray, errors: np.ndarray, table: Table, where: str) -> tuple[float, str]:
    ratios = np.where(np.isfinite(errors).all(axis=1), ratios, -np.inf)
    i = int(np.argmax(ratios))
    return float(ratios[i]), f"{where}, cond {table.conditions[i]:.0e}"


def show(title: str, errors: dict[str, np.ndarray]) -> None:
    """Print the median error of every method, a column for each condition or ridge."""
    print(f"\n{title}")
    for name, values in errors.items():
        print(f"{name:36}", *(f"{x:7.0e}" for x in np.median(values, axis=1)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=24)
    args = parser.parse_args()
    found, limits = list(tables(args.draws)), vanishing(args.draws)
    show(f"wide, cond 1e2, ridges {VANISHING}", limits)
    for t in found:
        show(f"{t.case}, conditions {t.conditions}", t.errors)
    kept = bars(found, limits)
    print("\n".join(map(str, kept)))
    return 0 if all(bar.met for bar in kept) else 1


if __name__ == "__main__":
    sys.exit(main())
