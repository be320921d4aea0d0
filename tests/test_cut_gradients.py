"""Models whose gradient is cut, in whole or in part: the values move with theta, and the gradient does not say so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import xvarpro as xv
from xvarpro.errors import ModelError

from .support import rng

X = torch.tensor(rng(0).normal(size=(40, 4)))
Y = torch.sin(3 * X.sum(1))
SPECTRAL = xv.algorithms.SpectralProjectedGradient()  # compiles fast


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()).double()


def without_grad(net, x):
    with torch.no_grad():
        return net(x)


CUTS = {
    "detach": lambda net, x: net(x).detach(),
    "NumPy inside": lambda net, x: torch.tensor(np.tanh(net[0](x).detach().numpy())),
    "no_grad": without_grad,
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_gradient_that_is_cut_is_refused(cut):
    problem = xv.separable(CUTS[cut], Y, data=X, lam=1e-3)
    with pytest.raises(ModelError, match=r"the gradient is cut"):
        xv.solve(problem, network())


BIASES = {
    "added": lambda h, b: torch.tanh(h + b),
    "hardly": lambda h, b: torch.tanh(h) + 1e-4 * b,
    "their sum does not count": lambda h, b: torch.tanh(h) * torch.softmax(b, 0),
    "zero": lambda h, b: torch.tanh(h + b),
    "complex": lambda h, b: torch.exp(1j * (h + b)),
}


@pytest.mark.parametrize("kind", BIASES)
def test_one_parameter_without_a_gradient_is_named_by_its_shape(kind):
    net = network()
    if kind == "zero":
        torch.nn.init.zeros_(net[0].bias)
    problem = xv.separable(
        lambda net, x: BIASES[kind](x @ net[0].weight.T, net[0].bias.detach()), Y + 0j * (kind == "complex"), data=X
    )
    with pytest.raises(ModelError, match=r"a parameter of shape \(3,\)"):
        xv.solve(problem, net)


def test_a_penalty_whose_gradient_is_cut_is_refused():
    theta = {"a": torch.ones(2, dtype=torch.float64), "b": torch.ones(1, dtype=torch.float64)}
    problem = xv.separable(
        lambda th, x: x[:, :2] * th["a"], Y, data=X, R=lambda th: (th["b"].detach() ** 2).sum(), mu=1.0
    )
    with pytest.raises(ModelError, match=r"a parameter of shape \(1,\)"):
        xv.solve(problem, theta)


@pytest.mark.parametrize("M", [lambda th, x: x[:, :2] * th["a"], lambda th, x: x[:, :2] * th["a"] + th["b"] ** 2])
def test_what_does_not_move_the_values_may_have_no_gradient(M):
    theta = {"a": torch.ones(2, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}
    fit = xv.solve(xv.separable(M, Y, data=X, lam=1e-3), theta, max_iter=3)
    assert fit.theta["b"] == 0
    # a saddle in b has a gradient of zero, and no cut
    assert np.isfinite(fit.value)


def test_a_design_that_is_theta_itself_is_reached():
    problem = xv.separable(lambda th, x: th, Y[:2], data=X, lam=1e-3)
    assert xv.solve(problem, torch.eye(2, dtype=torch.float64), max_iter=3).n_iter > 0


@pytest.mark.parametrize("part", [1.0, -1.0, 1e-3])
def test_debug_finds_a_gradient_that_is_cut_in_part(part):
    def in_part(net, x):
        return net(x) + part * net[0].weight.sum().item() * x[:, :1]

    with pytest.raises(ModelError, match=r"gradient must be that of the objective; got .* where values rise"):
        xv.solve(xv.separable(in_part, Y, data=X, lam=1e-3), network(), debug=True, max_iter=2)


@pytest.mark.frameworks
def test_debug_finds_a_stopped_gradient_of_jax():
    def M(theta, x):
        return jnp.tanh(x @ theta) + jax.lax.stop_gradient(jnp.sum(theta) * x[:, :1])

    problem = xv.separable(M, Y.numpy(), data=X.numpy(), lam=1e-3, solver=xv.lower.QR())
    with pytest.raises(ModelError, match="gradient must be that of the objective"):
        xv.solve(problem, rng(1).normal(size=(4, 3)), backend="jax", algorithm=SPECTRAL, debug=True, max_iter=2)


class Silent(torch.autograd.Function):
    """A derivative of one's own that says nothing."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.zeros_like(grad)


silent = jax.custom_vjp(lambda x: x)
silent.defvjp(lambda x: (x, None), lambda _, g: (jnp.zeros_like(g),))


