"""Answers, standard errors and statuses of `solve_many` against those of `solve`, in random problems of every kind.

python benchmarks/many_against_one.py [--problems 1000] [--batches 4] [--kinds free poisson]
                                      [--backends numpy torch jax] [--alone own] [--dtype float64] [--tol 1e-9] [--show]

It takes about two hours, of which NumPy half an hour, and with ``--problems 40 --backends numpy`` about a minute. A
row counts what agrees in theta and in errors; `--show` prints what differs. What `solve` answers is found once, on
NumPy, for all backends; with `--alone own` on each. Theta and w are compared in standard errors of the problem alone,
and these errors relative to themselves, where both solves succeed. Open problems, where a rate has an error above its
size, as where two are one or one has no weight, are counted apart; where all rates are open, errors are not compared.
Those that share a rate are compared with one solve of all; kinds without a batch, such as `l1`, are alone in either.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from many import START, decay, decays

import xvarpro as xv
from xvarpro.core.status import Status
from xvarpro.core.trees import leaves
from xvarpro.errors import XvarproError

END = 20.0
GOOD = [status.code for status in Status if status.success]
PROMISED = {"float64": (1e-6, 1e-6), "float32": (1e-2, 1e-2)}  # of theta, in standard errors, and of errors
OF = 5  # problems that share a rate


def turning(theta: Any, data: Any) -> Any:
    xp, t = xv.array_namespace(theta), data["t"]
    return decays(theta, data) * (xp.cos(3 * t) + 1j * xp.sin(3 * t))[None, :, None]


def sharing(theta: Any, data: Any) -> Any:
    xp = xv.array_namespace(theta["own"])
    return decays(xp.concat([theta["own"], theta["shared"]], axis=1), data)


def joined(theta: Any, data: Any) -> Any:
    """The designs of problems that share a rate, as one."""
    xp, own = xv.array_namespace(theta["own"]), theta["own"]
    designs = decays(xp.concat([own, xp.broadcast_to(theta["shared"][None, :], own.shape)], axis=1), data)
    (b, m, n), eye = designs.shape, xp.eye(own.shape[0], dtype=own.dtype)
    return xp.reshape(designs[:, :, None, :] * eye[:, None, :, None], (b * m, b * n))


class Kind(NamedTuple):
    """How the targets of a kind come from predictions; its other arguments."""

    drawn: str = "normal"
    W: Callable[[np.random.Generator], Any] = lambda rng: None
    loss: Callable[[float], Any] = lambda noise: None
    M: Any = decays
    columns: int = 0
    more: tuple[str, ...] = ()  # of weights, ridges, bounds, masks, and a weight that is 0 in half of the problems


def nonnegative(rng: np.random.Generator) -> Any:
    return xv.lower.Nonnegative()


def bounded(rng: np.random.Generator) -> Any:
    return xv.lower.Bounded(0.0, rng.uniform(0.6, 1.8))


def robust(make: Any) -> Callable[[float], Any]:
    return lambda noise: make(1.5 * noise)


def likelihood(make: Any) -> Callable[[float], Any]:
    return lambda noise: make()


LOGISTIC, POISSON = likelihood(xv.losses.Logistic), likelihood(xv.losses.Poisson)
KINDS = {
    "free": Kind(),
    "nonnegative": Kind(W=nonnegative),
    "closed": Kind(W=nonnegative, more=("closed",)),
    "bounded": Kind(W=bounded),
    "columns": Kind(columns=3),
    "weights": Kind(more=("weights",)),
    "masks": Kind(more=("masks",)),
    "ridges": Kind(more=("ridges",)),
    "bounds": Kind(more=("bounds",)),
    "all of these": Kind(W=nonnegative, columns=2, more=("weights", "ridges", "bounds")),
    "lifted": Kind(M=decay),
    "shared": Kind(M=sharing),
    "complex": Kind(M=turning),
    "complex, real w": Kind(W=nonnegative, M=turning),
    "simplex": Kind(W=lambda rng: xv.lower.Simplex(rng.uniform(1.0, 2.0))),
    "l1": Kind(W=lambda rng: xv.lower.L1(10.0 ** rng.uniform(-2.0, 0.0))),
    "equality": Kind(W=lambda rng: xv.lower.Equality(np.ones((1, 2)), rng.uniform(1.0, 3.0))),
    "affine": Kind(W=lambda rng: xv.lower.Affine(np.array([rng.uniform(1.0, 3.0), 0.0]), np.array([[1.0], [-1.0]]))),
    "fixed": Kind(W=lambda rng: xv.lower.Fixed(np.array([True, False]), rng.uniform(0.5, 1.5))),
    "huber": Kind("heavy", loss=robust(xv.losses.Huber)),
    "huber, bounded": Kind("heavy", bounded, robust(xv.losses.Huber)),
    "soft l1": Kind("heavy", loss=robust(xv.losses.SoftL1)),
    "soft l1, columns": Kind("heavy", nonnegative, robust(xv.losses.SoftL1), columns=2, more=("masks",)),
    "poisson": Kind("counts", loss=POISSON),
    "poisson, nonnegative": Kind("counts", nonnegative, POISSON, more=("masks",)),
    "log poisson": Kind("log counts", loss=likelihood(xv.losses.LogPoisson)),
    "logistic": Kind("yes or no", loss=LOGISTIC, more=("ridges",)),
    "squared hinge": Kind("signs", loss=likelihood(xv.losses.SquaredHinge), more=("ridges",)),
    "quantile": Kind("heavy", loss=lambda noise: xv.losses.Quantile(0.6, noise)),
    "cauchy": Kind("heavy", loss=robust(xv.losses.Cauchy)),
    "softmax": Kind("classes", loss=likelihood(xv.losses.Softmax), columns=3, more=("ridges",)),
}


def targets(drawn: str, z: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    if drawn == "normal":
        return z + noise * (rng.normal(size=z.shape) + (1j * rng.normal(size=z.shape) if np.iscomplexobj(z) else 0.0))
    if drawn == "heavy":
        return z + noise * rng.standard_t(3, z.shape)
    if drawn == "classes":
        return np.eye(z.shape[2])[np.argmax(z + rng.gumbel(size=z.shape), axis=2)]
    if drawn in ("yes or no", "signs"):
        yes = rng.uniform(size=z.shape) < 1 / (1 + np.exp(2.0 - 2.0 * z))
        return np.where(yes, 1.0, -1.0 if drawn == "signs" else 0.0)
    return rng.poisson(100.0 * z if drawn == "counts" else np.exp(z)).astype(float)


def drawn(kind: Kind, b: int, m: int, rng: np.random.Generator, dtype: str) -> tuple[Any, Any, Any]:
    """A batch: the problem, starts and sets."""
    t, rates = np.linspace(0.0, 2.0, m), np.stack([rng.uniform(0.5, 1.5, b), rng.uniform(3.0, 8.0, b)], axis=1)
    if kind.M is sharing:
        rates[:, 1] = rates[0, 1]
    designs = (turning if kind.M is turning else decays)(rates, {"t": t})
    w, noise = rng.uniform(0.3, 2.0, (b, 2, kind.columns or 1)), 10.0 ** rng.uniform(-3.0, -1.0)
    if "closed" in kind.more:
        w[::2, 1] = 0.0
    y, more, own = targets(kind.drawn, designs @ w, noise, rng), dict[str, Any](), (b, m, max(kind.columns, 1))
    own = (*own[:2], 1) if kind.drawn == "classes" else own
    if "weights" in kind.more:
        more["weights"] = rng.uniform(0.2, 1.0, own) * (rng.uniform(size=own) > 0.1)
    if "masks" in kind.more:
        more["weights"] = (rng.uniform(size=own) > 0.2).astype(float)
    if "ridges" in kind.more:
        more["lam"] = 10.0 ** rng.uniform(-3.0, -1.0, b)
    y = y if kind.columns else y[..., 0]
    if "weights" in more and not kind.columns:
        more["weights"] = more["weights"][..., 0]
    real = {name: x.astype(dtype) for name, x in more.items()}
    y = y.astype(np.result_type(np.complex64, dtype) if np.iscomplexobj(y) else dtype)
    given = {"W": kind.W(rng), "loss": kind.loss(noise), **real}
    problem = xv.separable(kind.M, xv.Each(y) if kind.M is decay else y, data={"t": t.astype(dtype)}, **given)
    over: Any = xv.sets.Box(0.0, END)
    if "bounds" in kind.more:
        lower = np.stack([rng.uniform(0.0, 1.0, b), rng.uniform(1.5, 3.9, b)], axis=1)
        upper = np.stack([rng.uniform(1.0, 2.0, b), rng.uniform(4.1, 9.0, b)], axis=1)
        lower[:, 0] = np.minimum(lower[:, 0], START[0])
        over = xv.sets.Box(xv.Each(lower.astype(dtype)), xv.Each(upper.astype(dtype)))
    if kind.M is decay:
        problem = xv.many.lifted(problem)
    start: Any = np.tile(START, (b, 1)).astype(dtype)
    if kind.M is sharing:
        start, over = {"own": xv.Each(start[:, :1]), "shared": start[0, 1:]}, {"own": over, "shared": over}
    return problem, start, over


class One(NamedTuple):
    """A problem's answers: vectors of theta, w, and their standard errors; none where it failed."""

    status: int
    theta: Any = None
    w: Any = None
    errors: Any = None
    of_w: Any = None


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.asarray(xv.backends.to_numpy(x), np.complex128).ravel() for x in leaves(tree)])


