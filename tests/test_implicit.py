"""The implicit gradient is that of the solution, on every framework, and says where there is none."""

from dataclasses import replace

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import backends
from xvarpro.backends.calculus import hessian_product
from xvarpro.differentiation.conjugate_gradients import conjugate_gradients
from xvarpro.differentiation.implicit import Cotangent
from xvarpro.errors import ProblemError

from .support import decays, error, host, rng, send, send_tree

T = np.linspace(0.0, 2.0, 20)
CLEAN = np.exp(-np.outer(T, [1.0, 4.0])) @ np.array([[2.0, 1.0, 1.5], [1.0, 2.0, 1.0]])
DATA = {"t": T, "Y": CLEAN + 0.05 * rng(0).normal(size=CLEAN.shape), "lam": np.asarray(0.1), "shift": np.arange(1, 3)}
START = np.array([0.5, 5.0])
COTANGENT = Cotangent(np.array([1.0, -2.0]), np.array([[0.5, 0.1, -0.3], [0.7, 0.2, 0.4]]), 3.0)


def target(theta, data):
    return data["Y"]


def shifted(theta, data):
    return 1.1 * data["Y"]


def ridge(theta, data):
    return data["lam"]


def later(theta, data):
    return decays(theta, {"t": data["t"] + 0.01})


def length(theta):
    xp = xv.array_namespace(theta)
    return xp.sum(theta * theta)


def turned(theta, data):
    xp = xv.array_namespace(theta)
    return xp.astype(decays(theta, data), xp.complex128) * xp.expand_dims(xp.asarray(np.exp(2j * T)), axis=1)


def separable(M=decays, **keywords):
    return xv.separable(M, target, data=DATA, **{"lam": ridge} | keywords)


def bilevel(**keywords):
    lower = xv.Level(decays, target, **{"lam": ridge} | keywords)
    return xv.bilevel(lower=lower, upper=xv.Level(later, shifted), data=DATA, R=length, mu=1e-3)


def loss(problem, data, start, over, algorithm=None):
    fit = xv.solve(replace(problem, data=data), start, over=over, algorithm=algorithm, tol=1e-13, max_iter=3000)
    assert fit.success
    c = COTANGENT
    return fit, float(np.sum(fit.theta * c.theta) + np.sum(np.real(np.conj(c.w) * fit.w)) + c.value * fit.value)


def by_differences(problem, direction, start, over, algorithm=None, h=1e-3):
    """Of fourth order, so that steps may be long: where solves end is known to the root of eps only."""

    def at(step):
        data = {name: x + step * direction[name] for name, x in problem.data.items()}
        return loss(problem, data, start, over, algorithm)[1]

    near, far = (at(step) - at(-step) for step in (h, 2 * h))
    return (8 * near - far) / (12 * h)


def check(problem, over=None, start=START, rtol=3e-6, algorithm=None):
    """The gradient along a direction that moves all of the data."""
    fit, _ = loss(problem, problem.data, start, over, algorithm)
    found = xv.implicit.gradient(problem, fit.theta, COTANGENT, over=over)
    assert found.reasons == []
    assert found.residual < 1e-7
    draw = rng(5)
    moved = {name: draw.normal(size=np.shape(problem.data[name])) for name in ("t", "Y")} | {"lam": 0.1}
    want = by_differences(problem, moved | {"shift": 0}, fit.theta, over, algorithm)
    got = sum(np.sum(np.real(found.data[name]) * x) for name, x in moved.items())
    assert abs(got - want) <= rtol * abs(want)
    return fit, found


SETS = {
    "free": (None, START),
    "box, active": (xv.sets.Box(0.0, 2.0), np.array([0.5, 1.5])),
    "simplex, a face": (xv.sets.Simplex(2.5), np.array([0.5, 2.0])),
    "sphere": (xv.sets.L2Ball(1.5), np.array([0.5, 1.0])),
}


