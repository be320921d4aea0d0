"""``xvarpro run deconvolution``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro_experiments import deconvolution, frame

SMALL = {"signals": 20, "length": 64, "iterations": 80, "time": 5.0}  # for `xvarpro run all`


@frame.command(iterations=5000, time=3.0, data=(None, None), out=Path("xvarpro-out/deconvolution"))
def command(
    given: frame.Options,
    signals: Annotated[int, typer.Option(help="Signals that share the kernel.")] = 50,
    length: Annotated[int, typer.Option(help="Of a signal and of the kernel.")] = 128,
) -> dict[str, Any]:
    """Recover signals and the kernel that blurs all of them, with a known optimum (Example 3)."""
    return given.run(partial(deconvolution.experiment, n=signals, length=length))
