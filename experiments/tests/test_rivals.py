"""The joint baselines: their objective against its definition, their steps against their papers, their ends."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from xvarpro_experiments import rivals
from xvarpro_experiments.rivals import IPALM, AlternatingLeastSquares, Joint, JointAdam, Jointly, JointProjectedGradient
from xvarpro_experiments.rivals.objective import lift

import xvarpro as xv
from benchmarks import algorithms as bench
from tests.support import HOST_BACKENDS, central_differences, dictionary_problem, dictionary_start, host, rng, vector
from xvarpro.conformance import problems as reference
from xvarpro.core import trees
from xvarpro.driver.prepare import prepare
from xvarpro.errors import ProblemError

pytestmark = pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")  # methods are compared, not starts

RNG = rng(4)
OMEGA = np.eye(5) + 0.2 * RNG.normal(size=(5, 5))
A, B, Y = RNG.normal(size=(9, 5)), RNG.normal(size=(7, 5)), RNG.normal(size=(9, 3))
METHODS = {
    **rivals.BASELINES,
    "fixed step": JointProjectedGradient(step=1e-2),
    "Adam": JointAdam(1e-2),
    "iPALM with inertia": IPALM(0.3, 0.9),
    "one sweep": AlternatingLeastSquares(1),
}


def gated(split):
    def M(theta, data):
        return trees.array_namespace(theta).tanh(data[split]) * theta["s"]

    return M


def moving(theta, data):
    xp = trees.array_namespace(theta)
    return data["Y"] * xp.exp(theta["b"])


def sizes(theta):
    xp = trees.array_namespace(theta)
    return xp.sum(theta["s"] ** 4) + xp.sum(theta["b"] ** 2)


THETA = {"s": RNG.uniform(0.1, 0.3, size=5), "b": RNG.normal(size=3)}
DATA = {"A": A, "B": B, "Y": Y}
OVER = {"s": xv.sets.CappedSimplex(2.0)}
SEPARABLE = xv.separable(gated("A"), moving, data=DATA, lam=0.3, Omega=OMEGA, R=sizes, mu=0.7)
BILEVEL = xv.bilevel(
    lower=xv.Level(gated("A"), moving, lam=0.3),
    upper=xv.Level(gated("B"), RNG.normal(size=(7, 3)), lam=0.2, Omega=OMEGA),
    data=DATA,
    R=sizes,
    mu=0.7,
)


def J_of(problem, theta, w):
    """The definition, on NumPy."""
    levels = [problem.lower] + ([] if problem.upper is None else [problem.upper])
    total = 0.0 if problem.R is None else 0.5 * problem.mu * float(problem.R(theta))
    for level in levels:
        y = level.y(theta, problem.data) if callable(level.y) else level.y
        Ow = w if level.Omega is None else level.Omega @ w
        total += 0.5 * np.sum((level.M(theta, problem.data) @ w - y) ** 2) + 0.5 * level.lam * np.sum(Ow**2)
    return total


def joint(problem, theta, over=None, backend="numpy"):
    """J on a backend, and the leaves of theta there."""
    ready = prepare(replace(problem, compress=False), theta, over=over, backend=backend)
    return Joint(ready.assemble(ready.problem)), ready


def at(ready, w):
    return ready.backend.asarray(w, dtype="float64")


@pytest.mark.parametrize("problem", [SEPARABLE, BILEVEL], ids=["separable", "bilevel"])
def test_value_and_gradient_belong_to_the_definition(problem, backend):
    w = rng(5).normal(size=(5, 3))
    J, ready = joint(problem, THETA, OVER, backend)
    with ready.backend.scope("float64"):
        z = (*ready.theta, at(ready, w))
        point, grad = J.value_and_gradient(z)
        assert float(point.value) == pytest.approx(J_of(problem, THETA, w), rel=1e-13)
        assert float(J.point(z).value) == pytest.approx(float(point.value), rel=1e-14)
        differences = central_differences(lambda x: J_of(problem, {"b": x[0], "s": x[1]}, x[2]), [*_leaves(THETA), w])
        np.testing.assert_allclose(vector(list(grad)), differences, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(vector(list(J.gradient(point))), vector(list(grad)), rtol=1e-12)
        np.testing.assert_allclose(vector(list(J.slopes(z))), vector(list(grad)), rtol=1e-12)
        at_theta, by_theta = J.by_theta(z[:-1], z[-1])
        np.testing.assert_allclose(vector(list(by_theta)), vector(list(grad[:-1])), rtol=1e-12)
        assert float(at_theta.value) == pytest.approx(float(point.value), rel=1e-14)
        np.testing.assert_allclose(vector(list(J.slope_theta(z[:-1], z[-1]))), vector(list(grad[:-1])), rtol=1e-12)
        np.testing.assert_allclose(host(J.by_w(z[:-1], z[-1])[0]), host(grad[-1]), rtol=1e-12)


def _leaves(tree):
    return [np.array(x) for x in trees.leaves(tree)]


@pytest.mark.parametrize("problem", [SEPARABLE, BILEVEL], ids=["separable", "bilevel"])
def test_w_has_its_minimum_and_its_curvature(problem, backend):
    J, ready = joint(problem, THETA, OVER, backend)
    with ready.backend.scope("float64"):
        w = J.best_w(ready.theta)
        slope, L = J.by_w(ready.theta, w)
        scale = np.linalg.norm(host(J.by_w(ready.theta, 0 * w)[0]))
        assert np.linalg.norm(host(slope)) <= 1e-13 * scale
    levels = [problem.lower] + ([] if problem.upper is None else [problem.upper])
    H = sum(
        m.T @ m + level.lam * (np.eye(5) if level.Omega is None else level.Omega.T @ level.Omega)
        for level, m in ((level, level.M(THETA, DATA)) for level in levels)
    )
    assert float(L) == pytest.approx(np.linalg.eigvalsh(H)[-1], rel=1e-12)


def test_a_wide_design_has_the_same_curvature():
    M = rng(6).normal(size=(4, 11))
    J, ready = joint(xv.separable(lambda D, _: D, np.ones((4, 2)), lam=0.5), M)
    _, L = J.by_w(ready.theta, np.ones((11, 2)))
    assert float(L) == pytest.approx(np.linalg.norm(M, 2) ** 2 + 0.5, rel=1e-12)


def test_at_its_best_w_a_separable_joint_objective_is_the_reduced_one():
    J, ready = joint(SEPARABLE, THETA, OVER)
    value, grad = xv.value_and_gradient(SEPARABLE, THETA)
    z = (*ready.theta, J.best_w(ready.theta))
    point, slope = J.value_and_gradient(z)
    assert float(point.value) == pytest.approx(float(value), rel=1e-13)
    np.testing.assert_allclose(vector(list(slope[:-1])), vector(grad), rtol=1e-9)


SIGNALS = RNG.normal(size=(3, 8))
CONVOLUTIONS = xv.separable(lambda X, _: xv.operators.StackedCirculant(X), RNG.normal(size=24), lam=0.1)


@pytest.mark.parametrize("name", ["dictionary", "convolutions", "separable", "bilevel"])
def test_hessian_products(name, backend):
    problem, theta, over = {
        "dictionary": (dictionary_problem(), dictionary_start(), None),
        "convolutions": (CONVOLUTIONS, SIGNALS, None),
        "separable": (SEPARABLE, THETA, OVER),
        "bilevel": (BILEVEL, THETA, OVER),
    }[name]
    J, ready = joint(problem, theta, over, backend)
    noise = rng(7)
    with ready.backend.scope("float64"):
        w = J.best_w(ready.theta)
        z = (*ready.theta, at(ready, 100 * noise.normal(size=w.shape)))
        u = tuple(at(ready, noise.normal(size=x.shape)) for x in z)
        _, grad = J.value_and_gradient(z)
        bilinear = J.is_bilinear(z[:-1])
        assert bilinear == (name in ("dictionary", "convolutions"))
        assert J.is_dictionary(z[:-1]) == (name == "dictionary")
        product = vector(list(J.hessian(z, grad, u, bilinear)))
        h = 1e-5
        up, down = (J.value_and_gradient(trees.axpy(s * h, u, z))[1] for s in (1, -1))
    wanted = (vector(list(up)) - vector(list(down))) / (2 * h)
    error = np.linalg.norm(product - wanted) / np.linalg.norm(wanted)
    assert error <= (1e-8 if bilinear else 1e-4)


def test_the_curvatures_of_convolutions_are_those_of_the_dense_problem():
    J, ready = joint(CONVOLUTIONS, SIGNALS)
    w = RNG.normal(size=(8, 1))
    _, L = J.by_w(ready.theta, w)
    M = xv.operators.StackedCirculant(SIGNALS).dense()
    assert float(L) == pytest.approx(np.linalg.norm(M, 2) ** 2 + 0.1, rel=1e-12)
    kernel = xv.operators.Circulant(w[:, 0]).dense()
    assert float(J.curvature_theta(ready.theta, w)) == pytest.approx(np.linalg.norm(kernel, 2) ** 2, rel=1e-12)


@pytest.mark.parametrize("method", [rivals.palm(certify=1), IPALM(certify=1), AlternatingLeastSquares(certify=1)])
def test_alternating_methods_descend_on_convolutions(method):
    X0 = SIGNALS / np.linalg.norm(SIGNALS)
    fit = xv.solve(CONVOLUTIONS, X0, over=xv.sets.L2Ball(1.0), algorithm=method, max_iter=60, tol=0.0)
    assert fit.value < 0.9 * fit.trace.value[0]
    assert np.linalg.norm(fit.theta) <= 1 + 1e-12
    if method != IPALM(certify=1):  # no inertia: J never grows
        assert np.all(np.diff(fit.trace.value) <= 1e-12 * fit.trace.value[0])


@pytest.mark.parametrize(
    ("problem", "theta", "found"),
    [
        (dictionary_problem(), dictionary_start(), True),
        (xv.separable(lambda theta, _: theta["D"], np.ones(6)), {"D": dictionary_start()}, True),
        (xv.separable(lambda D, _: 2 * D, np.ones(6)), dictionary_start(), False),
        (dictionary_problem(R=lambda D: D[0, 0], mu=1.0), dictionary_start(), False),
        (xv.separable(lambda D, _: D, lambda D, _: D[:, 0]), dictionary_start(), False),
        (xv.separable(lambda theta, _: theta["D"], np.ones(6)), {"D": dictionary_start(), "b": np.ones(2)}, False),
        (BILEVEL, THETA, False),
    ],
    ids=["array", "leaf", "scaled", "penalty", "target", "second leaf", "two levels"],
)
def test_a_dictionary_is_recognised(problem, theta, found):
    J, ready = joint(problem, theta)
    assert J.is_dictionary(ready.theta) == found


# -- dictionary learning, by formulas of its own -----------------------------------------------------------------------


def formulas(problem, D0, radius, iterations, inertia, scale=1.0):
    """iPALM (inertia a number or None) or simultaneous projected gradient (inertia 'gradient') as NumPy loops."""
    X, lam, project = problem.lower.y, problem.lower.lam, xv.sets.L1Ball(radius).project
    ball = lambda D: project(D.reshape(-1)).reshape(D.shape)  # noqa: E731
    D = D_old = D0
    W = W_old = np.linalg.solve(D.T @ D + lam * np.eye(D.shape[1]), D.T @ X)
    noise = [rng(i).normal(size=x.shape) for i, x in enumerate((D, W))]

    def power(u):
        length = np.sqrt(sum(np.sum(x * x) for x in u))
        dD, dW = (x / length for x in u)
        E, dE = D @ W - X, dD @ W + D @ dW
        u = [dE @ W.T + E @ dW.T, dD.T @ E + D.T @ dE + lam * dW]
        return u, np.sqrt(sum(np.sum(x * x) for x in u))

    if inertia == "gradient":
        for _ in range(30):
            noise, L = power(noise)
    for k in range(1, iterations + 1):
        if inertia == "gradient":
            if k > 1 and (k - 1) % 10 == 0:
                for _ in range(5):
                    noise, L = power(noise)
            E = D @ W - X
            D, W = ball(D - E @ W.T / L), W - (D.T @ E + lam * W) / L
            continue
        beta = (k - 1) / (k + 2) if inertia is None else inertia
        at_D = D + beta * (D - D_old)
        step = scale / np.linalg.eigvalsh(W @ W.T)[-1]
        D, D_old = ball(at_D - step * (at_D @ W - X) @ W.T), D
        Z, W_old = W + beta * (W - W_old), W
        step = scale / (np.linalg.eigvalsh(D.T @ D)[-1] + lam)
        W = Z - step * (D.T @ (D @ Z - X) + lam * Z)
    return D, W


@pytest.mark.parametrize(
    ("method", "inertia", "scale"),
    [
        (JointProjectedGradient(certify=1), "gradient", 1.0),
        (IPALM(certify=1), None, 1.0),
        (IPALM(0.4, 0.9, certify=1), 0.4, 0.9),
        (rivals.palm(certify=1), 0.0, 1.0),
    ],
    ids=["gradient", "iPALM", "iPALM with inertia", "PALM"],
)
def test_on_a_dictionary_the_steps_are_the_published_ones(method, inertia, scale, backend):
    problem, D0 = dictionary_problem(), dictionary_start()
    D, W = formulas(problem, D0, 1.0, 35, inertia, scale)
    fit = xv.solve(
        replace(problem, compress=False), D0, over=xv.sets.L1Ball(1.0), algorithm=method, max_iter=35, tol=0.0,
        backend=backend,
    )  # fmt: skip
    np.testing.assert_allclose(host(fit.theta), D, rtol=1e-8, atol=1e-10)
    assert fit.value == pytest.approx(J_of(problem, D, W), rel=1e-10)


@pytest.mark.parametrize("method", [IPALM(), AlternatingLeastSquares()], ids=["iPALM", "ALS"])
def test_backtracking_takes_the_place_of_a_formula(method):
    """The same dictionary, stated so that nobody can tell: the same end."""
    X, D0, over = dictionary_problem().lower.y, dictionary_start(), xv.sets.L1Ball(1.0)
    told, hidden = (
        xv.solve(xv.separable(M, X, lam=0.1), D0, over=over, algorithm=method, max_iter=3000, tol=1e-9)
        for M in (lambda D, _: D, lambda D, _: 1.0 * D)
    )
    assert told.success
    assert hidden.success
    assert hidden.value == pytest.approx(told.value, rel=1e-7)
    assert hidden.counts.values > 5 * told.counts.values


# -- whole solves ------------------------------------------------------------------------------------------------------


def affine_target(theta, data):
    return data["y"] - data["B"] @ theta


def constant_design(theta, data):
    return data["A"] + 0 * theta[0]


def convex():
    """J is convex in (theta, w) together: a design that does not move and a target that is affine in theta."""
    noise = rng(8)
    data = {"A": noise.normal(size=(30, 4)), "B": noise.normal(size=(30, 6)), "y": noise.normal(size=30)}
    return xv.separable(constant_design, affine_target, data=data, lam=1e-2), np.full(6, 0.1)


@pytest.mark.parametrize("name", [n for n in METHODS if n != "Adam"])
def test_each_reaches_the_optimum_of_a_convex_problem(name):
    problem, theta0 = convex()
    over = xv.sets.Box(-0.05, 0.15)
    best = xv.solve(problem, theta0, over=over, algorithm=xv.algorithms.SpectralProjectedGradient(), tol=1e-13)
    fit = xv.solve(problem, theta0, over=over, algorithm=METHODS[name], max_iter=5000, tol=1e-9)
    assert fit.success, fit.status
    assert 0 < np.count_nonzero((best.theta > -0.05) & (best.theta < 0.15)) < 6  # neither a vertex nor unconstrained
    assert fit.value == pytest.approx(best.value, rel=1e-8)
    np.testing.assert_allclose(fit.theta, best.theta, atol=1e-5)


def test_adam_ends_within_its_rate_of_the_optimum():
    problem, theta0 = convex()
    over = xv.sets.Box(-0.05, 0.15)
    best = xv.solve(problem, theta0, over=over, tol=1e-13)
    fits = [
        xv.solve(problem, theta0, over=over, algorithm=JointAdam(rate), max_iter=4000, tol=0.0) for rate in (1e-2, 1e-3)
    ]
    for fit, rate in zip(fits, (1e-2, 1e-3), strict=True):
        assert np.max(np.abs(fit.theta - best.theta)) <= rate
    # no sign, no momentum, no correction of bias: the first step is the rate itself, against the gradient
    J, ready = joint(problem, theta0, over)
    _, grad = J.value_and_gradient((*ready.theta, J.best_w(ready.theta)))
    first = xv.solve(problem, theta0, over=xv.sets.Box(-9.0, 9.0), algorithm=JointAdam(1e-3), max_iter=1, tol=0.0)
    np.testing.assert_allclose(first.theta, theta0 - 1e-3 * np.sign(grad[0]), rtol=1e-6)


@pytest.mark.parametrize("case", [reference.exponentials, reference.network, reference.wide], ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_each_descends_within_the_set_on_every_kind_of_problem(name, case):
    ref = case()
    method = METHODS[name]
    method = replace(method, certify=1) if isinstance(method, rivals.Periodic) else method
    if isinstance(method, JointProjectedGradient) and method.step and case is reference.exponentials:
        method = replace(method, step=1e-4)  # a fixed step has to be found: this is what tuning is for
    fit = xv.solve(ref.problem, ref.theta0, over=ref.over, algorithm=method, max_iter=40, tol=0.0)
    J, ready = joint(ref.problem, ref.theta0, ref.over)
    start = float(J.point((*ready.theta, J.best_w(ready.theta))).value)
    assert fit.trace.value[0] == pytest.approx(start, rel=1e-10)
    assert fit.value < start
    assert fit.verified.violation <= 1e-12
    assert np.all(fit.trace.gap_A >= -1e-12 * np.max(fit.trace.gap_A))
    if ref.problem.is_separable:
        reduced = float(xv.value_and_gradient(ref.problem, fit.theta)[0])
        assert reduced <= fit.value * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        *((name, reference.network) for name in (*rivals.BASELINES, "Adam") if name != "PALM"),
        *((name, reference.dictionary) for name in ("joint PG, 1/L", "iPALM", "alternating least squares")),
    ],
)
@pytest.mark.parametrize("other", HOST_BACKENDS[1:])
def test_backends_agree(name, case, other):
    ref = case()
    here, there = (
        xv.solve(ref.problem, ref.theta0, over=ref.over, algorithm=METHODS[name], max_iter=5, tol=0.0, backend=b)
        for b in ("numpy", other)
    )
    np.testing.assert_allclose(vector(there.theta), vector(here.theta), rtol=1e-6, atol=1e-8)
    assert there.counts == here.counts


@pytest.mark.parametrize(
    "name", ["joint PG, 1/L", "joint accelerated PG", "iPALM", "alternating least squares", "Adam"]
)
def test_float32_stays_float32(name, backend):
    ref = reference.network()
    theta0 = trees.map_arrays(lambda x: x.astype(np.float32), ref.theta0)
    fit = xv.solve(
        trees.map_arrays(lambda x: x.astype(np.float32), ref.problem), theta0, over=ref.over, algorithm=METHODS[name],
        max_iter=4, tol=0.0, backend=backend,
    )  # fmt: skip
    assert all(x.dtype == np.float32 for x in trees.leaves(fit.theta))
    assert math.isfinite(fit.value)
    assert vector(fit.theta).tolist() != vector(theta0).tolist()


def test_the_certificate_is_that_of_the_lifted_region():
    ref = reference.network()
    fit = xv.solve(ref.problem, ref.theta0, over=ref.over, algorithm=IPALM(certify=4), max_iter=8, tol=0.0)
    for i in (1, 2, 3, 5, 6, 7):
        assert fit.trace.value[i] == fit.trace.value[4 * (i // 4)]
    start = fit.trace
    J, ready = joint(ref.problem, ref.theta0, ref.over)
    z = (*ready.theta, J.best_w(ready.theta))
    _, (gA, gs, gw) = J.value_and_gradient(z)
    theta = ref.theta0
    vertex = np.zeros_like(gs)
    if np.min(gs) < 0:
        vertex[np.argmin(gs)] = 1.0
    assert start.gap_A[0] == pytest.approx(np.sum(gs * (theta["s"] - vertex)), rel=1e-10)
    assert start.gap_B[0] == pytest.approx(np.linalg.norm(gA) + np.linalg.norm(gw), rel=1e-10)
    assert len(lift(ready.region, ready.theta).free) == len(ready.region.free) + 1
    assert fit.counts.lmos == 1 + 2
    assert fit.counts.gradients >= 8


def test_what_elimination_is_worth():
    """The same accelerated text on both objectives: the reduced one needs far fewer iterations."""
    ref = reference.exponentials()
    reduced = xv.solve(
        ref.problem, ref.theta0, over=ref.over, algorithm=xv.algorithms.AcceleratedProjectedGradient(), max_iter=500
    )
    joint_fit = xv.solve(ref.problem, ref.theta0, over=ref.over, algorithm=Jointly(), max_iter=500)
    assert reduced.success
    assert float(xv.value_and_gradient(ref.problem, joint_fit.theta)[0]) > reduced.value


def test_tune_takes_the_first_of_the_best_and_drops_what_is_not_finite():
    scores = {1.0: math.nan, 2.0: 5.0, 3.0: 4.0, 4.0: 4.0, 5.0: math.inf, 6.0: -math.inf}
    methods = [JointProjectedGradient(step=s) for s in scores]
    assert rivals.tune(methods, lambda m: scores[m.step]).step == 3.0


@pytest.mark.parametrize("name", rivals.GRIDS)
def test_grids_hold_different_settings_of_one_method(name):
    grid = rivals.GRIDS[name]
    assert len({type(m) for m in grid}) == 1
    assert len(set(grid)) == len(grid) > 1


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: IPALM(1.0), "inertia"),
        (lambda: IPALM(scale=0.0), "scale"),
        (lambda: IPALM(certify=0), "certify"),
        (lambda: JointProjectedGradient(every=0), "every"),
        (lambda: JointProjectedGradient(step=-1.0), "step"),
        (lambda: JointProjectedGradient(step=0.0), "step"),
        (lambda: JointAdam(rate=math.inf), "rate"),
        (lambda: JointAdam(beta1=1.0), "beta1"),
        (lambda: AlternatingLeastSquares(0), "sweeps"),
        (lambda: Jointly(IPALM()), "Jointly"),
        (lambda: Jointly(None), "Jointly"),
    ],
)
def test_bad_parameters_are_refused(build, match):
    with pytest.raises(ProblemError, match=match):
        build()


# -- the benchmark that races them -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def raced():
    ref = reference.dictionary()
    row = bench.Row(ref.problem, ref.over, lambda rng: ref.theta0 * rng.uniform(0.5, 1.0))
    race = bench.Race("small", row, "numpy", 0.03)
    chosen = [e for e in bench.ours() if e.name in (bench.DEFAULT, "SpectralProjectedGradient", "FrankWolfe")]
    tuned = race.tuned(["iPALM, tuned"], thin=4)
    race.go(chosen + bench.theirs(tuned, (False, True)), starts=2)
    return race


@pytest.mark.parametrize("name", bench.ROWS)
def test_rows_have_feasible_starts_that_differ_and_repeat(name):
    try:
        row = bench.ROWS[name]()
    except LookupError as error:
        pytest.skip(error.args[0])
    race = bench.Race(name, row, "numpy", 1.0)
    starts = [vector(race.start(seed)) for seed in (0, 1, 0)]
    np.testing.assert_array_equal(starts[0], starts[2])
    assert np.any(starts[0] != starts[1])
    fit = race.solve(bench.Entry("", None), race.start(0), max_iter=0)  # refuses what is not feasible
    assert race.reduced(race.start(0)) == pytest.approx(fit.value, rel=1e-9)


def test_what_competes_is_found_and_not_listed():
    found = {e.name: e for e in bench.ours()}
    assert found[bench.DEFAULT].algorithm is None
    classes = {type(e.algorithm) for e in found.values()}
    for name in xv.algorithms.__all__:
        made = getattr(xv.algorithms, name)
        if isinstance(made, type) and issubclass(made, xv.algorithms.Algorithm) and made is not xv.algorithms.Algorithm:
            assert made in classes
    assert not any(e.joint for e in found.values())
    assert all(e.joint for e in bench.theirs({}, (False, True)))


def test_curves_fall_and_start_where_the_problem_does(raced):
    assert raced.compresses()
    for seed, done in enumerate(raced.curves):
        assert len(done) == 3 + 2 * (len(rivals.BASELINES) + 1)
        start = raced.reduced(raced.start(seed))
        for curve in done.values():
            assert curve.objective[0] == pytest.approx(start, rel=1e-9)
            assert np.all(np.diff(curve.objective) <= 0)
            assert np.all(np.diff(curve.seconds) >= 0)
            assert curve.objective[-1] >= raced.best(seed)
            assert curve.time_to(curve.objective[-1]) <= curve.seconds[-1] < math.inf
            assert curve.time_to(0.999 * raced.best(seed)) == math.inf


def test_tables_and_summaries_say_what_the_curves_do(raced):
    table = {r["method"]: r for r in raced.table()}
    assert set(table) == set(raced.names())
    for r in table.values():
        times = [r["seconds"][a] for a in sorted(bench.ACCURACIES, reverse=True)]
        assert times == sorted(times)
    summary = raced.summary()
    assert "projection-free / projected" in summary
    assert "best of ours / best joint, as a user runs it" in summary
    told = json.loads(json.dumps(bench.record(raced), allow_nan=False))
    assert told["row"] == "small"
    assert len(told["curves"]) == 2


def curve(name, algorithm, times, compress=True, bottom=1.0):
    """Falls to 1.5, 1.005, 1.0005 and `bottom` at the given times."""
    levels = np.array([9.0, 1.5, 1.005, 1.0005, bottom])
    return bench.Curve(bench.Entry(name, algorithm, compress), np.array([0.0, *times]), levels, bottom, 4, "", "")


def test_ratios_compare_the_best_of_each_family():
    ref = reference.dictionary()
    race = bench.Race("made up", bench.Row(ref.problem, ref.over, None), "numpy", 1.0)
    free, projected = xv.algorithms.FrankWolfe(), xv.algorithms.SpectralProjectedGradient()
    race.curves = [
        {
            c.entry.name: c
            for c in (
                curve(bench.DEFAULT, None, scale * np.array([1.0, 3.0, 4.0, 5.0])),
                curve("free", free, scale * np.array([1.0, 6.0, 7.0, 8.0])),
                curve("projected", projected, scale * np.array([1.0, 2.0, 4.0, 10.0])),
                curve("iPALM", IPALM(), scale * np.array([1.0, 8.0, 9.0, 20.0]), compress=False),
                curve("iPALM, compressed", IPALM(), scale * np.array([1.0, 4.0, 5.0, 6.0]), bottom=1.0004),
            )
        }
        for scale in (1.0, 2.0, 30.0)
    ]
    summary = race.summary()
    assert summary["default / best of ours"] == {1e-2: 1.5, 1e-3: 1.0, 1e-6: 5 / 8}
    assert summary["best of ours / best joint, as a user runs it"] == {1e-2: 2 / 8, 1e-3: 4 / 9, 1e-6: 5 / 20}
    assert summary["best of ours / best joint, given our compression"] == {1e-2: 2 / 4, 1e-3: 4 / 5, 1e-6: 5 / 20}
    assert summary["projection-free / projected"] == {1e-2: 3.0, 1e-3: 7 / 4, 1e-6: 8 / 10}
    assert summary["the same, to where that one ended, as a user runs it"] == {1e-3: 4 / 9}
    assert summary["the same, to where that one ended, given our compression"] == {1e-3: 4 / 5}
    worst = race.table()[-1]
    assert worst["method"] == "iPALM, compressed"
    assert worst["seconds"] == {1e-2: 8.0, 1e-3: 10.0, 1e-6: math.inf}
    assert worst["excess"] == pytest.approx(4e-4)


def test_compiled_loops_are_run_again_for_their_iterates():
    ref = reference.dictionary()
    race = bench.Race("small", bench.Row(ref.problem, ref.over, lambda _: ref.theta0), "jax", 1.0)
    entry = bench.Entry("", JointAdam(1e-3), compress=False)
    kept = race._again(entry, ref.theta0, 12)
    assert sorted(kept) == list(range(1, 12))
    for n in (1, 7):
        there = race.solve(entry, ref.theta0, max_iter=n)
        np.testing.assert_allclose(kept[n], there.theta, rtol=1e-12, atol=1e-15)


def test_ratios_of_what_was_never_reached():
    inf, nan = math.inf, math.nan
    np.testing.assert_array_equal(
        bench.quotient(np.array([1.0, inf, 1.0, inf]), np.array([2.0, 1.0, inf, inf])), [0.5, inf, 0.0, nan]
    )
    assert bench.median(np.array([nan, 3.0, 1.0, 2.0])) == 2.0
    assert bench.median(np.array([1.0, inf])) == inf
    assert math.isnan(bench.median(np.array([nan])))
    assert [bench.shown(x) for x in (0.5, inf, nan)] == ["0.5", "never", "-"]