@pytest.mark.parametrize("problem", [separable(), bilevel()], ids=["separable", "bilevel"])
@pytest.mark.parametrize(("over", "start"), SETS.values(), ids=SETS)
def test_it_is_that_of_whole_solves(problem, over, start):
    # the gap of a ball is of second order, so that a solve ends at half of the digits
    rtol = 1e-4 if isinstance(over, xv.sets.L2Ball) else 3e-6
    fastest = None if problem.upper is None else xv.algorithms.LevenbergMarquardt()
    fit, found = check(problem, over, start, rtol=rtol, algorithm=fastest)
    assert found.data["shift"] is None  # whole numbers
    if over is not None:
        assert np.linalg.norm(fit.theta - xv.solve(problem, START, tol=1e-9).theta) > 1e-2, "the set is not active"


VARIANTS = {
    "weights are nonnegative": (bilevel(W=xv.lower.Nonnegative()), {"Y": DATA["Y"] - np.array([0.0, 3.0, 0.0])}),
    "weights in a subspace": (bilevel(W=xv.lower.Equality(np.ones((1, 2)), 3.0)), {}),
    "rows weighted, a matrix in the ridge": (
        separable(weights=np.linspace(0.0, 1.0, T.size), Omega=np.array([[1.0, -1.0], [0.0, 1.0]])),
        {},
    ),
    "an iterative solver": (bilevel(lam=1e-2, solver=xv.lower.LSMR(tol=1e-13)), {}),
    "complex": (separable(M=turned, lam=1e-3), {"Y": DATA["Y"] * np.exp(2.1j * T)[:, None]}),
}


@pytest.mark.parametrize(("problem", "data"), VARIANTS.values(), ids=VARIANTS)
def test_it_is_that_of_every_lower_level(problem, data):
    problem = replace(problem, data=DATA | data)
    fit, _ = check(problem, rtol=1e-5)
    if "Nonnegative" in repr(problem.lower.W):
        assert (fit.w == 0).any()


def twice(framework, theta, over, along):
    """The arrays of `pull_twice`, and why they may be invalid."""
    problem = replace(separable(solver=xv.lower.SVD()), data=send_tree(framework, DATA))
    prepared = xv.implicit.ready(problem, send(framework, theta), over=over)
    bars = Cotangent(send(framework, COTANGENT.theta), send(framework, COTANGENT.w), 3.0)
    way = tuple(send(framework, x) for x in along)
    by_data, change, flags = xv.implicit.pull_twice(prepared, prepared.theta, xv.implicit.move(prepared, bars), way)
    said = xv.implicit.reasons(*xv.implicit.numbers(prepared, flags))
    return [host(x) for x in (*by_data, *change)], said


def test_its_derivative_is_the_same_on_every_backend(backend):
    along = [rng(6).normal(size=np.shape(DATA[name])) for name in ("Y", "lam", "t")]
    (want, _), (got, said) = (
        twice(on, np.array([0.9, 2.0]), xv.sets.Box(0.0, 2.0), along) for on in (backends.get("numpy"), backend)
    )
    assert said == []
    assert error(got, want) < 1e-7


def test_its_derivative_by_differences_of_the_projection():
    """On NumPy as on PyTorch, along changes of the data that move the multiplier and hardly the solution."""
    draw, over = rng(6), xv.sets.L2Ball(1.5)
    theta = xv.solve(separable(), np.array([0.5, 1.0]), over=over, tol=1e-13).theta
    numpy, torch = backends.get("numpy"), backends.get("torch")
    for _ in range(3):
        ways = [[draw.normal(size=np.shape(DATA[name])) for name in ("Y", "lam", "t")] for _ in range(2)]
        moves = [twice(torch, theta, over, way)[0][3][0] for way in ways]
        along = [x - 0.999 * moves[0] / moves[1] * y for x, y in zip(*ways, strict=True)]
        (got, said), (want, _) = (twice(on, theta, over, along) for on in (numpy, torch))
        assert said == []
        assert error(got, want) < 1e-5


def peaked(theta, data):
    """One row, a column for each centre."""
    xp = xv.array_namespace(theta)
    return xp.expand_dims(xp.exp(-0.5 * (theta - data["d"]) ** 2), axis=0)


