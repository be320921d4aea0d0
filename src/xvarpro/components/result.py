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

    @classmethod
    def of(cls, atoms: Atoms, theta: Tree, fit: Result | None, w: Any = None) -> Components:
        places, k = atoms.places(theta), atoms.Y.shape[1]
        n, blank = len(places), np.nan * places
        w = on_host(fit.w) if fit is not None else np.zeros((0, k)) if w is None else w
        rows = n * atoms.block
        w = w.reshape(-1, k)[:rows].reshape(n, atoms.block, k)
        errors, w_errors = blank, np.full(w.shape, np.nan)
        if fit is not None:
            with suppress(ProblemError):  # fewer data than parameters have no errors
                s = statistics(fit)
                errors = atoms.places(s.theta_stderr)
                w_errors = on_host(s.w_stderr).reshape(-1, k)[:rows].reshape(w.shape)
        return cls(theta, places, errors, w, w_errors, atoms.names)

    def __len__(self) -> int:
        return len(self.places)

    def _columns(self) -> dict[str, np.ndarray]:
        b, k = self.amplitudes.shape[1:]
        columns = {}
        for j, name in enumerate(self.names):
            columns[name], columns[f"{name} error"] = self.places[:, j], self.places_stderr[:, j]
        for i in np.ndindex(b, k):
            at = [str(x) for x, size in zip(i, (b, k), strict=True) if size > 1]
            name = f"w[{','.join(at)}]" if at else "w"
            columns[name] = self.amplitudes[:, i[0], i[1]]
            columns[f"{name} error"] = self.amplitudes_stderr[:, i[0], i[1]]
        return columns

    def to_frame(self) -> DataFrame:
        """A row for each component, places and amplitudes with their errors, as a data frame of pandas."""
        return data_frame(self._columns(), range(len(self)))

    def __str__(self) -> str:
        columns = self._columns()
        if len(columns) > 12:  # amplitudes of many responses: their lengths
            columns = {name: x for name, x in columns.items() if name.removesuffix(" error") in self.names}
            columns["|w|"] = np.sqrt(np.sum(np.abs(self.amplitudes) ** 2, axis=(1, 2)))
        head = ("", *("±" if name.endswith(" error") else name for name in columns))
        rows = [
            (str(i), *(f"{x[i]:.3g}" if name.endswith(" error") else f"{x[i]:.7g}" for name, x in columns.items()))
            for i in range(min(len(self), SHOWN))
        ]
        return "\n".join(aligned([head, *rows], len(self) - SHOWN))

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
        if self.n:
            lines += ["", str(self.components)]
        size = " x ".join(map(str, c.shape))
        at = ", ".join(f"{name} = {x:.6g}" for name, x in zip(self.components.names, c.where, strict=True))
        rows = [("largest value", f"{c.largest:.6g} at {at}")]
        rows += [("looked at", f"{size} points, neighbours at most {c.angle:.2g} rad apart, and maxima near the best")]
        if math.isfinite(c.bound):
            rows += [("between them", f"at most {c.bound:.4g}, if the atom turns no faster there than at the points")]
        lines += ["", "certificate", *aligned(rows)]
        if len(self.tried) > 1:
            lines += [
                "",
                *aligned([("number", *map(str, self.tried)), (self.criterion, *(f"{x:.5g}" for x in self.scores))]),
            ]
        return "\n".join(lines)

    __repr__ = __str__

    def plot_certificate(self, *, figure: FigureBase | None = None) -> Figure:
        """The certificate over the box, with the places that were found.

        Over one entry of theta a curve, over more a map of the first two, the largest value of the others taken.
        In `figure`, of matplotlib, or a new one.
        """
        from xvarpro.results.figures import COLOURS, blank, tidy

        c, names = self.certificate, self.components.names
        places = (self.penalised or self.components).places
        fig = blank(figure, 6.4, 3.2)
        ax = fig.subplots()
        axes = [np.unique(c.at[:, j]) for j in range(min(len(c.shape), 2))]
        values = c.values.reshape(c.shape)
        if len(c.shape) == 1 or c.shape[1] == 1:
            line = values.reshape(c.shape[0], -1).max(axis=1)
            ax.plot(axes[0], line, color=COLOURS[0], linewidth=1.2)
            ax.axhline(1.0, color=COLOURS[1], linewidth=1.0, linestyle="--")
            for x in places[:, 0]:
                ax.axvline(x, color="0.6", linewidth=0.8, zorder=0)
            ax.set(xlabel=names[0], ylabel="certificate", ylim=(0.0, None))
            tidy(ax)
            return fig
        grid = values.reshape(*c.shape[:2], -1).max(axis=2)
        mesh = ax.pcolormesh(*axes, grid.T, shading="nearest", cmap="viridis", rasterized=True)
        ax.plot(places[:, 0], places[:, 1], "o", color=COLOURS[1], fillstyle="none", markersize=7)
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
        at = list(self.tried).index(self.n)
        ax.plot(self.n, self.scores[at], "o", color=COLOURS[1], markersize=8)
        ax.set(xlabel="components", ylabel=self.criterion)
        if self.criterion in ("rms", "chi2"):
            ax.set_yscale("log")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        tidy(ax)
        return fig
