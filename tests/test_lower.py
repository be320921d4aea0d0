"""What every lower-level solver promises, over all that `xvarpro.lower` exports: a newcomer is found by its export."""

import inspect

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import lower
from xvarpro.backends.powers import power_of_two
from xvarpro.core import trees
from xvarpro.lower._diagonal import Division
from xvarpro.lower._low_rank import LowRankQR
from xvarpro.lower.accumulation import Gram
from xvarpro.lower.interface import LowerSolver, Ridge, System
from xvarpro.lower.normal import length, norms, products
from xvarpro.lower.stack import deficient_gram, pivots
from xvarpro.operators import Diagonal, LowRankPlusDiagonal

from .support import Solved, error, host, in_turn, inner, rng, send

EXPORTED = [getattr(lower, name) for name in lower.__all__]
NOT_FOR_ARRAYS = (lower.FourierDivision, lower.Cholesky)  # test_operators and test_streamed have theirs
CONCRETE = [x for x in EXPORTED if inspect.isclass(x) and issubclass(x, LowerSolver) and not inspect.isabstract(x)]
SOLVERS = [x for x in CONCRETE if x.exact and x not in NOT_FOR_ARRAYS]  # of iterative ones: test_krylov
SHAPES = {"tall": (9, 4), "square": (5, 5), "wide": (4, 9), "column": (6, 1), "row": (1, 6)}
NUMPY = xv.backends.get("numpy")
EPS = {"float32": np.finfo(np.float32).eps, "float64": np.finfo(np.float64).eps}


each = in_turn("solver", [kind() for kind in SOLVERS], ids=lambda solver: type(solver).__name__)


@in_turn("shape", SHAPES)
@in_turn("lam", [0.0, 0.3])
@each
def test_no_shape_raises(shape, lam, solver):
    """A solver that has no answer says so: `deficient`, and NaN or anything else where numbers were asked for."""
    A, y = rng(0).normal(size=SHAPES[shape]), rng(1).normal(size=(SHAPES[shape][0], 2))
    level = Solved(NUMPY, solver, A, lam)
    w = level.argmin(y)
    assert w.shape == (A.shape[1], 2)
    if not level.said("deficient"):
        optimal = A.T @ (A @ host(w) - y) + lam * host(w)
        assert np.linalg.norm(optimal) <= 1e-12


@pytest.mark.parametrize("shape", SHAPES)
def test_cholesky_of_arrays_is_qr(shape):
    A, y = rng(0).normal(size=SHAPES[shape]), rng(1).normal(size=(SHAPES[shape][0], 2))
    mine, qr = (Solved(NUMPY, solver, A, 0.3).argmin(y) for solver in (lower.Cholesky(), lower.QR()))
    assert np.array_equal(mine, qr)


# -- loss of rank ------------------------------------------------------------------------------------------------------


def dependent(kind):
    draw = rng(0)
    A = draw.normal(size=(9, 4))
    if kind == "zero column":
        A[:, 2] = 0
    elif kind == "equal columns":
        A[:, 3] = A[:, 1]
    elif kind == "combination":
        A[:, 1] = A[:, [0, 2, 3]] @ draw.normal(size=3)
    return A


SCALES = {"as it is": np.ones(4), "units": np.array([1e-12, 1.0, 1e12, 1e3]), "tiny": np.full(4, 1e-12),
          "huge": np.full(4, 1e12)}  # fmt: skip


def test_a_w_of_minimum_norm_is_said_to_be_one_of_several():
    for kind in ("full rank", "zero column", "equal columns", "combination"):
        assert Solved(NUMPY, lower.SVD(), dependent(kind)).said("truncated") == (kind != "full rank")


@in_turn("scale", SCALES)
@in_turn("kind", ["full rank", "zero column", "equal columns", "combination"])
def test_rank_does_not_depend_on_units(kind, scale):
    """Which a ridge restores, however small; of SVD a w of minimum norm is a choice of units by itself."""
    A = dependent(kind) * SCALES[scale]
    assert Solved(NUMPY, lower.QR(), A).said("deficient") == (kind != "full rank")
    assert not Solved(NUMPY, lower.QR(), dependent(kind), 1e-6).said("deficient")


