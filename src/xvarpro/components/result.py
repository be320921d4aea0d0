"""What a search for components returns: a table of them, the fit, the certificate, and how the number was chosen."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro.components.atoms import Atoms
from xvarpro.components.grid import DualCertificate
from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError
from xvarpro.fit.result import Result
from xvarpro.statistics.frames import aligned, data_frame, on_host
from xvarpro.statistics.theory import statistics

if TYPE_CHECKING:
    from pandas import DataFrame

    from xvarpro.results.figures import Figure, FigureBase

SHOWN = 30  # components in a text
WIDE = 6  # numbers of a component in a text: of more amplitudes it has their length
SLACK = 1.01  # of a certificate: above, a search with a weight has ended too early


@dataclass(frozen=True, eq=False, repr=False)
class Components:
    """Places and amplitudes of components, in the order of their places; prints as a table.

    Attributes
    ----------
    theta : pytree of arrays
        Places, leaves (n, ...), as the atom takes them.
    places, places_stderr : NumPy arrays, shape (n, p)
        The same as rows of numbers, and their standard errors; NaN where there are none.
    amplitudes, amplitudes_stderr : NumPy arrays, shape (n, b, k)
        Of the b columns of each component and k responses, and their standard errors.
    names : list of str
        Of the p entries of a place.
    """

    theta: Tree
    places: np.ndarray
    places_stderr: np.ndarray
    amplitudes: np.ndarray
    amplitudes_stderr: np.ndarray
    names: list[str]
    _caption: str = ""

    @classmethod
    def of(cls, atoms: Atoms, theta: Tree, w: Any, fit: Result | None = None, caption: str = "") -> Components:
        places, size = atoms.places(theta), (atoms.block, atoms.Y.shape[1])

        def rows(w: Any) -> np.ndarray:  # those of fixed columns are the last
            return on_host(w).ravel()[: len(places) * math.prod(size)].reshape(-1, *size)

        w = np.zeros((0, *size)) if w is None else rows(w)
        errors, w_errors = np.full(places.shape, np.nan), np.full(w.shape, np.nan)
        if fit is not None:
            with suppress(ProblemError):  # fewer data than parameters have no errors
                s = statistics(fit)
                errors, w_errors = atoms.places(s.theta_stderr), rows(s.w_stderr)
        return cls(theta, places, errors, w, w_errors, atoms.names, caption)

    def __len__(self) -> int:
        return len(self.places)

    def _columns(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        found = {name: (self.places[:, j], self.places_stderr[:, j]) for j, name in enumerate(self.names)}
        size = self.amplitudes.shape[1:]
        for i, j in np.ndindex(*size):
            at = ",".join(str(x) for x, n in zip((i, j), size, strict=True) if n > 1)
            found[f"w[{at}]" if at else "w"] = self.amplitudes[:, i, j], self.amplitudes_stderr[:, i, j]
        return found

    def to_frame(self) -> DataFrame:
        """A row for each component, places and amplitudes with their errors, as a data frame of pandas."""
        columns = {}
        for name, (x, error) in self._columns().items():
            columns[name], columns[f"{name} error"] = x, error
        return data_frame(columns, range(len(self)))

    def __str__(self) -> str:
        columns, shown = self._columns(), range(min(len(self), SHOWN))
        if len(columns) > WIDE:
            size = np.sqrt(np.sum(np.abs(self.amplitudes) ** 2, axis=(1, 2)))
            columns = {**{name: columns[name] for name in self.names}, "|w|": (size, np.full(size.shape, np.nan))}
        texts = [("", *map(str, shown))]
        for name, (x, error) in columns.items():
            texts.append((name, *(f"{x[i]:.7g}" for i in shown)))
            texts += [] if np.isnan(error).all() else [("±", *(f"{error[i]:.3g}" for i in shown))]
        table = aligned(zip(*texts, strict=True), len(self) - SHOWN)
        return "\n".join([self._caption, *table] if self._caption else table)

    __repr__ = __str__


@dataclass(frozen=True, eq=False, repr=False)
class FoundComponents:
    """Components that `find_components` has found; prints as a report.

    Attributes
    ----------
    components : Components
        Places and amplitudes of the debiased fit, with standard errors.
    fit : Result or None
        That fit, without a penalty: an ordinary result with statistics, report and figures. None of no component.
    certificate : DualCertificate
        What a further component could bring, anywhere in the box.
    criterion : str
        By which the number was chosen.
    tried, scores : arrays, shape (t,)
        Numbers of components that were tried, and the criterion of each; less is better.
    penalised : Components or None
        With a `weight`, the solution of the penalised problem, with amplitudes of unit atoms.
    """

    components: Components
    fit: Result | None
    certificate: DualCertificate
    criterion: str
    tried: np.ndarray
    scores: np.ndarray
    penalised: Components | None = field(default=None)

    @property
    def n(self) -> int:
        """The number of components."""
        return len(self.components)

    def __str__(self) -> str:
        c, what = self.certificate, "component" if self.n == 1 else "components"
        how = "with the weight that was given" if self.penalised is not None else f"by {self.criterion}"
        how += ", whose optimum was not reached" if self.penalised is not None and c.largest > SLACK else ""
        lines = [f"{self.n} {what}, {how}"]
        lines += [] if self.fit is None or self.fit.success else [f"the fit ended with {self.fit.status.name}"]
        lines += ["", str(self.components)] if self.n else []
        fixed: Any = [] if self.fit is None else on_host(self.fit.w).ravel()[self.components.amplitudes.size :]
        lines += aligned([("fixed columns", *(f"{x:.7g}" for x in fixed))]) if 0 < len(fixed) <= WIDE else []
        size = " x ".join(map(str, c.shape))
        at = ", ".join(f"{name} = {x:.6g}" for name, x in zip(self.components.names, c.where, strict=True))
        rows = [("largest value", f"{c.largest:.6g} at {at}")]
        rows += [("looked at", f"{size} points, neighbours at most {c.angle:.2g} rad apart, and maxima near the best")]
        if math.isfinite(c.bound):
            rows += [("proven", f"at most {c.bound:.6g} all over the box, by intervals")]
        lines += ["", "certificate", *aligned(rows)]
        if len(self.tried) > 1:
            scores = self.criterion, *(f"{x:.5g}" for x in self.scores)
            lines += ["", *aligned([("number", *map(str, self.tried)), scores])]
        return "\n".join(lines)

    __repr__ = __str__

    def plot_certificate(self, *, figure: FigureBase | None = None) -> Figure:
        """The certificate over the box, with the places that were found.

        Over one entry of theta a curve, over more a map of the first two, the largest value of the others taken.
        In `figure`, of matplotlib, or a new one.
        """
        from xvarpro.results.figures import COLOURS, blank, tidy

        c, names, places = self.certificate, self.components.names, (self.penalised or self.components).places
        fig = blank(figure, 6.4, 3.2)
        ax = fig.subplots()
        axes = [np.unique(x) for x in c.at.T[:2]]
        values = c.values.reshape(*c.shape[:2], -1).max(axis=-1)
        if len(axes) == 1 or c.shape[1] == 1:
            ax.plot(axes[0], values.ravel(), color=COLOURS[0], linewidth=1.2)
            ax.axhline(1.0, color=COLOURS[1], linewidth=1.0, linestyle="--")
            for x in places[:, 0]:
                ax.axvline(x, color="0.6", linewidth=0.8, zorder=0)
            ax.set(xlabel=names[0], ylabel="certificate", ylim=(0.0, None))
            tidy(ax)
            return fig
        mesh = ax.pcolormesh(*axes, values.T, shading="nearest", cmap="viridis", rasterized=True)
        ax.plot(*places.T[:2], "o", color=COLOURS[1], fillstyle="none", markersize=7)
        for axis, t in zip("xy", axes, strict=True):
            if t[0] > 0 and t[-1] / t[0] > 30:
                ax.set(**{f"{axis}scale": "log"})
        ax.set(xlabel=names[0], ylabel=names[1])
        fig.colorbar(mesh, ax=ax, label="certificate")
        return fig

    def plot_choice(self, *, figure: FigureBase | None = None) -> Figure:
        """The criterion against the number of components, of which two or more were tried, else a `ProblemError`."""
        from xvarpro.results.figures import COLOURS, MaxNLocator, blank, tidy

        if len(self.tried) < 2:
            raise ProblemError("plot_choice needs two numbers of components or more; got one, that of a given weight")
        fig = blank(figure, 4.2, 3.0)
        ax: Any = fig.subplots()
        ax.plot(self.tried, self.scores, color=COLOURS[0], marker=".")
        ax.plot(self.n, self.scores[list(self.tried).index(self.n)], "o", color=COLOURS[1], markersize=8)
        ax.set(xlabel="components", ylabel=self.criterion)
        if self.criterion in ("rms", "chi2", "mean square of rows left out"):
            ax.set_yscale("log")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        tidy(ax)
        return fig
