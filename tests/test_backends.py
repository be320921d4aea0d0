"""The registry, and what every backend adds to its array-API namespace."""

from __future__ import annotations

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import backends
from xvarpro.backends import Backend, find_dtype
from xvarpro.backends.exchange import find_device
from xvarpro.core.namespace import device as device_of
from xvarpro.core.namespace import dtype_name
from xvarpro.errors import BackendNotInstalledError, UnknownBackendError

from .support import HOST_BACKENDS, error, host, no_cuda, rng, send

EPS = np.finfo(np.float64).eps


# -- the registry ------------------------------------------------------------------------------------------------------


def test_names_of_the_built_in_backends():
    assert set(HOST_BACKENDS) | {"cupy"} <= set(backends.known())


def test_the_seam_stays_small():
    """What an author of a backend sees: methods, properties and class attributes, counted together."""
    members = {name for name in (*vars(Backend), *Backend.__annotations__) if not name.startswith("_")}
    assert len(members) <= 25, sorted(members)


def test_one_backend_per_name(backend):
    assert isinstance(backend, Backend)
    assert backends.get(backend.name) is backend


@pytest.mark.parametrize("name", ["tensorflow", "", "Numpy"])
def test_unknown_names_list_the_known(name):
    with pytest.raises(UnknownBackendError) as caught:
        backends.get(name)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in backends.known())


def test_a_framework_that_is_missing_names_the_extra(monkeypatch):
    monkeypatch.setattr(backends.registry, "find_spec", lambda package: None)
    for name in ("torch", "jax", "cupy"):
        assert not backends.installed(name)
        with pytest.raises(BackendNotInstalledError, match=rf"needs the package '{name}'.*pip install 'xvarpro\["):
            backends.get.__wrapped__(name)


def test_arrays_are_known_by_their_type(backend):
    assert backends.of(send(backend, np.ones(2))) is backend


@pytest.mark.parametrize("thing", [1.0, [1.0], "x", None, object(), np])
def test_what_is_no_array_has_no_backend(thing):
    assert backends.of(thing) is None


def test_numpy_scalars_belong_to_numpy():
    assert backends.of(np.float64(1.0)).name == "numpy"


def test_subclasses_of_arrays_belong_to_their_framework():
    import torch

    class Marked(np.ndarray):
        pass

    assert backends.of(np.ones(2).view(Marked)).name == "numpy"
    assert backends.of(torch.nn.Parameter(torch.ones(2))).name == "torch"


def test_the_nearest_class_decides():
    """A framework may build its arrays on another's: not the order of a set, which changes from run to run."""
    kind = type("Tensor", (np.ndarray,), {"__module__": "torch.somewhere"})
    other = type("Other", (np.ndarray,), {"__module__": "jax.elsewhere"})
    for _ in range(2):
        assert backends.of(np.ones(2).view(kind)).name == "torch"
        assert backends.of(np.ones((2, 2)).view(other)).name == "jax"


def test_tracers_belong_to_jax():
    import jax

    seen = []
    jax.jit(lambda x: seen.append(backends.of(x)) or x)(np.ones(2, "float32"))
    assert seen == [backends.get("jax")]


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool", "complex128"])
def test_arrays_to_and_fro(dtype, backend):
    x = np.arange(6).reshape(2, 3).astype(dtype)
    there = backend.asarray(x)
    assert dtype_name(there) == dtype
    back = backend.to_numpy(there)
    assert back.dtype == x.dtype
    assert (back == x).all()


def test_dtypes_by_name(backend):
    x = backend.asarray(np.ones(2), dtype="float32")
    assert dtype_name(x) == "float32"
    assert x.dtype == find_dtype(backend.xp, "float32")


def test_scalars_are_read_together(backend):
    xp = backend.xp
    numbers = [
        send(backend, np.array(1.5)),
        xp.sum(send(backend, np.ones(3))),
        send(backend, np.array(2, dtype="int32")),
    ]
    got = backend.to_floats(numbers)
    assert got == [1.5, 3.0, 2.0]
    assert all(type(x) is float for x in got)


