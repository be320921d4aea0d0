"""The gradient's error against 50 digits: a small part of what benchmarks/accuracy.py measures, with its own code."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from xvarpro import lower


def load():
    path = Path(__file__).parents[1] / "benchmarks" / "accuracy.py"
    spec = importlib.util.spec_from_file_location("xvarpro_benchmarks_accuracy", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a NamedTuple looks its annotations up there
    spec.loader.exec_module(module)
    return module


accuracy = load()
EPS = {dtype: float(np.finfo(dtype).eps) for dtype in accuracy.CONDITIONS}
CONDITIONS = {"float64": (1e2, 1e5, 1e8, 1e12), "float32": (1e1, 1e3, 1e5)}
DRAWS = 2


def errors(solver, case, cond, backend):
    return accuracy.measure(lambda c, data: accuracy.gradient(c, data, solver, backend.name), case, cond, DRAWS)


def limit(case, cond):
    """``10 eps cond`` of the matrix that is factored, for each draw."""
    eps = EPS[case.dtype]
    return 10 * eps * np.array([accuracy.draw(case, cond, seed).condition(case.lam) for seed in range(DRAWS)])


@pytest.mark.parametrize("dtype", CONDITIONS)
@pytest.mark.parametrize(("solver", "bilevel"), [("QR", False), ("QR", True), ("DualQR", True)])
def test_a_gradient_is_within_ten_eps_cond(solver, bilevel, dtype, backend):
    case = accuracy.Case(bilevel, 1.0, 0.0, dtype, wide="Dual" in solver)
    for cond in CONDITIONS[dtype]:
        assert (errors(accuracy.SOLVERS[solver], case, cond, backend) <= limit(case, cond)).all(), cond


@pytest.mark.parametrize("lam", [0.0, 2.0**-34])
@pytest.mark.parametrize("bilevel", [False, True], ids=["separable", "bilevel"])
@pytest.mark.parametrize("cond", [1e2, 1e4, 1e6])
def test_refinement_keeps_thirteen_digits_up_to_cond_1e6(cond, bilevel, lam, backend):
    """A factorisation alone leaves 1e-11 at the last of them."""
    case = accuracy.Case(bilevel, 1.0, lam, "float64")
    assert errors(None, case, cond, backend).max() <= 1e-13


@pytest.mark.parametrize("lam", [2.0**-40, 0.0])
def test_the_dual_form_is_exact_where_a_pseudo_inverse_is_wrong_by_half(lam, backend):
    case = accuracy.Case(True, 1.0, lam, "float64", wide=True)
    assert (errors(lower.DualQR(), case, 1e2, backend) <= 10 * EPS["float64"] * 1e2).all()
    if not lam:
        naive = accuracy.measure(accuracy.through_normal_pinv, case, 1e2, DRAWS)
        assert np.median(naive) >= 0.3


@pytest.mark.parametrize("cond", [1e4, 1e8])
def test_small_residuals_are_better_than_any_autodiff(cond, backend):
    case = accuracy.Case(True, accuracy.SMALL["float64"], 0.0, "float64")
    ours = np.median(errors(lower.QR(), case, cond, backend))
    for name in accuracy.AUTODIFF:
        assert ours < np.median(accuracy.measure(accuracy.AUTODIFF[name], case, cond, DRAWS)), name


def test_the_reference_agrees_with_autodiff_where_that_is_good():
    """What all the rest is measured against, from a formula that it does not share."""
    for case in (accuracy.Case(False, 1.0, 0.5, "float64"), accuracy.Case(True, 1.0, 0.5, "float64", wide=True)):
        assert accuracy.measure(accuracy.AUTODIFF["autodiff torch solve"], case, 10.0, DRAWS).max() <= 1e-13


def test_a_promise_that_is_broken_is_reported():
    case = accuracy.Case(True, accuracy.SMALL["float64"], 0.0, "float64")
    good, bad = np.full((1, 2), 1e-15), np.full((1, 2), 1e-3)
    mine = {f"{name} {b}": good for name in accuracy.SOLVERS for b in accuracy.BACKENDS}
    rivals = dict.fromkeys(accuracy.AUTODIFF, np.full((1, 2), 1e-12))
    limits = {"DualQR numpy": good, "pseudo-inverse of the normal matrix": bad}

    def met(errors):
        table = accuracy.Table(case, (1e2,), np.full((1, 2), 1e2), errors)
        return [bar.met for bar in accuracy.bars([table], limits)]

    assert met(mine | rivals) == [True] * 4
    assert met(mine | rivals | {"QR torch": bad}) == [False, True, False, False]


def test_the_page_has_five_promises():
    page = Path(__file__).parents[1] / "docs" / "accuracy.md"
    text = page.read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line.startswith("| ")]) == 1 + 5
    assert "broken**" not in text
    assert page.with_suffix(".svg").exists()
