"""Components found without a start: their number, places and amplitudes, and what certifies them."""

import itertools
import math

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.components.atoms import Atoms
from xvarpro.components.proof import proven
from xvarpro.errors import ModelError

T = np.linspace(0.0, 10.0, 60)
BOX = {"centre": (0.0, 10.0), "width": (0.2, 1.0)}
TRUTH = {"centre": np.array([3.0, 4.2, 8.0]), "width": np.array([0.4, 0.5, 0.3])}
W = np.array([1.0, 0.7, 0.5])


def lines(theta, x):
    return xv.models.gaussians(x, theta["centre"], theta["width"])


def narrow(centre, x):
    return xv.models.gaussians(x, centre, 0.5)


def noisy(clean, sigma, seed=0):
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=clean.shape) + (1j * rng.normal(size=clean.shape) if np.iscomplexobj(clean) else 0)
    return clean + sigma * noise


def test_the_number_and_the_places_are_found():
    truth = {name: x[:2] for name, x in TRUTH.items()}
    y = noisy(lines(truth, T) @ W[:2], 0.01, seed=1)
    found = xv.find_components(lines, y, BOX, data=T)
    c = found.components
    assert found.n == 2
    assert c.names == ["centre", "width"]
    assert (np.abs(c.places[:, 0] - truth["centre"]) < 5 * c.places_stderr[:, 0]).all()
    assert found.tried[np.argmin(found.scores)] == 2
    assert found.certificate.largest < 1
    # the fit is the one from the truth
    again = xv.solve(xv.separable(lines, y, data=T), truth, over=BOX)
    assert abs(found.fit.value - again.value) < 1e-8 * again.value
    assert list(c.to_frame().columns) == ["centre", "centre error", "width", "width error", "w", "w error"]
    for words in ("2 components, by extended BIC", "largest value", "neighbours at most"):
        assert words in str(found)
    assert found.plot_choice().axes[0].get_xlabel() == "components"
    assert found.plot_certificate().axes[0].get_ylabel() == "width"


@pytest.mark.parametrize(
    "options", [{"noise": 0.02}, {"evidence": 0.1}, {"max_components": 2}, {"folds": 4}, {"W": True}]
)
def test_the_number_by_other_criteria(options):
    y = noisy(narrow(TRUTH["centre"][1:], T) @ W[1:], 0.02)
    options = {"W": xv.lower.Nonnegative()} if "W" in options else options
    found = xv.find_components(narrow, y, (0.0, 10.0), data=T, **options)
    assert found.n == 2
    assert np.abs(found.components.places[:, 0] - [4.2, 8.0]).max() < 0.1
    if "evidence" in options:  # of noise alone, of a variance with the density 1 / variance; of four two coincide
        none = 30 * math.log(math.pi * (y @ y)) - math.lgamma(30)
        assert found.scores[[0, -1]] == pytest.approx([none, math.inf], abs=1e-6)


@pytest.mark.parametrize("kind", ["weights", "offset", "complex", "nonnegative"])
def test_rows_left_out_are_predicted(kind):
    """The score of the true number is near the variance of the noise, whatever the rows are."""
    labels, y, options = np.arange(60) % 3, narrow(TRUTH["centre"][1:], T) @ W[1:], {}
    if kind == "weights":
        options = {"weights": np.where(labels == 2, 0.0, 4.0)}  # and a fold that nothing is known of
    if kind == "offset":
        y, options = y + 5.0, {"columns": np.ones(60)}
    if kind == "complex":
        y = y * np.exp(0.3j)
    if kind == "nonnegative":
        y, options = y + 0j, {"W": xv.lower.Nonnegative()}
    found = xv.find_components(narrow, noisy(y, 0.02), (0.0, 10.0), data=T, folds=labels, **options)
    assert found.n == 2
    assert found.criterion == "mean square of rows left out"
    variance = 0.02**2 * (4.0 if kind == "weights" else 1.0)
    assert 0.5 * variance < found.scores[2] < 2 * variance
    assert found.scores[1] > 10 * variance
    assert found.plot_choice().axes[0].get_yscale() == "log"
    if kind == "offset":
        drawn = found.fit.plot_fit().axes[0].lines
        assert np.ptp(drawn[0].get_xdata()) == np.ptp(T), "over x, not over rows"
        assert [line.get_label() for line in drawn[2:]] == ["component 0", "component 1", "fixed column 0"]
        np.testing.assert_allclose(found.fit.predict((T[:7], np.ones(7))), found.fit.fitted[:7])
        for data, got in ((T[:7], "an array of shape"), ((T[:7], np.ones(60)), "7 rows for x, and 60 of columns")):
            with pytest.raises(ModelError, match=rf"a pair, as in predict\(\(x, columns\)\).* got {got}"):
                found.fit.predict(data)
        assert "fixed columns   5.0" in str(found) or "fixed columns   4.9" in str(found)


