"""Weights in a set beyond the suite: complex subspaces, bounds against scipy, rounding, kinks, gradients."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

import xvarpro as xv
from xvarpro import lower
from xvarpro.core import trees
from xvarpro.core.namespace import dtype_name
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import NO_RIDGE, Ridge, System
from xvarpro.lower.weight_sets import _pivoting
from xvarpro.lower.weight_sets._pivoting import Box, Inverter, Solution, _decided, _State
from xvarpro.lower.weight_sets.blocks import by_blocks
from xvarpro.lower.weight_sets.interface import WeightSet, taken
from xvarpro.operators import Dense, Operator

from .support import Solved, error, host, rng, send, send_tree, vector

SETS = [
    x for x in (getattr(lower, name) for name in lower.__all__)
    if inspect.isclass(x) and issubclass(x, WeightSet) and not inspect.isabstract(x)
]  # fmt: skip
EXAMPLES = [(W, n) for cls in SETS for n in (1, 4) for W in cls.examples(n)]
BOXES = (lower.Nonnegative, lower.Bounded)
NUMPY = xv.backends.get("numpy")
EPS = np.finfo(np.float64).eps
M, N, K = 9, 4, 3


def named(example):
    W, n = example
    return f"{type(W).__name__}-{n}-{'x'.join(map(str, np.shape(getattr(W, 'w0', getattr(W, 'lower', 0)))))}"


def within_set(backend, W, A, lam=0.0, Omega=None, dtype="float64", inner=None):
    return Solved(backend, W.resolved().solver(inner), A, lam, Omega, dtype)


def level(seed=0, lam=0.0, weighted=False, shape=(M, N), k=K):
    draw = rng(seed)
    A, y, c = (draw.normal(size=s) for s in (shape, (shape[0], k), (shape[1], k)))
    Omega = np.eye(shape[1]) + 0.2 * draw.normal(size=(shape[1], shape[1])) if weighted else None
    ridge = np.eye(shape[1]) if Omega is None else Omega
    return A, y, c, Omega, A.T @ A + lam * ridge.T @ ridge


def bounds(W, n=N, k=K):
    lo, hi = (0.0, np.inf) if isinstance(W, lower.Nonnegative) else (W.lower, W.upper)
    columns = (np.asarray(x)[:, None] if np.ndim(x) == 1 else np.asarray(x) for x in (lo, hi))
    return tuple(np.broadcast_to(x, (n, k)).astype(float) for x in columns)


RIDGES = [(0.0, False), (0.3, False), (0.3, True)]


# -- affine subspaces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("w0", [None, np.array([100.0, -3.0, 5.0, 1.0]), np.arange(12.0).reshape(4, 3)])
def test_affine_needs_no_basis_in_particular(w0, backend):
    """Neither orthonormal directions nor a particular point: any that span the same subspace give the same w."""
    A, y, *_ = level()
    B, mix = rng(3).normal(size=(N, 2)), np.array([[1e6, 1.0], [0.0, 1e-3]])
    other = w0 if w0 is None else w0 + (B @ np.array([2.0, -1.0])).reshape(N, *[1] * (w0.ndim - 1))
    first, second = (within_set(backend, lower.Affine(*args), A, 0.1).argmin(y) for args in ((w0, B), (other, B @ mix)))
    assert error(second, first) <= 1e-12


def test_complex_subspaces(backend):
    """Equations and directions of complex numbers: the same formulas with conjugates."""
    draw = rng(6)

    def random(*shape):
        return draw.normal(size=shape) + 1j * draw.normal(size=shape)

    A, y, c, C, d = (random(*s) for s in ((M, N), (M, K), (N, K), (2, N), (2, K)))
    Omega = np.eye(N) + 0.2 * random(N, N)
    H = A.conj().T @ A + 0.3 * Omega.conj().T @ Omega
    kkt = np.block([[H, C.conj().T], [C, np.zeros((2, 2))]])
    want = np.linalg.solve(kkt, np.vstack([A.conj().T @ y, d]))[:N]
    v = np.linalg.solve(kkt, np.vstack([c, 0 * d]))[:N]
    B = np.linalg.svd(C)[2][2:].conj().T @ random(N - 2, N - 2)
    for W in (lower.Equality(C, d), lower.Affine(np.linalg.pinv(C) @ d + B @ random(N - 2, K), B)):
        within = within_set(backend, W, A, 0.3, Omega)
        w = host(within.argmin(y))
        np.testing.assert_allclose(w, want, rtol=0, atol=1e-12)
        q, ((s, u),), *_ = within.adjoint(c, y, w, A @ w - y)
        for got, expected in ((q, A @ v), (s, A @ want - y), (u, v)):
            np.testing.assert_allclose(host(got), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(C @ W.resolved().w0, d, rtol=0, atol=1e-12)


def test_equations_far_apart_keep_the_digits_of_small_entries(backend):
    """``y - c (c^T y) / c^T c``, of which the first entry is ``-1e-12 * 5``."""
    found = within_set(backend, lower.Equality(np.array([[1.0, 1e-12]]), 0.0), np.eye(2))
    w = host(found.argmin(np.array([[3.0], [5.0]])))
    np.testing.assert_allclose(w[:, 0], [-5e-12, 5.0], rtol=1e-9)


def test_a_subspace_takes_for_coefficients_what_its_design_makes_large():
    """Weights that sum to one, of columns with lengths far apart."""
    import mpmath

    c = np.array([1e8, 1.0, 1e-8])
    A, y = rng(0).normal(size=(9, 3)) * c, rng(1).normal(size=9)
    with mpmath.workdps(60):
        M, kkt = mpmath.matrix(A.tolist()), mpmath.ones(4, 4)
        kkt[:3, :3], kkt[3, 3] = M.T * M, 0
        right = mpmath.matrix([*(M.T * mpmath.matrix(y.tolist())), 1])
        want = np.array([float(x) for x in mpmath.lu_solve(kkt, right)[:3]])
    problem = xv.separable(lambda theta, data: theta * data, y, data=A, W=lower.Equality(np.ones((1, 3)), 1.0))
    fit = xv.solve(problem, np.ones(1), over=xv.sets.Box(1.0, 1.0))
    np.testing.assert_allclose(fit.w, want, rtol=1e-10)


def test_equations_in_other_units_than_the_design_lose_no_digits():
    """The differences that say what w is are 1e-21 of the coefficients: it was off by 7e-4 of itself."""
    import mpmath

    unit = np.array([1e3, 1e-10, 1e3])
    A, y = rng(0).normal(size=(9, 3)) * unit, rng(1).normal(size=9)
    C = np.array([[1.8e-6, 1.2e15, 2.3e-6], [-1.9e-6, -1.6e15, -2.7e-6]]) * unit * rng(2).uniform(1, 1.1, (2, 3))
    d = C @ (np.array([0.3, 2.0, -0.7]) / unit)
    with mpmath.workdps(80):
        M, E = mpmath.matrix(A.tolist()), mpmath.matrix(C.tolist())
        kkt = mpmath.zeros(5)
        kkt[:3, :3], kkt[:3, 3:], kkt[3:, :3] = M.T * M, E.T, E
        want = mpmath.lu_solve(kkt, mpmath.matrix([*(M.T * mpmath.matrix(y.tolist())), *d.tolist()]))[:3]
    problem = xv.separable(lambda theta, data: theta * data, y, data=A, W=lower.Equality(C, d))
    fit = xv.solve(problem, np.ones(1), over=xv.sets.Box(1.0, 1.0))
    np.testing.assert_allclose(fit.w, np.array([float(x) for x in want]), rtol=1e-12)


def test_equations_that_follow_from_each_other_in_the_units_of_a_design_alone_are_kept():
    """The third row is the sum of the others but for some 1e-15."""
    C = [
        [0.8804039963296545, -0.057648965228824, 0.09483944419305079, -0.5830781780796545, 0.39223580767631444],
        [-0.33360550761451974, 0.5285668842716801, 0.24495781238106004, 0.254111696843736, 0.09919162655713105],
        [0.5467984887151325, 0.47091791904285973, 0.33979725657411997, -0.3289664812359156, 0.49142743423345275],
    ]
    lengths = np.array([7e-6, 548.0, 3.0, 1504.0, 8e-5])
    assert lower.Equality(np.array(C), 0.0).resolved(lengths).B.shape == (5, 2)


@pytest.mark.parametrize("turn", [1.0, 1j, np.exp(1j)])
def test_equations_that_nearly_follow_from_each_other_are_solved_to_the_last_digit(turn):
    import mpmath

    C, d = np.array([[0.3, 0.7], [0.9, 2.1 * (1 + 2**-40)]]) * turn, np.array([1 / 3, 1 / 7])
    with mpmath.workdps(60):
        want = np.array(mpmath.lu_solve(mpmath.matrix(C.tolist()), mpmath.matrix(d.tolist())), dtype=complex)
    np.testing.assert_allclose(lower.Equality(C, d).resolved().w0[:, 0], want, rtol=4 * EPS)


@pytest.mark.parametrize(("where", "n"), [(np.array([False, True, False, True]), None), (np.array([3, 1]), 4)])
@pytest.mark.parametrize("values", [2.0, np.array([1.0, -1.0]), np.arange(6.0).reshape(2, 3)], ids=["0", "1", "2"])
def test_entries_that_are_fixed_or_shared_are_so_to_the_last_bit(values, where, n, backend):
    A, y, *_ = level()
    w = host(within_set(backend, lower.Fixed(where, values, n), A).argmin(y))
    held = np.broadcast_to(values[:, None] if np.ndim(values) == 1 else values, (2, K))
    assert np.array_equal(w[np.flatnonzero(where) if n is None else where], held)
    w = host(within_set(backend, lower.Shared(np.array([7, 2, 7, 2])), A).argmin(y))
    assert np.array_equal(w[:2], w[2:])


def test_refinement_in_a_subspace_gains_the_digits_that_conditioning_took(backend):
    """Where M B and the target are exact, as for entries that are fixed at 0."""
    import mpmath

    A = rng(1).normal(size=(20, 11)) @ np.diag(np.logspace(0, -6, 11)) @ np.triu(rng(2).normal(size=(11, 11)))
    y = (A @ np.ones(11) + 1e-3 * rng(0).normal(size=20))[:, None]
    with mpmath.workdps(60):
        rest, right = mpmath.matrix(A[:, 1:].tolist()), mpmath.matrix(y.tolist())
        solution = mpmath.lu_solve(rest.T * rest, rest.T * right)
        want = np.array([float(x) for x in solution])
    within = within_set(backend, lower.Fixed(np.arange(11) == 0, 0.0), A)
    plain, (w, r) = within.argmin(y), within.refined(y)
    assert error(host(w)[1:, 0], want) <= 1e-14 < error(host(plain)[1:, 0], want)
    assert error(r, A[:, 1:] @ want[:, None] - y) <= 1e-9


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_nnls_of_hundreds_of_random_problems():
    """Same w and objective as scipy's, over shapes, signs and numbers of right-hand sides."""
    solved = 0
    for seed in range(300):
        draw = rng(seed)
        n = int(draw.integers(1, 12))
        m, k = n + int(draw.integers(0, 20)), 1 if seed % 10 else 40
        A, y = draw.normal(size=(m, n)), draw.normal(size=(m, k))
        A = np.abs(A) if seed % 3 == 0 else A
        w = within_set(NUMPY, lower.Nonnegative(), A).argmin(y)
        want = np.stack([nnls(A, y[:, j])[0] for j in range(k)], axis=1)
        assert np.abs(w - want).max() <= 1e-10 * max(1.0, np.abs(want).max())
        got, best = (np.sum((A @ x - y) ** 2) for x in (w, want))
        assert abs(got - best) <= 1e-10 * best + 1e-20
        solved += k
    assert solved == 1470


