"""Weights on a simplex or with an l1 penalty: optimality conditions, gradients, kinks, statistics, many columns."""

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import lower
from xvarpro.errors import ProblemError
from xvarpro.lower.weight_sets import _pivoting

from .support import decays, error, host, rng, send, send_tree

M, N = 30, 8


def slope(w, A, y, lam):
    return A.T @ (A @ w - y) + lam * w


def off(W, w, A, y, lam=0.0):
    """By how much w misses the conditions of optimality, relative to the sizes that enter them."""
    g, size = slope(w, A, y, lam), np.abs(A).T @ np.abs(y) + 1
    if isinstance(W, lower.Simplex):
        assert (w >= 0).all()
        nu = np.stack([g[column > 0, j].mean() for j, column in enumerate(w.T)])
        free = np.where(w > 0, np.abs(g - nu), np.maximum(nu - g, 0))
        return max((free / size).max(), np.abs(w.sum(axis=0) - W.total).max() / W.total)
    if W.nonnegative:
        assert (w >= 0).all()
        wrong = np.where(w > 0, np.abs(g + W.alpha), np.maximum(-g - W.alpha, 0))
    else:
        wrong = np.where(w != 0, np.abs(g + W.alpha * np.sign(w)), np.maximum(np.abs(g) - W.alpha, 0))
    return (wrong / size).max()


def constant(A, y, W, lam=0.0, **more):
    return xv.separable(lambda theta, data: theta[0] * data, y, data=A, lam=lam, W=W, **more)


def drawn(seed, k, cond=30.0, m=M, n=N):
    draw = rng(seed)
    U, V = np.linalg.qr(draw.normal(size=(m, n)))[0], np.linalg.qr(draw.normal(size=(n, n)))[0]
    A = U @ np.diag(np.geomspace(1.0, 1 / cond, n)) @ V
    return A, draw.normal(size=(m, k)) * draw.uniform(0.1, 2.0, size=k)


SETS = (lower.Simplex(), lower.Simplex(3.5), lower.L1(0.05), lower.L1(0.05, nonnegative=True))
ONE = np.ones(1)


def test_optimality(backend):
    """Of one column, of few, and of so many that there is a first guess."""
    for k, cond, lam in ((1, 2.0, 0.0), (5, 100.0, 0.2), (40, 100.0, 0.0)):
        for W in SETS[1:] if k == 40 else SETS[1:2]:
            A, y = drawn(k, k, cond)
            w = host(xv.solve_lower(constant(A, y, W, lam), send_tree(backend, ONE)).w)
            assert off(W, w, A, y, lam) <= 1e-13 * cond


def test_a_first_guess_changes_no_solution(monkeypatch):
    """The same faces, in every column, from the solution of nothing and from a guess."""
    for W in (lower.Nonnegative(), lower.Bounded(-0.3, 0.4), *SETS):
        A, y = drawn(7, 60)
        guessed = xv.solve_lower(constant(A, y, W), ONE).w
        monkeypatch.setattr(_pivoting, "GUESS", 0)
        plain = xv.solve_lower(constant(A, y, W), ONE).w
        monkeypatch.undo()
        assert np.abs(guessed - plain).max() <= 1e-12 * np.abs(plain).max()


def test_a_first_guess_is_near_the_solution(backend):
    """Fifty steps leave few of a thousand entries free that are not, or the other way round."""
    A, y = drawn(8, 200, cond=10.0)
    R = np.linalg.qr(A)[1]
    lengths = np.linalg.norm(R, axis=0)
    z = np.linalg.qr(A)[0].T @ y
    xp = backend.xp
    with backend.scope("float64"):
        R, z = send(backend, R / lengths), send(backend, z)
        u = host(_pivoting.nearly(backend, R, z, lambda v, step: xp.maximum(v, xp.zeros_like(v))))
    w = xv.solve_lower(constant(A, y, lower.Nonnegative()), ONE).w
    assert np.mean((u > 0) != (w > 0)) <= 0.01


def test_a_design_for_each_right_hand_side(backend):
    A, y = drawn(3, 4)
    heavy = rng(4).uniform(0.2, 2.0, size=y.shape)
    for W in SETS[1:3]:
        w = host(xv.solve_lower(constant(A, y, W, weights=heavy), send_tree(backend, ONE)).w)
        for j in range(4):
            root = np.sqrt(heavy[:, j : j + 1])
            assert off(W, w[:, j : j + 1], root * A, root * y[:, j : j + 1]) <= 1e-11


def test_complex_designs_have_real_weights():
    draw = rng(5)
    A, y = (draw.normal(size=s) + 1j * draw.normal(size=s) for s in ((M, N), (M, 3)))
    for W in SETS:
        w = xv.solve_lower(constant(A, y, W), ONE).w
        assert not np.imag(w).any()
        both = [np.concatenate([x.real, x.imag]) for x in (A, y)]
        assert off(W, w.real, *both) <= 1e-12


def test_units_of_target_and_design_do_not_count():
    """Powers of two: the same bits, times the units; a total and a penalty are in those of w and of the value."""
    A, y = drawn(9, 3)
    for W, scaled in ((lower.Simplex(), lower.Simplex(2.0**40)), (lower.L1(0.05), lower.L1(0.05 * 2.0**40))):
        w = xv.solve_lower(constant(A, y, W), ONE).w
        large = xv.solve(constant(A, 2.0**40 * y, scaled), ONE, over=xv.sets.Box(1.0, 1.0)).w
        assert np.array_equal(large, 2.0**40 * w)