def broad(theta, data):
    return peaked(theta, data) ** 0.2


def test_of_a_wide_design_nothing_is_lost_as_the_ridge_goes_to_0(subtests):
    """Theta lies in the middle of two centres, for every ridge; w has a closed form."""
    lower = xv.Level(peaked, target, lam=ridge)
    problems = {
        "separable": xv.separable(peaked, target, lam=ridge),
        "bilevel": xv.bilevel(lower=lower, upper=xv.Level(broad, target)),
        "blocks": xv.separable(
            lambda theta, data: xv.operators.BlockDiagonal([peaked(theta, data)]), target, lam=ridge
        ),
    }
    theta, c = np.zeros(1), np.array([1.0, -0.5])
    lam, g = 1e-11, np.exp([-0.045, -0.045])
    data = {"d": np.array([-0.3, 0.3]), "Y": np.array([1.5]), "lam": np.asarray(lam)}
    for name, problem in problems.items():
        with subtests.test(name):
            problem = replace(problem, data=data)
            found = xv.implicit.gradient(problem, theta, Cotangent(np.ones(1)))
            assert found.reasons == []
            assert error(found.data["d"], np.array([0.5, 0.5])) <= 1e-12
            found = xv.implicit.gradient(problem, theta, Cotangent(w=c), over=xv.sets.Box(0.0, 0.0))
            assert abs(float(found.data["lam"]) * (g @ g + lam) ** 2 / (-1.5 * g @ c) - 1) <= 1e-12


def rivals(theta, data):
    """Two rows whose lengths are each other's inverse."""
    xp = xv.array_namespace(theta)
    lengths = xp.exp(0.5 * xp.concat([theta, -theta]))
    return xp.expand_dims(lengths, axis=1) * xp.asarray([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8]], dtype=theta.dtype)


def of_theta(theta, data):
    return data["lam"] * (1.0 + theta[0] ** 2) + 0.01 * theta[0]


@pytest.mark.parametrize(("dtype", "lam"), [("float64", 1e-12), ("float64", 1e-3), ("float32", 1e-6)])
def test_an_error_of_theta_is_not_divided_by_the_ridge_of_a_wide_design(dtype, lam):
    """Where ``y1 exp(t) / (exp(t) + lam)^2 = y2 exp(-t) / (exp(-t) + lam)^2``, for squares of y."""
    y1, y2 = 3.0, 2.0
    off = np.finfo(dtype).eps ** 0.5 / 30
    theta = np.array([np.log((y1 - lam * y2) / (y2 - lam * y1)) + off], dtype)
    data = {"Y": np.array([y1, y2], dtype), "lam": np.asarray(lam, dtype)}
    problem = xv.separable(rivals, target, lam=ridge, data=data)
    found = xv.implicit.gradient(problem, theta, Cotangent(np.ones(1, dtype)))
    assert found.reasons == []
    assert abs(float(found.data["lam"]) / (y1 / (y2 - lam * y1) - y2 / (y1 - lam * y2)) - 1) <= 10 * off


@pytest.mark.parametrize("method", [None, xv.algorithms.ProjectedQuasiNewton()], ids=["default", "quasi-Newton"])
def test_in_single_precision_a_solve_of_a_wide_design_ends_at_its_minimum_and_so_do_derivatives(method):
    """The objective, of order lam, is no difference of targets of order 1: their rounding does not end the solve."""
    y1, y2, lam = 3.0, 2.0, 1e-6
    data = {"Y": np.array([y1, y2], np.float32), "lam": np.asarray(lam, np.float32)}
    problem = xv.separable(rivals, target, lam=ridge, data=data)
    for start in (-1.0, 0.1, 2.0):
        fit = xv.solve(problem, np.array([start], np.float32), algorithm=method)
        assert fit.status is xv.Status.CONVERGED
        assert abs(float(fit.theta[0]) - np.log((y1 - lam * y2) / (y2 - lam * y1))) <= 2e-6
        found = xv.implicit.gradient(problem, fit.theta, Cotangent(np.ones(1, np.float32)))
        assert abs(float(found.data["lam"]) / (y1 / (y2 - lam * y1) - y2 / (y1 - lam * y2)) - 1) <= 2e-5


