"""Confidence and prediction bands: the model at other data with what its parameters leave open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xvarpro import backends
from xvarpro.core.checks import confidence, described, switch
from xvarpro.core.namespace import is_array
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.problem.problem import Problem
from xvarpro.results.outcome import Outcome
from xvarpro.statistics.intervals import complex_w, student
from xvarpro.statistics.prediction import roots, sensitivities
from xvarpro.statistics.standard_errors import Statistics
from xvarpro.statistics.theory import statistics


class Band(NamedTuple):
    """The model with its band, NumPy arrays of shape (m,) or (m, k); complex ones have a band for each part.

    Attributes
    ----------
    value, lower, upper : arrays
    """

    value: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def band(
    fit: Outcome,
    data: Tree = None,
    level: float = 0.95,
    *,
    prediction: bool = False,
    absolute_sigma: bool | None = None,
    weights: Array | float | None = None,
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
        Add the noise of an observation.
    absolute_sigma : bool
        As for `linear_theory`.
    weights : number or array, shape (m,) or (m, k), optional
        Of new observations, > 0, on the scale of the problem's weights; by default those of the problem for its own
        data, of which one of weight 0 has an infinite band, and 1 for other data of a problem without weights.

    Returns
    -------
    Band

    Raises
    ------
    ProblemError
        As `linear_theory`; right-hand sides come in chunks; a band for observations is asked of a fit by another loss,
        or for other data without their weights where the problem has some; weights are not positive or of another
        shape.
    ModelError
        M fails with this data.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> x = np.linspace(0.0, 1.0, 20)
    >>> y = 2.0 * x**1.5 + 0.01 * np.cos(30 * x)
    >>> fit = xv.solve(xv.separable(lambda theta, x: x[:, None] ** theta, y, data=x), np.array([1.0]))
    >>> np.round(fit.band(np.array([2.0])), 2)
    array([[5.65],
           [5.58],
           [5.72]])
    """
    confidence(level)
    switch("prediction", prediction)
    if fit.in_columns:
        raise ProblemError(
            "bands need all right-hand sides of the target in memory; got them in chunks. Pass some as one array"
        )
    problem = fit.stated
    if prediction and fit.loss is not None:
        raise ProblemError("a band for new observations needs the noise of least squares; got a fit by another loss")
    if data is None and problem.in_rows:
        raise ProblemError("a band of a fit to rows in chunks needs data=, such as those of a chunk; got none")
    if weights is not None and not prediction:
        raise ProblemError("weights are those of new observations; got some without prediction=True")
    s = statistics(fit, absolute_sigma=absolute_sigma)
    w, supply = backends.to_numpy(fit.w), [problem.data if data is None else data]
    columns = []
    for j in range(1 if w.ndim == 1 else w.shape[1]):
        by_theta, by_w = sensitivities(problem, fit.theta, fit.w, j, supply)
        value = by_w @ w if w.ndim == 1 else by_w @ w[:, j]
        columns.append((value, *errors_of_parts(fit, s, by_theta, by_w, j)))
    value, *errors = columns[0] if w.ndim == 1 else (np.stack(x, axis=1) for x in zip(*columns, strict=True))
    if prediction:
        root = observation_roots(problem, data, weights, value.shape)
        noise = np.divide(s.variance**0.5, root, out=np.full(root.shape, np.inf), where=root > 0)
        errors = [np.hypot(x, noise) for x in errors]
    widths = [student(s, level) * x for x in errors]
    lower, upper = (
        [x + sign * width for x, width in zip(parts_of(value), widths, strict=True)] for sign in (-1.0, 1.0)
    )
    return Band(value, joined(lower), joined(upper))


def errors_of_parts(
    fit: Outcome, s: Statistics, by_theta: np.ndarray, by_w: np.ndarray, column: int
) -> list[np.ndarray]:
    """`Statistics.product_stderr` of the real and the imaginary part of what has complex derivatives, or of all."""
    by_w = np.concatenate([by_w, 1j * by_w], axis=1) if complex_w(fit) else by_w.astype(by_theta.dtype)
    return [s.product_stderr(x, z, column) for x, z in zip(parts_of(by_theta), parts_of(by_w), strict=True)]


def parts_of(x: np.ndarray) -> list[np.ndarray]:
    """Real and imaginary part of a complex array."""
    return [x.real, x.imag] if np.iscomplexobj(x) else [x]


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The array with these parts, of which some may be infinite."""
    if len(parts) == 1:
        return parts[0]
    out = np.empty(parts[0].shape, complex)
    out.real, out.imag = parts
    return out


def observation_roots(
    problem: Problem, data: Tree, weights: Array | float | None, shape: tuple[int, ...]
) -> np.ndarray:
    """Roots of the weights of new observations, in the shape of the band."""
    if weights is not None:
        given = backends.to_numpy(weights) if is_array(weights) else np.asarray(weights, float)
        given = given[:, None] if given.ndim == 1 < len(shape) else given
        if given.shape not in ((), shape, (shape[0], 1)) or not ((given > 0) & (given < np.inf)).all():
            raise ProblemError(f"weights must be positive numbers of shape {shape}; got {described(weights)}")
        return np.broadcast_to(np.sqrt(given), shape)
    own = [roots(problem, shape[0], j) for j in range(1 if len(shape) == 1 else shape[1])]
    if data is None:
        return np.stack(own, axis=1).reshape(shape)
    if not np.isin(own, (0, 1)).all():
        raise ProblemError(
            "a band for new observations at other data needs their weights, as the problem has some; got none. Pass "
            "weights=, such as 1 / sigma**2 where those of the problem are, or 1 / variance where it has a covariance; "
            "without data the band is at the problem's own, with its weights"
        )
    return np.ones(shape)
