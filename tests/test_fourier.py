"""Convolution designs on grids of any shape and division of spectra, against their matrices, entry by entry."""

import math
from functools import cache, partial

import numpy as np
import pytest
import scipy.linalg

import xvarpro as xv
from xvarpro import lower, operators
from xvarpro.core import trees
from xvarpro.core.namespace import dtype_name
from xvarpro.errors import ProblemError
from xvarpro.lower import FourierDivision
from xvarpro.lower.interface import Ridge, System
from xvarpro.operators import (
    Circulant,
    CirculantPerColumn,
    Convolution,
    StackedCirculant,
)
from xvarpro_conformance.references import designs as written

from .support import error, host, in_turn, interpreted, rng, send

GRIDS = [(1,), (2,), (5,), (6,), (3, 4), (4, 3), (2, 3, 4), (3, 2, 3), (2, 1, 3, 2)]
K = 3
EPS = {"float32": np.finfo(np.float32).eps, "float64": np.finfo(np.float64).eps}


def draw(seed, *shape, complex_=False):
    x = rng(seed).normal(size=shape)
    return x + 1j * rng(seed + 100).normal(size=shape) if complex_ else x


@cache
def designs(grid, complex_=False):
    """Every operator on a grid around NumPy arrays, with its matrix, or one for each column."""
    x = partial(draw, complex_=complex_)
    one, many, short, long = (
        x(i, *s) for i, s in enumerate((grid, (K, *grid), [min(2, n) for n in grid], [n + 2 for n in grid]))
    )
    found = {
        "Circulant": Circulant(one),
        "StackedCirculant": StackedCirculant(many),
        "CirculantPerColumn": CirculantPerColumn(many),
        "full": Convolution(short, grid),
        "valid": Convolution(short, grid, "valid"),
        "valid, of a long kernel": Convolution(long, grid, "valid"),
    }
    return {name: (M, written.dense(M)) for name, M in found.items()}


def sent(backend, M):
    return trees.map_arrays(lambda x: send(backend, x), M)


# -- operators ---------------------------------------------------------------------------------------------------------


MIXED = [(False, False), (True, True), (False, True), (True, False)]
mixed = in_turn("complex_", MIXED, ids=str)


@in_turn("grid", GRIDS, ids=str)
@mixed
def test_products_are_those_of_the_dense_matrix(grid, complex_, backend):
    for name, (design, A) in designs(grid, complex_[0]).items():
        m, n = A.shape[-2:]
        w, r = draw(5, n, K, complex_=complex_[1]), draw(6, m, K, complex_=complex_[1])
        M = sent(backend, design)
        assert (M.shape, M.columns) == ((m, n), K if A.ndim == 3 else None)
        np.testing.assert_array_equal(host(M.dense()), A)
        products = M.matvec(send(backend, w)), M.rmatvec(send(backend, r))
        for got, want in zip(products, (written.times(A, w), written.times(written.adjoint(A), r)), strict=True):
            assert dtype_name(got) == ("complex128" if any(complex_) else "float64")
            np.testing.assert_allclose(host(got), want, rtol=0, atol=1e-14 * np.abs(A).sum(), err_msg=name)


def test_constant_diagonals():
    d = draw(4, 7)
    np.testing.assert_array_equal(operators.Toeplitz(d, 3).dense(), scipy.linalg.toeplitz(d[2:], d[2::-1]))


# -- division ----------------------------------------------------------------------------------------------------------


def difference(grid):
    """Forward difference along the first axis: constants along it are free."""
    kernel = np.zeros(grid)
    kernel[(0,) * len(grid)] -= 1
    kernel[(-1 % grid[0], *(0,) * (len(grid) - 1))] += 1
    return kernel


def by_column(H, b):
    return np.linalg.solve(H, b) if H.ndim == 2 else np.linalg.solve(H, b.T[..., None])[..., 0].T


PERIODIC = ("Circulant", "StackedCirculant", "CirculantPerColumn")


