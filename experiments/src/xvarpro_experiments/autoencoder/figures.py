"""The figure of the autoencoder: test images and what methods make of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure


def reconstructions(rows: Mapping[str, np.ndarray]) -> Figure:
    """Rows of images, named."""
    n = max(map(len, rows.values()))
    figure = Figure(figsize=(1.0 * n + 1.9, 1.05 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), n, squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for ax, image in zip(line, images, strict=True):
            shown = np.clip(image, 0, 1)
            colour = shown.ndim == 3
            shown = np.moveaxis(shown, 0, -1) if colour else shown
            ax.imshow(shown, cmap=None if colour else "gray_r", vmin=0, vmax=1, interpolation="none")
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_color("0.8")
        label = name.replace(", ", ",\n").replace(" (", "\n(")
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
    return figure
