"""Convolution designs and division of spectra, against dense matrices made by rolling, in NumPy and float64."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator, cg

import xvarpro as xv
from xvarpro import lower, operators
from xvarpro.core.namespace import dtype_name
from xvarpro.errors import ProblemError
from xvarpro.lower import FourierDivision, Ridge, circulant_preconditioner
from xvarpro.lower.interface import System
from xvarpro.operators import (
    Circulant,
    CirculantPerColumn,
    FullConvolution,
    StackedCirculant,
    Toeplitz,
    ValidConvolution,
)

from .support import error, host, in_turn, inner, interpreted, rng, send

GRIDS = [(1,), (2,), (5,), (6,), (3, 4), (4, 3), (2, 3, 4), (3, 2, 3), (2, 1, 3, 2)]
K = 3
EPS = {"float32": np.finfo(np.float32).eps, "float64": np.finfo(np.float64).eps}


def draw(seed, *shape, complex_=False):
    x = rng(seed).normal(size=shape)
    return x + 1j * rng(seed + 100).normal(size=shape) if complex_ else x


# -- dense matrices, from the definition -------------------------------------------------------------------------------


def circulant(kernel):
    """Column j is the kernel moved to j."""
    places = itertools.product(*map(range, kernel.shape))
    return np.stack([np.roll(kernel, j, axis=tuple(range(kernel.ndim))).ravel() for j in places], axis=1)


def full(kernel, signal):
    size = tuple(n + p - 1 for n, p in zip(signal, kernel.shape, strict=True))
    columns = []
    for j in itertools.product(*map(range, signal)):
        out = np.zeros(size, kernel.dtype)
        out[tuple(slice(a, a + p) for a, p in zip(j, kernel.shape, strict=True))] = kernel
        columns.append(out.ravel())
    return np.stack(columns, axis=1)


def valid(kernel, signal):
    size = tuple(n + p - 1 for n, p in zip(signal, kernel.shape, strict=True))
    inner = tuple(slice(min(n, p) - 1, max(n, p)) for n, p in zip(signal, kernel.shape, strict=True))
    return np.stack([c.reshape(size)[inner].ravel() for c in full(kernel, signal).T], axis=1)


def toeplitz(diagonals, n):
    m = diagonals.size - n + 1
    return np.array([[diagonals[i - j + n - 1] for j in range(n)] for i in range(m)])


def designs(grid, complex_=False):
    """Every operator on a grid, with its dense matrix, or one for each column."""
    x = partial(draw, complex_=complex_)
    size = tuple(min(2, n) for n in grid)
    one, many, short, long = x(0, *grid), x(1, K, *grid), x(2, *size), x(3, *(n + 2 for n in grid))
    found = {
        "Circulant": (Circulant, one, (), circulant(one)),
        "StackedCirculant": (StackedCirculant, many, (), np.vstack([circulant(x) for x in many])),
        "CirculantPerColumn": (CirculantPerColumn, many, (), np.stack([circulant(x) for x in many])),
        "FullConvolution": (FullConvolution, short, (grid,), full(short, grid)),
        "ValidConvolution": (ValidConvolution, short, (grid,), valid(short, grid)),
        "long ValidConvolution": (ValidConvolution, long, (grid,), valid(long, grid)),
    }
    if len(grid) == 1:
        diagonals = x(4, grid[0] + 3)
        found["Toeplitz"] = (Toeplitz, diagonals, grid, toeplitz(diagonals, *grid))
    return found


def times(A, w):
    """``A w``, where each column may have a matrix of its own."""
    return A @ w if A.ndim == 2 else np.stack([a @ w[:, j] for j, a in enumerate(A)], axis=1)


def adjoint(A):
    return np.conj(np.swapaxes(A, -1, -2))


def spoken(dtype, *arrays):
    return [x.astype({"float32": np.complex64}.get(dtype, complex) if np.iscomplexobj(x) else dtype) for x in arrays]


# -- operators ---------------------------------------------------------------------------------------------------------


MIXED = [(False, False), (True, True), (False, True), (True, False)]
mixed = in_turn("complex_", MIXED, ids=str)


@in_turn("grid", GRIDS, ids=str)
@mixed
def test_products_are_those_of_the_dense_matrix(grid, complex_, backend):
    for cls, kernel, rest, A in designs(grid, complex_[0]).values():
        m, n = A.shape[-2:]
        w, r = draw(5, n, K, complex_=complex_[1]), draw(6, m, K, complex_=complex_[1])
        M = cls(send(backend, kernel), *rest)
        assert M.shape == (m, n)
        assert M.columns == (K if A.ndim == 3 else None)
        np.testing.assert_array_equal(host(M.dense()), A)
        products = M.matvec(send(backend, w)), M.rmatvec(send(backend, r))
        for got, want in zip(products, (times(A, w), times(adjoint(A), r)), strict=True):
            assert dtype_name(got) == ("complex128" if any(complex_) else "float64")
            np.testing.assert_allclose(host(got), want, rtol=0, atol=1e-14 * np.abs(A).sum(), err_msg=cls.__name__)


# -- division ----------------------------------------------------------------------------------------------------------


def difference(grid, dtype=float):
    """Forward difference along the first axis: constants along it are free."""
    kernel = np.zeros(grid, dtype)
    kernel[(0,) * len(grid)] -= 1
    kernel[(-1 % grid[0], *(0,) * (len(grid) - 1))] += 1
    return kernel


class Level:
    """A level on a backend, and the same in dense algebra."""

    def __init__(self, backend, kind, grid, lam=0.3, weighted=False, complex_=(False, False), dtype="float64"):
        self.backend = interpreted(backend)
        cls, kernel, _, A = designs(grid, complex_[0])[kind]
        self.y, self.c = (draw(i, n, K, complex_=complex_[1]) for i, n in ((7, A.shape[-2]), (8, A.shape[-1])))
        kernel, self.y, self.c, weight = spoken(dtype, kernel, self.y, self.c, difference(grid))
        self.A, Omega = A, circulant(weight) if weighted else np.eye(A.shape[-1])
        self.H = adjoint(A) @ A + lam * (Omega.T @ Omega)
        self.w = self.solved(times(adjoint(A), self.y))
        self.v = self.solved(self.c)
        self.s = np.sqrt(np.linalg.eigvalsh(self.H))
        self.system = System(cls(self.send(kernel)), Ridge(lam, Circulant(self.send(weight)) if weighted else None))
        self.solver, self.dtype = lower.choose(*self.system), dtype
        with self.backend.scope(dtype):
            self.factor = self.solver.factor(self.backend, self.system)

    def send(self, x):
        return send(self.backend, x)

    def solved(self, b):
        if self.H.ndim == 2:
            return np.linalg.solve(self.H, b)
        return np.stack([np.linalg.solve(h, b[:, j]) for j, h in enumerate(self.H)], axis=1)

    def ask(self, what, *args):
        with self.backend.scope(self.dtype):
            return getattr(self.solver, what)(self.backend, *args)


PERIODIC = ("Circulant", "StackedCirculant", "CirculantPerColumn")


@in_turn("grid", [(5,), (6,), (4, 3), (3, 4), (2, 3, 4)], ids=str)
@in_turn(("lam", "weighted"), [(0.0, False), (0.3, False), (0.3, True)])
@mixed
def test_division_solves_the_level_and_its_adjoint(grid, lam, weighted, complex_, backend):
    for kind in PERIODIC:
        divides(kind, grid, lam, weighted, complex_, backend)


def divides(kind, grid, lam, weighted, complex_, backend):
    level = Level(backend, kind, grid, lam, weighted, complex_)
    assert level.solver == FourierDivision()
    w = level.ask("argmin", level.system, level.factor, level.send(level.y))
    assert dtype_name(w) == ("complex128" if any(complex_) else "float64")
    kappa = level.s.max() / level.s.min()
    assert np.linalg.norm(host(w) - level.w) <= 20 * EPS["float64"] * kappa**2 * np.linalg.norm(level.w)
    r = times(level.A, level.w) - level.y
    q, pairs, v, _ = level.ask(
        "adjoint", level.system, level.factor, level.send(level.c), level.send(level.y), w, level.send(r)
    )
    want = times(level.A, level.v)
    assert np.linalg.norm(host(q) - want) <= 20 * EPS["float64"] * kappa**2 * np.linalg.norm(want)
    assert np.linalg.norm(host(v) - level.v) <= 20 * EPS["float64"] * kappa**2 * np.linalg.norm(level.v)
    ((s, same),) = pairs
    assert same is v
    np.testing.assert_array_equal(host(s), r)
    found = level.ask("diagnose", level.system, level.factor, level.send(level.y))
    assert float(found.condition) == pytest.approx((level.s.max(-1) / level.s.min(-1)).max())
    assert not bool(found.deficient)


def test_a_ridge_may_be_an_array(backend):
    level = Level(backend, "StackedCirculant", (6,))
    system = level.system._replace(ridge=level.system.ridge._replace(lam=level.send(np.asarray(0.3))))
    assert system.ridge.present
    w = level.ask("argmin", system, level.ask("factor", system), level.send(level.y))
    assert error(w, level.w) <= 1e-13


def test_the_paper_s_closed_form(backend):
    """``w = F^-1 { sum_i conj(x_i^) y_i^ / (sum_i |x_i^|^2 + lam) }`` at its size, F without a factor."""
    N, D, lam = 50, 128, 1e-3
    X, Y = draw(0, N, D) / 80, draw(1, N, D)
    Xf, Yf = np.fft.fft(X), np.fft.fft(Y)
    w = np.fft.ifft((Xf.conj() * Yf).sum(0) / ((np.abs(Xf) ** 2).sum(0) + lam)).real
    A = np.vstack([circulant(x) for x in X])
    dense = np.linalg.lstsq(np.vstack([A, math.sqrt(lam) * np.eye(D)]), np.r_[Y.ravel(), np.zeros(D)])[0]
    assert error(w, dense) <= 1e-12
    there = interpreted(backend)
    system, target = System(StackedCirculant(send(there, X)), Ridge(lam)), send(there, Y.reshape(-1, 1))
    with there.scope("float64"):
        solver = lower.choose(*system)
        got = solver.argmin(there, system, solver.factor(there, system), target)
    assert error(got, w[:, None]) <= 1e-12
    unitary = [np.fft.fft(x, norm="ortho") for x in (X, Y)]
    printed = np.fft.ifft(
        (unitary[0].conj() * unitary[1]).sum(0) / ((np.abs(unitary[0]) ** 2).sum(0) + lam), norm="ortho"
    )
    assert error(printed.real, w) > 0.5  # the formula belongs to the transform without a factor


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


def test_a_kernel_of_zeros_is_deficient(backend):
    there = interpreted(backend)
    with there.scope("float64"):
        assert bool(diagnosed(there, Circulant(send(there, np.zeros(8))), 0.0).deficient)


def test_a_large_grid_in_float32_is_not_deficient(backend):
    there = interpreted(backend)
    x = (draw(3, 2**16) + 0.0).astype(np.float32)
    with there.scope("float32"):
        assert not bool(diagnosed(there, Circulant(send(there, x)), 0.0).deficient)


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


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_deficient(bad, backend):
    there = interpreted(backend)
    with there.scope("float64"):
        assert bool(diagnosed(there, Circulant(send(there, np.array([1.0, bad, 2.0]))), 0.1).deficient)


def test_blocks_and_columns_of_other_sizes_are_divided_each_by_its_own(backend):
    sizes = 10.0 ** np.array([-250, 0, 250])
    kernels = draw(1, 3, 6)
    X = np.abs(np.fft.rfft(kernels))
    for lam in (0.0, 1e-300):
        for cls, want in ((CirculantPerColumn, (X * sizes[:, None]).T), (StackedCirculant, 1e250 * X[2][:, None])):
            system = System(cls(send(backend, kernels * sizes[:, None])), Ridge(lam))
            s = host(FourierDivision().factor(interpreted(backend), system).s)
            np.testing.assert_allclose(s[0], np.hypot(want, lam**0.5), rtol=1e-13)


def test_one_column_without_a_frequency_is_enough(backend):
    kernels = np.stack([draw(0, 6), np.ones(6), draw(1, 6)])
    with backend.scope("float64"):
        assert bool(diagnosed(interpreted(backend), CirculantPerColumn(send(backend, kernels)), 0.0).deficient)


def test_a_preconditioner_is_definite_where_the_design_is_not():
    """A frequency that is missing counts as a share of the largest."""
    P = circulant_preconditioner(System(Circulant(np.array([1.0, -1.0, 0.0, 0.0]))))
    assert np.min(P.spectrum) == pytest.approx(EPS["float64"] ** 0.5 * 4, rel=1e-12)


def test_columns_of_other_sizes_are_preconditioned_each_by_its_own():
    kernels = np.array([[4.0, 1.0, 0.5, 1.0], [4e-9, 1e-9, 0.0, 2e-9]])
    M = CirculantPerColumn(kernels)
    P = circulant_preconditioner(System(M))
    x = draw(2, 4, 2)
    assert error(P.apply(M.rmatvec(M.matvec(x))), x) <= 1e-10


def test_what_it_does_not_fit_goes_elsewhere(backend):
    M = Circulant(send(backend, draw(0, 4)))
    assert isinstance(lower.choose(M, Ridge(0.1, send(backend, np.eye(4)))), lower.QR)
    assert isinstance(lower.choose(M, Ridge(0.1, Circulant(send(backend, draw(0, 2, 2))))), lower.QR)
    assert lower.choose(ValidConvolution(send(backend, draw(0, 2)), (4,)), Ridge(0.1)) == lower.DualQR()
    dense = System(operators.Dense(send(backend, np.eye(4))), Ridge(0.1))
    with pytest.raises(ProblemError, match="circulant designs, got Dense"):
        FourierDivision().factor(backend, dense)
    with pytest.raises(ProblemError, match="Omega None or a Circulant"):
        FourierDivision().factor(backend, System(M, Ridge(0.1, send(backend, np.eye(4)))))


# -- preconditioner ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(6,), (3, 4)], ids=str)
@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("weighted", [False, True])
def test_preconditioner_is_the_nearest_circulant_matrix(grid, complex_, weighted, backend):
    """In the Fourier basis it is the diagonal of H; for a valid convolution, of H but for its borders."""
    weight = circulant(difference(grid)) if weighted else np.eye(math.prod(grid))
    F = np.eye(1)
    for size in grid:
        F = np.kron(F, np.fft.fft(np.eye(size), norm="ortho"))
    for kind, (cls, kernel, rest, A) in designs(grid, complex_).items():
        Omega = Circulant(send(backend, difference(grid))) if weighted else None
        P = circulant_preconditioner(System(cls(send(backend, kernel), *rest), Ridge(0.2, Omega)))
        H = adjoint(A) @ A + 0.2 * weight.T @ weight
        if kind == "CirculantPerColumn":
            r = draw(9, A.shape[-1], K)
            assert error(np.real(times(H, host(P.apply(send(backend, r))))), r) <= 1e-10
            continue
        C = np.linalg.inv(host(P.apply(send(backend, np.eye(A.shape[-1])))))
        assert np.linalg.norm(C - adjoint(C)) <= 1e-11 * np.linalg.norm(C)
        assert np.linalg.eigvalsh(C).min() > 0
        got, want = (np.diag(F @ X @ adjoint(F)).real for X in (C, H))
        if "Valid" in kind or kind == "Toeplitz":
            assert 0.5 <= got.sum() / want.sum() <= 2
        else:
            assert error(got, want) <= 1e-11


@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
def test_a_weight_that_is_no_circulant_counts_as_its_root_mean_square(complex_):
    M, Omega = Circulant(draw(0, 6)), draw(1, 6, 6, complex_=complex_)
    P = circulant_preconditioner(System(M, Ridge(0.2, Omega)))
    want = np.abs(np.fft.fft(draw(0, 6))) ** 2 + 0.2 * np.linalg.norm(Omega) ** 2 / 6
    r = draw(2, 6, 1)
    assert P.apply(r)[:, 0] == pytest.approx(np.fft.ifft(np.fft.fft(r[:, 0]) / want).real, rel=1e-12)


@pytest.mark.parametrize("cls", [FullConvolution, ValidConvolution])
def test_preconditioner_saves_iterations(cls):
    M = cls(np.exp(-(np.linspace(-2, 2, 9) ** 2)), (256,))
    A, b = M.dense(), draw(0, 256, 1)
    H = A.T @ A + 1e-3 * np.eye(256)
    P = circulant_preconditioner(System(M, Ridge(1e-3)))

    def steps(preconditioner):
        seen = []
        cg(H, b[:, 0], rtol=1e-8, maxiter=2560, M=preconditioner, callback=lambda x: seen.append(1))
        return len(seen)

    few = steps(LinearOperator(H.shape, lambda r: P.apply(r.reshape(-1, 1)), dtype=float))
    assert 2 * few <= steps(None)


def test_preconditioner_wants_a_convolution():
    with pytest.raises(ProblemError, match="got Dense"):
        circulant_preconditioner(System(operators.Dense(np.eye(2)), Ridge(0.1)))


# -- in problems -------------------------------------------------------------------------------------------------------


def stacked(theta, data):
    return StackedCirculant(theta)


def modulated(theta, data):
    xp = xv.array_namespace(theta)
    return StackedCirculant(theta * theta + data["b"] * xp.sin(theta))


def per_column(theta, data):
    return CirculantPerColumn(theta)


def full_model(theta, data):
    return FullConvolution(theta, (4,))


def valid_model(theta, data):
    return ValidConvolution(theta, (7,))


START = draw(30, 3, 6)
TARGET = draw(31, 18)
LONG = draw(32, 18)
OMEGA = Circulant(difference((6,)))
PROBLEMS = {
    "separable": (xv.separable(stacked, TARGET, lam=0.2), START),
    "separable many": (xv.separable(stacked, draw(33, 18, 4), lam=0.2), START),
    "separable Omega": (xv.separable(stacked, TARGET, lam=0.2, Omega=OMEGA), START),
    "separable no ridge": (xv.separable(stacked, TARGET), START),
    "per column": (xv.separable(per_column, draw(34, 6, 3), lam=0.2, compress=False), START),
    "two dimensions": (xv.separable(stacked, draw(35, 24), lam=0.2), draw(36, 2, 3, 4)),
    "moving target": (
        xv.separable(modulated, lambda t, d: t[0, 0] * d["y"], data={"y": TARGET, "b": LONG.reshape(3, 6)}, lam=0.1),
        START,
    ),
    "full": (xv.separable(full_model, draw(37, 9), lam=0.1), draw(38, 6)),
    "valid": (xv.separable(valid_model, draw(39, 5), lam=0.1), draw(38, 3)),
    "bilevel": (
        xv.bilevel(
            lower=xv.Level(stacked, TARGET, lam=0.2),
            upper=xv.Level(modulated, LONG),
            data={"b": LONG.reshape(3, 6)},
        ),
        START,
    ),
    "bilevel Omega": (
        xv.bilevel(
            lower=xv.Level(stacked, TARGET, lam=0.2, Omega=OMEGA),
            upper=xv.Level(modulated, LONG, lam=0.3, Omega=OMEGA),
            data={"b": LONG.reshape(3, 6)},
        ),
        START,
    ),
}  # fmt: skip


@in_turn("case", PROBLEMS)
def test_gradient_is_that_of_the_value(case, backend):
    problem, theta = PROBLEMS[case]
    _, gradient = xv.value_and_gradient(problem, theta, backend=backend.name)
    way = draw(40, *theta.shape)
    ahead, behind = (float(xv.value_and_gradient(problem, theta + h * way)[0]) for h in (1e-6, -1e-6))
    allowed = 1e-7 * np.linalg.norm(gradient) * np.linalg.norm(way)
    assert inner(host(gradient), way) == pytest.approx((ahead - behind) / 2e-6, abs=allowed)


@pytest.mark.parametrize("solver", [lower.QR(), lower.SVD()], ids=repr)
def test_a_weight_that_is_an_operator_suits_every_solver(solver, backend):
    want = xv.value_and_gradient(PROBLEMS["separable Omega"][0], START)
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
    problem, theta = PROBLEMS["bilevel Omega"]
    assert error(xv.value_and_gradient(problem, theta, backend="jax"), xv.value_and_gradient(problem, theta)) <= 1e-12


def test_a_zero_frequency_is_reported_as_rank_deficiency():
    problem = xv.separable(lambda theta, data: Circulant(theta - xv.array_namespace(theta).mean(theta)), draw(1, 8))
    fit = xv.solve(problem, draw(0, 8), over=xv.sets.L2Ball(10.0), max_iter=3, progress=False)
    assert fit.status is xv.Status.RANK_DEFICIENT


def test_a_large_operator_is_never_made_dense(monkeypatch):
    monkeypatch.setattr(StackedCirculant, "dense", lambda self: pytest.fail("made dense"))
    problem, start = PROBLEMS["bilevel"]
    fit = xv.solve(problem, start / 10, over=xv.sets.L2Ball(1.0), max_iter=3, progress=False)
    assert fit.w.shape == (6,)
    assert fit.verified.dead_units == 0
