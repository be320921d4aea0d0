"""Figures of the one-dimensional deconvolution: how far from the optimum, and what the model can and cannot tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from xvarpro.results.plotting import _COLOURS, _tidy
from xvarpro_experiments.methods import Curve, Outcome
from xvarpro_experiments.race import Race

if TYPE_CHECKING:
    from xvarpro_experiments.deconvolution import Optimum, Signals

_STYLE = {"paper": "-", "ours": "-", "rival": (0, (4, 1.5))}
_FLOOR = 1e-14  # of a relative gap: below are rounding errors


def gap(found: Race, gaps: Mapping[str, Sequence[Curve]]) -> Figure:
    """Relative optimality gap against iterations and time: median over the seeds, a band from smallest to largest.

    Parameters
    ----------
    found : Race
    gaps : mapping of str to sequence of Curve
        Of every method, by seed.
    """
    figure = Figure(figsize=(9.0, 4.9), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, axis, label in zip(axes, ("iterations", "seconds"), ("iteration", "time [s]"), strict=True):
        for i, method in enumerate(found.experiment.methods):
            curves = gaps[method.name]
            ends = [getattr(c, axis)[-1] for c in curves]
            first = max(getattr(c, axis)[1] if len(c.value) > 1 else 1e-6 for c in curves)
            x = np.geomspace(first, max(max(ends), first * 1.01), 200)
            # a method that ended keeps its last value
            y = np.array([[max(c.at(axis, at), _FLOOR) for at in x] for c in curves])
            colour, style = _COLOURS[i % len(_COLOURS)], _style(method.family, i)
            ax.plot(x, np.median(y, axis=0), color=colour, linestyle=style, linewidth=1.5, label=method.name)
            if len(curves) > 1:
                ax.fill_between(x, y.min(axis=0), y.max(axis=0), color=colour, alpha=0.12, linewidth=0)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel(label)
        _tidy(ax)
    axes[0].set_ylabel(r"optimality gap $(f - f^\star) / (f_0 - f^\star)$")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure


def kernel(outcome: Outcome, made: Signals, exact: Optimum) -> Figure:
    """Kernel and spectrum of a method, of the closed form and of the truth, and a signal before and after."""
    assert outcome.fit is not None
    w, X = np.asarray(outcome.fit.w, np.float64), np.asarray(outcome.fit.theta, np.float64)
    kernels = (
        ("true", made.w, "0.55", "-"),
        (outcome.method, _aligned(w, made.w), _COLOURS[0], "-"),
        ("closed form, phases 0", exact.w, _COLOURS[1], (0, (4, 1.5))),
    )
    figure = Figure(figsize=(9.0, 5.4), layout="constrained")
    (left, right), (below, beside) = figure.subplots(2, 2)
    D = made.w.size
    for name, k, colour, style in kernels:
        unit = k / np.linalg.norm(k)
        left.plot(
            np.arange(D) - D // 2, np.roll(unit, D // 2), color=colour, linestyle=style, linewidth=1.5, label=name
        )
        size = np.abs(np.fft.rfft(unit))
        right.semilogy(np.arange(size.size), np.maximum(size, 1e-6), color=colour, linestyle=style, linewidth=1.5)
    left.set(xlabel="sample", ylabel="kernel / its norm", title="the phases are free: the kernel is not identified")
    right.set(xlabel="frequency [cycles per signal]", ylabel="size of its spectrum")
    # the signal with the largest energy shows the most
    i = int(np.argmax(np.sum(made.X**2, axis=1)))
    below.plot(made.X[i] / np.max(np.abs(made.X[i])), color="0.55", linewidth=1.2, label="true signal")
    below.plot(made.Y[i] / np.max(np.abs(made.Y[i])), color=_COLOURS[2], linewidth=1.5, label="measured, y")
    below.set(xlabel="sample", ylabel="signal / its largest value", title="what went in")
    beside.plot(X[i] / np.max(np.abs(X[i])), color=_COLOURS[0], linewidth=1.5, label=f"x, {outcome.method}")
    beside.plot(
        exact.X[i] / np.max(np.abs(exact.X[i])),
        color=_COLOURS[1],
        linestyle=(0, (4, 1.5)),
        linewidth=1.5,
        label="x, closed form: y, filtered",
    )
    beside.set(xlabel="sample", ylabel="signal / its largest value", title="what comes out")
    for ax in (left, right, below, beside):
        _tidy(ax)
        ax.title.set_fontsize(10)
    for ax in (left, below, beside):
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.3 * (high - low))  # room for the names
        ax.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def _style(family: str, i: int) -> Any:
    return (0, (1, 1)) if i >= 2 * len(_COLOURS) else _STYLE.get(family, "-") if i < len(_COLOURS) else (0, (4, 1.5))


def _aligned(k: np.ndarray, true: np.ndarray) -> np.ndarray:
    """A kernel at the shift and sign at which it is nearest to another."""
    crossed = np.fft.ifft(np.fft.fft(k) * np.conj(np.fft.fft(true))).real
    best = int(np.argmax(np.abs(crossed)))
    return np.sign(crossed[best]) * np.roll(k, -best)
