"""Modules of PyTorch, Flax NNX and Equinox in the place of theta."""

import copy
import pickle
import re
import warnings
from dataclasses import dataclass
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn
from torch.func import functional_call

import xvarpro as xv
from xvarpro.backends import adapters, jax_modules, modules
from xvarpro.core import trees
from xvarpro.driver.prepare import prepare
from xvarpro.errors import ModelError, ProblemError
from xvarpro.problem.loading import load

from .support import host, rng

X = np.linspace(-1.0, 1.0, 30)[:, None]
Y = np.sin(4 * X[:, 0])
SPECTRAL = xv.algorithms.SpectralProjectedGradient()
OPTIONS = {"algorithm": SPECTRAL, "max_iter": 8}
LEVEL = {"lam": 1e-2, "solver": xv.lower.QR()}  # compiles fast


def design(net, data):
    return net(data["x"])


def mapped(net, data):
    return jax.vmap(net)(data["x"])


# -- one network in three frameworks: 1 -> 4 -> 4, its middle used twice, with statistics and a frozen part ------------


class TorchNet(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(1, 4)
        self.second = self.again = nn.Linear(4, 4)
        self.second.bias.requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.squash = self.other  # a bound method

    def other(self, h):
        return torch.tanh(self.norm(h))

    def forward(self, x):
        return self.again(self.drop(self.squash(self.second(torch.tanh(self.first(x))))))


class FlaxNet(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(1, 4, rngs=rngs)
        self.second = self.again = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        h = self.second(jnp.tanh(self.first(x)))
        return self.again(self.drop(jnp.tanh(self.norm(h))))


def squashed(x):  # jnp.tanh cannot be pickled
    return jnp.tanh(x)


class EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear
    drop: eqx.nn.Dropout
    steps: jax.Array
    activation: object

    def __init__(self):
        a, b = jax.random.split(jax.random.key(0))
        self.first, self.second = eqx.nn.Linear(1, 4, key=a), eqx.nn.Linear(4, 4, key=b)
        self.drop, self.steps, self.activation = eqx.nn.Dropout(0.5), jnp.arange(3), squashed

    def __call__(self, x):
        return self.second(self.drop(self.activation(self.second(self.activation(self.first(x))))))


def torch_case():
    return SimpleNamespace(
        M=design,
        data={"x": torch.tensor(X)},
        make=lambda: TorchNet().double(),
        evaluated=lambda net: net.eval(),
        rerun=True,
        remedy=r"net.drop|net.norm, .*Call net.eval\(\)",
        names=["first.weight", "first.bias", "second.weight", "norm.weight", "norm.bias"],
        state=lambda net: {name: host(x) for name, x in net.state_dict().items()},
        weight="second.weight",
    )


def flax_case():
    def state(net):
        flat = nnx.to_flat_state(nnx.state(net, nnx.Any(nnx.Param, nnx.BatchStat)))
        return {".".join(map(str, path)): host(v[...]) for path, v in flat}

    return SimpleNamespace(
        M=design,
        data={"x": jnp.asarray(X, dtype=jnp.float32)},
        make=FlaxNet,
        evaluated=lambda net: (net.eval(), net)[1],
        rerun=True,
        remedy=r"Call net.eval\(\)",
        names=["again.bias", "again.kernel", "first.bias", "first.kernel", "norm.bias", "norm.scale"],
        state=state,
        weight="again.kernel",
    )


def equinox_case():
    return SimpleNamespace(
        M=mapped,
        data={"x": jnp.asarray(X, dtype=jnp.float32)},
        make=EquinoxNet,
        evaluated=eqx.nn.inference_mode,
        rerun=False,  # Flax compiles what a rerun does
        remedy=r"Call net = eqx.nn.inference_mode\(net\)",
        names=["first.weight", "first.bias", "second.weight", "second.bias"],
        state=lambda net: {str(i): host(x) for i, x in enumerate(jax.tree.leaves(eqx.filter(net, eqx.is_array)))},
        weight="second.weight",
    )


MAKE = {"PyTorch": torch_case, "Flax": flax_case, "Equinox": equinox_case}
if not hasattr(nnx.Variable, "get_value"):  # the last Flax for Python 3.10
    del MAKE["Flax"]
CASES = [pytest.param(name, marks=[pytest.mark.frameworks] * (name != "PyTorch")) for name in MAKE]


@pytest.fixture(params=CASES, scope="module")
def case(request):
    """A framework with its network, a problem, and a solve from it with a set for one kernel."""
    found = MAKE[request.param]()
    found.problem = xv.separable(found.M, Y.astype(host(found.data["x"]).dtype), data=found.data, **LEVEL)
    found.net = found.evaluated(found.make())
    found.before = found.state(found.net)
    found.over = {found.weight: xv.sets.Box(-0.8, 0.8)}
    found.start = xv.project(found.net, found.over)
    found.fit = xv.solve(found.problem, found.start, over=found.over, **OPTIONS)
    return found


def same(a, b):
    return a.keys() == b.keys() and all(map(np.array_equal, a.values(), b.values()))


def test_parameters_have_the_names_and_the_order_of_the_framework(case):
    value, gradient = xv.value_and_gradient(case.problem, case.net)
    assert list(gradient) == case.names
    shapes = [x.shape for x in trees.leaves(case.net)]
    assert [x.shape for x in gradient.values()] == shapes
    assert float(xv.solve_lower(case.problem, case.net).value) == pytest.approx(float(value))


def test_a_module_that_is_trained_is_refused(case):
    with pytest.raises(ProblemError, match=case.remedy):
        xv.solve(case.problem, case.make(), **OPTIONS)


def test_the_result_is_a_module_and_the_caller_keeps_theirs(case):
    fit = case.fit
    assert type(fit.theta) is type(case.net)
    assert fit.value < 0.9 * fit.trace.value[0]
    assert same(case.state(case.net), case.before)
    found, start = case.state(fit.theta), case.state(case.start)
    moved = [name for name in found if not np.array_equal(found[name], start[name])]
    assert len(set(moved) - {"again.weight"}) == len(set(case.names) - {"again.weight"})  # tied: two names on PyTorch
    again = case.M(fit.theta, case.data)
    assert 0.5 * float(((host(again) @ host(fit.w) - Y) ** 2).sum()) < fit.value
    inside = host(trees.leaves(fit.theta)[list(case.names).index(case.weight)])
    assert np.abs(inside).max() <= 0.8
    assert np.abs(inside).max() > 0.79


def test_patterns_name_several_leaves(case):
    ball = xv.sets.L2Ball(1.0)
    inside = xv.project(case.net, {"*": ball})
    assert all(np.linalg.norm(host(x)) <= 1 + 1e-6 for x in trees.leaves(inside))
    with pytest.raises(ProblemError, match=rf"keys of theta, .*{case.weight}.* got 'conv\*'"):
        xv.project(case.net, {"conv*": ball})
    with pytest.raises(ProblemError, match=r"over must say once .* got '\*' and 'first.\*': write its name"):
        xv.project(case.net, {"*": ball, "first.*": ball})
    named = xv.project(case.net, {"*": ball, case.weight: xv.sets.Box(3.0, 4.0)})
    assert host(trees.leaves(named)[case.names.index(case.weight)]).min() >= 3.0


def test_a_solve_goes_on_and_is_resumed(case, tmp_path):
    seen = []
    path = tmp_path / "check"
    short = {**OPTIONS, "max_iter": 4}
    first = xv.solve(
        case.problem, case.start, over=case.over, checkpoint=path, callback=lambda i: seen.append(i.theta), **short
    )
    assert all(type(net) is type(case.net) for net in seen)
    resumed = xv.solve(case.problem, case.start, over=case.over, resume=path, **OPTIONS)
    on = xv.solve(case.problem, first, max_iter=8)
    assert resumed.value == on.value == case.fit.value
    assert same(case.state(resumed.theta), case.state(case.fit.theta))


def test_a_result_is_verified_saved_and_loaded(case, tmp_path):
    assert xv.verify(case.fit, case.problem, rerun=case.rerun).ok
    path = tmp_path / "fit.npz"
    case.fit.save(path)
    plain = xv.Result.load(path)
    assert list(plain.theta) == case.names
    back = xv.Result.load(path, like=case.net)
    assert type(back.theta) is type(case.net)
    assert same(case.state(back.theta), case.state(case.fit.theta))
    assert xv.verify(back, case.problem, rerun=case.rerun).ok
    assert same(case.state(pickle.loads(pickle.dumps(case.fit)).theta), case.state(case.fit.theta))
    with pytest.raises(ProblemError, match="like must hold arrays of the shapes"):
        xv.Result.load(path, like={"first": np.ones(3)})


def shifted(net):
    """A copy of a module whose numbers are all others, but for random keys."""

    def moved(x):
        return x + 1 if getattr(x, "dtype", None) is not None and x.dtype.kind in "iuf" else x

    if isinstance(net, nn.Module):
        other = copy.deepcopy(net)
        with torch.no_grad():
            for x in (*other.parameters(), *other.buffers()):
                x += 1
        return other
    if isinstance(net, nnx.Module):
        graph, state = nnx.split(net)
        return nnx.merge(graph, jax.tree_util.tree_map(lambda x: x if x.dtype.name.startswith("key") else x + 1, state))
    return jax.tree_util.tree_map(moved, net)


def test_what_a_module_holds_besides_parameters_is_that_of_the_file(case, tmp_path):
    path, again = tmp_path / "fit.npz", tmp_path / "again.npz"
    case.fit.save(path)
    other = shifted(case.net)
    assert trees.flatten(other)[1] != trees.flatten(case.net)[1]  # the same function of the parameters no more
    back = xv.Result.load(path, like=other)
    assert trees.flatten(back.theta)[1] == trees.flatten(case.fit.theta)[1]
    assert same(case.state(back.theta), case.state(case.fit.theta))
    assert xv.verify(back, case.problem, rerun=case.rerun).ok
    xv.Result.load(path).save(again)  # without a module
    assert same(case.state(xv.Result.load(again, like=other).theta), case.state(case.fit.theta))


def test_a_module_comes_back_as_a_dict_of_tensors_and_from_there_as_a_module(tmp_path):
    path, again = tmp_path / "fit.npz", tmp_path / "again.npz"
    net = TorchNet().double().eval()
    net.norm.running_mean += 0.5
    problem = xv.separable(lambda net, x: net(x), torch.as_tensor(Y), data=torch.as_tensor(X), lam=1e-2)
    fit = xv.solve(problem, net, **OPTIONS)
    fit.save(path)
    tensors = {name: x.detach() for name, x in net.named_parameters() if x.requires_grad}
    for back in (xv.Result.load(path, like=tensors), fit.like(tensors)):
        assert isinstance(back.theta, dict)
        assert all(torch.equal(x, fit.theta.get_parameter(name)) for name, x in back.theta.items())
        back.save(again)
        anew = xv.Result.load(again, like=TorchNet().eval()).theta
        assert torch.equal(anew.norm.running_mean, fit.theta.norm.running_mean)
    with pytest.raises(ProblemError, match=r"had theta\['second\.bias'\] frozen, freeze that in like, by \.req"):
        xv.Result.load(path, like=TorchNet().requires_grad_(True).eval())


def test_arrays_that_a_tree_of_jax_holds_keep_their_kind():
    for x in (np.arange(3), jnp.arange(3), jax.random.key(1, impl="rbg")):
        back = jax_modules._numbers(np.asarray(jax_modules._bits(x)), x)
        assert type(back) is type(x)
        assert back.dtype == x.dtype
        assert (back == x).all()


class Normalised(nn.Module):
    def __init__(self, size=4, width=4):
        super().__init__()
        self.first = nn.Linear(1, width)
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.register_buffer("mask", torch.zeros(size))
        self.register_buffer("graph", torch.eye(3).to_sparse())  # of which a file holds nothing

    def forward(self, x):
        return torch.tanh(self.norm(self.first(x)))


def test_buffers_that_a_file_lacks_or_that_do_not_fit(tmp_path):
    path, old = tmp_path / "fit.npz", tmp_path / "old.npz"
    net = Normalised().double().eval()
    net.norm.running_mean += 0.5
    x, y = torch.as_tensor(X), torch.as_tensor(Y)
    problem = xv.separable(lambda net, x: net(x), y, data=x, lam=1e-2)
    fit = xv.solve(problem, net, **OPTIONS)
    fit.save(path)
    with pytest.warns(UserWarning, match="1 of 5 arrays are not in the file"):
        back = xv.Result.load(path, like=Normalised().eval())
    assert back.theta.norm.running_mean.dtype == torch.float64
    assert torch.equal(back.theta(x), fit.theta(x))
    with pytest.raises(ProblemError, match=r"like must hold buffers .* shapes \[\(4,\), .*; got \[\(5,\), "):
        xv.Result.load(path, like=Normalised(size=5).eval())
    with pytest.raises(ProblemError, match=r"like must hold buffers .* shapes \[\(4,\), .*; got \[\]"):
        xv.Result.load(path, like=nn.ModuleDict({"first": nn.Linear(1, 4)}).eval())
    with np.load(path) as file:
        np.savez(old, **{name: file[name] for name in file if not name.startswith("held_")})
    with pytest.warns(UserWarning, match="5 of 5 arrays are not in the file"):
        back = xv.Result.load(old, like=net)
    assert torch.equal(back.theta(x), fit.theta(x))


def test_a_module_in_half_precision_is_refused():
    for dtype in (torch.float16, torch.bfloat16):
        net = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)).eval().to(dtype)
        problem = xv.separable(lambda net, x: net(x), torch.as_tensor(Y).to(dtype), data=torch.as_tensor(X).to(dtype))
        with pytest.raises(ProblemError, match=f"must be float32 or float64; got dtype {str(dtype).split('.')[1]}"):
            xv.solve(problem, net)