def test_a_number_is_reached_from_above_too():
    """One component after the other ends in a minimum 5 % above, for three lines that hide one another."""
    x = np.linspace(0.0, 10.0, 100)
    centre, width = [4.51, 4.98, 5.91, 7.63, 7.9, 8.14], [0.36, 0.25, 0.31, 0.22, 0.18, 0.16]
    truth = {"centre": np.array(centre), "width": np.array(width)}
    y = noisy(lines(truth, x) @ np.array([0.72, 0.4, 0.73, 0.48, 0.26, 0.41]), 0.025, seed=6)
    over, W = {"centre": (0.0, 10.0), "width": (0.1, 0.6)}, xv.lower.Nonnegative()
    found = xv.find_components(lines, y, over, data=x, max_components=6, W=W)
    known = xv.solve(xv.separable(lines, y, data=x, W=W), truth, over=over)
    assert found.fit.value < known.value * (1 + 1e-6)
    assert found.tried[-1] == 6


def test_none_in_noise():
    found = xv.find_components(narrow, noisy(np.zeros(60), 1.0), (0.0, 10.0), data=T, noise=1.0)
    assert found.n == 0
    assert found.fit is None
    assert str(found).startswith("0 components")


@pytest.mark.parametrize("kind", ["plain", "nonnegative", "responses", "one-sided", "complex", "offset"])
def test_a_weight_ends_at_the_optimum_of_all_measures(kind):
    """Where no atom of a fine grid has a certificate above 1, and those of the support have 1."""
    tau, options = 0.05, {}
    y = narrow(TRUTH["centre"], T) @ W
    if kind in ("responses", "one-sided"):
        y = narrow(TRUTH["centre"], T) @ np.array([[1.0, 0.2], [0.3, 0.8], [0.5, -0.5]])
    if kind in ("nonnegative", "one-sided"):
        options = {"W": xv.lower.Nonnegative()}
    if kind == "complex":
        y = y * np.exp(0.3j) + 0j
    if kind == "offset":
        y, options = y + 5.0, {"columns": np.ones(60)}
    y = noisy(y, 0.01)
    found = xv.find_components(narrow, y, (0.0, 10.0), data=T, weight=tau, **options)
    A = narrow(np.linspace(0.0, 10.0, 500), T)
    A = A / np.linalg.norm(A, axis=0)
    own = narrow(found.penalised.places[:, 0], T)
    own = own / np.linalg.norm(own, axis=0)
    r = y.reshape(60, -1) - own @ found.penalised.amplitudes[:, 0, :]
    r = r - r.mean(axis=0) * (kind == "offset")
    pulls = [B.conj().T @ r for B in (A, own)]
    pulls = [np.maximum(S, 0.0) if "W" in options else S for S in pulls]
    sizes = [np.sqrt(np.sum(np.abs(S) ** 2, axis=1)) / tau for S in pulls]
    assert "W" not in options or found.penalised.amplitudes.min() >= 0
    assert sizes[0].max() < 1.01
    assert np.abs(sizes[1] - 1).max() < 0.01
    assert found.certificate.largest <= 1.001
    assert str(found.penalised).startswith("amplitudes w of unit atoms")
    proven = 1.001 * max(1.0, found.certificate.largest)
    assert found.certificate.bound == (np.inf if kind == "complex" else proven)
    assert np.abs(found.components.places[:, 0][:, None] - TRUTH["centre"]).min(axis=0).max() < 0.1


@pytest.mark.parametrize("one_sided", [False, True])
def test_what_is_proven_is_so_and_what_is_not_so_is_not_proven(one_sided):
    """In two entries of theta, for residuals of no solution, against a dense grid."""

    def atom(theta, t):
        xp = xv.array_namespace(theta)
        return xp.exp(-theta[None, :, 0] * t[:, None]) * xp.cos(theta[None, :, 1] * t[:, None])

    t, box = np.linspace(0.0, 3.0, 20), (np.array([0.1, 0.0]), np.array([3.0, 4.0]))
    for seed, normalise in itertools.product(range(3), (False, True)):
        rng = np.random.default_rng(seed)
        r, weights = rng.normal(size=(20, 2)), rng.uniform(0.2, 1.0, size=20)
        atoms = Atoms(atom, r, t, box, weights, None, one_sided, normalise, None, None, None)
        A = atoms.columns(np.stack([x.ravel() for x in np.mgrid[0.1:3:40j, 0:4:40j]], axis=1), np.zeros((20, 0)))[0]
        pulls = -A[:, :, 0] @ r
        largest = np.max(np.linalg.norm(np.maximum(pulls, 0.0) if one_sided else pulls, axis=1))
        assert proven(atoms, r, 0.5, one_sided, 1.02 * largest / 0.5) == 1.02 * largest / 0.5
        assert proven(atoms, r, 0.5, one_sided, 0.999 * largest / 0.5) == np.inf


