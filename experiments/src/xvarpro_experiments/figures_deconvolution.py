"""The figure of the one-dimensional deconvolution: what the model can and cannot tell."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from xvarpro_experiments.figures import COLOURS, DASHED, tidy


def kernel(
    kernels: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
) -> Figure:
    """Kernels and their spectra, and a signal before and after."""
    figure = Figure(figsize=(9.0, 5.4), layout="constrained")
    (left, right), (low, low_right) = figure.subplots(2, 2)
    styles = (("0.55", "-"), (COLOURS[0], "-"), (COLOURS[1], DASHED))
    for (name, k), (colour, style) in zip(kernels.items(), styles, strict=True):
        unit, D = k / np.linalg.norm(k), k.size
        look = {"color": colour, "linestyle": style, "linewidth": 1.5}
        left.plot(np.arange(D) - D // 2, np.roll(unit, D // 2), label=name, **look)
        right.semilogy(np.maximum(np.abs(np.fft.rfft(unit)), 1e-6), **look)
    left.set(xlabel="sample", ylabel="kernel / its norm", title="the phases are free: the kernel is not identified")
    right.set(xlabel="frequency [cycles per signal]", ylabel="size of its spectrum")
    for ax, shown, colours in ((low, before, ("0.55", COLOURS[2])), (low_right, after, COLOURS)):
        for (name, x), colour in zip(shown.items(), colours, strict=False):
            ax.plot(x / np.max(np.abs(x)), color=colour, linewidth=1.5, label=name)
        ax.set(xlabel="sample", ylabel="signal / its largest value")
    low.set_title("what went in")
    low_right.set_title("what comes out")
    for ax in (left, right, low, low_right):
        tidy(ax)
        ax.title.set_fontsize(10)
    for ax in (left, low, low_right):
        bottom, top = ax.get_ylim()
        ax.set_ylim(bottom, top + 0.3 * (top - bottom))  # room for the names
        ax.legend(frameon=False, fontsize=8, loc="upper right")
    return figure
