"""Fits over those of pyglotaran and DeerLab on the same data: same optimum, same standard errors, how long.

pip install pyglotaran deerlab; python benchmarks/peers.py [--runs 7] [--backends numpy torch jax]

Both eliminate linear parameters too. Calls take turns in one process, on one thread, after a warm-up; ratios are of
median CPU seconds, ours with standard errors, as theirs are. A peer that is not installed is left out.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse  # noqa: E402
import contextlib  # noqa: E402
import importlib.metadata  # noqa: E402
import io  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

import numpy as np  # noqa: E402

import xvarpro as xv  # noqa: E402

MODEL = """
megacomplex:
  m1: {type: decay-parallel, compartments: [s1, s2], rates: [rates.1, rates.2], dimension: time}
irf:
  irf1: {type: gaussian, center: irf.center, width: irf.width}
dataset:
  dataset1: {megacomplex: [m1], irf: irf1}
"""
START = """
rates: [1.0, 0.1]
irf: [["center", 0.0], ["width", 0.2]]
"""


class Fit(NamedTuple):
    """What is compared: the objective, and standard errors of theta where both are those of linear theory."""

    value: float
    errors: np.ndarray | None


class Case(NamedTuple):
    """A problem: how the peer solves it, and how we do on a backend."""

    label: str
    peer: str
    theirs: Callable[[], Fit]
    ours: Callable[[str], Fit]


def kinetics() -> Case:
    """Two decays behind an instrument response at 50 wavelengths."""
    import xarray
    from glotaran.io import load_model, load_parameters
    from glotaran.optimization.optimize import optimize
    from glotaran.project.scheme import Scheme

    rng = np.random.default_rng(0)
    t = np.concatenate([np.linspace(-1.0, 1.0, 100), np.geomspace(1.02, 20.0, 100)])
    y = xv.models.decays(t, np.array([2.0, 0.3]), 0.05, 0.12) @ rng.uniform(0.5, 2.0, (2, 50))
    y = y + 0.01 * rng.normal(size=y.shape)
    model, start = (load(text, format_name="yml_str") for load, text in ((load_model, MODEL), (load_parameters, START)))
    data = xarray.DataArray(y, coords=[("time", t), ("spectral", np.arange(50.0))]).to_dataset(name="data")

    def theirs() -> Fit:
        with contextlib.redirect_stdout(io.StringIO()):
            found = optimize(Scheme(model=model, parameters=start, data={"dataset1": data}), verbose=False)
        errors = found.optimized_parameters.to_dataframe()["standard_error"]
        return Fit(found.chi_square / 2, np.asarray(errors, float))

    def M(theta: Any, data: Any) -> Any:
        return xv.models.decays(data["t"], theta["rates"], theta["centre"], theta["width"])

    problem = xv.separable(M, y, data={"t": t})
    theta0 = {"rates": np.array([1.0, 0.1]), "centre": np.array(0.0), "width": np.array(0.2)}

    def ours(backend: str) -> Fit:
        fit = xv.solve(problem, theta0, backend=backend)
        error = fit.statistics().theta_stderr
        return Fit(fit.value, np.array([*error["rates"], error["centre"], error["width"]]))

    return Case("decays behind a response, 50 right-hand sides of 200", "pyglotaran", theirs, ours)


def distances(smooth: bool) -> Case:
    """A background rate, with a smooth nonnegative distribution behind a kernel, or with two weights."""
    import deerlab

    t, r, z = np.linspace(-0.1, 4.0, 200), np.linspace(2.0, 6.0, 60), (np.arange(2000) + 0.5) / 2000
    K = np.stack([np.cos((1 - 3 * z**2) * abs(s) * (2 * np.pi * 52.04 / r**3)[:, None]).mean(axis=1) for s in t])
    P = np.exp(-0.5 * ((r - 3.5) / 0.25) ** 2)
    part = K @ (P / P.sum())
    columns = np.column_stack([np.ones(200), K if smooth else part])
    y = (0.7 + 0.3 * part) * np.exp(-0.2 * np.abs(t)) + 0.01 * np.random.default_rng(0).normal(size=200)
    n, lam = columns.shape[1], 20.0 if smooth else 0.0
    Omega = np.diag(np.full(n, 1e-3))
    if smooth:
        Omega[1:, 1:] = np.diff(np.eye(62), 2, axis=0)[:, 1:-1]

    def design(k: float) -> np.ndarray:
        return np.exp(-k * np.abs(t))[:, None] * columns

    def theirs() -> Fit:
        model = deerlab.Model(design)
        model.addlinear("w", vec=n, **({"lb": 0} if smooth else {}))
        model.k.set(lb=0.0, ub=2.0, par0=0.1)
        options = {"regparam": lam**0.5, "regop": Omega} if smooth else {"reg": False}
        found = deerlab.fit(model, y, noiselvl=1.0, **options)
        w = np.asarray(found.w)
        value = 0.5 * np.sum((design(found.k) @ w - y) ** 2) + 0.5 * lam * np.sum((Omega @ w) ** 2)
        return Fit(float(value), None if smooth else np.array([found.kUncert.std]).ravel())

    def M(theta: Any, data: Any) -> Any:
        xp = xv.array_namespace(theta)
        return xp.exp(-theta * xp.expand_dims(xp.abs(data["t"]), axis=1)) * data["columns"]

    options: dict[str, Any] = {"Omega": Omega, "lam": lam, "W": xv.lower.Nonnegative()} if smooth else {}
    problem = xv.separable(M, y, data={"t": t, "columns": columns}, **options)

    def ours(backend: str) -> Fit:
        fit = xv.solve(problem, np.array([0.1]), over=xv.sets.Box(0.0, 2.0), backend=backend)
        return Fit(fit.value, fit.statistics(sandwich=True).theta_stderr)  # HC1, as DeerLab has

    label = "a smooth nonnegative distribution behind a kernel" if smooth else "a background with two weights"
    return Case(label, "DeerLab", theirs, ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch", "jax"])
    options = parser.parse_args()
    print("| fit | over | backend | value off | standard errors off | time over theirs |\n|---|---|---|---|---|---|")
    for make in (kinetics, lambda: distances(False), lambda: distances(True)):
        try:
            case = make()
        except ImportError as error:
            print(f"| {error} | | | | | |")
            continue
        calls = {"": case.theirs, **{name: partial(case.ours, name) for name in options.backends}}
        found = {name: call() for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(options.runs):
            for name, call in calls.items():
                began = time.process_time()
                call()
                times[name].append(time.process_time() - began)
        peer = f"{case.peer} {importlib.metadata.version(case.peer)}"
        for name in options.backends:
            off = found[name].value / found[""].value - 1
            theirs, own = found[""].errors, found[name].errors
            errors = "" if theirs is None else f"{np.max(np.abs(own / theirs - 1)):.0e}"
            ratio = np.median(times[name]) / np.median(times[""])
            print(f"| {case.label} | {peer} | {name} | {off:.0e} | {errors} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
