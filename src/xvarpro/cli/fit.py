"""``xvarpro fit``: a curve by name or of the user's own, fitted to columns of a CSV file."""

from __future__ import annotations

import csv
import inspect
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

import xvarpro
from xvarpro import models
from xvarpro.backends import to_numpy
from xvarpro.cli import columns, options, programs, tables
from xvarpro.core.namespace import dtype_name, is_complex
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.fit.result import Result
from xvarpro.lower import Bounded
from xvarpro.problem.loading import failures, find
from xvarpro.problem.parameters import Parameters
from xvarpro.results.files import write_atomically
from xvarpro.statistics.names import indexed
from xvarpro.statistics.reports import Report

BUILT_IN = tuple(name for name in models.__all__ if name not in ("columns", "polynomials"))
FORMATS = ("png", "pdf", "svg")
INTERVALS = ("linear", "profile", "bootstrap")
# powers of the unit of x in that of a parameter of `xvarpro.models`, and in that of a weight, next to the unit of y
POWERS = {"centre": 1, "centres": 1, "frequencies": -1, "rates": -1, "width": 1, "widths": 1}
WEIGHTS = {"decays": 0, "exponentials": 0, "gaussians": 1, "lorentzians": 1, "oscillations": 0, "pseudo_voigts": 1}
LOSSES = ("huber", "soft_l1", "cauchy", "quantile", "poisson", "log_poisson", "logistic")


class Model(NamedTuple):
    """A function ``f(x, **parameters)`` that returns columns, and what its file says of the parameters."""

    name: str
    function: Callable[..., Any]
    starts: dict[str, Any]  # of all its parameters; None where it gives none
    stated: Parameters | None  # the ``parameters`` of its file

    def __call__(self, x: Array, parameters: Mapping[str, Array]) -> Any:
        return self.function(x, *(parameters[name] for name in self.starts))


# what dates are counted in
UNITS = {
    "days": np.timedelta64(1, "D"),
    "hours": np.timedelta64(1, "h"),
    "minutes": np.timedelta64(1, "m"),
    "seconds": np.timedelta64(1, "s"),
}


