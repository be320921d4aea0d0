"""Sets of matrices against closed forms, brute force and each other."""

import sys
from itertools import product

import numpy as np
import pytest

from xvarpro import sets
from xvarpro.core.namespace import dtype_name
from xvarpro.errors import BackendNotInstalledError, ProblemError
from xvarpro.sets.spectra import svd as _svd
from xvarpro.sets.transport import _flow

from .support import compiles_for_long, host, inner, rng, send

EPS = np.finfo(np.float64).eps


def matrices(count, shape=(5, 4), seed=0, kind=float):
    """Random matrices, a third of them rounded, so that singular values tie and vanish."""
    g = rng(seed).normal(size=(count, *shape))
    g[::3] = np.round(g[::3])
    if kind is complex:
        g = g + 1j * matrices(count, shape, seed + 1)[::-1]
    return g


def test_the_polar_factor_leaves_out_null_directions(backend):
    g = np.outer([3.0, 0.0, 4.0], [1.0, 0.0])
    assert np.abs(host(sets.SpectralBall().lmo(send(backend, g))) + g / 5).max() <= 4 * EPS
    assert not host(sets.SpectralBall().lmo(send(backend, 0 * g))).any()


def test_no_negative_eigenvalue_leaves_the_zero_matrix(backend):
    g = matrices(1, (4, 4), 1)[0]
    assert not host(sets.UnitSpectrahedron(1.5).lmo(send(backend, g @ g.T))).any()
    assert float(sets.UnitSpectrahedron(1.5).support(send(backend, -g @ g.T))) == 0


@compiles_for_long
def test_complex_points_of_single_precision_keep_it(backend):
    """Projections of points near and far away are the nearest, by one call of the oracle."""
    kinds = (sets.NuclearBall(1.5), sets.SpectralBall(1.5), sets.SchattenBall(4.0, 0.5), sets.Spectraplex(1.5),
             sets.UnitSpectrahedron(1.5), sets.Fantope(2))  # fmt: skip
    eps = np.finfo(np.float32).eps
    for C, (x, scale) in product(kinds, zip(matrices(2, (4, 4), kind=complex), (1e3, 1e-3), strict=True)):
        there = send(backend, (scale * x).astype(np.complex64))
        p = C.project(there)
        y = host(C.lmo(p - there)).astype(complex)
        assert dtype_name(p) == "complex64"
        # the trace of what was far away is that of rounding
        assert float(C.violation(p)) <= 40 * eps * (1 + scale)
        away, along = host(there).astype(complex) - host(p), y - host(p)
        assert inner(away, along) <= 200 * eps * (1 + np.linalg.norm(scale * x)) ** 2


def test_violations_of_matrices_by_hand():
    for C, x, want in (
        (sets.Spectraplex(0.0), np.diag([0.5, 0.0]), 0.5),
        (sets.UnitSpectrahedron(4.0), np.array([[1.0, 0.8j], [0.0, 1.0]]), 0.1),
        (sets.Fantope(1), np.array([[0.5, 0.2], [0.0, 0.5]]), 0.1),
        (sets.Transport(np.array([2.0, 2.0]), np.array([1.0, 3.0])), np.array([[1.0, 1.0], [0.0, 2.5]]), 0.5 / 3),
        (sets.Transport(np.array([1.0, 3.0]), np.array([2.0, 2.0])), np.array([[1.0, 0.0], [1.5, 2.0]]), 0.5 / 3),
    ):
        assert float(C.violation(x)) == pytest.approx(want, rel=1e-13), C


# -- host solvers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 5), (1, 3)])
def test_a_plan_is_a_vertex_and_its_certificate_scales(shape):
    m, n = shape
    a, b = rng(0).uniform(0.1, 1.0, size=m), rng(1).uniform(0.1, 1.0, size=n)
    C = sets.Transport(a, b * (a.sum() / b.sum()))
    for scale, g in product((1e-20, 1e20), matrices(3, shape)):
        v, slack = C.certified(scale * g)
        assert np.count_nonzero(v) <= m + n - 1
        assert inner(g, v) == pytest.approx(inner(g, C.lmo(g)), abs=1e-8)
        assert 0 <= float(slack) <= 1e-9 * scale * a.sum() * np.abs(g).max()


