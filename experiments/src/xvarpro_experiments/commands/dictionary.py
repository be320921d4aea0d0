"""``xvarpro run dictionary``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro_experiments import datasets, dictionary, frame
from xvarpro_experiments.checks import whole

FALLBACK = (
    f"No MNIST files were found, so this runs on scikit-learn's 8 x 8 digits; for the paper's data, point --data or "
    f"{datasets.VARIABLE} to a folder with train-images-idx3-ubyte.gz."
)
SMALL = {"pixels": 0, "samples": 500, "atoms": 32, "iterations": 40, "time": 5.0}  # for `xvarpro run all`


@frame.command(
    time=(None, "Seconds per method, set-up and compilation apart. Default: 20 for MNIST, 1 for the digits."),
    data=(None, f"Folder with MNIST's IDX files. Default: ${datasets.VARIABLE}."),
    out=Path("xvarpro-out/dictionary"),
)
def command(
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