def test_mini_batches_of_rows_with_a_penalty_determine_w_themselves():
    """A second level of other rows would have no penalty, and a gradient of something else."""
    A, y = drawn(12, 1, m=60)

    def problem(data):
        return xv.separable(lambda theta, data: theta[0] * data, y[:, 0], data=data, W=lower.L1(0.05))

    for data, rows in (
        (A, None),
        (xv.Samples(A), xv.algorithms.AllRows()),
        (xv.Samples(A), xv.algorithms.SecondBatch()),
    ):
        method = xv.algorithms.StochasticFrankWolfe(batch=20, lower=rows)
        with pytest.raises(ProblemError, match="SameBatch"):
            xv.solve(problem(data), ONE, over=xv.sets.Box(0.5, 2.0), algorithm=method)
    fit = xv.solve(
        problem(xv.Samples(A)),
        ONE,
        over=xv.sets.Box(0.5, 2.0),
        algorithm=xv.algorithms.StochasticFrankWolfe(batch=20),
        max_iter=20,
    )
    assert fit.value <= float(xv.value_and_gradient(problem(A), ONE)[0])


def test_kinks_are_counted():
    """An entry whose multiplier is 0 while it is at 0: two of a simplex, one of a penalty."""
    A, y = np.eye(3), np.array([0.75, 0.5, 0.125])
    problem = constant(A, y, lower.Simplex())
    fit = xv.solve(problem, ONE, over=xv.sets.Box(1.0, 1.0))
    assert np.allclose(fit.w, [0.625, 0.375, 0.0])
    assert fit.verified.kinks == 1
    for W, want in ((lower.L1(0.5), 1), (lower.L1(0.5, nonnegative=True), 1), (lower.L1(0.4), 0)):
        assert xv.solve(constant(A, y, W), ONE, over=xv.sets.Box(1.0, 1.0)).verified.kinks == want


def test_loss_of_rank_is_reported_and_a_ridge_helps():
    A, y = drawn(11, 3)
    A[:, 1] = A[:, 0]
    for W in SETS:
        dependent = xv.solve(constant(A, y, W), ONE, over=xv.sets.Box(0.5, 2.0), max_iter=2)
        assert dependent.status == xv.Status.RANK_DEFICIENT
        ridged = xv.solve_lower(constant(A, y, W, lam=0.1), ONE)
        assert off(W, host(ridged.w), A, y, 0.1) <= 1e-12


T = np.linspace(0.0, 2.0, 40)

TRACES = np.exp(-np.outer(T, [0.5, 2.0, 6.0])) @ np.array([[0.7, 0.3], [0.3, 0.0], [0.0, 0.7]])
NOISY = TRACES + 0.01 * rng(0).normal(size=TRACES.shape)
START = np.array([0.4, 2.5, 7.0])


def test_standard_errors_on_a_face():
    """Of weights that sum to one: those of the fit whose last weight is one minus the others."""
    y = NOISY[:, 0]
    fit = xv.solve(xv.separable(decays, y, data=T, W=lower.Simplex()), START[:2], over=xv.sets.Box(0.0, 20.0))

    def differences(theta, t):
        E = decays(theta, t)
        return E[:, :1] - E[:, 1:]

    free = xv.separable(
        differences, lambda theta, t: xv.array_namespace(theta).asarray(y) - decays(theta, t)[:, 1], data=T
    )
    other = xv.solve(free, START[:2], over=xv.sets.Box(0.0, 20.0))
    s, want = fit.statistics(), other.statistics()
    assert error(fit.theta, other.theta) <= 1e-6
    assert error(s.theta_stderr, want.theta_stderr) <= 1e-4
    assert error(s.w_stderr, np.repeat(want.w_stderr, 2)) <= 1e-4
    assert s.dof == pytest.approx(want.dof)


def test_derivatives_of_solutions_are_those_of_whole_solves():
    """On the face that the solution keeps when the data move a little."""
    move = rng(1).normal(size=NOISY.shape)

    for W in SETS:

        def problem(y, W=W):
            target = {"t": T, "y": y}
            return xv.separable(
                lambda theta, data: decays(theta, data["t"]), lambda _, data: data["y"], data=target, W=W
            )

        def found(y, start, problem=problem):
            fit = xv.solve(problem(y), start, over=xv.sets.Box(0.0, 20.0), tol=1e-10, max_iter=500)
            return np.concatenate([fit.theta, fit.w.ravel()])

        here, step = found(NOISY, START[:2]), 1e-5
        bar = rng(2).normal(size=here.shape)
        cotangent = xv.implicit.Cotangent(bar[:2], bar[2:].reshape(2, 2), np.zeros(()))
        got = xv.implicit.gradient(problem(NOISY), here[:2], cotangent, over=xv.sets.Box(0.0, 20.0)).data["y"]
        ahead, behind = (found(NOISY + s * move, here[:2]) for s in (step, -step))
        want = bar @ (ahead - behind) / (2 * step)
        assert np.sum(got * move) == pytest.approx(want, rel=1e-5)
