"""The reduced objective beyond the suite, which has its values and gradients: how often what is computed."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.lower.interface import LowerSolver

from .support import BACKENDS, decays, rng, vector

T_L, T_U = np.linspace(0.0, 2.0, 14), np.linspace(0.1, 1.9, 9)
rates = np.array([0.7, 2.0, 4.5])
Y_L, Y_U = rng(0).normal(size=14), rng(1).normal(size=9)


def lower_design(theta, data):
    return decays(theta, {"t": data["t_L"]})


def upper_design(theta, data):
    return decays(theta, {"t": data["t_U"]})


DATA = {"t_L": T_L, "t_U": T_U}


def separable(M=lower_design, **keywords):
    return xv.separable(M, Y_L, data=DATA, **keywords)


def bilevel(lower, upper=None):
    return xv.bilevel(lower=lower, upper=upper or xv.Level(upper_design, Y_U), data=DATA)


def level(M=lower_design, **keywords):
    return xv.Level(M, Y_L, **{"lam": 0.05, **keywords})


@dataclass(frozen=True)
class Counting(LowerSolver):
    """QR that keeps a tally of what it was asked for."""

    tally: ClassVar[dict[str, int]] = {}

    def _count(self, name, *args):
        self.tally[name] = self.tally.get(name, 0) + 1
        return getattr(xv.lower.QR(), name)(*args)

    def factor(self, *args):
        return self._count("factor", *args)

    def argmin(self, *args):
        return self._count("argmin", *args)

    def adjoint(self, *args):
        return self._count("adjoint", *args)

    def refine(self, *args):
        return xv.lower.QR().refine(*args)

    def diagnose(self, *args):
        return xv.lower.QR().diagnose(*args)


@pytest.fixture
def tally():
    Counting.tally.clear()
    return Counting.tally


def test_separable_needs_no_adjoint(tally):
    xv.value_and_gradient(separable(lam=0.1, solver=Counting()), rates)
    assert tally == {"factor": 1, "argmin": 1}


def test_bilevel_takes_its_adjoint_from_the_same_factorisation(tally):
    xv.value_and_gradient(bilevel(level(solver=Counting())), rates)
    assert tally == {"factor": 1, "argmin": 1, "adjoint": 1}


def test_value_and_gradient_return_in_the_callers_framework(backend):
    theta = backend.asarray(rates)
    for other in (name for name in BACKENDS if name != "cupy"):
        value, gradient = xv.value_and_gradient(separable(), theta, backend=other)
        assert xv.backends.of(value) is backend
        assert xv.backends.of(gradient) is backend
        assert gradient.shape == theta.shape
        assert value.shape == ()


def test_leaves_that_the_model_does_not_read_have_zero_gradient(backend):
    theta = {"rates": rates, "idle": np.ones((2, 2))}
    problem = separable(lambda theta, data: lower_design(theta["rates"], data))
    _, gradient = xv.value_and_gradient(problem, theta, backend=backend.name)
    assert not vector(gradient["idle"]).any()
    assert vector(gradient["rates"]).any()
