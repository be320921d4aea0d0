"""The autoencoder as a race."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import xvarpro as xv
from xvarpro import Problem
from xvarpro.algorithms import Algorithm
from xvarpro.errors import ProblemError
from xvarpro_experiments import rivals
from xvarpro_experiments.autoencoder import model
from xvarpro_experiments.autoencoder.data import Data, load
from xvarpro_experiments.autoencoder.methods import PCA, Adam
from xvarpro_experiments.checks import positive
from xvarpro_experiments.methods import DEFAULT, Measure, Method, Solver, Task, Tuned, quasi_newton
from xvarpro_experiments.race import Experiment, Race

WIDTHS = {"mnist": (256, 128, 64, 32), "cifar10": (512, 256, 128, 64), "digits": (32, 16, 12, 8)}
LOSS = "test loss [1/2 |x - xhat|^2 per image]"
LATENTS = "active latents"
RATES = tuple(10.0 ** (k / 2) for k in range(-8, -2))  # 1e-4 ... 3e-2
BATCH = 500  # images of each level in a mini-batch


@dataclass(frozen=True)
class Setting:
    """All that decides an autoencoder experiment, besides the methods."""

    data: Data
    widths: tuple[int, ...]  # of the four tanh layers
    ridge: float = model.RIDGE  # as in `model.problem`
    splits: int = 2  # 2 for the paper's two levels, 1 for one
    # > 0, of the intensities of the target: the same problem, the objective and its mu times the square. The encoder's
    # inputs are scaled to a root mean square of 1 in any units
    units: float = 1.0
    dtype: str = "float64"
    backend: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        positive(units=self.units)
        self.problem(self.splits)  # refuses what is wrong before any work

    def problem(self, splits: int) -> Problem:
        """The problem with so many splits, in these units."""
        X = (self.units * self.data.train).astype(self.dtype)
        scale = 1 / (self.units * self.data.rms)
        return model.problem(X, self.ridge, model.MU * self.units**2, splits, scale)

    def task(self, seed: int) -> Task:
        """The instance of a seed."""
        stated, joint = self.problem(self.splits), None if self.splits == 1 else self.problem(1)
        theta0 = model.start(self.data.train.shape[1], self.widths, seed, dtype=self.dtype)
        place: dict[str, Any] = {"backend": self.backend, "device": self.device}
        return Task(stated, theta0, model.over(), joint=joint, measures=self.measures, **place)

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Test loss, and the latents that are active."""
        return {
            LOSS: lambda found: model.reconstruction_loss(found.theta, found.w, self.data, self.units),
            LATENTS: lambda found: float(model.active(found.theta)),
        }


def setting(
    data: Data | str = "mnist",
    samples: int | None = None,
    test_samples: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    widths: Sequence[int] | None = None,
    **numbers: Any,
) -> Setting:
    """A setting by the name of its data: ``"mnist"``, ``"cifar10"`` or ``"digits"``; or images from `centred`.

    They are the first `samples` and `test_samples`, all by default, of the files in `folder`. The widths of the layers
    are the paper's for MNIST and CIFAR-10, smaller ones for the digits; `numbers` are fields of `Setting`.
    """
    images = load(data, samples, test_samples, folder) if isinstance(data, str) else data
    if widths is None:
        if images.name not in WIDTHS:
            raise ProblemError("widths of the layers must be given for images of your own")
        widths = WIDTHS[images.name]
    return Setting(images, tuple(widths), **numbers)


