"""Example 1: its objective by its definition, its derivative, its floor, and the methods that run on it."""

from dataclasses import replace

import numpy as np
import pytest
from xvarpro_experiments import autoencoder, race
from xvarpro_experiments.autoencoder import LATENTS, LOSS, methods
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.trees import arrays

import xvarpro as xv
from xvarpro.errors import ProblemError

RIDGE, MU, UNITS = 1e-4, 1e-2, 30.0
WIDTHS = (7, 6, 5, 4)


@pytest.fixture(scope="module")
def data():
    return autoencoder.load("digits", 90, 40)


@pytest.fixture(scope="module")
def theta0(data):
    return autoencoder.start(64, WIDTHS, seed=2, gain=0.6)


def encoded(theta, X):
    for layer in theta["phi"]:
        X = np.tanh(X @ layer["A"] + layer["b"])
    return X * theta["s"]


def decoder(M, X, lam):
    return np.linalg.solve(M.T @ M + lam * np.eye(M.shape[1]), M.T @ X)


def stated(data, **options):
    return autoencoder.problem(data.train, RIDGE, MU, scale=1 / data.rms, **options)


@pytest.mark.parametrize("splits", [1, 2])
def test_levels_are_the_definition(data, theta0, splits):
    X, c = data.train, 1 / data.rms
    low, up = (X[:45], X[45:]) if splits == 2 else (X, X)
    lam = RIDGE * len(low)
    W = decoder(encoded(theta0, c * low), low, lam)
    value = 0.5 * np.sum((encoded(theta0, c * up) @ W - up) ** 2) + 0.5 * MU * np.sum(theta0["s"] ** 2)
    value += 0.5 * lam * np.sum(W**2) if splits == 1 else 0.0
    assert float(xv.value_and_gradient(stated(data, splits=splits), theta0)[0]) == pytest.approx(value, rel=1e-11)


@pytest.mark.parametrize("splits", [1, 2])
def test_images_in_chunks_are_the_same_problem(data, theta0, splits):
    whole = xv.value_and_gradient(stated(data, splits=splits), theta0)
    parts = xv.value_and_gradient(stated(data, splits=splits, rows=20), theta0)
    assert float(parts[0]) == pytest.approx(float(whole[0]), rel=1e-12)
    for a, b in zip(*(arrays(g) for g in (parts[1], whole[1])), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10 * np.max(np.abs(b)))


def test_units_change_the_scale_of_the_objective_and_nothing_else(data):
    one, other = (autoencoder.setting(data, widths=WIDTHS, ridge=RIDGE, units=units).task(0) for units in (1.0, UNITS))
    a, b = (xv.value_and_gradient(task.problem, task.theta0) for task in (one, other))
    assert float(b[0]) == pytest.approx(UNITS**2 * float(a[0]), rel=1e-11)
    for x, y in zip(*(arrays(g) for g in (a[1], b[1])), strict=True):
        np.testing.assert_allclose(y, UNITS**2 * x, rtol=0, atol=1e-9 * UNITS**2 * np.max(np.abs(x)))
    fits = [task.solve(autoencoder.quasi_newton(), task.problem, task.theta0, max_iter=5) for task in (one, other)]
    assert fits[1].value == pytest.approx(UNITS**2 * fits[0].value, rel=1e-8)
    measured = [task.measures[LOSS](task.certify(fit.theta)) for task, fit in zip((one, other), fits, strict=True)]
    assert measured[0] == pytest.approx(measured[1], rel=1e-8)


def test_starts_are_feasible_and_differ_by_seed():
    for n in range(1, 40):
        assert np.sum(autoencoder.start(5, (n,), dtype="float32")["s"], dtype=np.float64) <= 1 + 1e-6
    a, b = (autoencoder.start(5, (4, 3), seed)["phi"][0]["A"] for seed in (0, 1))
    assert not np.array_equal(a, b)
    np.testing.assert_array_equal(a, autoencoder.start(5, (4, 3), 0)["phi"][0]["A"])


def test_pca_is_what_the_singular_values_leave(data):
    X = data.train
    left = np.linalg.svd(X, compute_uv=False) ** 2
    loss = autoencoder.pca_loss(autoencoder.principal_axes(X), X)
    for k in (0, 3, 20):
        assert loss[k] == pytest.approx(0.5 * np.sum(left[k:]) / len(X), rel=1e-10)


