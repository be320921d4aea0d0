"""Estimators for scikit-learn: its own checks, what the fits claim, the sweeps that they start with."""

import pickle
import warnings
from itertools import pairwise

import numpy as np
import pytest
import sklearn.decomposition
from scipy.optimize import nnls
from sklearn.datasets import load_diabetes, load_digits, make_moons
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, scale
from sklearn.utils.estimator_checks import check_estimator

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro.sklearn import (
    DMD,
    NMF,
    ArchetypalAnalysis,
    ConstrainedDictionary,
    LearnedPenaltyClassifier,
    NeuralHeadClassifier,
    NeuralHeadRegressor,
    SparseAutoencoder,
    VarProRegressor,
)
from xvarpro.sklearn._base import warn_unless_converged
from xvarpro.sklearn._sweeps import Atoms, best_atoms, best_codes, by_rows, factorise, shared_out, sweepable

from .support import rng, send


def curve(theta, X):
    """A line in all features, and a bump whose width is theta: what regressors are checked with."""
    xp = xv.array_namespace(theta)
    return xp.concat([X, xp.ones_like(X[:, :1]), xp.exp(-theta * X[:, :1] ** 2)], axis=1)


def decays(theta, X):
    return xv.array_namespace(theta).exp(-X * theta)


def one(X):
    return np.ones(1)


# as few steps as the checks need: each of them is some dozens of fits
ESTIMATORS = (
    NMF(2, n_init=1, sweeps=3, max_iter=0),
    ConstrainedDictionary(2, atoms=xv.sets.L1Ball(), shared=True, sweeps=1, max_iter=1),
    VarProRegressor(curve, one, over=xv.sets.Box(0.0, 10.0), lam=1e-8, max_iter=1),
    NeuralHeadClassifier(4, max_iter=1),
)
MORE = (
    ArchetypalAnalysis(2, max_iter=0),
    SparseAutoencoder(2, max_iter=1),
    DMD(2, max_iter=1),
    NeuralHeadRegressor(4, max_iter=1),
    NeuralHeadClassifier(4, loss="softmax", max_iter=1),
    LearnedPenaltyClassifier(max_iter=1),
)
DIGITS = load_digits().data[:300] / 16.0
START = np.array([0.5, 8.0])
QUICK = {"sweeps": 100, "max_iter": 5, "random_state": 0}

unconverged = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize(
    "estimators", [ESTIMATORS, pytest.param(MORE, marks=pytest.mark.frameworks)], ids=["quick", "more"]
)
def test_every_check_of_scikit_learn_passes(estimators):
    for estimator in estimators:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = check_estimator(estimator, on_fail="raise")
        skipped = [check["check_name"] for check in done if check["status"] != "passed"]
        assert set(skipped) <= {"check_array_api_input"}, (estimator, skipped)  # runs where SCIPY_ARRAY_API is set


# -- dictionaries ------------------------------------------------------------------------------------------------------


def objective(X, codes, atoms, penalty=0.0):
    return 0.5 * np.sum((X - codes @ atoms) ** 2) + penalty


@unconverged
def test_what_a_fit_claims_is_so():
    X = DIGITS[:60]
    for atoms, codes, penalty in CASES:
        model = ConstrainedDictionary(6, atoms=atoms, codes=codes, sweeps=20, max_iter=2, random_state=0).fit(X)
        assert model._atoms().over.violation(np.ascontiguousarray(model.components_.T)) < 1e-9
        w = model.transform(X)
        value = objective(X, w, model.components_, penalty(w) + 0.5 * model.lam * np.sum(w**2))
        np.testing.assert_allclose(value, model.objective_, rtol=1e-9)
        assert model.gap_ >= 0
        assert model.n_iter_ >= model.n_sweeps_ >= 1
        if isinstance(codes, xv.lower.Simplex):
            assert np.abs(w.sum(axis=1) - 1.0).max() < 1e-12
            assert w.min() >= 0
        share = 1 - np.sum((X - model.inverse_transform(w)) ** 2) / np.sum(X**2)
        np.testing.assert_allclose(model.score(X), share)
        assert share > 0.5
    with pytest.raises(ProblemError, match=r"codes must have shape \(n_samples, 6\); got \(2, 4\)"):
        model.inverse_transform(np.ones((2, 4)))