def test_devices(backend):
    found = backend.devices()
    assert "cpu" in found or backend.name == "cupy"
    x = send(backend, np.ones(2))
    name, place = next(iter(found.items()))
    assert find_device(backend, name) == find_device(backend, place) == place
    assert str(device_of(backend.asarray(x, device=place))) == str(place)
    with pytest.raises(ValueError, match=rf"device must be one of '{name}'.*got 'abacus:3'"):
        find_device(backend, "abacus:3")


def test_description_is_plain(backend):
    found = backend.describe()
    assert backend.name in found
    assert all(isinstance(x, str | int | bool) for x in found.values())


# -- calculus ----------------------------------------------------------------------------------------------------------


def two_outputs(x, Z, c):
    xp = xv.array_namespace(x)
    return xp.sin(x) * xp.sum(Z**2), Z @ xp.exp(c * x)


def operands(backend):
    draw = rng(0)
    return [send(backend, draw.normal(size=s)) for s in ((3,), (4, 3), (3,))]


def inner(a, b):
    return sum(float(np.sum(np.conj(host(x)) * host(y)).real) for x, y in zip(a, b, strict=True))


def test_vjp_is_the_transpose_of_linearise(backend):
    """``<u, J v> = <J^T u, v>``."""
    x, Z, c = operands(backend)
    v = [send(backend, rng(1).normal(size=s)) for s in ((3,), (4, 3))]
    u = [send(backend, rng(2).normal(size=s)) for s in ((3,), (4,))]
    with backend.scope("float64"):
        outputs, pullback = backend.vjp(two_outputs, (x, Z), (c,))
        again, push = backend.linearise(two_outputs, (x, Z), (c,))
        pushed = push(tuple(v))
        pulled = pullback(tuple(u))
    assert [y.shape for y in pulled] == [(3,), (4, 3)]
    assert error(outputs, again) <= 4 * EPS
    assert inner(u, pushed) == pytest.approx(inner(pulled, v), rel=100 * EPS)


def test_linearise_is_the_derivative(backend):
    x, Z, c = operands(backend)
    v = [rng(1).normal(size=s) for s in ((3,), (4, 3))]
    h = 6e-6
    with backend.scope("float64"):
        pushed = backend.linearise(two_outputs, (x, Z), (c,))[1](tuple(send(backend, d) for d in v))
        ahead, behind = (
            two_outputs(*(send(backend, host(a) + s * h * d) for a, d in zip((x, Z), v, strict=True)), c)
            for s in (1, -1)
        )
    assert error(pushed, [(host(a) - host(b)) / (2 * h) for a, b in zip(ahead, behind, strict=True)]) <= 1e-8


def test_an_output_that_is_constant_has_no_gradient(backend):
    x, _, c = operands(backend)
    with backend.scope("float64"):
        _, pullback = backend.vjp(lambda x, c: (c + 0.0, x * 2.0), (x,), (c,))
        (g,) = pullback((c, c))
    assert error(g, 2 * host(c)) <= EPS


def test_an_argument_that_is_not_used_has_gradient_zero(backend):
    x, Z, c = operands(backend)
    with backend.scope("float64"):
        _, pullback = backend.vjp(lambda x, Z, c: (x * c,), (x, Z), (c,))
        g, zero = pullback((c,))
    assert zero.shape == (4, 3)
    assert not host(zero).any()
    assert error(g, host(c) ** 2) <= 4 * EPS


def test_no_output_depends_on_theta(backend):
    x, _, c = operands(backend)
    with backend.scope("float64"):
        _, pullback = backend.vjp(lambda x, c: (c * 1.0,), (x,), (c,))
        (g,) = pullback((c,))
    assert g.shape == (3,)
    assert not host(g).any()


def test_complex_gradients_have_one_convention(backend):
    """``dL/dRe + i dL/dIm``: for re^2 + 3 im at 1 + 2j that is 2 + 3j on every backend."""
    z = send(backend, np.array([1.0 + 2.0j]))
    one = send(backend, np.array(1.0))

    def loss(z):
        xp = xv.array_namespace(z)
        return (xp.sum(xp.real(z) ** 2 + 3 * xp.imag(z)),)

    with backend.scope("float64"):
        _, pullback = backend.vjp(loss, (z,))
        (g,) = pullback((one,))
    assert host(g).tolist() == [2 + 3j]


