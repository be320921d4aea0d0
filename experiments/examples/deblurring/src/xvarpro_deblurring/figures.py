"""The figure of deblurring: photographs before and after, with kernels next to the true ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from xvarpro_deblurring.restore import Deblurred

_SHOWN = 4  # photographs in a figure


def before_and_after(rows: Sequence[Deblurred]) -> Figure:
    """Photographs, what came out of them, and the sharp ones, with both kernels; the first few."""
    rows = rows[:_SHOWN]
    figure = Figure(figsize=(9.5, 2.2 * len(rows)), layout="constrained")
    for axes, row in zip(figure.subplots(len(rows), 5, squeeze=False), rows, strict=True):
        sharp, true = row.photograph.sharp, row.photograph.kernel
        side = max(len(k) for k in (row.kernel, true) if k is not None)
        match = f" ({row.match:.2f})" if np.isfinite(row.match) else ""
        shown = {
            f"{row.name}, blurred{_dB(row.blurred)}": row.photograph.blurred,
            f"deblurred{_dB(row.deblurred)}": row.image,
            "sharp": sharp,
            f"kernel found{match}": _padded(row.kernel, side),
            "true kernel": None if true is None else _padded(true, side),
        }
        for ax, (title, image) in zip(axes, shown.items(), strict=True):
            ax.set_axis_off()
            if image is not None:
                ax.imshow(image, cmap="gray", vmin=0.0, vmax=float(np.max(image)) or 1.0, interpolation="nearest")
                ax.set_title(title, fontsize=7.5)
    return figure


def _padded(kernel: np.ndarray, side: int) -> np.ndarray:
    spare = side - len(kernel)
    return np.pad(kernel, (spare // 2, spare - spare // 2))


def _dB(value: float) -> str:
    return f", {value:.1f} dB" if np.isfinite(value) else ""