def experiment(data: Data | str = "mnist", **options: Any) -> Experiment:
    """The paper's Example 1, with its rivals; `options` are those of `setting`.

    Examples
    --------
    >>> from xvarpro_experiments import autoencoder, race
    >>> small = autoencoder.experiment("digits", samples=200, widths=(8, 4), units=2.0)
    >>> [m.family for m in small.methods].count("rival")
    4
    """
    of = setting(data, **options)
    ours: tuple[Method, ...] = (
        Solver("CR-VarPro (the paper)", "paper", xv.algorithms.cr_varpro()),
        Solver(DEFAULT),
        Solver("quasi-Newton", algorithm=quasi_newton()),
        Solver("Frank-Wolfe, separate steps, cap 0.01", algorithm=separate(0.01)),
        Tuned("VarPro on mini-batches", "ours", tuple(Adam(rate=x, batch=BATCH) for x in RATES[1:5])),
    )
    if of.splits == 2:
        ours += (
            Solver("quasi-Newton, one level with all images", algorithm=quasi_newton(), problem=attrgetter("together")),
        )
    batches = tuple(Adam(rate=x, batch=BATCH, joint=True) for x in RATES[1:5])
    others: tuple[Method, ...] = (
        Tuned("joint projected gradient, tuned", candidates=rivals.GRIDS["joint PG, best fixed step"]),
        Tuned("joint Adam, tuned", candidates=tuple(rivals.JointAdam(rate=x) for x in RATES)),
        Tuned("joint Adam on mini-batches, tuned", candidates=batches),
        Tuned("Adam on the reduced problem, tuned", candidates=tuple(Adam(rate=x) for x in RATES)),
    )
    n, pixels = of.data.train.shape
    numbers = ("ridge", "splits", "units", "dtype", "backend", "device")
    floor = PCA(data=of.data, width=of.widths[-1], splits=of.splits, units=of.units, names=(LOSS, LATENTS))
    levels = (
        f"{n // 2} images below, {n - n // 2} above; rivals that keep W see all of them"
        if of.splits == 2
        else f"one level with all {n} images"
    )
    return Experiment(
        "autoencoder",
        "sparse autoencoder with latent-dimension selection (Example 1)",
        of.task,
        (*ours, *others, floor),
        config={"data": of.data.source, "widths": list(of.widths), **{name: getattr(of, name) for name in numbers}},
        facts={
            "data": of.data.source,
            "problem": "min over s >= 0, sum s <= rho, phi of 1/2 |E(X_U) diag(s) W - X_U|^2 + mu/2 |s|^2, "
            "W minimising 1/2 |E(X_L) diag(s) W - X_L|^2 + lam/2 |W|^2",
            "levels": levels,
            "encoder": f"{pixels} pixels, tanh layers {', '.join(map(str, of.widths))}",
            "numbers": f"rho = {model.RHO:g}, mu = {model.MU:g}, lam = {of.ridge:g} per image of its level, "
            f"intensities times {of.units:g}",
        },
        objective="reduced objective, sum over the images of the upper level [intensity^2]",
        figures=partial(_figures, of),
        notes=partial(_notes, of),
    )


def separate(cap: float) -> Algorithm:
    """Conditional gradient with a step of its own for phi and one of at most `cap` for s."""
    return xv.algorithms.FrankWolfe(blocks=xv.algorithms.Separate(), cap=cap)


def _figures(of: Setting, race: Race) -> dict[str, Any]:
    """Test images above what the paper's method and the default make of them, with PCA's below."""
    X = of.data.test[:8]
    rows = {"test images": X}
    for name in dict.fromkeys((race.names[0], race.declared)):
        theta = race.of(name)[0].theta
        W = model.decoder(theta, of.data, of.ridge)
        rows[name] = model.reconstruct(theta, W, X, 1 / of.data.rms)
    V = model.principal_axes(of.data.train)[:, : of.widths[-1]]
    rows[f"PCA, {of.widths[-1]} axes"] = (X @ V) @ V.T
    shown = {name: (images + of.data.mean).reshape(-1, *of.data.shape) for name, images in rows.items()}
    return {"reconstructions": reconstructions(shown)}


def _notes(of: Setting, race: Race) -> list[str]:
    """What the table does not say by itself."""
    losses = {name: float(np.median([o.measured[LOSS].value[-1] for o in race.of(name)])) for name in race.names}
    floor, paper = losses.pop(PCA.name), losses[race.names[0]]
    best = min(losses, key=lambda name: (not np.isfinite(losses[name]), losses[name]))
    said = [
        f"Lowest test loss: {best}, {losses[best]:.4g}, {losses[best] / floor - 1:+.1%} against PCA with "
        f"{of.widths[-1]} axes ({floor:.4g}).",
        f"The paper's method ends at {paper:.4g}, {paper / floor - 1:+.1%} against PCA.",
    ]
    if of.splits == 2:
        said.append(
            "Rivals that keep W and the variant with one level minimise over all images at once; their curves show the "
            "two-level objective at their encoder, which is not what they minimise, and their test loss is with a "
            "decoder fitted to all images. The test loss is the comparison between them and the others."
        )
    return said


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