def test_a_ridge_that_depends_on_theta_and_on_data_under_a_wide_design():
    data = {"Y": np.array([3.0, 2.0]), "lam": np.asarray(0.1)}

    def solved(lam):
        problem = xv.separable(rivals, target, lam=of_theta, data=data | {"lam": np.asarray(lam)})
        return problem, xv.solve(problem, np.array([0.4]), tol=1e-13).theta

    problem, theta = solved(0.1)
    found = xv.implicit.gradient(problem, theta, Cotangent(np.ones(1)))
    want = (solved(0.1 + 1e-5)[1] - solved(0.1 - 1e-5)[1]) / 2e-5
    assert error(found.data["lam"], want[0]) <= 1e-6


def test_where_a_small_ridge_leaves_no_digits_that_is_said():
    """Under an Omega, which the dual form does not take: theta lies in the middle as before."""
    data = {"d": np.array([-0.3, 0.3]), "Y": np.array([1.5])}
    for lam, said in ((1e-2, False), (1e-7, True)):
        problem = xv.separable(peaked, target, data=data, lam=lam, Omega=np.array([[1.0, 0.1], [0.1, 1.0]]))
        found = xv.implicit.gradient(problem, np.zeros(1), Cotangent(np.ones(1)))
        assert any("M Omega^-1" in reason for reason in found.reasons) == said
        assert said or error(found.data["d"], np.array([0.5, 0.5])) <= 1e-10


# -- what has no derivative --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unbound():
    return xv.solve(separable(), START, tol=1e-13).theta


@pytest.mark.parametrize("slack", [0.0, 1e-3], ids=["at the bound", "inside"])
@pytest.mark.parametrize("kind", ["box", "ball"])
def test_a_multiplier_of_zero_is_reported(unbound, kind, slack):
    size = unbound.max() if kind == "box" else np.linalg.norm(unbound)
    over = xv.sets.Box(0.0, size + slack) if kind == "box" else xv.sets.L2Ball(size + slack)
    found = xv.implicit.gradient(separable(), unbound, COTANGENT, over=over)
    assert found.degenerate == (slack == 0.0)
    assert [("multiplier" in text) for text in found.reasons] == [True] * found.degenerate


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("slack", [1e-3, 0.2], ids=["a small multiplier", "a large one"])
def test_a_small_multiplier_is_none_of_zero(unbound, dtype, slack):
    over = xv.sets.Box(0.0, unbound.max() * (1 - slack))
    problem = replace(separable(), data={k: x if k == "shift" else x.astype(dtype) for k, x in DATA.items()})
    theta = xv.solve(problem, xv.project(START, over).astype(dtype), over=over, dtype=dtype).theta
    assert not xv.implicit.gradient(problem, theta, COTANGENT, over=over, dtype=dtype).degenerate


def summed(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * xp.sum(theta))


def test_where_the_solution_is_not_unique_the_least_change_is_taken():
    problem = xv.separable(summed, lambda theta, data: data["y"], data={"t": T, "y": DATA["Y"][:, 0]})
    theta = xv.solve(problem, np.array([0.5, 1.0]), tol=1e-13).theta

    def pulled(c):
        return xv.implicit.gradient(problem, theta, Cotangent(np.array(c)))

    seen, half, none = pulled([1.0, 1.0]), pulled([1.0, 0.0]), pulled([1.0, -1.0])
    assert not seen.singular
    assert half.singular
    assert none.singular
    np.testing.assert_allclose(half.data["y"], seen.data["y"] / 2, rtol=1e-6)
    np.testing.assert_allclose(none.data["y"], 0.0, atol=1e-8 * np.abs(seen.data["y"]).max())


def test_a_rank_deficient_design_is_reported():
    problem = separable(lam=0.0, solver=xv.lower.SVD())
    found = xv.implicit.gradient(problem, np.array([2.0, 2.0]), COTANGENT)
    assert found.singular