@pytest.mark.parametrize(
    ("name", "part", "over", "algorithm"),
    [
        pytest.param("jax", jax.lax.stop_gradient, None, SPECTRAL, marks=pytest.mark.frameworks),
        pytest.param("jax", silent, xv.sets.L2Ball(20.0), SPECTRAL, marks=pytest.mark.frameworks),
        ("torch", Silent.apply, None, None),
        ("torch", Silent.apply, xv.sets.L2Ball(20.0), None),
    ],
    ids=["stopped", "silent on JAX", "silent on PyTorch", "silent in a ball"],
)
def test_a_start_without_any_gradient_is_no_minimum_where_values_move(name, part, over, algorithm):
    problem = xv.separable(
        lambda theta, x: xv.array_namespace(x).tanh(x @ part(theta)), Y.numpy(), data=X.numpy(), solver=xv.lower.QR()
    )
    with pytest.raises(ModelError, match="got 0 along a direction where values rise"):
        xv.solve(problem, rng(1).normal(size=(4, 3)), over=over, backend=name, algorithm=algorithm)


T = np.linspace(0.0, 2.0, 100)
TWO = 2.0 * np.exp(-T) + np.exp(-5.0 * T) + 0.01 * rng(0).normal(size=100)


def rounded(theta, t):
    xp = xv.array_namespace(theta)
    return xp.round(1e3 * xp.exp(-xp.expand_dims(t, axis=1) * theta)) / 1e3


def in_long_steps(theta, t):  # from 8 to 6 or 10, from 0.5 to 2
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * xp.round(theta / 4))


def simulated(theta, t):
    return xv.special.external(lambda x: np.floor(1e3 * np.exp(-T[:, None] * x)) / 1e3, theta)


def cosines(theta, t):  # a saddle at 0
    xp = xv.array_namespace(theta)
    return xp.cos(xp.expand_dims(t, axis=1) * theta)


@pytest.mark.parametrize(
    ("M", "name", "over"),
    [
        (rounded, "numpy", None),
        (in_long_steps, "numpy", None),
        (in_long_steps, "numpy", (0.0, 20.0)),
        (simulated, "numpy", (0.0, 20.0)),
        (simulated, "torch", None),
    ],
)
def test_a_model_that_goes_in_steps_is_refused(M, name, over):
    with pytest.raises(ModelError, match=r"derivatives by theta are 0, while the objective changes by .* in steps"):
        xv.solve(xv.separable(M, TWO, data=T), np.array([0.5, 8.0]), over=over, backend=name)
    saddle = xv.solve(xv.separable(cosines, TWO, data=T), np.zeros(1), over=(-1.0, 1.0), max_iter=1)
    assert np.isfinite(saddle.value)


@pytest.mark.parametrize(
    ("theta0", "over", "named"),
    [
        ({"a": np.array(0.5), "b": np.array(8.0)}, None, r"theta\['b'\]"),
        (np.array([0.5, 8.0]), (0.0, 20.0), r"entries \[1\] of theta"),
    ],
)
def test_where_a_model_goes_in_steps_is_named(theta0, over, named):
    def M(theta, t):
        a, b = theta.values() if isinstance(theta, dict) else (theta[0], theta[1])
        xp = xv.array_namespace(a)
        return xp.stack([xp.exp(-t * a), xp.round(1e3 * xp.exp(-t * b)) / 1e3], axis=1)

    with pytest.warns(UserWarning, match=rf"derivatives by {named} are 0"):
        xv.solve(xv.separable(M, TWO, data=T), theta0, over=over)


def test_inputs_that_are_not_scaled_are_said():
    problem = xv.separable(
        lambda theta, x: xv.array_namespace(theta).tanh(x @ theta), Y.numpy(), data=1e5 * X.numpy(), lam=0.1
    )
    with pytest.raises(ModelError, match="or is saturated, as tanh of inputs that are not scaled"):
        xv.solve(problem, rng(1).normal(size=(4, 3)))


def test_an_onset_that_meets_no_sample_goes_in_steps():
    """Between two samples w takes up what it does, so that its derivative is 0 but for rounding."""

    def onset(theta, t):
        xp, (rate, start) = xv.array_namespace(theta), (theta[..., j, None] for j in (0, 1))
        return xp.where(t > start, xp.exp(-rate * (t - start)), 0.0)[..., None]

    y = onset(np.array([0.5, 1.23]), T)[:, 0] + 0.01 * rng(0).normal(size=T.size)
    with pytest.warns(UserWarning, match=r"entries \[1\] of theta are 0"):
        xv.solve(xv.separable(onset, y, data=T), np.array([1.0, 0.5]), over=(0.0, 20.0))
    with pytest.warns(UserWarning, match=r"entries \[1\] of theta are 0"):
        xv.solve_many(xv.separable(onset, y[None], data=T), np.array([[1.0, 0.5]]), (0.0, 20.0))


