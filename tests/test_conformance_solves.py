"""Faults planted in one backend are caught by the suite, in the part that they belong to, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import conformance
from xvarpro.algorithms.steps import Armijo
from xvarpro.backends.torch import TorchBackend
from xvarpro.core import trees
from xvarpro_conformance import evaluation, kinds, problems
from xvarpro_conformance.checks import paper, results
from xvarpro_conformance.references import dense

GRADIENTS = ["reduced gradient/kinds of problems/network"]
DECISIONS = ["solves/step decisions/strict Armijo"]


class OffByAMillionth(TorchBackend):
    """Its pull-backs are longer than they should be."""

    def vjp(self, fun, primals, constants=()):
        outputs, pull = super().vjp(fun, primals, constants)
        return outputs, lambda cotangents: tuple((1 + 1e-6) * g for g in pull(cotangents))


def run(backend, only, dtype="float64"):
    backend = xv.backends.get(backend) if isinstance(backend, str) else backend
    return conformance.run([conformance.Target(backend, "cpu", dtype)], only)


def off(report):
    return {o.address: [m.what for m in o.failures] for o in report.failures}


def test_a_gradient_off_by_a_millionth_is_caught_and_named():
    assert off(run(OffByAMillionth(), GRADIENTS)) == {GRADIENTS[0]: ["slopes"]}
    assert run("torch", GRADIENTS).ok


def test_a_millionth_is_within_the_rounding_of_single_precision():
    """Which is why both precisions are part of the suite."""
    assert run(OffByAMillionth(), GRADIENTS, "float32").ok


def test_another_constant_of_armijo_on_one_backend_is_caught_and_named(monkeypatch):
    honest = Armijo.search

    def search(rule, line, memory):
        there = xv.backends.of(memory).name == "torch"
        return honest(replace(rule, gamma=0.45) if there else rule, line, memory)

    monkeypatch.setattr(Armijo, "search", search)
    (whats,) = off(run("torch", DECISIONS)).values()
    assert any(what.startswith("alpha_A, iterate") for what in whats)
    assert run("numpy", DECISIONS).ok


def test_a_certificate_that_is_too_good_is_caught_and_named(monkeypatch):
    honest = evaluation.solve
    plain = ["solves/certificates/cr_varpro"]
    assert run("torch", plain).ok
    monkeypatch.setattr(evaluation, "solve", lambda *args, **options: _optimistic(honest(*args, **options)))
    assert off(run("torch", plain)) == {plain[0]: ["gap_A"]}


def _optimistic(fit):
    return replace(fit, gap_A=0.5 * fit.gap_A)


def test_steps_that_are_too_short_for_the_lemma_are_caught(monkeypatch):
    rule = ["paper/theorem 1/short step"]
    assert run("numpy", rule).ok
    timid = xv.algorithms.FrankWolfe(xv.steps.ShortStep(L=20 * paper.quadratic().L))
    honest = evaluation.solve
    monkeypatch.setattr(evaluation, "solve", lambda target, made, _, n: honest(target, made, timid, n))
    (whats,) = off(run("numpy", rule)).values()
    assert whats[0].startswith("lemma: min(1, g/(L Delta^2))")


def test_every_number_of_a_reference_problem_is_one_of_both_precisions():
    """What is compared in float32 is the arithmetic, not the rounding of data."""
    for make in kinds.every().values():
        reference = make()
        for x in (*trees.leaves(reference.theta0), *trees.leaves(reference.problem.data)):
            assert (problems.held(x) == x).all(), make.__name__


@pytest.mark.parametrize("levels", [1, 2])
def test_rational_arithmetic_has_the_digits_of_double_precision(levels):
    """A well-conditioned case, where NumPy is right to nearly all of them."""
    from xvarpro_conformance.checks import reduced

    case = reduced.Graded(levels, 2.0**-23)
    got = evaluation.evaluate(evaluation.NUMPY, reduced.graded(case))
    assert got.value == pytest.approx(reduced.rational(case).value, rel=1e-12)
    assert got.gradient == pytest.approx(reduced.rational(case).gradient, rel=1e-10)


# -- dense problems ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [dense.exponentials, dense.dictionary, dense.network, dense.wide, dense.atoms])
def test_a_dense_problem_is_the_one_that_the_package_takes(make):
    """Its hand-written gradient is the limit of differences of its value, and both are the package's."""
    made = dense.of(make)
    f, theta = made.f, made.theta0
    value, gradient = xv.value_and_gradient(made.reference.problem, made.reference.theta0)
    assert f.value(theta) == pytest.approx(float(value), rel=1e-12)
    grad = f.gradient(theta)
    assert grad == pytest.approx(dense.flat(gradient), rel=1e-9, abs=1e-12)
    v = np.random.default_rng(0).normal(size=theta.size)
    difference = (f.value(theta + 1e-5 * v) - f.value(theta - 1e-5 * v)) / 2e-5
    assert difference == pytest.approx(grad @ v, rel=1e-6)


def test_a_way_has_a_best_iterate_that_is_not_its_last():
    fits = [
        evaluation.solve(evaluation.NUMPY, dense.of(w.make).reference, w.algorithm, 7) for w in results.ways().values()
    ]
    assert any(np.argmin(fit.trace.value) < fit.n_iter for fit in fits)


@pytest.mark.parametrize(
    ("only", "field", "wrong"),
    [
        ("results/violation/box", "violation", 0.0),
        ("results/dead units/three", "dead_units", 2),
        ("results/kinks", "kinks", 0),
        ("results/condition/100", "condition", 10.0),
    ],
)
def test_a_wrong_field_of_verified_is_caught_and_named(monkeypatch, only, field, wrong):
    assert run("numpy", [only]).ok
    honest = evaluation.solve

    def solve(*args, **options):
        fit = honest(*args, **options)
        return replace(fit, verified=replace(fit.verified, **{field: wrong}))

    monkeypatch.setattr(evaluation, "solve", solve)
    (whats,) = off(run("numpy", [only])).values()
    assert whats == [field.replace("_", " ")]


def test_a_trace_that_is_off_by_one_is_caught(monkeypatch):
    honest, only = evaluation.solve, ["results/trace/cr_varpro"]
    assert run("numpy", only).ok

    def solve(*args, **options):
        fit = honest(*args, **options)
        return replace(fit, trace=replace(fit.trace, gap_A=np.roll(fit.trace.gap_A, 1)))

    monkeypatch.setattr(evaluation, "solve", solve)
    (whats,) = off(run("numpy", only)).values()
    assert any(what.startswith("gap_A, iterate") for what in whats)
