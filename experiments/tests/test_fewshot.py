"""Example 4: the problem is what it says, methods descend, episodes are honest; the same on every backend."""

import math
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from xvarpro_experiments import fewshot, race
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.fewshot import resnet
from xvarpro_experiments.fewshot.accuracy import differences
from xvarpro_experiments.fewshot.data import HALVES, Scaled
from xvarpro_experiments.fewshot.methods import LPFT, FrozenRidge, Probe, ThroughSolver, Validated, cross_entropy
from xvarpro_experiments.methods import Curve, Method, Outcome, Solver

import xvarpro as xv
from xvarpro.errors import ProblemError

LAM = 0.3
CLASSES, FEATURES = 3, 8


@pytest.fixture(scope="module")
def splits():
    rng = np.random.default_rng(0)
    Y = fewshot.targets(np.arange(CLASSES), CLASSES)
    return tuple(fewshot.Split(rng.normal(size=(CLASSES, 6)), Y) for _ in range(2))


@pytest.fixture(scope="module")
def theta():
    rng = np.random.default_rng(1)
    return {"A": rng.normal(size=(6, FEATURES)), "b": 0.1 * rng.normal(size=FEATURES)}


def plain_layer(theta, X):
    return np.tanh(X @ theta["A"] + theta["b"])


def ridge(M, Y, lam):
    """By the normal equations, not by the dual."""
    return np.linalg.solve(M.T @ M + lam * np.eye(M.shape[1]), M.T @ Y)


def objective(theta, lower, upper, lam=LAM):
    w = ridge(plain_layer(theta, lower.X), lower.Y, lam)
    return 0.5 * np.sum((plain_layer(theta, upper.X) @ w - upper.Y) ** 2)


def test_two_splits_are_the_objective_of_the_definition(splits, theta):
    value, _ = xv.value_and_gradient(fewshot.problem(fewshot.layer, *splits, LAM), theta)
    assert float(value) == pytest.approx(objective(theta, *splits), rel=1e-12)


def test_one_split_is_the_objective_of_the_definition(splits, theta):
    X, Y = np.concatenate([s.X for s in splits]), np.concatenate([s.Y for s in splits])
    M, fit = plain_layer(theta, X), xv.solve(fewshot.pooled(fewshot.layer, splits, LAM), theta, max_iter=0)
    w = ridge(M, Y, LAM)
    assert fit.value == pytest.approx(0.5 * np.sum((M @ w - Y) ** 2) + 0.5 * LAM * np.sum(w * w), rel=1e-12)
    np.testing.assert_allclose(fit.w, w, atol=1e-12)
    np.testing.assert_allclose(fewshot.head(M, Y, LAM), w, atol=1e-12)
    # the closed form of a ridge problem's value
    K = M @ M.T + LAM * np.eye(len(M))
    assert fit.value == pytest.approx(0.5 * LAM * np.sum(Y * np.linalg.solve(K, Y)), rel=1e-12)


def test_units_of_the_features_change_nothing(splits, theta):
    one = xv.value_and_gradient(fewshot.problem(fewshot.layer, *splits, LAM), theta)
    other = xv.value_and_gradient(fewshot.problem(Scaled(fewshot.layer, 30.0), *splits, 900 * LAM), theta)
    assert float(one[0]) == pytest.approx(float(other[0]), rel=1e-10)
    np.testing.assert_allclose(one[1]["A"], other[1]["A"], rtol=1e-8, atol=1e-12)


def test_an_adapter_starts_at_the_identity(splits):
    theta0 = fewshot.start(6, 4, seed=3)
    np.testing.assert_array_equal(fewshot.adapter(theta0, splits[0].X), splits[0].X)
    fit = xv.solve(fewshot.pooled(fewshot.adapter, splits, LAM), theta0, max_iter=10)
    assert fit.value < fit.trace.value[0]


@pytest.fixture(scope="module")
def backbone():
    return fewshot.digits_backbone()


def test_a_named_folder_without_images_is_an_error(tmp_path):
    with pytest.raises(ProblemError, match="must be a folder with images of MNIST"):
        fewshot.digits_backbone(tmp_path)


def test_episodes_share_no_image(backbone):
    one = fewshot.episode(backbone, 2, 30, seed=0)
    rows = np.concatenate([one.lower.X, one.upper.X, one.X])
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert one.lower.X.shape == (10, 64)
    np.testing.assert_array_equal(np.bincount(np.argmax(one.lower.Y, axis=1)), [2] * 5)
    np.testing.assert_array_equal(np.bincount(one.labels), [30] * 5)
    again = fewshot.episode(backbone, 2, 30, seed=0)
    np.testing.assert_array_equal(one.X, again.X)
    assert not np.array_equal(one.lower.X, fewshot.episode(backbone, 2, 30, seed=1).lower.X)


def test_validation_images_are_none_of_the_test(backbone):
    drawn = [np.concatenate([fewshot.episode(backbone, 1, 40, s, half).X for s in range(5)]) for half in HALVES]
    seen = [np.unique(X, axis=0) for X in drawn]
    both = np.concatenate(seen)
    assert len(np.unique(both, axis=0)) == len(both)