class Columns(NamedTuple):
    """Samples that have an abscissa."""

    x: np.ndarray  # (m,)
    label: str  # of x
    unit: str  # of x, or empty
    table: np.ndarray  # x as it was read: dates, or the same numbers
    y: np.ndarray  # (m, k)
    weights: np.ndarray | None  # (m, k)


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="file.py:function or package.module:function, which is run: f(x, parameter=start, ...) that returns "
            f"columns. Or one of {', '.join(BUILT_IN)}."
        ),
    ],
    data: Annotated[Path, typer.Argument(metavar="DATA.csv", help="Its first line has the names of the columns.")],
    x: Annotated[str, typer.Option("--x", metavar="COLUMN", help="Samples: the function's first argument.")],
    y: Annotated[
        list[str], typer.Option("--y", metavar="COLUMN", help="What is fitted. Given again: with the same parameters.")
    ],
    sigma: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Standard deviations of y. Given again: one for each --y."),
    ] = None,
    relative: Annotated[
        bool, typer.Option("--relative-sigma", help="They are known up to a factor, which the residuals give.")
    ] = False,
    absolute_sigma: Annotated[
        bool, typer.Option("--absolute-sigma", help="Noise is the likelihood's, that of counts by --loss poisson.")
    ] = False,
    start: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBERS", help="Start of a parameter, such as rates=0.5,8.")
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LOW:HIGH", help="Bounds, such as rates=0:10 or rates=0: or, for each, rates=0:1,1:9."
        ),
    ] = None,
    fix: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="What stays at its start: rates, or rates[1].")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(metavar="LOSS", help=f"In the place of squares: {', '.join(LOSSES)}."),
    ] = None,
    positive: Annotated[bool, typer.Option("--positive", help="Amplitudes, but of a background, are >= 0.")] = False,
    background: Annotated[
        int | None, typer.Option(metavar="DEGREE", help="Add a polynomial: 0 for an offset, 1 for a line.")
    ] = None,
    interval: Annotated[
        str | None, typer.Option(metavar="METHOD", help=f"Add 95% intervals: {', '.join(INTERVALS)}.")
    ] = None,
    max_iter: Annotated[int, typer.Option(metavar="NUMBER", help="Iterations at most.")] = 1000,
    backend: options.Backend = "numpy",
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For what is written. Default: xvarpro-out/DATA-FUNCTION.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help=f"Of the figures: {', '.join(FORMATS)}.")] = "png",
) -> None:
    """Fit a model to columns of a CSV file: the report, a figure and tables. Exit status 1 if it did not converge."""
    folder = Path("xvarpro-out", f"{data.stem}-{model.rpartition(':')[2]}") if out is None else out
    (folder / "summary.json").unlink(missing_ok=True)  # an error must not leave that of an earlier run
    if form not in FORMATS:
        raise ProblemError(f"--format must be one of {', '.join(FORMATS)}; got {form!r}")
    if not (loss is None or loss in LOSSES):
        raise ProblemError(f"--loss must be one of {', '.join(LOSSES)}; got {loss!r}")
    if not (interval is None or interval in INTERVALS):
        raise ProblemError(f"--interval must be one of {', '.join(INTERVALS)}; got {interval!r}")
    programs.keep()
    options.check_backend(backend)
    given = _columns(data, x, y, sigma or [])
    found = _model(model)
    parameters = _parameters(found, _pairs("start", start), _pairs("bounds", bounds), fix or [])
    design = parameters.model(_Design(found, background, (float(given.x.min()), float(given.x.max()))))
    amplitudes = _amplitudes(found, parameters.values(), given, background)
    named = amplitudes if len(y) == 1 else [f"{name} of {column}" for name in amplitudes for column in y]
    names = [entry for name, start in parameters.values().items() for entry in indexed(name, np.shape(start))] + named
    if twice := [name for name in names if names.count(name) > 1]:
        raise ProblemError(f"parameters and columns of {found.name} must differ in name: rename one {twice[0]!r}")
    added = 0 if background is None else background + 1
    least = np.repeat([0.0, -np.inf], [len(amplitudes) - added, added])
    problem = xvarpro.separable(
        design,
        given.y[:, 0] if len(y) == 1 else given.y,
        data={x: given.x},
        weights=given.weights if given.weights is None or len(y) > 1 else given.weights[:, 0],
        W=Bounded(least, np.inf) if positive else None,
        loss=loss,
    )
    own = problem.lower.loss
    if absolute_sigma and not (own is not None and own.likelihood):
        raise ProblemError("--absolute-sigma is for --loss poisson, log_poisson or logistic; else give --sigma COLUMN")
    # others estimate the noise of each datum
    solve = xvarpro.solve if own is None or own.linked else partial(xvarpro.solve_robust, loss=own)
    fit = solve(problem, parameters.theta0, over=parameters.over, max_iter=max_iter, backend=backend)

    absolute = bool(sigma) and not relative if own is None else absolute_sigma or None
    report = fit.report(parameters, named, absolute_sigma=absolute)
    logarithms = own is not None and own.linked  # are what amplitudes add up to
    units = ["" if logarithms else columns.unit(name) for name in y]
    report = _with_units(report, found, given.unit, units, added)
    text = str(report).replace(xvarpro.Status.MAX_ITER.advice, f"Raise --max-iter, now {max_iter}.")
    of_python = "".join(xvarpro.Status.RANK_DEFICIENT.advice.partition(" Or add a ridge")[1:])
    for advice in (of_python, of_python.partition("; solver=")[0] + "."):  # of amplitudes in a set the shorter one
        text = text.replace(advice, " Or leave out columns that the data cannot tell apart.")
    texts = [text]
    summary, refused = {"data_file": str(data), **_summary(report)}, None
    if interval is not None:
        try:
            ends = fit.interval(0.95, interval, names=parameters, amplitudes=named, absolute_sigma=absolute)
        except ProblemError as error:  # all else is written first
            refused = str(error).replace("weights 1 / sigma^2 and absolute_sigma=True", "--sigma COLUMN")
        else:
            texts.append(str(ends).replace("absolute_sigma=True", "--absolute-sigma"))
            lower, upper = (dict(zip(ends.names, x.tolist(), strict=True)) for x in (ends.lower, ends.upper))
            summary["interval"] = {"level": ends.level, "method": ends.method, "lower": lower, "upper": upper}
    if given.label != x:
        texts.append(f"x is {given.label}")
    screen = tables.console()
    screen.print("\n\n".join(texts), soft_wrap=True)

    folder.mkdir(parents=True, exist_ok=True)
    again = (folder / "fitted.csv").exists()
    tables.write_text(folder / "report.txt", "\n\n".join(texts) + "\n")
    _write(
        folder / "parameters.csv",
        {"name": [row.name for row in report.rows], **report.columns, "unit": [row.unit for row in report.rows]},
    )
    tables.write_summary(folder / "summary.json", summary)
    _write(folder / "fitted.csv", _fitted(fit, x, y, given))
    files = ["report.txt", "summary.json", "parameters.csv", "fitted.csv"]
    for i, name in enumerate(y):
        file = f"fit.{form}" if len(y) == 1 else f"fit-{i + 1}.{form}"
        xlabel, ylabel, *plain = (text.replace("$", r"\$") for text in (given.label, name, *amplitudes))  # no formulas
        drawn = fit.plot_fit(column=i, xlabel=xlabel, ylabel=ylabel, names=plain, absolute_sigma=absolute)
        write_atomically(folder / file, partial(drawn.savefig, format=form, dpi=200))
        files.append(file)
    for path in folder.glob(f"fit*.{form}") if again else ():  # of a fit of more targets, or of fewer
        if path.name not in files and re.fullmatch(r"fit(-\d+)?", path.stem):
            path.unlink()
    screen.print(f"\nwrote {', '.join(files[:-1])} and {files[-1]} to {folder}", soft_wrap=True)
    if refused:
        raise ProblemError(f"--interval {interval}: {refused}")
    if not fit.success:
        raise typer.Exit(1)