def test_sets_without_a_projection_go_to_the_solve_at_once():
    oracle = xv.sets.Oracle(lambda g: xv.sets.L1Ball().lmo(g), 2.0)
    assert not sweepable(Atoms(oracle), None)
    with pytest.warns(ConvergenceWarning, match=r"Raise max_iter\.$"):
        model = ConstrainedDictionary(3, atoms=oracle, max_iter=3, random_state=0).fit(DIGITS[:50])
    with pytest.warns(ConvergenceWarning, match=r"Raise max_iter or tol: 0\.02 times the objective"):
        warn_unless_converged(model, xv.Status.MAX_ITER, 0.01, 1.0)
    assert model.n_sweeps_ == 0
    assert np.abs(model.components_).sum(axis=1).max() <= 1 + 1e-9


@unconverged
def test_nmf_ends_no_higher_than_scikit_learns():
    X = load_digits().data[:300]
    theirs = sklearn.decomposition.NMF(8, init="nndsvda", max_iter=2000, random_state=0).fit(X)
    ours = NMF(8, random_state=0).fit(X)
    assert ours.objective_ <= 0.5 * theirs.reconstruction_err_**2
    assert ours.gap_ <= 2e-3 * ours.objective_
    assert (ours.components_ >= 0).all()
    np.testing.assert_allclose(ours.components_.sum(axis=1), 1.0, rtol=1e-12)
    with pytest.raises(ValueError, match=r"Negative values in data passed to NMF.*MinMaxScaler\(clip=True\)"):
        ours.fit(-X)


@pytest.mark.frameworks
@pytest.mark.parametrize("name", ["torch", "jax", "array-api-strict"])
@unconverged
def test_the_backends_end_in_the_same_fit(name):
    # JAX compiles a solve for the curves below
    how = {"codes": xv.lower.L1(0.1), "max_iter": 0} if name == "jax" else {"max_iter": 2}
    t = np.linspace(0.0, 2.0, 60)[:, None]
    y = np.exp(-np.outer(t[:, 0], [1.0, 5.0])) @ np.array([2.0, 1.0]) + 1e-3 * rng(0).normal(size=60)
    atoms, curves = [], []
    for backend in (name, "numpy"):
        learner = ConstrainedDictionary(3, sweeps=10, random_state=0, backend=backend, **how)
        regressor = VarProRegressor(decays, START, over=xv.sets.Box(0.0, 20.0), tol=1e-9, backend=backend)
        atoms.append(learner.fit(DIGITS[:60, 20:30]).components_)
        curves.append(regressor.fit(t, y).predict(t))
    assert type(atoms[0]) is np.ndarray
    np.testing.assert_allclose(*atoms, atol=1e-8)
    np.testing.assert_allclose(*curves, atol=1e-7)


@unconverged
def test_mini_batches_lower_the_error_of_samples_not_seen():
    for model in (NMF(6, random_state=0), ConstrainedDictionary(6, codes=xv.lower.L1(0.1), random_state=0)):
        scores = []
        for i in range(10):
            model.partial_fit(DIGITS[20 * i : 20 * i + 20])
            scores.append(model.score(DIGITS[200:]))
        assert model.n_iter_ == 10
        assert scores[-1] > scores[0] + 0.05
        whole = type(model)(6, **{k: v for k, v in model.get_params().items() if k != "n_components"})
        assert scores[-1] > whole.fit(DIGITS[:200]).score(DIGITS[200:]) - 0.1


def test_a_mini_batch_counts_in_a_mean_with_a_weight_that_falls_with_its_number():
    """Codes of batch t, of any length, have the weight t^(-3/5), and what came before has the rest of 1."""
    model = ConstrainedDictionary(4, random_state=0).partial_fit(DIGITS[:40])
    for t, X in ((2, DIGITS[40:60]), (3, DIGITS[60:110])):
        _, A, B = model._statistics
        w, D, rho = model.transform(X), model.components_.T, t**-0.6
        A, B = (1 - rho) * A + rho * w.T @ w / len(X), (1 - rho) * B + rho * X.T @ w / len(X)
        model.partial_fit(X)
        np.testing.assert_allclose(model.components_.T, best_atoms(A, B, D, model._atoms()), rtol=1e-9, atol=1e-12)