def test_complex_outputs_have_one_convention(backend):
    """Pull-back of ``w -> a w`` is multiplication with conj(a)."""
    w, a, u = (send(backend, rng(i).normal(size=3) + 1j * rng(i + 9).normal(size=3)) for i in range(3))
    with backend.scope("float64"):
        _, pullback = backend.vjp(lambda w, a: (a * w,), (w,), (a,))
        (g,) = pullback((u,))
    assert np.abs(host(g) - np.conj(host(a)) * host(u)).max() <= 8 * EPS


# -- linear algebra ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 3), (3, 3), (3, 7), (1, 1)])
def test_qr(shape, backend):
    A = rng(0).normal(size=shape)
    with backend.scope("float64"):
        Q, R = (host(x) for x in backend.qr(send(backend, A)))
        r = host(backend.qr(send(backend, A), mode="r")[1])
    k = min(shape)
    assert Q.shape == (shape[0], k)
    assert R.shape == r.shape == (k, shape[1])
    assert np.abs(Q.T @ Q - np.eye(k)).max() <= 20 * EPS
    assert np.abs(Q @ R - A).max() <= 20 * EPS
    assert np.abs(np.tril(R, -1)).max() == 0
    assert np.abs(np.tril(r, -1)).max() == 0
    assert np.abs(r.T @ r - A.T @ A).max() <= 100 * EPS


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6, 1e7, 1e9, 1e15, np.inf])
@pytest.mark.parametrize("scale", [1.0, 1e-160, 1e160])
def test_qr_of_a_tall_matrix(condition, scale, backend):
    """Householder's accuracy, whichever way it was computed and whatever the columns are like."""
    m, n = 600, 30
    U, V = (np.linalg.qr(rng(i).normal(size=(size, n)))[0] for i, size in enumerate((m, n)))
    A = scale * (U * np.logspace(0, -np.log10(condition), n)) @ V.T if condition < np.inf else scale * np.eye(m, n)
    A[:, 5] *= condition < np.inf
    with backend.scope("float64"):
        Q, R = (host(x) for x in backend.qr(send(backend, A)))
    assert np.abs(Q.T @ Q - np.eye(n)).max() <= 50 * EPS
    assert np.abs(Q @ R - A).max() <= 20 * EPS * np.abs(A).max() * np.sqrt(n)
    assert np.abs(np.tril(R, -1)).max() == 0


@pytest.mark.parametrize("shape", [(7, 3), (3, 3), (3, 7)])
def test_svd(shape, backend):
    A = rng(0).normal(size=shape)
    with backend.scope("float64"):
        U, s, Vh = (host(x) for x in backend.svd(send(backend, A)))
    assert (U.shape, s.shape, Vh.shape) == ((shape[0], 3), (3,), (3, shape[1]))
    assert np.abs((U * s) @ Vh - A).max() <= 30 * EPS
    assert (np.diff(s) <= 0).all()


def test_cholesky(backend):
    A = rng(0).normal(size=(6, 4))
    with backend.scope("float64"):
        L = host(backend.cholesky(send(backend, A.T @ A)))
    assert np.abs(L @ L.T - A.T @ A).max() <= 30 * EPS
    assert np.abs(np.triu(L, 1)).max() == 0


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("k", [1, 3])
def test_solve_triangular(lower, transpose, k, backend):
    R = (np.tril if lower else np.triu)(rng(0).normal(size=(5, 5))) + 3 * np.eye(5)
    X = rng(1).normal(size=(5, k))
    B = (R.T if transpose else R) @ X
    with backend.scope("float64"):
        got = backend.solve_triangular(send(backend, R), send(backend, B), lower=lower, transpose=transpose)
    assert error(got, X) <= 1e-14


INDEFINITE = {
    "indefinite": np.diag([1.0, -1.0, 1.0]),
    "nan": np.full((3, 3), np.nan),
    "inf": np.diag([1.0, np.inf, 1.0]),
}