def certificate(A, y, w, lo, hi, lam=0.0, Omega=None):
    """Largest violation of the optimality conditions, relative to rounding of the gradient's terms."""
    ridge = np.eye(A.shape[1]) if Omega is None else Omega
    g = A.T @ (A @ w - y) + lam * ridge.T @ ridge @ w
    wrong = np.where(w <= lo, np.maximum(-g, 0), np.where(w >= hi, np.maximum(g, 0), np.abs(g)))
    feasible = ((w >= lo) & (w <= hi)).all()
    return np.inf if not feasible else wrong.max() / (np.linalg.norm(A) * (np.linalg.norm(y) + np.linalg.norm(w)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("lam", "weighted"), RIDGES)
@pytest.mark.parametrize("W", [W for W, n in EXAMPLES if isinstance(W, BOXES) and n == N], ids=lambda W: named((W, N)))
def test_optimality_conditions(W, lam, weighted, dtype, backend):
    A, y, _, Omega, _ = level(4, lam, weighted)
    got = within_set(backend, W, A, lam, Omega, dtype).argmin(y)
    assert dtype_name(got) == dtype
    lo, hi = (x.astype(dtype).astype(float) for x in bounds(W))
    assert certificate(A, y, host(got).astype(float), lo, hi, lam, Omega) <= 20 * np.finfo(dtype).eps


@pytest.mark.parametrize("cond", [1e3, 1e6])
@pytest.mark.parametrize("k", [1, 40])
@pytest.mark.parametrize("noise", [0.0, 1e-2])
def test_ill_conditioned_problems_end_with_a_certificate(cond, k, noise, backend):
    """Without noise every multiplier is 0, and rounding decides on which side an entry is taken to be."""
    draw = rng(8)
    U, V = np.linalg.qr(draw.normal(size=(20, 5)))[0], np.linalg.qr(draw.normal(size=(5, 5)))[0]
    A = U * np.logspace(0, -np.log10(cond), 5) @ V.T
    y = A @ np.maximum(draw.normal(size=(5, k)), 0) + noise * draw.normal(size=(20, k))
    w = host(within_set(backend, lower.Nonnegative(), A).argmin(y))
    assert certificate(A, y, w, 0.0, np.inf) <= 1e-14


def test_more_right_hand_sides_than_are_inverted_at_a_time(monkeypatch):
    """Twenty: each part has one singular value decomposition, and the first guess for all has one."""
    made = []

    class Counting(type(NUMPY)):
        def svd(self, A):
            made.append(A.shape)
            return super().svd(A)

    monkeypatch.setattr(_pivoting, "BLOCK", 2000)
    A, y, *_ = level(2, shape=(13, 10), k=45)
    w = within_set(Counting(), lower.Nonnegative(), A).argmin(y)
    assert made == [(10, 10)] * 4
    assert certificate(A, y, w, 0.0, np.inf) <= 1e-14


def test_equal_bounds_fix_an_entry_and_infinite_ones_are_none(backend):
    A, y, *_ = level()
    lo, hi = np.full(N, -np.inf), np.full(N, np.inf)
    lo[1] = hi[1] = 0.7
    got = within_set(backend, lower.Bounded(lo, hi), A).argmin(y)
    assert error(got, within_set(backend, lower.Fixed(np.arange(N) == 1, 0.7), A).argmin(y)) <= 1e-12
    assert error(within_set(backend, lower.Bounded(-np.inf, np.inf), A).argmin(y), np.linalg.lstsq(A, y)[0]) <= 1e-12


def test_units_of_the_columns_do_not_count(backend):
    A, y, *_ = level(k=40)
    units = np.array([1e-9, 1.0, 1e7, 1e3])
    w, scaled = (host(within_set(backend, lower.Nonnegative(), a).argmin(y)) for a in (A, A * units))
    assert error(units[:, None] * scaled, w) <= 1e-12


def test_targets_of_other_sizes_are_solved_each_by_itself(backend):
    A, y, *_ = level(k=40)
    sizes = 2.0 ** np.resize([0, 60, -60, 20], 40)
    for sign, W in ((1, lower.Nonnegative()), (-1, lower.Bounded(-np.inf, 0.0))):
        w, scaled = (sign * host(within_set(backend, W, A).argmin(sign * x)) for x in (y, y * sizes))
        np.testing.assert_allclose(scaled / sizes, w, rtol=0, atol=1e-13)


@pytest.mark.parametrize("k", [1, 20])
@pytest.mark.parametrize("kind", ["equal", "zero"])
def test_dependent_columns_are_seen_and_a_ridge_helps(kind, k, backend):
    A, y, *_ = level(k=k)
    A[:, 3] = A[:, 1] if kind == "equal" else 0.0
    within = within_set(backend, lower.Nonnegative(), A)
    assert within.said("deficient")
    assert within.argmin(y).shape == (N, k)
    ridged = within_set(backend, lower.Nonnegative(), A, 1e-3)
    assert not ridged.said("deficient")
    assert certificate(A, y, host(ridged.argmin(y)), 0.0, np.inf, 1e-3) <= 1e-14


@pytest.mark.parametrize("k", [1, 20])
@pytest.mark.parametrize("W", [lower.Nonnegative(), lower.Bounded(-0.1, 0.2)], ids=repr)
def test_a_bad_target_shows_in_its_column_alone(W, k, backend):
    A, y, *_ = level(k=k)
    want = host(within_set(backend, W, A).argmin(y))
    y[2, 0] = np.nan
    within = within_set(backend, W, A)
    w = host(within.argmin(y))
    assert np.isnan(w[:, 0]).all()
    assert np.abs(w[:, 1:] - want[:, 1:]).max(initial=0.0) <= 1e-13


def test_a_limit_of_steps_shows_as_nan(backend, monkeypatch):
    """In the columns that are not solved, and in them alone."""
    A, y, *_ = level(1, k=N)  # of more, a first guess solves some
    y[:, 1::2] = A @ np.abs(rng(2).normal(size=(N, N // 2)))
    want = host(within_set(backend, lower.Nonnegative(), A).argmin(y))
    within = within_set(backend, lower.Nonnegative(), A)
    monkeypatch.setattr(_pivoting, "EXCHANGES", -10 * N)
    w = host(within.argmin(y))
    solved = (np.linalg.lstsq(A, y)[0] >= 0).all(axis=0)
    assert np.array_equal(np.isnan(w), np.broadcast_to(~solved, w.shape))
    assert solved[1::2].all()
    assert not solved.all()
    assert np.allclose(w[:, solved], want[:, solved])
    monkeypatch.setattr(_pivoting, "EXCHANGES", 1 - 10 * N)
    after_one = np.isnan(host(within.argmin(y))).all(axis=0)
    assert 0 < after_one.sum() < (~solved).sum()


def test_complex_designs_with_real_weights(backend):
    """A real w fits real and imaginary parts as rows."""
    A, y, c, *_ = level()
    Ai, yi, ci, *_ = level(1)
    w = within_set(backend, lower.Nonnegative(), A + 1j * Ai).argmin(y + 1j * yi)
    real = within_set(backend, lower.Nonnegative(), np.vstack([A, Ai]))
    want = host(real.argmin(np.vstack([y, yi])))
    assert dtype_name(w) == "complex128"
    assert error(host(w).real, want) <= 1e-12
    assert not host(w).imag.any()
    r = (A + 1j * Ai) @ want - y - 1j * yi
    q, *_ = within_set(backend, lower.Nonnegative(), A + 1j * Ai).adjoint(c + 1j * ci, y + 1j * yi, w, r)
    both, *_ = real.adjoint(c, np.vstack([y, yi]), want, np.vstack([r.real, r.imag]))
    assert error(np.vstack([host(q).real, host(q).imag]), both) <= 1e-12


def test_kinks_are_weights_at_a_bound_without_a_multiplier(backend):
    A, y, *_ = level(3, k=20)
    for sizes in (np.ones(20), 2.0 ** np.resize([0, 60, -60, 20], 20)):
        assert int(within_set(backend, lower.Nonnegative(), A).diagnose(y * sizes).kinks) == 0
    w = np.maximum(rng(0).normal(size=(N, 20)), 0)
    for unit in (1e-9, 1.0, 1e9):
        assert int(within_set(backend, lower.Nonnegative(), A).diagnose(A @ w * unit).kinks) == (w == 0).sum()
        mirrored = within_set(backend, lower.Bounded(-np.inf, 0.0), np.abs(A))
        assert int(mirrored.diagnose(-np.abs(A) @ w * unit).kinks) == (w == 0).sum()


def test_with_a_design_per_column_kinks_are_those_of_each_alone(backend):
    """And weights: real and complex, without a ridge."""
    draw = rng(0)
    for imaginary in (0.0, 1j):
        A = draw.normal(size=(3, M, N)) + imaginary * draw.normal(size=(3, M, N))
        y = draw.normal(size=(M, 3)) + imaginary * draw.normal(size=(M, 3))
        w = host(within_set(backend, lower.Nonnegative(), A).argmin(y))
        for j in range(3):
            alone = within_set(backend, lower.Nonnegative(), A[j]).argmin(y[:, j : j + 1])
            np.testing.assert_allclose(w[:, j : j + 1], host(alone), rtol=1e-11, atol=1e-13)
    exact = np.stack([A[j].real @ np.maximum(w[:, j].real, 0) for j in range(3)], axis=1)
    assert int(within_set(backend, lower.Nonnegative(), A.real).diagnose(exact).kinks) == (w.real <= 0).sum()


# -- gradients ---------------------------------------------------------------------------------------------------------


T = np.linspace(0.0, 2.0, 15)
TARGET = np.stack([np.exp(-T) - 0.3 * np.exp(-3 * T), np.exp(-2 * T), 0.2 * T], axis=1) + 0.1 * rng(2).normal(
    size=(15, 3)
)
OTHER = TARGET + 0.3 * rng(4).normal(size=TARGET.shape)


def basis(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * xp.exp(theta))


def other(theta, data):
    return basis(theta, data) * (1 + xv.array_namespace(theta).expand_dims(data["t"], axis=1))


THETA = np.array([-0.5, 0.4, 1.3])
WITHIN = {
    "affine": lower.Affine(np.array([1.0, 0.0, 0.5]), np.array([[1.0, 0.2], [-1.0, 0.0], [0.3, 1.0]])),
    "equality": lower.Equality(np.ones((1, 3)), np.array([[1.0, 0.8, 0.2]])),
    "fixed": lower.Fixed(np.array([False, True, False]), 0.3),
    "shared": lower.Shared(np.array([0, 1, 0])),
    "nonnegative": lower.Nonnegative(),
    "bounded": lower.Bounded(-0.2, np.array([0.5, 0.8, np.inf])),
    "simplex": lower.Simplex(0.9),
    "l1": lower.L1(0.1),
    "nonnegative l1": lower.L1(0.1, nonnegative=True),
}


def problem(kind, W, lam):
    data, y, z = {"t": T}, TARGET, OTHER
    if kind == "separable":
        return xv.separable(basis, y, data=data, lam=lam, W=W)
    return xv.bilevel(lower=xv.Level(basis, y, lam, W=W), upper=xv.Level(other, z), data=data)


def test_separable_gradient_is_continuous_across_a_kink_and_a_bilevel_one_is_not():
    """A weight that reaches its bound as theta moves: Danskin's gradient does not jump, the adjoint's does."""

    def design(theta, data):
        return data["A"] + theta * data["D"]

    A, D = np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]])
    y, z = np.array([1.0, 0.0, 1.0]), np.array([1.0, 2.0, 0.0])
    # w_2 is free below 0 and at its bound above: at theta = 0 both w_2 and its multiplier are 0
    data = {"A": A, "D": D}
    single = xv.separable(design, y, data=data, W=lower.Nonnegative())
    double = xv.bilevel(lower=xv.Level(design, y, W=lower.Nonnegative()), upper=xv.Level(design, z), data=data)
    jumps = []
    for stated in (single, double):
        left, right = (xv.value_and_gradient(stated, np.array([t]))[1][0] for t in (-1e-7, 1e-7))
        jumps.append(abs(left - right))
    assert jumps[0] <= 1e-5
    assert jumps[1] >= 1e-2
    fit = xv.solve(double, np.zeros(1), over=xv.sets.Box(0.0, 0.0))
    assert fit.verified.kinks == 1
    assert "multiplier of zero" in str(fit)


# -- solves ------------------------------------------------------------------------------------------------------------


def test_solve_with_nonnegative_weights(backend):
    """The result's w satisfies the optimality conditions at the result's theta, and the fit is the best there is."""
    stated = problem("separable", lower.Nonnegative(), 0.0)
    fit = xv.solve(stated, send_tree(backend, THETA), over=xv.sets.Box(-1.0, 2.0), tol=1e-7, max_iter=300)
    assert fit.success
    A = host(basis(fit.theta, {"t": send(backend, T)}))
    w = host(fit.w)
    assert certificate(A, TARGET, w, 0.0, np.inf) <= 1e-14
    assert abs(0.5 * np.sum((A @ w - TARGET) ** 2) - fit.value) <= 1e-12 * fit.value
    assert (w == 0).any()


def test_solve_ends_on_a_kink_and_says_so():
    """``w = max(theta, 0)``, ``f = 1/2 (w + 1)^2 + 1/2 (theta - 1/2)^2``: slopes of -1/2 and 1/2 meet at 0."""

    def one(theta, data):
        return xv.array_namespace(theta).asarray([[1.0], [0.0]], dtype=theta.dtype)

    def given(theta, data):
        return xv.array_namespace(theta).concat([theta, 0 * theta + 1])

    def goal(theta, data):
        return xv.array_namespace(theta).concat([0 * theta - 1, 0.5 - theta])

    problem = xv.bilevel(lower=xv.Level(one, given, W=lower.Nonnegative()), upper=xv.Level(one, goal))
    method = xv.algorithms.FrankWolfe(xv.algorithms.steps.Armijo(warm=True))
    fit = xv.solve(problem, np.array([0.7]), over=xv.sets.Box(-1.0, 1.0), algorithm=method)
    assert fit.status is xv.Status.KINK
    assert not fit.success
    assert fit.verified.kinks == 1
    assert abs(float(fit.theta[0])) <= 1e-14


@pytest.mark.parametrize("W", ["affine", "nonnegative", "bounded", "shared"])
def test_right_hand_sides_are_compressed_only_where_that_is_exact(W):
    """In a linear subspace."""
    y = rng(0).normal(size=(15, 40))
    stated, plain = (xv.separable(basis, y, data={"t": T}, W=WITHIN[W], compress=c) for c in (True, False))
    (f, g), (f_plain, g_plain) = (xv.value_and_gradient(p, THETA) for p in (stated, plain))
    assert abs(f - f_plain) <= 1e-12 * f
    assert error(g, g_plain) <= 1e-12
    fit = xv.solve(stated, THETA, over=xv.sets.Box(-1.0, 2.0), max_iter=0)
    assert fit.provenance["compressed"] == (W == "shared")
    assert [lower.Affine(w0, np.eye(3)[:, 1:]).linear for w0 in (None, np.zeros(3), np.ones(3))] == [True, True, False]
    assert W != "shared" or np.abs(fit.w[0] - fit.w[2]).max() <= 1e-15


def test_some_columns_have_their_part_of_the_set():
    """`scale` times some columns are fitted by `scale` times their weights."""
    A, many = np.exp(-np.outer(T, [1.0, 2.0, 4.0])), np.arange(9.0).reshape(3, 3)
    for W in (*WITHIN.values(), lower.Bounded(-many, many)):
        whole = within_set(NUMPY, W, A).argmin(TARGET)
        some = within_set(NUMPY, W.resolved().part(np.array([2, 0]), 3.0), A).argmin(3.0 * TARGET[:, [2, 0]])
        assert error(some, 3.0 * whole[:, [2, 0]]) <= 1e-12


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("W", "message"),
    [
        (lower.Shared(np.array([0, 0])), "made for length 3, the number of columns of M(theta); got 2"),
        (lower.Bounded(np.zeros((3, 2)), np.inf), "one for each of the 3 right-hand sides of y; got 2"),
    ],
)
def test_sets_that_do_not_fit_the_model_are_refused(W, message):
    with pytest.raises(xv.errors.ProblemError) as caught:
        xv.value_and_gradient(problem("separable", W, 0.0), THETA)
    assert message in str(caught.value)