POWERS = 2.0 ** np.array([-30, 0, 17, 3])


@in_turn("ridge", [0.0, 0.25])
@in_turn("hard", [False, True], ids=lambda hard: "refined" if hard else "easy")
@in_turn("solver", [lower.QR(), lower.DualQR()], ids=repr)
def test_units_of_the_columns_change_no_bit(solver, hard, ridge, backend):
    """Units that are powers of two round nothing: what depends on them has no business in a factorisation."""
    if solver == lower.DualQR() and not ridge:
        pytest.skip("has no answer for a tall design")
    draw = rng(0)
    A, y, c = (draw.normal(size=s) for s in ((9, 4), (9, 2), (4, 2)))
    A[:, 2], A[0, 3] = -np.abs(A[:, 2]), 0.0
    if hard:
        A[:, 1] = A[:, 0] + 1e-5 * A[:, 1]
    Omega = np.eye(4) if ridge else None
    plain = Solved(backend, solver, A, ridge, Omega)
    other = Solved(backend, solver, A * POWERS, ridge, None if Omega is None else Omega * POWERS)
    for one, two in zip(plain.refined(y), other.refined(y), strict=True):
        w, moved = host(one), host(two)
        assert np.array_equal(w, moved * POWERS[:, None] if w.shape[0] == 4 else moved)
    mine, its = plain.pulled(c, y), other.pulled(c * POWERS[:, None], y)
    assert np.array_equal(host(mine.q), host(its.q))
    assert plain.said("condition") == other.said("condition")


def test_a_target_of_zeros_is_refined_to_zeros(backend):
    A, y = rng(0).normal(size=(9, 4)), np.zeros((9, 2))
    A[:, 1], y[:, 0] = A[:, 0] + 1e-5 * A[:, 1], 1.0
    w = host(Solved(backend, lower.QR(), A, 0.25e-12).refined(y)[0])
    assert np.isfinite(w[:, 0]).all()
    assert (w[:, 1] == 0).all()


# -- refinement --------------------------------------------------------------------------------------------------------


def with_condition(cond, shape=(60, 5), complex_=False):
    draw, n = rng(0), min(shape)

    def orthonormal(m):
        x = draw.normal(size=(m, n))
        return np.linalg.qr(x + 1j * draw.normal(size=(m, n)) if complex_ else x)[0]

    U, V = map(orthonormal, shape)
    return (U * np.logspace(0, -np.log10(cond), n)) @ V.conj().T


def test_pivots_are_distances_from_the_columns_before_in_any_units():
    R = np.array([[3.0, 4.0, 1.0], [0.0, 3.0, 2.0], [0.0, 0.0, 0.0]])
    want = [1.0, 0.6, 0.0]
    for c in (np.ones(3), np.array([1e-200, 1e200, 1.0])):
        assert pivots(np, R * c) == pytest.approx(want, rel=1e-14)


def test_a_gram_matrix_of_complex_columns_is_deficient_where_they_are_equal(backend):
    """The triangle of two columns with a factor of i between them, to rounding."""
    for last in (1e-10, 1.0):
        assert bool(deficient_gram(send(backend, np.array([[1.0, 0.0], [1j, last]])))) == (last < 1)
        gram = send(backend, np.array([[1.0, 1j], [0.0, last]]))
        assert bool(Gram().deficient(backend, gram, 2)) == (last < 1)


@pytest.mark.parametrize(("dtype", "least", "most"), [("float64", -1022, 1023), ("float32", -126, 127)])
def test_units_are_the_next_powers_of_two(backend, dtype, least, most):
    """To the last bit, over the whole range and at its ends, whatever functions of the framework are off by."""
    powers = np.ldexp(1.0, np.arange(least, most + 1)).astype(dtype)
    eps = np.finfo(dtype).eps
    for x in (powers, powers[2:] * (1 - eps / 2), powers[2:] * np.asarray(0.51, dtype)):
        want = powers[-len(x) :]
        assert np.array_equal(host(power_of_two(send(backend, x))), want)
    ends = np.array([0.0, np.nan, np.inf, np.finfo(dtype).max, np.finfo(dtype).tiny / 4], dtype)
    assert host(power_of_two(send(backend, ends))).tolist() == [1.0, 1.0, 1.0, powers[-1], powers[0]]
    assert host(power_of_two(send(backend, ends[3]))) == powers[-1]


