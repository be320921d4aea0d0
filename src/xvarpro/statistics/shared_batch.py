"""Linear theory of problems that share entries of theta: blocks of the inverse of an arrow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xvarpro.errors import ProblemError
from xvarpro.statistics.linearised_batch import LinearisedBatch


class Eliminated(NamedTuple):
    """Some problems, (b, ...), of s parameters, theta's and then w's, that share q of them, for data of variance 1."""

    held: np.ndarray  # (b, s, s), covariance where what is shared is held
    slope: np.ndarray  # (b, s, q), of the parameters by what is shared
    triangle: np.ndarray  # (b, r, q), of the tangents along what is shared, off those of a problem's own
    # as of `LinearisedBatch`
    data: np.ndarray
    parameters: np.ndarray
    chi2: np.ndarray
    rounding: np.ndarray
    deviance: np.ndarray
    exact: np.ndarray
    silent: np.ndarray
    active: np.ndarray
    clear: np.ndarray


def eliminated(at: LinearisedBatch, shared: tuple[int, ...], scale: np.ndarray) -> Eliminated:
    """Some problems, of whose theta the entries `shared` are held in `at`."""
    answers = at.answers(np.ones((at.b, 1, 1, 1)), scale)
    # a step along what is shared is answered as one of the data the other way
    slope = -answers @ at.tangents[:, shared].mT
    slope[:, shared, np.arange(len(shared))] = 1 / at.prepared.units[list(shared)]
    left = at.left[:, shared]
    triangle = np.asarray(np.linalg.qr((left - left @ at.high.Q.mT @ at.high.Q).mT, mode="r"))
    return Eliminated(answers @ answers.mT, slope, triangle, *(getattr(at, name) for name in Eliminated._fields[3:]))


def covariances(every: Eliminated, free: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Of each problem, (b, s, s); its parameters with its part of the shared ones; the least pivot of these.

    `free` says which of them no bound holds.
    """
    triangle = every.triangle[:, :, free]
    length = np.sqrt(np.sum(triangle**2, axis=(0, 1)))
    R = np.asarray(np.linalg.qr((triangle / length).reshape(triangle.shape[0] * triangle.shape[1], -1), mode="r"))
    pivot = float(np.min(np.abs(np.diagonal(R)), initial=1.0)) if len(R) == length.size else 0.0
    if not pivot > 0:
        raise ProblemError("the data do not determine the leaves of theta that problems share: fix some of them")
    inverse = np.linalg.inv(R) / length[:, None]
    by_shared = every.slope[:, :, free] @ inverse
    parameters = every.parameters + np.sum((triangle @ inverse) ** 2, axis=(1, 2))
    return every.held + by_shared @ by_shared.mT, parameters, pivot