def test_one_bound_for_all_columns_meets_one_for_each():
    one, many = np.zeros((3, 1)), np.ones((3, 2))
    assert lower.Bounded(one, many).columns == lower.Bounded(-many, one).columns == 2
    assert lower.Bounded(one, 1.0).columns == 1


def test_a_design_per_column_is_refused_in_a_subspace():
    class Many(Operator):
        shape, columns = (M, N), K
        matvec = rmatvec = outer = dense = None

    solver = lower.Affine(None, np.eye(N)).solver(None)
    with pytest.raises(xv.errors.ProblemError, match="one design and one ridge for all right-hand sides"):
        solver.factor(NUMPY, System(Many()))


def test_wide_designs_need_a_ridge_or_few_unknowns():
    def wide(theta, data):
        return theta * data

    data, y = rng(0).normal(size=(2, 4)), np.ones(2)
    with pytest.raises(xv.errors.ProblemError, match="without a ridge"):
        xv.value_and_gradient(xv.separable(wide, y, data=data, W=lower.Nonnegative()), np.ones(1))
    shared = xv.separable(wide, y, data=data, W=lower.Shared(np.array([0, 0, 1, 1])))
    assert xv.value_and_gradient(shared, np.ones(1))[0] < 1e-20


@pytest.mark.parametrize(("W", "n"), EXAMPLES, ids=[named(e) for e in EXAMPLES])
def test_nothing_that_was_given_is_written_to(W, n):
    arrays = trees.partition(W)[0]
    before = [np.array(x) for x in arrays]
    A, y, c, *_ = level(shape=(M, n))
    within = within_set(NUMPY, W, A)
    within.argmin(y)
    within.adjoint(c, y, within.argmin(y), y)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))
    assert vector(y).size == y.size


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_rows_of_equations_are_independent_in_any_units():
    C = np.array([[1.0, 1.0, 0.0], [1e-20, -1e-20, 0.0]])
    w0 = lower.Equality(C, np.array([2.0, 0.0])).resolved().w0[:, 0]
    assert np.abs(w0 - [1.0, 1.0, 0.0]).max() <= 1e-14


