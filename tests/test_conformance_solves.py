"""Faults planted in one backend are caught by the suite, in the part that they belong to, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

import xvarpro as xv
from xvarpro import conformance
from xvarpro.algorithms.steps import Armijo
from xvarpro.backends.torch import TorchBackend
from xvarpro.conformance import evaluation, problems
from xvarpro.conformance.checks import paper
from xvarpro.core import trees

GRADIENTS = ["reduced gradient/kinds of problems/network", "reduced gradient/derivative of the value/network"]
DECISIONS = ["solves/step decisions/cr_varpro network"]


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
    assert off(run(OffByAMillionth(), GRADIENTS)) == {GRADIENTS[0]: ["gradient"], GRADIENTS[1]: ["slopes"]}
    assert run("torch", GRADIENTS).ok


def test_a_millionth_is_within_the_rounding_of_single_precision():
    """Which is why both precisions are part of the suite."""
    assert run(OffByAMillionth(), GRADIENTS[:1], "float32").ok


def test_another_constant_of_armijo_on_one_backend_is_caught_and_named(monkeypatch):
    honest = Armijo.search
    assert run("torch", DECISIONS).ok  # what is right is computed before the fault is there

    def search(rule, line, memory):
        there = xv.backends.of(memory).name == "torch"
        return honest(replace(rule, gamma=0.45) if there else rule, line, memory)

    monkeypatch.setattr(Armijo, "search", search)
    (whats,) = off(run("torch", DECISIONS)).values()
    assert whats[0] == "first iteration with another step"
    assert run("numpy", DECISIONS).ok


def test_a_certificate_that_is_too_good_is_caught_and_named(monkeypatch):
    honest = evaluation.solve
    plain = ["solves/every algorithm/cr_varpro"]
    assert run("torch", plain).ok
    monkeypatch.setattr(evaluation, "solve", lambda *args, **options: _optimistic(honest(*args, **options)))
    assert off(run("torch", plain)) == {plain[0]: ["gap there"]}


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
    for make in problems.every().values():
        reference = make()
        for x in (*trees.leaves(reference.theta0), *trees.leaves(reference.problem.data)):
            assert (problems.held(x) == x).all(), make.__name__


@pytest.mark.parametrize("levels", [1, 2])
def test_rational_arithmetic_has_the_digits_of_double_precision(levels):
    """A well-conditioned case, where NumPy is right to nearly all of them."""
    from xvarpro.conformance.checks import reduced

    case = reduced.Graded(levels, 2.0**-23)
    got = evaluation.evaluate(evaluation.NUMPY, reduced.graded(case))
    assert got.value == pytest.approx(reduced.exact(case).value, rel=1e-12)
    assert got.gradient == pytest.approx(reduced.exact(case).gradient, rel=1e-10)