def test_a_module_that_is_made_inside_is_named():
    def made(net, x):
        torch.manual_seed(0)
        return net(x) + nn.Linear(1, 2, dtype=torch.float64)(x)

    net = nn.Linear(1, 2, dtype=torch.float64)
    problem = xv.separable(made, torch.as_tensor(Y), data=torch.as_tensor(X))
    with pytest.raises(ModelError, match="and a module that is made inside do"):
        xv.solve(problem, net)


def test_a_module_is_computed_with_by_its_own_framework(case):
    with pytest.raises(ProblemError, match=r"its own framework, .*; got backend numpy\. Leave"):
        xv.solve(case.problem, case.net, backend="numpy")


def test_a_module_may_be_a_part_of_theta_and_of_the_data(case):
    problem = xv.separable(
        lambda theta, data: theta["scale"] * case.M(theta["net"], data) + case.M(data["teacher"], data),
        case.problem.lower.y,
        data={**case.data, "teacher": case.evaluated(case.make())},
        **LEVEL,
    )
    own = adapters.owner(case.data["x"])
    theta = {"net": case.net, "scale": own.asarray(np.ones(4, host(case.data["x"]).dtype))}
    value, gradient = xv.value_and_gradient(problem, theta)
    assert list(gradient["net"]) == case.names
    assert gradient["scale"].shape == (4,)
    half = xv.separable(lambda net, data: 2 * case.M(net, data), case.problem.lower.y, data=case.data, **LEVEL)
    assert float(value) == pytest.approx(float(xv.solve_lower(half, case.net).value), rel=1e-4)