def test_equations_that_nearly_agree_do_not_contradict_whatever_their_signs():
    """The solution is near (-1000, 1000): its rounding, times the coefficients, is what counts."""
    C = np.array([[1.0, 1.0], [1.0, 1.001], [2.0, 2.001]])
    for d in (np.array([1.0, 2.0, 3.0]), C @ [-1.0, -1.0], C @ [1.0, 0.0]):
        for sign in (1, -1):
            with pytest.raises(ProblemError, match="follow from others"):
                lower.Equality(sign * C, sign * d)
    with pytest.raises(ProblemError, match="follow from others"):
        lower.Equality(np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([0.1, 0.3]))


@pytest.mark.parametrize("sign", [1, -1])
def test_an_entry_beyond_its_bound_by_rounding_is_not_wrong(sign):
    """By that of the largest one; by more it is."""
    x, none, rounding = sign * np.array([[0.0], [2.0]]), np.zeros((2, 1), bool), 2**0.5 * EPS * 2
    for by, wrong in ((rounding, False), ((1 + 1e-9) * rounding, True)):
        bound = x - sign * np.array([[by], [0.0]])
        lower_, upper = (-8 + 0 * x, bound) if sign > 0 else (bound, 8 + 0 * x)
        one = np.ones(1, np.int32)
        state = _State(Solution(x, ~none, none, 0 * x), ~none, 3 * one, 3 * one, bound, x[0] + np.inf, none, 0 * one)
        box = Box(np.eye(2), x, lower_, upper)
        after = _decided(box, state)
        assert after.change[:, 0].tolist() == [wrong, False]
        assert (after.fewest, after.patience) == (wrong, 3)
        assert _decided(box, after).patience == 2  # as many as before are not fewer


