"""One solve on several backends: whether theta and w agree, where the iterates part, and why."""

import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro.fit.comparison import _Pair, _Path, apart

from .support import decays

T = np.linspace(0.0, 2.0, 50)
PROBLEM = xv.separable(decays, np.exp(-T) + np.exp(-5.0 * T), data=T, lam=1e-6)
START, BOX = np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0)
PAPER = xv.algorithms.cr_varpro()
N = 10  # iterations


@pytest.fixture(scope="module")
def found():
    names = ["numpy", "torch", "array-api-strict"]
    return xv.compare(PROBLEM, START, over=BOX, backends=names, algorithm=PAPER, max_iter=N)


def test_backends_agree_to_what_rounding_explains(found):
    assert list(found.fits) == ["numpy", "torch", "array-api-strict"]
    assert found.agree, str(found)
    assert found.first_difference is None
    assert found.verdict.startswith("numpy, torch and array-api-strict: agree; theta ")
    # the condition of the lower level, columns scaled to length 1, at the end, where it is worse
    M = np.concatenate([decays(found.fits["numpy"].theta, T), 1e-3 * np.eye(2)])
    kappa = np.linalg.cond(M / np.linalg.norm(M, axis=0))
    for relation in found.relations.values():
        assert (relation.end, relation.cause, relation.reason) == ("same", "", "")
        assert relation.excess <= 30
        assert relation.iterations.tolist() == list(range(N + 1))
        assert relation.differences[0] == 0.0  # the same start, bit for bit
        assert np.all(relation.differences <= relation.rounding)
        # 30 eps x condition for each of the iterations
        np.testing.assert_allclose(relation.rounding, 30 * np.finfo(float).eps * kappa * np.arange(1, N + 2))


def test_the_record_and_the_figure_hold_what_was_measured(found):
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    torch = found.relations["torch"]
    assert record["agree"] is True
    assert record["relations"]["torch"]["differences"] == torch.differences.tolist()
    assert str(found).splitlines() == [found.verdict, *(f"{name}: {r}" for name, r in found.relations.items())]
    (ax,) = found.plot(figure=Figure(layout="constrained").subfigures()).axes
    drawn = {line.get_label(): line.get_ydata() for line in ax.lines}
    np.testing.assert_array_equal(drawn["theta, by rounding"], torch.rounding)
    # the same operations in the same order: a log scale has no place for zero
    assert np.all(np.isnan(drawn["theta, array-api-strict: equal"]))
    assert ax.get_yscale() == "log"


def test_single_precision_has_a_tolerance_of_its_own():
    with pytest.warns(xv.PrecisionWarning):
        found = xv.compare(PROBLEM, START, over=BOX, backends=["numpy", "torch"], max_iter=5, dtype="float32")
    assert found.agree, str(found)
    assert np.finfo("float64").eps ** 0.5 < found.relations["torch"].rounding[-1] <= np.finfo("float32").eps ** 0.5
    assert all(fit.provenance["dtype"] == "float32" for fit in found.fits.values())


def still(theta, data):
    return data["A"] + 0 * theta[0]


def combined(theta, data):
    return data["B"] @ theta


# -- ties --------------------------------------------------------------------------------------------------------------


def rolled(count=12, rows=101):
    """A convex objective on a simplex whose vertices have equal values: gradients tie up to rounding."""
    column = np.random.default_rng(7).normal(size=rows)
    B = np.stack([np.roll(column, 9 * i) for i in range(count)], axis=1)
    problem = xv.separable(still, combined, data={"A": np.ones((rows, 1)), "B": B})
    return problem, np.full(count, 1 / count), xv.sets.Simplex(1.0)


def orthogonal():
    """A dictionary in a nuclear ball for data with equal singular values: any pair of the gradient is a leading one."""
    U = 2 * np.linalg.qr(np.random.default_rng(7).normal(size=(30, 5)))[0].T
    problem = xv.separable(lambda theta, data: theta, U, lam=0.5, compress=False)
    return problem, 0.1 * np.eye(5, 4), xv.sets.NuclearBall(1.0)


# gradients that are off by a few eps, as those of another BLAS are
OFF = """
    def vjp(self, fun, primals, constants=()):
        outputs, pull = super().vjp(fun, primals, constants)

        def pullback(*cotangents):
            found = pull(*cotangents)
            return tuple(g * (1 + {off} * np.linspace(-1.0, 1.0, g.size).reshape(g.shape)) for g in found)

        return outputs, pullback
"""

