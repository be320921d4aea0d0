"""The autoencoder on all 60,000 images of MNIST in bounded memory: chunks of a file are the mini-batches.

XVARPRO_DATA=<folder> python benchmarks/autoencoder_rows.py [--epochs 10] [--rows 1000] [--rate 1e-3]

One level, PyTorch in float32, the start of ``docs/autoencoder.md``. An iteration takes one chunk and the decoder that
it determines; a certificate on all images, one chunk at a time, comes after every second epoch. Printed are the
loss on the 10,000 test images with the decoder of all training images, that of PCA with as many axes, the seconds, and
by how much the memory of the process grew: another process writes the images.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from xvarpro_experiments import autoencoder
from xvarpro_experiments.autoencoder.model import MU, design, pca_loss, penalty, principal_axes

import xvarpro as xv

PIXELS, WIDTHS, RIDGE = 784, (256, 128, 64, 32), 1e-8


def write(folder: Path) -> None:
    """Training images in another order, test images, and numbers on them."""
    data = autoencoder.load("mnist", samples=60_000, test_samples=10_000)
    np.random.default_rng(0).permutation(data.train).astype(np.float32).tofile(folder / "train")
    np.save(folder / "test.npy", data.test.astype(np.float32))
    floor = pca_loss(principal_axes(data.train)[:, : WIDTHS[-1]], data.test)[WIDTHS[-1]]
    (folder / "numbers.json").write_text(json.dumps({"scale": 1 / data.rms, "floor": float(floor)}))


class Chunks:
    """Images of a file, so many at a time, for as many as are asked for."""

    def __init__(self, path: Path, rows: int, count: int, scale: float) -> None:
        self.path, self.rows, self.count, self.scale = path, rows, count, scale

    def __call__(self) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        with self.path.open("rb") as file:
            for _ in range(self.count):
                X = np.fromfile(file, np.float32, self.rows * PIXELS).reshape(-1, PIXELS)
                yield {"X": X, "scale": self.scale}, X


def mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=1e-3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writer = multiprocessing.get_context("spawn").Process(target=write, args=(folder,))
        writer.start()
        writer.join()
        numbers = json.loads((folder / "numbers.json").read_text())
        fit, theta0 = None, autoencoder.start(PIXELS, WIDTHS, dtype="float32")
        # a few chunks first: what a framework takes for itself does not count
        for steps, epochs in ((3, 1), (60_000 // options.rows, options.epochs)):
            before = mebibytes()
            source = Chunks(folder / "train", options.rows, steps, numbers["scale"])
            lam = RIDGE * steps * options.rows
            problem = xv.separable(design, xv.RowChunks(source), lam=lam, R=penalty, mu=MU, compress=False)
            method = xv.algorithms.StochasticProjectedGradient(
                update=xv.algorithms.Adam(lambda k, n=epochs * steps: options.rate * (1 - k / n)), certify=2 * steps
            )
            fit = xv.solve(
                problem, theta0, over=autoencoder.over(), algorithm=method, max_iter=epochs * steps, backend="torch",
                progress=False,
            )  # fmt: skip
        assert fit is not None
        grown, size = mebibytes() - before, (folder / "train").stat().st_size / 2**20
        held = np.load(folder / "test.npy")
        R = design(fit.theta, {"X": held, "scale": numbers["scale"]}) @ fit.w - held
        loss, floor = 0.5 * float((R**2).sum(axis=1).mean()), numbers["floor"]
        print(f"{options.epochs} epochs, {fit.counts.rows:.0f} rows, {fit.seconds:.0f} s; test loss {loss:.3f},")
        print(f"PCA {floor:.3f}, {100 * (loss / floor - 1):+.1f} %;")
        print(f"memory grew by {grown:.0f} MiB, the file has {size:.0f}")


if __name__ == "__main__":
    main()