@pytest.mark.parametrize("high", [True, False])
def test_a_multiplier_of_no_more_than_its_rounding_frees_no_entry(high):
    """By that of the largest entry of its own target, of 0 where that is 0; and of the other sign never."""
    held, x, one = np.zeros((2, 3), bool), np.zeros((2, 3)), np.ones(3, np.int32)
    for size in (0.0, 1.0):
        z = np.array([[-size, 1e6, 1e6], [0.5 * size, 0.0, 0.0]])
        rounding = 2**0.5 * EPS * size
        for multiplier, wrong in ((rounding, False), ((1 + 1e-9) * rounding + 1e-300, True), (-1.0, False)):
            gradient = np.zeros((2, 3))
            gradient[1, 0] = multiplier if high else -multiplier
            found = Solution(x, held, np.full_like(held, high), gradient)
            state = _State(found, held, 3 * one, 3 * one, x, x[0] + np.inf, held, 0 * one)
            after = _decided(Box(np.eye(2), z, x - 1, x + 1), state)
            assert after.change.tolist() == [[False] * 3, [wrong, False, False]]
            assert after.fewest.tolist() == [wrong, 0, 0]


def test_a_set_answers_as_what_it_is_resolved_to():
    some = np.array([2, 0])
    for W, n in EXAMPLES:
        if isinstance(W, lower.Affine):
            continue  # is what others are resolved to
        A, y, *_ = level(shape=(M, n))
        flat = W.resolved()
        assert (W.size, W.columns, W.linear) == (flat.size, flat.columns, flat.linear)
        assert W.dimension(n) == flat.dimension(n)
        for one, two, target in ((W, flat, y), (W.part(some, 3.0), flat.part(some, 3.0), 3 * y[:, some])):
            system = System(Dense(A), Ridge(0.1))
            first, second = (
                s.argmin(NUMPY, system, s.factor(NUMPY, system), target) for s in (one.solver(None), two.solver(None))
            )
            np.testing.assert_allclose(first, second, rtol=0, atol=1e-12)