@in_turn("grid", [(5,), (6,), (4, 3), (3, 4), (2, 3, 4)], ids=str)
@in_turn(("lam", "weighted"), [(0.0, False), (0.3, False), (0.3, True)])
@mixed
def test_division_solves_the_level_and_its_adjoint(grid, lam, weighted, complex_, backend):
    weight, there = Circulant(difference(grid)), interpreted(backend)
    Omega = written.dense(weight) if weighted else np.eye(math.prod(grid))
    for kind in PERIODIC:
        design, A = designs(grid, complex_[0])[kind]
        y, c = (draw(i, n, K, complex_=complex_[1]) for i, n in ((7, A.shape[-2]), (8, A.shape[-1])))
        H = written.adjoint(A) @ A + lam * (Omega.T @ Omega)
        want, v = by_column(H, written.times(written.adjoint(A), y)), by_column(H, c)
        s = np.sqrt(np.linalg.eigvalsh(H))
        r, Mv = written.times(A, want) - y, written.times(A, v)
        system = System(sent(there, design), Ridge(lam, sent(there, weight) if weighted else None))
        solver, (y, c, residual) = lower.choose(*system), (send(there, x) for x in (y, c, r))
        assert solver == FourierDivision()
        with there.scope("float64"):
            factor = solver.factor(there, system)
            w = solver.argmin(there, system, factor, y)
            q, pairs, slope, _ = solver.adjoint(there, system, factor, c, y, w, residual)
            found = solver.diagnose(there, system, factor, y)
        assert dtype_name(w) == ("complex128" if any(complex_) else "float64")
        for got, expected in ((w, want), (q, Mv), (slope, v)):
            off = np.linalg.norm(host(got) - expected) / np.linalg.norm(expected)
            assert off <= 20 * EPS["float64"] * (s.max() / s.min()) ** 2
        assert pairs[0][1] is slope
        np.testing.assert_array_equal(host(pairs[0][0]), r)
        assert float(found.condition) == pytest.approx((s.max(-1) / s.min(-1)).max())
        assert not bool(found.deficient)


def diagnosed(backend, M, lam):
    solver, system = FourierDivision(), System(M, Ridge(lam))
    return solver.diagnose(backend, system, solver.factor(backend, system), None)


@in_turn("grid", [(64,), (65,), (8, 8), (5, 7)])
@in_turn("scale", [1e-30, 1.0, 1e30])
@in_turn("dtype", ["float32", "float64"])
def test_a_zero_frequency_is_seen_whatever_the_units(grid, scale, dtype, backend):
    there, identity = interpreted(backend), np.zeros(grid)
    identity[(0,) * len(grid)] = 1
    # a difference has no constant part
    for x, singular in ((difference(grid), True), (difference(grid) + 1e-3 * identity, False)):
        x = x * scale
        M = Circulant(send(there, x.astype(dtype)))
        with there.scope(dtype):
            for lam in (0.0, 0.1):
                deficient = bool(diagnosed(there, M, lam).deficient)
                # in units of 1e30 a ridge of 0.1 is nothing
                assert deficient == (singular and (lam == 0 or scale > 1))


def test_which_kernels_are_deficient(backend):
    """One column without a frequency is enough; a large grid of single precision is none."""
    there = interpreted(backend)
    columns = CirculantPerColumn(send(there, np.stack([draw(0, 6), np.ones(6), draw(1, 6)])))
    with there.scope("float64"):
        assert bool(diagnosed(there, Circulant(send(there, np.zeros(8))), 0.0).deficient)
        assert bool(diagnosed(there, columns, 0.0).deficient)
    with there.scope("float32"):
        large = Circulant(send(there, draw(3, 2**16).astype(np.float32)))
        assert not bool(diagnosed(there, large, 0.0).deficient)


