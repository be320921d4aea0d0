"""The figure of deblurring: photographs before and after, with kernels next to the true ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from xvarpro_deblurring.restore import Deblurred

_SHOWN = 4  # photographs in a figure


def before_and_after(rows: Sequence[Deblurred]) -> Figure:
    """Photographs, what came out of them, and the sharp ones, with both kernels; the first few."""
    shown, titles = [], []
    for row in rows[:_SHOWN]:
        photograph = row.photograph
        side = max(len(k) for k in (row.kernel, photograph.kernel) if k is not None)
        pictures = [photograph.blurred, row.image, photograph.sharp]
        found = [None if k is None else _padded(k, side) for k in (row.kernel, photograph.kernel)]
        shown.append([*pictures, *found])
        match = f" ({row.match:.2f})" if np.isfinite(row.match) else ""
        titles.append(
            (f"{row.name}, blurred{_dB(row.blurred)}", f"deblurred{_dB(row.deblurred)}", "sharp",
             f"kernel found{match}", "true kernel")
        )  # fmt: skip
    return images(shown, lambda i, j: titles[i][j], 1.9)


def images(rows: Sequence[Sequence[np.ndarray | None]], title: Callable[[int, int], str], size: float) -> Figure:
    """Images in rows, each with a title; None is an empty place."""
    columns = max(len(row) for row in rows)
    figure = Figure(figsize=(size * columns, (size + 0.3) * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for ax in axes.ravel():
        ax.set_axis_off()
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            if image is not None:
                top = float(np.max(image)) or 1.0
                axes[i, j].imshow(image, cmap="gray", vmin=0.0, vmax=top, interpolation="nearest")
                axes[i, j].set_title(title(i, j), fontsize=7.5)
    return figure


def _padded(kernel: np.ndarray, side: int) -> np.ndarray:
    spare = side - len(kernel)
    return np.pad(kernel, (spare // 2, spare - spare // 2))


def _dB(value: float) -> str:
    return f", {value:.1f} dB" if np.isfinite(value) else ""
