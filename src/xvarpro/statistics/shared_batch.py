"""Linear theory of problems that share entries of theta: blocks of the inverse of an arrow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xvarpro.errors import ProblemError
from xvarpro.statistics.linearised_batch import LinearisedBatch


class Eliminated(NamedTuple):
    """What is left of some problems, (b, ...), of p entries of theta with q shared ones, and of s entries of w."""

    own: np.ndarray  # (b, p, p), covariance of theta with what is shared held, for data of variance 1
    slope: np.ndarray  # (b, p, q), of theta by what is shared
    triangle: np.ndarray  # (b, r, q), of the tangents along what is shared, off those of a problem's own
    of_w: np.ndarray  # (b, s, s), covariance of w with theta held
    along: np.ndarray  # (b, s, p), of w by theta
    data: np.ndarray
    parameters: np.ndarray  # of the problem's own
    chi2: np.ndarray
    rounding: np.ndarray
    deviance: np.ndarray
    exact: np.ndarray
    silent: np.ndarray  # entries of theta that nothing depends on
    clear: np.ndarray


def eliminated(at: LinearisedBatch, shared: tuple[int, ...]) -> Eliminated:
    """Some problems, of whose theta the columns `shared` are held in `at`."""
    b, (_, n, _) = at.b, at.low.inverse.shape
    along = at.common @ at.high.Q.mT
    slope = -at.high.solved(along).mT
    slope[:, shared, np.arange(len(shared))] = 1.0
    left = at.common - along @ at.high.Q
    F = (at.low.inverse.mT @ at.low.inverse).reshape(b, at.c, n, n)
    of_w = np.zeros((b, n, at.c, at.k, n, at.c, at.k))
    for i, j in np.ndindex(at.c, at.k):
        of_w[:, :, i, j, :, i, j] = F[:, i]
    s = n * at.c * at.k
    return Eliminated(
        own=at.high.inverse.mT @ at.high.inverse,
        slope=slope,
        triangle=np.asarray(np.linalg.qr(left.mT, mode="r")),
        of_w=of_w.reshape(b, s, s),
        along=np.moveaxis(at.T, (1, 2, 3, 4), (2, 4, 3, 1)).reshape(b, s, at.p),
        data=at.data,
        parameters=at.parameters,
        chi2=at.chi2,
        rounding=at.rounding,
        deviance=at.deviance,
        exact=at.exact,
        silent=at.silent,
        clear=at.clear,
    )


def covariances(every: Eliminated, free: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Of theta and w of each problem, (b, p + s, p + s), for data of variance 1.

    Also how many parameters each problem has, its part of the shared ones included, and the least pivot of these.
    `free` says which of them no bound holds.
    """
    b, p, _ = every.slope.shape
    triangle = every.triangle[:, :, free]
    length = np.sqrt(np.sum(triangle**2, axis=(0, 1)))
    R = np.asarray(np.linalg.qr((triangle / length).reshape(-1, length.size), mode="r"))
    pivot = np.min(np.abs(np.diagonal(R)), initial=1.0)
    if not pivot > 0 or R.shape[0] < length.size:
        raise ProblemError("the data do not determine the leaves of theta that problems share: fix some of them")
    inverse = np.linalg.inv(R) / length[:, None]
    of_theta = np.concatenate([np.broadcast_to(np.eye(p), (b, p, p)), every.along], axis=1)
    by_shared = of_theta @ every.slope[:, :, free] @ inverse
    found = by_shared @ by_shared.mT + of_theta @ every.own @ of_theta.mT
    found[:, p:, p:] += every.of_w
    parameters = every.parameters + np.sum((triangle @ inverse) ** 2, axis=(1, 2))
    return found, parameters, float(pivot)