@pytest.mark.parametrize("kind", ["indefinite", "nan"])
def test_cholesky_that_fails_is_nan(kind, backend):
    with backend.scope("float64"):
        L = host(backend.cholesky(send(backend, INDEFINITE[kind])))
    assert L.shape == (3, 3)
    assert np.isnan(L).any()
    assert np.isnan(np.diag(L)).any(), "where a solve would see it"


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_factorisations_of_what_is_not_finite_do_not_raise(kind, backend):
    A = send(backend, INDEFINITE[kind])
    with backend.scope("float64"):
        Q, R = backend.qr(A)
        U, s, Vh = backend.svd(A)
        r = backend.qr(A, mode="r")[1]
    assert [x.shape for x in (Q, R, r, U, s, Vh)] == [(3, 3)] * 4 + [(3,), (3, 3)]
    for factor in ((Q, R), (r,), (U, s, Vh)):
        assert not all(np.isfinite(host(x)).all() for x in factor)


@pytest.mark.parametrize("bad", [0.0, np.nan])
def test_triangular_solve_that_fails_is_not_finite(bad, backend):
    R = np.triu(np.ones((3, 3)))
    R[1, 1] = bad
    with backend.scope("float64"):
        x = host(backend.solve_triangular(send(backend, R), send(backend, np.ones((3, 2)))))
    assert x.shape == (3, 2)
    assert not np.isfinite(x).all()


# -- stacks of matrices, complex matrices, sparse ones -----------------------------------------------------------------


def stack_of(shape, kind, seed=0):
    draw = rng(seed)
    A = draw.normal(size=shape)
    return A + 1j * draw.normal(size=shape) if kind == "complex128" else A


def hermitian(A):
    return np.conj(np.swapaxes(A, -1, -2))


@pytest.mark.parametrize("kind", ["float64", "complex128"])
@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (5, 4, 3), (2, 5, 3, 3), (600, 30)])
def test_factors_of_stacks(shape, kind, backend):
    A = stack_of(shape, kind)
    with backend.scope("float64"):
        Q, R = (host(x) for x in backend.qr(send(backend, A)))
        U, s, Vh = (host(x) for x in backend.svd(send(backend, A)))
    tolerance = 100 * EPS * np.sqrt(shape[-2])
    assert np.abs(Q @ R - A).max() <= tolerance
    assert np.abs(hermitian(Q) @ Q - np.eye(Q.shape[-1])).max() <= tolerance
    assert np.abs((U * s[..., None, :]) @ Vh - A).max() <= tolerance
    assert s.dtype == np.float64