def test_no_encoder_gets_below_the_floor(data, theta0):
    """Any linear decoder of 4 latents leaves at least the squares of the singular values beyond the fourth."""
    floor = autoencoder.PCA(data=data, width=4).run(None, Budget(1, 1.0))
    value, _ = xv.value_and_gradient(autoencoder.problem(data.train, scale=1 / data.rms), theta0)
    assert floor.objective < float(value)
    upper = data.train[45:]
    assert floor.objective == pytest.approx(0.5 * np.sum(np.linalg.svd(upper, compute_uv=False)[4:] ** 2), rel=1e-9)


@pytest.fixture(scope="module")
def found(data, less_tuned):
    small = autoencoder.experiment(data, widths=WIDTHS, ridge=1e-6)
    return race.run(replace(small, methods=less_tuned(small.methods)), Budget(3, 60.0))


def test_every_method_descends_within_the_set(found, data):
    for o in found.outcomes[0]:
        if o.family == "floor":
            continue
        assert o.objective < o.curve.value[0], o.method
        assert o.violation <= 1e-12, o.method
        assert np.all(o.theta["s"] >= 0)
        assert np.sum(o.theta["s"]) <= 1 + 1e-12
        assert o.measured[LATENTS].value[-1] == autoencoder.active(o.theta)
        # what an encoder leaves above with a decoder from below is above the floor
        assert o.objective > found.of("PCA of the same width")[0].objective


def test_test_loss_is_the_definition(found, data):
    c = 1 / data.rms
    for name, X in (("quasi-Newton", data.train[:45]), ("quasi-Newton, one level with all images", data.train)):
        (o,) = found.of(name)
        W = decoder(encoded(o.theta, c * X), X, 1e-6 * len(X))
        R = encoded(o.theta, c * data.test) @ W - data.test
        assert o.measured[LOSS].value[-1] == pytest.approx(0.5 * np.mean(np.sum(R * R, axis=1)), rel=1e-6)


def test_figures_and_notes(found):
    figures = found.experiment.figures(found)
    assert set(figures) == {"reconstructions"}
    for figure in figures.values():
        figure.canvas.draw()
        assert figure.axes[0].get_ylabel()
    assert any("PCA" in sentence for sentence in found.experiment.notes(found))


def test_a_shared_full_step_leaves_one_latent():
    """The paper's step next to the same direction with steps of their own, on the problem of the documentation."""
    small = autoencoder.experiment("digits", samples=400, ridge=1e-3)
    names = ("CR-VarPro (the paper)", "Frank-Wolfe, separate steps, cap 0.01")
    task = small.task(0)
    ends = {m.name: m.run(task, Budget(10, 60.0)) for m in small.methods if m.name in names}
    shared, capped = (ends[name] for name in names)
    assert autoencoder.active(shared.theta) == 1
    assert autoencoder.active(capped.theta) == 8
    assert capped.objective < shared.objective


def test_a_mini_batch_of_everything_is_the_full_gradient(data):
    task = autoencoder.setting(data, widths=WIDTHS, ridge=RIDGE).task(0)
    sizes = [level.y.shape[0] for level in task.problem.levels]
    at = [next(methods.shuffled(n, n, seed)) for seed, n in enumerate(sizes)]
    part, full = (xv.value_and_gradient(p, task.theta0) for p in (methods.batch(task.problem, at), task.problem))
    assert float(part[0]) == pytest.approx(float(full[0]), rel=1e-10)
    for a, b in zip(arrays(part[1]), arrays(full[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9 * np.max(np.abs(b)))


def test_mini_batches_run_on_another_framework(data):
    pytest.importorskip("torch")
    task = autoencoder.setting(data, widths=WIDTHS, ridge=RIDGE, backend="torch").task(0)
    o = autoencoder.Adam(rate=1e-2, batch=30).run(task, Budget(20, 60.0))
    assert o.objective < o.curve.value[0]
    assert isinstance(o.theta["s"], np.ndarray)


def test_without_files_the_digits_take_their_place(monkeypatch, tmp_path):
    monkeypatch.delenv("XVARPRO_DATA", raising=False)
    for name in ("mnist", "cifar10"):
        found = autoencoder.load(name, 20)
        assert "digits" in found.fallback  # which a command prints above the facts
        assert found.fallback not in autoencoder.experiment(found).facts["data"]
        with pytest.raises(ProblemError, match="lack"):
            autoencoder.load(name, folder=tmp_path)
