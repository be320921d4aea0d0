"""Ridges of several numbers, for weights, right-hand sides or both: the closed form of each right-hand side."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import sklearn.linear_model

import xvarpro as xv
from xvarpro.driver.prepare import prepare
from xvarpro.errors import ModelError, ProblemError
from xvarpro.objective.gauss_newton import gauss_newton
from xvarpro.objective.mini_batch import some_columns
from xvarpro.sklearn import VarProRegressor

from .support import central_differences, decays, error, rng

T = np.linspace(0.1, 2.0, 12)
Y, OTHER = rng(0).normal(size=(2, 12, 2))
OMEGA = np.eye(3) + 0.2 * rng(1).normal(size=(3, 3))
THETA = np.array([0.7, 3.0])
BOX = xv.sets.Box(0.01, 10.0)
LAMS = {
    "weights": np.array([[0.5], [2.0], [0.0]]),  # the last is an intercept
    "right-hand sides": np.array([[0.0, 3.0]]),
    "both": np.array([[0.5, 0.1], [2.0, 0.0], [0.3, 1.0]]),
}


def design(theta, t):
    xp = xv.array_namespace(theta)
    decays = xp.exp(-t[:, None] * theta)
    return xp.concat([decays, xp.ones_like(decays[:, :1])], axis=1)


def per_column(lam, k=2, n=3):
    return np.broadcast_to(lam, (n, k)).T


def weights_of(A, y, lam, Omega):
    """By normal equations of each right-hand side; real or complex."""
    grams = (A.conj().T @ A + Omega.T @ (own[:, None] * Omega) for own in per_column(lam, y.shape[1], A.shape[1]))
    return np.stack([np.linalg.solve(H, A.conj().T @ b) for H, b in zip(grams, y.T, strict=True)], axis=1)


def value_of(A, w, y, lam, Omega):
    return 0.5 * np.sum(np.abs(A @ w - y) ** 2) + 0.5 * np.sum(lam * np.abs(Omega @ w) ** 2)


def separable_value(theta, lam, Omega, y=Y):
    A = design(theta, T)
    return value_of(A, weights_of(A, y, lam, Omega), y, lam, Omega)


def bilevel_value(theta, lam, Omega):
    """With the same ridge in the upper level, whose target is another."""
    A = design(theta, T)
    return value_of(A, weights_of(A, Y, lam, Omega), OTHER, lam, Omega)


def two_levels(lam, Omega):
    lower, upper = (xv.Level(design, y, lam=lam, Omega=Omega) for y in (Y, OTHER))
    return xv.bilevel(lower=lower, upper=upper, data=T)


def test_ridges_that_theta_chooses_have_their_derivatives(subtests):
    for name, lam in LAMS.items():
        slopes = rng(2).normal(size=(*lam.shape, 2))

        def of_theta(theta, data, slopes=slopes):
            return xv.array_namespace(theta).exp(0.1 * (slopes @ theta))

        for of, problem in (
            (separable_value, xv.separable(design, Y, data=T, lam=of_theta, Omega=OMEGA)),
            (bilevel_value, two_levels(of_theta, OMEGA)),
        ):
            with subtests.test(name, levels=len(problem.levels)):

                def f(theta, of=of, of_theta=of_theta):
                    return of(theta, of_theta(theta, None), OMEGA)

                value, grad = xv.value_and_gradient(problem, THETA)
                assert float(value) == pytest.approx(f(THETA), rel=1e-12)
                assert error(grad, central_differences(f, THETA)) <= 1e-7


def rows_of(theta, y, lam, w):
    """The residuals of all right-hand sides, and the rows of their ridges below."""
    return np.concatenate([design(theta, T) @ w - y, np.sqrt(lam) * (OMEGA @ w)])


def test_gauss_newton_matrices_are_those_of_the_residuals(subtests):
    slopes = rng(2).normal(size=(3, 2, 2))

    def of_theta(theta, _):
        return xv.array_namespace(theta).exp(0.1 * (slopes @ theta))

    def matrix(problem):
        prepared = prepare(problem, THETA)
        return prepared.call(gauss_newton, prepared.theta)[2]

    def tangents(rows):
        return np.stack([(rows(THETA + 1e-6 * e) - rows(THETA - 1e-6 * e)) / 2e-6 for e in np.eye(2)])

    for name, lam in LAMS.items():
        with subtests.test(name, levels=1):  # Kaufman's: w held, off the range of the stacked matrix
            w = weights_of(design(THETA, T), Y, lam, OMEGA)
            J = tangents(lambda theta, lam=lam, w=w: rows_of(theta, Y, lam, w))
            stacks = [np.concatenate([design(THETA, T), np.sqrt(own)[:, None] * OMEGA]) for own in per_column(lam)]
            J = np.stack([x - x @ S @ np.linalg.pinv(S) for x, S in zip(np.moveaxis(J, 2, 0), stacks, strict=True)])
            want = np.einsum("kpm,kqm->pq", J, J)
            np.testing.assert_allclose(matrix(xv.separable(design, Y, data=T, lam=lam, Omega=OMEGA)), want, rtol=1e-7)
    with subtests.test("chosen by theta", levels=2):
        upper = LAMS["both"]
        problem = two_levels(upper, OMEGA)
        problem = replace(problem, lower=replace(problem.lower, lam=of_theta))

        def rows(theta):
            return rows_of(theta, OTHER, upper, weights_of(design(theta, T), Y, of_theta(theta, None), OMEGA))

        J = tangents(rows).reshape(2, -1)
        np.testing.assert_allclose(matrix(problem), J @ J.T, rtol=1e-7)


SOLVERS = [
    xv.lower.QR(),
    xv.lower.SVD(),
    xv.lower.LSMR(),
    xv.lower.LSMR(preconditioner=xv.lower.Jacobi()),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=["QR", "SVD", "LSMR", "Jacobi"])
def test_solvers_agree_of_complex_targets_and_of_designs_of_their_own(solver, subtests):
    scales = np.array([1.0, 1.3])

    def designs(theta, t):
        return xv.array_namespace(theta).stack([design(theta * c, t) for c in scales])

    for name, lam in LAMS.items():
        with subtests.test(name, kind="complex"):
            y = Y + 1j * OTHER
            value, grad = xv.value_and_gradient(
                xv.separable(design, y, data=T, lam=lam, Omega=OMEGA, solver=solver), THETA
            )
            assert float(value) == pytest.approx(separable_value(THETA, lam, OMEGA, y), rel=1e-10)
            of = partial(separable_value, lam=lam, Omega=OMEGA, y=y)
            assert error(grad, central_differences(of, THETA)) <= 1e-7
        with subtests.test(name, kind="designs"):
            value = xv.value_and_gradient(xv.separable(designs, Y, data=T, lam=lam, Omega=OMEGA, solver=solver), THETA)[
                0
            ]
            parts = [
                separable_value(THETA * c, own[:, None], OMEGA, y[:, None])
                for c, own, y in zip(scales, per_column(lam), Y.T, strict=True)
            ]
            assert float(value) == pytest.approx(sum(parts), rel=1e-10)


DIAGONAL = np.array([0.5, 1.0, 2.0, 4.0])
STRUCTURED = {
    "diagonal": lambda theta, _: xv.operators.Diagonal(theta),
    "circulant": lambda theta, _: xv.operators.Circulant(theta),
    "blocks": lambda theta, _: xv.operators.BlockDiagonal([theta[:2, None], theta[2:, None], theta[:, None]]),
    "Kronecker": lambda theta, _: xv.operators.Kronecker(xv.array_namespace(theta).reshape(theta, (2, 2)), size=2),
    "low rank": lambda theta, _: xv.operators.LowRankPlusDiagonal(theta[:, None], theta, theta[:, None] ** 2),
}


def test_structured_designs_keep_to_the_ridge_of_each(subtests):
    for name, M in STRUCTURED.items():
        A = M(DIAGONAL, None).dense()
        m, n = A.shape
        y = rng(3).normal(size=(m, 2))
        for lam in (np.linspace(0.1, 1.0, n)[:, None], np.array([[0.1, 3.0]]), rng(4).uniform(size=(n, 2))):
            for Omega in (None, np.eye(n) + 0.5 * np.eye(n, k=1)):
                with subtests.test(name, lam=lam.shape, Omega=Omega is not None):
                    w = xv.solve_lower(xv.separable(M, y, lam=lam, Omega=Omega), DIAGONAL)[0]
                    want = weights_of(A, y, lam, np.eye(n) if Omega is None else Omega)
                    np.testing.assert_allclose(w, want, rtol=1e-10, atol=1e-12)


SETS = [xv.lower.Nonnegative(), xv.lower.Bounded(-0.3, 0.3), xv.lower.Simplex(), xv.lower.L1(0.1)]


@pytest.mark.parametrize("W", SETS, ids=[type(W).__name__ for W in SETS])
def test_weights_in_a_set_are_those_of_one_right_hand_side_at_a_time(W, subtests):
    for name, lam in LAMS.items():
        with subtests.test(name):
            w = xv.solve_lower(xv.separable(design, Y, data=T, lam=lam, Omega=OMEGA, W=W), THETA)[0]
            for j, own in enumerate(per_column(lam)):
                one = xv.separable(design, Y[:, j], data=T, lam=own[:, None], Omega=OMEGA, W=W)
                np.testing.assert_allclose(w[:, j], xv.solve_lower(one, THETA)[0], rtol=1e-10, atol=1e-12)


def test_a_wide_design_has_an_intercept_without_a_penalty():
    A = np.concatenate([rng(5).normal(size=(3, 6)), np.ones((3, 1))], axis=1)
    lam, y = np.r_[np.full(6, 0.1), 0.0][:, None], rng(6).normal(size=(3, 2))
    problem = xv.separable(lambda theta, A: theta * A, y, data=A, lam=lam)
    w = xv.solve_lower(problem, np.ones(1))[0]
    np.testing.assert_allclose(w, weights_of(A, y, lam, np.eye(7)), rtol=1e-11)
    fit = xv.solve(replace(problem, lower=replace(problem.lower, lam=np.zeros((7, 1)))), np.ones(1), over=BOX)
    assert fit.status is xv.Status.RANK_DEFICIENT


# -- what follows the lower level --------------------------------------------------------------------------------------


def test_errors_and_effective_parameters_are_those_of_each_right_hand_side(subtests):
    A = design(THETA, T)
    for name, lam in LAMS.items():
        with subtests.test(name):
            fit = xv.solve(xv.separable(design, Y, data=T, lam=lam, Omega=OMEGA), THETA, over=xv.sets.Box(THETA, THETA))
            statistics = fit.statistics(absolute_sigma=True)
            inverses = [np.linalg.inv(A.T @ A + OMEGA.T @ (own[:, None] * OMEGA)) for own in per_column(lam)]
            assert statistics.parameters == pytest.approx(sum(np.trace(A @ H @ A.T) for H in inverses))
            want = np.stack([np.sqrt(np.diag(H @ A.T @ A @ H)) for H in inverses], axis=1)
            np.testing.assert_allclose(statistics.w_stderr, want, rtol=1e-9)


def test_errors_of_theta_are_how_it_moves_with_the_target(subtests):
    """Of a target that the ridge does not bias by much: the Jacobian leaves out what vanishes with the residual."""
    for name, lam in LAMS.items():
        with subtests.test(name):
            lam = 1e-6 * lam
            y = design(np.array([0.8, 4.0]), T) @ np.array([[1.0, 2.0], [2.0, -1.0], [0.5, 0.3]])
            fit = xv.solve(xv.separable(design, y, data=T, lam=lam), THETA, over=BOX, tol=1e-10)
            moved = y + 1e-5 * OTHER
            again = xv.solve(xv.separable(design, moved, data=T, lam=lam), fit.theta, over=BOX, tol=1e-10)
            by_y = fit.statistics().influence.theta
            np.testing.assert_allclose(again.theta - fit.theta, 1e-5 * np.tensordot(by_y, OTHER, 2), rtol=2e-3)


def test_a_solution_moves_with_data_as_its_derivative_says():
    y, c = design(np.array([0.8, 4.0]), T) @ np.array([[1.0, 2.0], [2.0, -1.0], [0.5, 0.3]]), np.array([1.0, 0.3])

    def stated(t, lam):
        return xv.separable(
            lambda theta, data: design(theta, data[0]),
            y + 0.01 * OTHER,
            data=(t, lam),
            lam=lambda theta, data: data[1],
        )

    def solved(t, lam):
        return xv.solve(stated(t, lam), THETA, over=BOX, tol=1e-12).theta

    at, ways, h = (T, 0.01 + 0.01 * LAMS["both"]), (rng(7).normal(size=12), rng(8).normal(size=(3, 2))), 1e-5
    found = xv.implicit.gradient(stated(*at), solved(*at), xv.implicit.Cotangent(c), over=BOX).data
    for i, way in enumerate(ways):
        ahead, behind = (solved(*(x + s * h * way if j == i else x for j, x in enumerate(at))) for s in (1, -1))
        assert np.sum(found[i] * way) == pytest.approx((ahead - behind) @ c / (2 * h), rel=1e-5)


def test_targets_are_compressed_where_right_hand_sides_share_a_ridge():
    many, each = rng(8).normal(size=(12, 40)), rng(9).uniform(size=(1, 40))
    for lam, compressed in ((LAMS["weights"], True), (each, False)):
        problem = xv.separable(design, many, data=T, lam=lam)
        assert prepare(problem, THETA).compressed is compressed
        assert xv.value_and_gradient(problem, THETA)[0] == pytest.approx(separable_value(THETA, lam, np.eye(3), many))
        np.testing.assert_allclose(
            xv.solve_lower(problem, THETA)[0], weights_of(design(THETA, T), many, lam, np.eye(3)), rtol=1e-9, atol=1e-12
        )


def test_mini_batches_of_right_hand_sides_have_their_ridges():
    first = xv.separable(design, Y[:, :1], data=T, lam=LAMS["both"][:, :1])
    for lam in (LAMS["both"], lambda theta, _: LAMS["both"] + 0 * theta[0]):
        part = some_columns(xv.separable(design, Y, data=T, lam=lam), np.array([0]), 1.0)
        assert xv.value_and_gradient(part, THETA)[0] == pytest.approx(xv.value_and_gradient(first, THETA)[0])


def test_rows_in_chunks_fold_the_ridge_of_each_weight():
    chunks = xv.RowChunks([(T[i : i + 4], Y[i : i + 4]) for i in (0, 4, 8)])
    lam = LAMS["weights"]
    for problem, of in (
        (xv.separable(design, chunks, lam=lam, Omega=OMEGA), separable_value),
        (replace(two_levels(lam, OMEGA), lower=xv.Level(design, chunks, lam=lam, Omega=OMEGA)), bilevel_value),
    ):
        value, grad = xv.value_and_gradient(problem, THETA)
        assert float(value) == pytest.approx(of(THETA, lam, OMEGA), rel=1e-11)
        assert error(grad, central_differences(partial(of, lam=lam, Omega=OMEGA), THETA)) <= 1e-7


BATCHES = LAMS | {
    "of each problem": xv.Each(rng(10).uniform(size=3)),
    "weights of each problem": rng(11).uniform(size=(3, 3, 1)),
    "right-hand sides of each problem": xv.Each(rng(12).uniform(size=(3, 1, 2))),
    "all of each problem": rng(13).uniform(size=(3, 3, 2)),
}


def test_batches_have_the_objectives_of_their_problems(subtests):
    y = rng(14).normal(size=(3, 12, 2))
    for name, lam in BATCHES.items():
        own = lam.array if isinstance(lam, xv.Each) else lam
        own = list(own) if own.shape[0] == 3 and own.ndim != 2 else [own] * 3
        own = [x if np.ndim(x) else float(x) for x in own]
        for W in (None, xv.lower.Nonnegative()):
            with subtests.test(name, W=W):

                def stated(y, lam, W=W):
                    return xv.separable(design, y, data=T, lam=lam, Omega=OMEGA, W=W)

                fit = xv.solve_many(
                    xv.many.lifted(stated(xv.Each(y), lam)), np.tile(THETA, (3, 1)), over=BOX, max_iter=0
                )
                for i in range(3):
                    one = stated(y[i], own[i])
                    assert fit.value[i] == pytest.approx(xv.value_and_gradient(one, THETA)[0], rel=1e-12)
                    np.testing.assert_allclose(fit.w[i], xv.solve_lower(one, THETA)[0], rtol=1e-9, atol=1e-12)


def test_a_problem_of_a_batch_is_lost_where_no_ridge_makes_its_weights_unique():
    """The ridges of the others are below the rounding of a factorisation, which sees dependent columns."""
    each = np.array([[[1e-28], [1e-28]], [[0.0], [0.0]], [[0.0], [1e-28]]])
    problem = xv.many.lifted(xv.separable(decays, Y[:, 0], data={"t": T}, lam=each))
    fit = xv.solve_many(problem, np.full((3, 2), 2.0), over=BOX, max_iter=0)
    assert np.isfinite(fit.value).tolist() == [True, False, False]


def test_a_batch_of_two_levels_has_both_ridges():
    lower, upper = LAMS["both"], LAMS["weights"]
    levels = [xv.Level(design, y, lam=lam, Omega=OMEGA) for y, lam in ((Y, lower), (OTHER, upper))]
    problem = xv.bilevel(lower=levels[0], upper=levels[1], data=T)
    fit = xv.solve_many(xv.many.lifted(problem), THETA[None, :], over=BOX)
    assert fit.value[0] == pytest.approx(xv.value_and_gradient(problem, fit.theta[0])[0], rel=1e-10)
    assert fit.value[0] == pytest.approx(xv.solve(problem, THETA, over=BOX).value, rel=1e-8)


def test_a_regressor_has_the_ridges_of_scikit_learn():
    X, y, alpha = rng(15).normal(size=(12, 3)), rng(16).normal(size=(12, 2)), np.array([0.1, 5.0])

    def linear(theta, X):
        return theta * X

    fixed = xv.sets.Box(1.0, 1.0)
    found = VarProRegressor(linear, np.ones(1), over=fixed, lam=alpha).fit(X, y)
    want = sklearn.linear_model.Ridge(alpha, fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(found.w_, want.coef_.T, rtol=1e-10)


REFUSED = {
    "one axis": ({"lam": np.ones(3)}, r"two axes, \(n, 1\)"),
    "three axes": ({"lam": np.ones((3, 3, 1))}, "solve_many"),
    "weights": ({"lam": np.ones((2, 1))}, r"shape \(3, 1\) for the weights"),
    "right-hand sides": ({"lam": np.ones((1, 3))}, r"\(1, 2\) for the right-hand sides"),
    "negative": ({"lam": -np.ones((3, 1))}, "lam must be a number >= 0"),
    "gaps": ({"lam": np.full((3, 1), np.nan)}, "lam must be finite"),
    "dual": ({"lam": LAMS["weights"], "solver": xv.lower.DualQR()}, "DualQR needs lam to be one number > 0"),
    "Fourier": ({"lam": LAMS["weights"], "solver": xv.lower.FourierDivision()}, "FourierDivision"),
    "columns": ({"lam": np.ones((1, 2)), "y": xv.ColumnChunks([Y])}, "right-hand sides in chunks share a ridge"),
    "subspace": ({"lam": LAMS["both"], "W": xv.lower.Equality(np.ones((1, 3)), np.ones(1))}, "one ridge for all"),
}


def test_ridges_that_do_not_fit_are_refused(subtests):
    for name, (keywords, message) in REFUSED.items():
        with subtests.test(name), pytest.raises(ProblemError, match=message):
            xv.solve(xv.separable(**{"M": design, "y": Y, "data": T} | keywords), THETA, over=BOX)
    with subtests.test("rows"), pytest.raises(ProblemError, match="one for all right-hand sides"):
        xv.separable(design, xv.RowChunks([(T, Y)]), lam=LAMS["both"])
    with subtests.test("of theta"), pytest.raises(ModelError, match="must return a scalar, or an array"):
        xv.value_and_gradient(xv.separable(design, Y, data=T, lam=lambda theta, _: theta), THETA)
    for name, lam in {"of too few problems": np.ones((2, 1, 1)), "of other weights": np.ones((1, 2, 1))}.items():
        problem = xv.many.lifted(xv.separable(design, Y, data=T, lam=lam))
        with subtests.test(name), pytest.raises(ProblemError, match="lam must"):
            xv.solve_many(problem, np.tile(THETA, (3, 1)), over=BOX)