@pytest.fixture(scope="module")
def made():
    return fewshot.experiment(validation=1, tests=30)


@pytest.fixture(scope="module")
def task(made):
    return made.task(0)


def accuracy(task, theta, w):
    e = next(iter(task.measures.values())).__self__.episode
    return pytest.approx(100 * np.mean(np.argmax(plain_layer(theta, e.X) @ w, axis=1) == e.labels))


def test_accuracy_is_that_of_the_head_that_belongs_to_the_problem(task):
    (lower, upper), (X, Y), lam = task.splits, task.shots, task.lam
    o = Solver(algorithm=xv.algorithms.cr_varpro()).run(task, Budget(5))
    own, both = ridge(plain_layer(o.theta, lower.X), lower.Y, lam), ridge(plain_layer(o.theta, X), Y, lam)
    assert o.measured[fewshot.ACCURACY].value[-1] == accuracy(task, o.theta, own)
    assert o.measured[fewshot.REFIT].value[-1] == accuracy(task, o.theta, both)
    assert o.objective == pytest.approx(objective(o.theta, lower, upper, lam), rel=1e-8)


def test_frozen_ridge_sees_all_shots(task):
    o, (X, Y) = FrozenRidge().run(task, Budget(5)), task.shots
    w = ridge(plain_layer(task.theta0, X), Y, task.lam)
    assert o.measured[fewshot.ACCURACY].value[-1] == accuracy(task, task.theta0, w)
    assert o.settled
    assert o.seconds > 0


def test_the_probe_lowers_its_loss_and_leaves_the_features(task):
    o, w = Probe(rate=0.05).run(task, Budget(30)), Probe(rate=0.05).descend(task, Budget(30)).points[-1].w
    np.testing.assert_array_equal(o.theta["A"], task.theta0["A"])
    X, Y = task.shots
    M = plain_layer(task.theta0, X)
    start = cross_entropy(M, np.zeros((64, 5)), Y, 1e-3)
    assert float(start) == pytest.approx(math.log(5))
    assert cross_entropy(M, w, Y, 1e-3) < 0.5 * start


def test_cross_entropy_is_that_of_the_definition():
    rng = np.random.default_rng(0)
    M, w, labels = rng.normal(size=(7, 4)), rng.normal(size=(4, 3)), rng.integers(3, size=7)
    p = np.exp(M @ w)
    p /= p.sum(axis=1, keepdims=True)
    expected = -np.mean(np.log(p[np.arange(7), labels])) + 0.5 * 0.1 * np.sum(w * w)
    assert float(cross_entropy(M, w, fewshot.targets(labels, 3), 0.1)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["numpy", "torch", "array-api-strict"])
def test_autodiff_through_the_solver_minimises_the_same_objective(made, name):
    task = replace(made.task(0), backend=name)
    o = ThroughSolver(rate=0.01).run(task, Budget(3))
    lower, upper = task.splits
    assert o.objective == pytest.approx(objective(o.theta, lower, upper, task.lam), rel=1e-8)
    assert o.objective < o.curve.value[0]
    here = ThroughSolver(rate=0.01).run(replace(task, backend="numpy"), Budget(3))
    np.testing.assert_allclose(o.theta["A"], here.theta["A"], atol=1e-8)


def test_fine_tuning_goes_on_from_the_probe(task):
    o = LPFT(rate=1e-3, probe=Probe(rate=0.05), steps=20).run(task, Budget(3))
    first = Probe(rate=0.05).run(task, Budget(20))
    started = o.measured[fewshot.ACCURACY]
    assert started.value[0] == pytest.approx(first.measured[fewshot.ACCURACY].value[-1])
    assert started.seconds[0] > 0
    assert np.any(o.theta["A"] != task.theta0["A"])


class Fixed(Method):
    """Accuracies that are known."""

    def __init__(self, name, values):
        super().__init__(name, "rival")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "limits", [])

    def run(self, task, budget):
        self.limits.append(budget.iterations)
        n = np.arange(len(self.values))
        curve = Curve(n, 1.0 * n, np.asarray(self.values))
        return Outcome(self.name, "rival", None, 0.0, xv.Status.MAX_ITER, curve, {"right": curve})


def test_the_number_of_iterations_is_that_of_the_best_accuracy():
    early, late = Fixed("early", [0.0, 5.0, 4.0, 3.0]), Fixed("late", [9.0, 1.0, 2.0, 5.0])
    both = Validated("both", "rival", (early, late), lambda: [None, None], "right")
    method, n, value = both.chosen(Budget(3))
    assert (method.name, n, value) == ("early", 1, 5.0)
    o = both.run(None, Budget(3))
    assert early.limits[-1] == 1
    assert len(early.limits) == 3  # twice for validation, once to be reported on
    assert "1 iterations" in o.run_as
    assert o.method == "both"


