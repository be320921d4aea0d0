"""What grows with the rows of a level, and what does not: time per row, memory of the process, waiting for the source.

python benchmarks/scale.py rows [--most 8] [--backend numpy]
python benchmarks/scale.py memory [--gigabytes 1] [--megabytes 64] [--folder DIR]
python benchmarks/scale.py group [--megabytes 64] [--chunks 50] [--processes 2]
python benchmarks/scale.py ahead [--wait 0.02] [--chunks 50]
python benchmarks/scale.py many [--fits 1000000] [--processes 2]

`rows`: one value and gradient over 10^5 to 10^most rows of ten numbers, made when they are asked for. `memory`: over a
.npy of 64 columns, in a process of its own; the peak of its resident memory, above that after the imports and a small
problem, in chunks of the file. `group`: the same of each of several processes of a `TorchGroup`, with chunks of its own
that a function makes. `ahead`: sources and models that wait, alone and with the next chunk read meanwhile. `many`: fits
of two decays to 50 points, in batches on the workers of a Dask cluster of this machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import xvarpro as xv

COLUMNS = 64


# -- time per row ------------------------------------------------------------------------------------------------------


def waves(theta: Any, x: Any) -> Any:
    return xv.array_namespace(theta).cos(x * theta)


def timed(m: int, rows: int, backend: str) -> float:
    """Seconds of one value and gradient over m rows, of which none is kept."""
    speeds, theta = np.linspace(3.0, 40.0, 9), np.linspace(0.9, 1.1, 9)

    def source() -> Iterator[Any]:
        for a in range(0, m, rows):
            t = np.arange(a, min(a + rows, m)) / m
            yield t[:, None] * speeds, np.exp(-t)

    problem = xv.separable(waves, xv.RowChunks(source))
    began = time.perf_counter()
    xv.value_and_gradient(problem, theta, backend=backend)
    return time.perf_counter() - began


def by_rows(args: argparse.Namespace) -> None:
    timed(2 * args.rows, args.rows, args.backend)  # where chunks are compiled, this compiles
    print("| rows | value and gradient, s | ns per row |\n|---|---|---|")
    per_row = []
    for power in range(5, args.most + 1):
        m = 10**power
        repeats = 5 if power < 7 else 1
        seconds = min(timed(m, args.rows, args.backend) for _ in range(repeats))
        per_row.append(1e9 * seconds / m)
        print(f"| 10^{power} | {seconds:.3g} | {per_row[-1]:.0f} |", flush=True)
    print(f"time per row varies by {100 * (max(per_row) / min(per_row) - 1):.0f} %")


# -- memory ------------------------------------------------------------------------------------------------------------


def linear(theta: Any, x: Any) -> Any:
    return x @ theta


def exponential(theta: Any, x: Any) -> Any:
    return xv.array_namespace(theta).exp(-(x @ theta))


MODELS: dict[str, Callable[[Any, Any], Any]] = {"x @ theta": linear, "exp(-x @ theta)": exponential}
KINDS = ["memory map", "Zarr", "HDF5", "function"]


def opened(kind: str, folder: Path, rows: int) -> Any:
    """Rows in a file: data of 64 columns, whose first one is the target too."""
    x = np.load(folder / "x.npy", mmap_mode="r")
    if kind == "Zarr":
        import zarr

        return xv.RowChunks.cut(*(zarr.open(folder / f"{name}.zarr", mode="r") for name in "xy"), rows)
    if kind == "HDF5":
        import h5py

        file = h5py.File(folder / "rows.h5")
        return xv.RowChunks.cut(file["x"], file["y"], rows)
    if kind == "memory map":
        return xv.RowChunks.cut(x, np.load(folder / "y.npy", mmap_mode="r"), rows)

    def source() -> Iterator[Any]:  # one chunk in memory: none is read ahead
        for a in range(0, x.shape[0], rows):
            count = min(rows, x.shape[0] - a)
            part = np.fromfile(folder / "x.npy", count=count * COLUMNS, offset=x.offset + a * COLUMNS * 8)
            part = part.reshape(count, COLUMNS)
            yield part, part[:, 0]
            del part

    return xv.RowChunks(source)


def write(folder: Path, m: int, rows: int) -> None:
    """The same rows as .npy, Zarr and HDF5, the last two in chunks of 1/64 of ours."""
    import h5py
    import zarr

    x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype="float64", shape=(m, COLUMNS))
    y = np.lib.format.open_memmap(folder / "y.npy", mode="w+", dtype="float64", shape=(m,))
    stored = max(rows // 64, 1)
    rng = np.random.default_rng(0)
    with h5py.File(folder / "rows.h5", "w") as file:
        sinks = [
            (x, y),
            tuple(
                zarr.create_array(folder / f"{name}.zarr", shape=a.shape, chunks=(stored, *a.shape[1:]), dtype=a.dtype)
                for name, a in (("x", x), ("y", y))
            ),
            tuple(
                file.create_dataset(name, a.shape, a.dtype, chunks=(stored, *a.shape[1:]))
                for name, a in (("x", x), ("y", y))
            ),
        ]
        for a in range(0, m, rows):
            part = rng.normal(size=(min(rows, m - a), COLUMNS))
            for to in sinks:
                to[0][a : a + rows], to[1][a : a + rows] = part, part[:, 0]
    x.flush()
    y.flush()


def peak() -> float:
    """The most resident memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(kind: str, model: str, folder: Path, rows: int) -> None:
    """In a process of its own: prints the peak above that of a small problem, in bytes, and the seconds."""
    M, theta = MODELS[model], 0.01 * np.random.default_rng(1).normal(size=(COLUMNS, 2))
    small = np.random.default_rng(2).normal(size=(300, COLUMNS))
    xv.value_and_gradient(xv.separable(M, xv.RowChunks.cut(small, small[:, 0], 100)), theta)
    chunks = opened(kind, folder, rows)
    before, began = peak(), time.perf_counter()
    xv.value_and_gradient(xv.separable(M, chunks), theta)
    print(peak() - before, time.perf_counter() - began)