def test_a_system_that_was_not_solved_is_reported(unbound):
    found = xv.implicit.gradient(separable(), unbound, COTANGENT, limit=1)
    assert "raise limit" in "".join(found.reasons)


def test_wrong_use_is_an_error():
    problem, theta = separable(), START
    with pytest.raises(ProblemError, match="in chunks"):
        xv.implicit.gradient(xv.separable(decays, xv.ColumnChunks([DATA["Y"]]), data=DATA), theta, COTANGENT)
    with pytest.raises(ProblemError, match="cotangent of theta"):
        xv.implicit.gradient(problem, theta, Cotangent(np.ones(3)))
    with pytest.raises(ProblemError, match="cotangent of w must have shape"):
        xv.implicit.gradient(problem, theta, Cotangent(w=np.ones(3)))
    ball = xv.sets.HullOfUnion((xv.sets.L2Ball(9.0), xv.sets.L1Ball(9.0)))
    with pytest.raises(ProblemError, match="has neither: use another set"):
        xv.implicit.gradient(problem, theta, COTANGENT, over=ball)


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_hessian_product_is_gradient_and_hessian(backend):
    def fun(x, z, y):
        xp = xv.array_namespace(x)
        return xp.sum(y * x**3) + xp.sum(xp.abs(z) ** 2) * xp.sum(x)

    x, z, y = np.array([1.0, 2.0]), np.array([1.0 + 2.0j]), np.array([1.0, -1.0])
    dx, dz = np.array([0.5, 1.0]), np.array([2.0 - 1.0j])
    with backend.scope("float64"):
        slopes, product = hessian_product(backend, fun, (send(backend, x), send(backend, z)), (send(backend, y),))
        twice = [product((send(backend, dx), send(backend, dz))) for _ in range(2)]
    np.testing.assert_allclose(host(slopes[0]), 3 * y * x**2 + 5.0, rtol=1e-14)
    np.testing.assert_allclose(host(slopes[1]), 2 * z * x.sum(), rtol=1e-14)
    along = 2 * np.real(np.conj(z) * dz).sum()
    for moved in twice:
        np.testing.assert_allclose(host(moved[0]), 6 * y * x * dx + along, rtol=1e-14)
        np.testing.assert_allclose(host(moved[1]), 2 * dz * x.sum() + 2 * z * dx.sum(), rtol=1e-14)


SYSTEMS = {
    "a curved boundary": ([1.0, 1.0, 1.0, 0.7, 0.3, 0.0], 6),
    "curved and singular": ([1.0, 1.0, 1.0, 1.0, 0.3, 0.0], 2),
    "free and singular": ([1.0] * 6, 3),
}


@pytest.mark.parametrize(("eigenvalues", "rank"), SYSTEMS.values(), ids=SYSTEMS)
def test_conjugate_gradients_give_the_least_solution(eigenvalues, rank):
    draw = rng(2)
    Q, _ = np.linalg.qr(draw.normal(size=(6, 6)))
    J = (Q * eigenvalues) @ Q.T
    H = draw.normal(size=(6, rank))
    H, c, second = H @ H.T / np.linalg.norm(H, 2) ** 2, draw.normal(size=6), draw.normal(size=(3, 6))
    found = conjugate_gradients(
        backends.get("numpy"),
        lambda d: (J @ d[0],),
        lambda d: d,
        lambda d: ((H @ d[0],), (second @ d[0],)),
        (c,),
        (np.zeros(3),),
        1e-12,
        1e-16,
        100,
    )
    inverse = np.linalg.pinv(J, rcond=1e-10)
    Z = J @ inverse
    want = np.linalg.pinv(inverse - Z + Z @ H @ Z, rcond=1e-10) @ c
    assert bool(found.singular) == (rank < 6)
    if rank == 6 or eigenvalues[-1]:
        np.testing.assert_allclose(found.u[0], want, rtol=1e-6)
    np.testing.assert_allclose(found.image[0], second @ found.u[0], rtol=1e-6)
