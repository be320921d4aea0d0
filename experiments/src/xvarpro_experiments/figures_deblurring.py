"""Figures of deblurring: kernels next to the true ones, photographs before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from xvarpro_experiments.race import Race

if TYPE_CHECKING:
    from xvarpro_experiments.deblurring import Deblurred

_SHOWN = 4  # photographs in a figure


def figures(found: Race) -> dict[str, Figure]:
    """The kernels that the methods of a race ended with, from the first seed."""
    return {"kernels": raced(found)}


def raced(found: Race) -> Figure:
    """The kernel of every method at the scale of the race."""
    seed = next(iter(found.outcomes))
    outcomes = [o for o in found.outcomes[seed] if o.fit is not None]
    scale = int(found.experiment.config["scale"])
    columns = min(5, len(outcomes))
    rows = -(-len(outcomes) // columns)
    figure = Figure(figsize=(1.9 * columns, 2.25 * rows), layout="constrained")
    axes = np.atleast_1d(np.asarray(figure.subplots(rows, columns, squeeze=False))).ravel()
    for ax in axes:
        ax.set_axis_off()
    for ax, o in zip(axes, outcomes, strict=False):
        assert o.fit is not None
        w = np.maximum(np.reshape(np.asarray(o.fit.w, np.float64), (scale, scale)), 0.0)
        ax.imshow(w, cmap="gray", vmin=0.0, vmax=float(np.max(w)) or 1.0, interpolation="nearest")
        told = "".join(f", match {c.value[-1]:.2f}" for c in o.measured.values())
        ax.set_title(f"{o.method}\n$f$ = {o.objective:.4g}{told}", fontsize=7)
    figure.suptitle(f"kernels of {scale} x {scale} pixels, each over its largest entry", fontsize=9)
    return figure


def before_and_after(rows: Sequence[Deblurred]) -> Figure:
    """Photographs, what came out of them, and the sharp ones, with both kernels; the first few.

    Parameters
    ----------
    rows : sequence of Deblurred
    """
    shown = list(rows)[:_SHOWN]
    figure = Figure(figsize=(9.6, 2.25 * len(shown) + 0.3), layout="constrained")
    axes = np.asarray(figure.subplots(len(shown), 5, squeeze=False, width_ratios=(3, 3, 3, 2, 2)))
    for line, row in zip(axes, shown, strict=True):
        photograph = row.photograph
        images = (
            (photograph.blurred, f"blurred{_dB(row.blurred)}"),
            (row.image, f"deblurred{_dB(row.deblurred)}"),
            (photograph.sharp, "sharp"),
            (row.kernel, f"kernel found ({row.match:.2f})" if np.isfinite(row.match) else "kernel found"),
            (photograph.kernel, "true kernel"),
        )
        for i, (ax, (x, title)) in enumerate(zip(line, images, strict=True)):
            ax.set_axis_off()
            if x is None:
                continue
            if i > 2:
                x = _padded(x, max(len(k) for k in (row.kernel, photograph.kernel) if k is not None))
            ax.imshow(x, cmap="gray", vmin=0.0, vmax=1.0 if i < 3 else float(x.max()), interpolation="nearest")
            ax.set_title(title, fontsize=8)
        line[0].text(
            -0.06, 0.5, row.name, rotation=90, va="center", ha="center", transform=line[0].transAxes, fontsize=8
        )
    return figure


def gains(rows: Sequence[Deblurred]) -> Figure:
    """PSNR of every photograph, blurred, deblurred blindly, and with the true kernel."""
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    ax = figure.subplots()
    x = np.arange(len(rows))
    marks = (
        ("blurred", [r.blurred for r in rows], "0.55", "s"),
        ("blind", [r.deblurred for r in rows], "#0072b2", "o"),
        ("with the true kernel", [r.known for r in rows], "#d55e00", "^"),
    )
    ax.vlines(x, [r.blurred for r in rows], [r.deblurred for r in rows], color="#0072b2", alpha=0.35, linewidth=2)
    for name, values, colour, marker in marks:
        ax.plot(x, values, linestyle="none", marker=marker, color=colour, markersize=5, label=name)
    ax.set_xticks(x, [r.name for r in rows], rotation=60, ha="right", fontsize=7)
    ax.set_ylabel("PSNR [dB]")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, axis="y", color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return figure


def _padded(kernel: np.ndarray, side: int) -> np.ndarray:
    spare = side - len(kernel)
    return np.pad(kernel, (spare // 2, spare - spare // 2))


def _dB(value: float) -> str:
    return f", {value:.1f} dB" if np.isfinite(value) else ""
