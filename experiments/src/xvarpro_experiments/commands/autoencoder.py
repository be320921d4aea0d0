"""``xvarpro run autoencoder``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro_experiments import autoencoder, frame

# for `xvarpro run all`
SMALL = {"images": "digits", "samples": 300, "iterations": 15, "time": 5.0}


@frame.command(time=60.0, out=Path("xvarpro-out/autoencoder"))
def command(
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