def test_three_passes_of_mini_batches_come_near_a_whole_factorisation():
    """Within a twentieth; batches that move atoms of a fixed sum one by one are a twelfth away."""
    X = np.abs(rng(2).normal(size=(400, 10)))
    whole, model = NMF(4, random_state=0, max_iter=0).fit(X), NMF(4, random_state=0)
    for chunk in np.tile(X.reshape(20, 20, 10), (3, 1, 1)):
        model.partial_fit(chunk)
    least, near = (np.sum((exact_codes(X, D) @ D - X) ** 2) for D in (whole.components_, model.components_))
    assert near < 1.05 * least


def exact_codes(X, D):
    return np.stack([nnls(D.T, x)[0] for x in X])


@unconverged
def test_a_search_a_pipeline_names_frames_and_pickles():
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), ConstrainedDictionary(**QUICK)),
        {
            "constraineddictionary__n_components": [2, 6],
            "constraineddictionary__codes": [xv.lower.Nonnegative(), xv.lower.L1(5.0)],
        },
        cv=2,
        error_score="raise",
    ).fit(DIGITS[:100])
    best = search.best_estimator_
    assert search.best_params_["constraineddictionary__n_components"] == 6
    assert search.best_params_["constraineddictionary__codes"] == xv.lower.Nonnegative()
    again = pickle.loads(pickle.dumps(best))
    np.testing.assert_array_equal(again.transform(DIGITS), best.transform(DIGITS))
    best.set_output(transform="pandas").fit(DIGITS[:100])
    frame = best.transform(DIGITS[:5])
    assert list(frame.columns) == [f"constraineddictionary{i}" for i in range(6)]


def test_wrong_parameters_are_named():
    for wrong, match in (
        ({"n_components": 0}, "n_components must be a whole number >= 1, got 0"),
        ({"atoms": "l1"}, "atoms must be a set of xvarpro.sets or None, got 'l1'"),
        ({"codes": xv.sets.Simplex()}, "codes must be a set of xvarpro.lower"),
        ({"lam": -1.0}, "lam must be a finite number >= 0, got -1.0"),
        ({"shared": "no"}, "shared must be True or False"),
    ):
        with pytest.raises(ProblemError, match=match):
            ConstrainedDictionary(**wrong).fit(DIGITS)
    for wrong in ({"lam": 0.0}, {"budget": 0.0}, {"hidden": (0,)}):
        with pytest.raises(ProblemError, match="SparseAutoencoder"):
            SparseAutoencoder(**wrong).fit(DIGITS)
    for kind in (NMF, ConstrainedDictionary):
        with pytest.raises(TypeError, match=rf"^{kind.__name__}\.fit\(\).*'sample_weight'"):
            kind().fit(DIGITS, sample_weight=np.ones(300))
    for estimator in (*ESTIMATORS, *MORE):
        for name in ("predict", "predict_proba", "transform", "inverse_transform", "score", "hidden_features"):
            if hasattr(estimator, name):
                with pytest.raises(NotFittedError):
                    getattr(estimator, name)(*(DIGITS, DIGITS[:, 0])[: 1 + (name == "score")])


# -- archetypes, autoencoder, regressors -----------------------------------------------------------------------------


def test_archetypes_are_mixtures_and_samples_mixtures_of_them():
    corners = np.array([[0.0, 0.0, 1.0], [5.0, 0.0, 1.0], [0.0, 5.0, 1.0]]) + 7.0
    X = rng(0).dirichlet(np.full(3, 0.3), size=100) @ corners + 0.02 * rng(1).normal(size=(100, 3))
    model = ArchetypalAnalysis(3, random_state=0).fit(X)
    S = model.transform(X)
    for shares in (S, model.mixtures_):
        assert shares.min() >= 0
        assert np.abs(shares.sum(axis=1) - 1.0).max() < 1e-12
    np.testing.assert_allclose(model.components_, model.mixtures_ @ X, rtol=1e-12)
    np.testing.assert_allclose(objective(X, S, model.components_), model.objective_, rtol=1e-5)
    assert model.status_.success
    off = np.linalg.norm(model.components_[:, None] - corners, axis=2).min(axis=0)
    assert off.max() < 0.5
    moved = ArchetypalAnalysis(3, random_state=0).fit(X - 100.0)
    np.testing.assert_allclose(moved.components_ + 100.0, model.components_, atol=1e-6)


