"""The joint baselines: their objective against its definition, their steps against their papers, their ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from xvarpro_experiments import rivals
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.methods import Task
from xvarpro_experiments.rivals import IPALM, AlternatingLeastSquares, Joint, JointAdam, Jointly, JointProjectedGradient
from xvarpro_experiments.trees import arrays, partition

import xvarpro as xv
from tests.support import HOST_BACKENDS, central_differences, dictionary_problem, dictionary_start, rng, vector
from xvarpro.errors import ProblemError

RNG = rng(4)
A, Y = RNG.normal(size=(9, 5)), RNG.normal(size=(9, 3))
METHODS = {
    "joint PG, 1/L": JointProjectedGradient(),
    "joint accelerated PG": Jointly(),
    "PALM": IPALM(inertia=0.0),
    "iPALM": IPALM(),
    "alternating least squares": AlternatingLeastSquares(),
    "fixed step": JointProjectedGradient(scale=0.5),
    "Adam": JointAdam(rate=1e-2),
    "iPALM with inertia": IPALM(inertia=0.3, scale=0.9),
    "one sweep": AlternatingLeastSquares(sweeps=1),
}
IN_BLOCKS = [name for name, method in METHODS.items() if isinstance(method, (IPALM, AlternatingLeastSquares))]


def gated(split):
    def M(theta, data):
        return xv.array_namespace(theta).tanh(data[split]) * theta["s"]

    return M


def moving(theta, data):
    return data["Y"] * xv.array_namespace(theta).exp(theta["b"])


def sizes(theta):
    xp = xv.array_namespace(theta)
    return xp.sum(theta["s"] ** 4) + xp.sum(theta["b"] ** 2)


THETA = {"s": RNG.uniform(0.1, 0.3, size=5), "b": RNG.normal(size=3)}
DATA = {"A": A, "Y": Y}
OVER = {"s": xv.sets.CappedSimplex(2.0)}
SEPARABLE = xv.separable(gated("A"), moving, data=DATA, lam=0.3, R=sizes, mu=0.7)
SIGNALS = RNG.normal(size=(3, 8))
CONVOLUTIONS = xv.separable(lambda X, _: xv.operators.StackedCirculant(X), RNG.normal(size=24), lam=0.1)
NUMPY = xv.backends.get("numpy")


def J_of(problem, theta, w):
    """The definition, on NumPy."""
    level, penalty = problem.lower, 0.5 * problem.mu * float(problem.R(theta))
    r = level.M(theta, problem.data) @ w - level.y(theta, problem.data)
    return 0.5 * np.sum(r**2) + 0.5 * level.lam * np.sum(w**2) + penalty


def test_the_gradient_belongs_to_the_definition():
    w = rng(5).normal(size=(5, 3))
    J = Joint(SEPARABLE, NUMPY)
    grad = vector(list(arrays(J.gradient(THETA, w))))
    _, rest = partition((THETA, w))
    differences = central_differences(lambda x: J_of(SEPARABLE, *rest.fill(x)), [x.copy() for x in arrays((THETA, w))])
    np.testing.assert_allclose(grad, differences, rtol=1e-7, atol=1e-8)


def test_w_has_its_minimum_and_its_curvature():
    J = Joint(SEPARABLE, NUMPY)
    w, parts = J.best_w(THETA), J.parts(THETA)
    slope, scale = (np.linalg.norm(J.slope_w(parts, x, J.residual(parts, x))) for x in (w, 0 * w))
    assert slope <= 1e-13 * scale
    M = SEPARABLE.lower.M(THETA, DATA)
    assert float(J.curvature_w(parts)) == pytest.approx(np.linalg.norm(M, 2) ** 2 + 0.3, rel=1e-12)


def test_a_wide_design_has_the_same_curvature():
    M = rng(6).normal(size=(4, 11))
    J = Joint(xv.separable(lambda D, _: D, np.ones((4, 2)), lam=0.5), NUMPY)
    assert J.curvature_w(J.parts(M)) == pytest.approx(np.linalg.norm(M, 2) ** 2 + 0.5, rel=1e-12)


def test_the_lifted_problem_is_the_joint_one():
    w = rng(5).normal(size=(5, 3))
    value, grad = xv.value_and_gradient(rivals.lifted(SEPARABLE, THETA, w), {"theta": THETA, "w": w})
    J = Joint(SEPARABLE, NUMPY)
    theta, at_w = J.gradient(THETA, w)
    assert float(value) == pytest.approx(J_of(SEPARABLE, THETA, w), rel=1e-13)
    np.testing.assert_allclose(vector(grad), vector({"theta": theta, "w": at_w}), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("problem", "theta", "form"),
    [
        (dictionary_problem(), dictionary_start(), "dictionary"),
        (CONVOLUTIONS, SIGNALS, "convolution"),
        (SEPARABLE, THETA, ""),
    ],
)
def test_hessian_products(problem, theta, form):
    J, noise = Joint(problem, NUMPY), rng(7)
    assert J.form(theta) == form
    z = (theta, 100 * noise.normal(size=J.best_w(theta).shape))
    u = rivals.mapped(lambda x: noise.normal(size=x.shape), z)
    product = vector(list(arrays(rivals.hessian(J, z, J.gradient(*z), u, form))))
    up, down = (vector(list(arrays(J.gradient(*rivals.axpy(s * 1e-5, u, z))))) for s in (1, -1))
    wanted = (up - down) / 2e-5
    assert np.linalg.norm(product - wanted) <= (1e-8 if form else 1e-4) * np.linalg.norm(wanted)


def test_the_curvatures_of_convolutions_are_those_of_the_dense_problem():
    J, w = Joint(CONVOLUTIONS, NUMPY), RNG.normal(size=(8, 1))
    parts = J.parts(SIGNALS)
    M, kernel = parts.M.dense(), xv.operators.Circulant(w[:, 0]).dense()
    assert float(J.curvature_w(parts)) == pytest.approx(np.linalg.norm(M, 2) ** 2 + 0.1, rel=1e-12)
    assert float(J.curvature_theta("convolution", parts, w)) == pytest.approx(np.linalg.norm(kernel, 2) ** 2, rel=1e-12)
    # images above each other: as tight as the sum of their own spectra
    images = RNG.normal(size=(2, 40))
    above = xv.separable(lambda u, _: xv.operators.Convolution(u, (1, 3)), np.ones(84), lam=0.1)
    largest = np.linalg.norm(xv.operators.Convolution(images, (1, 3)).dense(), 2) ** 2
    bound = np.max(np.sum(np.abs(np.fft.rfft(images, 45)) ** 2, axis=0))
    J = Joint(above, NUMPY)
    assert J.curvature_w(J.parts(images)) == pytest.approx(bound + 0.1, rel=1e-12)
    assert largest <= bound * (1 + 1e-12)


@pytest.mark.parametrize(
    ("problem", "theta", "found"),
    [
        (dictionary_problem(), dictionary_start(), "dictionary"),
        (xv.separable(lambda theta, _: theta["D"], np.ones(6)), {"D": dictionary_start()}, "dictionary"),
        (xv.separable(lambda D, _: 2 * D, np.ones(6)), dictionary_start(), ""),
        (dictionary_problem(R=lambda D: D[0, 0], mu=1.0), dictionary_start(), ""),
        (xv.separable(lambda D, _: D, lambda D, _: D[:, 0]), dictionary_start(), ""),
        (xv.separable(lambda theta, _: theta["D"], np.ones(6)), {"D": dictionary_start(), "b": np.ones(2)}, ""),
    ],
)
def test_a_dictionary_is_recognised(problem, theta, found):
    assert Joint(problem, NUMPY).form(theta) == found


def test_what_has_no_joint_form_is_refused():
    problem = xv.separable(lambda x, _: x, np.ones(3), lam=1.0, W=xv.lower.Nonnegative())
    two = xv.bilevel(lower=xv.Level(gated("A"), Y), upper=xv.Level(gated("A"), Y), data=DATA)
    for other in (problem, two, xv.separable(lambda x, _: x, np.ones(3), lam=1.0, Omega=np.eye(3))):
        with pytest.raises(ProblemError, match="free w"):
            Joint(other, NUMPY)


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
        (JointProjectedGradient(), "gradient", 1.0),
        (IPALM(), None, 1.0),
        (IPALM(inertia=0.4, scale=0.9), 0.4, 0.9),
        (IPALM(inertia=0.0), 0.0, 1.0),
    ],
)
def test_on_a_dictionary_the_steps_are_the_published_ones(method, inertia, scale):
    problem, D0 = dictionary_problem(compress=False), dictionary_start()
    D, W = formulas(problem, D0, 1.0, 35, inertia, scale)
    task = Task(problem, D0, xv.sets.L1Ball(1.0))
    done = method.descend(task, Budget(35, 60.0))
    np.testing.assert_allclose(done.points[-1].theta, D, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(done.state.w, W, rtol=1e-7, atol=1e-9)


def test_a_fixed_step_is_a_share_of_the_first_one_and_stays():
    D0 = dictionary_start()
    task = Task(dictionary_problem(compress=False), D0, xv.sets.L1Ball(1e9))
    fixed = JointProjectedGradient(scale=0.25)
    usual, first, later = (
        method.descend(task, Budget(n, 60.0)).state
        for method, n in ((JointProjectedGradient(), 1), (fixed, 1), (fixed, 25))
    )
    np.testing.assert_allclose(D0 - first.theta, 0.25 * (D0 - usual.theta), rtol=1e-10)
    assert later.memory[1] == first.memory[1] == usual.memory[1]


def test_least_squares_end_at_the_minimum_of_their_block():
    D0, over = dictionary_start(), xv.sets.L1Ball(1.0)
    task = Task(problem := dictionary_problem(compress=False), D0, over)
    (done,) = AlternatingLeastSquares(sweeps=400).descend(task, Budget(1, 60.0)).points[1:]
    w = Joint(problem, NUMPY).best_w(D0)
    fixed = xv.separable(
        constant_design, lambda D, _: problem.lower.y - D @ w, data={"A": np.zeros((len(D0), 1))}, lam=1.0
    )
    best = task.solve(None, fixed, D0, tol=1e-14, max_iter=2000)
    np.testing.assert_allclose(done.theta, best.theta, atol=1e-6)


@pytest.mark.parametrize("method", [IPALM(), AlternatingLeastSquares()], ids=["iPALM", "ALS"])
def test_blocks_that_are_not_quadratic_are_refused(method):
    with pytest.raises(ProblemError, match="quadratic in theta"):
        method.run(Task(SEPARABLE, THETA, OVER), Budget(1, 60.0))


def test_least_squares_in_turn_never_rise_on_convolutions():
    task = Task(CONVOLUTIONS, SIGNALS / np.linalg.norm(SIGNALS), xv.sets.L2Ball(1.0))
    values = [task.certify(p.theta).value for p in AlternatingLeastSquares().descend(task, Budget(8, 60.0)).points]
    assert (np.diff(values) < 0).all()


def constant_design(theta, data):
    return data["A"] + 0 * theta[0]


def convex():
    """J is convex in (theta, w) together: a design that does not move and a target that is affine in theta."""
    noise = rng(8)
    data = {"A": noise.normal(size=(30, 4)), "B": noise.normal(size=(30, 6)), "y": noise.normal(size=30)}
    target = lambda theta, data: data["y"] - data["B"] @ theta  # noqa: E731
    return Task(xv.separable(constant_design, target, data=data, lam=1e-2), np.full(6, 0.1), xv.sets.Box(-0.05, 0.15))


@pytest.mark.parametrize("name", [n for n in METHODS if n not in ("Adam", *IN_BLOCKS)])
def test_each_reaches_the_optimum_of_a_convex_problem(name):
    task = convex()
    best = task.solve(xv.algorithms.SpectralProjectedGradient(), task.problem, task.theta0, tol=1e-13)
    assert 0 < np.count_nonzero((best.theta > -0.05) & (best.theta < 0.15)) < 6  # neither a vertex nor unconstrained
    done = METHODS[name].run(task, Budget(80, 60.0))
    assert done.objective == pytest.approx(best.value, rel=1e-8)
    np.testing.assert_allclose(done.theta, best.theta, atol=1e-5)


def test_adam_ends_within_its_rate_of_the_optimum():
    task = convex()
    best = task.solve(None, task.problem, task.theta0, tol=1e-13)
    for rate in (1e-2, 1e-3):
        done = JointAdam(rate=rate).run(task, Budget(400, 60.0))
        assert np.max(np.abs(done.theta - best.theta)) <= rate
    # no sign, no momentum, no correction of bias: the first step is the rate itself, against the gradient
    J = Joint(task.problem, NUMPY)
    grad, _ = J.gradient(task.theta0, J.best_w(task.theta0))
    free = Task(task.problem, task.theta0, xv.sets.Box(-9.0, 9.0))
    first = JointAdam(rate=1e-3).run(free, Budget(1, 60.0))
    np.testing.assert_allclose(first.theta, task.theta0 - 1e-3 * np.sign(grad), rtol=1e-6)


@pytest.mark.parametrize("name", [n for n in METHODS if n not in IN_BLOCKS])
def test_each_descends_within_the_set_with_a_penalty(name):
    task = Task(SEPARABLE, THETA, OVER)
    if not isinstance(METHODS[name], Jointly):
        done, J = METHODS[name].descend(task, Budget(10, 60.0)), Joint(SEPARABLE, NUMPY)
        assert J_of(SEPARABLE, done.state.theta, done.state.w) < J_of(SEPARABLE, THETA, J.best_w(THETA))
    assert METHODS[name].run(task, Budget(10, 60.0)).violation <= 1e-12


@pytest.mark.frameworks
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("other", HOST_BACKENDS[1:])
def test_backends_agree(name, other):
    given = SEPARABLE, THETA, OVER
    if name in IN_BLOCKS:
        given = dictionary_problem(), dictionary_start(), xv.sets.L1Ball(1.0)
    here, there = (METHODS[name].run(Task(*given, backend=b), Budget(2, 60.0)) for b in ("numpy", other))
    np.testing.assert_allclose(vector(there.theta), vector(here.theta), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["joint PG, 1/L", "joint accelerated PG", "iPALM", "alternating least squares"])
def test_float32_stays_float32(name, backend):
    theta0 = rivals.mapped(lambda x: x.astype(np.float32), dictionary_start())
    problem = xv.separable(lambda D, _: D, dictionary_problem().lower.y.astype(np.float32), lam=0.1)
    done = METHODS[name].run(Task(problem, theta0, xv.sets.L1Ball(1.0), backend=backend.name), Budget(4, 60.0))
    assert done.theta.dtype == np.float32
    assert math.isfinite(done.objective)
    assert np.any(done.theta != theta0)