def run(*command: Any) -> str:
    """What a part of this file prints in a process of its own."""
    done = subprocess.run([sys.executable, __file__, *map(str, command)], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def by_memory(args: argparse.Namespace) -> None:
    rows = round(args.megabytes * 2**20 / (8 * COLUMNS))
    m = round(args.gigabytes * 1e9 / (8 * COLUMNS))
    print(f"{m} rows of {COLUMNS} columns, chunks of {rows} rows, {args.megabytes:g} MiB")
    print("| source | M | peak, MiB | in chunks | s |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        # a process that starts another hands on the peak of its own memory: this one holds nothing large
        run("write", name, m, rows)
        for model in MODELS:
            for kind in KINDS:
                size, seconds = map(float, run("measure", kind, model, name, rows).split())
                in_chunks = size / (args.megabytes * 2**20)
                print(f"| {kind} | {model} | {size / 2**20:.0f} | {in_chunks:.2f} | {seconds:.2f} |", flush=True)


def measure_in_group(rank: int, size: int, store: str, model: str, rows: int, chunks: int) -> None:
    """As `measure`, in a process of a group, with so many chunks of its own; the peak is that of the largest."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    group = xv.distributed.TorchGroup()
    M, theta = MODELS[model], 0.01 * np.random.default_rng(1).normal(size=(COLUMNS, 2))

    def source(count: int, rows: int) -> Iterator[Any]:
        for i in range(count):
            part = np.random.default_rng([rank, i]).normal(size=(rows, COLUMNS))
            yield part, part[:, 0]
            del part

    def called(count: int, rows: int) -> None:
        xv.value_and_gradient(xv.separable(M, xv.RowChunks(partial(source, count, rows), group=group)), theta)

    called(3, 100)
    before, began = peak(), time.perf_counter()
    called(chunks, rows)
    found = group.numbers([peak() - before, time.perf_counter() - began]).max(axis=0)
    if rank == 0:
        print(*found)
    dist.destroy_process_group()


def by_group(args: argparse.Namespace) -> None:
    rows = round(args.megabytes * 2**20 / (8 * COLUMNS))
    print(f"{args.processes} processes, each {args.chunks} chunks of {rows} rows, {args.megabytes:g} MiB")
    print("| M | most of one process, MiB | in chunks | s |\n|---|---|---|---|")
    for model in MODELS:
        with tempfile.TemporaryDirectory() as name:
            given = [str(args.processes), name + "/store", model, str(rows), str(args.chunks)]
            started = [
                subprocess.Popen([sys.executable, __file__, "group member", str(rank), *given], stdout=subprocess.PIPE)
                for rank in range(args.processes)
            ]
            printed = [each.communicate()[0] for each in started]
            size, seconds = map(float, printed[0].split())
        in_chunks = size / (args.megabytes * 2**20)
        print(f"| {model} | {size / 2**20:.0f} | {in_chunks:.2f} | {seconds:.2f} |", flush=True)


# -- reading ahead -----------------------------------------------------------------------------------------------------


def by_ahead(args: argparse.Namespace) -> None:
    print("| source waits, ms | M waits, ms | rows | ms per chunk | read ahead | ratio |\n|---|---|---|---|---|---|")
    for source_waits, model_waits, rows in (
        (args.wait, args.wait, 1000),
        (args.wait, args.wait / 4, 1000),
        (0.0, 0.0, 1000),
        (0.0, 0.0, 10_000),
        (0.0, 0.0, 100_000),
        (0.0, 0.0, 1_000_000),
    ):
        parts = [(i + np.linspace(0.0, 1.0, rows), np.ones(rows)) for i in range(4)]

        def source(wait: float = source_waits, parts: Any = parts) -> Iterator[Any]:
            for i in range(args.chunks):
                time.sleep(wait) if wait else None
                yield parts[i % len(parts)]

        def M(theta: Any, t: Any, wait: float = model_waits) -> Any:
            time.sleep(wait) if wait else None
            xp = xv.array_namespace(theta)
            return xp.exp(-xp.expand_dims(t, axis=1) * theta)

        found = []
        for given in (source, xv.ReadAhead(source)):
            problem = xv.separable(M, xv.RowChunks(given))
            seconds = []
            for _ in range(3):
                began = time.perf_counter()
                xv.value_and_gradient(problem, np.array([1.0, 5.0]))
                seconds.append(time.perf_counter() - began)
            found.append(1e3 * min(seconds) / (2 * args.chunks))
        waits = f"{1e3 * source_waits:g} | {1e3 * model_waits:g}"
        print(f"| {waits} | {rows} | {found[0]:.2f} | {found[1]:.2f} | {found[1] / found[0]:.2f} |", flush=True)


# -- many small problems -----------------------------------------------------------------------------------------------


def decays(theta: Any, t: Any) -> Any:
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(theta, axis=1) * t[None, :, None])


def by_batches(args: argparse.Namespace) -> None:
    from distributed import Client, LocalCluster

    rng, t, b = np.random.default_rng(0), np.linspace(0.0, 2.0, 50), args.fits
    rates = np.stack([rng.uniform(0.5, 1.5, b), rng.uniform(3.0, 8.0, b)], axis=1)
    y = sum(a * np.exp(-rates[:, j, None] * t) for j, a in enumerate((2.0, 1.0))) + 0.01 * rng.normal(size=(b, 50))
    start = np.tile([0.7, 4.0], (b, 1))
    problem, over = xv.separable(decays, y, data=t), xv.sets.Box(0.0, 30.0)
    cluster = LocalCluster(n_workers=args.processes, threads_per_worker=1, dashboard_address=":0")
    with cluster, Client(cluster):
        began = time.perf_counter()
        fit = xv.distributed.dask_solve_many(problem, start, over)
        print(f"{time.perf_counter() - began:.0f} s on {args.processes} workers: {fit}")


def main() -> None:
    part, *given = sys.argv[1:] or [""]
    if part == "measure":
        measure(given[0], given[1], Path(given[2]), int(given[3]))
        return
    if part == "group member":
        rank, size, store, model, rows, chunks = given
        measure_in_group(int(rank), int(size), store, model, int(rows), int(chunks))
        return
    if part == "write":
        write(Path(given[0]), int(given[1]), int(given[2]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["rows", "memory", "group", "ahead", "many"])
    parser.add_argument("--most", type=int, default=8, help="power of ten of the most rows")
    parser.add_argument("--rows", type=int, default=100_000, help="per chunk, of `rows`")
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the file of `memory`, written 3 times")
    parser.add_argument("--megabytes", type=float, default=64.0, help="MiB of a chunk of `memory` and `group`")
    parser.add_argument("--folder", help="for that file; the system's for temporary files by default")
    parser.add_argument("--wait", type=float, default=0.02, help="seconds, of `ahead`")
    parser.add_argument("--chunks", type=int, default=50)
    parser.add_argument("--processes", type=int, default=2, help="of `group` and `many`")
    parser.add_argument("--fits", type=int, default=1_000_000)
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.2f} at the start")
    run_one = {"rows": by_rows, "memory": by_memory, "group": by_group, "ahead": by_ahead, "many": by_batches}
    run_one[args.what](args)
    print(f"load {os.getloadavg()[0]:.2f} at the end")


if __name__ == "__main__":
    main()