# -- PyTorch -----------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """Parameters that modules keep in lists, compute from others, or look up by name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.lstm = nn.LSTM(1, 4, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
        self.blocks = nn.ModuleDict({"a": nn.Linear(3, 3), "none": nn.Identity()})
        self.scales = nn.ParameterList([torch.ones(3)])

    def encode(self, x):
        h = self.lstm(x[None])[0]
        return self.normed(self.attention(h, h, h, need_weights=False)[0][0])

    def forward(self, x):
        return self.blocks["a"](self.encode(x)) * self.scales[0]


def test_the_functions_of_a_problem_receive_a_whole_module():
    net = Recurrent().double()
    data = {"x": torch.tensor(X)}
    for call in (
        lambda net, data: net(data["x"]),
        lambda net, data: torch.tanh(net.blocks["a"](net.encode(data["x"]))),
    ):
        problem = xv.separable(call, torch.tensor(Y), data=data, lam=1e-2)
        value, gradient = xv.value_and_gradient(problem, net)
        theta = dict(net.named_parameters())
        by_dict = xv.separable(
            lambda theta, data, call=call: functional_call(Called(net, call), theta, (data,)),
            torch.tensor(Y),
            data=data,
            lam=1e-2,
        )
        want, slopes = xv.value_and_gradient(by_dict, {f"net.{name}": x for name, x in theta.items()})
        assert value == want
        assert all(torch.equal(gradient[name], slopes[f"net.{name}"]) for name in theta)


