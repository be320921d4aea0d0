"""The command line: ``xvarpro fit``, ``run``, ``compare``, ``verify``, ``conformance`` and ``backends``."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, NoReturn

try:
    import rich  # noqa: F401
    import typer
    from typer.core import TyperGroup
    from typer.main import get_command
except ImportError as error:
    from xvarpro.errors import pip_install

    print(f"the xvarpro command needs {error.name}: {pip_install('cli')}", file=sys.stderr)
    raise SystemExit(2) from None

import numpy as np

import xvarpro
from xvarpro import __version__, algorithms
from xvarpro import backends as registry
from xvarpro.cli import options, programs, tables
from xvarpro.cli.conformance import command as conformance
from xvarpro.cli.fit import command as fit
from xvarpro.core.namespace import dtype_name
from xvarpro.errors import ProblemError, XvarproError
from xvarpro.problem.loading import load

# in the extra `cli`, and imported only where they are used
_OPTIONAL = {"matplotlib": "matplotlib", "sklearn": "scikit-learn", "threadpoolctl": "threadpoolctl"}

GROUP = "xvarpro.experiments"  # of entry points: a command for ``xvarpro run`` each
NO_EXPERIMENTS = (
    "xvarpro run needs an experiment, and no installed package registers one. Those of the paper: "
    "pip install xvarpro-experiments, or in a clone pip install ./experiments. One of your own, in the pyproject.toml "
    f'of your package: [project.entry-points."{GROUP}"] NAME = "package.module:function"'
)


class Program(TyperGroup):
    """The whole command line: a user's mistake ends in one line and exit status 2, any other error in its traceback."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any) -> Any:
        try:
            try:
                _writes_any_text()
                if "--version" in (sys.argv[1:] if args is None else args):
                    print(f"xvarpro {__version__}")
                    raise SystemExit(0)
                with _sigterm_exits(), _warnings_in_a_line():
                    return super().main(args, *rest, **kwargs)
            finally:
                if sys.stdout is not None:  # as it is where the shell has closed it
                    sys.stdout.flush()
        except XvarproError as error:
            _end(str(error))
        except ImportError as error:
            name = (error.name or "").partition(".")[0]
            missing = _OPTIONAL.get(name)
            _end(f"{missing} is not installed: pip install {missing}" if missing else str(error))
        except MemoryError as error:
            _end(f"not enough memory: {error}")
        except BrokenPipeError:  # the reader has seen enough
            _end()
        except OSError as error:
            _end(f"{error.strerror}: {error.filename}" if error.filename else error.strerror or str(error))


app = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _program(
    version: Annotated[bool, typer.Option("--version", help="Show the version, after any command, and exit.")] = False,
) -> None:
    """Constrained variable projection on NumPy, CuPy, PyTorch or JAX."""


def _end(message: str | None = None) -> NoReturn:
    """Exit, with a line on standard error if there is something to say."""
    for stream, text in ((sys.stderr, f"error: {message}\n" if message else ""), (sys.stdout, "")):
        if stream is None:
            continue
        try:
            stream.write(text)
            stream.flush()
        except OSError:  # it takes nothing, and Python would try again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(2 if message else 1)


