"""Reference problems of the suite as dense objectives in plain NumPy, with derivatives written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro_conformance import problems
from xvarpro_conformance.problems import Reference
from xvarpro_conformance.references import twins
from xvarpro_conformance.references.twins import Matrix, Model, Objective, Vector


class Dense(NamedTuple):
    """A problem twice: as the package takes it, and as an `Objective` of one vector."""

    reference: Reference
    f: Objective

    @property
    def theta0(self) -> Vector:
        return np.concatenate([np.ravel(x) for x in _leaves(self.reference.theta0)])


def _leaves(theta: Any) -> list[np.ndarray]:
    return [theta[key] for key in sorted(theta)] if isinstance(theta, dict) else [theta]


def flat(theta: Any) -> Vector:
    """Theta of a result as one vector, by the names of its leaves."""
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in _leaves(theta)])


def decays(t: Vector) -> Model:
    """``exp(-t theta)``."""
    return Model(
        lambda theta: np.exp(-np.outer(t, theta)),
        lambda theta, G: -(G * t[:, None] * np.exp(-np.outer(t, theta))).sum(axis=0),
    )


def itself(shape: tuple[int, int]) -> Model:
    """``M(theta) = theta``."""
    return Model(lambda theta: theta.reshape(shape), lambda theta, G: G.ravel())


def scaled_columns(A: Matrix) -> Model:
    """``A diag(theta + 1/10)``."""
    return Model(lambda theta: A * (theta + 0.1), lambda theta, G: (A * G).sum(axis=0))


def units(X: Matrix) -> Model:
    """``tanh(X A) diag(s + 1/10)`` of theta = (A, s): four inputs, five units."""

    def matrix(theta: Vector) -> Matrix:
        out: Matrix = np.tanh(X @ theta[:20].reshape(4, 5)) * (theta[20:] + 0.1)
        return out

    def pull(theta: Vector, G: Matrix) -> Vector:
        H = np.tanh(X @ theta[:20].reshape(4, 5))
        dA = X.T @ (G * (theta[20:] + 0.1) * (1 - H * H))
        return np.concatenate([dA.ravel(), (G * H).sum(axis=0)])

    return Model(matrix, pull)


def _spread(theta: Vector) -> tuple[float, Vector]:
    A = np.concatenate([theta[:20], np.zeros(5)])
    return float(A @ A), 2 * A


def exponentials() -> Dense:
    """`problems.exponentials`."""
    made = problems.exponentials()
    y = _targets(made)[0]
    f = Objective(decays(np.asarray(made.problem.data)), y, 1e-4, ((slice(None), twins.box(0.0, 10.0)),))
    return Dense(made, f)


def dictionary() -> Dense:
    """`problems.dictionary`."""
    made = problems.dictionary()
    f = Objective(itself((20, 6)), _targets(made)[0], 1e-3, ((slice(None), twins.l1_ball()),))
    return Dense(made, f)


def atoms() -> Dense:
    """`problems.atoms`."""
    made = problems.atoms()
    f = Objective(itself((6, 3)), _targets(made)[0], 1e-2, ((slice(None), twins.l1_ball()),))
    return Dense(made, f)


def network() -> Dense:
    """`problems.network`."""
    made = problems.network()
    data, (y, y_upper) = made.problem.data, _targets(made)
    f = Objective(
        units(data["train"]),
        y,
        1e-2,
        ((slice(20, 25), twins.capped_simplex()),),
        free=slice(0, 20),
        upper=units(data["validation"]),
        y_upper=y_upper,
        penalty=_spread,
        mu=1e-3,
    )
    return Dense(made, f)


def wide() -> Dense:
    """`problems.wide`."""
    made = problems.wide()
    f = Objective(
        scaled_columns(np.asarray(made.problem.data)), _targets(made)[0], 1e-1, ((slice(None), twins.simplex()),)
    )
    return Dense(made, f)


def slow() -> Dense:
    """`exponentials` from rates that are too low: the models' predictions come near each other."""
    made = of(exponentials)
    return Dense(replace(made.reference, theta0=np.array([0.25, 3.0, 5.0])), made.f)


def bounded() -> Dense:
    """`exponentials` in a box that the fastest of the three rates would leave."""
    made = problems.exponentials()
    reference = Reference(made.problem, np.array([0.5, 3.0, 4.0]), xv.sets.Box(0.25, 5.0))
    f = replace(of(exponentials).f, sets=((slice(None), twins.box(0.25, 5.0)),))
    return Dense(reference, f)


def round_() -> Dense:
    """`wide` in a ball, where a vertex moves as far as the gradient does: rounding stays what it is."""
    made = problems.wide()
    reference = Reference(made.problem, np.full(16, 1 / 16), xv.sets.L2Ball(1.0))
    return Dense(reference, replace(of(wide).f, sets=((slice(None), twins.l2_ball()),)))


def _targets(made: Reference) -> list[Matrix]:
    ys = [np.asarray(level.y) for level in made.problem.levels]
    return [y[:, None] if y.ndim == 1 else y for y in ys]


@cache
def of(make: Callable[[], Dense]) -> Dense:
    """A problem, made once."""
    return make()