def test_right_hand_sides_that_are_left_keep_what_is_theirs():
    x = rng().normal(size=(3, 4))
    assert (taken(x, np.array([3, 1]), 2.0) == 2 * x[:, [3, 1]]).all()
    assert (taken(x[:, :1], np.array([3, 1]), 2.0) == 2 * x[:, :1]).all()


@pytest.mark.parametrize("cond", [1e4, 1e9])
def test_inverses_are_as_accurate_as_by_a_qr_factorisation(cond):
    """Where the Gram matrix alone is off by the square of the condition, and where it cannot be refined."""
    n, draw = 6, rng(0)
    U, V = (np.linalg.qr(draw.normal(size=(n, n)))[0] for _ in range(2))
    R = np.linalg.qr((U * np.geomspace(1.0, 1 / cond, n)) @ V)[1]
    free = np.array([[True, True, False, True, True, True], [True] * n]).T
    found = Inverter(NUMPY, R)(R, free)
    u, c = draw.normal(size=(n, 2)), draw.normal(size=(n, 2)) * free
    for j in range(2):
        inverse = np.linalg.pinv(R[:, free[:, j]])
        x, t = inverse @ u[:, j], inverse.T @ c[free[:, j], j]
        assert np.linalg.norm(found.solve(u)[free[:, j], j] - x) <= 20 * EPS * cond * np.linalg.norm(x)
        assert np.linalg.norm(found.adjoint(c)[:, j] - t) <= 20 * EPS * cond * np.linalg.norm(t)