TIES = {
    "simplex, open loop": (rolled, xv.algorithms.FrankWolfe(step=xv.steps.OpenLoop())),
    "simplex, Armijo": (rolled, PAPER),
    "nuclear ball": (orthogonal, PAPER),
}


@pytest.mark.filterwarnings("ignore:.* columns of M")
@pytest.mark.parametrize(("make", "algorithm"), TIES.values(), ids=TIES)
def test_a_tie_of_vertices_is_said(make, algorithm, plug, request):
    problem, theta0, over = make()
    i = list(TIES).index(request.node.callspec.id)
    names = [plug(f"tie{i}{name}", OFF.format(off=off)) for name, off in (("up", 8e-16), ("down", -8e-16))]
    found, relation = compared(problem, theta0, over, 60, names, algorithm)
    assert (relation.end, relation.cause, relation.first_difference) == ("different", "tie", 1), str(found)
    assert found.first_difference == 1
    assert "steps to other vertices, of the same value, lead to theta " in relation.reason
    assert not found.agree
    assert ": do not agree; theta " in found.verdict


def quadratic(oracle):
    """``|theta|^2`` over a simplex, and an oracle of one's own."""
    data = {"A": np.ones((8, 1)), "B": np.concatenate([np.eye(4), -np.eye(4)])}
    over = oracle and xv.sets.Oracle(oracle, 2.0, xv.sets.Simplex(1.0).violation)
    return xv.separable(still, combined, data=data), over


def compared(problem, start, over, max_iter, names=("numpy", "torch"), algorithm=PAPER):
    """A comparison, and the relation of the last one with the first."""
    found = xv.compare(problem, start, over=over, backends=list(names), algorithm=algorithm, max_iter=max_iter)
    return found, found.relations[names[-1]]


def worst_on_torch(g):
    xp = xv.array_namespace(g)
    return xv.sets.Simplex(1.0).lmo(-g if "torch" in xp.__name__ else g)


@pytest.mark.parametrize("names", [("numpy", "torch"), ("torch", "numpy")])
def test_an_oracle_that_errs_is_named(names):
    problem, over = quadratic(worst_on_torch)
    with pytest.raises(ProblemError, match=r"on torch: Oracle: lmo\(g\) must minimise"):
        compared(problem, np.array([0.4, 0.3, 0.2, 0.1]), over, 5, names)


def test_an_oracle_of_ours_that_errs_is_an_error(monkeypatch):
    """The second best vertex on one backend, for gradients that are the same."""
    best = xv.sets.Simplex.lmo

    def lmo(self, g):
        xp = xv.array_namespace(g)
        return best(self, xp.where(best(self, g) > 0, xp.max(g), g) if "torch" in xp.__name__ else g)

    monkeypatch.setattr(xv.sets.Simplex, "lmo", lmo)
    problem, _ = quadratic(None)
    found, relation = compared(problem, np.array([0.4, 0.3, 0.2, 0.1]), xv.sets.Simplex(1.0), 0)
    assert (relation.cause, found.first_difference) == ("error", None), str(found)
    assert "both gaps, of the best vertices, differ" in relation.reason


def pair(theta, method, alpha=1.0):
    """Two solves of one step each, to a vertex and to `theta`."""
    where, paths = {"over": BOX, "backend": "numpy", "dtype": "float64"}, []
    for end, step in ((np.array([1.0, 0.0]), 1.0), (theta, alpha)):
        fit = xv.solve(PROBLEM, START, over=BOX, algorithm=method, max_iter=1)
        trace = replace(fit.trace, alpha_A=np.array([0.0, step]), alpha_B=np.zeros(2))
        paths.append(_Path("numpy", PROBLEM, replace(fit, trace=trace), {0: START, 1: end}, where))
    return _Pair(*paths)


# -- rounding and condition --------------------------------------------------------------------------------------------


def ill(condition):
    rng = np.random.default_rng(3)
    U, V = np.linalg.qr(rng.normal(size=(40, 6)))[0], np.linalg.qr(rng.normal(size=(6, 6)))[0]
    A = U * np.logspace(0, -np.log10(condition), 6) @ V.T

    def M(theta, d):
        return d["A"] + xv.array_namespace(theta).sin(d["B"] * theta[0]) * theta[1]

    return xv.separable(M, rng.normal(size=40), data={"A": A, "B": A @ rng.normal(size=(6, 6))})


