"""Estimators next to scikit-learn's: same data and objective, in one process, in turns; final objectives and CPU time.

python benchmarks/estimators.py [--rows nmf dictionary alive used archetypes] [--seeds 3]

MNIST is read from XVARPRO_DATA; without it the rows of digits are all. Objectives are halves of squared residuals, plus
the penalty on codes that are exact for the atoms, for both sides.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import NMF, MiniBatchDictionaryLearning
from xvarpro_experiments.datasets import grey

import xvarpro as xv
from xvarpro import sklearn as ours

BUDGETS = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0)  # seconds of the processor


def data() -> Iterator[tuple[str, np.ndarray]]:
    yield "digits", load_digits().data / 16.0
    path = grey.find_mnist()
    if path is not None:
        yield "MNIST", np.ascontiguousarray(grey.mnist(path, 3000).X.T)


def timed(fun: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    found = fun()
    return time.process_time() - began, found


def row(*cells: object) -> None:
    print("| " + " | ".join(f"{c:.4g}" if isinstance(c, float) else str(c) for c in cells) + " |", flush=True)


def head(*cells: str) -> None:
    print()
    row(*cells)
    print("|" + "---|" * len(cells))


def nmf(seeds: int) -> None:
    head(
        "NMF", "atoms", "seed", "scikit-learn, s", "ours over it", "scikit-learn's objective", "ours over it", "gap", ""
    )
    for name, X in data():
        n = {"digits": 16, "MNIST": 40}[name]
        for seed in range(seeds):
            theirs, rival = timed(lambda X=X, n=n, s=seed: NMF(n, init="nndsvda", max_iter=5000, random_state=s).fit(X))
            mine, fit = timed(lambda X=X, n=n, s=seed: ours.NMF(n, random_state=s).fit(X))
            value = 0.5 * float(rival.reconstruction_err_) ** 2
            gap = fit.gap_ / fit.objective_
            cells = (theirs, mine / theirs, f"{value:.2f}", f"{fit.objective_ / value:.5f}", f"{gap:.1e}")
            row(name, n, seed, *cells, fit.status_.name)


def exact(X: np.ndarray, atoms: np.ndarray, alpha: float, nonnegative: bool = False) -> tuple[float, int]:
    """Objective with exact codes and atoms in use, for atoms scaled into the unit ball."""
    D = (atoms / np.maximum(1.0, np.linalg.norm(atoms, axis=1, keepdims=True))).T
    problem = xv.separable(
        lambda theta, _: theta, np.ascontiguousarray(X.T), lam=1e-8, W=xv.lower.L1(alpha, nonnegative)
    )
    found = xv.solve_lower(problem, np.ascontiguousarray(D))
    return float(found.value), int((np.abs(found.w).max(axis=1) > 0).sum())


def ours_within(
    X: np.ndarray, n: int, alpha: float, seed: int, nonnegative: bool = False, budgets: Sequence[float] = BUDGETS
) -> list[np.ndarray]:
    """Atoms of a fit by sweeps for each budget: of nine tenths of it or more, or of all sweeps that the fit takes."""
    atoms, sweeps = [], 10
    for budget in budgets:
        while True:
            model = ours.ConstrainedDictionary(
                n, codes=xv.lower.L1(alpha, nonnegative), sweeps=sweeps, max_iter=0, random_state=seed
            )
            began = time.process_time()
            model.fit(X)
            spent = time.process_time() - began
            if spent <= budget and (spent >= 0.9 * budget or model.n_sweeps_ < sweeps):
                break
            sweeps = max(1, int(0.95 * sweeps * budget / spent))
        atoms.append(model.components_)
    return atoms


def theirs_within(
    X: np.ndarray,
    n: int,
    alpha: float,
    seed: int,
    nonnegative: bool = False,
    budgets: Sequence[float] = BUDGETS,
    *,
    fit_algorithm: str = "cd",
    batch_size: int = 64,
    samples: bool = True,
) -> list[np.ndarray | None]:
    """Atoms that scikit-learn's learner has at each budget: after its last batch by then, None before the first.

    It starts from samples of length 1, or from singular vectors, its default.
    """
    atoms: list[np.ndarray | None] = [None] * len(budgets)
    start = X[np.random.RandomState(seed).choice(len(X), n, replace=False)]

    def look(local: dict[str, Any]) -> None:
        spent = time.process_time() - began
        for i, budget in enumerate(budgets):
            if spent <= budget:
                atoms[i] = local["dictionary"].copy()
        if spent > budgets[-1]:
            raise StopIteration

    learner = MiniBatchDictionaryLearning(
        n, alpha=alpha, fit_algorithm=fit_algorithm, batch_size=batch_size, max_iter=10**6, tol=0.0,
        max_no_improvement=None, random_state=seed, callback=look,
        positive_code=nonnegative,
        dict_init=start / np.linalg.norm(start, axis=1, keepdims=True) if samples else None,
    )  # fmt: skip
    began = time.process_time()
    with contextlib.suppress(StopIteration):
        learner.fit(X)
    return atoms


def dictionary(seeds: int) -> None:
    """Medians over the seeds; scikit-learn's with the options that were best at some budget on the first seed."""
    head("l1 codes, objective after", *(f"{budget:g} s" for budget in BUDGETS))
    grid = {
        f"{algorithm}, batches of {size}, from {'samples' if samples else 'singular vectors'}": partial(
            theirs_within, fit_algorithm=algorithm, batch_size=size, samples=samples
        )
        for algorithm, size, samples in itertools.product(("cd", "lars"), (16, 64, 256), (True, False))
    }
    for name, X in data():
        n, alpha = {"digits": (32, 0.1), "MNIST": (40, 0.5)}[name]

        def ends(learner: Callable[..., list[Any]], seed: int, X=X, n=n, alpha=alpha) -> list[float]:
            return [np.inf if D is None else exact(X, D, alpha)[0] for D in learner(X, n, alpha, seed)]

        def shown(label: str, values: Any, name=name, n=n, alpha=alpha) -> None:
            row(f"{name}, {n} atoms, alpha {alpha}: {label}", *(f"{value:.5g}" for value in values))

        mine = np.median([ends(ours_within, seed) for seed in range(seeds)], axis=0)
        shown("ours", mine)
        firsts = {label: ends(learner, 0) for label, learner in grid.items()}
        for label, values in firsts.items():
            shown(f"{label}, seed 0", values)
        tuned = {min(firsts, key=lambda label, i=i: firsts[label][i]) for i in range(len(BUDGETS))}
        theirs = [
            np.median([firsts[label], *(ends(grid[label], seed) for seed in range(1, seeds))], axis=0)
            for label in sorted(tuned)
        ]
        for label, values in zip(sorted(tuned), theirs, strict=True):
            shown(label, values)
        shown("ours over the best of these", mine / np.min(theirs, axis=0))


