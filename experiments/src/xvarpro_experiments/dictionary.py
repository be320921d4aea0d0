"""Dictionary learning under an entrywise l1 budget, the paper's Example 2, and the methods that compete on it.

``min 1/2 |D W - X|^2 + lam/2 |W|^2  over W and over |D|_1 <= radius``: the codes W are eliminated, the dictionary D is
theta. The paper drops the factor 1/2. One budget for all atoms leaves single pixels of small images; the other set-up
gives every atom a budget of pixels of its own, and atoms are strokes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro import Problem
from xvarpro.errors import ProblemError
from xvarpro_experiments import figures
from xvarpro_experiments.checks import generator, positive
from xvarpro_experiments.methods import OURS, Task
from xvarpro_experiments.race import Experiment, Race
from xvarpro_experiments.rivals import RIVALS
from xvarpro_experiments.trees import Array


def design(theta: Array, data: Any) -> Array:
    """``M(theta) = D``, one function for all problems, so that a compiled loop is used again."""
    return theta


def problem(X: Array, lam: float = 1e-5, compress: bool = True) -> Problem:
    """The dictionary problem of images X.

    Parameters
    ----------
    X : array, shape (pixels, samples)
    lam : float
        Ridge on the codes, >= 0.
    compress : bool
        Whether a solve may replace the samples by as many columns as there are pixels.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro_experiments import dictionary
    >>> X = np.random.default_rng(0).normal(size=(6, 40))
    >>> D0 = dictionary.start(X, atoms=3, radius=1.0, seed=0)
    >>> fit = xv.solve(dictionary.problem(X), D0, over=xv.sets.L1Ball(1.0), max_iter=50)
    >>> bool(fit.value < fit.trace.value[0])
    True
    """
    return xv.separable(design, X, lam=lam, compress=compress)


def start(X: Array, atoms: int, radius: float = 1.0, seed: int = 0) -> np.ndarray:
    """Gaussian dictionary with ``|D|_1 = radius``, drawn with NumPy: every backend starts from the same bits."""
    positive(atoms=atoms, radius=radius)
    D = generator(seed).normal(size=(X.shape[0], atoms))
    return D * (radius / np.sum(np.abs(D)))


def experiment(
    X: Array,
    *,
    source: str = "X",
    shape: tuple[int, int] | None = None,
    atoms: int = 128,
    radius: float = 1.0,
    lam: float = 1e-5,
    pixels: int = 0,
    units: float = 1.0,
    dtype: str = "float64",
    backend: str | None = None,
    device: str | None = None,
) -> Experiment:
    """The dictionary problem of images X and the methods that compete on it.

    Parameters
    ----------
    X : array, shape (pixels, samples)
    source : str
        What X is, for readers.
    shape : (height, width), optional
        Of an image, to draw the atoms.
    atoms : int
        >= 1, and at most the larger side of X.
    radius, lam : float
        Of the l1 ball, > 0; ridge on the codes, >= 0.
    pixels : int
        0: one l1 ball for the whole dictionary, as in the paper. Otherwise every atom is in the hull of images with at
        most that many pixels of size `radius`.
    units : float
        Factor on the radius, > 0, its square on lam: the same reduced problem, but another one for joint methods.
    dtype, backend, device : str, optional
        Of the work.
    """
    positive(atoms=atoms, radius=radius, units=units)
    rho, ridge = units * radius, units * units * lam
    X = np.asarray(X, dtype=dtype)
    if atoms > max(X.shape):
        raise ProblemError(
            f"atoms must be at most {max(X.shape)}, the larger of the numbers of pixels and of images, got {atoms}: "
            "that many describe all images exactly"
        )
    if not 0 <= pixels <= len(X):
        raise ProblemError(f"pixels must be 0, or from 1 to the {len(X)} of an image, got {pixels}")
    over = xv.sets.Columns(xv.sets.KSparsePolytope(pixels, rho)) if pixels else xv.sets.L1Ball(rho)
    hull = f"atoms in the hull of images with {pixels} pixels of size {rho:g}"
    budget = hull if pixels else f"|D|_1 <= {rho:g}"
    stated = problem(X, ridge)
    compressed = problem(xv.compress(X), ridge)

    place: dict[str, Any] = {"backend": backend, "device": device}

    def task(seed: int) -> Task:
        theta0 = xv.project(start(X, atoms, atoms * pixels * rho or rho, seed).astype(dtype), over)
        return Task(stated, theta0, over, joint=problem(X, ridge, compress=False), reduced=compressed, **place)

    def drawn(race: Race) -> Mapping[str, Any]:
        title = f"{source}: dictionary by {race.declared}"
        return {"atoms": figures.atoms(np.asarray(race.of(race.declared)[0].theta), shape, title)} if shape else {}

    m, samples = X.shape
    return Experiment(
        name="dictionary",
        title=f"dictionary learning under {'a budget for each atom' if pixels else 'an l1 budget (Example 2)'}",
        task=task,
        methods=(*OURS, *RIVALS),
        config={
            "data": source, "pixels": m, "samples": samples, "atoms": atoms, "radius": rho, "ridge": ridge,
            "pixels per atom": pixels, "units": units, "dtype": dtype, **place,
        },
        facts={
            "data": f"{source}, X {m} x {samples}",
            "problem": f"min 1/2 |D W - X|^2 + lambda/2 |W|^2 over W and {budget}; lambda = {ridge:g}, {atoms} atoms",
            "start": "Gaussian, projected" if pixels else f"Gaussian, |D|_1 = {rho:g}",
        },
        figures=drawn,
        notes=_notes,
    )  # fmt: skip


def _notes(race: Race) -> Sequence[str]:
    best = race.best()
    verified = None if best.fit is None else best.fit.verified
    if verified is None or not verified.dead_units:
        return []
    return [f"{best.method}: {verified.dead_units} of {verified.units} atoms are exactly zero where it ended"]
