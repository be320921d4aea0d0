"""The checks of sets, steps, operators and the lower level: what they catch, and that they pass what is right."""

from __future__ import annotations

import re

import numpy as np
import pytest

from xvarpro import conformance, lower, operators, sets, steps
from xvarpro_conformance.checks import lower_level as levels
from xvarpro_conformance.checks import operators as designs
from xvarpro_conformance.checks import sets as contracts
from xvarpro_conformance.references import sets as references

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
    only = ("sets/oracle/C*", "sets/oracle/L*", "sets/support/C*")
    assert run("torch", "float64", *only).ok
    own = sets.CappedSimplex.lmo
    monkeypatch.setattr(sets.CappedSimplex, "lmo", on("torch", lambda C, g: own(C, g.flip(-1)).flip(-1), own))
    report = run("torch", "float64", *only)
    assert [f.address for f in report.failures] == [f"sets/oracle/CappedSimplex {i}" for i in (0, 1)]
    ties = {f"vertices where there are ties of CappedSimplex {i}" for i in (0, 1)}
    assert said(report) >= ties
    assert not any("<g, v>" in what for what in said(report)), "the value is the same: a tie"
    assert "--only 'sets/oracle/CappedSimplex 0'" in report.failures[0].command


def test_an_oracle_that_depends_on_units(monkeypatch):
    own = sets.LinfBall.lmo
    monkeypatch.setattr(sets.LinfBall, "lmo", lambda C, g: own(C, np.where((g != 0) & (abs(g) < 1e-12), -1.0, g)))
    report = run("numpy", "float64", "sets/*/Li*")
    assert [f.address for f in report.failures] == [f"sets/oracle/LinfBall {i}" for i in (0, 1)]
    assert all("2^-100" in what for what in said(report))


def solved_by(kind):
    """The levels that a solver, or one that is made of it, takes."""
    return {name for name, level in levels.levels().items() if re.search(rf"\b{kind.__name__}\(", repr(level.solver))}


def test_a_solver_that_is_off_by_a_millionth(monkeypatch):
    only = [f"lower level/weights/{name}*" for name in ("SVD, ", "QR, ", "DualQR, complex", "BlockDiagonal 0, ")]
    assert run("numpy", "float64", *only).ok
    own = lower.SVD.argmin
    monkeypatch.setattr(lower.SVD, "argmin", lambda *args: own(*args) * (1 + 1e-6))
    report = run("numpy", "float64", *only)
    assert {f.case for f in report.failures} == solved_by(lower.SVD) & {o.case for o in report}
    assert len(report) > len(report.failures) >= 6
    assert all(f.check == "weights" and f.units > 1e3 for f in report.failures)


def test_a_rule_that_takes_another_step(monkeypatch):
    own = steps.LogAdaptive.at
    monkeypatch.setattr(steps.LogAdaptive, "at", lambda rule, t: own(rule, t) * (1 + 1e-3 * (t.dtype != "float64")))
    report = run("numpy", "float32", "steps/decisions")
    assert [f.case for f in report.failures] == ["LogAdaptive()"]


@pytest.mark.parametrize(
    ("name", "fault", "checks"),
    [
        (
            "Simplex",
            lambda own: {"lmo": lambda C, g: own.lmo(C, np.asarray(g, np.float32).astype(g.dtype))},
            {"oracle"},
        ),
        ("L2Ball", lambda own: {"support": lambda C, g: C.radius * np.linalg.norm(g, axis=-1)}, {"support"}),
        ("Box", lambda own: {"diameter": lambda C, x: 0.99 * own.diameter(C, x)}, {"centre and diameter"}),
        ("NuclearBall", lambda own: {"project": lambda C, x: own.project(C, x) * (1 + 1e-9)}, {"projection"}),
        ("WeightedSimplex", lambda own: {"reach": lambda C, *at: 0.99 * own.reach(C, *at)}, {"faces of points"}),
    ],
)
def test_a_fault_that_every_framework_shares(monkeypatch, name, fault, checks):
    """NumPy is compared with definitions, not with itself."""
    kind = getattr(sets, name)
    own = type("own", (), {key: staticmethod(getattr(kind, key)) for key in dir(kind) if not key.startswith("__")})
    for method, wrong in fault(own).items():
        monkeypatch.setattr(kind, method, wrong)
    report = run("numpy", "float64", f"sets/*/{name} *")
    assert {f.check for f in report.failures} >= checks


def test_inequalities_and_closed_forms_are_of_one_set(subtests):
    """Vertices by enumeration, the support by a linear program, and the closed form."""
    for name, case in contracts.cases().items():
        if case.C.has_faces:
            with subtests.test(name):
                one_set(case)


def one_set(case):
    from scipy.optimize import linprog

    of = references.polytope(case.C, *case.shape)
    for g in contracts.gradients(case.shape):
        found = linprog(-g, A_ub=of.A, b_ub=of.b, bounds=(None, None), method="highs")
        want = float(case.known.support(g))
        assert -found.fun == pytest.approx(want, abs=1e-9)
        assert (of.vertices @ g).max() == pytest.approx(want, abs=1e-12)


def test_a_set_without_a_reference_fails(monkeypatch):
    monkeypatch.delitem(references.DEFINITIONS, sets.Ellipsoid)
    for case in contracts.cases().values():
        vars(case).pop("known", None)
    report = run("numpy", "float64", "sets/references/Ellipsoid")
    assert [f.state for f in report.failures] == ["raised"]
    assert "has no reference" in report.failures[0].note


# -- what is asked is decided by no rounding ---------------------------------------------------------------------------


def test_gradients_are_clear(subtests):
    """A change of a millionth moves no vertex: what rounding does to a gradient is less in either precision."""
    for name, case in contracts.cases().items():
        if case.C.polytope:
            g = contracts.gradients(case.shape)[contracts.TIED :]
            moved = (g * (1 + 1e-6 * rng(seed).normal(size=g.shape)) for seed in range(3))
            with subtests.test(name):
                assert max(np.abs(case.C.lmo(x) - case.C.lmo(g)).max() for x in moved) <= 1e-12 * case.diameter


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
    assert asked >= {name for name in lower.__all__ if hasattr(getattr(lower, name), "argmin")} - {
        "LowerSolver",
        "Cholesky",
    }