@unconverged
def test_an_autoencoder_switches_latents_off_and_stays_above_pca():
    model = SparseAutoencoder(12, lam=1e-3, random_state=0, max_iter=150).fit(DIGITS)
    on = model.gates_ > 0
    assert 1 <= on.sum() < 12
    assert model.gates_.sum() <= 1 + 1e-9
    codes = model.transform(DIGITS)
    assert (codes[:, ~on] == 0).all()
    pca = sklearn.decomposition.PCA(int(on.sum())).fit(DIGITS)
    left = np.sum((DIGITS - pca.inverse_transform(pca.transform(DIGITS))) ** 2)
    assert np.sum((DIGITS - model.inverse_transform(codes)) ** 2) >= left


def test_curves_in_a_pipeline_with_weights_many_targets_and_standard_errors():
    t = np.linspace(0.0, 2.0, 60)[:, None]
    clean = np.exp(-np.outer(t[:, 0], [1.0, 5.0])) @ np.array([[2.0, 1.0], [1.0, 3.0]])
    y = clean + 1e-3 * rng(0).normal(size=clean.shape)
    model = VarProRegressor(decays, np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 20.0), tol=1e-9).fit(t, y)
    np.testing.assert_allclose(np.sort(model.theta_), [1.0, 5.0], atol=0.05)
    assert model.predict(t).shape == y.shape
    assert model.score(t, y) > 0.9999
    assert (model.result_.statistics().theta_stderr < 0.05).all()
    bad = y[:, 0].copy()
    bad[:5] += 3.0
    weights = np.ones(60)
    weights[:5] = 0.0
    model.fit(t, bad, sample_weight=weights)
    np.testing.assert_allclose(np.sort(model.theta_), [1.0, 5.0], atol=0.1)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(t), model.predict(t))
    bins = np.arange(60)[:, None]
    loaded = pickle.loads(pickle.dumps(model.fit(bins, np.exp(-0.1 * bins[:, 0])))).result_
    with pytest.raises(ProblemError, match="got another data of dtype int64, which was float64"):
        loaded.attach(xv.separable(decays, np.exp(-0.1 * bins[:, 0]), data=bins))
    loaded.attach(xv.separable(decays, np.exp(-0.1 * bins[:, 0]), data=bins.astype(float))).statistics()
    scaled = make_pipeline(MinMaxScaler((0.0, 2.0)), model).fit(10.0 * t, y[:, 0])
    np.testing.assert_allclose(np.sort(scaled[-1].theta_), [1.0, 5.0], atol=0.1)


@unconverged
def test_a_head_is_the_exact_minimiser_for_its_features():
    X, y = load_digits(return_X_y=True)
    X = X[:300] / 16.0
    y = np.array(list("abcdefghij"))[y[:300]]
    model = NeuralHeadClassifier((12, 8), lam=1e-4, max_iter=30, random_state=0).fit(X, y)
    H = np.concatenate([model.hidden_features(X), np.ones((300, 1))], axis=1)
    one_hot = np.equal.outer(y, model.classes_).astype(float)
    w = np.linalg.solve(H.T @ H + 300 * 1e-4 * np.diag([1.0] * 8 + [0.0]), H.T @ one_hot)
    np.testing.assert_allclose(model.w_, w, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.decision_function(X), H @ w, atol=1e-8)
    assert model.score(X, y) > 0.9
    with pytest.raises(ProblemError, match="one class"):
        model.fit(X, np.zeros(300))


@unconverged
@pytest.mark.parametrize("classes", [2, 3])
def test_a_head_of_classes_is_the_logistic_regression_of_its_features(classes):
    X, y = load_digits(n_class=classes, return_X_y=True)
    X, y = X[:200] / 16.0, np.array(list("abc"))[y[:200]]
    heavy = {"a": 3.0, "b": 0.5}
    options = {"loss": "softmax", "class_weight": heavy, "lam": 1e-2, "random_state": 0}
    model = NeuralHeadClassifier(5, max_iter=5, **options).fit(X, y)
    H = model.hidden_features(X)
    same = LogisticRegression(C=1 / (200 * 1e-2), class_weight=heavy, tol=1e-10, max_iter=2000).fit(H, y)
    np.testing.assert_allclose(model.predict_proba(X), same.predict_proba(H), atol=1e-6)
    np.testing.assert_array_equal(model.predict(X), model.classes_[np.argmax(model.predict_proba(X), axis=1)])
    balanced = NeuralHeadClassifier(5, max_iter=1, **{**options, "class_weight": "balanced"}).fit(X, y)
    by_class = [balanced.predict_proba(X)[y == name].sum(axis=0) / np.sum(y == name) for name in balanced.classes_]
    np.testing.assert_allclose(np.sum(by_class, axis=0), 1.0, atol=1e-8)  # the offset has no ridge


