"""Thousands of bi-exponential decays: problems per second of batches, of loops of solves, of curve_fit, of lmfit.

python benchmarks/many.py [rates] [--problems 10000] [--points 64] [--sample 100] [--backends numpy torch jax] [--write]
python benchmarks/many.py --huber 0.01 --problems 1000 [--backends numpy jax]
python benchmarks/many.py first --problems 200 [--backends jax]
python benchmarks/many.py stored --problems 2000000 --points 32 [--chunks 102400] [--backends jax]
python benchmarks/many.py counts --problems 1000000 [--chunks 62500] [--backends numpy jax]

Models are in batch form, and stated for one problem and lifted. Loops are timed on a sample, whose rate is the rate of
the whole; `--write` puts the table into docs/many.md, `--huber` takes this loss, at its scale. `first` is a process's
first call, compilations included, with nonnegative amplitudes. `stored` fits a Zarr array in chunks, in a process that
is killed twice and resumed, after one that fits a chunk alone. `counts` fits counts by their likelihood, in two
processes that are begun anew, and takes their errors. They take some 1, 1, 5 and 4 minutes.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit

import xvarpro as xv

PAGE = Path(__file__).parents[1] / "docs" / "many.md"
MARK = "<!-- measured: benchmarks/many.py -->"
START = np.array([0.7, 4.0])
BOX = xv.sets.Box(0.0, 20.0)


def decays(theta: Any, data: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(theta, axis=1) * data["t"][None, :, None])


def decay(theta: Any, data: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)


def signals(b: int, t: np.ndarray, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rates = np.stack([rng.uniform(0.5, 1.5, b), rng.uniform(3.0, 8.0, b)], axis=1)
    w = rng.uniform(0.5, 2.0, (b, 2, 1))
    clean = (np.exp(-rates[:, None, :] * t[:, None]) @ w)[..., 0]
    return clean + 1e-2 * rng.normal(size=clean.shape)


def batched(y: Any, t: Any, backend: str, M: Any, loss: Any) -> tuple[list[float], list[float], xv.ManyResult]:
    """Seconds of solves, the first one's compilations included, and of the statistics after each; the last result."""
    problem, theta0 = xv.separable(M, xv.Each(y), data={"t": t}, loss=loss), np.tile(START, (len(y), 1))
    problem = xv.many.lifted(problem) if M is decay else problem
    seconds, more = [], []
    for _ in range(4):
        began = time.process_time()
        fit = xv.solve_many(problem, theta0, over=BOX, backend=backend, progress=False)
        seconds.append(time.process_time() - began)
        fit.statistics()
        more.append(time.process_time() - began - seconds[-1])
    return seconds, more, fit


def looped(fit: Callable[[np.ndarray], Any], y: np.ndarray) -> tuple[float, np.ndarray]:
    fit(y[0])
    began = time.process_time()
    values = [fit(row) for row in y]
    return time.process_time() - began, np.asarray(values)


def alone(t: np.ndarray, backend: str, loss: Any, y: np.ndarray) -> Any:
    return xv.solve(xv.separable(decay, y, data={"t": t}, loss=loss), START, over=BOX, backend=backend).value


def joint(t: Any, a: float, b: float, u: float, v: float) -> Any:
    return u * np.exp(-a * t) + v * np.exp(-b * t)


def by_scipy(t: np.ndarray, scale: float, y: np.ndarray) -> Any:
    bounds = ([0.0, 0.0, -np.inf, -np.inf], [20.0, 20.0, np.inf, np.inf])
    robust: Any = {"loss": "huber", "f_scale": scale} if np.isfinite(scale) else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)
        found, _ = curve_fit(joint, t, y, p0=[*START, 1.0, 1.0], bounds=bounds, **robust)
    r = np.abs(joint(t, *found) - y)
    return np.sum(np.where(r < scale, r**2 / 2, scale * (r - scale / 2)))


