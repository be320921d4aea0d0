"""``xvarpro run``: the commands that this package registers."""

from __future__ import annotations

import time
from enum import Enum
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro import backends
from xvarpro.cli import options as shared
from xvarpro.cli import tables
from xvarpro_experiments import autoencoder, datasets, deconvolution, dictionary, fewshot, frame, report, sanity
from xvarpro_experiments.checks import whole

FALLBACK = (
    f"No MNIST files were found, so this runs on scikit-learn's 8 x 8 digits; for the paper's data, point --data or "
    f"{datasets.VARIABLE} to a folder with train-images-idx3-ubyte.gz."
)
_COMPARED = ("numpy", "torch", "jax", "array-api-strict")


@frame.command(
    small={"images": "digits", "samples": 300, "iterations": 15, "time": 5.0},
    time=60.0,
    out=Path("xvarpro-out/autoencoder"),
)
def run_autoencoder(
    given: frame.Options,
    images: Annotated[str, typer.Option(help="mnist, cifar10 or digits.")] = "mnist",
    samples: Annotated[int | None, typer.Option(help="Training images. Default: all.")] = None,
    levels: Annotated[
        int, typer.Option(help="2: decoder and encoder from a split each, the paper's. 1: from all.")
    ] = 2,
) -> dict[str, Any]:
    """Learn an encoder that selects its latent dimensions, the linear decoder eliminated (Example 1)."""
    found = autoencoder.load(images, samples, folder=given.data)
    return given.run(partial(autoencoder.experiment, found, splits=levels), found.fallback or None)


@frame.command(
    small={"signals": 20, "length": 64, "iterations": 80, "time": 5.0},
    iterations=5000,
    time=3.0,
    data=(None, None),
    out=Path("xvarpro-out/deconvolution"),
)
def run_deconvolution(
    given: frame.Options,
    signals: Annotated[int, typer.Option(help="Signals that share the kernel.")] = 50,
    length: Annotated[int, typer.Option(help="Of a signal and of the kernel.")] = 128,
) -> dict[str, Any]:
    """Recover signals and the kernel that blurs all of them, with a known optimum (Example 3)."""
    return given.run(partial(deconvolution.experiment, n=signals, length=length))


@frame.command(
    small={"pixels": 0, "samples": 500, "atoms": 32, "iterations": 40, "time": 5.0},
    time=(None, "Seconds per method, set-up and compilation apart. Default: 20 for MNIST, 1 for the digits."),
    data=(None, f"Folder with MNIST's IDX files. Default: ${datasets.VARIABLE}."),
    out=Path("xvarpro-out/dictionary"),
)
def run_dictionary(
    given: frame.Options,
    atoms: Annotated[int | None, typer.Option(help="Atoms. Default: 128 for MNIST, 32 for the digits.")] = None,
    pixels: Annotated[
        int | None,
        typer.Option(
            help="Budget of an atom; 0: the paper's set-up, one l1 budget for all atoms. Default: 0 for MNIST, "
            "10 for the digits, which the paper's budget takes apart into single pixels."
        ),
    ] = None,
    radius: Annotated[
        float,
        typer.Option(
            help="Bound on the sum of the dictionary's absolute values, or on each of them with --pixels; > 0."
        ),
    ] = 1.0,
    ridge: Annotated[
        float | None, typer.Option(help="Ridge lambda on the codes, >= 0. Default: the paper's 1e-5; 10 with --pixels.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Images. Default: 3000 of MNIST, all of the digits.")] = None,
) -> dict[str, Any]:
    """Learn a sparse dictionary of images with the paper's method and its rivals (Example 2: --pixels 0)."""
    whole(samples=samples)
    images = datasets.images(3000 if samples is None else samples, given.data)
    side, large = images.side, images.side > 8
    notice = None if large else FALLBACK
    atoms = (128 if large else 32) if atoms is None else atoms
    pixels = (0 if large else 10) if pixels is None else pixels
    ridge = (10.0 if pixels else 1e-5) if ridge is None else ridge
    stated = partial(dictionary.experiment, images.X, source=images.source, shape=(side, side), atoms=atoms)
    return given.run(partial(stated, radius=radius, lam=ridge, pixels=pixels), notice, 20.0 if large else 1.0)


@frame.command(
    small={"validation": 1, "tests": 20, "repeat": 5, "iterations": 10, "time": 5.0},
    dtype=(None, "float64 or float32. Default: float64, for a ResNet-18 float32."),
    iterations=100,
    time=30.0,
    repeat=(20, "Episodes: this many seeds, one after the other."),
    out=Path("xvarpro-out/fewshot"),
)
def run_fewshot(
    given: frame.Options,
    source: Annotated[str, typer.Option(help="digits, or cifar10 with a ResNet-18 pretrained on ImageNet.")] = "digits",
    weights: Annotated[
        Path | None, typer.Option(help="Safetensors file of the ResNet-18. Default: looked for in the data.")
    ] = None,
    trained: Annotated[
        str, typer.Option(help="layer: the network's last layer (layer 4); adapter: one on its frozen features.")
    ] = "layer",
    shots: Annotated[int, typer.Option(help="Of every class in each of the two splits.")] = 1,
    tests: Annotated[int, typer.Option(help="Images of every class on which an episode is tested.")] = 100,
    validation: Annotated[int, typer.Option(help="Episodes from which ridge, rates and iterations are chosen.")] = 5,
) -> dict[str, Any]:
    """Learn classes from a shot in each of two splits, the linear head eliminated (Example 4)."""
    numbers: dict[str, Any] = {"shots": shots, "tests": tests, "validation": validation}
    return given.run(partial(fewshot.experiment, source, given.data, weights, trained, **numbers))


class Size(str, Enum):
    """How much of every experiment is run."""

    small = "small"
    full = "full"


def run_all(
    budget: Annotated[
        Size, typer.Option(help="small: minutes, on a part of the data. full: every experiment's own defaults.")
    ] = Size.small,
    backend: shared.Backend = "numpy",
    data: frame.Data = None,
    seed: frame.Seed = 0,
    out: frame.Out = Path("xvarpro-out"),
) -> None:
    """Run every installed experiment and check its descent, certificate, feasibility and agreement of the backends."""
    shared.check_backend(backend)
    compared = ",".join(name for name in _COMPARED if backends.installed(name))
    given = {"backend": backend, "data": data, "seed": seed, "compare": compared if "," in compared else None}
    commands = {entry.name: entry.load() for entry in entry_points(group="xvarpro.experiments")}
    found: dict[str, Any] = {}
    for name in sorted(name for name, run in commands.items() if hasattr(run, "small")):
        began, run = time.perf_counter(), commands[name]
        summary = run(**(run.small if budget is Size.small else {}), **given, out=out / name)
        checks = [{**check._asdict(), "passed": check.passed} for check in sanity.checks(summary)]
        found[name] = {"seconds": time.perf_counter() - began, "best": summary["best"], "checks": checks}
    screen = tables.console()
    screen.print("\nall experiments", style="bold")
    screen.print(report.sanity(screen, found))
    tables.write_summary(out / "summary.json", {"budget": budget.value, "backend": backend, "experiments": found})
    screen.print(f"wrote summary.json to {out}")
    if not all(check["passed"] for each in found.values() for check in each["checks"]):
        raise typer.Exit(1)