@pytest.mark.parametrize("condition", [1e9, 1e12])
def test_a_bad_condition_explains_what_differs(condition):
    found, relation = compared(ill(condition), np.array([0.5, 0.3]), xv.sets.Box(0.0, 2.0), 20)
    assert found.agree, str(found)
    assert found.first_difference is None
    # the bound is that of the condition, and never more than half of the digits
    assert relation.rounding[0] > 1e-9
    assert relation.rounding[-1] <= np.finfo("float64").eps ** 0.5
    assert relation.excess < 30


def test_a_method_that_amplifies_rounding_is_no_error(plug):
    y = np.exp(-T) + np.exp(-5.0 * T) + 0.01 * np.random.default_rng(0).normal(size=50)
    problem = xv.separable(decays, y, data=T, lam=1e-6)
    names = [plug(f"amplify{name}", OFF.format(off=off)) for name, off in (("up", 4e-16), ("down", -4e-16))]
    found, relation = compared(problem, START, BOX, 40, names, SPECTRAL)
    assert found.agree, str(found)
    assert relation.first_difference is not None
    assert relation.cause in ("rounding", "branch")  # the steps are quotients of differences


SPECTRAL = xv.algorithms.SpectralProjectedGradient()


@pytest.mark.parametrize(
    ("theta", "method", "alpha", "jump", "cause", "reason"),
    [
        ([0.0, 1.0], PAPER, 1.0, 1.0, "tie", "steps to other vertices, of the same value, lead to theta 1.4e+00 apart"),
        ([0.0, 1.0], SPECTRAL, 1.0, 1.0, "branch", "the same steps lead to theta 1.4e+00 apart"),
        ([0.0, 1.0], PAPER, 1.0, 0.0, "branch", "the same steps lead to theta 1.4e+00 apart"),
        ([0.0, 1.0], PAPER, 0.5, 0.0, "branch", "steps 1 and 0.5 in iteration 1"),
        # vertices that no step went to
        ([1.0, 1e-7], PAPER, 1.0, 1.0, "rounding", "the same steps lead to theta 1.0e-07 apart"),
    ],
)
def test_the_first_step_that_parts_says_why(theta, method, alpha, jump, cause, reason):
    assert pair(np.array(theta), method, alpha).cause(0, 1, jump) == (cause, reason)


def test_another_end_is_another_branch():
    ends = "numpy ends after iteration 1, MAX_ITER, numpy ends after iteration 1, MAX_ITER"
    assert pair(np.array([1.0, 0.0]), PAPER).cause(1, 2, 0.0) == ("branch", ends)


def test_iterates_that_would_fill_the_memory_are_thinned(monkeypatch):
    monkeypatch.setattr("xvarpro.fit.comparison.MEMORY", 4 * START.nbytes)
    _, relation = compared(PROBLEM, START, BOX, N)
    assert relation.iterations.tolist() == [0, 3, 6, 9]  # ten of them, in the place of four


# -- a backend that errs -----------------------------------------------------------------------------------------------

SLOPE = """
    def vjp(self, fun, primals, constants=()):
        outputs, pull = super().vjp(fun, primals, constants)
        return outputs, lambda *cotangents: tuple(g * (1 + {off}) for g in pull(*cotangents))
"""


@pytest.mark.parametrize("off", [1e-7, 1e-12])
@pytest.mark.parametrize("algorithm", [PAPER, None], ids=["paper", "default"])
def test_a_slightly_wrong_derivative_is_an_error(algorithm, off, plug, request):
    """Also of the reference, and where all steps are the same: the largest entries of the gradient do not move."""
    name = plug(f"slope{'paper' if algorithm else 'default'}{off:.0e}".replace("-", ""), SLOPE.format(off=off))
    for names in (["numpy", name], [name, "numpy", "array-api-strict"]):
        found = xv.compare(PROBLEM, START, over=BOX, backends=names, algorithm=algorithm, max_iter=8)
        assert not found.agree
        for relation in found.relations.values():
            assert relation.cause == "error"
            assert relation.excess > 30
            assert "both gradients differ by " in relation.reason
    assert ": a backend errs; theta " in found.verdict


def test_an_inexact_lower_level_explains_more(plug):
    """Its gradient is off by more than both backends differ by."""
    problem = replace(PROBLEM, lower=replace(PROBLEM.lower, solver=xv.lower.LSMR(limit=1)))
    _, relation = compared(problem, START, BOX, 1, ["numpy", plug("inexact", SLOPE.format(off=1e-7))])
    assert relation.excess < 30
    assert relation.cause != "error"


