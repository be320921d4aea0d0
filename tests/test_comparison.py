"""One solve on several backends: whether theta agrees, where it parts, why, and who errs."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import xvarpro as xv
from xvarpro.cli import app
from xvarpro.errors import ProblemError
from xvarpro.reproducibility.agreement import Pair, Path, Site
from xvarpro.reproducibility.comparison import Runs, _Recorder


def decays(theta, t):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)


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
    assert found.iterations == N
    assert found.agree, str(found)
    assert found.first_difference is None
    assert 0 < found.excess <= 30
    assert found.verdict.startswith("numpy, torch and array-api-strict: agree; theta ")
    assert f"the same {N} step sizes" in found.verdict
    assert [(r.end, r.reason, r.fault) for r in found.relations.values()] == [("same", "", "")] * 2
    # 30 eps x condition for each of the iterations
    np.testing.assert_allclose(found.rounding, 30 * (found.sampled + 1) * np.maximum.accumulate(found.predicted))


def test_what_is_sampled_is_what_it_says(found):
    assert found.sampled[0] == 0
    assert found.sampled[-1] == N
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
    # both gradients are those of their own values: which model is the right one, no evaluation says
    assert wrong.relations["torch"].fault.startswith("one of both errs; at iterate ")
    assert "a backend errs" in wrong.verdict


def test_the_record_and_the_figure_hold_what_was_measured(found):
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert record["agree"] is True
    assert record["sampled"] == found.sampled.tolist()
    assert record["relations"]["torch"]["end"] == "same"
    assert len(found.table.splitlines()) == 1 + found.sampled.size
    assert str(found).splitlines()[:3] == [found.verdict, *found.sentences]
    (ax,) = found.plot(figure=Figure(layout="constrained").subfigures()).axes
    drawn = {line.get_label().removesuffix(": equal"): line for line in ax.lines}
    torch = found.deviations["torch"]
    for label, y in (
        ("theta, torch", torch.theta),
        ("gradient at one point, torch", torch.gradient),
        ("eps x condition", found.predicted),
        ("theta, by rounding", found.rounding),
    ):
        np.testing.assert_array_equal(drawn[label].get_xdata(), found.sampled)
        np.testing.assert_array_equal(drawn[label].get_ydata(), np.where(y > 0, y, np.nan))
    assert ax.get_yscale() == "log"


def test_the_figure_says_what_is_equal_throughout():
    found = xv.compare(PROBLEM, START, over=BOX, backends=["numpy", "array-api-strict"], max_iter=3)
    same = found.deviations["array-api-strict"]
    np.testing.assert_array_equal(same.theta, 0.0)  # the same operations in the same order
    np.testing.assert_array_equal(same.gradient, 0.0)
    labels = [line.get_label() for line in found.plot().axes[0].lines]
    assert "theta, array-api-strict: equal" in labels
    assert "gradient at one point, array-api-strict: equal" in labels


def test_single_precision_has_a_tolerance_of_its_own():
    with pytest.warns(xv.PrecisionWarning):
        found = xv.compare(PROBLEM, START, over=BOX, backends=["numpy", "torch"], max_iter=5, dtype="float32")
    assert found.agree, str(found)
    assert np.all(found.rounding <= np.finfo("float32").eps ** 0.5)
    assert all(fit.provenance["dtype"] == "float32" for fit in found.fits.values())


@pytest.mark.parametrize("names", [["numpy"], [], ["numpy", "numpy"], ["numpy", "torch", "numpy"]])
def test_one_backend_is_no_comparison(names):
    with pytest.raises(ProblemError, match="two or more different"):
        xv.compare(PROBLEM, START, over=BOX, backends=names)


def fit(values, alphas):
    alphas = np.asarray(alphas)
    trace = SimpleNamespace(value=np.asarray(values), alpha_A=alphas, alpha_B=0 * alphas)
    return SimpleNamespace(trace=trace, n_iter=len(values) - 1)


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
def test_objectives_and_step_sizes_are_compared(other, difference, first):
    found = Runs({"a": fit([4.0, 2.0, 1.0], [0.0, 1.0, 0.5]), "b": other})
    assert found.relative_difference == pytest.approx(difference, nan_ok=True)
    assert found.first_different_step == first
    assert ("different step sizes from iteration 2" in found.verdict) == (first == 2)


# -- ties --------------------------------------------------------------------------------------------------------------


def rolled(count=12, rows=101):
    """A convex objective on a simplex whose vertices have equal values: gradients tie up to rounding."""
    column = np.random.default_rng(7).normal(size=rows)
    B = np.stack([np.roll(column, 9 * i) for i in range(count)], axis=1)

    def still(theta, data):
        return data["A"] + 0 * theta[0]

    def target(theta, data):
        return data["B"] @ theta

    problem = xv.separable(still, target, data={"A": np.ones((rows, 1)), "B": B})
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
def test_ties_are_two_solutions_and_no_agreement(make, algorithm, plug, request):
    problem, theta0, over = make()
    i = list(TIES).index(request.node.callspec.id)
    names = [plug(f"tie{i}{name}", OFF.format(off=off)) for name, off in (("up", 8e-16), ("down", -8e-16))]
    found = xv.compare(problem, theta0, over=over, backends=names, algorithm=algorithm, max_iter=60)
    (relation,) = found.relations.values()
    assert relation.end == "two solutions", str(found)
    assert found.first_difference == relation.first_difference == 1
    assert "a tie between vertices: at iteration 0 the values of both vertices differ by " in relation.reason
    assert relation.reason.endswith("on one gradient both return the same: the tie rule holds")
    assert relation.distance > 1e-6
    assert not relation.fault
    assert not found.agree
    assert ": two solutions; theta " in found.verdict


def quadratic(oracle):
    """``|theta|^2`` over a simplex, from its middle, with gradients that tie exactly, and an oracle of one's own."""

    def still(theta, data):
        return data["A"] + 0 * theta[0]

    def target(theta, data):
        return data["B"] @ theta

    data = {"A": np.ones((8, 1)), "B": np.concatenate([np.eye(4), -np.eye(4)])}
    over = xv.sets.Oracle(oracle, 2.0, xv.sets.Simplex(1.0).violation)
    return xv.separable(still, target, data=data), np.full(4, 0.25), over


