"""Iterative lower levels: what they solve, what their errors do to the gradient, what the certificate says of it."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import lower
from xvarpro.core import trees
from xvarpro.core.status import Status
from xvarpro.driver.prepare import prepare
from xvarpro.lower.interface import Ridge, System
from xvarpro.objective.inexact import CORRECTION
from xvarpro.operators import Dense, Operator

from .support import error, host, in_turn, rng

NUMPY = xv.backends.get("numpy")


@dataclass(frozen=True)
class Products(Operator):
    """A design that offers nothing but its products."""

    array: Any = None

    @property
    def shape(self):
        return self.array.shape

    @property
    def explicit(self):
        return False

    def matvec(self, w):
        return self.array @ w

    def rmatvec(self, r):
        return trees.adjoint(self.array) @ r

    def outer(self, r, w):
        return Products(r @ trees.adjoint(w))

    def dense(self):
        raise AssertionError("a design that is known through its products was asked for all of its entries")


@dataclass(frozen=True)
class ProductsOfEach(Products):
    """A matrix per column."""

    @property
    def shape(self):
        return self.array.shape[1:]

    @property
    def columns(self):
        return self.array.shape[0]

    def matvec(self, w):
        return np.einsum("kmn,nk->mk", self.array, w)

    def rmatvec(self, r):
        return np.einsum("kmn,mk->nk", self.array, r)


@dataclass(frozen=True)
class Counted(Products):
    def matvec(self, w):
        Counted.calls += 1
        return self.array @ w


def with_singular_values(shape, s, seed=0):
    U, V = (np.linalg.qr(rng(seed + i).normal(size=(size, len(s))))[0] for i, size in enumerate(shape))
    return (U * s) @ V.T


def diagnosed(M, lam, y):
    solver, system = lower.LSMR(), System(M, Ridge(lam))
    return solver.diagnose(NUMPY, system, solver.factor(NUMPY, system), y)


SPECTRA = {
    "tall": ((30, 8), np.geomspace(1, 1e-3, 8)),
    "wide": ((8, 30), np.geomspace(1, 1e-3, 8)),
    "square": ((8, 8), np.geomspace(1, 1e-3, 8)),
    "rank-deficient": ((20, 20), np.geomspace(1, 1e-2, 6)),
    "wide, rank-deficient": ((12, 30), np.geomspace(1, 1e-2, 6)),
    "repeated": ((20, 30), np.repeat([1.0, 0.1, 1e-3], (5, 3, 2))),
    "clustered": ((20, 30), np.array([1.0, 1 + 1e-9, 1 + 1e-5, 0.1, 0.1 + 1e-7, 1e-3, 1e-3 * (1 + 1e-8)])),
    "one": ((6, 6), np.ones(6)),
}


@in_turn("lam", [0.0, 1e-8, 0.25])
@in_turn("kind", SPECTRA)
def test_condition_is_that_of_the_singular_values(kind, lam):
    """Whatever the rounding, which other orders of rows and columns change, and whatever the right-hand side."""
    shape, s = SPECTRA[kind]
    stacked = np.sqrt(s**2 + lam)
    least = np.sqrt(lam) if lam and len(s) < shape[1] else np.min(stacked)
    for seed in range(3):
        A = with_singular_values(shape, s, seed)
        y = (np.zeros if seed == 0 else np.ones)((shape[0], 1 + seed % 3))
        found = diagnosed(Products(A), lam, y)
        assert found.condition == pytest.approx(np.max(stacked) / least, rel=1e-4)  # twice LEAK^2 / 2


def test_condition_in_single_precision_is_a_lower_bound():
    for (shape, s), seed in product(SPECTRA.values(), range(3)):
        A = with_singular_values(shape, s, seed).astype(np.float32)
        found = diagnosed(Products(A), 0.0, np.ones((shape[0], 1), np.float32))
        assert 1 - 1e-4 <= found.condition <= np.max(s) / np.min(s) * (1 + 1e-4)


def test_condition_of_many_designs_is_the_largest():
    """The process of one of them ends at once."""
    blocks = np.stack([np.diag(np.geomspace(1, 1 / c, 4)) for c in (10, 1000, 1)])
    found = diagnosed(ProductsOfEach(blocks), 0.0, np.ones((4, 3)))
    assert found.condition == pytest.approx(1000)


def test_w_is_solved_for_to_the_square_where_its_error_is_of_first_order():
    for tol in (1e-3, np.asarray(1e-3)):
        for separable, power in ((True, 1), (False, 2)):
            found = lower.LSMR().with_tolerance(tol, separable)
            assert found.value_tol == pytest.approx(found.tol**power, rel=1e-12)
            assert found.tol == pytest.approx(1e-3 * lower.LSMR().share)


def test_columns_are_solved_each_to_its_own_tolerance():
    """A column that starts converged, or is smaller by ten orders of magnitude, is as right as the others."""
    A, y = rng(0).normal(size=(11, 5)), rng(1).normal(size=(11, 3)) * np.array([1.0, 1e-10, 0.0])
    solver, system = lower.LSMR(tol=1e-12), System(Products(A), Ridge(0.3))
    with NUMPY.scope("float64"):
        w = solver.argmin(NUMPY, system, solver.factor(NUMPY, system), y)
    want = np.linalg.solve(A.T @ A + 0.3 * np.eye(5), A.T @ y)
    assert np.all(w[:, 2] == 0)
    assert np.allclose(w[:, :2] / [1, 1e-10], want[:, :2] / [1, 1e-10], rtol=1e-9)


def scaled_design(m=200, n=40, spread=4):
    return rng(0).normal(size=(m, n)) * np.geomspace(1, 10**spread, n)


def steps(solver, A, lam=0.0, operator=Counted):
    y = rng(1).normal(size=(A.shape[0], 1))
    system = System(operator(A), Ridge(lam))
    factor = solver.factor(NUMPY, system)
    Counted.calls = 0
    w = solver.argmin(NUMPY, system, factor, y)
    return Counted.calls, w


@pytest.mark.parametrize(
    "preconditioner",
    [lower.Jacobi(), lower.Given(lambda M, P, x: P * x, np.geomspace(1, 1e-4, 40)[:, None] ** 2)],
    ids=["Jacobi", "Given"],
)
def test_preconditioning_saves_steps_on_badly_scaled_columns(preconditioner):
    A = scaled_design()
    many, _ = steps(lower.LSMR(tol=1e-8, limit=10**4), A)
    few, w = steps(lower.LSMR(tol=1e-8, limit=10**4, preconditioner=preconditioner), A)
    assert few < many / 3
    assert error(w, np.linalg.lstsq(A, rng(1).normal(size=(200, 1)))[0]) <= 1e-6


def test_lengths_of_columns_are_estimated_from_products():
    A = scaled_design()
    (scale,) = lower.Jacobi(probes=64).prepare(System(Products(A)), A[0, 0])
    (exact,) = lower.Jacobi().prepare(System(Dense(A)), A[0, 0])
    assert np.all(np.abs(np.log(scale / exact)) < 1)


def test_lengths_of_columns_are_those_of_each_design():
    """Where every right-hand side has its own; exact where columns are orthogonal, whatever the signs."""
    d = rng(3).uniform(0.5, 2.0, (3, 5))
    A = d[:, None, :] * np.eye(5)
    for M in (Dense(A), ProductsOfEach(A)):
        (scale,) = lower.Jacobi(probes=4).prepare(System(M, Ridge(0.25)), A[0, 0, 0])
        assert scale == pytest.approx(1 / (d.T**2 + 0.25), rel=1e-12)


@pytest.mark.parametrize("complex_", [False, True])
def test_the_diagonal_has_the_lengths_of_the_columns_of_a_weight(complex_):
    A, Omega = (x + 1j * y if complex_ else x for x, y in rng(4).normal(size=(2, 2, 5, 5)))
    (scale,) = lower.Jacobi().prepare(System(Dense(A), Ridge(0.3, Omega)), A[0, 0])
    H = A.conj().T @ A + 0.3 * Omega.conj().T @ Omega
    assert scale[:, 0] == pytest.approx(1 / np.diag(H).real, rel=1e-12)


def test_lengths_of_complex_columns_have_two_parts():
    A = scaled_design()[:, :4]
    for turned in (A, 1j * A, (0.6 + 0.8j) * A):
        (scale,) = lower.Jacobi().prepare(System(Dense(turned)), A[0, 0])
        assert scale[:, 0] == pytest.approx(1 / (A**2).sum(0), rel=1e-12)


def test_a_design_known_by_its_products_is_solved_by_iteration():
    assert lower.choose(Products(np.ones((4, 3))), Ridge(0.1)) == lower.LSMR()
    assert lower.choose(Dense(np.ones((4, 3))), Ridge(0.1)) == lower.QR()


# -- the gradient ------------------------------------------------------------------------------------------------------


def moved(theta, data):
    xp = xv.array_namespace(theta)
    return Products(data["A"] + xp.sum(data["D"] * xp.reshape(theta, (-1, 1, 1)), axis=0))


def moved_dense(theta, data):
    return moved(theta, data).array


def random_problem(seed, bilevel):
    """A design of random condition up to 1e3 that moves with theta; a function of the solver, None for QR."""
    draw = rng(seed)
    m, n, k = 30, int(draw.integers(3, 15)), int(draw.integers(1, 4))
    U, V = (np.linalg.qr(draw.normal(size=(s, n)))[0] for s in (m, n))
    A = U * np.geomspace(1, 10 ** -draw.uniform(0, 3), n) @ V.T
    data = {"A": A, "D": 0.1 * draw.normal(size=(4, m, n))}
    y = A @ draw.normal(size=(n, k)) + 10 ** draw.uniform(-3, 0) * draw.normal(size=(m, k))
    lam = float(draw.choice([0.0, 1e-6, 1e-3, 1e-1]))
    y_U = A @ draw.normal(size=(n, k)) + 0.1 * draw.normal(size=(m, k))

    def problem(solver=None):
        M = moved_dense if solver is None else moved
        if bilevel:
            return xv.bilevel(lower=xv.Level(M, y, lam=lam, solver=solver), upper=xv.Level(M, y_U), data=data)
        return xv.separable(M, y, data=data, lam=lam, solver=solver, compress=False)

    return problem


def assessed(problem, theta):
    prepared = prepare(problem, theta)
    return prepared.assemble(prepared.problem).assessed(prepared.theta)


@pytest.mark.parametrize("bilevel", [False, True])
def test_error_of_the_gradient_is_estimated_and_falls_with_the_tolerance(bilevel):
    """The estimate bounds the error in nearly all cases; the condition bounds by how much it may be too small.

    What a correction leaves has `CORRECTION` times the residual of what it has taken away, and of two errors with
    residuals of one size one may be larger than the other by the condition of the normal equations.
    """
    theta, ratios, largest, errors = np.zeros(4), [], [], {}
    for seed in range(24):
        problem = random_problem(seed, bilevel)
        value, exact = xv.value_and_gradient(problem(), theta)
        squares = np.linalg.svd(problem().data["A"], compute_uv=False) ** 2 + problem().lower.lam
        for tol in (1e-2, 1e-4, 1e-6):
            largest.append(1 + CORRECTION * squares[0] / squares[-1])
            solver = lower.LSMR(tol=tol, limit=5000, preconditioner=(lower.Given(), lower.Jacobi())[seed % 2])
            seen = assessed(problem(solver), theta)
            wrong = np.linalg.norm(seen.gradient[0] - exact)
            ratios.append(wrong / max(np.linalg.norm(seen.change[0]), 1e-13 * np.linalg.norm(exact)))
            errors.setdefault(tol, []).append(wrong / np.linalg.norm(exact))
            if not bilevel:
                assert seen.point.value >= value * (1 - 1e-12)  # no w does better than the exact one
    assert np.mean(np.array(ratios) <= 1) >= 0.9
    assert np.mean(np.array(ratios) <= 10) >= 0.95
    assert np.all(np.array(ratios) <= largest)
    medians = [np.median(errors[tol]) for tol in (1e-2, 1e-4, 1e-6)]
    assert medians[1] < medians[0] / 10
    assert medians[2] < medians[1] / 10


@pytest.mark.parametrize("scaled", [False, True])
def test_the_residual_is_in_the_norm_of_the_preconditioner(scaled):
    """``|M^H (y - M w) - lam w|`` over ``|M^H y|``, of all columns together."""
    A, y = scaled_design(30, 8, 2), rng(1).normal(size=(30, 3))
    roots = 1 / np.linalg.norm(A, axis=0)[:, None] ** scaled
    solver = lower.LSMR(tol=1e-3, preconditioner=lower.Given(lambda M, P, x: P * x, roots**2))
    problem = xv.separable(lambda theta, A: Products(A * theta), y, data=A, lam=0.5, solver=solver, compress=False)
    seen = assessed(problem, np.ones(1))
    y, w = prepare(problem, np.ones(1)).y_unit * y, seen.point.w
    left, whole = (np.linalg.norm(roots * x) for x in (A.T @ (y - A @ w) - 0.5 * w, A.T @ y))
    assert seen.residual == pytest.approx(left / whole, rel=1e-4)


def test_the_residual_of_two_levels_is_the_larger_one():
    """That of w is 0 where the lower target is, and that of the adjoint is not."""
    A = scaled_design(30, 8, 2)
    level = xv.Level(lambda theta, A: Products(A * theta), np.zeros((30, 2)), lam=0.1, solver=lower.LSMR(tol=1e-3))
    upper = xv.Level(lambda theta, A: A * theta, rng(1).normal(size=(30, 2)))
    seen = assessed(xv.bilevel(lower=level, upper=upper, data=A), np.ones(1))
    assert (seen.point.w == 0).all()
    assert 0 < seen.residual < 1


# -- whole solves ------------------------------------------------------------------------------------------------------

T, CENTRES = np.linspace(0, 1, 40), np.linspace(0, 1, 12)
BOX = (np.array([0.03, 0.0]), np.array([0.3, 1.0]))
START = np.array([0.15, 0.2])


def bumps(theta, data):
    xp = xv.array_namespace(theta)
    x = xp.expand_dims(data["t"], axis=1) - xp.expand_dims(data["c"], axis=0)
    return xp.exp(-0.5 * (x / theta[0]) ** 2) + 0.3 * xp.cos(9 * theta[1] * x)


def bumps_by_products(theta, data):
    return Products(bumps(theta, data))


def fitting(solver, bilevel, lam=1e-2):
    M = bumps if solver is None else bumps_by_products
    data, draw = {"t": T, "c": CENTRES}, rng(0)
    y, y_U = (
        bumps(np.array(x), data) @ draw.normal(size=(12, 2)) + 0.3 * draw.normal(size=(40, 2))
        for x in ((0.07, 0.6), (0.09, 0.5))
    )
    if bilevel:
        return xv.bilevel(lower=xv.Level(M, y, lam=lam, solver=solver), upper=xv.Level(M, y_U), data=data)
    return xv.separable(M, y, data=data, lam=lam, solver=solver)


def true_gap(bilevel, theta):
    _, g = xv.value_and_gradient(fitting(None, bilevel), host(theta))
    return g @ host(theta) - np.sum(np.where(g < 0, BOX[1] * g, BOX[0] * g))


ALGORITHMS = {"Frank-Wolfe": xv.algorithms.FrankWolfe(), "paper": xv.algorithms.cr_varpro(), "default": None}


@pytest.mark.parametrize("bilevel", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_certificate_is_honest_from_the_first_step_to_the_last(algorithm, bilevel):
    seen = []
    fit = xv.solve(
        fitting(lower.LSMR(), bilevel), START, over=xv.sets.Box(*BOX), algorithm=ALGORITHMS[algorithm], tol=1e-3,
        max_iter=40, callback=lambda info: seen.append((info.theta, info.gap_A)),
    )  # fmt: skip
    assert fit.status in (Status.CONVERGED, Status.MAX_ITER)
    for theta, gap in (*seen, (fit.theta, fit.gap_A)):
        assert true_gap(bilevel, theta) <= gap * (1 + 1e-9)
    exact = xv.solve(
        fitting(None, bilevel), START, over=xv.sets.Box(*BOX), algorithm=ALGORITHMS[algorithm], tol=1e-3, max_iter=40
    )
    # a method that ends above its best iterate starts again there, and may end lower
    assert fit.value - exact.value <= 3 * max(fit.gap, exact.gap)
    assert 0 < fit.verified.lower_residual < 1
    assert fit.verified.gradient_error > 0
    assert "lower residual" in str(fit)


def test_tolerance_follows_the_gap_and_saves_products():
    data = {"t": T, "c": CENTRES}
    y = bumps(np.array([0.07, 0.6]), data) @ rng(0).normal(size=(12, 2)) + 0.3 * rng(1).normal(size=(40, 2))

    def products(solver):
        problem = xv.separable(lambda th, data: Counted(bumps(th, data)), y, data=data, lam=1e-2, solver=solver)
        Counted.calls = 0
        fit = xv.solve(problem, START, over=xv.sets.Box(*BOX), algorithm=ALGORITHMS["paper"], tol=1e-4)
        assert fit.success
        return Counted.calls

    assert products(lower.LSMR(tol=1e-10)) < products(lower.LSMR(tol=1e-10, loosest=1e-10))


def test_a_tolerance_out_of_reach_has_a_name():
    fit = xv.solve(fitting(lower.LSMR(limit=2), False, lam=1e-6), START, over=xv.sets.Box(*BOX), tol=1e-6)
    assert fit.status is Status.LOWER_LEVEL
    assert not fit.success
    assert "limit" in fit.message
    assert true_gap(False, fit.theta) <= fit.gap_A or fit.verified.lower_residual > 1e-3


def test_results_keep_what_the_lower_level_left(tmp_path):
    fit = xv.solve(fitting(lower.LSMR(), False), START, over=xv.sets.Box(*BOX), tol=1e-2)
    fit.save(tmp_path / "fit.npz")
    assert type(fit).load(tmp_path / "fit.npz").verified == fit.verified
    assert error(fit.w, np.linalg.solve(*normal_equations(fit.theta))) <= 1e-6


def normal_equations(theta):
    problem = fitting(None, False)
    A = bumps(theta, problem.data)
    return A.T @ A + problem.lower.lam * np.eye(12), A.T @ problem.lower.y