def one(solve: Callable[[], Any]) -> One:
    """The answers of one solve, which may refuse."""
    try:
        fit = solve()
        found = fit.statistics() if fit.status.success else None
    except XvarproError as error:
        return One(-1, str(error))
    if found is None:
        return One(fit.status.code)
    return One(fit.status.code, *map(flat, (fit.theta, fit.w, found.theta_stderr, found.w_stderr)))


def singles(problem: Any, start: Any, over: Any, options: dict[str, Any]) -> list[One]:
    if isinstance(start, dict):
        stated = xv.separable(joined, problem.lower.y.reshape(-1), data=problem.data)
        return [one(lambda: xv.solve(stated, {**start, "own": start["own"].array}, over, progress=False, **options))]
    own = ((xv.many.single(problem, i), start[i], xv.many.single(over, i)) for i in range(len(start)))
    return [one(lambda given=given: xv.solve(*given, progress=False, **options)) for given in own]


def many(problem: Any, start: Any, over: Any, options: dict[str, Any]) -> list[One]:
    fit = xv.solve_many(problem, start, over, progress=False, **options)
    found = fit.statistics()
    numbers = fit.theta, fit.w, found.theta_stderr, found.w_stderr
    if isinstance(start, dict):
        return [One(int(fit.status[0]), *map(flat, numbers))]
    return [One(int(code), *(flat(x[i]) for x in numbers)) for i, code in enumerate(fit.status)]


