"""The reduced objective: its gradient against routes that share no code with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.lower.interface import LowerSolver
from xvarpro.operators.interface import Operator

from .support import BACKENDS, central_differences, decays, error, in_turn, rng, vector

# -- problems of every kind, each as (problem, theta) ------------------------------------------------------------------

T_L, T_U = np.linspace(0.0, 2.0, 14), np.linspace(0.1, 1.9, 9)
rates = np.array([0.7, 2.0, 4.5])
Y_L, Y_U = rng(0).normal(size=14), rng(1).normal(size=9)
OMEGA = np.eye(3) + 0.3 * rng(4).normal(size=(3, 3))


def lower_design(theta, data):
    return decays(theta, {"t": data["t_L"]})


def upper_design(theta, data):
    return decays(theta, {"t": data["t_U"]})


def wide(theta, data):
    """More columns than rows, every entry moving with theta."""
    xp = xv.array_namespace(theta)
    return xp.sin(data["W"] * xp.expand_dims(theta, axis=1))


def wide_upper(theta, data):
    xp = xv.array_namespace(theta)
    return xp.cos(data["V"] * xp.sum(theta))


WIDE = {"W": rng(8).normal(size=(4, 11)), "V": rng(9).normal(size=(6, 11))}
WIDE_OMEGA = np.eye(11) + 0.1 * rng(13).normal(size=(11, 11))


def thin_factors(theta, data):
    """Rank 2 at every theta: (m, 2) times (2, 4)."""
    xp = xv.array_namespace(theta)
    return xp.exp(data["F"] * theta[0]) @ xp.sin(data["G"] * theta[1])


THIN = {"F": rng(10).normal(size=(9, 2)), "G": rng(11).normal(size=(2, 4))}
DATA = {"t_L": T_L, "t_U": T_U}


@dataclass(frozen=True)
class RowScaled(Operator):
    """``diag(scale) base``, never formed for products."""

    scale: object = None
    base: object = None

    @property
    def shape(self):
        return self.base.shape

    def matvec(self, w):
        return self.scale * (self.base @ w)

    def rmatvec(self, r):
        return self.base.mT @ (self.scale * r)

    def outer(self, r, w):
        xp = xv.array_namespace(r)
        return RowScaled(xp.sum(r * (self.base @ w), axis=1, keepdims=True), (self.scale * r) @ w.mT)

    def dense(self):
        return self.scale * self.base


def structured(theta, data):
    xp = xv.array_namespace(theta)
    t = xp.expand_dims(data["t_L"], axis=1)
    return RowScaled(xp.exp(-t * theta[2]), xp.cos(t * theta))


def separable(M=lower_design, **keywords):
    return xv.separable(M, Y_L, data=DATA, **keywords)


def bilevel(lower, upper=None):
    return xv.bilevel(lower=lower, upper=upper or xv.Level(upper_design, Y_U), data=DATA)


def level(M=lower_design, **keywords):
    return xv.Level(M, Y_L, **{"lam": 0.05, **keywords})


# what the suite, which has all kinds of problems, solves by the solver that fits and with operators that are exported
CASES = {
    "Omega": (separable(lam=0.1, Omega=OMEGA), rates),
    "svd": (separable(lam=0.1, solver=xv.lower.SVD()), rates),
    "rank deficient": (xv.separable(thin_factors, Y_U, data=THIN, solver=xv.lower.SVD()), np.array([0.4, 0.8])),
    "operator": (separable(structured, lam=0.1), rates),
    "bilevel svd": (bilevel(level(solver=xv.lower.SVD())), rates),
    "bilevel operator": (bilevel(level(structured)), rates),
    "bilevel upper ridge Omega": (bilevel(level(), xv.Level(upper_design, Y_U, lam=0.4, Omega=OMEGA)), rates),
    "bilevel wide Omega": (
        xv.bilevel(
            lower=xv.Level(wide, Y_L[:4], lam=0.1, Omega=WIDE_OMEGA),
            upper=xv.Level(wide_upper, Y_U[:6], lam=0.2),
            data=WIDE,
        ),
        np.array([0.5, 1.0, 1.5, 2.0]),
    ),
}


@in_turn("case", CASES)
def test_gradient_is_that_of_the_value(case):
    problem, theta = CASES[case]

    def f(x):
        return float(xv.value_and_gradient(problem, x)[0])

    assert error(xv.value_and_gradient(problem, theta)[1], central_differences(f, theta)) <= 1e-6


# -- what is computed, and how often -----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("algorithm", [xv.algorithms.cr_varpro(), xv.algorithms.ProjectedQuasiNewton()])
def test_one_factorisation_per_value_in_a_whole_solve(algorithm, tally):
    box = xv.sets.Box(0.0, 10.0)
    fit = xv.solve(bilevel(level(solver=Counting())), rates, over=box, algorithm=algorithm, max_iter=7)
    verification = 1
    assert tally["factor"] == fit.counts.factorisations + verification
    assert fit.counts.factorisations == fit.counts.values
    assert tally["argmin"] == fit.counts.values + verification


def test_bilevel_of_one_function_with_one_ridge_is_separable(backend):
    value, gradient = xv.value_and_gradient(bilevel(level(lam=0.2), level(lam=0.2)), rates, backend=backend.name)
    want, want_gradient = xv.value_and_gradient(separable(lam=0.2), rates, backend=backend.name)
    assert error(value, want) <= 1e-14
    assert error(gradient, want_gradient) <= 1e-12


@pytest.mark.parametrize("ridges", [(0.2, 0.0), (0.0, 0.2), (0.2, 0.1)])
def test_ridge_in_one_level_only_needs_the_adjoint(ridges, backend):
    """The envelope gradient, w held constant, is then wrong: coupling vanishes for equal functions, ridge included."""
    lower, upper = (level(lam=lam) for lam in ridges)
    problem = bilevel(lower, upper)
    _, gradient = xv.value_and_gradient(problem, rates, backend=backend.name)

    M = np.exp(-np.outer(T_L, rates))
    w = np.linalg.solve(M.T @ M + ridges[0] * np.eye(3), M.T @ Y_L)
    envelope = ((M @ w - Y_L) @ (-T_L[:, None] * M)) * w
    assert error(gradient, envelope) > 1e-3


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