class Called(nn.Module):
    def __init__(self, net, call):
        super().__init__()
        self.net, self.call = net, call

    def forward(self, data):
        return self.call(self.net, data)


def test_a_result_of_torch_can_be_trained_on():
    net = TorchNet().double().eval()
    problem = xv.separable(design, torch.tensor(Y), data={"x": torch.tensor(X)}, lam=1e-2)
    found = xv.solve(problem, net, **OPTIONS).theta
    assert all(isinstance(x, nn.Parameter) for x in found.parameters())
    assert found.second is found.again
    assert [name for name, x in found.named_parameters() if not x.requires_grad] == ["second.bias"]
    before = copy.deepcopy(net.state_dict())
    found.train()
    found(torch.tensor(X)).sum().backward()
    torch.optim.SGD(found.parameters(), lr=0.1).step()
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())
    assert not torch.equal(found.norm.running_mean, net.norm.running_mean)


def test_buffers_follow_the_dtype_that_is_asked_for():
    net = TorchNet().eval()
    problem = xv.separable(design, torch.tensor(Y), data={"x": torch.tensor(X)}, lam=1e-2)
    found = xv.solve(problem, net, dtype="float64", **OPTIONS).theta
    assert {x.dtype for x in found.state_dict().values() if x.is_floating_point()} == {torch.float64}
    assert net.norm.running_mean.dtype == torch.float32


