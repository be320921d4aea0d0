"""A way down from a saddle: where descent keeps a symmetry, such as two equal rates, it ends in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

STEPS = 10  # products with the Hessian at most, which are all of it up to as many parameters


class Curvature(NamedTuple):
    """What the Hessian at a point says."""

    steps: list[np.ndarray]  # along which the objective bends down most, both ways, from long to short
    slope: float  # the length of the gradient in the metric, a difference of objectives
    left: float  # decrease that a quadratic model promises, where that bends up in every direction; else inf


def curvature(probe: Callable[[np.ndarray], np.ndarray], scale: np.ndarray, eps: float) -> Curvature:
    """The curvature of the objective in the smallest face of theta.

    Parameters
    ----------
    probe : callable
        The gradient in the face of theta after a step, (p,) -> (p,).
    scale : array, (p,)
        The size of each entry of theta, > 0: the metric, so that units do not count.
    eps : float
        Machine epsilon of the gradients.

    Notes
    -----
    The method of Lanczos on the scaled Hessian, with products by differences of gradients, from a fixed vector without
    any symmetry.
    """
    h, start = eps ** (1 / 3), probe(np.zeros_like(scale))
    v = np.random.default_rng(0).normal(size=scale.size)
    basis = np.zeros((0, scale.size))
    rows: list[np.ndarray] = []
    for _ in range(min(scale.size, STEPS)):
        v = v / np.linalg.norm(v)
        basis = np.vstack([basis, v])
        rows.append(scale * (probe(h * scale * v) - start) / h)
        if not np.isfinite(rows[-1]).all():
            return Curvature([], np.inf, np.inf)
        # once is enough: what is left is longer than h, and its part along the basis is rounding, eps / h of it
        v = rows[-1] - basis.T @ (basis @ rows[-1])
        if not np.linalg.norm(v) > h * np.linalg.norm(rows):
            break
    H = basis @ np.transpose(rows)
    slope = float(np.linalg.norm(scale * start))
    bends, vectors = np.linalg.eigh(0.5 * (H + H.T))
    noise = h * bends[-1]  # where the largest in size is below 0 it is far below any noise
    if bends[0] < -noise:
        down = scale * (vectors[:, 0] @ basis)
        return Curvature([sign * 0.25**j * down for j in range(5) for sign in (0.5, -0.5)], slope, np.inf)
    if bends[0] <= noise or len(bends) < scale.size:
        return Curvature([], slope, np.inf)
    along = vectors.T @ (basis @ (scale * start))
    return Curvature([], slope, float(0.5 * np.sum(along * along / bends)))
