"""The suite finds faults: each is planted alone, and what fails names the part that it was planted in."""

import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.optimize import linprog

import xvarpro as xv
from xvarpro import conformance, lower, operators, sets, steps
from xvarpro.backends.numpy import NumPyBackend
from xvarpro.backends.tape.engine import Tape
from xvarpro.backends.tape.recording import unary_method
from xvarpro.backends.torch import TorchBackend
from xvarpro.core import trees
from xvarpro_conformance import Target, evaluation, kinds, problems
from xvarpro_conformance.checks import lower_level as levels
from xvarpro_conformance.checks import operators as designs
from xvarpro_conformance.checks import results, solves
from xvarpro_conformance.checks import sets as contracts
from xvarpro_conformance.references import sets as references

from .support import rng


def run(backend, dtype, *only):
    backend = xv.backends.get(backend) if isinstance(backend, str) else backend
    return conformance.run([Target(backend, next(iter(backend.devices())), dtype)], only)


def off(report):
    """What is off, or was raised, by the address of the check."""
    assert len(report) > len(report.failures) or len(report) == 1, "something must pass"
    return {o.address: "; ".join(m.what for m in o.failures) or o.note for o in report.failures}


# -- backends ----------------------------------------------------------------------------------------------------------


def backend(base=NumPyBackend, **methods):
    """A backend with other methods."""
    return type("Wrong", (base,), methods)()


def longer_pull_backs(self, fun, primals, constants=()):
    outputs, pull = TorchBackend.vjp(self, fun, primals, constants)
    return outputs, lambda cotangents: tuple((1 + 1e-6) * g for g in pull(cotangents))


def no_transpose(self, fun, primals, constants=()):
    outputs, push = NumPyBackend.linearise(self, fun, primals, constants)
    return outputs, lambda v: tuple(2 * x for x in push(v))


def short(x):
    return x.astype("complex64" if np.iscomplexobj(x) else "float32")


def off_by_a_millionth(self, A, mode="reduced"):
    Q, R = NumPyBackend.qr(self, A, mode)
    return Q * (1 + 1e-6), R


def rounded(self, x, *, dtype=None, device=None):
    """The dtype is right, and half of the digits are gone."""
    x = NumPyBackend.asarray(self, x, dtype=dtype)
    return x.astype("float32").astype("float64") if x.dtype == "float64" else x


@contextmanager
def leaks(self, dtype):
    np.seterr(over="raise")
    yield


class Wrong(NamedTuple):
    """A backend, checks, those of them that fail, and what is said there."""

    backend: Any
    only: tuple[str, ...]
    failing: set[str]
    said: str