def lazily(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


REFUSED = {
    "compiled": (lambda net: torch.compile(net, backend="eager"), "Pass the module that was compiled"),
    "traced": (lambda net: torch.jit.trace(net, torch.tensor(X)), "Pass the module that was compiled"),
    "computed beforehand": (nn.utils.weight_norm, "net with weight from before"),
    "frozen": (lambda net: net.requires_grad_(False), "frozen in modules, is not theta"),
    "lazy": (lambda net: nn.LazyLinear(4), "Call it once before"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_theta_is_refused(kind):
    make, said = REFUSED[kind]
    net = lazily(lambda: make(nn.Linear(1, 4).double()))
    problem = xv.separable(design, torch.tensor(Y), data={"x": torch.tensor(X)}, lam=1e-2)
    with pytest.raises(ProblemError, match=said):
        xv.value_and_gradient(problem, net)


class Listed(nn.Module):
    """Its forward reaches its layer through a list, which no copy of the module replaces."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 4)
        self.layers = [self.layer]

    def forward(self, x):
        return torch.tanh(self.layers[0](x))


def test_parameters_that_are_not_those_of_theta_are_refused():
    """Their gradient would be 0, and the solve done at once."""
    data, net, constant = {"x": torch.tensor(X)}, nn.Linear(1, 4).double(), nn.Linear(1, 4).double()
    for module, M in (
        (Listed().double(), design),
        (net, lambda theta, data: net(data["x"])),
        (net, lambda theta, data: theta(data["x"]) + constant(data["x"])),
    ):
        with pytest.raises(ModelError, match=r"uses another, of shape \(4, 1\)"):
            xv.solve(xv.separable(M, torch.tensor(Y), data=data, lam=1e-2), module)
    constant.requires_grad_(False)
    problem = xv.separable(lambda net, data: net(data["x"]) + constant(data["x"]), torch.tensor(Y), data=data, lam=1e-2)
    assert float(xv.value_and_gradient(problem, net)[1]["weight"].abs().sum()) > 0


def test_what_trains_nothing_is_no_reason_to_refuse():
    net = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.0), nn.BatchNorm1d(4, track_running_stats=False)).double()
    problem = xv.separable(design, torch.tensor(Y), data={"x": torch.tensor(X)}, lam=1e-2)
    assert xv.value_and_gradient(problem, net)[0] > 0
    assert xv.solve(problem, net, max_iter=1).theta.training  # as the page on modules says
    assert not xv.solve(problem, net.eval(), max_iter=1).theta.training

    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2 if self.training else 1)

    with pytest.raises(ProblemError, match=r"with net, a Own, whose forward depends on it"):
        xv.value_and_gradient(problem, Own(1, 4).double())


@pytest.mark.parametrize("case", ["PyTorch"], indirect=True)
def test_standard_errors_are_by_name(case):
    problem = xv.separable(case.M, case.problem.lower.y, data=case.data, lam=1e-2)
    with np.errstate(invalid="ignore"):
        errors = xv.solve(problem, case.net, algorithm=SPECTRAL, max_iter=1).statistics().theta_stderr
    assert list(errors) == case.names
    assert [x.shape for x in errors.values()] == [x.shape for x in trees.leaves(case.net)]


def test_a_named_problem_returns_its_module(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch, xvarpro as xv\n"
        "def problem():\n"
        "    torch.manual_seed(0)\n"
        "    x = torch.linspace(-1.0, 1.0, 20).double()[:, None]\n"
        "    net = torch.nn.Linear(1, 2).double()\n"
        "    M = lambda net, data: torch.tanh(net(data))\n"
        "    return xv.separable(M, torch.sin(3 * x[:, 0]), data=x, lam=1e-2), net\n"
    )
    name = f"{tmp_path / 'mine.py'}:problem"
    spec = load(name)
    fit = xv.solve(spec.problem, spec.theta0, **OPTIONS)
    fit.save(tmp_path / "fit.npz", problem=name)
    found = xv.verify(tmp_path / "fit.npz", trust=True)
    assert found.ok
    assert "another theta0" not in str(found)


# -- inside ------------------------------------------------------------------------------------------------------------


def test_structures_are_equal_where_modules_are_the_same_function(case):
    other = copy.deepcopy(case.net)
    a, b = (trees.flatten(net)[1] for net in (case.net, other))
    assert a == b
    assert hash(a) == hash(b)
    assert a == trees.flatten(case.fit.theta)[1]
    net = TorchNet().eval()
    modules.adopt([net])
    a = trees.flatten(net)[1]
    other = copy.deepcopy(net)
    other.norm.running_mean += 1
    assert a != trees.flatten(other)[1]
    # of sparse tensors it is not known
    net = Normalised().eval()
    modules.adopt([net])
    assert trees.flatten(net)[1] != trees.flatten(copy.deepcopy(net))[1]


def test_what_is_no_array_stands_in_a_mapping(case):
    numbers = trees.unflatten(trees.flatten(case.net)[1], range(len(case.names)))
    assert isinstance(numbers, modules.ModuleParameters)
    assert list(numbers.items()) == [(name, i) for i, name in enumerate(case.names)]
    assert trees.paths(numbers) == trees.paths(case.net) == [f"theta[{name!r}]" for name in case.names]
    assert repr(numbers).startswith("{")


@jax.tree_util.register_dataclass
@dataclass
class Samples:
    t: object
    weight: object


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_a_tree_of_jax_may_hold_the_data_of_any_framework(name):
    def M(theta, data):
        xp = xv.array_namespace(theta)
        return xp.exp(-xp.expand_dims(data.t, axis=1) * theta) * data.weight

    t = np.linspace(0.0, 1.0, 20).astype(np.float32)
    problem = xv.separable(M, np.exp(-2 * t), data=Samples(t, np.float32(1.0) * np.ones(1, np.float32)), lam=1e-6)
    value, _ = xv.value_and_gradient(problem, np.array([2.0], np.float32), backend=name)
    assert float(value) < 1e-5


# -- kernels of convolutions -------------------------------------------------------------------------------------------


def flax_convolution():
    class Net(nnx.Module):
        def __init__(self):
            self.first = nnx.Conv(2, 3, (3, 3), rngs=nnx.Rngs(0))
            self.other = nnx.Param(jnp.ones((2, 2, 2, 2)))

        def __call__(self, x):
            return self.first(x).mean((1, 2)) + self.other[...].sum()

    return Net(), {"first.kernel": "axes=4, rows=3", "other": None}, (6, 4, 4, 2)


def equinox_convolution():
    class Net(eqx.Module):
        first: eqx.nn.Conv1d
        other: jax.Array

        def __call__(self, x):
            return jax.vmap(self.first)(x).mean(2) + self.other.sum()

    net = Net(eqx.nn.Conv1d(2, 3, 3, key=jax.random.key(0)), jnp.ones((2, 2, 2, 2)))
    return net, {"first.weight": "axes=3, rows=1", "other": None}, (6, 2, 4)


def torch_convolution():
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten())
    net.register_parameter("other", nn.Parameter(torch.ones(2, 2, 2, 2)))
    return net, {"0.weight": "axes=4, rows=1", "other": None}, (6, 2, 3, 3)


def plain_convolution():
    return {"stack": np.ones((2, 3, 3)), "four": np.ones((3, 2, 3, 3))}, {"four": "axes=4, rows=1", "stack": None}, None


@pytest.mark.parametrize("make", [plain_convolution, torch_convolution, flax_convolution, equinox_convolution])
def test_a_set_of_matrices_on_a_kernel_warns_of_its_slices(make):
    net, said, shape = make()
    if shape is None:
        M, data, y = lambda theta, x: theta["four"][:, :, 0, 0] + theta["stack"][0, 0, 0], None, np.ones(3)
    else:
        own = adapters.owner(trees.leaves(xv.project(net, None))[0])
        M, data, y = lambda net, x: net(x), own.asarray(rng(2).normal(size=shape).astype("float32")), np.ones(6)
    problem = xv.separable(M, y.astype("float32" if shape else "float64"), data=data, lam=1e-1)
    for name, kernel in said.items():
        ball = xv.sets.SpectralBall(100.0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", xv.SlicesWarning)
            prepare(problem, net, over={name: ball}, solving=True)
        found = [str(w.message) for w in caught if w.category is xv.SlicesWarning]
        assert len(found) == (kernel is not None)
        if kernel:
            assert f"of theta[{name!r}]" in found[0]
            written = re.search(r"write (.*); where slices are meant", found[0])[1]
            assert kernel in written
            flat = eval(written.replace("(SpectralBall", "(xv.sets.SpectralBall"))
            prepare(problem, net, over={name: flat}, solving=True)


# -- layers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["PyTorch", pytest.param("Equinox", marks=pytest.mark.frameworks)], indirect=True)
def test_a_layer_returns_a_module_that_carries_gradients(case):
    """The network that fits a signal, as a function of that signal."""
    problem = xv.separable(case.M, lambda net, data: data["y"], data=None, **LEVEL)
    over = {"*": xv.sets.L2Ball(1.0)}
    net = xv.project(case.net, over)
    own = adapters.owner(case.data["x"])
    y = own.asarray(Y.astype(host(case.data["x"]).dtype))
    options = {"over": over, "algorithm": SPECTRAL, "max_iter": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xv.implicit.DifferentiabilityWarning)  # two steps are no solution
        if own.name == "torch":
            y.requires_grad_()
            found = xv.layers.torch.Solve(problem, net, **options)({**case.data, "y": y})
            found.theta(case.data["x"]).sum().backward()
            slope = y.grad
        else:
            layer = xv.layers.jax.solve(problem, net, **options)

            def fitted(y):
                found = layer({**case.data, "y": y})
                return case.M(found.theta, case.data).sum(), found

            slope, found = eqx.filter_jit(jax.grad(fitted, has_aux=True))(y)
            jax.effects_barrier()
    assert type(found.theta) is type(case.net)
    assert np.isfinite(host(slope)).all()
    assert np.abs(host(slope)).max() > 0
