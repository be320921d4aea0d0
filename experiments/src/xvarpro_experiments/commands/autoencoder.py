"""``xvarpro run autoencoder``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from xvarpro.cli import options as shared
from xvarpro.cli import tables
from xvarpro.errors import ProblemError
from xvarpro_experiments import autoencoder, datasets
from xvarpro_experiments.commands import _options as options
from xvarpro_experiments.commands._conduct import conduct
from xvarpro_experiments.descent import Budget

# for `xvarpro run all`
SMALL = {"images": "digits", "samples": 600, "iterations": 60, "time": 5.0}


def command(
    backend: shared.Backend = "numpy",
    device: shared.Device = None,
    dtype: shared.Dtype = "float64",
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
    units: options.Units = 1.0,
    iterations: options.Iterations = None,
    time: options.Seconds = 60.0,
    seed: options.Seed = 0,
    repeat: options.Repeat = 1,
    data: Annotated[Path | None, typer.Option(help=f"Folder with the images. Default: ${datasets.VARIABLE}.")] = None,
    out: options.Out = Path("xvarpro-out/autoencoder"),
    compare: options.Compare = None,
) -> dict[str, Any]:
    """Learn an encoder that selects its latent dimensions, the linear decoder eliminated (Example 1)."""
    framework = shared.check_backend(backend, device)
    budget, starts = Budget(iterations, time), options.seeds(seed, repeat)
    found = autoencoder.load(images, samples, folder=data)
    numbers: dict[str, Any] = {"rho": radius, "units": units, "splits": levels} | (
        {} if ridge is None else {"ridge": ridge}
    )
    if sweep is not None:
        where = {"backend": backend, "device": device, "dtype": shared.check_dtype(dtype)}
        return _swept(sweep, found, time, iterations, seed, out, numbers | where)
    stated = partial(autoencoder.collapse, found, **numbers)
    if not collapse:
        stated = partial(autoencoder.experiment, found, batch=batch, **numbers)
    experiment = stated(dtype=shared.check_dtype(dtype), backend=backend, device=device)
    same = options.compared(compare, seed, iterations, stated)
    return conduct(experiment, framework, budget, starts, out, same, found.fallback or None)


def _swept(
    ridges: str,
    data: autoencoder.Data,
    seconds: float,
    iterations: int | None,
    seed: int,
    out: Path,
    numbers: dict[str, Any],
) -> dict[str, Any]:
    """A solve for every ridge: a table, a figure, a summary."""
    from xvarpro_experiments.autoencoder import figures  # matplotlib: only where a figure is drawn

    try:
        values = [float(x) for x in ridges.split(",")]
    except ValueError as error:
        raise ProblemError(
            f"--sweep needs ridges with commas between them, such as 1e-8,1e-3: got {ridges!r}"
        ) from error
    numbers.pop("ridge", None)
    out.mkdir(parents=True, exist_ok=True)
    screen = tables.console()
    found = autoencoder.sweep(values, data=data, seconds=seconds, iterations=iterations or 10**9, seed=seed, **numbers)
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
