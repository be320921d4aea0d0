"""Maps of a batch: an entry of all problems, with its errors, as an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xvarpro.core.checks import described
from xvarpro.core.status import Status
from xvarpro.errors import ProblemError
from xvarpro.results.figures import Figure, FigureBase, Patch, PolyCollection, blank
from xvarpro.statistics.frames import on_grid

if TYPE_CHECKING:
    from xvarpro.fit.batch_result import ManyResult
    from xvarpro.statistics.many import BatchStatistics

GREY, HATCH = "0.6", "/////"
CORNERS = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)])  # of a pixel, around its middle


def plot_map(
    fit: ManyResult,
    name: str,
    *,
    shape: tuple[int, int],
    label: str = "",
    errors: bool | BatchStatistics = True,
    figure: FigureBase | None = None,
) -> Figure:
    """An entry of theta or w of all problems as an image, with its standard errors next to it.

    Problems without success are hollow and hatched, and so are errors that the data do not determine or that are 0, as
    of what a bound holds; problems without data are blank. Colours range over the middle 98 % of the others. Of
    complex w the modulus is drawn.

    Parameters
    ----------
    fit : ManyResult
    name : str
        Of a column of `ManyResult.to_frame`: ``"rates[0]"``, ``"w[1]"``; or ``"value"``, which has no errors.
    shape : (int, int)
        Rows and columns of the image.
    label : str
        Of the colours, with units; the name by default.
    errors : bool or BatchStatistics
        As for `ManyResult.to_frame`.
    figure : matplotlib Figure or SubFigure, optional
        As for `plot_fit`.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ProblemError
        There is no such entry; `shape` is not that of an image of all problems; there are no statistics.
    """
    if not isinstance(name, str):
        raise ProblemError(
            f"name must be that of an entry, such as 'w[0]'; got {described(name)}. Other numbers of all problems are "
            "an image as x.reshape(shape)"
        )
    if np.shape(shape) != (2,):
        raise ProblemError(f"shape must be (rows, columns) of an image; got {shape}. Slices lie one below the other")
    columns, empty = fit.columns(name != "value" and errors), fit.status == Status.NO_DATA.code
    if name not in columns:
        known = ", ".join(x for x in columns if not x.endswith("_stderr"))
        raise ProblemError(f"name must be one of {known}; got {name!r}")
    if (found := columns.get(f"{name}_stderr")) is not None:
        columns[f"{name}_stderr"] = np.where(found == 0, np.nan, found)
    images = {label or name: name, f"standard error of {label or name}": f"{name}_stderr"}
    drawn = {title: columns[x] for title, x in images.items() if x in columns}
    fig = blank(figure, (1.2 + 3.2 * np.clip(shape[1] / shape[0], 0.4, 2.5)) * len(drawn), 3.6, "compressed")
    lost = np.zeros(len(fit), bool)
    for ax, (title, x) in zip(fig.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True):
        x = np.abs(x) if np.iscomplexobj(x) else x
        shown = fit.success & np.isfinite(x)
        low, high = np.percentile(x[shown], [1, 99]) if shown.any() else np.array([0.0, 1.0])
        image = ax.imshow(on_grid(np.where(shown, x, np.nan), shape), vmin=low, vmax=high)
        fig.colorbar(image, ax=ax, label=title, shrink=0.8, extend="both")
        pixels = np.argwhere(on_grid(~shown & ~empty, shape))[:, None, ::-1] + CORNERS
        ax.add_collection(PolyCollection(pixels, facecolor="none", edgecolor=GREY, linewidth=0.3, hatch=HATCH))
        ax.set(xticks=[], yticks=[])
        lost |= ~shown & ~empty
    kinds = [("without success or error", lost, HATCH), ("without data", empty, "")]
    patches = [
        Patch(facecolor="none", edgecolor=GREY, hatch=h, label=f"{at.sum()} {s}") for s, at, h in kinds if at.any()
    ]
    if patches:
        fig.legend(handles=patches, loc="outside lower center", ncols=2, frameon=False)
    return fig