def last_on_torch(g):
    xp = xv.array_namespace(g)
    lmo = xv.sets.Simplex(1.0).lmo
    return xp.flip(lmo(xp.flip(g))) if "torch" in xp.__name__ else lmo(g)


def worst_on_torch(g):
    xp = xv.array_namespace(g)
    return xv.sets.Simplex(1.0).lmo(-g if "torch" in xp.__name__ else g)


def test_a_tie_rule_that_does_not_hold_is_said():
    problem, theta0, over = quadratic(last_on_torch)
    found = xv.compare(problem, theta0, over=over, backends=["numpy", "torch"], algorithm=PAPER, max_iter=1)
    (relation,) = found.relations.values()
    # both stay at the middle, which is the minimum
    assert found.agree, str(found)
    away = np.array([0.4, 0.2, 0.2, 0.2])
    found = xv.compare(problem, away, over=over, backends=["numpy", "torch"], algorithm=PAPER, max_iter=1)
    (relation,) = found.relations.values()
    assert "differ by 0 eps and the gradients by 0 eps; on one gradient they return different" in relation.reason
    assert relation.reason.endswith("no tie rule holds here")
    assert relation.end == "two solutions"


def test_an_oracle_that_errs_is_named():
    problem, _, over = quadratic(worst_on_torch)
    away = np.array([0.4, 0.3, 0.2, 0.1])
    for names in (["numpy", "torch"], ["torch", "numpy"]):
        with pytest.raises(ProblemError, match=r"on torch: Oracle: lmo\(g\) must minimise"):
            xv.compare(problem, away, over=over, backends=names, algorithm=PAPER, max_iter=5)


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
    found = xv.compare(ill(condition), np.array([0.5, 0.3]), over=xv.sets.Box(0.0, 2.0),
                       backends=["numpy", "torch"], algorithm=PAPER, max_iter=20)  # fmt: skip
    (relation,) = found.relations.values()
    assert found.agree, str(found)
    assert relation.end == "same"
    assert found.first_difference is None
    # the bound is that of the condition, and never more than half of the digits
    assert found.rounding[0] > 1e-9
    assert found.rounding[-1] <= np.finfo("float64").eps ** 0.5
    assert found.excess < 30
    if found.first_different_step is not None:
        assert "another branch of a line search, steps " in relation.reason
        assert "where rounding explains " in relation.reason
    else:
        assert not relation.reason


