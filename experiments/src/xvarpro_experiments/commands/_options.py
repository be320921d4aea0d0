"""Options that every experiment takes, and the checks that come before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from xvarpro import Comparison
from xvarpro.cli import options as shared
from xvarpro.errors import ProblemError
from xvarpro_experiments.race import Experiment, compare

Seconds: TypeAlias = Annotated[float, typer.Option(help="Seconds per method; set-up and compilation do not count.")]
Iterations: TypeAlias = Annotated[
    int | None, typer.Option(help="Iterations per method. Default: what the time allows.")
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of the first start.")]
Repeat: TypeAlias = Annotated[int, typer.Option(help="Starts: this many seeds, one after the other.")]
Units: TypeAlias = Annotated[
    float, typer.Option(help="Factor on the units: the same reduced problem, another one for joint methods.")
]
Out: TypeAlias = Annotated[
    Path, typer.Option(help="Folder for figures, result and summary. A run that was interrupted goes on from there.")
]
Compare: TypeAlias = Annotated[
    str | None, typer.Option(help="Also run the paper's method on these backends, such as numpy,torch,jax.")
]
_COMPARED = 50


def compared(names: str | None, seed: int, iterations: int | None, double: Callable[[], Experiment]) -> Any:
    """The comparison that ``--compare`` asks for, checked now and run when called; None without it."""
    if not names:
        return None
    backends = [shared.check_backend(name).name for name in shared.split(names)]

    def run() -> Comparison:
        return compare(double().task(seed), backends, min(_COMPARED, iterations or _COMPARED))

    return run


def seeds(first: int, repeat: int) -> range:
    """`repeat` seeds from the first on."""
    if repeat < 1:
        raise ProblemError(f"repeat must be >= 1, got {repeat}")
    if first < 0:
        raise ProblemError(f"seed must be >= 0, got {first}")
    return range(first, first + repeat)