@pytest.mark.parametrize("classes", [2, 3])
def test_penalties_tell_features_apart_and_weights_are_those_of_all_samples(classes):
    X = rng(0).normal(size=(240, 8))
    y = np.array(list("abc"))[np.argmax(X[:, :classes] + 0.5 * rng(1).normal(size=(240, classes)), axis=1)]
    groups = (np.arange(8) >= classes).astype(int)
    model = LearnedPenaltyClassifier(groups, random_state=0).fit(X, y)
    assert model.status_.success
    assert len(np.unique(model.penalties_)) == 2
    assert model.penalties_[-1] > 10 * model.penalties_[0]
    scale = np.sqrt(240 * model.penalties_ * X.var(axis=0))
    same = LogisticRegression(C=1.0, tol=1e-10, max_iter=2000).fit(X / scale, y)
    np.testing.assert_allclose(model.predict_proba(X), same.predict_proba(X / scale), atol=1e-6)


def test_penalties_need_groups_of_features_and_two_samples_of_each_class():
    X, y = rng(0).normal(size=(20, 3)), np.arange(20) % 2
    with pytest.raises(ProblemError, match="for each of 3 features; got"):
        LearnedPenaltyClassifier([0, 1]).fit(X, y)
    with pytest.raises(ProblemError, match="two samples or more"):
        LearnedPenaltyClassifier().fit(X, np.append(y[:-1], 2))


def test_probabilities_are_those_of_cross_entropy_alone():
    assert not hasattr(NeuralHeadClassifier(), "predict_proba")
    with pytest.raises(AttributeError, match=r"predict_proba needs loss=.softmax., .*; got loss='squares'"):
        NeuralHeadClassifier().predict_proba(np.eye(2))
    with pytest.raises(ProblemError, match="'squares' or 'softmax', got 'hinge'"):
        NeuralHeadClassifier(loss="hinge").fit(np.eye(4), [0, 1, 0, 1])


def test_the_ridge_is_on_the_layers_too_whatever_the_units_of_the_target():
    X = rng(0).normal(size=(60, 3))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1]
    ends = [NeuralHeadRegressor(4, lam=1e-2, random_state=0).fit(X, unit * y) for unit in (1.0, 1e3)]
    np.testing.assert_allclose(ends[1].predict(X), 1e3 * ends[0].predict(X), rtol=1e-4, atol=1e-2)
    model = ends[0]
    ridge = 60 * np.sum(model.w_[:-1] ** 2) + np.sum((y - y.mean()) ** 2) * np.sum(model.theta_["A0"] ** 2)
    np.testing.assert_allclose(model.objective_, 0.5 * np.sum((model.predict(X) - y) ** 2) + 0.5e-2 * ridge)


def test_an_offset_of_the_target_is_one_of_the_predictions():
    X = rng(0).normal(size=(60, 3))
    y = np.stack([np.sin(2.0 * X[:, 0]) + X[:, 1], X[:, 2] ** 2], axis=1)
    for target, offset in ((y, np.array([1e4, -1e3])), (y[:, 0], 1e4)):
        plain, moved = (
            NeuralHeadRegressor(4, lam=1e-2, random_state=0).fit(X, target + by).predict(X) for by in (0.0, offset)
        )
        np.testing.assert_allclose(moved - offset, plain, rtol=1e-6, atol=1e-6)


def test_a_start_is_taken_into_the_sets_of_the_layers():
    X = rng(0).normal(size=(60, 3))
    model = NeuralHeadRegressor(6, over={"A0": xv.sets.SpectralBall(0.1)}, random_state=0).fit(X, X[:, 0])
    assert (np.linalg.norm(model.theta_["A0"], 2) <= 0.1 + 1e-10, model.hidden_features(X).shape) == (True, (60, 6))


def test_default_fits_of_bundled_data_converge():
    moons, diabetes = make_moons(300, noise=0.2, random_state=0), load_diabetes()
    converging(
        lambda: NeuralHeadClassifier(random_state=0).fit(*moons),
        lambda: NeuralHeadRegressor(random_state=0).fit(scale(diabetes.data), diabetes.target),
        lambda: SparseAutoencoder(random_state=0).fit(load_digits().data / 16.0),
    )


