"""Confidence and prediction bands: the model at other data with what its parameters leave open."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xvarpro import backends
from xvarpro.core.checks import confidence, switch
from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError
from xvarpro.results.result import Result
from xvarpro.statistics.intervals import student
from xvarpro.statistics.prediction import sensitivities


class Band(NamedTuple):
    """The model with its band, NumPy arrays of shape (m,) or (m, k).

    Attributes
    ----------
    value, lower, upper : arrays
    """

    value: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def band(
    fit: Result,
    data: Tree = None,
    level: float = 0.95,
    *,
    prediction: bool = False,
    absolute_sigma: bool = False,
) -> Band:
    """``M(theta, data) w`` with a confidence band, or one for new observations, by linear theory.

    Each point is covered by itself with the probability `level`.

    Parameters
    ----------
    fit : Result
    data : pytree, optional
        As for `predict`; the problem's own by default, which rows in chunks do not have.
    level : float
        In (0, 1).
    prediction : bool
        Add the noise of an observation of weight 1.
    absolute_sigma : bool
        As for `linear_theory`.

    Returns
    -------
    Band

    Raises
    ------
    ProblemError
        As `linear_theory`; right-hand sides come in chunks; w is complex; a band for observations is asked of a fit by
        another loss.
    ModelError
        M fails with this data.
    """
    confidence(level)
    switch("prediction", prediction)
    if fit.in_columns:
        raise ProblemError(
            "bands need all right-hand sides of the target in memory; got them in chunks. Pass some as one array"
        )
    if np.iscomplexobj(backends.to_numpy(fit.w)):
        raise ProblemError("bands need a real w; got a complex one. fit.statistics().propagate has both of its parts")
    problem = fit.least_squares
    if prediction and problem is not fit.stated:
        raise ProblemError("a band for new observations needs the noise of least squares; got a fit by another loss")
    if data is None and problem.in_rows:
        raise ProblemError("a band of a fit to rows in chunks needs data=, such as those of a chunk; got none")
    s = fit.statistics(absolute_sigma=absolute_sigma)
    w, supply = backends.to_numpy(fit.w), [problem.data if data is None else data]
    columns = []
    for j in range(1 if w.ndim == 1 else w.shape[1]):
        by_theta, by_w = sensitivities(problem, fit.theta, fit.w, j, supply)
        columns.append((by_w @ w if w.ndim == 1 else by_w @ w[:, j], s.product_stderr(by_theta, by_w, j)))
    value, stderr = columns[0] if w.ndim == 1 else (np.stack(x, axis=1) for x in zip(*columns, strict=True))
    width = student(s, level) * np.sqrt(stderr**2 + (s.variance if prediction else 0.0))
    return Band(value, value - width, value + width)
