"""Sets of one's own with a mistake in them: none may end in a success."""

from dataclasses import dataclass

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.errors import ProblemError

from .support import rng

A = rng(0).normal(size=(60, 6))
Y = A @ np.array([0.5, 0.3, 0.0, 0.0, 0.0, 0.4]) * 0.9 + 0.3
START = np.full(6, 1 / 6)


@dataclass(frozen=True)
class Probabilities(xv.sets.Set):
    """The unit simplex, as a user would write it: right in all but what a class below gets wrong."""

    def lmo(self, g):
        return xv.sets.Simplex().lmo(g)

    def project(self, x):
        return xv.sets.Simplex().project(x)

    def diameter(self, like):
        return 2.0**0.5

    def violation(self, x):
        return xv.sets.Simplex().violation(x)

    def center(self, like):
        return xv.sets.Simplex().center(like)


class WrongSign(Probabilities):
    def lmo(self, g):
        return super().lmo(-g)


class Outside(Probabilities):
    def lmo(self, g):
        return 2.0 * super().lmo(g)


class WrongShape(Probabilities):
    def lmo(self, g):
        return super().lmo(g)[:2]


class ToTheCentre(Probabilities):
    def project(self, x):
        return self.center(x)


class Rescaled(Probabilities):
    def project(self, x):
        xp = xv.array_namespace(x)
        x = xp.abs(x) + 1e-3
        return x / xp.sum(x, axis=-1, keepdims=True)


class NoCentre(Probabilities):
    def center(self, like):
        return 0.0 * like


class TooNarrow(Probabilities):
    def diameter(self, like):
        return 1.0


class Anything(Probabilities):
    def violation(self, x):
        return 0.0 * xv.sets.Simplex().violation(x)


MISTAKES = {
    WrongSign: "lmo.* must minimise",
    Outside: "what lmo returns.* must lie in the set",
    WrongShape: "lmo must return an array with the shape",
    ToTheCentre: "project.* must be the nearest",
    Rescaled: "project.* must be the nearest",
    NoCentre: "center must lie in the set",
    TooNarrow: "diameter must be the largest distance",
    Anything: "violation must be more than 0",
}


def problem():
    def M(theta, A):
        xp = xv.array_namespace(theta)
        return xp.stack([A @ theta, xp.ones_like(A[:, 0])], axis=1)

    return xv.separable(M, Y, data=A, lam=1e-3)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_a_set_that_is_right_passes(name):
    xv.sets.check(Probabilities(), (6,), name)


@pytest.mark.parametrize("kind", MISTAKES)
def test_the_first_promise_that_is_broken_is_named(kind):
    with pytest.raises(ProblemError, match=f"{kind.__name__}: {MISTAKES[kind]}"):
        xv.sets.check(kind(), (6,))
    with pytest.raises(ProblemError, match=f"{kind.__name__}: {MISTAKES[kind]}"):
        xv.solve(problem(), START, over=kind(), debug=True)


def test_a_set_in_another_and_a_function_are_checked_too():
    rows = xv.sets.Rows(ToTheCentre())
    with pytest.raises(ProblemError, match=r"project.* must be the nearest"):
        xv.solve(xv.separable(lambda th, A: A @ th.T, Y, data=A, lam=1.0), START[None, :], over=rows, debug=True)
    function = xv.sets.Oracle(lambda g: xv.sets.Simplex().lmo(-g), width=2.0, outside=xv.sets.Simplex().violation)
    with pytest.raises(ProblemError, match=r"Oracle: lmo.* must minimise"):
        xv.solve(problem(), START, over=function, debug=True)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_a_gap_below_zero_is_no_success(name):
    for method in (None, xv.algorithms.FrankWolfe()):
        with pytest.raises(ProblemError, match=r"WrongSign: lmo.* must minimise"):
            xv.solve(problem(), START, over=WrongSign(), algorithm=method, backend=name, max_iter=2000)


def test_a_projection_that_leads_nowhere_is_no_success():
    with pytest.raises(ProblemError, match=r"ToTheCentre: project.* must be the nearest"):
        xv.solve(problem(), START, over=ToTheCentre())


@pytest.mark.parametrize("method", [None, xv.algorithms.SpectralProjectedGradient()])
def test_a_set_that_is_right_is_solved_with_debug(method):
    fit = xv.solve(problem(), START, over=Probabilities(), algorithm=method, debug=True, max_iter=2000)
    assert fit.value <= xv.solve(problem(), START, over=xv.sets.Simplex(), max_iter=2000).value * 1.01


def test_a_class_that_is_no_dataclass_is_told_so():
    class Plain(xv.sets.Set):
        lmo = Probabilities.lmo
        diameter = Probabilities.diameter
        violation = Probabilities.violation

    with pytest.raises(ProblemError, match=r"Plain must be a frozen dataclass.*@dataclass\(frozen=True\)"):
        xv.solve(problem(), START, over=Plain())