def test_the_same_backend_under_two_names_agrees_to_the_bit(plug):
    found = xv.compare(PROBLEM, START, over=BOX, backends=["numpy", plug("twin")], max_iter=20)
    assert found.agree
    assert not found.relations["twin"].differences.any()
    assert found.verdict.startswith("numpy and twin: agree; theta 0.0e+00 apart, w 0.0e+00")


def test_another_w_is_no_agreement():
    """The outputs are 1.001 times as large on one backend: the same objective and theta."""

    def M(theta, t):
        return decays(theta, t) * (1.001 if "torch" in xv.array_namespace(theta).__name__ else 1.0)

    problem = xv.separable(M, PROBLEM.lower.y + 0.01 * np.sin(9 * T), data=T)
    names = ["numpy", "torch", "array-api-strict"]
    found = xv.compare(problem, START, over=BOX, backends=names, algorithm=PAPER, max_iter=5)
    relation = found.relations["torch"]
    assert (relation.end, relation.cause) == ("other w", ""), str(found)
    assert relation.w == pytest.approx(1e-3, rel=0.1)
    assert not found.agree
    assert ": agree about theta, not about w; theta " in found.verdict


def test_leaves_have_units_of_their_own_and_digits_since_the_start():
    start, far = {"a": np.array([1e9]), "b": np.array([1.0])}, {"a": np.array([1e9]), "b": np.array([1.1])}
    assert apart(far, start, start) == pytest.approx(0.1)
    zero, tiny = ({"a": np.array([1e9]), "b": np.array([x])} for x in (1e-20, 1e-18))
    assert apart(tiny, zero, start) < 1e-9


# -- the ends ----------------------------------------------------------------------------------------------------------


def end(problem, theta, other, over=None, **options):
    """The relation of an end with another one, each as if a solve had ended there."""
    where = {"over": over, "backend": "numpy", "dtype": "float64"}
    fits = [xv.solve(problem, x, over=over, max_iter=0, **options) for x in (theta, other)]
    return _Pair(*(_Path("numpy", problem, fit, {0: theta}, where) for fit in fits)).relation()


def test_the_order_of_columns_does_not_count():
    found = end(PROBLEM, START, START[::-1].copy(), BOX)
    assert found.end == "indistinguishable"
    assert found.agrees


def test_order_and_signs_of_units_do_not_count():
    def outputs(theta, data):
        return xv.array_namespace(data).tanh(data @ theta["weight"] + theta["bias"])

    rng = np.random.default_rng(0)
    problem = xv.separable(outputs, rng.normal(size=30), data=rng.normal(size=(30, 2)), lam=1e-3)
    theta = {"weight": rng.normal(size=(2, 4)), "bias": rng.normal(size=4)}
    order, signs = np.array([2, 0, 3, 1]), np.array([1.0, -1.0, -1.0, 1.0])
    other = {"weight": theta["weight"][:, order] * signs, "bias": theta["bias"][order] * signs}
    assert end(problem, theta, other).end == "indistinguishable"
    other["bias"] = theta["bias"][order]
    assert end(problem, theta, other).end == "different"


@pytest.mark.parametrize(("regularised", "known"), [(False, "indistinguishable"), (True, "different")])
def test_a_direction_that_the_data_do_not_show_does_not_count(regularised, known):
    """Only the sum of both entries is seen, but by a regulariser."""

    def M(theta, t):
        xp = xv.array_namespace(theta)
        return xp.exp(-xp.expand_dims(t, axis=1) * xp.sum(theta))

    def R(theta):
        return theta @ theta

    problem = xv.separable(M, np.exp(-T), data=T, lam=1e-3, **({"R": R, "mu": 1e-2} if regularised else {}))
    theta = np.array([0.25, 0.5])
    assert end(problem, theta, np.array([0.625, 0.125])).end == known
    assert end(problem, theta, np.array([0.25, 0.5 + 1e-6])).end == "different"


@pytest.mark.parametrize(("tol", "known"), [(1e-2, "indistinguishable"), (1e-4, "different")])
def test_a_tolerance_leaves_theta_open_where_both_have_converged(tol, known):
    problem = replace(PROBLEM, lower=replace(PROBLEM.lower, y=PROBLEM.lower.y + 0.01 * np.sin(9 * T)))
    theta = xv.solve(problem, START, over=BOX, tol=1e-12).theta
    assert end(problem, theta, theta + 1e-6, BOX, tol=tol).end == known