# -- sweeps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy", "torch", "array-api-strict"])
def test_sweeps_do_not_raise_the_objective_on_any_backend(name):
    backend = xv.backends.get(name)
    X = np.abs(rng(0).normal(size=(7, 30)))
    cases = (
        (Atoms(xv.sets.L2Ball()), xv.lower.L1(0.2)),
        (Atoms(xv.sets.Simplex()), xv.lower.Simplex()),
        (Atoms(xv.sets.L1Ball(), shared=True), None),
    )
    for atoms, codes in cases:
        D, W = send(backend, atoms.project(rng(1).normal(size=(7, 4)))), send(backend, np.full((4, 30), 0.25))
        values = []
        with backend.scope("float64"):
            for sweeps in (0, 10):
                end = factorise(send(backend, X), D, W, atoms, codes, lam=1e-3, sweeps=sweeps, tol=0.0)
                D_, W_ = backend.to_numpy(end.D), backend.to_numpy(end.W)
                penalty = float(backend.to_numpy(codes.penalty(end.W))) if isinstance(codes, xv.lower.L1) else 0.0
                values.append(objective(X.T, W_.T, D_.T, 0.5e-3 * np.sum(W_**2) + penalty))
                assert np.max(atoms.C.violation(atoms.points(np.array(D_)))) < 1e-12
        assert all(b <= a * (1 + 1e-12) for a, b in pairwise(values)), (atoms, values)


def test_a_pass_over_rows_is_that_of_gauss_and_seidel():
    A = rng(0).normal(size=(9, 5))
    G, B, V = A.T @ A, rng(1).normal(size=(5, 3)), rng(2).normal(size=(5, 3))
    want = V.copy()
    for j in range(5):
        want[j] = np.maximum(want[j] + (B[j] - G[j] @ want) / G[j, j], 0.0)
    np.testing.assert_allclose(best_codes(G, B, V, xv.lower.Nonnegative()), want, rtol=1e-12, atol=1e-14)
    G[2], G[:, 2] = 0.0, 0.0  # without curvature a row stays
    np.testing.assert_array_equal(by_rows(G, B, V, lambda z, _: z)[2], V[2])


def test_atoms_under_one_l1_budget_share_it_as_the_ridge_asks(backend):
    D, W = rng(0).normal(size=(6, 4)), rng(1).normal(size=(4, 30))
    D[:, 3] = 0.0
    with backend.scope("float64"):
        moved, scale = shared_out(send(backend, D), send(backend, W), 2.0)
        D_, W_ = backend.to_numpy(moved), backend.to_numpy(scale * send(backend, W))
    np.testing.assert_allclose(D_ @ W_, D @ W, atol=1e-12)
    b = np.abs(D_).sum(axis=0)
    np.testing.assert_allclose(b.sum(), 2.0)
    assert b[3] == 0
    c = np.linalg.norm(W_, axis=1)[:3] * b[:3]
    np.testing.assert_allclose(c**2 / b[:3] ** 3, np.full(3, np.sum(c ** (2 / 3)) ** 3 / 8.0), rtol=1e-10)  # multiplier
    assert np.sum(W_**2) < np.sum((W * np.abs(D).sum(axis=0)[:, None] / 0.5)[:3] ** 2)  # of equal shares


@pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")
@unconverged
def test_more_atoms_live_under_one_budget_and_lower_than_by_the_solve_alone():
    X = load_digits().data / 16.0
    alone, swept = (
        ConstrainedDictionary(
            32, atoms=xv.sets.L1Ball(), shared=True, lam=1e-4, sweeps=sweeps, max_iter=60, random_state=2
        ).fit(X)
        for sweeps in (0, 1000)
    )
    assert swept.objective_ < 0.99 * alone.objective_
    living, fewer = (int((np.abs(fit.components_).max(axis=1) > 0).sum()) for fit in (swept, alone))
    assert living > fewer + 2
    assert swept.status_.success


def test_atoms_that_stay_at_zero_are_said_in_words_of_the_estimator():
    X = np.outer(rng(0).normal(size=60), np.arange(1.0, 9.0))
    with pytest.warns(
        xv.DeadUnitsWarning, match="5 of 6 atoms are zero.* fewer n_components, .* or shared=False"
    ) as seen:
        ConstrainedDictionary(6, atoms=xv.sets.L1Ball(3.0), shared=True, lam=0.1, random_state=0).fit(X)
    assert len(seen) == 1


