"""`ridge`: the closed form, in every shape, with its derivatives by the transformations of PyTorch and JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import xvarpro as xv
from xvarpro.errors import ProblemError

from .support import host, rng, send

SHAPES = {"tall": (4, 2), "wide": (2, 4)}
LAMS = np.array([0.1, 0.2, 3.0])


def drawn(*shape, kind="real"):
    draw = rng(sum(shape))
    x = draw.normal(size=shape)
    return x + 1j * draw.normal(size=shape) if kind == "complex" else x


def error(got, want):
    """Relative, of complex numbers too."""
    got, want = host(got), host(want)
    assert got.shape == want.shape
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def closed(xp, A, y, lam):
    """By normal equations, a vector y."""
    H = A.conj().T @ A + lam * xp.eye(A.shape[1], dtype=A.dtype)
    return xp.linalg.solve(H, A.conj().T @ y)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_it_is_the_closed_form_of_every_problem(shape, backend, subtests):
    m, _ = shape
    for kinds in ("real", "real"), ("real", "complex"), ("complex", "real"):
        A, y = drawn(3, *shape, kind=kinds[0]), drawn(3, m, 2, kind=kinds[1])
        want = np.stack([closed(np, a, b, lam) for a, b, lam in zip(A, y, LAMS, strict=True)])
        shared = np.stack([closed(np, A[0], y[0], lam) for lam in LAMS])
        vectors = np.stack([closed(np, a, y[0, :, 0], 0.1) for a in A])
        for name, args, found in (
            ("stack, (b, m, k)", (A, y, LAMS), want),
            ("stack, (b, m)", (A, y[:, :, 0], LAMS), want[:, :, 0]),
            ("stack, (m,)", (A, y[0, :, 0], 0.1), vectors),
            ("one A, ridges", (A[0], y[0], LAMS), shared),
            ("one", (A[0], y[0], 0.1), shared[0]),
            ("one vector", (A[0], y[0, :, 0], np.array(0.1)), vectors[0]),
        ):
            with subtests.test(name, kinds=kinds):
                got = xv.ridge(*(x if isinstance(x, float) else send(backend, x) for x in args))
                assert error(got, found) <= 1e-12


def ridges(n):
    """One for each weight, without one for the first, for each of two right-hand sides, and for both."""
    both = 0.1 + rng(n).uniform(size=(n, 2))
    return {"weights": np.r_[np.zeros((1, 1)), both[1:, :1]], "right-hand sides": both[:1], "both": both}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_weights_and_right_hand_sides_have_ridges_of_their_own(shape, backend, subtests):
    A, y = drawn(3, *shape, kind="complex"), drawn(3, shape[0], 2)
    for name, lam in ridges(shape[1]).items():
        columns = list(np.broadcast_to(lam, (shape[1], 2)).T)
        want = np.stack([[closed(np, A[i], y[i, :, j], columns[j]) for j in range(2)] for i in range(3)]).mT
        of_each = np.broadcast_to(lam, (3, *lam.shape))
        for kind, args, found in ("one", (A[0], y[0], lam), want[0]), ("stack", (A, y, of_each), want):
            with subtests.test(name, kind=kind):
                assert error(xv.ridge(*(send(backend, x) for x in args)), found) <= 1e-12
    with subtests.test("one vector"):
        got = xv.ridge(*(send(backend, x) for x in (A[0], y[0, :, 0], ridges(shape[1])["weights"])))
        assert error(got, closed(np, A[0], y[0, :, 0], ridges(shape[1])["weights"][:, 0])) <= 1e-12


def test_derivatives_by_ridges_of_arrays_on_torch(subtests):
    for shape, of, kind in (
        ("tall", "weights", "complex"),
        ("wide", "right-hand sides", "real"),
        ("wide", "both", "real"),
    ):
        m, n = SHAPES[shape]
        args = drawn(m, n, kind=kind), drawn(m, 2, kind=kind), 0.1 + ridges(n)[of]
        args = [torch.tensor(x, requires_grad=True) for x in args]
        with subtests.test(shape, of=of):
            assert torch.autograd.gradcheck(xv.ridge, args, fast_mode=True)
            assert torch.autograd.gradgradcheck(xv.ridge, args, fast_mode=True)


def test_derivatives_of_both_orders_on_torch(subtests):
    for (name, shape), kind in zip(SHAPES.items(), ("real", "complex"), strict=True):
        A, y = (torch.tensor(drawn(*s, kind=kind), requires_grad=True) for s in (shape, shape[:1]))
        lam = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        with subtests.test(name):
            assert torch.autograd.gradcheck(xv.ridge, (A, y, lam), fast_mode=True)
            assert torch.autograd.gradgradcheck(xv.ridge, (A, y, lam), fast_mode=True)


def mapped(xp, vmap, transform, args):
    """The largest error of gradients by A, y and lam of a batch, against those of the closed form."""
    losses = [lambda *x, f=f: xp.sin(f(*x)).sum() for f in (xv.ridge, lambda *x: closed(xp, *x))]
    return max(map(error, *(vmap(transform(loss, argnums=(0, 1, 2)))(*args) for loss in losses)))


@pytest.mark.frameworks
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_torch_maps_its_derivatives(shape):
    args = [torch.tensor(x) for x in (drawn(3, *shape), drawn(3, shape[0]), LAMS)]
    assert mapped(torch, torch.func.vmap, torch.func.jacrev, args) <= 1e-11


@pytest.mark.frameworks
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_jax_compiles_and_maps_its_derivatives(shape):
    with jax.enable_x64(True):
        args = [jnp.asarray(x) for x in (drawn(3, *shape), drawn(3, shape[0]), LAMS)]
        for transform in jax.grad, jax.jacrev:
            assert mapped(jnp, lambda f: jax.jit(jax.vmap(f)), transform, args) <= 1e-11


@pytest.mark.frameworks
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_jax_maps_derivatives_by_the_ridge_of_each_weight(shape):
    def of_columns(A, y, lam):
        return xv.ridge(A, y, lam[:, None])

    with jax.enable_x64(True):
        args = [jnp.asarray(x) for x in (drawn(3, *shape), drawn(3, shape[0]), 0.1 + drawn(3, shape[1]) ** 2)]
        losses = [lambda *x, f=f: jnp.sin(f(*x)).sum() for f in (of_columns, lambda *x: closed(jnp, *x))]
        gradients = [jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1, 2))))(*args) for loss in losses]
        assert max(map(error, *gradients)) <= 1e-11


@pytest.mark.frameworks
def test_second_derivatives_on_jax_and_complex_gradients(subtests):
    def derivatives(ridge):
        def f(A, y, lam):
            return (jnp.abs(ridge(A, y, lam) - 1j) ** 2).sum()

        first = jax.grad(f, argnums=(0, 1, 2))
        return jax.jit(lambda *x: (*first(*x), jax.jacrev(lambda *x: first(*x)[2], argnums=2)(*x)))

    with jax.enable_x64(True):
        for name, shape in SHAPES.items():
            args = *(jnp.asarray(drawn(*s, kind="complex")) for s in (shape, shape[:1])), 0.3
            *got, second = derivatives(xv.ridge)(*args)
            *want, right = derivatives(lambda *x: closed(jnp, *x))(*args)
            with subtests.test(name):
                assert max(map(error, got, want)) <= 1e-11
                assert error(second, right) <= 1e-10


def test_gradients_keep_their_digits_as_the_ridge_goes_to_0(subtests):
    """In single precision those of double, where normal equations of a wide A have none left."""
    for name, shape in SHAPES.items():
        A, y, c = (drawn(*s).astype(np.float32) for s in (shape, shape[:1], shape[1:]))
        for lam in np.float32([1e-2, 1e-4, 1e-6]):
            found = []
            for kind in torch.float32, torch.float64:
                given = [torch.tensor(x, dtype=kind, requires_grad=True) for x in (A, y, lam)]
                w = xv.ridge(*given)
                found.append([w.detach(), *torch.autograd.grad(w @ torch.tensor(c, dtype=kind), given)])
            with subtests.test(name, lam=float(lam)):
                assert max(map(error, *found)) <= 1e-5


def test_what_does_not_fit_is_named(subtests):
    A, y = np.ones((2, 4, 3)), np.ones(4)
    for words, args in (
        ("lam must be > 0; got 0.0", (A, y, 0.0)),
        ("lam must be a number", (A, y, "1")),
        ("lam must be a number", (A, y, np.ones(2, np.float32))),
        ("A must be a float array with 2 to 3 axes", (A[0, 0], y, 1.0)),
        ("axes; got an array of shape (4,), numpy int64", (A, np.ones(4, int), 1.0)),
        ("one framework and precision", (A, y.astype(np.float32), 1.0)),
        ("4, 3), numpy float64 and an array of shape (4,), torch torch.float64", (A, torch.ones(4).double(), 1.0)),
        ("got (2, 4, 3), (3,), ()", (A, np.ones(3), 1.0)),
        ("got (2, 4, 3), (4,), (3,)", (A, y, np.ones(3))),
        ("got (4, 3), (2, 4), ()", (A[0], np.ones((2, 4)), 1.0)),
        ("got (4, 3), (4, 2), (1, 3)", (A[0], np.ones((4, 2)), np.ones((1, 3)))),
    ):
        with subtests.test(words), pytest.raises(ProblemError) as caught:
            xv.ridge(*args)
        assert words in str(caught.value)
    assert np.isnan(xv.ridge(A, y, np.array([1.0, 0.0]))).any(axis=1).tolist() == [False, True]
