"""Derivatives of solutions where a level has a loss that is no least squares: by data, as layers, over batches."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import xvarpro as xv
from xvarpro.differentiation.implicit import Cotangent

from .support import central_differences, error, rng
from .test_loss_batches import LOSSES, START, WEIGHTS, X, exponentials

NUMBERS = {**LOSSES, "cauchy": (xv.losses.Cauchy(4.0), LOSSES["huber"][1])}
BARS = rng(3).normal(size=2)


def later(theta, data):
    return exponentials(theta, {"x": data["x"] + 0.05})


def ridge(theta, data):
    return data["lam"] * (1 + 0.1 * theta[0] ** 2)


def size(theta):
    return xv.array_namespace(theta).sum(theta * theta)


def given(name):
    """Arrays of the data; counts are not 0, where a deviance has no derivative by them."""
    return {"x": X, "y": NUMBERS[name][1] + 0.1 * ("poisson" in name), "lam": np.asarray(0.3)}


def stated(name, two, data=None, **lower):
    loss = NUMBERS[name][0]

    def target(theta, data):
        return data["y"]

    lower = {"lam": ridge, "loss": loss, "weights": WEIGHTS, **lower}
    if not two:
        return xv.separable(exponentials, target, R=size, mu=2.0, data=data, **lower)
    above = xv.Level(later, target, loss=loss)
    return xv.bilevel(lower=xv.Level(exponentials, target, **lower), upper=above, R=size, mu=2.0, data=data)


def loss(found):
    theta, w = found.theta, found.w
    return theta[0] - 2 * theta[1] + w.sum() * theta[0] + 0.7 * w.reshape(-1)[0] + 3 * found.value


def value_of(problem, theta):
    return float(xv.solve_lower(problem, theta).value)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_ridge_may_move_with_theta(name):
    data = given(name)
    for two in (False, True):
        problem = stated(name, two, data)
        gradient = xv.value_and_gradient(problem, START)[1]
        want = central_differences(partial(value_of, problem), START)
        assert error(gradient, want) <= 1e-8
    w = xv.solve_lower(problem, START).w.reshape(2, -1)
    M, function = exponentials(START, data), NUMBERS[name][0]
    slope = M.T @ function.slope(M @ w, data["y"].reshape(24, -1), WEIGHTS[:, None])
    assert error(slope, -ridge(START, data) * w) <= 1e-9


def stationary(problem, theta, H):
    """The solution nearby, by Newton steps with one matrix."""
    for _ in range(3):
        theta = theta - np.linalg.solve(H, xv.value_and_gradient(problem, theta)[1])
    return theta, xv.solve_lower(problem, theta)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_derivative_of_a_solution_is_that_of_solves(name):
    """By design, target and ridge together, for theta, w and the value, with one level and two by turns."""
    data, draw, two = given(name), rng(4), list(NUMBERS).index(name) % 2 == 1
    ways = {key: draw.normal(size=np.shape(x)) for key, x in data.items()}
    if name == "squared_hinge":
        ways["y"] = 0 * data["y"]
    problem = stated(name, two, data)
    theta = xv.solve(problem, START, tol=1e-8).theta
    steps = 1e-5 * np.eye(2)
    slopes = [[xv.value_and_gradient(problem, theta + h * s)[1] for s in steps] for h in (1, -1)]
    H = (np.stack(slopes[0]) - np.stack(slopes[1])) / 2e-5
    theta, here = stationary(problem, theta, H)
    bar = rng(5).normal(size=here.w.shape)
    found = xv.implicit.gradient(problem, theta, Cotangent(BARS, bar, 0.7))
    assert not found.reasons
    ends = []
    for h in (2e-5, -2e-5):  # no residual passes a kink within it
        moved = stated(name, two, {key: x + h * ways[key] for key, x in data.items()})
        x, there = stationary(moved, theta, H)
        ends.append(BARS @ x + np.sum(bar * there.w) + 0.7 * float(there.value))
    got = sum(np.sum(found.data[key] * way) for key, way in ways.items())
    assert got == pytest.approx((ends[0] - ends[1]) / 4e-5, rel=1e-6)


def set_of_w(name, data):
    W = xv.lower.Nonnegative() if name == "poisson" else xv.lower.Equality(np.array([[1.0, 1.0]]), np.array([1.0]))
    return xv.separable(exponentials, lambda theta, data: data["y"], lam=0.1, loss=NUMBERS[name][0], W=W, data=data)


@pytest.mark.parametrize("name", ["poisson", "logistic"])
def test_a_w_in_a_set_moves_within_it(name):
    data, theta = given(name), np.array([-0.6, 2.0])
    box = xv.sets.Box(theta, theta)  # one point
    bar = np.array([0.3, -1.2])
    found = xv.implicit.gradient(set_of_w(name, data), theta, Cotangent(w=bar), over=box)
    way = rng(6).normal(size=24)

    def at(h):
        return bar @ xv.solve_lower(set_of_w(name, {**data, "y": data["y"] + h * way}), theta).w

    assert found.data["y"] @ way == pytest.approx((at(1e-5) - at(-1e-5)) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("name", ["softmax", "huber"])
def test_a_torch_layer_has_the_implicit_gradient(name):
    """Alone and mapped over a batch."""
    data = given(name)
    problem = stated(name, True, lam=0.3)
    fit = xv.solve(stated(name, True, data, lam=0.3), START, tol=1e-9)
    layer = xv.layers.torch.Solve(problem, torch.tensor(fit.theta), tol=1e-9)
    tensors = {key: torch.tensor(x, requires_grad=True) for key, x in data.items()}
    loss(layer(tensors)).backward()
    bar = np.full(fit.w.shape, fit.theta[0])
    bar.reshape(-1)[0] += 0.7
    want = xv.implicit.gradient(
        stated(name, True, data, lam=0.3), fit.theta, Cotangent(np.array([1.0 + fit.w.sum(), -2.0]), bar, 3.0)
    ).data
    for key in ("x", "y"):
        assert error(tensors[key].grad.numpy(), want[key]) <= 1e-6
    held = {key: x.detach() for key, x in tensors.items()}
    mapped = torch.func.vmap(torch.func.grad(lambda y: loss(layer({**held, "y": y}))))(torch.stack([held["y"]] * 2))
    assert error(mapped[1].numpy(), want["y"]) <= 1e-6


@pytest.mark.parametrize("name", ["softmax", pytest.param("huber", marks=pytest.mark.thorough)])
@pytest.mark.frameworks
def test_a_jax_layer_has_the_gradient_of_the_torch_one(name):
    with jax.enable_x64(True):
        problem = stated(name, False, solver=xv.lower.QR())  # compiles fast
        method = xv.algorithms.SpectralProjectedGradient()
        layer = xv.layers.jax.solve(problem, jnp.asarray(START), algorithm=method, tol=1e-12)
        other = xv.layers.torch.Solve(problem, torch.tensor(START), algorithm=method, tol=1e-12)
        data = given(name)
        tensors = {key: torch.tensor(x, requires_grad=True) for key, x in data.items()}
        loss(other(tensors)).backward()
        arrays = {key: jnp.asarray(x) for key, x in data.items()}
        slope = jax.grad(lambda y: loss(layer({**arrays, "y": y})))
        found = jax.jit(jax.vmap(slope))(jnp.stack([arrays["y"]] * 2))
        assert error(np.asarray(found)[1], tensors["y"].grad.numpy()) <= 1e-8