class _Design:
    """The columns of a function and of a background, of all parameters and the samples."""

    def __init__(self, model: Model, background: int | None, domain: tuple[float, float]) -> None:
        self._model, self._background, self._domain = model, background, domain

    def __call__(self, parameters: Mapping[str, Array], data: Mapping[str, Array]) -> Array:
        (x,) = data.values()
        found = _each(self._model(x, parameters))
        if self._background is not None:
            found.append(models.polynomials(x, self._background, self._domain))
        return models.columns(*found)


def _each(returned: Any) -> list[Array]:
    """Columns, or matrices of them, that a function returned in any of its forms."""
    if isinstance(returned, Mapping):
        return list(returned.values())
    return list(returned) if isinstance(returned, list | tuple) else [returned]


def _amplitudes(model: Model, parameters: Mapping[str, Array], given: Columns, background: int | None) -> list[str]:
    """A name for each column, the keys of a dict or numbers, once they are known to be real, and no more than rows."""
    required = f"{model.name} must return columns of {len(given.x)} real numbers: an array, a list of them or a dict"
    with failures(model.name):
        returned = model(given.x, parameters)
    try:
        design = models.columns(*_each(returned))
    except ProblemError as error:
        raise ProblemError(f"{required}. {error}") from error
    if design.shape[-2] != len(given.x) or is_complex(design):
        raise ProblemError(f"{required}; got {dtype_name(design)} of shape {tuple(design.shape)}")
    count = design.shape[-1] + (0 if background is None else background + 1)
    rows = len(given.x) if given.weights is None else int(np.min(np.sum(given.weights > 0, axis=0)))
    if rows < count:
        raise ProblemError(f"as many rows with numbers as amplitudes are required, {count}; got {rows}")
    if isinstance(returned, Mapping):
        names = [
            part
            for name, x in returned.items()
            for part in indexed(str(name), x.shape[-1:] if x.ndim > 1 and x.shape[-1] > 1 else ())
        ]
    else:
        names = indexed("w", design.shape[-1:])
    return names + [f"background {i}" for i in range(count - len(names))]


