"""The pictures of the README and of the first page: what their three examples find.

python docs/overview.py writes docs/overview.png, and its three panels alone, which can be read on a narrow screen.

The network's rival is Adam on all weights at once, from the same start, with the best of five rates.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import xvarpro as xv

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "0.55"


def decay(ax):
    t = np.linspace(0.0, 2.0, 60)
    y = 2.0 * np.exp(-t) + np.exp(-5.0 * t) + 0.02 * np.random.default_rng(0).normal(size=60)

    def decays(rates, t):
        return xv.array_namespace(rates).exp(-t[:, None] * rates)

    fit = xv.solve(xv.separable(decays, y, data=t), np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 20.0))
    errors = fit.statistics().theta_stderr
    ax.plot(t, y, ".", color="0.3", markersize=4)
    fine = np.linspace(0.0, 2.0, 200)
    columns = np.exp(-fine[:, None] * fit.theta) * fit.w
    ax.plot(fine, columns.sum(1), color=BLUE, linewidth=2.2)
    for j, (colour, place) in enumerate(((ORANGE, (1.0, 1.1)), (GREEN, (0.44, 0.26)))):
        ax.plot(fine, columns[:, j], color=colour, linewidth=1.4)
        ax.text(*place, f"{fit.theta[j]:.2f} ± {errors[j]:.2f} per s", color=colour, fontsize=9)
    ax.set(xlabel="time / s", ylabel="signal", title="Decays: rates with error bars,\namplitudes solved for")


def dictionary(ax):
    images = load_digits().data.T / 16
    strokes = xv.sets.Columns(xv.sets.KSparsePolytope(10, 1.0))
    D0 = xv.project(np.random.default_rng(0).normal(size=(64, 32)), strokes)
    D = xv.solve(xv.separable(lambda D, _: D, images, lam=10.0), D0, over=strokes).theta
    tiles = np.full((4 * 9 + 1, 8 * 9 + 1), np.nan)
    for j, atom in enumerate(D.T.reshape(-1, 8, 8)):
        top, left = 9 * (j // 8) + 1, 9 * (j % 8) + 1
        tiles[top : top + 8, left : left + 8] = atom * np.sign(atom.sum())
    shown = matplotlib.colormaps["RdBu_r"].with_extremes(bad="0.85")
    ax.imshow(tiles, cmap=shown, vmin=-1, vmax=1, interpolation="none")
    ax.set_axis_off()
    ax.set_title("A dictionary of digits:\nten pixels per atom make strokes")


def network(ax):
    images, label = load_digits(return_X_y=True)
    X, Y = torch.tensor(images[:500] / 16), torch.eye(10, dtype=torch.float64)[label[:500]]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.Tanh()).double()
    problem = xv.separable(lambda net, x: net(x), Y, data=X, lam=0.1)
    trace = xv.solve(problem, net, over={"0.weight": xv.sets.SpectralBall(2.0)}, max_iter=400).trace
    steps = int(trace.values[-1])
    rival = min((adam(net, X, Y, rate, steps) for rate in (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)), key=lambda v: v[-1])
    ax.plot(np.arange(1, steps + 1), rival, "--", color=GREY, linewidth=1.6)
    ax.plot(trace.values, trace.value, color=BLUE, linewidth=2.2)
    ax.annotate("Adam on all weights", (30, rival[30]), (4, 10), textcoords="offset points", color=GREY,
                fontsize=9)  # fmt: skip
    ax.annotate("last layer solved for", (1.2, 13), (0, 0), textcoords="offset points", color=BLUE,
                fontsize=9, fontweight="bold")  # fmt: skip
    ax.set(xlabel="evaluations of the network", ylabel="training objective", xscale="log", yscale="log")
    ax.set_title("A network: the last layer is solved for\nat every step")


def adam(net, X, Y, rate, steps):
    """Lowest objectives so far of Adam on the network and its head, the weight projected after every step."""
    weight, bias = (p.detach().clone().requires_grad_() for p in net.parameters())
    head = torch.zeros(16, 10, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([weight, bias, head], lr=rate)
    values = []
    for _ in range(steps):
        optimiser.zero_grad()
        features = torch.tanh(X @ weight.T + bias)
        value = 0.5 * (features @ head - Y).square().sum() + 0.05 * head.square().sum()
        value.backward()
        optimiser.step()
        with torch.no_grad():
            weight.copy_(xv.project(weight, xv.sets.SpectralBall(2.0)))
        values.append(value.item())
    return np.minimum.accumulate(values)


def main():
    figure = Figure(figsize=(11.0, 3.4), layout="constrained", dpi=150)
    axes = figure.subplots(1, 3, width_ratios=(1, 1.35, 1))
    panels = dict(zip((decay, dictionary, network), axes, strict=True))
    for draw, ax in panels.items():
        draw(ax)
        ax.title.set(fontsize=10.5)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "overview.png")
    for draw, ax in panels.items():
        part = ax.get_tightbbox().transformed(figure.dpi_scale_trans.inverted()).padded(0.05)
        figure.savefig(HERE / f"overview_{draw.__name__}.png", bbox_inches=part)


if __name__ == "__main__":
    main()