def test_a_method_that_amplifies_rounding_is_no_fault(plug):
    """Differences of gradients: the same data changed by an epsilon move the reference's own iterates as far."""
    y = np.exp(-T) + np.exp(-5.0 * T) + 0.01 * np.random.default_rng(0).normal(size=50)
    problem = xv.separable(decays, y, data=T, lam=1e-6)
    names = [plug(f"amplify{name}", OFF.format(off=off)) for name, off in (("up", 4e-16), ("down", -4e-16))]
    found = xv.compare(problem, START, over=BOX, backends=names, max_iter=40,
                       algorithm=xv.algorithms.SpectralProjectedGradient())  # fmt: skip
    (relation,) = found.relations.values()
    assert found.agree, str(found)
    assert relation.first_difference is not None
    assert "rounding, " in relation.reason
    assert not relation.fault


def test_iterates_that_would_fill_the_memory_are_thinned(monkeypatch):
    monkeypatch.setattr("xvarpro.reproducibility.comparison.MEMORY", 0)
    recorder = _Recorder(START)
    for n in range(1, 301):
        recorder(SimpleNamespace(iteration=n, theta=n))
    assert list(recorder.thetas) == list(range(0, 301, 8))
    assert all(recorder.thetas[n] == n for n in range(8, 301, 8))


# -- a backend that errs -----------------------------------------------------------------------------------------------

SLOPE = """
    def vjp(self, fun, primals, constants=()):
        outputs, pull = super().vjp(fun, primals, constants)
        return outputs, lambda *cotangents: tuple(g * (1 + {off}) for g in pull(*cotangents))
"""


@pytest.mark.parametrize("algorithm", [PAPER, None], ids=["paper", "default"])
def test_a_slightly_wrong_derivative_is_named(algorithm, plug):
    """Also as the reference, and where all steps are the same: the largest entries of the gradient do not move."""
    name = plug(f"slope{'paper' if algorithm else 'default'}", SLOPE.format(off=1e-7))
    for names in (["numpy", name], [name, "numpy"], [name, "numpy", "array-api-strict"]):
        found = xv.compare(PROBLEM, START, over=BOX, backends=names, algorithm=algorithm, max_iter=8)
        assert not found.agree
        for relation in found.relations.values() if names[0] == name else [found.relations[name]]:
            assert relation.fault.startswith(f"{name} errs: its gradient contradicts its own values; at iterate ")
    assert ": a backend errs; theta " in found.verdict


def test_a_derivative_that_is_off_by_less_than_differences_show_is_open(plug):
    name = plug("slopetiny", SLOPE.format(off=1e-12))
    found = xv.compare(PROBLEM, START, over=BOX, backends=["numpy", name], algorithm=PAPER, max_iter=3)
    assert found.relations[name].fault.startswith("one of both errs; at iterate ")


def test_the_same_backend_under_two_names_agrees_to_the_bit(plug):
    found = xv.compare(PROBLEM, START, over=BOX, backends=["numpy", plug("twin")], max_iter=20)
    assert found.agree
    assert found.same_bits
    assert found.relations["twin"].distance == 0.0
    assert found.verdict.startswith("numpy and twin: agree; theta 0.0e+00 apart, w 0.0e+00")
    other = replace(found.fits["twin"], _w=1.001 * found.fits["twin"].w)
    found = replace(found, fits={**found.fits, "twin": other})
    assert not found.agree
    assert "agree about theta, not about w; theta 0.0e+00 apart, w 1.0e-03" in found.verdict


# -- what the problem cannot tell apart --------------------------------------------------------------------------------


class Known:
    """What rounding explains of a solve in good condition."""

    predicted = 2.2e-16

    def rounding(self, n):
        return 30 * (n + 1) * self.predicted


def related(problem, theta, other, over=None, fit=None):
    """The relation of an end with another one, each as if a solve had ended there."""
    site = Site(problem, over, "numpy", "float64")
    fit = fit or xv.solve(problem, theta, over=over, max_iter=0)
    end = replace(fit, theta=other, **{k: getattr(xv.solve(problem, other, over=over, max_iter=0), k)
                                       for k in ("value", "gap_A", "gap_B")})  # fmt: skip

    def solve(changed):
        moved = xv.solve(changed, theta, over=over, max_iter=0)
        return Path("numpy", moved, {0: theta}, Site(changed, over, "numpy", "float64"))

    return Pair(Path("numpy", fit, {0: theta}, site), Path("other", end, {0: theta}, site), solve, Known()).relation()