def test_units_are_compiled_in_single_precision_without_a_flag():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(False):
        assert jax.jit(power_of_two)(jax.numpy.float32([0.3, 3.0])).tolist() == [0.5, 4.0]


def on_a_grid(bits, *args):
    """`with_condition` of multiples of ``2^-bits``, whose products with small whole numbers are exact."""
    A = with_condition(*args)
    return np.round(A.view(float) * 2.0**bits).view(A.dtype) / 2.0**bits


def whole(n, complex_):
    w = rng(1).integers(-7, 8, size=(n, 1)).astype(float)
    return w * (1 - 2j) if complex_ else w


kinds = in_turn("complex_", [False, True])


@kinds
@in_turn("cond", [1e5, 1e6, 2e8])
def test_a_perfect_fit_is_refined_to_the_last_digit(cond, complex_, backend):
    A, w = on_a_grid(40, cond, (60, 6), complex_), whole(6, complex_)
    got = host(Solved(backend, lower.QR(), A).refined(A @ w)[0])
    assert abs(got - w).max() <= 4 * EPS["float64"] * abs(w).max()


@kinds
@in_turn("lam", [0.0, 2.0**-40])
@in_turn("solver", [lower.QR(), lower.DualQR()], ids=repr)
def test_an_adjoint_is_refined_to_the_last_digit(solver, lam, complex_, backend):
    """That of ``c = H v`` with entries of few digits: it is exact."""
    wide = solver == lower.DualQR()
    if wide and not lam:
        pytest.skip("a wide design has no answer without a ridge")
    A = on_a_grid(20, 1e4, (10, 60) if wide else (60, 10), complex_)
    v = whole(A.shape[1], complex_)
    q = host(Solved(backend, solver, A, lam).pulled(A.conj().T @ (A @ v) + lam * v, A[:, :1]).q)
    assert abs(q - A @ v).max() <= 4 * EPS["float64"] * abs(A @ v).max()


@kinds
def test_the_derivative_of_a_minimum_norm_w_is_that_of_the_pseudo_inverse(complex_, backend):
    """``d <c, w> = -<dM w, q> - sum <s, dM v>`` along designs of one rank: the second pair belongs to its loss."""

    def random(seed, *shape):
        x = rng(seed).normal(size=shape)
        return x + 1j * rng(seed + 10).normal(size=shape) if complex_ else x

    L, dL, R, dR = random(0, 7, 2), random(1, 7, 2), random(2, 2, 5), random(3, 2, 5)
    y, c = random(4, 7, 3), random(5, 5, 3)
    level = Solved(backend, lower.SVD(), L @ R)
    w, dM = host(level.argmin(y)), dL @ R + L @ dR
    q, pairs, *_ = level.pulled(c, y)
    got = -inner(dM @ w, host(q)) - sum(inner(host(s), dM @ host(v)) for s, v in pairs)
    ahead, behind = (inner(c, np.linalg.pinv((L + t * dL) @ (R + t * dR)) @ y) for t in (1e-5, -1e-5))
    assert got == pytest.approx((ahead - behind) / 2e-5, rel=1e-7)


# -- one factorisation per point ---------------------------------------------------------------------------------------


