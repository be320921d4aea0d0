"""Sets of matrices against closed forms, brute force and each other; the iterative oracle against decompositions."""

import sys
from itertools import product

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import sets
from xvarpro.core.namespace import device, dtype_name
from xvarpro.errors import BackendNotInstalledError, ProblemError
from xvarpro.sets.lanczos import _by_cholesky, _Ritz
from xvarpro.sets.transport import _flow

from .support import compiles_for_long, host, in_turn, inner, rng, send

EPS = np.finfo(np.float64).eps


def matrices(count, shape=(5, 4), seed=0, kind=float):
    """Random matrices, a third of them rounded, so that singular values tie and vanish."""
    g = rng(seed).normal(size=(count, *shape))
    g[::3] = np.round(g[::3])
    if kind is complex:
        g = g + 1j * matrices(count, shape, seed + 1)[::-1]
    return g


def with_spectrum(s, shape, seed=0, kind=float):
    """A matrix with the singular values s."""
    draw = rng(seed)

    def frame(n):
        A = draw.normal(size=(n, len(s)))
        return np.linalg.qr(A + 1j * draw.normal(size=A.shape) if kind is complex else A)[0]

    return (frame(shape[0]) * s) @ frame(shape[1]).conj().T


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


@in_turn(("step", "want"), [(0.25, 4.0), (0.75, 3.75), (1.0, 4.0), (3.0, 6.0), (9.0, 10.0)])
def test_a_bound_of_the_eigenvalues_is_the_first_that_cholesky_accepts(step, want):
    """Of ``lowest + step 4^k``, or the ceiling; a step of 0 begins at rounding."""
    A = np.diag([1.0, 3.5, 2.0])
    with xv.backends.get("numpy").scope("float64"):
        found, least = (_by_cholesky(A, *map(np.asarray, (3.0, s, 10.0))) for s in (step, 0.0))
    assert float(found) == want
    assert 3.5 < float(least) <= 3.0 + 4 * 0.5


def test_a_bound_of_negative_eigenvalues_is_above_them_by_what_rounding_may_do():
    """From the Ritz value 16 eps to the first trial, and 16 and 8 more."""
    ritz = _Ritz(np.eye(4), np.asarray(3.0), np.asarray(-3.0), np.asarray(0.0))
    with xv.backends.get("numpy").scope("float64"):
        found = sets.Lanczos(tol=1e-300)._bound(ritz, -3 * np.eye(4), np.asarray(6.0))
    assert (float(found) + 3) / EPS == pytest.approx(3 * (16 + 16 + 8), abs=2.5)


def test_what_a_solver_says_of_no_matrices_is_on_their_device():
    strict = pytest.importorskip("array_api_strict")
    x = strict.zeros((0, 40, 30), device=strict.Device("device1"))
    for part in (*sets.Lanczos().singular(x), *sets.NuclearBall(1.0, sets.Lanczos()).certified(x)):
        assert part.device == x.device


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