def test_the_order_of_columns_does_not_count():
    found = related(PROBLEM, START, START[::-1].copy(), BOX)
    assert found.end == "indistinguishable"
    assert found.agrees
    assert "entries are the same but for order and sign, and residuals are equal to " in found.sentence


def test_order_and_signs_of_units_do_not_count():
    def outputs(theta, data):
        return xv.array_namespace(data).tanh(data @ theta["weight"] + theta["bias"])

    rng = np.random.default_rng(0)
    problem = xv.separable(outputs, rng.normal(size=30), data=rng.normal(size=(30, 2)), lam=1e-3)
    theta = {"weight": rng.normal(size=(2, 4)), "bias": rng.normal(size=4)}
    order, signs = np.array([2, 0, 3, 1]), np.array([1.0, -1.0, -1.0, 1.0])
    other = {"weight": theta["weight"][:, order] * signs, "bias": theta["bias"][order] * signs}
    found = related(problem, theta, other)
    assert found.end == "indistinguishable"
    assert "but for order and sign" in found.sentence
    other["bias"] = theta["bias"][order]
    assert related(problem, theta, other).end == "different"


def test_a_flat_direction_does_not_count():
    """Only the sum of both entries is seen."""

    def M(theta, t):
        xp = xv.array_namespace(theta)
        return xp.exp(-xp.expand_dims(t, axis=1) * xp.sum(theta))

    problem = xv.separable(M, np.exp(-T), data=T, lam=1e-3)
    theta = np.array([0.25, 0.5])
    found = related(problem, theta, np.array([0.5, 0.25]) + np.array([0.125, -0.125]))
    assert found.end == "indistinguishable"
    assert "residuals are equal to " in found.sentence
    assert related(problem, theta, np.array([0.25, 0.5 + 1e-6])).end == "different"


def test_minima_apart_are_two_solutions():
    """Two minima with one value and a barrier between."""

    def M(theta, t):
        xp = xv.array_namespace(theta)
        return xp.expand_dims(t, axis=1) + 0 * theta

    def y(theta, t):
        return t * t * (theta[0] * theta[0] - 1) + 0.1 * t * t * theta[0]

    problem = xv.separable(M, lambda theta, t: y(theta, t) - 0.1 * t * t * theta[0], data=T)
    found = related(problem, np.array([1.0]), np.array([-1.0]))
    # the residual is the same, as that of an even function is
    assert found.end == "indistinguishable"

    def odd(theta, t):
        return t * t * (theta[0] * theta[0] - 2) + (t - 1) * theta[0]

    def mirrored(theta, t):
        xp = xv.array_namespace(theta)
        return xp.concat([odd(theta, t), odd(-theta, t)])

    def both(theta, t):
        xp = xv.array_namespace(theta)
        return xp.expand_dims(xp.concat([t, t]), axis=1) + 0 * theta[0]

    problem = xv.separable(both, mirrored, data=T)
    fit = xv.solve(problem, np.array([0.8]), tol=1e-10)
    found = related(problem, fit.theta, -fit.theta, fit=fit)
    assert found.end == "two solutions", found
    assert not found.agrees
    assert not found.fault


# -- the command -------------------------------------------------------------------------------------------------------

MINE = """
import numpy as np, xvarpro as xv

def M(theta, t):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta * (1 + OFF * ("torch" in xp.__name__)))

def decays():
    t = np.linspace(0.0, 2.0, 50)
    problem = xv.separable(M, np.exp(-t) + np.exp(-5.0 * t), data=t, lam=1e-6)
    return problem, np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0)
"""


@pytest.mark.parametrize(("off", "status"), [("0.0", 0), ("1e-6", 1)])
def test_the_command_says_whether_theta_agrees(off, status, tmp_path):
    (tmp_path / "mine.py").write_text(MINE.replace("OFF", off))
    args = ["compare", f"{tmp_path / 'mine.py'}:decays", "--backends", "numpy,torch", "--iterations", "5"]
    done = CliRunner().invoke(app, args, env={"COLUMNS": "300"})
    assert done.exit_code == status, done.output
    assert ("numpy and torch: agree; theta " in done.output) == (status == 0)
    assert ("torch: one of both errs; at iterate " in done.output) == (status == 1)