@in_turn("levels", ["separable", "bilevel"])
@in_turn("solver", [lower.QR(), lower.SVD(), lower.DualQR()], ids=repr)
def test_one_factorisation_serves_a_point(solver, levels):
    """`argmin`, `refine` and `adjoint` share it."""
    made = []

    class Counting(type(NUMPY)):
        def qr(self, A, mode="reduced"):
            made.append("qr")
            return super().qr(A, mode)

        def svd(self, A):
            made.append("svd")
            return super().svd(A)

    level = xv.Level(lambda theta, A: A * theta, rng(1).normal(size=(9, 2)), lam=0.5, solver=solver)
    if levels == "separable":
        problem = xv.separable(level.M, level.y, data=rng(0).normal(size=(9, 4)), lam=0.5, solver=solver)
    else:
        upper = xv.Level(level.M, rng(2).normal(size=(9, 2)))
        problem = xv.bilevel(lower=level, upper=upper, data=rng(0).normal(size=(9, 4)))
    xv.value_and_gradient(problem, np.ones(1), backend=Counting())
    assert len(made) == 1


def test_products_of_columns_are_a_row():
    a, b = rng(0).normal(size=(5, 3)), rng(1).normal(size=(5, 3))
    for x, y in ((a, b), (a + 1j * b, b - 2j * a)):
        assert products(x, y).shape == norms((x, y)).shape == (1, 3)
        assert error(products(x, y)[0], [np.vdot(x[:, j], y[:, j]).real for j in range(3)]) <= 1e-14
        assert error(norms((x, y))[0], np.linalg.norm(np.vstack([x, y]), axis=0)) <= 1e-14


def test_a_square_below_zero_is_rounding():
    assert length(np.array([[1.0, 1.0, 1.0]]), np.array([[-1e-20, 4.0, np.nan]]))[0].tolist()[:2] == [0.0, 2.0]
    assert np.isnan(length(np.ones((1, 1)), np.full((1, 1), np.nan))).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_condition_has_the_precision_of_the_design(dtype):
    U, V, d = rng(0).normal(size=(5, 2)), rng(1).normal(size=(5, 2)), 1 + rng(2).random(5)
    y, system = np.ones((5, 1), dtype), System(LowRankPlusDiagonal(*(x.astype(dtype) for x in (U, d, V))), Ridge(0.1))
    backend, solver = xv.backends.get("numpy"), LowRankQR()
    found = solver.diagnose(backend, system, solver.factor(backend, system), y)
    assert found.condition.dtype == dtype
    A = np.vstack([np.diag(d) + U @ V.T, 0.1**0.5 * np.eye(5)]) / np.sqrt(d**2 + 0.1)
    assert found.condition == pytest.approx(np.linalg.cond(A), rel=1e-5)


@pytest.mark.parametrize(("d", "deficient"), [([0.5, -1e-200], False), ([0.5, 0.0], True), ([0.5, np.inf], True)])
def test_a_diagonal_is_singular_where_an_entry_is_zero_or_not_finite(d, deficient):
    backend, solver, system = xv.backends.get("numpy"), Division(), System(Diagonal(np.array(d)))
    found = solver.diagnose(backend, system, solver.factor(backend, system), np.ones((2, 1)))
    assert bool(found.deficient) is deficient
    assert found.condition == pytest.approx(np.inf if deficient else 5e199)


@pytest.mark.parametrize("columns", [2, 40])
def test_products_of_very_many_rows_have_all_of_them_and_conjugates(columns, backend):
    m = trees.MANY + trees.BLOCK + 7
    for kind in ("float32", "complex64"):
        A, B = (many(m, k, kind, seed) for seed, k in enumerate((3, columns)))
        found = host(trees.adjoint_product(send(backend, A), send(backend, B)))
        assert found.dtype == kind
        np.testing.assert_allclose(found, A.astype(complex).conj().T @ B, atol=0.02)


def test_factors_of_very_many_rows_in_single_precision(backend):
    m = 32 * trees.MANY + 7  # LAPACK of PyTorch is off by 0.003 and 0.005 here, in one thread
    for kind in ("float32", "complex64"):
        A = many(m, 3, kind) + np.asarray(2, kind)
        Q, R = map(host, backend.qr(send(backend, A)))
        assert Q.dtype == R.dtype == kind
        Q, R = (x.astype(complex) for x in (Q, R))
        assert np.abs(Q @ R - A).max() <= 2e-3
        assert np.abs(Q.conj().T @ Q - np.eye(3)).max() <= 1e-4
        only = host(backend.qr(send(backend, A), mode="r")[1])
        assert np.abs(only.conj().T @ only - R.conj().T @ R).max() <= 1e-4 * m