def test_a_race_reports_accuracies_with_intervals(made):
    small = replace(made, methods=(made.methods[0], made.methods[5]))
    found, first = race.run(small, Budget(3), (0, 1)), small.methods[0].name
    own = fewshot.accuracies(found)
    assert all(np.all((x >= 0) & (x <= 100)) for x in own.values())
    assert any("frozen ridge" in line and "+-" in line for line in fewshot.notes(found))
    (ax,) = (figure := differences(found)).axes
    mean, half = fewshot.paired(own[first], own["frozen ridge"])
    said = f"{first}: {mean:+.1f} \N{PLUS-MINUS SIGN} {half:.1f} points over frozen ridge in 2 episodes"
    assert figure.get_suptitle() == said
    assert [label.get_text() for label in ax.get_yticklabels()] == [first]
    np.testing.assert_allclose(ax.lines[0].get_xdata(), own[first] - own["frozen ridge"])


def test_paired_differences_have_students_interval():
    mean, half = fewshot.paired(np.array([1.0, 3.0]), np.array([0.0, 1.0]))
    assert mean == 1.5
    assert half == pytest.approx(12.7062 * np.std([1, 2], ddof=1) / math.sqrt(2), rel=1e-4)
    assert math.isnan(fewshot.paired(np.array([1.0]))[1])


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(0)
    trunk, top = resnet.parts()
    both = {**trunk.state_dict(), **top.state_dict()}
    return {k: v for k, v in both.items() if "num_batches" not in k}


@pytest.fixture(scope="module")
def weights(state, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    save_file(state, path)
    return path


def test_the_resnet_has_the_published_size(state):
    """11.18 million parameters without the classifier, 8.39 of them in layer 4."""
    counted = {k: v.numel() for k, v in state.items() if "running" not in k}
    assert sum(counted.values()) == 11_176_512
    assert sum(n for k, n in counted.items() if k.startswith("layer4.")) == 8_393_728
    assert len(state) == 100  # torchvision's 102 without fc
    assert state["layer4.0.downsample.0.weight"].shape == (512, 256, 1, 1)


def test_weights_are_read_back(weights, state):
    trunk, top = resnet.load(weights)
    for module in (trunk, top):
        assert not module.training
        for name, x in module.state_dict().items():
            if name in state:
                np.testing.assert_array_equal(x.numpy(), state[name].numpy())
    assert resnet.find_weights(folder=weights.parent) == weights


def test_wrong_weights_are_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("XVARPRO_DATA", raising=False)
    with pytest.raises(ProblemError, match="not shipped"):
        resnet.find_weights()
    save_file({"conv1.weight": torch.zeros(3)}, tmp_path / "a.safetensors")
    with pytest.raises(ProblemError, match="does not hold a ResNet-18"):
        resnet.load(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes(b"nothing")
    with pytest.raises(ProblemError, match="not a safetensors file"):
        resnet.load(tmp_path / "b.safetensors")


def test_a_module_is_a_design_with_exact_gradients():
    """BatchNorm by its statistics, in evaluation mode; the caller's module is left as it was."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(resnet.Block(2, 3, 2), torch.nn.AdaptiveAvgPool2d(1)).double()
    module[0].bn1.running_mean += 0.3
    theta0, features = resnet.as_design(module)
    assert module.training
    rng = np.random.default_rng(0)
    Y = fewshot.targets(np.arange(2), 2)
    splits = [fewshot.Split(rng.normal(size=(2, 2, 6, 6)), Y) for _ in range(2)]
    problem = fewshot.problem(features, *splits, 1e-2)
    evaluate = partial(xv.value_and_gradient, problem, backend="torch")
    value, grad = evaluate(theta0)
    direct = [fewshot.evaluate(features, theta0, s.X, "torch") for s in splits]
    w = ridge(direct[0], Y, 1e-2)
    assert float(value) == pytest.approx(0.5 * np.sum((direct[1] @ w - Y) ** 2), rel=1e-10)
    h, d = 1e-6, {k: rng.normal(size=x.shape) for k, x in theta0.items()}
    ahead, back = (evaluate({k: x + s * h * d[k] for k, x in theta0.items()})[0] for s in (1, -1))
    slope = sum(np.sum(grad[k] * d[k]) for k in theta0)
    assert slope == pytest.approx((float(ahead) - float(back)) / (2 * h), rel=1e-5)


@pytest.mark.frameworks
def test_layer_4_learns_on_torch(weights):
    trunk, top = resnet.load(weights)
    images = np.random.default_rng(0).integers(256, size=(4, 3, 32, 32), dtype=np.uint8)
    X = resnet.frozen(trunk, images, 32, batch=3)
    assert X.shape == (4, 256, 2, 2)
    theta0, features = resnet.as_design(top)
    Y = fewshot.targets(np.array([0, 1]), 2, np.float32)
    problem = fewshot.problem(features, fewshot.Split(X[:2], Y), fewshot.Split(X[2:], Y), 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xv.DeadUnitsWarning)  # random weights: some features are zero everywhere
        fit = xv.solve(problem, theta0, over=fewshot.balls(theta0, 0.003), backend="torch", max_iter=1)
    assert fit.value < fit.trace.value[0]
    assert set(fit.theta) == {name for name, _ in top.named_parameters()}