@pytest.mark.parametrize("column", [rounded, in_long_steps])
def test_a_batch_whose_problems_go_in_steps_says_so(column):
    def M(theta, t):
        xp = xv.array_namespace(theta)
        return xp.stack([xp.exp(-t * theta[:, :1]), column(theta[:, 1:], t)[None, :, 0]], axis=2)

    with pytest.warns(UserWarning, match=r"derivatives by entries \[1\] of theta .* in steps"):
        xv.solve_many(xv.separable(M, TWO[None], data=T), np.array([[0.5, 20.0]]), (0.0, 40.0))
    alone = xv.separable(lambda theta, t: column(theta, t)[None, ...], TWO[None], data=T)
    with pytest.raises(ModelError, match=r"derivatives by entries \[0\] of theta are 0.* in steps"):
        xv.solve_many(alone, np.array([[20.0]]), (0.0, 40.0))


SETS = [None, xv.sets.L2Ball(20.0), xv.sets.Box(-np.inf, 5.0)]
RIGHT = [("numpy", over, dtype) for over in SETS for dtype in ("float64", "float32")]


@pytest.mark.parametrize(("name", "over", "dtype"), [*RIGHT, ("jax", SETS[0], "float32"), ("jax", SETS[2], "float64")])
def test_a_right_gradient_passes(name, over, dtype):
    algorithm, solver = (SPECTRAL, xv.lower.QR()) if name == "jax" else (None, None)
    for size in (1e-3, 1.0):
        theta = (rng(1).normal(size=(4, 3)) * size).astype(dtype)
        theta = xv.project(theta, over) if over is not None else theta
        y, x = Y.numpy().astype(dtype), (X.numpy() / size).astype(dtype)
        problem = xv.separable(lambda k, x: xv.array_namespace(k).tanh(x @ k), y, data=x, lam=1e-3, solver=solver)
        fit = xv.solve(problem, theta, over=over, backend=name, algorithm=algorithm, debug=True, max_iter=1)
        assert fit.n_iter <= 1


@pytest.mark.parametrize("seed", [6, 48])
def test_a_gradient_that_bends_as_codes_leave_faces_passes(seed):
    draw = rng(seed)
    X = np.repeat(draw.integers(-3, 4, size=(2, 10)), 4, 0).T.astype(float)  # archetypes of copies
    X, B = X - X.mean(axis=1, keepdims=True), np.zeros((8, 10))
    B[draw.integers(0, 8, 10), np.arange(10)] = 1
    lam, W = 1e-9 * np.mean(X**2), xv.lower.Simplex()
    problem = xv.separable(lambda theta, data: data @ theta, X, data=X, lam=lam, W=W)
    assert xv.solve(problem, B, xv.sets.Columns(xv.sets.Simplex()), debug=True, max_iter=0).n_iter == 0


@pytest.mark.parametrize(("start", "over"), [(0.0, None), (1.0, xv.sets.Box(1.0, 1.0))])
def test_debug_takes_a_start_at_zero_and_one_that_is_held(start, over):
    problem = xv.separable(lambda k, x: xv.array_namespace(k).exp(x @ k), Y.numpy(), data=X.numpy(), lam=1e-3)
    assert xv.solve(problem, np.full((4, 2), start), over=over, debug=True, max_iter=1).n_iter <= 1


def test_a_gradient_of_zero_passes_where_values_are_rounding():
    """At minima of large residuals, whose differences have no digit."""
    t = np.linspace(0.0, 3.0, 200)
    for seed in range(5):
        y = np.exp(-np.outer(t, [1.0, 4.0])) @ [2.0, 1.0] + 1e4 * rng(seed).normal(size=200)
        problem = xv.separable(lambda k, t: xv.models.exponentials(t, k), y, data=t, lam=1e-8)
        theta = xv.solve(problem, np.array([0.9, 4.5]), over=(0.01, 50.0)).theta
        assert xv.solve(problem, theta, over=(0.01, 50.0), debug=True, max_iter=1).n_iter <= 1


def test_entries_of_a_leaf_in_units_far_apart_have_steps_of_their_own_size():
    t = np.linspace(0.0, 6.0, 30)

    def waves(theta, data):
        xp = xv.array_namespace(theta)
        phases = xp.expand_dims(data["t"], axis=1) * (theta * data["units"])
        return xp.concat([xp.cos(phases), xp.sin(phases)], axis=1)

    for seed in range(5):
        start = np.array([3.0, 0.8]) + 0.1 * rng(seed).normal(size=2)
        data = {"t": t, "units": np.array([1e8, 1.0])}
        problem = xv.separable(waves, rng(seed).normal(size=30), data=data)
        assert xv.solve(problem, start / data["units"], debug=True, max_iter=1).n_iter <= 1