def test_a_plan_is_exact_on_the_support_that_a_solver_found():
    """A forest: what is sent follows from the sums alone, whatever the solver left of it; a cycle is left as it is."""
    plan = np.array([[0.25, 0.125, 0.0], [0.0, 0.125, 0.0], [0.0, 0.25, 0.25]])
    a, b = plan.sum(axis=1), plan.sum(axis=0)
    np.testing.assert_array_equal(_flow(plan * (1 + 1e-3 * rng(0).normal(size=(3, 3))), a, b), plan)
    apart = np.diag([0.5, 0.0, 0.25])
    np.testing.assert_array_equal(_flow(2 * apart, apart.sum(axis=1), apart.sum(axis=0)), apart)
    cycle = np.full((2, 2), 0.3)
    np.testing.assert_array_equal(_flow(cycle, np.full(2, 0.5), np.full(2, 0.5)), cycle)


@pytest.mark.parametrize("C", [sets.Birkhoff(), sets.Transport()], ids=repr)
def test_host_solvers_do_not_compile(C):
    import jax

    assert not C.compiles
    with pytest.raises(ProblemError, match=f"{type(C).__name__} calls a solver on the host and cannot be compiled"):
        jax.jit(C.lmo)(np.ones((2, 2)))


def test_without_scipy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    for C in (sets.Birkhoff(), sets.Transport()):
        with pytest.raises(BackendNotInstalledError, match="pip install 'xvarpro"):
            C.lmo(np.ones((2, 2)))


@pytest.mark.parametrize("unit", [2.0**-900, 2.0**-30, 2.0**900])
def test_plans_of_any_size_project_as_those_of_size_one(unit):
    x, a, b = rng(4).normal(size=(4, 3)), np.full(4, 0.75), np.ones(3)
    for far in (1.0, 2.0**20):
        want = sets.Transport(a, b).project(far * x)
        assert np.array_equal(sets.Transport(unit * a, unit * b).project(unit * (far * x)), unit * want)


def test_transport_with_empty_rows(backend):
    a, b = np.array([0.0, 1.0, 0.0]), np.array([0.25, 0.0, 0.75])
    v = host(sets.Transport(a, b).lmo(send(backend, rng(3).normal(size=(3, 3)))))
    assert np.abs(v - np.outer(a, b)).max() <= 4 * EPS


# -- the iterative oracle ----------------------------------------------------------------------------------------------


def test_an_iteration_that_does_not_converge_gives_no_number(monkeypatch):
    def fails(*_, **__):
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    x = np.eye(3, dtype=np.complex64)
    C = sets.Spectraplex()
    monkeypatch.setattr(np.linalg, "eigh", fails)
    p = C.project(np.stack([x, x]))
    assert (p.dtype, p.shape) == (np.complex64, (2, 3, 3))
    assert np.isnan(p).all()
    assert C.violation(x).dtype == np.float32


# -- in a solve --------------------------------------------------------------------------------------------------------


def test_factors_of_a_matrix_that_is_not_finite_are_nan_and_of_no_other():
    for bad in (np.nan, np.inf):
        x = rng(0).normal(size=(2, 4, 3))
        x[0, 1, 2] = bad
        for part in _svd(x):
            assert np.isnan(part[0]).all()
            assert np.isfinite(part[1]).all()


def test_centres_of_stacks_are_those_of_matrices():
    for C in (sets.Spectraplex(), sets.Fantope(2)):
        assert (C.center(np.zeros((2, 3, 4, 4)))[1, 2] == C.center(np.zeros((4, 4)))).all()