def test_nothing_is_squared(backend):
    """Without a ridge a square circulant is divided by: an error of ``eps cond``, at a condition of 1e7."""
    there, D = interpreted(backend), 64
    gains = np.logspace(0, -7, D // 2 + 1)
    x = np.fft.irfft(gains, n=D)
    w = draw(2, D, 1)
    y = np.fft.irfft(gains[:, None] * np.fft.rfft(w, axis=0), n=D, axis=0)
    system = System(Circulant(send(there, x)))
    with there.scope("float64"):
        solver = FourierDivision()
        factor = solver.factor(there, system)
        got = solver.argmin(there, system, factor, send(there, y))
        condition = solver.diagnose(there, system, factor, send(there, y)).condition
    assert float(condition) == pytest.approx(1e7, rel=1e-6)
    assert error(got, w) <= 1e-8  # normal equations leave 1e-2


def test_blocks_and_columns_of_other_sizes_are_divided_each_by_its_own(backend):
    sizes = 10.0 ** np.array([-250, 0, 250])
    kernels = draw(1, 3, 6)
    X = np.abs(np.fft.rfft(kernels))
    for lam in (0.0, 1e-300):
        for cls, want in ((CirculantPerColumn, (X * sizes[:, None]).T), (StackedCirculant, 1e250 * X[2][:, None])):
            system = System(cls(send(backend, kernels * sizes[:, None])), Ridge(lam))
            s = host(FourierDivision().factor(interpreted(backend), system).s)
            np.testing.assert_allclose(s[0], np.hypot(want, lam**0.5), rtol=1e-13)


def test_what_it_does_not_fit_goes_elsewhere(backend):
    M = Circulant(send(backend, draw(0, 4)))
    assert isinstance(lower.choose(M, Ridge(0.1, send(backend, np.eye(4)))), lower.QR)
    assert isinstance(lower.choose(M, Ridge(0.1, Circulant(send(backend, draw(0, 2, 2))))), lower.QR)
    assert lower.choose(Convolution(send(backend, draw(0, 2)), (4,), "valid"), Ridge(0.1)) == lower.DualQR()
    dense = System(operators.Dense(send(backend, np.eye(4))), Ridge(0.1))
    with pytest.raises(ProblemError, match="circulant designs, got Dense"):
        FourierDivision().factor(backend, dense)
    with pytest.raises(ProblemError, match="Omega None or a Circulant"):
        FourierDivision().factor(backend, System(M, Ridge(0.1, send(backend, np.eye(4)))))


# -- in problems -------------------------------------------------------------------------------------------------------


def stacked(theta, data):
    return StackedCirculant(theta)


def modulated(theta, data):
    xp = xv.array_namespace(theta)
    return StackedCirculant(theta * theta + data["b"] * xp.sin(theta))


START, TARGET = draw(30, 3, 6), draw(31, 18)
OMEGA = Circulant(difference((6,)))


def two_levels(Omega=None):
    lower = xv.Level(stacked, TARGET, lam=0.2, Omega=Omega)
    upper = xv.Level(modulated, draw(32, 18), lam=0.3 if Omega is not None else 0.0, Omega=Omega)
    return xv.bilevel(lower=lower, upper=upper, data={"b": draw(32, 18).reshape(3, 6)})


@pytest.mark.parametrize("solver", [lower.QR(), lower.SVD()], ids=repr)
def test_a_weight_that_is_an_operator_suits_every_solver(solver, backend):
    want = xv.value_and_gradient(xv.separable(stacked, TARGET, lam=0.2, Omega=OMEGA), START)
    problem = xv.separable(stacked, TARGET, lam=0.2, Omega=OMEGA, solver=solver)
    assert error(xv.value_and_gradient(problem, START, backend=backend.name), want) <= 1e-12


def water_filling(Y, lam, rho):
    """The least value over ``|X|_F <= rho``: energy ``u_k`` for each frequency, on a common level of the multiplier."""
    D = Y.shape[1]
    e = (np.abs(np.fft.fft(Y)) ** 2).sum(0)
    low, high = 1e-30, e.max() / lam

    def energies(nu):
        return np.maximum(0.0, np.sqrt(e * lam / nu) - lam)

    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if energies(middle).sum() > D * rho**2 else (low, middle)
    return (e * lam / (energies(high) + lam)).sum() / (2 * D)


def signals(N, D):
    """Blurred, as in the paper: what is large at low frequencies is found at all of them."""
    kernel = np.exp(-0.5 * (np.minimum(np.arange(D), D - np.arange(D)) / 1.5) ** 2)
    X = draw(0, N, D)
    return np.fft.irfft(np.fft.rfft(X) * np.fft.rfft(kernel / kernel.sum()), n=D) + 0.05 * draw(1, N, D)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_blind_deconvolution_reaches_the_water_filling_optimum(name):
    N, D, lam, rho = 20, 64, 1e-3, 1.0
    Y, start = signals(N, D), draw(2, N, D)
    start /= np.linalg.norm(start)
    problem = xv.separable(stacked, Y.ravel(), lam=lam)
    fit = xv.solve(problem, start, over=xv.sets.L2Ball(rho), backend=name, tol=1e-9, max_iter=3000, progress=False)
    best = water_filling(Y, lam, rho)
    assert best * (1 - 1e-12) <= fit.value <= best * (1 + 1e-8)
    assert np.linalg.norm(fit.theta) <= rho * (1 + 1e-12)
    assert fit.w.shape == (D,)


def test_a_program_of_operators_is_what_they_are_one_by_one():
    """The one case of JAX that always runs."""
    pytest.importorskip("jax")
    problem = two_levels(OMEGA)
    assert error(xv.value_and_gradient(problem, START, backend="jax"), xv.value_and_gradient(problem, START)) <= 1e-12


def test_a_zero_frequency_is_reported_as_rank_deficiency():
    problem = xv.separable(lambda theta, data: Circulant(theta - xv.array_namespace(theta).mean(theta)), draw(1, 8))
    fit = xv.solve(problem, draw(0, 8), over=xv.sets.L2Ball(10.0), max_iter=3, progress=False)
    assert fit.status is xv.Status.RANK_DEFICIENT


def test_a_large_operator_is_never_made_dense(monkeypatch):
    monkeypatch.setattr(StackedCirculant, "dense", lambda self: pytest.fail("made dense"))
    fit = xv.solve(two_levels(), START / 10, over=xv.sets.L2Ball(1.0), max_iter=3, progress=False)
    assert fit.w.shape == (6,)
    assert fit.verified.dead_units == 0
