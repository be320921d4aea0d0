"""``xvarpro run deblurring``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro import datasets
from xvarpro.experiments import deblurring
from xvarpro.experiments.commands import _options as options
from xvarpro.experiments.commands._conduct import conduct
from xvarpro.experiments.methods import Budget

SMALL = {"scale": 5, "size": 9, "iterations": 100, "time": 5.0, "photographs": 1}  # for `xvarpro run all`


def command(
    backend: options.Backend = "numpy",
    device: options.Device = None,
    dtype: options.Dtype = "float64",
    size: Annotated[int, typer.Option(help="Of the kernel in the photograph, in pixels, odd: an upper bound.")] = 27,
    scale: Annotated[int, typer.Option(help="Of the kernel at the scale at which the methods are compared.")] = 13,
    ridge: Annotated[float, typer.Option(help="Ridge on the kernel, > 0.")] = deblurring.RIDGE,
    photographs: Annotated[int | None, typer.Option(help="How many are deblurred at the end. Default: all.")] = None,
    units: options.Units = 1.0,
    iterations: options.Iterations = None,
    time: options.Seconds = 5.0,
    seed: options.Seed = 0,
    repeat: options.Repeat = 1,
    data: Annotated[
        Path | None, typer.Option(help=f"Folder with blurred photographs. Default: ${datasets.VARIABLE}.")
    ] = None,
    out: options.Out = Path("xvarpro-out/deblurring"),
    compare: options.Compare = None,
) -> dict[str, Any]:
    """Deblur photographs without knowing the blur: methods at one scale, then every photograph from coarse to fine."""
    framework = options.check_backend(backend, device)
    budget, starts = Budget(iterations, time), options.seeds(seed, repeat)
    given = datasets.photographs(data) if data is not None or datasets.find_photographs() else deblurring.scenes()
    stated = partial(deblurring.experiment, given, size=size, scale=scale, ridge=ridge, units=units)
    experiment = stated(dtype=options.check_dtype(dtype), backend=backend, device=device)
    return conduct(experiment, framework, budget, starts, out, options.compared(compare, seed, iterations, stated))