def test_places_that_meet_without_the_penalty_are_one():
    """Of atoms that grow along the box and are not divided by their norm, a weight takes several for each line."""

    def growing(centre, x):
        return narrow(centre, x) * (1 + centre)

    y = noisy(growing(TRUTH["centre"], T) @ W, 0.01)
    found = xv.find_components(growing, y, (0.0, 10.0), data=T, weight=0.05, normalise=False)
    assert found.certificate.largest <= 1.001
    assert len(found.penalised) > found.n
    assert found.fit.success
    assert np.diff(found.components.places[:, 0]).min() > 0.5
    assert np.isfinite(found.components.places_stderr).all()


def test_blocks_and_complex_data():
    """Damped oscillations whose cosine and sine are one component, and complex exponentials."""

    def waves(theta, t):
        xp = xv.array_namespace(theta)
        decay = xp.exp(-theta["rate"] * t[:, None])
        phase = theta["omega"] * t[:, None]
        return xp.stack([decay * xp.cos(phase), decay * xp.sin(phase)], axis=2)

    truth = {"omega": np.array([2.0, 2.6]), "rate": np.array([0.1, 0.3])}
    clean = np.einsum("tnb,nb->t", waves(truth, T), [[1.0, 0.5], [-0.6, 0.4]])
    found = xv.find_components(
        waves, noisy(clean, 0.01), {"omega": (0.5, 5.0), "rate": (0.02, 1.0)}, data=T, max_components=2
    )
    assert found.n == 2
    assert np.abs(found.components.places - np.array([[2.0, 0.1], [2.6, 0.3]])).max() < 0.03
    assert found.components.amplitudes.shape == (2, 2, 1)

    def turns(omega, t):
        xp = xv.array_namespace(omega)
        return xp.exp(1j * omega * t[:, None])

    clean = turns(np.array([1.0, 1.5]), T) @ np.array([1.0, 0.5j])
    found = xv.find_components(turns, noisy(clean, 0.1), (-3.0, 3.0), data=T, max_components=2)
    assert np.abs(found.components.places[:, 0] - [1.0, 1.5]).max() < 0.03


def test_weights_leave_rows_out():
    y, seen = narrow(np.array([3.0]), T)[:, 0], np.ones(60)
    y[5:9], seen[5:9] = np.nan, 0.0
    found = xv.find_components(narrow, y, (0.0, 10.0), data=T, weights=seen)
    assert np.abs(found.components.places - 3.0).max() < 1e-6  # and one alone, as nothing is left


@pytest.mark.frameworks
@pytest.mark.parametrize("name", ["torch", "jax", "array-api-strict"])
def test_other_frameworks(name):
    y = noisy(narrow(TRUTH["centre"], T) @ W, 0.01)
    here = xv.find_components(narrow, y, (0.0, 10.0), data=T, max_components=2)
    there = xv.find_components(narrow, y, (0.0, 10.0), data=T, max_components=2, backend=name)
    assert np.abs(here.components.places - there.components.places).max() < 1e-5


def coupled(centre, x):
    return narrow(centre, x) * (1 + 0 * centre + xv.array_namespace(centre).sum(centre))


@pytest.mark.parametrize(
    ("atom", "over", "options", "said"),
    [
        (narrow, (0.0, 10.0), {"weight": 1.0, "noise": 1.0}, "at most one of"),
        (narrow, (0.0, 10.0), {"weight": -1.0}, "weight must be a finite number > 0"),
        (narrow, (0.0, 10.0), {"max_components": 1.5}, "a whole number >= 1"),
        (narrow, (0.0, np.inf), {}, "finite bounds"),
        (narrow, None, {}, "over must be a Box"),
        (narrow, (0.0, 10.0), {"weights": np.ones((60, 4))}, "one per row of y: leave rows with gaps out"),
        (narrow, (0.0, 10.0), {"columns": np.ones(7)}, "columns must have shape .* the rows of y"),
        (narrow, (0.0, 10.0), {"W": xv.lower.Simplex()}, "Nonnegative"),
        (narrow, (0.0, 10.0), {"tol": 2.0}, "tol must be"),
        (narrow, (0.0, 10.0), {"folds": 1}, "folds must be"),
        ("lines", (0.0, 10.0), {}, "atom must be a function"),
        (lambda c, x: narrow(c, x)[:, 0], (0.0, 10.0), {}, "columns of shape"),
        (lambda c, x: narrow(c, x)[1:, :], (0.0, 10.0), {}, r"60 rows of y; got 59\. The pixels .* pass y\.ravel\(\)"),
        (lambda c, x: narrow(c, x) + x, (0.0, 10.0), {}, r"atom failed on the numpy backend.* pass y\.ravel\(\)"),
        (coupled, (0.0, 10.0), {}, "its own entries of theta alone"),
    ],
)
def test_bad_input_gets_a_sentence(atom, over, options, said):
    with pytest.raises((xv.errors.ProblemError, xv.errors.ModelError), match=said):
        xv.find_components(atom, narrow(np.array([4.0]), T)[:, 0], over, data=T, **options)
