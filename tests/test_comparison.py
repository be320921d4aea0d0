"""One solve on several backends: what is measured and reported."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import Comparison
from xvarpro.errors import ProblemError


def decays(theta, t):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)


T = np.linspace(0.0, 2.0, 50)
PROBLEM = xv.separable(decays, np.exp(-T) + np.exp(-5.0 * T), data=T, lam=1e-6)
START, BOX = np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0)


@pytest.fixture(scope="module")
def found():
    algorithm = xv.algorithms.cr_varpro()
    names = ["numpy", "torch", "array-api-strict"]
    return xv.compare(PROBLEM, START, over=BOX, backends=names, algorithm=algorithm, max_iter=30)


def test_backends_agree_to_what_rounding_explains(found):
    assert list(found.fits) == ["numpy", "torch", "array-api-strict"]
    assert found.iterations == 30
    assert found.agree, str(found)
    assert found.first_difference is None
    assert 0 < found.excess <= 30
    assert "the same 30 step sizes" in found.verdict


def test_what_is_sampled_is_what_it_says(found):
    assert found.sampled[0] == 0
    assert found.sampled[-1] == 30
    for deviation in found.deviations.values():
        assert deviation.theta[0] == 0.0  # the same start, bit for bit
        assert deviation.theta.shape == deviation.gradient.shape == found.sampled.shape
    # eps times the condition of the lower level, columns scaled to length 1
    M = decays(START, T)
    M = np.concatenate([M, 1e-3 * np.eye(2)])
    kappa = np.linalg.cond(M / np.linalg.norm(M, axis=0))
    assert found.predicted[0] == pytest.approx(2.2e-16 * kappa, rel=0.5)


def test_a_backend_with_an_error_is_found():
    """A model that differs slightly on one backend: the gradients at one point show it, from the first iterate on."""

    def M(theta, t):
        xp = xv.array_namespace(theta)
        off = 1.0 + 1e-7 * ("torch" in xp.__name__)
        return xp.exp(-xp.expand_dims(t, axis=1) * theta * off)

    problem = xv.separable(M, np.exp(-T) + np.exp(-5.0 * T), data=T, lam=1e-6)
    wrong = xv.compare(problem, START, over=BOX, backends=["numpy", "torch"], max_iter=10)
    assert not wrong.agree
    assert wrong.deviations["torch"].theta[0] == 0.0
    assert wrong.deviations["torch"].gradient[0] > 1e-9
    assert wrong.excess > 1e3


def test_the_record_and_the_figure_hold_what_was_measured(found):
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert record["agree"] is True
    assert record["sampled"] == found.sampled.tolist()
    assert len(str(found).splitlines()) == 2 + found.sampled.size
    (ax,) = found.plot().axes
    drawn = {line.get_label(): line for line in ax.lines}
    torch = found.deviations["torch"]
    for label, y in (
        ("theta, torch", torch.theta),
        ("gradient at one point, torch", torch.gradient),
        ("eps x condition", found.predicted),
    ):
        np.testing.assert_array_equal(drawn[label].get_xdata(), found.sampled)
        np.testing.assert_array_equal(drawn[label].get_ydata(), np.where(y > 0, y, np.nan))
    assert ax.get_yscale() == "log"


def test_single_precision_has_a_tolerance_of_its_own():
    with pytest.warns(xv.PrecisionWarning):
        found = xv.compare(PROBLEM, START, over=BOX, backends=["numpy", "torch"], max_iter=5, dtype="float32")
    assert found.tolerance == 1e-2
    assert all(fit.provenance["dtype"] == "float32" for fit in found.fits.values())


@pytest.mark.parametrize("names", [["numpy"], [], ["numpy", "numpy"], ["numpy", "torch", "numpy"]])
def test_one_backend_is_no_comparison(names):
    with pytest.raises(ProblemError, match="two or more different"):
        xv.compare(PROBLEM, START, over=BOX, backends=names)


def fit(values, alphas):
    alphas = np.asarray(alphas)
    trace = SimpleNamespace(value=np.asarray(values), alpha_A=alphas, alpha_B=0 * alphas)
    return SimpleNamespace(trace=trace, n_iter=len(values) - 1, provenance={"dtype": "float64"})


@pytest.mark.parametrize(
    ("other", "difference", "first"),
    [
        (fit([4.0, 2.0, 1.0], [0.0, 1.0, 0.5]), 0.0, None),
        (fit([4.0, 2.0, 2.0], [0.0, 1.0, 0.5]), 0.5, None),
        (fit([4.0, 2.0, 1.0], [0.0, 1.0, 0.25]), 0.0, 2),
        (fit([4.0, 2.0], [0.0, 1.0]), 0.0, 2),
        (fit([4.0, math.nan, math.nan], [0.0, 1.0, 0.5]), math.nan, None),
    ],
    ids=["equal", "objective", "step", "shorter", "nan"],
)
def test_a_disagreement_is_found_and_said(other, difference, first):
    fits = {"a": fit([4.0, 2.0, 1.0], [0.0, 1.0, 0.5]), "b": other}
    found = Comparison(fits)
    assert found.relative_difference == pytest.approx(difference, nan_ok=True)
    assert found.first_difference == first
    assert found.agree == (difference == 0 and first is None)
    assert ("the same objective" in found.verdict) == (difference == 0)
    assert ("different step sizes from iteration 2" in found.verdict) == (first == 2)