def alive(seeds: int) -> None:
    cases = (
        ("one budget for all, default", True, None, 1000, 20),
        ("one budget for all, the solve alone", True, None, 0, 300),
        ("one budget for all, the paper's method", True, xv.algorithms.cr_varpro(), 0, 100),
        ("one for each, default", False, None, 1000, 20),
    )
    head("an l1 budget of 1, ridge 1e-5", "atoms", "seed", "s", "objective", "gap", "atoms alive")
    for name, X in data():
        n = {"digits": 32, "MNIST": 128}[name]
        for (label, shared, method, sweeps, most), seed in itertools.product(cases, range(seeds)):
            model = ours.ConstrainedDictionary(
                n, atoms=xv.sets.L1Ball(), shared=shared, lam=1e-5, algorithm=method, sweeps=sweeps, max_iter=most,
                random_state=seed,
            )  # fmt: skip
            seconds, fit = timed(lambda model=model, X=X: model.fit(X))
            living = int((np.abs(fit.components_).max(axis=1) > 0).sum())
            gap = f"{fit.gap_ / fit.objective_:.1e}"
            row(f"{name}, {label}", n, seed, seconds, f"{fit.objective_:.2f}", gap, living)


def used(seeds: int) -> None:
    """Atoms that some sample uses, of 128."""
    head("l1 codes, 128 atoms, 20 s each", "seed", "objective", "atoms in use")
    learners = {"ours": ours_within, "scikit-learn's": theirs_within}
    for (name, X), nonnegative, seed in itertools.product(data(), (False, True), range(seeds)):
        alpha = {"digits": 0.1, "MNIST": 0.5}[name]
        for label, learner in learners.items():
            (atoms,) = learner(X, 128, alpha, seed, nonnegative, BUDGETS[-1:])
            value, count = exact(X, atoms, alpha, nonnegative)
            row(f"{name}, alpha {alpha}{', codes >= 0' * nonnegative}: {label}", seed, f"{value:.2f}", count)


def archetypes(seeds: int) -> None:
    head("archetypal analysis", "atoms", "seed", "s", "objective", "gap", "", "sums off 1 by")
    for name, X in data():
        n = {"digits": 10, "MNIST": 10}[name]
        for seed in range(seeds):
            seconds, fit = timed(lambda X=X, n=n, s=seed: ours.ArchetypalAnalysis(n, random_state=s).fit(X))
            off = max(np.abs(shares.sum(axis=1) - 1.0).max() for shares in (fit.transform(X), fit.mixtures_))
            gap = fit.gap_ / fit.objective_
            row(name, n, seed, seconds, f"{fit.objective_:.2f}", f"{gap:.1e}", fit.status_.name, f"{off:.1e}")


ROWS = {"nmf": nmf, "dictionary": dictionary, "alive": alive, "used": used, "archetypes": archetypes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of what did not converge: the tables say so
    print(f"load {os.getloadavg()[0]:.2f}")
    for name in args.rows:
        ROWS[name](args.seeds)


if __name__ == "__main__":
    main()
