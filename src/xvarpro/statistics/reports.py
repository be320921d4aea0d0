"""The report of a fit: parameters with standard errors, goodness of fit, correlations, what was verified."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.checks import switch
from xvarpro.core.struct import Array
from xvarpro.errors import ModelError, ProblemError
from xvarpro.problem.parameters import Parameters
from xvarpro.results.outcome import Outcome
from xvarpro.statistics import constraints
from xvarpro.statistics.constraints import Limit
from xvarpro.statistics.frames import aligned, data_frame, on_host, vector
from xvarpro.statistics.frames import html_table as _table
from xvarpro.statistics.linearised import unlike_arrays, unlike_least_squares
from xvarpro.statistics.names import each_name, each_of, given_names
from xvarpro.statistics.standard_errors import IN_CHUNKS, NO_LIKELIHOOD, SHOWN, Statistics, correlated
from xvarpro.statistics.theory import statistics

if TYPE_CHECKING:
    from pandas import DataFrame

    from xvarpro.certificate.outcome import Certificate

LONG = "standard errors: fit.report(), which may take long"
PAIRS = 10  # correlations in a text
HEAD = ("name", "value", "standard error", "relative", "bounds", "unit")
CORRELATED = 60  # entries of theta and w up to which correlations are looked for


class Row(NamedTuple):
    """A parameter or an amplitude; `stderr` is None where there are no standard errors, `unit` empty if not known."""

    name: str
    value: complex | float
    stderr: complex | float | None
    limit: Limit
    unit: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """Name, value, standard error, its share of the value, bounds with what is active, unit."""
        value = 0.0 if abs(self.value) <= self.limit.rounding else self.value
        return self.name, _number(value), *self._error, self._bounds, self.unit

    @property
    def _error(self) -> tuple[str, str]:
        err = self.stderr
        if err is None:
            return "", ""
        if self.limit.kink:
            return "-", ""
        if not np.isfinite(err):
            return "undetermined", ""
        if self.limit.held:
            return "held", ""
        share = abs(err) / abs(self.value) if self.value else math.inf
        return f"{err:.3g}", f"{share:.2%}" if share < 10 else ""

    @property
    def _bounds(self) -> str:
        low, high, note, multiplier, _, kink, _ = self.limit
        bounds = "" if low == -np.inf and high == np.inf else f"[{low:g}, {high:g}]"
        active = f"{note}, multiplier {0 if kink else multiplier:.3g}" if multiplier or kink else note
        return " ".join(x for x in (bounds, active) if x)


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """A report of a fit, from `report`: a text, a table in notebooks.

    Attributes
    ----------
    fit : Result
    parameters, amplitudes : list of Row
        Entries of theta and of w with their names, values, standard errors and constraints.
    statistics : Statistics or None
    correlations : list of (str, str, float)
        Pairs whose correlation is above the threshold, the strongest first.
    notes : list of str
        Why there are no standard errors, or why they may mislead.
    """

    fit: Outcome
    parameters: list[Row]
    amplitudes: list[Row]
    statistics: Statistics | None
    correlations: list[tuple[str, str, float]]
    notes: list[str]

    @property
    def goodness(self) -> list[tuple[str, str]]:
        """What is said of the fit as a whole: names and values, those that there are."""
        return [("objective", f"{self.fit.value:.10g}")] if self.statistics is None else self.statistics.goodness

    @property
    def _tables(self) -> list[tuple[str, tuple[str, ...], list[Row]]]:
        """Titles, heads without that of units where no unit is known, and rows."""
        given = all(row.limit.note == "fixed" for row in self.amplitudes)  # all of them, or there are none
        found = [("parameters", self.parameters), *([] if given else [("amplitudes", self.amplitudes)])]
        return [(title, HEAD if any(row.unit for row in rows) else HEAD[:-1], rows) for title, rows in found]

    def __str__(self) -> str:
        lines = [self.fit.headline]
        for title, head, rows in self._tables:
            cells = [row.cells[: len(head)] for row in rows[:SHOWN]]
            lines += ["", *aligned([(title, *head[1:]), *cells], len(rows) - SHOWN)]
        lines += ["", "fit", *aligned(self.goodness)]
        if self.correlations:
            pairs = [(f"{a}, {b}", f"{c:+.3f}") for a, b, c in self.correlations[:PAIRS]]
            lines += ["", "correlations", *aligned(pairs)]
        lines += ["", "notes", *(f"  {note}" for note in self.notes)] if self.notes else []
        return "\n".join([*lines, "", "solve", *self.fit.summary])

    __repr__ = __str__

    def to_html(self) -> str:
        """The tables that notebooks show, a ``div`` of HTML."""
        parts = [f"<p>{html.escape(self.fit.headline)}</p>"]
        for title, head, rows in self._tables:
            more = [(f"and {len(rows) - SHOWN} more", *[""] * (len(head) - 1))] if len(rows) > SHOWN else []
            cells = [row.cells[: len(head)] for row in rows[:SHOWN]]
            parts.append(_table(title.capitalize(), head, [*cells, *more]))
        parts.append(_table("Fit", (), self.goodness))
        if self.correlations:
            pairs = [(a, b, f"{c:+.3f}") for a, b, c in self.correlations[:PAIRS]]
            parts.append(_table("Correlations", (), pairs))
        if self.notes:
            parts.append(f"<ul>{''.join(f'<li>{html.escape(note)}</li>' for note in self.notes)}</ul>")
        solve = html.escape("\n".join(line[2:] for line in self.fit.summary))
        parts.append(f"<pre style='font-family: monospace'>{solve}</pre>")
        return f'<div class="xvarpro-report">{"".join(parts)}</div>'

    _repr_html_ = to_html

    def to_frame(self) -> DataFrame:
        """Parameters and amplitudes as a pandas data frame, indexed by name.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        return data_frame(self.columns, [row.name for row in self.rows])

    @property
    def rows(self) -> list[Row]:
        """Parameters, then amplitudes."""
        return [*self.parameters, *self.amplitudes]

    @property
    def columns(self) -> dict[str, list[Any]]:
        """What `to_frame` has, by column."""
        rows = self.rows
        return {
            "value": [row.value for row in rows],
            "stderr": [math.nan if row.stderr is None or row.limit.kink else row.stderr for row in rows],
            "lower": [row.limit.lower for row in rows],
            "upper": [row.limit.upper for row in rows],
            "active": [row.limit.note for row in rows],
            "multiplier": [row.limit.multiplier for row in rows],
        }