@pytest.mark.parametrize("heights", [(12, 9, 12), (30, 4, 5)], ids=["padded", "one by one"])
@pytest.mark.parametrize("W", [lower.Nonnegative(), lower.Bounded(-0.1, np.linspace(0.1, 1.0, 6)), lower.L1(0.3)])
def test_blocks_are_solved_as_the_dense_design(W, heights, backend):
    # two right-hand sides, with weights of rows, some of them 0, and an upper level that wants the adjoint
    t = [np.linspace(0.0, 3.0, m) for m in heights]
    y = rng(3).normal(size=(sum(heights), 2)) + 1.0
    weights = np.tile([1.0, 0.5, 0.0, 2.0], 20)[: len(y)]

    def blocks(theta, data):
        xp = xv.array_namespace(theta)
        return xv.operators.BlockDiagonal([xp.exp(-x[:, None] * theta) for x in data["t"]])

    def dense(theta, data):
        return blocks(theta, data).dense()

    upper = xv.Level(dense, 0.9 * y)
    data, theta = send_tree(backend, {"t": t}), send(backend, np.array([0.4, 2.0]))
    y, weights, W = send(backend, y), send(backend, weights), trees.map_arrays(lambda x: send(backend, x), W)
    found = {}
    for M in (blocks, dense):
        for lam in (0.0, 0.1):
            level = xv.Level(M, y, lam=lam, W=W, weights=weights)
            for name, problem in {
                "separable": xv.separable(M, y, data=data, lam=lam, W=W, weights=weights),
                "bilevel": xv.bilevel(lower=level, upper=replace(upper, y=send(backend, host(upper.y))), data=data),
            }.items():
                value, gradient = xv.value_and_gradient(problem, theta)
                found.setdefault((name, lam), []).append(np.append(host(gradient), host(value)))
    for (name, lam), (got, want) in found.items():
        assert error(got, want) < 1e-12, (name, lam)


