"""``xvarpro run fewshot``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro.cli import options as shared
from xvarpro_experiments import datasets, fewshot
from xvarpro_experiments.commands import _options as options
from xvarpro_experiments.commands._conduct import conduct
from xvarpro_experiments.descent import Budget

# for `xvarpro run all`
SMALL = {"repeat": 2, "validation": 1, "tests": 20, "iterations": 10, "time": 5.0}


def command(
    backend: shared.Backend = "numpy",
    device: shared.Device = None,
    dtype: Annotated[
        str | None, typer.Option(help="float64 or float32. Default: float64, for a ResNet-18 float32.")
    ] = None,
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
    units: options.Units = 1.0,
    iterations: options.Iterations = 100,
    time: options.Seconds = 30.0,
    seed: options.Seed = 0,
    repeat: Annotated[int, typer.Option(help="Episodes: this many seeds, one after the other.")] = 20,
    data: Annotated[Path | None, typer.Option(help=f"Folder with the images. Default: ${datasets.VARIABLE}.")] = None,
    out: options.Out = Path("xvarpro-out/fewshot"),
    compare: options.Compare = None,
) -> dict[str, Any]:
    """Learn classes from a shot in each of two splits, the linear head eliminated (Example 4)."""
    framework = shared.check_backend(backend, device)
    budget, starts = Budget(iterations, time), options.seeds(seed, repeat)
    stated = partial(
        fewshot.experiment,
        source,
        data,
        weights,
        trained,
        shots=shots,
        tests=tests,
        validation=validation,
        units=units,
    )
    chosen = None if dtype is None else shared.check_dtype(dtype)
    experiment = stated(backend=backend, device=device, dtype=chosen)
    same = options.compared(compare, seed, iterations, partial(stated, dtype="float64"))
    return conduct(experiment, framework, budget, starts, out, same)
