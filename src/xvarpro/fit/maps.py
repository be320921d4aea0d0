"""Maps of a batch: an entry of all problems, with its errors, as an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro.core.status import Status
from xvarpro.errors import ProblemError
from xvarpro.fit.figures import Figure, FigureBase, Patch, PolyCollection, blank

if TYPE_CHECKING:
    from xvarpro.fit.batch_result import ManyResult

GREY = "0.6"


def plot_map(
    fit: ManyResult,
    name: str,
    *,
    shape: tuple[int, int],
    label: str = "",
    errors: bool = True,
    figure: FigureBase | None = None,
) -> Figure:
    """An entry of theta or w of all problems as an image, with its standard errors next to it.

    Problems that ended without success are hollow and hatched, and so are errors that the data do not determine; those
    without data are blank. Colours range over the middle 98 % of the others.

    Parameters
    ----------
    fit : ManyResult
    name : str
        Of a column of `ManyResult.to_frame`, such as ``"rates[0]"``, ``"w[1]"`` or ``"value"``, which has no errors.
    shape : (int, int)
        Rows and columns of the image, whose product is the number of problems.
    label : str
        Of the colours, with units; the name by default.
    errors : bool
        Draw the standard errors.
    figure : matplotlib Figure or SubFigure, optional
        As for `plot_fit`.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ProblemError
        There is no such entry; `shape` has another number of problems; statistics cannot be had, see
        `statistics.many.statistics`.
    """
    columns = fit.columns(errors and name != "value")
    if name not in columns:
        known = ", ".join(x for x in columns if not x.endswith("_stderr"))
        raise ProblemError(f"name must be one of {known}; got {name!r}")
    ny, nx = fit.on_grid(np.arange(len(fit)), tuple(shape)).shape
    empty = fit.status == Status.NO_DATA.code
    images = {label or name: columns[name]}
    if f"{name}_stderr" in columns:
        images[f"standard error of {label or name}"] = columns[f"{name}_stderr"]
    width = 1.2 + 3.2 * np.clip(nx / ny, 0.4, 2.5)
    fig = blank(figure, width * len(images), 3.6, "compressed")
    lost = np.zeros(len(fit), bool)
    for ax, (title, x) in zip(fig.subplots(1, len(images), squeeze=False)[0], images.items(), strict=True):
        x = np.abs(x) if np.iscomplexobj(x) else x
        shown = fit.success & np.isfinite(x)
        middle = np.percentile(x[shown], [1, 99]) if shown.any() else (0.0, 1.0)
        image = ax.imshow(np.where(shown, x, np.nan).reshape(ny, nx), vmin=middle[0], vmax=middle[1])
        fig.colorbar(image, ax=ax, label=title, shrink=0.8, extend="both")
        hollow = ~shown & ~empty
        ax.add_collection(_squares(np.flatnonzero(hollow), nx))
        lost |= hollow
        ax.set(xticks=[], yticks=[])
    kinds = {f"{lost.sum()} without success or error": "/////", f"{empty.sum()} without data": ""}
    drawn = [Patch(facecolor="none", edgecolor=GREY, hatch=x, label=s) for s, x in kinds.items() if s[:2] != "0 "]
    if drawn:
        fig.legend(handles=drawn, loc="outside lower center", ncols=2, frameon=False)
    return fig


def _squares(members: np.ndarray, nx: int) -> Any:
    """Hollow pixels."""
    row, column = np.divmod(members, nx)
    corners = np.stack([column, row], axis=1)[:, None, :] + np.array(
        [(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)]
    )
    return PolyCollection(corners, facecolor="none", edgecolor=GREY, linewidth=0.3, hatch="/////")