def _with_units(report: Report, model: Model, x: str, y: list[str], background: int) -> Report:
    """A report with the units that follow from those of x and of the targets, empty where they are not known.

    They are for `xvarpro.models` and for columns of a background; what a user's function computes is not known.
    """
    known = model.function is getattr(models, model.name, None)
    inverse = f"1/({x})" if re.search(r"[\s/*]", x) else f"1/{x}"
    units = [
        {1: x, -1: inverse}.get(POWERS.get(row.name.partition("[")[0], 0), "") if known and x else ""
        for row in report.parameters
    ]
    areas = [f"{unit} {x}" if unit and x else "" for unit in y]
    of_column = (areas if WEIGHTS.get(model.name) else y) if known else [""] * len(y)
    units += of_column * (len(report.amplitudes) // len(y) - background) + y * background
    rows = [row._replace(unit=unit) for row, unit in zip(report.rows, units, strict=True)]
    return replace(report, parameters=rows[: len(report.parameters)], amplitudes=rows[len(report.parameters) :])


def _model(name: str) -> Model:
    """A function by name, with its parameters."""
    if ":" in name:
        module, function = find(name)
        stated = getattr(module, "parameters", None)
    elif name in BUILT_IN:
        function, stated = getattr(models, name), None
    else:
        raise ProblemError(
            f"a model must be file.py:function, package.module:function or one of {', '.join(BUILT_IN)}; got {name!r}"
        )
    if stated is not None and not isinstance(stated, Parameters):
        raise ProblemError(
            f"parameters in {name.rpartition(':')[0]} must be xv.Parameters; got {type(stated).__name__}"
        )
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        taken = [p for p in inspect.signature(function).parameters.values() if p.kind in by_place]
    except ValueError:  # of a function in C that does not say
        taken = []
    if len(taken) < 2:
        raise ProblemError(f"{name} must take x and one parameter or more, such as f(x, rate=1.0); got {len(taken)}")
    starts = {p.name: None if p.default is p.empty else p.default for p in taken[1:]}
    if stated is not None and (strange := sorted({*stated} ^ {*starts})):
        raise ProblemError(
            f"parameters in {name.rpartition(':')[0]} must be those that {name} takes, {', '.join(starts)}; "
            f"{strange[0]} is not in both"
        )
    return Model(name.rpartition(":")[2], function, starts, stated)


def _parameters(model: Model, starts: Mapping[str, str], bounds: Mapping[str, str], fixed: Sequence[str]) -> Parameters:
    """What the file says, changed by the options."""
    held = {name.partition("[")[0] for name in fixed}
    for name in (*starts, *bounds, *held):
        if name not in model.starts:
            raise ProblemError(f"{model.name} has no parameter {name!r}: its parameters are {', '.join(model.starts)}")
    out = Parameters() if model.stated is None else model.stated
    for name, start in model.starts.items():
        value = _numbers(f"--start {name}", starts[name]) if name in starts else start
        low, high = _bounds(name, bounds[name]) if name in bounds else (None, None)
        if model.stated is None:
            if value is None:
                raise ProblemError(
                    f"{name} needs a start: add --start {name}=NUMBER, with commas for several, or write {name}=NUMBER "
                    "in the function"
                )
            out.add(name, value, min=low, max=high, vary=_varying(name, np.shape(value), fixed))
        elif name in (*starts, *bounds, *held):
            vary = _varying(name, out[name].shape, fixed) & getattr(out[name], "vary", True)
            out.set(name, value if name in starts else None, min=low, max=high, vary=vary)
    if fixed and not out.theta0:
        raise ProblemError(f"--fix must leave a parameter that varies; got all there are, {', '.join(model.starts)}")
    return out


def _varying(name: str, shape: tuple[int, ...], fixed: Sequence[str]) -> np.ndarray:
    """Which entries of a parameter are not among `fixed`, such as ``rates`` for all of them, or ``rates[1]``."""
    entries = indexed(name, shape)
    if unknown := [x for x in fixed if x.partition("[")[0] == name and x not in (name, *entries)]:
        raise ProblemError(f"--fix must name {name} or an entry of it, such as {entries[-1]}; got {unknown[0]!r}")
    return np.reshape([name not in fixed and entry not in fixed for entry in entries], shape)


def _pairs(option: str, given: Iterable[str] | None) -> dict[str, str]:
    """Names and what is behind their ``=``."""
    found: dict[str, str] = {}
    for text in given or ():
        name, sign, value = (part.strip() for part in text.partition("="))
        if not (name and sign and value):
            raise ProblemError(
                f"--{option} must be NAME=..., such as rates={'0:10' if option == 'bounds' else '0.5,8'}; got {text!r}"
            )
        if name in found:
            raise ProblemError(f"--{option} is given twice for {name}: numbers of several entries take commas")
        found[name] = value
    return found


def _numbers(what: str, text: str) -> float | list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ProblemError(f"{what} must be a number, or several with commas; got {text!r}") from None
    return found[0] if "," not in text else found


def _bounds(name: str, text: str) -> tuple[Any, Any]:
    """The lower and the upper bounds, None where there is none; lists where there is one for each entry."""
    ends = [part.strip().split(":") for part in text.split(",")]
    if any(len(pair) != 2 for pair in ends):
        raise ProblemError(f"--bounds {name} must be LOW:HIGH, of which one may be empty; got {text!r}")
    sides: list[Any] = [
        [
            -np.inf if not end.strip() and i == 0 else np.inf if not end.strip() else _numbers(f"--bounds {name}", end)
            for end in side
        ]
        for i, side in enumerate(zip(*ends, strict=True))
    ]
    low, high = sides if len(ends) > 1 else (side[0] for side in sides)
    return low, high


def _columns(path: Path, x: str, y: Sequence[str], sigma: Sequence[str]) -> Columns:
    """Samples with their weights, None where all are 1; those without an abscissa are left out."""
    if len(sigma) not in (0, 1, len(y)):
        raise ProblemError(f"--sigma must be given once, or once for each of {len(y)} --y; got {len(sigma)}")
    names = [x, *y]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ProblemError(f"--x and --y must name different columns; got {twice[0]!r} twice")
    if taken := {*names} & {f"{name} {what}" for name in y for what in ("fitted", "residual")}:
        raise ProblemError(f"--x and --y must not have names that fitted.csv gives: rename {min(taken)!r}")
    found = columns.read(path, list(dict.fromkeys([*names, *sigma])))
    if dates := [name for name in (*y, *sigma) if found[name].dtype.kind == "M"]:
        raise ProblemError(f"--y and --sigma must name columns of numbers; {dates[0]!r} of {path} holds dates")
    rows = np.isfinite(found[x])
    target = np.stack([found[name][rows] for name in y], axis=1)
    weights = np.isfinite(target).astype(float)
    if sigma:
        deviations = np.stack([found[name][rows] for name in sigma], axis=1)
        if (deviations <= 0).any():
            raise ProblemError(
                f"--sigma must name columns of numbers > 0; got {np.nanmin(deviations):g} where {x} is "
                f"{found[x][rows][np.argmax((deviations <= 0).any(axis=1))]}. Rows whose cell is empty are left out"
            )
        weights = weights * np.where(np.isfinite(deviations), deviations, np.inf) ** -2.0
    if not weights.any(axis=0).all():
        lost = y[int(np.argmin(weights.any(axis=0)))]
        raise ProblemError(f"{path} has no row with numbers in {', '.join(dict.fromkeys([x, lost, *sigma]))}")
    read = found[x][rows]
    samples, label, unit = _since(read, x) if read.dtype.kind == "M" else (read, x, columns.unit(x))
    if np.ptp(samples) == 0:
        raise ProblemError(f"--x must name a column of different numbers; got {samples[0]:g} in each row of {path}")
    return Columns(samples, label, unit, read, target, None if (weights == 1).all() else weights)


def _since(dates: np.ndarray, name: str) -> tuple[np.ndarray, str, str]:
    """Dates as numbers since the first of them, in the largest unit of which they span two, their label, the unit."""
    first, span = dates.min(), np.ptp(dates)
    unit = next((unit for unit in UNITS if span >= 2 * UNITS[unit]), "seconds")
    return (dates - first) / UNITS[unit], f"{name} ({unit} since {str(first).rstrip('0').rstrip('.')})", unit


def _fitted(fit: Result, x: str, y: Sequence[str], given: Columns) -> dict[str, np.ndarray]:
    """Columns of the table of values: each target with the fit and what is left."""
    fitted = to_numpy(fit.mean).reshape(given.y.shape)
    out = {x: given.table}
    for i, name in enumerate(y):
        out |= {name: given.y[:, i], f"{name} fitted": fitted[:, i], f"{name} residual": given.y[:, i] - fitted[:, i]}
    return out


def _summary(report: Report) -> dict[str, object]:
    """What programs ask of a fit: how it ended, how well it fits, and what it found."""
    fit, found = report.fit, report.statistics
    names = "data", "parameters", "dof", "chi2", "reduced_chi2", "aic", "bic"
    values, errors = report.columns["value"], report.columns["stderr"]
    return {
        "status": fit.status.name,
        "success": fit.success,
        "objective": fit.value,
        "iterations": fit.n_iter,
        **({} if found is None else {name: _whole(float(getattr(found, name))) for name in names}),
        "values": {row.name: value for row, value in zip(report.rows, values, strict=True)},
        "stderr": {row.name: error for row, error in zip(report.rows, errors, strict=True)},
        "notes": report.notes,
    }


def _whole(x: float) -> float:
    """The integer that a number, such as a trace, is up to rounding; else the number."""
    return int(near) if (near := round(x, 9)).is_integer() else x


def _write(path: Path, table: Mapping[str, Iterable[Any]]) -> None:
    """A table as CSV, in which a number that is none is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(["" if cell != cell else cell for cell in row] for row in zip(*table.values(), strict=True))
    tables.write_text(path, text.getvalue())