def _writes_any_text() -> None:
    """Let streams that cannot encode a character write ``?``, as those of Windows that are no terminal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def _sigterm_exits() -> Iterator[None]:
    """SIGTERM as an exception that ends with status 143, so that files are closed and temporary ones removed."""
    if threading.current_thread() is not threading.main_thread():  # only there Python takes signals
        yield
        return

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Warnings of the package without file and line: the caller that they name is typer here, not the user's code."""
    before, own = warnings.formatwarning, os.path.dirname(typer.__file__)

    def in_a_line(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        plain = filename.startswith(own)
        return f"warning: {message}\n" if plain else before(message, category, filename, lineno, line)

    warnings.formatwarning = in_a_line
    try:
        yield
    finally:
        warnings.formatwarning = before


def _failing(message: str) -> Callable[[], None]:
    return lambda: _end(message)


def register(app: typer.Typer, experiments: Iterable[EntryPoint]) -> None:
    """Add the command ``run``, with a subcommand for every experiment.

    The function that an entry point names is the subcommand; its parameters are options, as typer reads them.
    """
    known = {entry.name: entry for entry in experiments}
    if not known:
        app.command("run", help="Run an experiment (none installed).", context_settings=_ANY)(_failing(NO_EXPERIMENTS))
        return

    class Experiments(TyperGroup):
        """Subcommands that are imported when they are asked for: their modules may import this one."""

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            return _experiment(known[cmd_name]) if cmd_name in known else None

    run = typer.Typer(cls=Experiments, help="Run an experiment.", no_args_is_help=True)
    for name in known:
        run.command(name)(lambda: None)  # for the list of names
    app.add_typer(run, name="run")


def _experiment(entry: EntryPoint) -> Any:
    """The subcommand of an entry point; where it cannot be loaded, one that says why."""
    alone = typer.Typer(add_completion=False)
    programs.keep()
    try:
        alone.command(entry.name)(entry.load())
    except Exception as error:  # a package that is broken must not take the other commands away
        message = f"experiment {entry.name!r} cannot be loaded from {entry.value!r}: {_summary(error)}"
        alone.command(entry.name, help=message, context_settings=_ANY)(_failing(message))
    return get_command(alone)


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


_ANY = {"allow_extra_args": True, "ignore_unknown_options": True}  # a command that only fails, or hands them on

app.command("fit")(fit)
register(app, entry_points(group=GROUP))
app.command("conformance", context_settings=_ANY)(conformance)


@app.command()
def backends() -> None:
    """List the backends: version, devices, source of derivatives, and what to install for those that are missing."""
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
    backends: Annotated[
        str | None,
        typer.Option(
            help="Two or more, separated by commas; the first is the reference. Default: numpy, torch and jax where "
            "they are installed."
        ),
    ] = None,
    algorithm: Annotated[
        str, typer.Option(help="Name in xvarpro.algorithms, which runs with its defaults.")
    ] = "cr_varpro",
    iterations: Annotated[int, typer.Option(help="Iterations on each backend.")] = 300,
    dtype: options.Dtype = "float64",
    out: Annotated[
        Path | None, typer.Option(help="Folder for a figure, comparison.json and a result per backend.")
    ] = None,
) -> None:
    """Solve one problem on several backends and say where they part. Exit status 1 if they do not agree."""
    usual = ",".join(name for name in ("numpy", "torch", "jax") if registry.installed(name))
    names = options.split(usual if backends is None else backends)
    options.check_dtype(dtype)
    for each in names:
        options.check_backend(each)
    try:
        method = getattr(algorithms, algorithm)() if algorithm in algorithms.__all__ else None
    except TypeError:  # it is abstract, or takes arguments
        method = None
    if not isinstance(method, algorithms.Algorithm):
        raise ProblemError(f"--algorithm must name one of xvarpro.algorithms, such as cr_varpro; got {algorithm!r}")
    given = load(problem)
    found = xvarpro.compare(
        given.problem,
        given.theta0,
        over=given.over,
        backends=names,
        algorithm=method,
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
            fit.save(out / f"{each}.npz", problem=problem)
        files = ", ".join(f"{each}.npz" for each in found.fits)
        screen.print(f"wrote comparison.png, comparison.json and {files} to {out}")
    if not found.agree:
        raise typer.Exit(1)


@app.command()
def verify(
    result: Annotated[Path, typer.Argument(help="A file of Result.save.")],
    problem: Annotated[
        str | None,
        typer.Option(help="package.module:function or file.py:function, which is run."),
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Run the function that the file names.")] = False,
    backend: Annotated[str | None, typer.Option(help="Where to compute. Default: where it was solved.")] = None,
    device: options.Device = None,
    dtype: Annotated[str | None, typer.Option(help="float64 or float32. Default: the result's.")] = None,
    run: Annotated[bool, typer.Option(help="Repeat the solve.")] = True,
    tolerance: Annotated[
        float | None, typer.Option(help="Relative, of objectives. Default: 1e-9 in float64, 1e-2 in float32.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the outcome, as JSON.")] = None,
) -> None:
    """Check a result: its value, gap and w, and where a second solve ends. Exit status 1 if a check fails."""
    if dtype is not None:
        options.check_dtype(dtype)
    found = xvarpro.verify(
        result,
        problem,
        trust=trust,
        backend=backend,
        device=device,
        dtype=dtype,
        rerun=run,
        tolerance=tolerance,
        progress=None,
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
    """Row of a backend; a framework that is missing or broken gets a note with its error."""
    absent = ("", "", "", "", "")
    if not registry.installed(name):
        try:
            registry.get(name)
        except Exception as error:
            return (name, "not installed", *absent[1:], str(error).rpartition(": ")[2])
    try:
        backend = registry.get(name)
    except Exception as error:
        return (name, "broken", *absent[1:], _summary(error))
    facts = backend.describe()
    version, derivatives = str(facts.get(name, "?")), str(facts.get("derivatives", "its own"))
    row = (name, version, "{}", derivatives, "yes" if backend.compiled else "no")
    try:
        devices = ", ".join(backend.devices())
        with backend.scope("float64"):
            double = dtype_name(backend.asarray(np.zeros(1), dtype="float64")) == "float64"
    except Exception as error:
        return (*(x.format("none") for x in row), "", _summary(error))
    return (*(x.format(devices) for x in row), "yes" if double else "no", "")
