"""What the ridge selects: test loss against the latents that stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xvarpro.algorithms import Algorithm
from xvarpro_experiments.autoencoder import model
from xvarpro_experiments.autoencoder.comparison import quasi_newton, setting
from xvarpro_experiments.autoencoder.model import Kept


def sweep(
    ridges: Sequence[float] = (1e-8, 1e-5, 1e-4, 1e-3, 1e-2),
    algorithm: Algorithm | None = None,
    seconds: float | None = None,
    iterations: int = 200,
    seed: int = 0,
    **options: Any,
) -> list[Kept]:
    """Test loss against active latents for several ridges, each from the same start.

    Parameters
    ----------
    ridges : sequence of float
        Per image.
    algorithm : Algorithm, optional
        `quasi_newton` by default.
    seconds, iterations
        Limits of each solve.
    seed : int
    **options
        Of `setting`, without ridge.

    Returns
    -------
    list of Kept

    Examples
    --------
    >>> from xvarpro_experiments import autoencoder
    >>> found = autoencoder.sweep([1e-8, 1e-3], data="digits", samples=200, widths=(8, 4), iterations=20)
    >>> found[0].active, found[0].floor < found[1].loss
    (4, True)
    """
    first = setting(ridge=ridges[0], **options)
    axes = model.principal_axes(first.data.train)[:, : first.widths[-1]]
    floors = model.pca_loss(axes, first.data.test)
    out = []
    for ridge in ridges:
        of = replace(first, ridge=ridge)
        task = of.task(seed)
        fit = task.solve(
            algorithm or quasi_newton(),
            task.problem,
            task.theta0,
            max_iter=iterations,
            time_limit=seconds,
            progress=False,
        )
        n = model.active(fit.theta)
        loss = model.reconstruction_loss(fit.theta, np.asarray(fit.w), of.data, of.units)
        refitted = model.refitted_loss(fit.theta, of.data)
        out.append(Kept(ridge, n, loss, refitted, float(floors[n]), np.sort(fit.theta["s"])[::-1], of.splits))
    return out
