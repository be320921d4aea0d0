"""``xvarpro run fewshot``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro_experiments import fewshot, frame

# for `xvarpro run all`
SMALL = {"validation": 1, "tests": 20, "repeat": 5, "iterations": 10, "time": 5.0}


@frame.command(
    dtype=(None, "float64 or float32. Default: float64, for a ResNet-18 float32."),
    iterations=100,
    time=30.0,
    repeat=(20, "Episodes: this many seeds, one after the other."),
    out=Path("xvarpro-out/fewshot"),
)
def command(
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
