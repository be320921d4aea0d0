"""A solve inside somebody else's program: gradients of a layer, in modules, compiled, over batches."""

import math
import warnings
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import xvarpro as xv
from xvarpro.differentiation.implicit import Cotangent, DifferentiabilityWarning
from xvarpro.differentiation.layers import torch as layers_torch
from xvarpro.errors import ProblemError

from .support import decays, rng

T = np.linspace(0.0, 2.0, 12)
Y = np.exp(-np.outer(T, [1.0, 4.0])) @ np.array([2.0, 1.0]) + 0.05 * rng(3).normal(size=T.size)
LAM, TOP = 1e-2, 2.0  # the second rate ends at its bound
START = np.array([0.5, 1.5])
SPECTRAL = xv.algorithms.SpectralProjectedGradient()  # compiles fastest
PROBLEM = xv.separable(decays, lambda theta, data: data["y"], lam=LAM)
OPTIONS = {"over": xv.sets.Box(0.0, TOP), "algorithm": SPECTRAL, "tol": 1e-12}


def loss(found):
    """Uses all that a layer gives."""
    theta, w = found.theta, found.w
    return theta[0] - 2 * theta[1] + 0.5 * w[0] + 0.7 * w[1] * theta[0] + 3 * found.value


@pytest.fixture(scope="module")
def want():
    """The loss and its gradients, on NumPy."""
    data = {"t": T, "y": Y}
    problem = xv.separable(decays, lambda theta, data: data["y"], lam=LAM, data=data)
    fit = xv.solve(problem, START, **OPTIONS)
    assert fit.theta[1] == TOP
    w = fit.w
    bars = Cotangent(np.array([1.0 + 0.7 * w[1], -2.0]), np.array([0.5, 0.7 * fit.theta[0]]), 3.0)
    found = xv.implicit.gradient(problem, fit.theta, bars, over=OPTIONS["over"])
    assert not found.reasons
    return float(loss(fit)), found.data


# -- Torch -------------------------------------------------------------------------------------------------------------


def tensors(**more):
    return {"t": torch.tensor(T, requires_grad=True), "y": torch.tensor(Y, requires_grad=True), **more}


@pytest.mark.parametrize("backend", [None, "numpy", "jax"])
def test_torch_gives_the_gradient(want, backend):
    data = tensors(labels=torch.arange(3), name="a run")
    layer = xv.layers.torch.Solve(PROBLEM, torch.tensor(START), backend=backend, **OPTIONS)
    found = layer(data)
    assert found.status is xv.Status.CONVERGED
    value = loss(found)
    value.backward()
    assert value.item() == pytest.approx(want[0], rel=1e-12)
    for name in ("t", "y"):
        np.testing.assert_allclose(data[name].grad.numpy(), want[1][name], rtol=1e-6, atol=1e-9)