def off(a: np.ndarray, b: np.ndarray, size: np.ndarray) -> float:
    """The largest difference in units of `size`; what has none, such as 0 at a bound, by its own size."""
    a, b, size = (np.stack([x.real, x.imag]) for x in (a, b, size))
    size = np.where((size > 0) & np.isfinite(size), size, np.where(np.isfinite(b), np.abs(b), 1.0))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        found = np.where(same, 0.0, np.abs(a - b) / np.where(size > 0, size, 1.0))
    return float(np.max(np.where(np.isnan(found), np.inf, found), initial=0.0))


def is_open(a: One, b: One) -> bool:
    """Whether the data leave all of theta open: how much of w with it depends on the last digits of theta."""
    return not (np.isfinite(a.errors) | np.isfinite(b.errors)).any()


def compared(a: One, b: One) -> tuple[float, float, float]:
    """Differences of theta and w in standard errors, and of standard errors, relative to themselves.

    The two rates may have changed places.
    """
    if len(b.theta) == 2 and (a.theta.real[0] < a.theta.real[1]) != (b.theta.real[0] < b.theta.real[1]):
        b = One(b.status, *(x.reshape(2, -1)[::-1].ravel() for x in b[1:]))
    if is_open(a, b):
        return off(a.theta, b.theta, b.errors), 0.0, 0.0
    errors = max(off(a.errors, b.errors, b.errors), off(a.of_w, b.of_w, b.of_w))
    return off(a.theta, b.theta, b.errors), off(a.w, b.w, b.of_w), errors