def many(m, k, kind, seed=0):
    x = rng(seed).normal(size=(2, m, k)).astype("float32")
    return x[0] + 1j * x[1] if kind == "complex64" else x[0]


def test_a_large_target_of_few_rows_is_not_corrected_in_single_precision(monkeypatch):
    """It would take as long as the rest of a gradient, for digits below those of eps cond."""
    A, Y = rng(0).normal(size=(90, 3)), rng(1).normal(size=(90, 800))
    want = xv.value_and_gradient(xv.separable(lambda theta, data: theta, Y, compress=False), A)[1]
    monkeypatch.setattr("xvarpro.lower.qr._corrected", None)
    single = xv.separable(lambda theta, data: theta, Y.astype("float32"), compress=False)
    found = xv.value_and_gradient(single, A.astype("float32"))[1]
    assert np.linalg.norm(found - want) <= 10 * EPS["float32"] * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("level", "lam"),
    [({}, 1.0), ({}, 1e15), ({"solver": lower.SVD()}, 1e15)]
    + [({"W": lower.Nonnegative()}, lam) for lam in (1.0, 1e8, 1e15)],
)
def test_weights_of_small_columns_keep_their_digits_next_to_a_ridge(level, lam, backend):
    """Of columns that are orthogonal: no column but its own says what a weight is. They were off by up to 0.9."""
    size, y = np.array([1.0, 1e-6, 1e-12]), rng(1).normal(size=9)
    Q = np.linalg.qr(rng(3).normal(size=(9, 3)))[0]
    A = size * Q * np.sign(y @ Q)
    problem = xv.separable(lambda theta, A: theta * A, send(backend, y), data=send(backend, A), lam=lam, **level)
    want = size * np.abs(y @ Q) / (size**2 + lam)
    np.testing.assert_allclose(host(xv.solve_lower(problem, send(backend, np.ones(1))).w), want, rtol=1e-9)
    np.testing.assert_allclose(host(xv.ridge(send(backend, A), send(backend, y), lam)), want, rtol=1e-9)


def test_weights_of_designs_of_their_own_keep_their_digits_next_to_a_ridge(backend):
    """Half of the data are masked, others for each right-hand side. Next to lam = 1e20 only its own column counts."""
    size, lam = np.array([1.0, 1e-6, 1e-12]), 1e20
    A, Y, mask = size * rng(3).normal(size=(9, 3)), rng(1).normal(size=(9, 2)), rng(5).random((9, 2)) > 0.5
    terms = A[:, :, None] * (mask * Y)[:, None, :]
    problem = xv.separable(lambda theta, A: theta * A, send(backend, Y), data=send(backend, A), lam=lam, weights=mask)
    w = host(xv.solve_lower(problem, send(backend, np.ones(1))).w)
    assert np.all(np.abs(w - terms.sum(0) / lam) <= 20 * EPS["float64"] * np.abs(terms).sum(0) / lam)


@pytest.mark.parametrize("W", [lower.Nonnegative(), lower.Bounded(0.0, 1.0)])
def test_a_small_column_that_leads_away_from_its_bound_is_held_next_to_a_ridge(W, backend):
    size, y, lam = np.array([1.0, 1e-6, 1e-12]), rng(1).normal(size=(9, 6)), 1e15
    Q = np.linalg.qr(rng(3).normal(size=(9, 3)))[0]
    problem = xv.separable(lambda theta, A: theta * A, send(backend, y), data=send(backend, size * Q), lam=lam, W=W)
    w = host(xv.solve_lower(problem, send(backend, np.ones(1))).w)
    want = np.maximum(size[:, None] * (Q.T @ y) / (size[:, None] ** 2 + lam), 0.0)
    np.testing.assert_allclose(w, want, rtol=1e-9)