@pytest.mark.parametrize("kind", ["float64", "complex128"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("lead", [(), (4,)])
def test_triangular_solves_of_stacks(lead, transpose, lower, kind, backend):
    R = (np.tril if lower else np.triu)(stack_of((*lead, 5, 5), kind)) + 3 * np.eye(5)
    X = stack_of((*lead, 5, 2), kind, 1)
    B = (hermitian(R) if transpose else R) @ X
    with backend.scope("float64"):
        got = host(backend.solve_triangular(send(backend, R), send(backend, B), lower=lower, transpose=transpose))
    assert np.abs(got - X).max() <= 1e-13


@pytest.mark.parametrize("kind", ["float64", "complex128"])
def test_cholesky_of_stacks(kind, backend):
    A = stack_of((3, 6, 4), kind)
    with backend.scope("float64"):
        L = host(backend.cholesky(send(backend, hermitian(A) @ A)))
    assert np.abs(L @ hermitian(L) - hermitian(A) @ A).max() <= 1e-13


def test_one_matrix_that_fails_leaves_its_neighbours(backend):
    good = np.eye(3) + 0.1
    A, singular, nan = (np.stack([good, x, good]) for x in (INDEFINITE["indefinite"], 0 * good, INDEFINITE["nan"]))
    with backend.scope("float64"):
        L = host(backend.cholesky(send(backend, A)))
        x = host(backend.solve_triangular(send(backend, np.triu(singular)), send(backend, np.ones((3, 3, 2)))))
        s = host(backend.svd(send(backend, nan))[1])
    for got in (L, x, s):
        assert [bool(np.isfinite(one).all()) for one in got] == [True, False, True]


def test_svd_of_a_square_matrix_with_an_infinite_entry_returns(backend):
    A = rng([2, 2]).normal(size=(3, 2, 2))
    A[1, 0, 0] = np.inf  # LAPACK never comes back from some of these
    with backend.scope("float64"):
        U, s, Vh = (host(x) for x in backend.svd(send(backend, A)))
    assert [bool(np.isfinite(x).all()) for x in s] == [True, False, True]
    assert (U.shape, Vh.shape) == ((3, 2, 2), (3, 2, 2))


@pytest.mark.parametrize("kind", ["float64", "complex128"])
def test_sparse_product(kind, backend):
    rows, columns = np.array([0, 3, 3, 1, 0]), np.array([2, 0, 0, 1, 2])  # places repeat, row 2 is empty
    data, w, r = stack_of((5,), kind), stack_of((3, 2), kind, 1), stack_of((4, 2), kind, 2)
    M = np.zeros((4, 3), dtype=kind)
    np.add.at(M, (rows, columns), data)
    there = [send(backend, x) for x in (rows, columns, data, w)]
    with backend.scope("float64"):
        got = host(backend.sparse_product(*there[:3], (4, 3), there[3]))
    assert np.abs(got - M @ w).max() <= 1e-14
    if backend.name in ("torch", "jax"):
        with backend.scope("float64"):
            _, pull = backend.vjp(lambda d, v: (backend.sparse_product(*there[:2], d, (4, 3), v),), tuple(there[2:]))
            in_data, in_w = (host(x) for x in pull((send(backend, r),)))
        assert np.abs(in_w - hermitian(M) @ r).max() <= 1e-14
        assert np.abs(in_data - (r[rows] * np.conj(w[columns])).sum(axis=1)).max() <= 1e-14


def test_sparse_product_without_scipy_is_the_same(monkeypatch):
    from xvarpro.backends import numpy as module

    args = (np.array([0, 1, 1]), np.array([1, 0, 0]), np.array([1.0, 2.0, 3.0]), (2, 2), np.eye(2))
    want = module.NumPyBackend().sparse_product(*args)
    monkeypatch.setattr(module, "_scipy", lambda part: None)
    assert (module.NumPyBackend().sparse_product(*args) == want).all()


def test_indices_among_the_outputs_have_no_gradient(backend):
    x, i = send(backend, np.array([1.0, 2.0])), send(backend, np.array([0, 1]))
    with backend.scope("float64"):
        _, pull = backend.vjp(lambda x, i: (x * x, i), (x,), (i,))
        assert host(pull((x, i))[0]).tolist() == [2.0, 8.0]


# -- control flow ------------------------------------------------------------------------------------------------------


def test_while_loop(backend):
    """Newton's method for a square root, on a state of two arrays."""
    xp = backend.xp
    two, zero = send(backend, np.array(2.0)), send(backend, np.array(0, dtype="int32"))

    def body(state):
        x, n = state
        return 0.5 * (x + two / x), n + 1

    with backend.scope("float64"):
        x, n = backend.while_loop(lambda s: xp.abs(s[0] * s[0] - 2.0) > 1e-14, body, (two, zero))
    assert float(x) == pytest.approx(np.sqrt(2), rel=1e-15)
    assert int(n) == 5


def test_while_loop_that_never_runs(backend):
    one = send(backend, np.array(1.0))
    with backend.scope("float64"):
        (x,) = backend.while_loop(lambda s: s[0] < 0.0, lambda s: (s[0] + 1.0,), (one,))
    assert float(x) == 1.0


def test_columns_settle_one_by_one(backend):
    """Newton's method for square roots, per column: each has what it would have alone, and those that ended stay."""
    xp = backend.xp
    squares = np.array([[1.0, 2.0, 1e6, np.nan, 9.0, 0.25]])
    given = send(backend, squares)

    def running(state):
        x, steps, a = state
        return (xp.abs(x * x - a) > 1e-9 * a)[0, :] & (steps < 40)

    def advance(state, given):
        x, steps, a = state
        return 0.5 * (x + given[0] / x), steps + 1, a

    with backend.scope("float64"):
        start = (given, xp.zeros((6,), dtype=xp.int32), given)
        x, *_ = backends.column_loop(backend, running, advance, start, (given,))
    assert np.allclose(host(x), np.sqrt(squares), rtol=1e-9, equal_nan=True)
    assert np.array_equal(host(given), squares, equal_nan=True)


def test_compiled_calls_are_kept_by_key():
    from xvarpro.backends.jax import JaxBackend

    backend, traces = JaxBackend(), []

    def make(operands):
        traces.append(1)
        return lambda x: x + operands[0]

    one = np.ones(2, "float32")
    for _ in range(3):
        backend.call(lambda operands: make(operands), "key")((one,), one)
    assert len(traces) == 1
    backend.call(make, "another")((one,), one)
    assert len(traces) == 2


def test_solving_again_does_not_compile_again(monkeypatch):
    import jax

    from xvarpro.backends.jax import JaxBackend

    backend = JaxBackend()
    compiled = []
    jit = jax.jit
    monkeypatch.setattr(jax, "jit", lambda fun, *a, **k: compiled.append(1) or jit(fun, *a, **k))
    for seed in range(3):
        problem = xv.separable(product, rng(seed).normal(size=(4, 3)), lam=0.1)
        xv.solve(problem, rng(seed).normal(size=(4, 2)), max_iter=2, backend=backend)
        if seed == 0:
            first = len(compiled)
    assert len(compiled) == first


def product(theta, data):
    return theta


# -- scopes ------------------------------------------------------------------------------------------------------------


def settings_of(backend):
    if backend.name == "jax":
        import jax

        return jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision
    if backend.name == "torch":
        import torch

        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_float32_matmul_precision()
    return tuple(np.geterr().items())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scopes_give_back_what_they_change(dtype, backend):
    before = settings_of(backend)
    with backend.scope(dtype), backend.scope("float64"):
        send(backend, np.ones(2)) / send(backend, np.zeros(2))
    assert settings_of(backend) == before


class InterruptionError(Exception):
    pass


def interrupted(backend):
    with backend.scope("float64"):
        raise InterruptionError


def test_scopes_give_back_after_an_error(backend):
    before = settings_of(backend)
    with pytest.raises(InterruptionError):
        interrupted(backend)
    assert settings_of(backend) == before


def test_float64_inside_a_scope(backend):
    with backend.scope("float64"):
        x = backend.xp.asarray([1.0], dtype=find_dtype(backend.xp, "float64")) + 1e-12
        assert dtype_name(x) == "float64"
        assert float(x[0]) != 1.0


def test_nothing_is_recorded_in_the_callers_graph():
    import torch

    backend = backends.get("torch")
    with backend.scope("float64"):
        x = torch.ones(2, requires_grad=True) * 2
    assert not x.requires_grad


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_primitives_on_a_cuda_device(name):
    if reason := no_cuda(name):
        pytest.skip(reason)
    backend = backends.get(name)
    A = rng(0).normal(size=(7, 3))
    device = find_device(backend, "cuda:0")
    there = backend.asarray(A, device=device)
    with backend.scope("float64"):
        Q, R = backend.qr(there)
        L = backend.cholesky(there.mT @ there)
        bad = backend.cholesky(backend.asarray(np.diag([1.0, -1.0]), device=device))
        x = backend.solve_triangular(R, R @ backend.asarray(np.ones((3, 2)), device=device))
        outputs, pullback = backend.vjp(lambda A: (A @ A.mT,), (there,))
        (g,) = pullback(outputs)
    assert error(host(Q) @ host(R), A) <= 1e-14
    assert error(host(L) @ host(L).T, A.T @ A) <= 1e-14
    assert np.isnan(host(bad)).any()
    assert error(x, np.ones((3, 2))) <= 1e-13
    assert error(g, 2 * (A @ A.T) @ A) <= 1e-13


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_large_triangular_systems(lower, transpose):
    """Complex ones too, and NaN for a zero on the diagonal."""
    backend = backends.get("numpy")
    A = rng(0).normal(size=(40, 40)) + 1j * rng(1).normal(size=(40, 40))
    R = (np.tril if lower else np.triu)(A) + 20 * np.eye(40)
    B = rng(2).normal(size=(40, 2**12)) + 0j
    X = backend.solve_triangular(R, B, lower=lower, transpose=transpose)
    assert np.abs((R.conj().T if transpose else R) @ X - B).max() <= 1e-12
    R[3, 3] = 0.0
    with backend.scope("float64"):
        assert np.isnan(backend.solve_triangular(R, B, lower=lower, transpose=transpose)).any()