class Tally:
    """What was found for a kind on a backend."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.pairs = args, Counter[tuple[int, int]]()
        self.found: list[tuple[float, float, float, bool]] = []

    def add(self, name: str, a: One, b: One) -> None:
        """A problem of a batch, and the same alone."""
        (of_theta, of_errors), good = PROMISED[self.args.dtype], a.status in GOOD and b.status in GOOD
        self.pairs[a.status, b.status] += 1
        off = compared(a, b) if good else (0.0, 0.0, 0.0)
        self.found += [(*off, all(np.all(abs(x.errors) <= abs(x.theta)) for x in (a, b)))] if good else []
        if self.args.show and (a.status != b.status or off[0] > of_theta or off[2] > of_errors):
            print(f"{name}: {off}", a, b, sep="\n  ", flush=True)

    def row(self, name: str, backend: str) -> str:
        (of_theta, of_errors), every = PROMISED[self.args.dtype], np.array(self.found).reshape(-1, 4)
        parts = [every[every[:, 3] == known, :3] for known in (1, 0)]
        counts = [f"{sum(x[:, 0] <= of_theta)} and {sum(x[:, 2] <= of_errors)} of {len(x)}" for x in parts]
        words = {status.code: status.name for status in Status} | {-1: "refused"}
        pairs = sorted(self.pairs.items())
        shown = ", ".join(f"{n} {words[a]}" + f" for {words[b]}" * (a != b) for (a, b), n in pairs)
        worst = " | ".join(f"{x:.0e}" for x in np.max(parts[0], axis=0, initial=0.0))
        unlike = sum(n for (a, b), n in pairs if a != b)
        return f"| {name} | {backend} | {'; open '.join(counts)} | {worst} | {unlike} | {shown} |"


def rows(name: str, args: argparse.Namespace) -> list[str]:
    tallies, shared = {backend: Tally(args) for backend in args.backends}, KINDS[name].M is sharing
    size = OF if shared else max(args.problems // args.batches, 1)
    for seed in range(max(args.problems // size, 1)):
        rng = np.random.default_rng([args.seed, list(KINDS).index(name), seed])
        m = 40 if shared else int(rng.integers(20, 60))
        given, alone = drawn(KINDS[name], size, m, rng, args.dtype), None
        for backend, tally in tallies.items():
            options = {"tol": args.tol, "backend": backend}
            if alone is None or args.alone == "own":
                alone = singles(*given, options if args.alone == "own" else {**options, "backend": "numpy"})
            for i, pair in enumerate(zip(many(*given, options), alone, strict=True)):
                tally.add(f"{name}, {backend}, batch {seed}, problem {i}", *pair)
    return [tally.row(name, backend) for backend, tally in tallies.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--batches", type=int, default=4, help="each of other shapes and constraints")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch", "jax"])
    parser.add_argument("--alone", default="numpy", choices=["numpy", "own"], help="the backend of single solves")
    parser.add_argument("--dtype", default="float64", choices=list(PROMISED))
    parser.add_argument("--tol", type=float, default=1e-9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| kind | backend | agree | theta | w | errors | other statuses | statuses |", "|---" * 8 + "|", sep="\n")
    for name in args.kinds:
        print(*rows(name, args), sep="\n", flush=True)


if __name__ == "__main__":
    main()
