"""Dynamic modes: eigenvalues in bounds, at any times, of real and complex snapshots."""

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro.sklearn import DMD

from .support import rng

T, S = np.linspace(1.0, 9.0, 64), np.linspace(0.0, 15.0, 30)
VALUES = np.array([0.0 + 1.0j, -0.2 + 3.7j])
STABLE, AXIS = (-np.inf, 0.0), (0.0, 0.0)


def waves(t, real=True):
    modes = np.array([np.exp(-1j * S), 0.7 * np.exp(-0.4j * S)])
    X = np.exp(np.outer(t - 1.0, VALUES)) @ modes
    return X.real if real else X


def noisy(seed, size=0.25):
    return waves(T) + size * rng(seed).normal(size=(T.size, S.size))


def ordered(values):
    return values[np.argsort(values.imag)]


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("uneven", [False, True])
def test_what_made_the_snapshots_is_found(real, uneven):
    t = np.sort(rng(0).uniform(1.0, 9.0, 64)) if uneven else T
    X = waves(t, real)
    model = DMD(4 if real else 2, conjugate=real).fit(X, t=t)
    want = ordered(np.append(VALUES, VALUES.conj()) if real else VALUES)
    np.testing.assert_allclose(ordered(model.eigenvalues_), want, atol=1e-7)
    later = np.array([0.0, 11.0])
    np.testing.assert_allclose(model.forecast(later), waves(later, real), atol=1e-5)
    by_modes = (np.exp(np.outer(later - t[0], model.eigenvalues_)) * model.amplitudes_) @ model.modes_
    np.testing.assert_allclose(by_modes, model.forecast(later), atol=1e-9)
    np.testing.assert_allclose(model.inverse_transform(model.transform(X)), X, atol=1e-6)
    assert model.score(X) > 1 - 1e-9
    assert np.abs(ordered(model.fit(X + rng(0).normal(0, 0.1, X.shape), t=t).eigenvalues_) - want).max() < 0.1


def test_bounds_are_those_of_a_minimum():
    """No other feasible eigenvalues do better: not those of a fit without bounds, moved to them."""
    for seed in range(3):
        X = noisy(seed)
        free = DMD(4).fit(X, t=T)
        for real in (STABLE, AXIS):
            model = DMD(4, real=real).fit(X, t=T)
            assert model.status_.success
            assert np.all((real[0] <= model.eigenvalues_.real) & (model.eigenvalues_.real <= real[1]))
            np.testing.assert_allclose(model.objective_, 0.5 * np.sum((X - model.forecast(T)) ** 2), rtol=1e-9)
            moved = np.clip(free.eigenvalues_.real, *real) + 1j * free.eigenvalues_.imag
            E = np.exp(np.outer(T - T[0], moved))
            off = 0.5 * np.linalg.norm(X - E @ np.linalg.lstsq(E, X, rcond=None)[0]) ** 2
            assert free.objective_ - 1e-9 <= model.objective_ <= off + 1e-9


def test_standard_errors_are_the_spread():
    fits = [DMD(4).fit(noisy(seed), t=T) for seed in range(20)]
    off = np.array([model.eigenvalues_[np.argmax(model.eigenvalues_.imag)] - VALUES[1] for model in fits])
    stderr = fits[0].stderr_[np.argmax(fits[0].eigenvalues_.imag)]
    for spread, said in ((off.real, stderr.real), (off.imag, stderr.imag)):
        assert 0.7 < np.sqrt(np.mean(spread**2)) / said < 1.4  # 20 draws: within 11 % in half of the cases
    assert DMD(4, real=AXIS).fit(noisy(0), t=T).stderr_.real.max() == 0


def test_a_standing_wave_has_one_shape_for_two_eigenvalues():
    X = np.outer(np.cos(2.0 * T), np.sin(S)) + 1e-3 * rng(0).normal(size=(T.size, S.size))
    np.testing.assert_allclose(ordered(DMD(2).fit(X, t=T).eigenvalues_), [-2.0j, 2.0j], atol=1e-3)


def test_eigenvalues_that_would_coincide_in_their_bounds_do_not():
    decays = np.outer(np.exp(-0.3 * T), np.sin(S)) + np.outer(np.exp(-2.0 * T), np.cos(S))
    for given in ({"real": AXIS}, {"imag": (1.0, 5.0)}, {"imag": (0.0, 0.0)}):
        model = DMD(2, **given).fit(decays, t=T)
        assert model.objective_ < 0.5 * np.sum(decays**2)
    assert np.abs(np.diff(model.eigenvalues_)) > 1e-3
    assert model.eigenvalues_.imag.max() == 0


def test_rank_and_weights():
    X = noisy(0)
    model = DMD(0.9, rank=4).fit(X, t=T)
    assert model.components_.shape == (4, S.size)
    whole = DMD(4).fit(X, t=T)
    assert whole.objective_ <= 0.5 * np.sum((X - model.forecast(T)) ** 2)
    half = np.where(np.arange(T.size) < 32, 1.0, 0.0)
    first = DMD(4).fit(X[:32], t=T[:32])
    np.testing.assert_allclose(DMD(4).fit(X, t=T, weights=half).objective_, first.objective_, rtol=1e-6)


@pytest.mark.frameworks
def test_on_torch():
    torch = pytest.importorskip("torch")
    X = waves(T, real=False)
    with torch.no_grad():
        found = DMD(2, conjugate=False, backend="torch").fit(X, t=T)
    np.testing.assert_allclose(ordered(found.eigenvalues_), VALUES, atol=1e-7)


def test_what_cannot_be_is_said():
    X = noisy(0)
    for given, fit, says in (
        (
            {},
            {"t": T[::-1]},
            rf"t must be 64 ascending times.* of shape \(64,\), where t\[0\] = {T[63]} and t\[1\] = {T[62]}$",
        ),
        ({}, {"t": T[1:]}, r"t must be 64 ascending times, .* got an array of shape \(63,\)$"),
        ({"real": (1.0, 0.0)}, {}, r"real must be bounds \(lower, upper\)"),
        ({"imag": (-2.0, -1.0)}, {}, "imag must be bounds"),
        ({"n_components": 3, "imag": (1.0, 2.0)}, {}, "n_components must be even"),
        ({"n_components": 0}, {}, "n_components must be a whole number >= 1"),
    ):
        with pytest.raises(ProblemError, match=says):
            DMD(**{"n_components": 4, **given}).fit(X, **fit)
    with pytest.raises(ValueError, match="Complex data not supported"):
        DMD(2).fit(waves(T, real=False))
    assert xv.sklearn.DMD is DMD