@unconverged
def test_sweeps_alone_claim_their_objective_and_no_gap():
    cases = [(ConstrainedDictionary, {"codes": codes}) for codes in (None, xv.lower.L1(0.2), xv.lower.Simplex())]
    for kind, given in (*cases, (NMF, {})):
        model = kind(5, lam=1e-3, sweeps=200, max_iter=0, random_state=0, **given).fit(DIGITS)
        w = model.transform(DIGITS)
        penalty = 0.2 * np.abs(w).sum() if isinstance(given.get("codes"), xv.lower.L1) else 0.0
        value = objective(DIGITS, w, model.components_, penalty + 0.5e-3 * np.sum(w**2))
        assert value * (1 - 1e-12) <= model.objective_ <= 1.01 * value
        assert np.isnan(model.gap_)
        assert model.status_ is xv.Status.MAX_ITER


def test_no_certificate_by_default_where_atoms_have_to_be_dependent():
    X = np.zeros((300, 8))
    X[:, :6] = rng(0).normal(size=(300, 6))  # two features that no atom needs
    few = {"codes": xv.lower.L1(0.3), "sweeps": 20, "random_state": 0}
    with pytest.warns(ConvergenceWarning, match="without a certificate.*max_iter=20 asks for it"):
        left_out = ConstrainedDictionary(16, **few).fit(X)
    (asked,) = converging(lambda: ConstrainedDictionary(16, max_iter=0, **few).fit(X))
    np.testing.assert_array_equal(left_out.components_, asked.components_)
    assert left_out.objective_ == asked.objective_
    assert left_out.status_ is xv.Status.MAX_ITER
    assert np.isnan(left_out.gap_)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for others in ({"max_iter": 1}, {"codes": None, "tol": 0.0}, {"sweeps": 0, "max_iter": 1}):  # which have one
            assert ConstrainedDictionary(16, **few | others).fit(X).gap_ >= 0
        assert ConstrainedDictionary(16, **few | {"tol": 0.3}).fit(X[:200]).gap_ >= 0
    assert not any("without a certificate" in str(w.message) for w in seen)


def test_sweeps_bring_dead_atoms_back():
    X = rng(0).uniform(size=(6, 40))
    D = np.zeros((6, 4))
    D[:, 0] = 0.5
    atoms, W = Atoms(xv.sets.NonnegativeL2Ball()), np.zeros((4, 40))
    values = []
    for sweeps in (9, 100):  # looks for them in each tenth
        end = factorise(X, D, W, atoms, xv.lower.Nonnegative(), sweeps=sweeps, tol=0.0)
        values.append(objective(X.T, end.W.T, end.D.T))
        alive = (np.abs(end.D).max(axis=0) > 0) & (end.W.max(axis=1) > 0)
        assert alive.sum() == (1 if sweeps == 9 else 4)
    assert values[1] < 0.9 * values[0]


def test_a_fit_without_error_is_done():
    X = np.abs(rng(0).normal(size=(30, 6)))
    (fit,) = converging(lambda: NMF(8, random_state=0).fit(X))  # more atoms than features
    assert fit.status_ is xv.Status.CONVERGED
    assert fit.gap_ == fit.objective_ <= 1e-6 * 0.5 * np.sum(X**2)


def test_mixtures_reach_samples_of_any_length():
    X = 50 * np.abs(rng(0).normal(size=(40, 5)))
    learner = ConstrainedDictionary(5, codes=xv.lower.Simplex(), random_state=0).fit(X)
    assert learner.score(X) > 0.9


CASES = (
    (xv.sets.L2Ball(), None, lambda w: 0.0),
    (xv.sets.L1Ball(2.0), xv.lower.L1(0.3), lambda w: 0.3 * np.abs(w).sum()),
    (xv.sets.Simplex(), xv.lower.Nonnegative(), lambda w: 0.0),
    (xv.sets.Box(0.0, 1.0), xv.lower.Simplex(), lambda w: 0.0),
    (xv.sets.NuclearBall(6.0), None, lambda w: 0.0),
    (xv.sets.KNormBall(3), None, lambda w: 0.0),
)


def converging(*fits):
    """What is done without a warning of no convergence."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        return [fit() for fit in fits]