def report(
    fit: Outcome,
    names: Sequence[str] | Mapping[str, Any] | Parameters | None = None,
    amplitudes: Sequence[str] | None = None,
    *,
    absolute_sigma: bool | None = None,
    correlation: float = 0.5,
    certificate: Certificate | None = None,
) -> Report:
    """What a fit has found, as a text or a table.

    Parameters
    ----------
    fit : Result
    names : sequence or dict of str, or Parameters, optional
        For the entries of theta: a dict with its keys, or a list in the order of its leaves, with keys in alphabetical
        order; by default keys and indices. `Parameters` add those that are fixed or tied, with their errors.
    amplitudes : sequence of str, optional
        For the rows of w, or for all its entries, row by row.
    absolute_sigma : bool
        As for `linear_theory`.
    correlation : float
        Correlations of at least this size are listed, in [0, 1].
    certificate : Certificate, optional
        Of ``fit.certify()``: a note says whether there is a lower minimum.

    Returns
    -------
    Report
        Prints as a text, shows as tables in notebooks; ``to_html()`` is their HTML, ``to_frame()`` a data frame of
        pandas. Where there are no standard errors it says why. Right-hand sides in chunks have no amplitudes in it.

    Raises
    ------
    ProblemError
        There are more or fewer names than entries, `correlation` is not in [0, 1], or the certificate is of another
        problem: its bound is above the objective.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> x = np.linspace(0.0, 1.0, 20)
    >>> y = 2.0 * x**1.5 + 0.01 * np.cos(30 * x)
    >>> fit = xv.solve(xv.separable(lambda theta, x: x[:, None] ** theta, y, data=x), np.array([1.0]))
    >>> fit.report(["exponent"], ["slope"]).to_frame()["value"].round(1).to_dict()
    {'exponent': 1.5, 'slope': 2.0}
    """
    if absolute_sigma is not None:
        switch("absolute_sigma", absolute_sigma)
    chunked, units = fit.in_columns, fit.verified.units
    w = np.empty((units, 0)) if chunked else backends.to_numpy(fit.w)
    if not 0 <= correlation <= 1:
        raise ProblemError(f"correlation must be a number in [0, 1]; got {correlation!r}")
    if certificate is not None and certificate.bound > fit.value:
        raise ProblemError(
            "certificate must be of this problem, in a box that holds theta; got a bound above the objective, "
            f"{certificate.bound:.8g} > {float(fit.value):.8g}. Take that of fit.certify()"
        )
    theta_names, w_names = given_names(fit.theta, (units,) if chunked else w.shape, names, amplitudes)
    found, notes = None, []
    try:
        found = replace(statistics(fit, absolute_sigma=absolute_sigma), names=theta_names, w_names=w_names)
        notes = found.reasons
    except (ProblemError, ModelError) as error:
        notes = [f"no standard errors: {error}"]
    values = vector(fit.theta).tolist()
    every = [*theta_names, *([] if chunked else w_names)]
    if found is None:
        errors, limits = [None] * len(every), [Limit()] * len(every)
    else:
        errors = [x for leaf in found.errors for x in vector(leaf).tolist()]
        limits = found.limits
    table = [Row(*row) for row in zip(every, [*values, *w.ravel().tolist()], errors, limits, strict=True)]
    notes = [*notes, *constraints.uncalibrated([row.name for row in table], limits)]
    p = len(values)
    notes += [NO_LIKELIHOOD] if found and found.deviance is not None and math.isnan(found.deviance) else []
    notes += [IN_CHUNKS] if chunked else []
    notes += [] if certificate is None else [certificate.verdict(float(fit.value))]
    pairs = _pairs(found, every, correlation) if found and not np.iscomplexobj(w) else []
    others = _others(names, np.array(values), found) if isinstance(names, Parameters) else []
    return Report(fit, [*table[:p], *others], table[p:], found, pairs, notes)