BACKENDS = {
    "pull-backs that are longer": Wrong(
        backend(TorchBackend, vjp=longer_pull_backs), ("reduced gradient/kinds of problems/network",),
        {"kinds of problems"}, "slopes",
    ),
    "a push-forward that is no transpose": Wrong(
        backend(linearise=no_transpose), ("derivatives/functions/elementwise", "exchange/numbers on the host"),
        {"functions"}, "push-forward",
    ),
    "factors in float32": Wrong(
        backend(
            cholesky=lambda self, A: short(NumPyBackend.cholesky(self, A)),
            solve_triangular=lambda self, R, B, **how: short(NumPyBackend.solve_triangular(self, R, B, **how)),
        ),
        ("factorisations",), {"cholesky", "triangular solves", "qr"}, "dtype",
    ),
    "a factor off by a millionth": Wrong(backend(qr=off_by_a_millionth), ("factorisations",), {"qr"}, "Q R"),
    "an error where NaN is required": Wrong(
        backend(cholesky=lambda self, A: np.linalg.cholesky(A)), ("factorisations",), {"failures", "qr"}, "LinAlgError",
    ),
    "arrays that are rounded": Wrong(backend(asarray=rounded), ("exchange/arrays",), {"arrays"}, "values"),
    "a loop that takes a step before it looks": Wrong(
        backend(while_loop=lambda self, cond, body, x: NumPyBackend.while_loop(self, cond, body, body(x))),
        ("control flow",), {"while loops"}, "",
    ),
    "a scope that leaks": Wrong(
        backend(scope=leaks), ("numerics scope/settings",), {"settings"}, "errstate of numpy"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BACKENDS)
def test_a_fault_of_a_backend_is_caught_and_named(name):
    wrong = BACKENDS[name]
    with np.errstate():
        found = off(run(wrong.backend, "float64", *wrong.only))
    assert {address.split("/")[1] for address in found} == wrong.failing
    assert any(wrong.said in said for said in found.values())
    assert not any("int64" in address or "bool" in address for address in found)


def test_a_millionth_is_within_the_rounding_of_single_precision():
    """Which is why both precisions are part of the suite."""
    wrong = BACKENDS["pull-backs that are longer"]
    assert run(wrong.backend, "float32", *wrong.only).ok


class Place(str):
    """A device as CuPy's are: without a hash."""

    __hash__ = None


@pytest.mark.parametrize(
    ("place", "only"), [(Place("cpu"), "derivatives/functions/elementwise"), (1j, "exchange/copies")]
)
def test_devices_need_no_hash_and_no_processor_among_them(place, only):
    report = run(backend(devices=lambda self: {"far:0": place}), "float64", only)
    assert report
    assert not report.failures


# -- what every framework shares, and what one of them does ------------------------------------------------------------


def on(name, fun, own):
    """`fun` for the arrays of one framework, the own method for all others."""

    def method(self, *args):
        mine = any(type(x).__module__.partition(".")[0] == name for x in args)
        return (fun if mine else own)(self, *args)

    return method


def of_solves(change: Callable[[xv.Result], xv.Result]):
    """Every solve of the suite, changed."""
    return lambda own: lambda *args, **options: change(own(*args, **options))


def field(name, wrong):
    return of_solves(lambda fit: replace(fit, verified=replace(fit.verified, **{name: wrong})))


def timid(own):
    """Steps that are too short for the lemma of the paper."""
    method = xv.algorithms.FrankWolfe(steps.ShortStep(L=20 * solves.quadratic().L))
    return lambda target, made, _, n: own(target, made, method, n)


def another_armijo(own):
    def search(rule, line, memory):
        there = xv.backends.of(memory).name == "torch"
        return own(replace(rule, gamma=0.45) if there else rule, line, memory)

    return search


class Fault(NamedTuple):
    """An attribute, a wrong one, made of the right one, where it is looked for, what fails and what is said there."""

    owner: Any
    attribute: str
    wrong: Callable[[Any], Any]
    only: tuple[str, ...]
    failing: set[str]
    said: str = ""
    where: tuple[str, str] = ("numpy", "float64")


FAULTS = {
    "a sign in one rule": Fault(
        Tape, "tanh", lambda own: unary_method("tanh", lambda xp, g, y, _x: -g * (1 - y * y)),
        ("derivatives/functions",), {"functions/elementwise"}, "gradient along a direction",
    ),
    "a tie broken differently on one framework": Fault(
        sets.CappedSimplex, "lmo", lambda own: on("torch", lambda C, g: own(C, g.flip(-1)).flip(-1), own),
        ("sets/oracle/C*", "sets/oracle/L*", "sets/support/C*"), {"oracle/CappedSimplex 0", "oracle/CappedSimplex 1"},
        "a little aside of ties", ("torch", "float64"),
    ),
    "an oracle that depends on units": Fault(
        sets.LinfBall, "lmo", lambda own: lambda C, g: own(C, np.where((g != 0) & (abs(g) < 1e-12), -1.0, g)),
        ("sets/*/Li*",), {"oracle/LinfBall 0", "oracle/LinfBall 1"}, "2^-100",
    ),
    "a rule that takes another step": Fault(
        steps.OpenLoop, "at", lambda own: lambda rule, t: own(rule, t) * (1 + 1e-3 * (t.dtype != "float64")),
        ("steps/decisions",), {f"decisions/OpenLoop(l={x})" for x in ("2.0", "4.0", "log")}, "", ("numpy", "float32"),
    ),
    "another constant of Armijo on one framework": Fault(
        steps.Armijo, "search", another_armijo, ("solves/step decisions/strict Armijo",),
        {"step decisions/strict Armijo"}, "alpha_A, iterate", ("torch", "float64"),
    ),
    "steps that are too short for the lemma": Fault(
        evaluation, "solve", timid, ("paper/theorem 1/short step",), {"theorem 1/short step"},
        "lemma: min(1, g/(L Delta^2))",
    ),
    "a certificate that is too good": Fault(
        evaluation, "solve", of_solves(lambda fit: replace(fit, gap_A=0.5 * fit.gap_A)),
        ("solves/certificates/cr_varpro",), {"certificates/cr_varpro"}, "gap_A", ("torch", "float64"),
    ),
    "a trace off by one": Fault(
        evaluation, "solve",
        of_solves(lambda fit: replace(fit, trace=replace(fit.trace, gap_A=np.roll(fit.trace.gap_A, 1)))),
        ("results/trace/cr_varpro",), {"trace/cr_varpro"}, "gap_A, iterate",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_and_named(monkeypatch, name):
    fault = FAULTS[name]
    monkeypatch.setattr(fault.owner, fault.attribute, fault.wrong(getattr(fault.owner, fault.attribute)))
    report = run(*fault.where, *fault.only)
    found = off(report)
    assert {address.partition("/")[2] for address in found} == fault.failing
    assert all(fault.said in said for said in found.values())
    assert all(o.address in o.command for o in report.failures)
    if "tie" in name:
        assert not any("<g, v>" in said for said in found.values()), "the value is the same"


@pytest.mark.parametrize(
    ("only", "name", "wrong"),
    [
        ("results/violation/box", "violation", 0.0),
        ("results/dead units/three", "dead_units", 2),
        ("solves/certificates/cr_varpro", "condition", 10.0),
    ],
)
def test_a_wrong_field_of_verified_is_caught_and_named(monkeypatch, only, name, wrong):
    assert run("numpy", "float64", only).ok
    monkeypatch.setattr(evaluation, "solve", field(name, wrong)(evaluation.solve))
    assert list(off(run("numpy", "float64", only)).values()) == [name.replace("_", " ")]


def test_a_solver_that_is_off_by_a_millionth(monkeypatch):
    only = [f"lower level/weights/{name}*" for name in ("SVD, ", "QR, ", "DualQR, complex", "BlockDiagonal 0, ")]
    own = lower.SVD.argmin
    monkeypatch.setattr(lower.SVD, "argmin", lambda *args: own(*args) * (1 + 1e-6))
    report = run("numpy", "float64", *only)
    by_svd = {name for name, level in levels.levels().items() if re.search(r"\bSVD\(", repr(level.solver))}
    assert {f.case for f in report.failures} == by_svd & {o.case for o in report}
    assert len(report) > len(report.failures) >= 6
    assert all(f.check == "weights" and f.units > 1e3 for f in report.failures)


@pytest.mark.parametrize(
    ("name", "method", "fault", "check"),
    [
        ("Simplex", "lmo", lambda own: lambda C, g: own(C, np.asarray(g, np.float32).astype(g.dtype)), "oracle"),
        ("L2Ball", "support", lambda own: lambda C, g: C.radius * np.linalg.norm(g, axis=-1), "support"),
        ("Box", "diameter", lambda own: lambda C, x: 0.99 * own(C, x), "centre and diameter"),
        ("NuclearBall", "project", lambda own: lambda C, x: own(C, x) * (1 + 1e-9), "projection"),
        ("WeightedSimplex", "reach", lambda own: lambda C, *at: 0.99 * own(C, *at), "faces of points"),
    ],
)
def test_a_fault_that_every_framework_shares(monkeypatch, name, method, fault, check):
    """NumPy is compared with definitions, not with itself."""
    kind = getattr(sets, name)
    monkeypatch.setattr(kind, method, fault(getattr(kind, method)))
    assert check in {f.check for f in run("numpy", "float64", f"sets/*/{name} *").failures}


def test_a_set_without_a_reference_fails(monkeypatch):
    monkeypatch.delitem(references.DEFINITIONS, sets.Ellipsoid)
    for case in contracts.cases().values():
        vars(case).pop("known", None)
    report = run("numpy", "float64", "sets/oracle/Ellipsoid 0")
    assert [f.state for f in report.failures] == ["raised"]
    assert "has no reference" in report.failures[0].note


# -- what is asked, and what it is compared with -----------------------------------------------------------------------


def test_inequalities_and_closed_forms_are_of_one_set(subtests):
    """Vertices by enumeration, the support by a linear program, and the closed form."""
    for name, case in contracts.cases().items():
        if not case.C.has_faces:
            continue
        of = references.polytope(case.C, *case.shape)
        with subtests.test(name):
            for g in contracts.gradients(case.shape)[::2]:
                found = linprog(-g, A_ub=of.A, b_ub=of.b, bounds=(None, None), method="highs")
                want = float(case.known.support(g))
                assert -found.fun == pytest.approx(want, abs=1e-9)
                assert (of.vertices @ g).max() == pytest.approx(want, abs=1e-12)


def test_gradients_are_clear(subtests):
    """A change of a millionth moves no vertex: what rounding does to a gradient is less in either precision."""
    for name, case in contracts.cases().items():
        if case.C.polytope:
            g = contracts.gradients(case.shape)[contracts.TIED :]
            moved = g * (1 + 1e-6 * rng(0).normal(size=g.shape))
            with subtests.test(name):
                assert np.abs(case.C.lmo(moved) - case.C.lmo(g)).max() <= 1e-12 * case.diameter


def test_every_number_of_a_reference_problem_is_one_of_both_precisions():
    """What is compared in float32 is the arithmetic, not the rounding of data."""
    for name, make in kinds.every().items():
        reference = make()
        for x in (*trees.leaves(reference.theta0), *trees.leaves(reference.problem.data)):
            assert (problems.held(x) == x).all(), name


@pytest.mark.parametrize("name", ["QR, no ridge", "QR, weighted ridge", "QR, complex"])
def test_a_hundred_digits_solve_the_level(name):
    level = levels.levels()[name]
    w, v, *_ = levels.exact(level)
    A, Omega = level.A[0], np.eye(4) if level.Omega is None else level.Omega
    H = A.conj().T @ A + level.lam * Omega.T @ Omega
    assert np.linalg.norm(H @ w - A.conj().T @ level.y) <= 1e-14 * np.linalg.norm(level.y) * np.linalg.norm(A)
    assert np.linalg.norm(H @ v - level.c) <= 1e-13 * np.linalg.norm(level.c)


def test_a_way_has_a_best_iterate_that_is_not_its_last():
    fits = [evaluation.solve(evaluation.NUMPY, w.make(), w.algorithm, 7) for w in results.ways().values()]
    assert any(np.argmin(fit.trace.value) < fit.n_iter for fit in fits)


def test_everything_that_is_exported_is_asked():
    """By name, from the list of what is public: nothing is left out because it has no example."""
    for room, has, asked, aside in (
        (sets, "lmo", [case.C for case in contracts.cases().values()], {"Set"}),
        (operators, "rmatvec", [case.M for case in designs.cases().values()], {"Operator"}),
        (lower, "argmin", [level.solver for level in levels.levels().values()], {"LowerSolver", "Cholesky"}),
    ):
        named = {name for name in room.__all__ if hasattr(getattr(room, name), has)}
        assert {type(x).__name__ for x in asked} >= named - aside
