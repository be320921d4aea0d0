"""The checks of sets, steps, operators and the lower level: what they catch, and that they pass what is right."""

from __future__ import annotations

import re

import numpy as np
import pytest

from xvarpro import conformance, lower, operators, sets, steps
from xvarpro.conformance.checks import lower_level as levels
from xvarpro.conformance.checks import operators as designs
from xvarpro.conformance.checks import sets as contracts

from .support import rng


def run(backend, dtype, *only):
    return conformance.run(conformance.targets([backend], dtypes=[dtype]), only)


def on(backend, fun, own):
    """`fun` for the arrays of one framework, the own method for all others."""

    def method(self, *args):
        mine = any(type(x).__module__.partition(".")[0] == backend for x in args)
        return (fun if mine else own)(self, *args)

    return method


def said(report):
    return {f"{m.what} of {o.case}" for o in report.failures for m in o.failures}


# -- planted faults ----------------------------------------------------------------------------------------------------


def test_a_tie_broken_differently_in_one_oracle(monkeypatch):
    only = ("sets/oracle/C*", "sets/oracle/L*", "sets/batches/C*")
    assert run("torch", "float64", *only).ok
    own = sets.CappedSimplex.lmo
    monkeypatch.setattr(sets.CappedSimplex, "lmo", on("torch", lambda C, g: own(C, g.flip(-1)).flip(-1), own))
    report = run("torch", "float64", *only)
    assert [f.address for f in report.failures] == ["sets/oracle/CappedSimplex 0"]
    assert said(report) == {"vertices where there are ties of CappedSimplex 0"}, "the value is the same: a tie"
    assert "--only 'sets/oracle/CappedSimplex 0'" in report.failures[0].command


def test_an_oracle_that_depends_on_units(monkeypatch):
    own = sets.LinfBall.lmo
    monkeypatch.setattr(sets.LinfBall, "lmo", lambda C, g: own(C, np.where(abs(g) < 1e-12, -1.0, g)))
    report = run("numpy", "float64", "sets/*/Li*")
    assert [f.address for f in report.failures] == ["sets/scale of the gradient/LinfBall 0"]
    assert all("2^-100" in what for what in said(report))


def solved_by(kind):
    """The levels that a solver, or one that is made of it, takes."""
    return {name for name, level in levels.levels().items() if re.search(rf"\b{kind.__name__}\(", repr(level.solver))}


def test_a_solver_that_is_off_by_a_millionth(monkeypatch):
    assert run("numpy", "float64", "lower level/weights").ok
    own = lower.Cholesky.argmin
    monkeypatch.setattr(lower.Cholesky, "argmin", lambda *args: own(*args) * (1 + 1e-6))
    report = run("numpy", "float64", "lower level/weights")
    assert {f.case for f in report.failures} == solved_by(lower.Cholesky)
    assert all(f.check == "weights" and f.units > 1e3 for f in report.failures)


def test_a_rule_that_takes_another_step(monkeypatch):
    own = steps.LogAdaptive.at
    monkeypatch.setattr(steps.LogAdaptive, "at", lambda rule, t: own(rule, t) * (1 + 1e-3 * (t.dtype != "float64")))
    report = run("numpy", "float32", "steps/decisions")
    assert [f.case for f in report.failures] == ["LogAdaptive()"]


# -- what is asked is decided by no rounding ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, case in contracts.cases().items() if case.C.polytope])
def test_gradients_are_clear(name):
    """A change of a millionth moves no vertex: what rounding does to a gradient is less in either precision."""
    case = contracts.cases()[name]
    g = contracts.gradients(case.shape)[contracts.TIED :]
    for seed in range(3):
        moved = g * (1 + 1e-6 * rng(seed).normal(size=g.shape))
        assert np.abs(case.C.lmo(moved) - case.C.lmo(g)).max() <= 1e-12 * case.diameter


@pytest.mark.parametrize("name", ["QR, no ridge", "QR, weighted ridge", "QR, complex"])
def test_rational_arithmetic_solves_the_level(name):
    level = levels.levels()[name]
    w, v = levels.exact(level)
    A, Omega = level.A[0], np.eye(4) if level.Omega is None else level.Omega
    H = A.conj().T @ A + level.lam * Omega.T @ Omega
    assert np.linalg.norm(H @ w - A.conj().T @ level.y) <= 1e-14 * np.linalg.norm(level.y) * np.linalg.norm(A)
    assert np.linalg.norm(H @ v - level.c) <= 1e-13 * np.linalg.norm(level.c)


def test_everything_that_is_exported_is_asked():
    """By name, from the list of what is public: nothing is left out because it has no example."""
    asked = {type(case.C).__name__ for case in contracts.cases().values()}
    assert asked >= {name for name in sets.__all__ if hasattr(getattr(sets, name), "lmo")} - {"Set"}
    asked = {type(case.M).__name__ for case in designs.cases().values()}
    assert asked >= {name for name in operators.__all__ if hasattr(getattr(operators, name), "rmatvec")} - {"Operator"}
    asked = {type(level.solver).__name__ for level in levels.levels().values()}
    assert asked >= {name for name in lower.__all__ if hasattr(getattr(lower, name), "argmin")} - {"LowerSolver"}