def by_lmfit(t: np.ndarray, y: np.ndarray) -> Any:
    from lmfit import Model

    bounds = {name: {"value": value, "min": 0.0, "max": 20.0} for name, value in zip("ab", START, strict=True)}
    model = Model(joint)
    return 0.5 * model.fit(y, model.make_params(**bounds, u=1.0, v=1.0), t=t).chisqr


def first(args: argparse.Namespace) -> None:
    t, start = np.linspace(0.0, 2.0, args.points), np.tile(START, (args.problems, 1))
    problem = xv.separable(decays, signals(len(start), t), data={"t": t}, W=xv.lower.Nonnegative())
    for _ in range(2):
        began = time.process_time()
        xv.solve_many(problem, start, over=BOX, backend=args.backends[-1], progress=False)
        print(f"{len(start)} problems with nonnegative w: {time.process_time() - began:.2f} CPU s")


def stored(args: argparse.Namespace) -> None:
    """Make the array, kill two of those who fit it, and compare what the third one has."""
    import zarr

    b, t, size, draw = args.problems, np.linspace(0.0, 2.0, args.points), args.chunks, np.random.default_rng()
    with tempfile.TemporaryDirectory() as name:
        folder, known = Path(name), dict[str, int]()
        array = zarr.create_array(folder / "y", shape=(b, len(t)), chunks=(size, len(t)), dtype="float32")
        for i in range(0, b, size):
            array[i : i + size] = signals(min(size, b - i), t, i)
        command = [sys.executable, *sys.argv, "--folder"]
        zarr.create_array(folder / "one" / "y", data=array[:size])
        subprocess.run([*command, folder / "one", "--problems", str(size)], check=True)
        for kills in (True, True, False):
            run = subprocess.Popen([*command, name])
            few = len(known) + draw.integers(2, b // size // 3)
            while run.poll() is None and not (kills and len(list((folder / "fits").glob("*.npz"))) > few):
                time.sleep(draw.uniform(0.0, 2.0))
            run.kill()
            kept = {file.name: file.stat().st_mtime_ns for file in (folder / "fits").glob("*.npz")}
            twice = sum(kept[file] != at for file, at in known.items())
            print(f"ended with {run.wait()}: {len(kept)} chunks are done, {twice} of them twice", flush=True)
            known = kept
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{used.ru_utime + used.ru_stime:.0f} CPU s of the three")
        theta, off = np.load(folder / "theta.npy"), []
        for i in draw.integers(b, size=args.sample):
            fit = xv.solve(xv.separable(decay, array[i].astype(float), data={"t": t}), START, over=BOX)
            off.append(np.max(np.abs(theta[i] - fit.theta) / fit.statistics().theta_stderr))
        print(f"{args.sample} fits by themselves: theta is the same within {np.max(off):.1e} standard errors")


def resumed(args: argparse.Namespace) -> None:
    """The solve of a process that may be killed, and the most memory that it takes, next to the answers."""
    import zarr

    def peak() -> float:
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024 / 1e6

    folder, t = Path(args.folder), np.linspace(0.0, 2.0, args.points)
    y, own = zarr.open_array(folder / "y"), {"over": BOX, "backend": args.backends[-1], "progress": False}
    theta0 = np.tile(START, (args.problems, 1))
    few = args.chunks // 10  # for what is compiled
    xv.solve_many(xv.separable(decays, y[:few], data={"t": t}), theta0[:few], **own)
    Path("/proc/self/clear_refs").write_text("5")
    before, problem = peak(), xv.separable(decays, xv.Each(y), data={"t": t})
    fit = xv.solve_many(problem, theta0, chunks=args.chunks, checkpoint=folder / "fits", **own)
    np.save(folder / "theta.npy", fit.theta)
    fields = (fit.theta, fit.w, fit.value, fit.gap_A, fit.gap_B, fit.condition, fit.status, fit.n_iter)
    answers, chunk = sum(np.asarray(x).nbytes for x in fields) / 1e6, args.chunks * len(t) * 8 / 1e6
    print(f"{fit.success.mean():.3%} converged, {fit.seconds:.0f} s; {peak() - before:.0f} MB more than {before:.0f}")
    print(f"answers have {answers:.0f} MB, a chunk of spectra {chunk:.0f}", flush=True)


def counts(args: argparse.Namespace) -> None:
    t, rng = np.linspace(0.0, 2.0, args.points), np.random.default_rng(0)
    rates = np.stack([rng.uniform(0.5, 1.5, args.problems), rng.uniform(3.0, 8.0, args.problems)], axis=1)
    every = (rng.poisson(np.exp(-x[:, None, :] * t[:, None]) @ [400.0, 200.0]) for x in np.array_split(rates, 100))
    problem = xv.separable(decays, np.concatenate(list(every)).astype(float), data={"t": t}, loss="poisson")
    for backend in args.backends:
        began, own = time.perf_counter(), {"backend": backend, "progress": False}
        with ProcessPoolExecutor(2, get_context("forkserver")) as pool:
            theta0 = np.tile(START, (args.problems, 1))
            fit = xv.solve_many(problem, theta0, BOX, chunks=args.chunks, executor=pool, **own)
            solved = time.perf_counter()
            errors = fit.statistics(executor=pool).theta_stderr
        used, later = (time.perf_counter() - x for x in (began, solved))
        known = np.isfinite(errors) & (errors > 0)  # a rate at a bound has an error of 0
        near = np.mean(np.abs(fit.theta - rates)[known] <= 1.645 * errors[known])
        ends = ", ".join(f"{n} {x.name}" for x, n in fit.counts.items())
        shown = f"{used:.0f} s, of which errors {later:.0f}; {ends}; {near:.1%} within 90 % intervals"
        print(f"{backend}: {shown}", flush=True)


def rates(args: argparse.Namespace) -> None:
    t = np.linspace(0.0, 2.0, args.points)
    y = signals(args.problems, t)
    sample, loss = y[: args.sample], xv.losses.Huber(args.huber) if np.isfinite(args.huber) else None
    lines = [
        f"{args.problems} problems of {args.points} points, {date.today()}, one thread of two cores, load "
        f"{os.getloadavg()[0]:.1f}; all times are those of the processor",
        "",
        "| method | problems per CPU second | errors add | first call, CPU s | converged | objective over the best |",
        "|---|---|---|---|---|---|",
    ]
    rows: list[tuple[str, float, str, np.ndarray]] = []
    for backend, M in product(args.backends, (decays, decay)):
        (begun, *later), more, fit = batched(y, t, backend, M, loss)
        shown = f"{min(more) / min(later):.0%} | {begun:.1f} | {fit.success.mean():.2%}"
        name = f"`solve_many`, {'lifted, ' * (M is decay)}{backend}"
        rows.append((name, len(y) / min(later), shown, np.asarray(fit.value)[: args.sample]))
    loops = {f"`solve`, {backend}": partial(alone, t, backend, loss) for backend in args.backends}
    loops |= {"`curve_fit`": partial(by_scipy, t, args.huber)}
    loops |= {} if loss else {"`lmfit`": partial(by_lmfit, t)}
    for name, fit in loops.items():
        seconds, values = looped(fit, sample)
        rows.append((f"loop of {name} ({len(sample)} timed)", len(sample) / seconds, "| |", values))
    best = np.min([values for *_, values in rows], axis=0)
    for name, rate, shown, values in rows:
        lines.append(f"| {name} | {rate:.0f} | {shown} | {np.max(values / best - 1):.1e} |")
    print("\n".join(lines))
    if args.write:
        head, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
        PAGE.write_text("\n".join([head + MARK, "", *lines, ""]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["rates", "first", "stored", "counts"], default="rates")
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--chunks", type=int, default=102_400)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--points", type=int, default=64)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--huber", type=float, default=np.inf)
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch", "jax"])
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    {"rates": rates, "first": first, "stored": resumed if args.folder else stored, "counts": counts}[args.what](args)


if __name__ == "__main__":
    main()
