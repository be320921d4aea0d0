"""``xvarpro run autoencoder``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro import datasets
from xvarpro.experiments import autoencoder
from xvarpro.experiments.commands import _options as options
from xvarpro.experiments.commands._conduct import conduct
from xvarpro.experiments.methods import Budget

SMALL = {"images": "digits", "samples": 600, "iterations": 60, "time": 5.0}  # for `xvarpro run all`


def command(
    backend: options.Backend = "numpy",
    device: options.Device = None,
    dtype: options.Dtype = "float64",
    images: Annotated[str, typer.Option(help="mnist, cifar10 or digits.")] = "mnist",
    samples: Annotated[int | None, typer.Option(help="Training images. Default: all.")] = None,
    ridge: Annotated[
        float, typer.Option(help="Ridge lambda on the decoder, per image of its level, > 0.")
    ] = autoencoder.RIDGE,
    radius: Annotated[float, typer.Option(help="Bound rho on the sum of s, > 0.")] = autoencoder.RHO,
    batch: Annotated[int, typer.Option(help="Images of each level in a mini-batch.")] = 500,
    units: options.Units = 1.0,
    iterations: options.Iterations = None,
    time: options.Seconds = 60.0,
    seed: options.Seed = 0,
    repeat: options.Repeat = 1,
    data: Annotated[Path | None, typer.Option(help=f"Folder with the images. Default: ${datasets.VARIABLE}.")] = None,
    out: options.Out = Path("xvarpro-out/autoencoder"),
    compare: options.Compare = None,
) -> dict[str, Any]:
    """Learn an encoder that selects its latent dimensions, the linear decoder eliminated (Example 1)."""
    framework = options.check_backend(backend, device)
    budget, starts = Budget(iterations, time), options.seeds(seed, repeat)
    found = autoencoder.load(images, samples, folder=data)
    stated = partial(autoencoder.experiment, found, batch=batch, ridge=ridge, rho=radius, units=units)
    experiment = stated(dtype=options.check_dtype(dtype), backend=backend, device=device)
    same = options.compared(compare, seed, iterations, stated)
    return conduct(experiment, framework, budget, starts, out, same, found.fallback or None)