SPECTRA = {
    "flat": lambda n: np.ones(n),
    "geometric": lambda n: 0.8 ** np.arange(n),
    "tight cluster": lambda n: np.r_[1 - 1e-9 * np.arange(6), 0.5 * np.ones(n - 6)],
    "wide cluster": lambda n: np.sort(np.r_[1 + 1e-4 * rng(1).random(n // 2), rng(2).random(n - n // 2)])[::-1],
    "linear": lambda n: np.linspace(1, 0, n),
    "rank one": lambda n: np.r_[1.0, np.zeros(n - 1)],
    "rank three": lambda n: np.r_[1.0, 1.0, 0.5, np.zeros(n - 3)],
    "one above the rest": lambda n: np.r_[1.0, 0.1 * np.ones(n - 1)],
    "zero": lambda n: np.zeros(n),
}


def with_values(values, dtype, shape, seed):
    return with_spectrum(values, shape, seed, complex if dtype.startswith("complex") else float)


@in_turn("dtype", ["float64", "float32", "complex128"])
@in_turn("name", SPECTRA)
def test_the_bound_is_never_below_the_largest_value(name, dtype):
    """Singular value, in both shapes, and eigenvalue, of both signs."""
    eps = np.finfo(dtype).eps
    for shape, seed in product([(40, 31), (30, 50)], range(2)):
        G = (7.0 * with_values(SPECTRA[name](min(shape)), dtype, shape, seed)).astype(dtype)
        largest = np.linalg.svd(G.astype(complex))[1][0]
        found = sets.Lanczos().singular(G)
        assert found.vector.dtype == found.image.dtype == dtype
        assert found.value.dtype == found.bound.dtype == np.zeros(0, dtype).real.dtype
        assert found.value <= largest + 8 * eps * largest
        assert found.bound >= largest
        assert np.linalg.norm(G @ found.vector) == pytest.approx(float(found.value), rel=1e-5, abs=1e-30)
        assert found.bound - found.value <= max(1e-3, 200 * eps) * largest
    n = 36
    for seed, signs in enumerate((np.ones(n), -np.ones(n), np.where(np.arange(n) % 2, 1.0, -1.0))):
        Q = with_values(np.ones(n), dtype, (n, n), seed)
        A = ((Q * (signs * SPECTRA[name](n))) @ Q.conj().T).astype(dtype)
        A = (A + A.conj().T) / 2
        w = np.linalg.eigvalsh(A.astype(complex))
        found, size = sets.Lanczos().eigen(A), np.abs(w).max()
        assert w[-1] <= found.bound <= found.value + 1e-3 * size
        assert found.value <= w[-1] + 8 * eps * size


def test_a_start_without_the_leading_vector_cannot_fool_the_bound():
    """The Krylov space of a start that is orthogonal to the leading pair never finds it: the Cholesky factor does."""
    n = 40
    start = np.linalg.qr(rng(0).normal(size=(n, 4)))[0]  # the start of a width of four
    blind = rng(9).normal(size=n)
    blind = blind - start @ (start.T @ blind)
    blind /= np.linalg.norm(blind)
    V = np.linalg.qr(np.column_stack([blind, start, rng(8).normal(size=(n, n - 5))]))[0]
    s = np.r_[2.0, 1.0, 1.0, 1.0, 1.0, 0.1 * np.ones(n - 5)]
    G = (V * s) @ V.T
    found = sets.Lanczos(restarts=1).singular(G)
    assert found.bound >= 2.0 * (1 - 4 * EPS)


def test_an_oracle_without_a_solver_or_of_few_rows_is_exact():
    G, solver = rng(0).normal(size=(40, 30)), sets.Lanczos(restarts=2)
    assert sets.NuclearBall(1.5).certified(G)[1] is None
    assert sets.NuclearBall(1.5, solver).certified(G[:24, :])[1] is None  # too small for a Krylov space: decomposed
    v, slack = sets.NuclearBall(1.5, solver).certified(0 * G)
    assert float(slack) == 0 == inner(G, 0 * v)
    for shift in (5.0, -5.0):  # eigenvalues of one sign
        A = rng(1).normal(size=(30, 30)) / 6 + shift * np.eye(30)
        least, size = np.linalg.eigvalsh((A + A.T) / 2)[[0, -1]]
        v, slack = sets.UnitSpectrahedron(1.5, solver).certified(A)
        assert inner(A, v) - float(slack) <= 1.5 * min(least, 0.0) + 40 * EPS * 6
        assert float(slack) <= 1e-2 * max(abs(least), abs(size))


def test_the_iterative_oracle_compiles():
    import jax

    C = sets.NuclearBall(1.0, sets.Lanczos(restarts=3))
    certified = jax.jit(C.certified)
    with jax.enable_x64(True):
        for name in ("geometric", "wide cluster"):
            G = with_spectrum(SPECTRA[name](30), (40, 30))
            v, slack = certified(jax.numpy.asarray(G))
            assert inner(G, host(v)) - float(slack) <= -np.linalg.svd(G)[1][0] + 4 * EPS
            if name == "geometric":  # in a cluster the vector is not determined
                assert np.abs(host(v) - C.lmo(G)).max() <= 1e-6


def krylov(A, width, depth, restarts):
    """Largest Ritz values of the Krylov spaces of a start and of the Ritz vectors that follow."""
    block, found = rng(0).normal(size=(len(A), width)), []
    for _ in range(restarts):
        blocks = [np.linalg.qr(block)[0]]
        for _ in range(depth - 1):
            blocks.append(np.linalg.qr(A @ blocks[-1])[0])
        K = np.linalg.qr(np.hstack(blocks))[0]
        w, Y = np.linalg.eigh(K.conj().T @ A @ K)
        block = K @ Y[:, -width:]
        found.append(w[-1])
    return found


@pytest.mark.parametrize("kind", [float, complex])
def test_each_restart_goes_on_from_the_best_vectors_of_the_last(kind):
    G = with_spectrum(np.linspace(2.0, 1.0, 30), (40, 30), 3, kind)
    A = G.conj().T @ G
    for width, depth in ((2, 3), (3, 2), (4, 3)):
        want = krylov(A, width, depth, 4)
        assert np.diff(want).min() > 1e-6
        for n in range(1, 5):
            solver = sets.Lanczos(width, depth, n, 1e-9)
            assert float(solver.eigen(A).value) == pytest.approx(want[n - 1], rel=1e-9)
            assert float(solver.singular(G).value) == pytest.approx(np.sqrt(want[n - 1]), rel=1e-9)
            assert float(solver.singular(G.conj().T).value) == pytest.approx(np.sqrt(want[n - 1]), rel=1e-9)


def test_a_solver_ends_where_the_leading_vector_is_found():
    """Whatever the others are like; a matrix without a leading one is gone on with."""
    Q = np.linalg.qr(rng(4).normal(size=(40, 40)))[0]
    for leading, ended in ((50.0, True), (1.1, False)):
        A = (Q * np.r_[leading, np.linspace(1.0, 0.0, 39)]) @ Q.T
        once, often = (sets.Lanczos(restarts=n).eigen(A).vector for n in (1, 30))
        assert (once == often).all() == ended


def test_the_space_of_a_solver_is_that_of_the_shorter_side(monkeypatch):
    sizes, solve = [], sets.Lanczos._solve

    def look(self, apply, like, n):
        sizes.append(n)
        return solve(self, apply, like, n)

    monkeypatch.setattr(sets.Lanczos, "_solve", look)
    for shape in ((40, 30), (30, 40), (30, 30)):
        sets.Lanczos(restarts=1).singular(rng(0).normal(size=shape), certify=False)
    assert sizes == [30, 30, 30]


def test_a_vertex_alone_takes_no_bound(monkeypatch):
    """It is most of the work, and only a certificate needs it."""
    C, g = sets.NuclearBall(1.0, sets.Lanczos(restarts=1)), rng(0).normal(size=(40, 30))
    want, _ = C.certified(g)

    def asked(*_):
        raise AssertionError

    monkeypatch.setattr(sets.Lanczos, "_bound", asked)
    assert (C.lmo(g) == want).all()


def test_a_coarse_tolerance_is_what_the_bound_begins_with():
    """A quarter above the Ritz value is above every eigenvalue; with less it is the first of 4 times the step."""
    A = np.diag(np.r_[1.0, 0.5 * np.ones(39)])
    assert float(sets.Lanczos(tol=0.25).eigen(A).bound) == pytest.approx(1.25, rel=1e-6)
    assert float(sets.Lanczos(tol=0.25).singular(A).bound) == pytest.approx(np.sqrt(1.25), rel=1e-6)
    for shift in (1.0, -3.0):
        found = sets.Lanczos(tol=1e-3).eigen(A + shift * np.eye(40))
        size = max(1 + shift, abs(0.5 + shift))  # the step is relative to the largest value in size
        assert float(found.bound - found.value) == pytest.approx(1e-3 * size, rel=0.1)
    found = sets.Lanczos(tol=1e-3).eigen(np.diag(np.r_[1.0, -8.0, 0.5 * np.ones(38)]))
    assert float(found.bound - found.value) == pytest.approx(8e-3, rel=0.1)


def test_a_value_that_has_settled_ends_a_solver():
    """Its error is the square of that of its vector."""
    n = 60
    Q = np.linalg.qr(rng(5).normal(size=(n, n)))[0]
    A = (Q * np.linspace(1.0, 0.0, n)) @ Q.T
    found = sets.Lanczos(2, 2, 10_000, 1e-6).eigen(A)
    left = np.linalg.norm(A @ found.vector - found.value * found.vector)
    assert 1e-6 < left < 1e-2
    assert float(found.value) == pytest.approx(1.0, rel=1e-3)


def test_iterative_oracles_take_batches_and_what_is_not_finite():
    """Each matrix of a batch as alone; NaN for one that is not finite, and only there."""
    solver = sets.Lanczos(restarts=3)
    for C, shape in ((sets.NuclearBall(1.5, solver), (30, 26)), (sets.Spectraplex(1.5, solver), (28, 28)),
                     (sets.UnitSpectrahedron(1.5, solver), (28, 28))):  # fmt: skip
        g = rng(6).normal(size=(2, 3, *shape))
        v, slack = C.certified(g)
        alone = [C.certified(x) for x in g.reshape(6, *shape)]
        assert (v.shape, slack.shape) == (g.shape, (2, 3))
        np.testing.assert_allclose(v.reshape(6, *shape), np.stack([x for x, _ in alone]), atol=1e-13)
        np.testing.assert_allclose(slack.ravel(), [s for _, s in alone], atol=1e-13)
        np.testing.assert_allclose(C.support(g).ravel(), [C.support(x) for x in g.reshape(6, *shape)], rtol=1e-13)
        for bad in (np.nan, np.inf):
            lost = g[0].copy()
            lost[1, 2, 3] = bad
            w, slack = C.certified(lost)
            assert np.isnan(w[1]).all()
            assert np.isnan(slack[1])
            assert np.isnan(C.support(lost)[1])
            np.testing.assert_array_equal(w[::2], v[0, ::2])
        for dtype in (np.float32, np.float64):
            none = np.zeros((0, 2, *shape), dtype)
            v, slack = C.certified(none)
            assert (v.shape, v.dtype, slack.shape, slack.dtype) == (none.shape, dtype, (0, 2), dtype)


def test_iterative_oracles_take_batches_of_no_matrices(backend):
    for shape in ((40, 30), (30, 40)):
        g = send(backend, np.zeros((0, 3, *shape), np.complex64))
        found = sets.Lanczos(restarts=3).singular(g)
        assert (found.vector.shape, found.image.shape) == ((0, 3, shape[1]), (0, 3, shape[0]))
        assert (found.value.shape, found.bound.shape, dtype_name(found.value)) == ((0, 3), (0, 3), "float32")
        assert dtype_name(found.vector) == dtype_name(found.image) == "complex64"
        assert all(device(x) == device(g) for x in found)  # not every framework's devices have a hash


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


def test_centres_of_stacks_are_those_of_matrices():
    for C in (sets.Spectraplex(), sets.Fantope(2)):
        assert (C.center(np.zeros((2, 3, 4, 4)))[1, 2] == C.center(np.zeros((4, 4)))).all()
