"""``xvarpro run deblurring``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from tqdm import tqdm
from xvarpro_experiments import frame
from xvarpro_experiments.datasets import VARIABLE

from xvarpro.cli import tables
from xvarpro_deblurring import data, figures
from xvarpro_deblurring.experiment import experiment, scenes
from xvarpro_deblurring.restore import Deblurred, deblur


@frame.command(
    small={"size": 9, "scale": 5, "side": 96, "photographs": 1, "iterations": 25, "time": 5.0},
    time=5.0,
    data=(None, f"Folder with blurred photographs. Default: ${VARIABLE}."),
    out=Path("xvarpro-out/deblurring"),
)
def command(
    given: frame.Options,
    size: Annotated[int, typer.Option(help="Of the kernel in the photograph, in pixels, odd: an upper bound.")] = 27,
    scale: Annotated[int, typer.Option(help="Of the kernel at the scale at which the methods are compared.")] = 13,
    photographs: Annotated[int | None, typer.Option(help="How many are deblurred at the end. Default: all.")] = None,
    side: Annotated[int, typer.Option(help="Of the scenes that take the place of photographs, in pixels.")] = 255,
) -> dict[str, Any]:
    """Deblur photographs without knowing the blur: methods at one scale, then every photograph from coarse to fine."""
    real = given.data is not None or data.find_photographs() is not None
    seen = data.photographs(given.data) if real else scenes(side=side, size=min(size, 15))
    summary = given.run(partial(experiment, seen, size=size, scale=scale))
    rows = [deblur(each, size) for each in tqdm(seen[:photographs], "photographs", disable=None, leave=False)]
    return _write({**summary, "photographs": [row.record() for row in rows]}, rows, given.out)


def _write(summary: dict[str, Any], rows: Sequence[Deblurred], out: Path) -> dict[str, Any]:
    """The table of the photographs, its figures, and the summary with both."""
    screen = tables.console()
    screen.print("\nphotographs, from coarse to fine", style="bold")
    numbers = ("blurred, dB", "deblurred, dB", "gain, dB", "true kernel, dB", "kernel match", "trust", "s")
    table = tables.table(screen, "photograph", *numbers, right=numbers, wrap="photograph")
    for r in rows:
        cells = (r.blurred, r.deblurred, r.deblurred - r.blurred, r.known)
        table.add_row(r.name, *(f"{x:.1f}" for x in cells), f"{r.match:.2f}", f"{r.trust:.2f}", f"{r.seconds:.1f}")
    screen.print(table)
    gains = [r.deblurred - r.blurred for r in rows]
    screen.print(f"gain from {np.min(gains):.1f} to {np.max(gains):.1f} dB, {np.mean(gains):.1f} dB on average")
    figures.before_and_after(rows).savefig(out / "photographs.png", dpi=200)
    tables.write_summary(out / "summary.json", summary)
    screen.print(f"wrote photographs.png to {out}")
    return summary
