"""The command line: ``xvarpro run``, ``compare``, ``verify``, ``conformance`` and ``backends``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, NoReturn

try:
    import rich  # noqa: F401
    import typer
except ImportError as error:
    print(f"the xvarpro command needs {error.name}: pip install 'xvarpro[cli]'", file=sys.stderr)
    raise SystemExit(2) from None

import numpy as np

import xvarpro
from xvarpro import __version__, algorithms
from xvarpro import backends as registry
from xvarpro.cli import options, tables
from xvarpro.cli.conformance import command as conformance
from xvarpro.errors import ProblemError, XvarproError
from xvarpro.problem.loading import load

# in the extra `cli`, and imported only where they are used
_OPTIONAL = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}

EXPERIMENTS = "xvarpro.experiments"  # the group of entry points of ``xvarpro run``

app = typer.Typer(
    help="Constrained variable projection on NumPy, CuPy, PyTorch or JAX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
run = typer.Typer(help="Run one of the paper's experiments with its rivals.", no_args_is_help=True)
app.add_typer(run, name="run")


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(2)


def _guarded(command: Callable[..., Any]) -> Callable[..., None]:
    """The command with a user's mistakes told in one line; anything else keeps its traceback."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except XvarproError as error:
            _fail(str(error))
        except ImportError as error:
            name = (error.name or "").partition(".")[0]
            missing = _OPTIONAL.get(name)
            _fail(f"{missing} is not installed: pip install 'xvarpro[cli]'" if missing else str(error))
        except OSError as error:
            _fail(f"{error.strerror}: {error.filename}" if error.filename else str(error))

    return guarded


def _register() -> None:
    """Every entry point of the group is a subcommand of ``run``: an experiment of this project or of a user."""
    for entry in entry_points(group=EXPERIMENTS):
        run.command(entry.name)(_guarded(entry.load()))


_register()
app.command("conformance")(_guarded(conformance))


@run.callback()
def _several() -> None:
    """Run one of the paper's experiments with its rivals."""  # a callback keeps a lone experiment a subcommand


@app.command()
def backends() -> None:
    """List the backends: versions, devices, where derivatives come from, and what to install for the rest."""
    screen = tables.console()
    screen.print(f"xvarpro {__version__}", style="bold")
    columns = ("backend", "version", "devices", "derivatives", "compiled loops", "float64", "note")
    table = tables.table(screen, *columns, wrap="note")
    for name in registry.known():
        table.add_row(*_describe(name))
    screen.print(table)


@app.command()
def compare(
    problem: Annotated[
        str, typer.Argument(help="package.module:function or file.py:function, which returns (problem, theta0, over).")
    ],
    backends: Annotated[str, typer.Option(help="Two or more, with commas; the first is the reference.")] = (
        "numpy,torch,jax"
    ),
    algorithm: Annotated[
        str, typer.Option(help="Of xvarpro.algorithms, with its defaults; the paper's takes identical steps.")
    ] = "cr_varpro",
    iterations: Annotated[int, typer.Option(help="On each backend.")] = 300,
    dtype: Annotated[str, typer.Option(help="float64 or float32.")] = "float64",
    out: Annotated[
        Path | None, typer.Option(help="Folder for a figure, comparison.json and a result per backend.")
    ] = None,
) -> None:
    """Run one problem on several backends, and say where they part. Exit status 1 where they do not agree."""
    _guarded(_compare)(problem, backends, algorithm, iterations, dtype, out)


def _compare(name: str, among: str, algorithm: str, iterations: int, dtype: str, out: Path | None) -> None:
    names = options.split(among)
    options.check_dtype(dtype)
    for each in names:
        options.check_backend(each)
    make = getattr(algorithms, algorithm, None) if algorithm in algorithms.__all__ else None
    if make is None:
        raise ProblemError(f"no algorithm {algorithm!r}: see xvarpro.algorithms")
    stated = load(name)
    found = xvarpro.compare(
        stated.problem,
        stated.theta0,
        over=stated.over,
        backends=names,
        algorithm=make(),
        max_iter=iterations,
        dtype=dtype,
    )
    screen = tables.console()
    screen.print(tables.agreement(screen, found))
    screen.print(str(found).partition("\n")[2])
    screen.print(found.verdict, style="green" if found.agree else "red")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        found.plot().savefig(out / "comparison.png", dpi=200)
        tables.write_summary(out / "comparison.json", found.record())
        for each, fit in found.fits.items():
            fit.save(out / f"{each}.npz", problem=name)
        files = ", ".join(f"{each}.npz" for each in found.fits)
        screen.print(f"wrote comparison.png, comparison.json and {files} to {out}")
    if not found.agree:
        raise typer.Exit(1)


@app.command()
def verify(
    result: Annotated[Path, typer.Argument(help="A file of Result.save.")],
    problem: Annotated[
        str | None,
        typer.Option(help="package.module:function or file.py:function. Default: the name in the file, which is run."),
    ] = None,
    backend: Annotated[str | None, typer.Option(help="Where to look. Default: where it was solved.")] = None,
    device: options.Device = None,
    dtype: Annotated[str | None, typer.Option(help="float64 or float32. Default: the result's.")] = None,
    run: Annotated[bool, typer.Option(help="Do the solve again, too.")] = True,
    tolerance: Annotated[
        float | None, typer.Option(help="Of two objectives, relative. Default: 1e-9 in float64, 1e-2 in float32.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for all that was found, as JSON.")] = None,
) -> None:
    """Look at a result again: is what it claims true, and does the same solve end there. Exit status 1 where not."""
    _guarded(_verify)(result, problem, backend, device, dtype, run, tolerance, out)


def _verify(
    result: Path,
    problem: str | None,
    backend: str | None,
    device: str | None,
    dtype: str | None,
    run: bool,
    tolerance: float | None,
    out: Path | None,
) -> None:
    if dtype is not None:
        options.check_dtype(dtype)
    found = xvarpro.verify(
        result, problem, backend=backend, device=device, dtype=dtype, rerun=run, tolerance=tolerance, progress=None
    )
    screen = tables.console()
    screen.print(str(found).rpartition("\n")[0])
    screen.print(found.verdict, style="green" if found.ok else "red")
    if out is not None:
        tables.write_summary(out, found.record())
        screen.print(f"wrote {out}")
    if not found.ok:
        raise typer.Exit(1)


def _describe(name: str) -> tuple[str, ...]:
    """One row; a framework that is absent or broken gets a note, whatever it raises."""
    absent = ("", "", "", "", "")
    if not registry.installed(name):
        try:
            registry.get(name)
        except Exception as error:
            return (name, "not installed", *absent[1:], str(error).rpartition(": ")[2])
    try:
        backend = registry.get(name)
    except Exception as error:
        return (name, "broken", *absent[1:], _first_line(error))
    version = str(backend.describe().get(name, "?"))
    row = (name, version, "{}", backend.autodiff, "yes" if backend.compiled else "no")
    try:
        devices = ", ".join(backend.devices())
        with backend.scope("float64"):
            double = backend.dtype_name(backend.asarray(np.zeros(1), dtype="float64")) == "float64"
    except Exception as error:
        return (*(x.format("none") for x in row), "", _first_line(error))
    return (*(x.format(devices) for x in row), "yes" if double else "no", "")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