class Encoder(torch.nn.Module):
    """A network whose output is the signal that is fitted."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(3, T.size)
        start = torch.tensor(START, dtype=torch.float32)
        self.fit = xv.layers.torch.Solve(PROBLEM, start, backend="numpy", **OPTIONS)

    def forward(self, x):
        return self.fit({"t": torch.as_tensor(T).to(x), "y": 1.5 + self.net(x)})


def test_a_torch_module_trains_through_it():
    model = Encoder().to(torch.float64)
    assert model.fit.theta0.dtype == torch.float64  # buffers follow the module
    assert set(model.state_dict()) == {"net.weight", "net.bias"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, losses = torch.ones(3, dtype=torch.float64), []
    for _ in range(4):
        optimizer.zero_grad()
        value = (model(x).theta[0] - 0.7) ** 2
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("dtype", "lam", "rtol"), [("float32", 1e-4, 1e-4), ("float32", 1e-6, 1e-4), ("float64", 1e-12, 1e-8)]
)
def test_torch_a_wide_head_has_the_gradient_of_its_closed_form(dtype, lam, rtol):
    """``w = S^T (S S^T + lam)^-1 Y``, whose n x n system is singular as lam goes to 0."""
    draw = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    S, Q, Y = torch.randn(5, 64, generator=draw), torch.randn(15, 64, generator=draw), torch.eye(5)

    def gradient(weights):
        x = S.to(kind).requires_grad_()
        ((Q.to(kind) @ weights(x) - Y.to(kind).repeat(3, 1)) ** 2).sum().backward()
        return x.grad

    head = xv.separable(lambda theta, d: d + 0 * theta.sum(), Y.to(kind), lam=lam)
    got = gradient(lambda x: xv.layers.torch.Solve(head, torch.zeros(1, dtype=kind))(x).w)
    want = gradient(lambda x: x.T @ torch.linalg.solve(x @ x.T + lam * torch.eye(5, dtype=kind), Y.to(kind)))
    assert (got - want).norm() <= rtol * want.norm()


def test_torch_says_where_there_is_no_gradient():
    free = xv.layers.torch.Solve(PROBLEM, torch.tensor(START), algorithm=SPECTRAL, tol=1e-13)
    tight = free(tensors()).theta[1].item()
    layer = xv.layers.torch.Solve(PROBLEM, torch.tensor(START), over=xv.sets.Box(0.0, tight), tol=1e-13)
    with pytest.warns(DifferentiabilityWarning, match="multiplier of zero"):
        layer(tensors()).theta.sum().backward()


SIGNALS = torch.tensor(Y) + 0.01 * torch.tensor(rng(4).normal(size=(3, T.size)))


@pytest.mark.parametrize("ridge", [LAM, lambda theta, data: LAM + 0 * theta[0]], ids=["together", "one by one"])
def test_torch_maps_it_over_a_batch(monkeypatch, ridge):
    """By `solve_many` where a batch takes the problem; the gradient of what is shared is the sum."""
    batches = []
    plain = layers_torch.solve_many
    monkeypatch.setattr(layers_torch, "solve_many", lambda *args, **more: batches.append(1) or plain(*args, **more))
    problem = xv.separable(decays, lambda theta, data: data["y"], lam=ridge)
    layer = xv.layers.torch.Solve(problem, torch.tensor(START), over=OPTIONS["over"], tol=1e-12)
    t, signals = torch.tensor(T, requires_grad=True), SIGNALS.clone().requires_grad_()
    together = torch.func.vmap(lambda y: layer({"t": t, "y": y}))(signals)
    assert len(batches) == (not callable(ridge))
    alone = [layer({"t": t, "y": y}) for y in signals]
    assert together.status.tolist() == [xv.Status.CONVERGED.code] * 3
    for name in ("theta", "w", "value"):
        want = torch.stack([getattr(found, name) for found in alone])
        torch.testing.assert_close(getattr(together, name), want, rtol=1e-7, atol=1e-9)
    want = torch.autograd.grad(sum(map(loss, alone)), (t, signals))
    got = torch.autograd.grad(torch.func.vmap(loss)(together._replace(status=together.value)).sum(), (t, signals))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)


def test_torch_transforms_it(want):
    layer = xv.layers.torch.Solve(PROBLEM, torch.tensor(START), over=OPTIONS["over"], tol=1e-12, backend="numpy")
    t, y = torch.tensor(T), torch.tensor(Y)

    def value(y):
        return loss(layer({"t": t, "y": y}))

    slope = torch.func.grad(value)
    np.testing.assert_allclose(slope(y), want[1]["y"], rtol=1e-6, atol=1e-9)
    by_signal = torch.func.vmap(slope)(SIGNALS)
    torch.testing.assert_close(by_signal, torch.stack([slope(y) for y in SIGNALS]), rtol=1e-6, atol=1e-9)
    summed = torch.func.grad(lambda Y: torch.func.vmap(value)(Y).sum())(SIGNALS)
    torch.testing.assert_close(summed, by_signal, rtol=1e-5, atol=1e-8)
    rates = torch.func.jacrev(lambda y: layer({"t": t, "y": y}).theta)(y)
    assert rates.shape == (2, T.size)
    nested = torch.func.vmap(torch.func.vmap(value))(SIGNALS[None])
    torch.testing.assert_close(nested[0], torch.stack([value(y) for y in SIGNALS]), rtol=1e-7, atol=1e-9)
    starts = torch.tensor(np.stack([START, START + 0.1]))
    found = torch.func.vmap(lambda start: layer({"t": t, "y": y}, start).theta)(starts)
    torch.testing.assert_close(found[0], found[1], rtol=1e-7, atol=1e-9)


# -- second derivatives ------------------------------------------------------------------------------------------------

RIDGED = xv.separable(decays, lambda theta, data: data["y"], lam=lambda theta, data: data["lam"])


def later(theta, data):
    return decays(theta, {"t": data["t"] + 0.01})


BILEVEL = xv.bilevel(
    lower=xv.Level(decays, lambda theta, data: data["y"], lam=lambda theta, data: data["lam"]),
    upper=xv.Level(later, lambda theta, data: 1.1 * data["y"]),
    R=lambda theta: xv.array_namespace(theta).sum(theta * theta),
    mu=1e-3,
)


def gradients(layer, point, **more):
    """The arrays at a point, which require gradients, and those of the loss, with their graph."""
    data = {name: x.detach().clone().requires_grad_() for name, x in point.items()}
    found = layer(data | more)
    return tuple(data.values()), torch.autograd.grad(loss(found), tuple(data.values()), create_graph=True)


def directed(arrays, directions):
    """``Re <direction, array>``, summed."""
    return sum((x.conj() * d).real.sum() for x, d in zip(arrays, directions, strict=True))


def second(layer, point, directions, **more):
    arrays, slopes = gradients(layer, point, **more)
    return torch.autograd.grad(directed(slopes, directions), arrays)


def by_differences(layer, point, directions, **more):
    """Of fourth order, of the gradients of the loss along a direction."""

    def at(step):
        moved = {name: x + step * d for (name, x), d in zip(point.items(), directions, strict=True)}
        return gradients(layer, moved, **more)[1]

    rows = zip(at(1e-3), at(-1e-3), at(2e-3), at(-2e-3), strict=True)
    return [((8 * (a - b) - (c - d)) / 12e-3).detach() for a, b, c, d in rows]


def assert_close(got, want, rtol):
    for x, y in zip(got, want, strict=True):
        assert torch.max(torch.abs(x - y)) <= rtol * torch.max(torch.abs(y))


POINT = {"t": torch.tensor(T), "y": torch.tensor(Y), "lam": torch.tensor(LAM, dtype=torch.float64)}
WAYS = [*torch.tensor(rng(7).normal(size=(2, T.size))), torch.tensor(3e-3)]


PLACES = {
    "free": (None, [0.5, 5.0], None),
    "at a bound": (xv.sets.Box(0.0, TOP), [0.5, 1.5], "numpy"),
    "on a face": (xv.sets.Simplex(2.5), [0.5, 2.0], "numpy"),
    "on a sphere": (xv.sets.L2Ball(1.5), [0.5, 1.0], None),
}
HERE = [
    *(pytest.param(RIDGED, place, id=place) for place in PLACES),
    *(
        pytest.param(
            BILEVEL, place, id=f"{place}, two levels", marks=[pytest.mark.frameworks] * (place != "on a sphere")
        )
        for place in PLACES
    ),
]


@pytest.mark.parametrize(("problem", "place"), HERE)
def test_torch_second_derivatives_are_those_of_the_gradient(problem, place):
    """Arrays of whole numbers or of another framework have none."""
    more, (over, start, backend) = {"labels": torch.arange(3), "other": np.ones(2)}, PLACES[place]
    how = {"over": over, "tol": 1e-13, "max_iter": 5000}
    solution = xv.layers.torch.Solve(problem, torch.tensor(start).double(), backend="numpy", **how)(POINT).theta
    layer = xv.layers.torch.Solve(problem, solution.detach(), backend=backend, **how)
    assert_close(second(layer, POINT, WAYS, **more), by_differences(layer, POINT, WAYS, **more), 2e-6)


@pytest.mark.parametrize(
    ("dtype", "rtol"),
    [(torch.float64, 1e-7), pytest.param(torch.float32, 1e-2, marks=pytest.mark.frameworks)],
    ids=["float64", "float32"],
)
def test_torch_second_derivatives_are_closed_form(dtype, rtol):
    """With theta at its bound w and the value are those of ridge regression."""
    layer = xv.layers.torch.Solve(RIDGED, torch.tensor([0.2], dtype=dtype), over=xv.sets.Box(0.0, 0.5))

    def ridge(t, y, lam):
        m = torch.exp(-0.5 * t)
        w = (m @ y) / (m @ m + lam)
        return w**2 + 3 * (0.5 * (y - m * w) @ (y - m * w) + 0.5 * lam * w * w)

    def solved(t, y, lam):
        found = layer({"t": t, "y": y, "lam": lam})
        return found.w[0] ** 2 + 3 * found.value + found.theta[0]

    some = slice(None, None, 3 if dtype == torch.float64 else 1)  # single precision needs all rows
    point = POINT["t"][some], POINT["y"][some], POINT["lam"]
    want = torch.autograd.functional.hessian(ridge, point)
    got = torch.autograd.functional.hessian(solved, tuple(x.to(dtype) for x in point))
    for row, other in zip(got, want, strict=True):
        assert_close(row, other, rtol)


@pytest.mark.frameworks
def test_torch_penalises_a_gradient():
    """The cotangents depend on parameters: ``|J^T a|^2`` for the Jacobian J has the gradient ``2 J J^T a`` in a."""
    layer = xv.layers.torch.Solve(PROBLEM, torch.tensor(START), over=xv.sets.Box(0.0, 9.0), tol=1e-12)
    y, a = torch.tensor(Y, requires_grad=True), torch.tensor([1.0, -0.5, 2.0]).double().requires_grad_()

    def fitted(y):
        found = layer({"t": torch.tensor(T), "y": y})
        return torch.stack([found.theta[0], found.w[1], found.value])

    (slope,) = torch.autograd.grad(a @ fitted(y), y, create_graph=True)
    (got,) = torch.autograd.grad(slope @ slope, a)
    J = torch.func.jacrev(fitted)(y.detach())
    torch.testing.assert_close(got, 2 * J @ (J.T @ a.detach()), rtol=1e-7, atol=0.0)
    small = xv.layers.torch.Solve(PROBLEM, torch.tensor(START), over=OPTIONS["over"], tol=1e-12)
    assert torch.autograd.gradgradcheck(
        lambda y: small({"t": torch.tensor(T), "y": y})[:3], (y,), rtol=1e-4, atol=1e-5, fast_mode=True
    )


@pytest.mark.frameworks
def test_torch_transforms_second_derivatives():
    layer = xv.layers.torch.Solve(PROBLEM, torch.tensor(START), over=OPTIONS["over"], tol=1e-12)

    def value(y):
        return loss(layer({"t": torch.tensor(T), "y": y}))

    def steepness(y):
        return (torch.func.grad(value)(y) ** 2).sum()

    y = SIGNALS[0]
    H = torch.func.jacrev(torch.func.jacrev(value))(y)
    torch.testing.assert_close(H, H.T, rtol=0.0, atol=1e-7 * H.abs().max().item())
    want = 2 * H @ torch.func.grad(value)(y)
    torch.testing.assert_close(torch.func.grad(steepness)(y), want, rtol=1e-6, atol=1e-8)
    together = torch.func.vmap(torch.func.grad(steepness))(SIGNALS)
    torch.testing.assert_close(together[0], want, rtol=1e-6, atol=1e-8)
    batch = SIGNALS.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(torch.func.vmap(value)(batch).sum(), batch, create_graph=True)
    (apart,) = torch.autograd.grad((slopes**2).sum(), batch)
    torch.testing.assert_close(apart, together, rtol=1e-6, atol=1e-8)
    with pytest.raises(ProblemError, match="a layer has first and second derivatives only"):
        torch.func.grad(lambda y: torch.func.grad(steepness)(y).sum())(y)


def test_torch_says_where_a_constraint_enters_within_the_step():
    free = xv.layers.torch.Solve(PROBLEM, torch.tensor(START), algorithm=SPECTRAL, tol=1e-13)
    tight = free(tensors()).theta[1].item()
    M = decays(torch.tensor([1.0, 4.0]).double(), {"t": torch.tensor(T)})
    pushed = xv.separable(  # theta at its lower bounds, w as in the data
        decays,
        lambda theta, data: data["y"],
        W=xv.lower.Nonnegative(),
        R=lambda theta: xv.array_namespace(theta).sum(theta),
        mu=1.0,
    )
    for nearby, tiny, far in (
        (lambda gap: (PROBLEM, xv.sets.Box(0.0, tight + gap), torch.tensor(Y)), 1e-6, 1e-2),
        (lambda gap: (pushed, xv.sets.Box([1.0, 4.0], 9.0), M @ torch.tensor([1.0, gap]).double()), 1e-7, 1e-2),
    ):
        for gap in (tiny, far):
            problem, over, y = nearby(gap)
            layer = xv.layers.torch.Solve(problem, torch.tensor([1.0, 4.0]).double(), over=over, tol=1e-13)
            y.requires_grad_()
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found = layer({"t": torch.tensor(T), "y": y})
                (slope,) = torch.autograd.grad(found.theta.sum() + found.w.sum(), y, create_graph=True)
                assert not said, [str(x.message) for x in said]
                (slope @ slope).backward()
            assert [x.category for x in said] == [DifferentiabilityWarning] * (gap == tiny)


# -- complex weights ---------------------------------------------------------------------------------------------------

PHASE = np.exp(2j * T)
NOISE = rng(5).normal(size=(2, T.size))
WAVE = PHASE * (np.exp(-np.outer(T, [1.0, 4.0])) @ np.array([2.0, 1.0 + 0.5j])) + 0.05 * (NOISE[0] + 1j * NOISE[1])


def turned(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta) * xp.expand_dims(data["phase"], axis=1)


def waves(found):
    """A real number that depends on both parts of the weights."""
    theta, w = found.theta, found.w
    return theta[0] - 2 * theta[1] + (w[0] * (0.5 - 0.3j)).real + abs(w[1]) ** 2 * theta[0] + 3 * found.value


WAVES = xv.separable(turned, lambda theta, data: data["y"], lam=LAM, solver=xv.lower.SVD())


@pytest.fixture(scope="module")
def wanted():
    """Slopes along three directions of ``t`` and three of ``y``, by central differences."""

    def value(t, y):
        problem = xv.separable(turned, y, lam=LAM, data={"t": t, "phase": PHASE})
        return float(waves(xv.solve(problem, START, **OPTIONS)))

    def slope(t, y):
        return (value(T + 1e-6 * t, WAVE + 1e-6 * y) - value(T - 1e-6 * t, WAVE - 1e-6 * y)) / 2e-6

    draw = rng(9).normal(size=(3, 3, T.size))
    ways, turns = draw[0], draw[1] + 1j * draw[2]
    ways, turns = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (ways, turns))
    return ways, [slope(x, 0) for x in ways], turns, [slope(0, x) for x in turns]


def assert_slopes(wanted, t, y):
    """Of gradients in ``t`` and, as ``dL/dRe + i dL/dIm``, in ``y``."""
    ways, by_t, turns, by_y = wanted
    np.testing.assert_allclose(ways @ t, by_t, atol=1e-7)
    np.testing.assert_allclose((turns @ np.conj(y)).real, by_y, atol=1e-7)


def test_torch_with_complex_weights(wanted):
    layer = xv.layers.torch.Solve(WAVES, torch.tensor(START), **OPTIONS)
    t, y = torch.tensor(T, requires_grad=True), torch.tensor(WAVE, requires_grad=True)
    waves(layer({"t": t, "y": y, "phase": torch.tensor(PHASE)})).backward()
    assert_slopes(wanted, t.grad.numpy(), y.grad.numpy())


@pytest.mark.frameworks
def test_jax_with_complex_weights(wanted):
    with jax.enable_x64(True):
        layer = xv.layers.jax.solve(WAVES, jnp.asarray(START), **OPTIONS)
        slopes = jax.jit(jax.grad(lambda t, y: waves(layer({"t": t, "y": y, "phase": jnp.asarray(PHASE)})), (0, 1)))
        t, y = slopes(jnp.asarray(T), jnp.asarray(WAVE))
    assert_slopes(wanted, np.asarray(t), np.asarray(y).conj())  # JAX's convention


# -- JAX ---------------------------------------------------------------------------------------------------------------


@pytest.mark.frameworks
def test_jax_starts_again_at_an_iterate_that_is_lower_than_the_end():
    """Nonmonotone steps come to a stationary point above an iterate on the way, and there the objective goes on."""
    noise = rng(1)
    x = np.sort(noise.uniform(-3, 3, 80))
    y = np.sin(2 * x) * np.exp(-(x**2) / 6) + 0.1 * noise.normal(size=80)

    def bells(c, data):
        return xv.array_namespace(c).exp(-2.0 * (data["x"][:, None] - c) ** 2)

    problem = xv.separable(bells, lambda c, data: data["y"], lam=math.exp(-2.0))
    with jax.enable_x64(True):
        start = jnp.linspace(-2.5, 2.5, 5)
        layer = xv.layers.jax.solve(problem, start, over=xv.sets.Box(-3.0, 3.0), algorithm=SPECTRAL)
        found = layer({"x": jnp.asarray(x), "y": jnp.asarray(y)})
    assert xv.Status.of(int(found.status)) is xv.Status.CONVERGED
    assert float(found.value) == pytest.approx(0.46115554428530, rel=1e-12)


@pytest.fixture(scope="module")
def layer():
    """One layer: what it compiled is kept from test to test."""
    with jax.enable_x64(True):
        # a solver without refinement, which compiles in half the time
        plain = xv.separable(decays, lambda theta, data: data["y"], lam=LAM, solver=xv.lower.SVD())
        yield xv.layers.jax.solve(plain, jnp.asarray(START), **OPTIONS)


def fitted(layer, t, y):
    return loss(layer({"t": t, "y": y, "labels": jnp.arange(3)}))


def test_jax_gives_the_gradient(want, layer):
    value, slopes = jax.value_and_grad(partial(fitted, layer), (0, 1))(jnp.asarray(T), jnp.asarray(Y))
    assert float(value) == pytest.approx(want[0], rel=1e-12)
    np.testing.assert_allclose(slopes[0], want[1]["t"], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(slopes[1], want[1]["y"], rtol=1e-6, atol=1e-9)
    found = layer({"t": jnp.asarray(T), "y": jnp.asarray(Y), "labels": jnp.arange(3)})
    assert xv.Status.of(found.status) is xv.Status.CONVERGED


@pytest.mark.frameworks
def test_jax_maps_it_over_a_batch_and_compiles_it_and_its_second_derivatives_are_those_of_torch(layer):
    """The gradient of a squared gradient."""
    same = xv.layers.torch.Solve(PROBLEM, torch.tensor(START), over=OPTIONS["over"], tol=1e-12)
    slope = torch.func.grad(lambda y: loss(same({"t": torch.tensor(T), "y": y})))
    want = torch.stack([torch.func.grad(lambda y: (slope(y) ** 2).sum())(y) for y in SIGNALS])
    by_signal = jax.grad(partial(fitted, layer), 1)

    def steepness(y):
        found = by_signal(jnp.asarray(T), y)
        return (found**2).sum(), found

    with jax.enable_x64(True):
        got, slopes = jax.jit(jax.vmap(jax.grad(steepness, has_aux=True)))(jnp.asarray(SIGNALS.numpy()))
        apart = jnp.stack([by_signal(jnp.asarray(T), jnp.asarray(y.numpy())) for y in SIGNALS])
    np.testing.assert_allclose(slopes, apart, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7 * want.abs().max().item())


class EquinoxEncoder(eqx.Module):
    net: eqx.nn.Linear
    layer: object = eqx.field(static=True)

    def __call__(self, x):
        y = Y + 0.1 * self.net(x)
        return self.layer({"t": jnp.asarray(T), "y": y, "labels": jnp.arange(3)}).theta[0]


def by_signal(layer, y):
    """The gradient of the rate with respect to the signal, which is that of a bias."""
    return jax.grad(lambda y: layer({"t": jnp.asarray(T), "y": y, "labels": jnp.arange(3)}).theta[0])(y)


@pytest.mark.frameworks
def test_an_equinox_model_holds_it(layer):
    model = EquinoxEncoder(eqx.nn.Linear(3, T.size, key=jax.random.key(0), dtype=jnp.float64), layer)
    x = jnp.ones(3)
    slopes = eqx.filter_grad(lambda model: model(x))(model)
    want = by_signal(layer, Y + 0.1 * model.net(x))
    np.testing.assert_allclose(slopes.net.bias, 0.1 * want, rtol=1e-10)
    assert np.abs(want).max() > 1e-3


@pytest.mark.frameworks
def test_jax_sees_numbers_outside_of_a_model_that_change():
    outside = {"rate": 1.0}
    t = np.linspace(0.0, 1.0, 20)
    problem = xv.separable(
        lambda theta, data: xv.array_namespace(theta).exp(-outside["rate"] * data["t"][:, None] * theta),
        lambda theta, data: data["y"],
        solver=xv.lower.SVD(),
    )
    method = xv.algorithms.SpectralProjectedGradient()
    made = xv.layers.jax.solve(problem, np.array([2.0]), algorithm=method, tol=1e-7)
    for rate in (1.0, 2.0, 1.0):
        outside["rate"] = rate
        theta = made({"t": t, "y": np.exp(-3.0 * t)}).theta
        assert float(theta[0]) == pytest.approx(3.0 / rate, rel=1e-5)


def test_jax_says_where_there_is_no_gradient(monkeypatch):
    """Inside of a compiled function the warning comes from a callback."""
    said = []
    with warnings.catch_warnings(), jax.enable_x64(True):
        warnings.simplefilter("always")
        with monkeypatch.context() as patch:
            patch.setattr(xv.implicit, "warn", lambda *flags: said.append(flags))
            jax.jit(lambda x: xv.layers.jax.report(x, x > 0.5, 2 * x))(jnp.asarray(1.0))
            jax.effects_barrier()
    assert said == [(1.0, 1.0, 2.0)]
    with pytest.warns(DifferentiabilityWarning, match=r"multiplier of zero.*tanh saturate.*least norm.*0.01 only"):
        xv.implicit.warn(1.0, 1.0, 1e-2)


@pytest.mark.frameworks
def test_jax_wrong_use_is_an_error(layer):
    with jax.enable_x64(True):
        slope = jax.grad(partial(fitted, layer), 1)
        steepness = jax.grad(lambda y: (slope(jnp.asarray(T), y) ** 2).sum())
        with pytest.raises(ProblemError, match="a layer has first and second derivatives only"):
            jax.make_jaxpr(jax.grad(lambda y: steepness(y).sum()))(jnp.asarray(Y))
        with pytest.raises(ProblemError, match=r"theta0's dtype float64; got float32 for data\['y'\]"):
            layer({"t": jnp.asarray(T), "y": jnp.asarray(Y, jnp.float32)})
        with pytest.raises(ProblemError, match="same number of rows"):
            layer({"t": jnp.asarray(T), "y": jnp.asarray(Y[:3])})
        with pytest.raises(ProblemError, match="shapes and dtype of the layer's theta0"):
            layer({"t": jnp.asarray(T), "y": jnp.asarray(Y), "labels": jnp.arange(3)}, theta0=jnp.ones(3))
