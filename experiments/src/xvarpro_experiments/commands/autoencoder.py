"""``xvarpro run autoencoder``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro.cli import options as shared
from xvarpro.cli import tables
from xvarpro.errors import ProblemError
from xvarpro_experiments import autoencoder
from xvarpro_experiments.commands import _frame

# for `xvarpro run all`
SMALL = {"images": "digits", "samples": 600, "iterations": 60, "time": 5.0}


@_frame.command(time=60.0, out=Path("xvarpro-out/autoencoder"))
def command(
    given: _frame.Options,
    images: Annotated[str, typer.Option(help="mnist, cifar10 or digits.")] = "mnist",
    samples: Annotated[int | None, typer.Option(help="Training images. Default: all.")] = None,
    ridge: Annotated[
        float | None, typer.Option(help="Ridge lambda on the decoder, per image of its level, > 0. Default: 1e-8.")
    ] = None,
    radius: Annotated[float, typer.Option(help="Bound rho on the sum of s, > 0.")] = autoencoder.RHO,
    levels: Annotated[
        int, typer.Option(help="2: decoder and encoder from a split each, the paper's. 1: from all.")
    ] = 2,
    collapse: Annotated[
        bool, typer.Option("--collapse", help="Instead: what one step for all does to the latents, at a ridge of 1e-3.")
    ] = False,
    sweep: Annotated[
        str | None, typer.Option(help="Instead: test loss against active latents for these ridges, such as 1e-8,1e-3.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Images of each level in a mini-batch.")] = 500,
) -> dict[str, Any]:
    """Learn an encoder that selects its latent dimensions, the linear decoder eliminated (Example 1)."""
    found = autoencoder.load(images, samples, folder=given.data)
    numbers: dict[str, Any] = {"rho": radius, "splits": levels} | ({} if ridge is None else {"ridge": ridge})
    if sweep is not None:
        return _swept(sweep, found, given, numbers)
    if collapse:
        return given.run(partial(autoencoder.collapse, found, **numbers), found.fallback or None)
    return given.run(partial(autoencoder.experiment, found, batch=batch, **numbers), found.fallback or None)


def _swept(ridges: str, data: autoencoder.Data, given: _frame.Options, numbers: dict[str, Any]) -> dict[str, Any]:
    """A solve for every ridge: a table, a figure, a summary."""
    from xvarpro_experiments.autoencoder import figures  # matplotlib: only where a figure is drawn

    shared.check_backend(given.backend, given.device)
    shared.check_dtype(given.dtype or "")
    try:
        values = [float(x) for x in ridges.split(",")]
    except ValueError as error:
        raise ProblemError(
            f"--sweep needs ridges with commas between them, such as 1e-8,1e-3: got {ridges!r}"
        ) from error
    names = ("units", "backend", "device", "dtype")
    numbers = {k: x for k, x in numbers.items() if k != "ridge"} | {name: getattr(given, name) for name in names}
    out, iterations = given.out, given.iterations or 10**9
    out.mkdir(parents=True, exist_ok=True)
    screen = tables.console()
    found = autoencoder.sweep(values, None, given.time, iterations, given.seed, data=data, **numbers)
    columns = ("ridge per image", "active latents", "test loss", "PCA", "above it", "refitted")
    table = tables.table(screen, *columns, right=columns)
    for k in found:
        cells = (f"{k.loss:.4g}", f"{k.floor:.4g}", f"{k.excess:+.1%}", f"{k.refitted_excess:+.1%}")
        table.add_row(f"{k.ridge:g}", str(k.active), *cells)
    screen.print(f"{data.source}: test loss 1/2 |x - xhat|^2 per image, next to PCA with as many axes", style="bold")
    screen.print(table)
    figures.sweep(found, data.source).savefig(out / "sweep.png", dpi=200)
    rows = [
        {"ridge": k.ridge, "active": k.active, "loss": k.loss, "floor": k.floor, "refitted": k.refitted} for k in found
    ]
    summary = {"experiment": "autoencoder-sweep", "data": data.source, "config": numbers, "ridges": rows}
    tables.write_summary(out / "summary.json", summary)
    screen.print(f"wrote sweep.png and summary.json to {out}")
    return summary
