"""Two processes that solve one problem together, over two that each do half of the work without a word.

python benchmarks/processes.py [--what rows columns] [--rows 10000000] [--runs 5] [--backend numpy]

`rows`: a value and a gradient of a dense design of 64 columns by QR, rows in chunks of 10^5. `columns`: of a dictionary
of 50 atoms for a target of 784 x 60,000 that is not compressed. Each process has one thread; both begin together, and
the slower one counts. The ratio is of medians: 1 is the most that the machine gives.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

CHUNK, COLUMNS = 100_000, 64
SIZE = 2  # processes


def scaled(theta: Any, x: Any) -> Any:
    return x * theta


def dictionary(theta: Any, data: Any) -> Any:
    return theta


def call_of(what: str, rows: int, backend: str, group: Any, rank: int) -> Callable[[], Any]:
    """A value and gradient of the half of this process, or of all with a group."""
    import xvarpro as xv

    rng = np.random.default_rng(rank)
    owner = xv.backends.get(backend)
    if what == "rows":
        sizes = [min(CHUNK, rows // SIZE - a) for a in range(0, rows // SIZE, CHUNK)]
        chunks = [tuple(owner.asarray(x) for x in (rng.normal(size=(m, COLUMNS)), rng.normal(size=m))) for m in sizes]
        problem = xv.separable(scaled, xv.RowChunks(chunks, group=group), lam=1e-6)
        theta = np.linspace(0.5, 1.5, COLUMNS)
    else:
        y = owner.asarray(rng.uniform(size=(784, 60_000 // SIZE)))
        target = y if group is None else xv.ColumnChunks([y], group)
        problem = xv.separable(dictionary, target, lam=1e-3, compress=False)
        theta = np.random.default_rng(9).uniform(size=(784, 50))
    start = owner.asarray(theta)
    return lambda: xv.value_and_gradient(problem, start)


def process(rank: int, store: str, what: str, rows: int, runs: int, backend: str) -> None:
    """One of the two: prints the seconds of every run, together and alone in turns."""
    import torch.distributed as dist

    import xvarpro as xv

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=SIZE)
    calls = [call_of(what, rows, backend, group, rank) for group in (xv.distributed.TorchGroup(), None)]
    found: list[list[float]] = [[], []]
    for i in range(runs + 1):
        for seconds, call in zip(found, calls, strict=True):
            dist.barrier()
            began = time.perf_counter()
            call()
            if i:  # the first one warms up
                seconds.append(time.perf_counter() - began)
    np.save(Path(store).with_name(f"{rank}.npy"), found)
    dist.destroy_process_group()


def main() -> None:
    if sys.argv[1:2] == ["process"]:
        rank, store, what, rows, runs, backend = sys.argv[2:]
        process(int(rank), store, what, int(rows), int(runs), backend)
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--what", nargs="+", default=["rows", "columns"], choices=["rows", "columns"])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--backend", default="numpy")
    args = parser.parse_args()
    print(
        f"load {os.getloadavg()[0]:.2f} at the start\n| problem | together, s | alone, s | ratio |\n|---|---|---|---|"
    )
    for what in args.what:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "process"]
            given = [folder + "/store", what, str(args.rows), str(args.runs), args.backend]
            started = [subprocess.Popen([*command, str(rank), *given]) for rank in range(SIZE)]
            if any(each.wait() for each in started):
                raise SystemExit("a process failed")
            seconds = np.max([np.load(f"{folder}/{rank}.npy") for rank in range(SIZE)], axis=0)
        together, alone = np.median(seconds, axis=1)
        print(f"| {what} | {together:.3g} | {alone:.3g} | {alone / together:.2f} |", flush=True)
    print(f"load {os.getloadavg()[0]:.2f} at the end")


if __name__ == "__main__":
    main()
