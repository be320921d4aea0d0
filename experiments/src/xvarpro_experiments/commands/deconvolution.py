"""``xvarpro run deconvolution``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro.cli import options as shared
from xvarpro_experiments import deconvolution
from xvarpro_experiments.commands import _options as options
from xvarpro_experiments.commands._conduct import conduct
from xvarpro_experiments.descent import Budget

SMALL = {"signals": 20, "length": 64, "iterations": 200, "time": 5.0}  # for `xvarpro run all`


def command(
    backend: shared.Backend = "numpy",
    device: shared.Device = None,
    dtype: shared.Dtype = "float64",
    signals: Annotated[int, typer.Option(help="Signals that share the kernel.")] = 50,
    length: Annotated[int, typer.Option(help="Of a signal and of the kernel.")] = 128,
    radius: Annotated[float, typer.Option(help="Of the Frobenius ball, > 0.")] = 1.0,
    ridge: Annotated[float, typer.Option(help="Ridge lambda on the kernel, > 0.")] = 1e-3,
    noise: Annotated[float, typer.Option(help="Of the measured signals, relative, >= 0.")] = 0.01,
    units: options.Units = 1.0,
    iterations: options.Iterations = 5000,
    time: options.Seconds = 3.0,
    seed: options.Seed = 0,
    repeat: options.Repeat = 1,
    data: Annotated[Path | None, typer.Option(help="Not used: the signals are drawn.", hidden=True)] = None,
    out: options.Out = Path("xvarpro-out/deconvolution"),
    compare: options.Compare = None,
) -> dict[str, Any]:
    """Recover signals and the kernel that blurs all of them, with a known optimum (Example 3)."""
    framework = shared.check_backend(backend, device)
    budget, starts = Budget(iterations, time), options.seeds(seed, repeat)
    stated = partial(
        deconvolution.experiment, n=signals, length=length, rho=radius, lam=ridge, noise=noise, units=units
    )
    experiment = stated(dtype=shared.check_dtype(dtype), backend=backend, device=device)
    return conduct(experiment, framework, budget, starts, out, options.compared(compare, seed, iterations, stated))