def test_which_designs_are_solved_in_blocks():
    alike = xv.operators.BlockDiagonal([np.ones((3, 2)), np.ones((5, 2))])
    uneven = xv.operators.BlockDiagonal([np.ones((90, 2)), np.ones((5, 2)), np.ones((5, 2))])
    wider = xv.operators.BlockDiagonal([np.ones((3, 2)), np.ones((5, 3))])
    solver, simplex = lower.Nonnegative().solver(None), lower.Simplex().solver(None)
    assert type(by_blocks(solver, alike, NO_RIDGE)).__name__ == "BlocksOnFaces"
    assert [type(by_blocks(solver, M, NO_RIDGE)).__name__ for M in (uneven, wider)] == ["Blockwise"] * 2
    assert by_blocks(solver, alike, Ridge(1.0, np.eye(4))) is solver
    assert by_blocks(simplex, alike, NO_RIDGE) is simplex
    one_for_each_column = xv.operators.BlockDiagonal([np.ones((3, 5, 2)), np.ones((3, 4, 2))])
    assert by_blocks(solver, one_for_each_column, NO_RIDGE) is solver


@pytest.mark.parametrize("second", [(4, 2), (4, 3), (1, 2)], ids=["in one batch", "of two widths", "one by one"])
def test_bounds_and_kinks_of_blocks_are_those_of_the_dense_design(second):
    """Of each block its own bounds, at which every entry of w is with a multiplier of 0."""
    backend, M = xv.backends.get("numpy"), xv.operators.BlockDiagonal([rng(0).normal(size=s) for s in ((9, 2), second)])
    upper = np.linspace(0.1, 1.0, M.shape[1])
    solver, lam = lower.Bounded(-0.1, upper).solver(None), 0.3 * (second == (1, 2))
    y = np.stack([M.dense() @ upper, rng(1).normal(size=len(M.dense()))], axis=1)
    found = []
    for design, one in ((M, by_blocks(solver, M, NO_RIDGE)), (Dense(M.dense()), solver)):
        system = System(design, Ridge(lam))
        factor = one.factor(backend, system)
        found.append((one.argmin(backend, system, factor, y), one.diagnose(backend, system, factor, y).kinks))
    assert error(found[0][0], found[1][0]) <= 1e-12
    assert found[0][1] == found[1][1] == (0 if lam else len(upper))


def test_the_slope_of_w_by_its_target_is_its_change_on_the_face(subtests):
    """Of every set, two columns with faces of their own, and of designs of blocks."""
    backend, draw = xv.backends.get("numpy"), rng(4)
    sets = {"box": lower.Bounded(-0.1, 0.2), "simplex": lower.Simplex(0.5), "l1": lower.L1(0.3)}
    sets["affine"] = lower.Equality(np.ones((1, 4)), 2.0)
    for name, W in sets.items():
        for second in ((9, 2), (2, 2), (8, 3)) if name in ("box", "l1") else ((9, 2),):
            M = xv.operators.BlockDiagonal([draw.normal(size=s) for s in ((9, 2), second)])
            y, dy = draw.normal(size=(2, M.shape[0], 2))
            system = System(M if name in ("box", "l1") else Dense(M.dense()), Ridge(0.1))
            solver = by_blocks(W.solver(None), M, NO_RIDGE)
            with subtests.test(name, solver=type(solver).__name__):
                factor = solver.factor(backend, system)
                w, moved = (solver.argmin(backend, system, factor, t) for t in (y, y + 1e-6 * dy))
                slope = solver.tangent(backend, system, factor, y, w)(dy)
                assert error(1e-6 * slope, moved - w) <= 1e-8
                assert np.abs(slope).max() > 0.01


def test_fits_in_single_precision_have_the_digits_of_the_data(subtests):
    """A standard error is 1e-3 of theta here; w without refinement moves theta by 0.02 of one, r as w is by 0.01."""
    t = np.linspace(0.0, 2.0, 40)

    def M(theta, t):
        return xv.array_namespace(theta).exp(-t[:, None] * theta)

    clean = M(np.array([1.36, 3.15]), t) @ np.array([1.7, 1.75])
    for W in (lower.Nonnegative(), lower.Bounded(0.0, 3.0), lower.Simplex(3.45), lower.L1(0.01)):
        with subtests.test(repr(W)):
            for seed in range(4):
                y = (clean + 1.5e-3 * rng(seed).normal(size=t.size)).astype(np.float32)
                start, over = np.array([0.7, 4.0]), xv.sets.Box(0.0, 20.0)
                fits = [
                    xv.solve(
                        xv.separable(M, y.astype(kind), data=t.astype(kind), W=W), start.astype(kind), over, tol=1e-9
                    )
                    for kind in (np.float64, np.float32)
                ]
                off = (fits[1].theta - fits[0].theta) / fits[0].statistics().theta_stderr
                assert np.max(np.abs(off)) < 1e-3


@pytest.mark.parametrize("W", [lower.Nonnegative(), lower.L1(0.1)], ids=["bounds", "l1"])
def test_a_structured_design_whose_matrix_would_fill_the_memory_is_an_error_in_words(W):
    kernel = np.eye(1, 129 * 129).reshape(129, 129)
    problem = xv.separable(lambda s, k: xv.operators.Circulant(s * k), np.ones(kernel.size), data=kernel, W=W)
    with pytest.raises(ProblemError, match=r"W needs .* got a Circulant of shape \(16641, 16641\)\. Leave out W, or"):
        xv.solve_lower(problem, np.array(1.0))