def outline(fit: Outcome, w: Array | None) -> str:
    """The first entries of theta and of w without errors, for fits whose errors would take long; w may not be known."""
    leaves = [on_host(x) for x in trees.leaves(fit.theta)]
    lines = [fit.headline, *_values("parameters", each_name(fit.theta), leaves)]
    if w is None:
        lines += ["", "  amplitudes are solved for where fit.w is asked for"]
    else:
        lines += _values("amplitudes", each_of("w", tuple(w.shape)), [on_host(w)])
    prepared = None if fit.loss is not None else fit._prepared
    why = "" if prepared is None else unlike_least_squares(prepared.original) or unlike_arrays(prepared)
    errors = f"no standard errors: statistics need {why}" if why else LONG
    return "\n".join([*lines, "", f"  {errors}", "", "solve", *fit.summary])


def _values(title: str, names: Iterable[str], arrays: list[np.ndarray]) -> list[str]:
    size, entries = sum(x.size for x in arrays), itertools.chain.from_iterable(np.ravel(x)[:SHOWN] for x in arrays)
    rows = ((name, _number(x)) for x, name in itertools.islice(zip(entries, names, strict=False), SHOWN))
    return ["", *aligned([(title, "value"), *rows], size - SHOWN)]


def _number(x: complex | float) -> str:
    return f"{x + 0.0:.8g}" if np.isfinite(x) else "undefined"


def _others(parameters: Parameters, z: np.ndarray, found: Statistics | None) -> list[Row]:
    """Parameters that are fixed or tied, with the errors that the others give them."""
    A, b, names = parameters.linear_map()
    value, rows = A @ z + b, []
    C = None if found is None else found.influence.covariance_of_theta(found.noise)
    for i, name in enumerate(names):
        if name not in parameters.names:
            note = "tied" if A[i].any() else "fixed"
            error = None if C is None else float(np.sqrt(A[i] @ C @ A[i]))
            rows.append(Row(name, float(value[i]), error, Limit(note=note, held=note == "fixed")))
    return rows


def _pairs(found: Statistics, names: list[str], least: float) -> list[tuple[str, str, float]]:
    if len(names) > CORRELATED:
        return []
    C = correlated(found.theta_covariance) if found.at.in_columns else found.correlation
    pairs = [(names[i], names[j], float(C[i, j])) for i, j in zip(*np.triu_indices(len(C), 1), strict=True)]
    return sorted((pair for pair in pairs if abs(pair[2]) >= least), key=lambda pair: -abs(pair[2]))
