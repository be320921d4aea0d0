"""What users pass as data: columns of tables and lists of numbers work as arrays do, wherever data go."""

import numpy as np
import pandas as pd
import pytest

import xvarpro as xv
from xvarpro.backends import exchange
from xvarpro.errors import ProblemError

T = np.linspace(0.0, 3.0, 40)
Y = 2.0 * np.exp(-T) + np.exp(-5.0 * T) + 0.01 * np.sin(37.0 * T)
START, BOX = [0.5, 8.0], xv.sets.Box(0.0, 20.0)
TABLE = pd.DataFrame({"t": T, "y": Y}, index=np.arange(40) + 7)
GIVEN = {"array": T, "column": TABLE["t"], "list": T.tolist()}


def M(theta, data):
    xp = xv.array_namespace(theta)
    assert data["shape"] == (40, 2)
    assert data["more"]["name"] == "decays"
    return xp.reshape(xp.exp(-data["more"]["t"][:, None] * theta), data["shape"])


def posed(t, y=Y, **keywords):
    return xv.separable(M, y, data={"more": {"t": t, "name": "decays", "none": None}, "shape": (40, 2)}, **keywords)


def solved(t, **keywords):
    return xv.solve(posed(t, **keywords), START, over=BOX)


def test_every_use_of_a_fit_takes_columns_and_lists():
    found = []
    for t in GIVEN.values():
        problem = posed(t)
        fit = xv.solve(problem, START, over=BOX)
        other = posed(t, weights=TABLE["y"] > -1.0)
        many = xv.solve_many(xv.many.lifted(other), np.tile(START, (2, 1)), over=BOX)
        band = fit.band(data=problem.data)
        found.append(
            [
                fit.theta,
                fit.fitted,
                fit.residuals,
                fit.predict({"more": {"t": t, "name": "decays", "none": None}, "shape": (40, 2)}),
                band.lower,
                fit.interval(by=xv.statistics.Profile()).lower,
                fit.interval(by=xv.statistics.Bootstrap(samples=2)).upper,
                xv.multistart(problem, START, BOX, starts=2).best.theta,
                many.theta[1],
                *xv.value_and_gradient(problem, START),
                xv.solve_lower(problem, START).w,
                xv.implicit.gradient(problem, fit.theta, xv.implicit.Cotangent(value=1.0), over=BOX).data["more"]["t"],
            ]
        )
        fit.plot_fit()
        fit.plot_residuals()
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert np.array_equal(a, b)


def test_only_lists_of_numbers_and_columns_become_arrays():
    t, flags = [0, 1, 2], [True, False]
    given = {"t": t, "flags": flags, "two": [T, T[:3]], "rows": [[1.0, 2.0], [3.0, 4.0]], "names": ["a", "b"], "e": []}
    data = xv.separable(M, Y, data={**given, "f": np.sin, "pair": (0.0, 1.0), "column": TABLE["t"]}).data
    assert data["t"].dtype.kind == "i"
    assert data["flags"].dtype == bool
    assert data["two"][0] is T
    assert data["rows"].shape == (2, 2)
    assert (data["names"], data["e"], data["f"], data["pair"]) == (["a", "b"], [], np.sin, (0.0, 1.0))
    assert isinstance(data["column"], np.ndarray)
    arrays = {"t": T, "two": [T, T], "name": "x"}
    assert exchange.arrays(arrays, "data") is arrays
    each, samples = xv.Each([[1.0, 2.0]]), xv.Samples(TABLE["t"])
    assert each.array.shape == (1, 2)
    assert isinstance(samples.x, np.ndarray)
    assert isinstance(xv.separable(M, Y, data={"t": xv.Each(TABLE["t"])}).data["t"].array, np.ndarray)


def test_a_layer_of_torch_takes_lists_and_columns():
    torch = pytest.importorskip("torch")
    problem = xv.separable(lambda theta, data: xv.models.exponentials(data["t"], theta), lambda theta, data: data["y"])
    layer = xv.layers.torch.Solve(problem, torch.tensor([2.0]), tol=1e-5)
    y = torch.exp(-0.5 * torch.arange(8))
    for t in (list(range(8)), pd.Series(np.arange(8, dtype="int32"))):
        np.testing.assert_allclose(layer({"t": t, "y": y}).theta, 0.5, rtol=1e-3)


@pytest.mark.frameworks
def test_a_layer_of_jax_takes_lists_and_columns():
    jax = pytest.importorskip("jax")
    model, y = (lambda theta, data: xv.models.exponentials(data["t"], theta)), lambda theta, data: data["y"]
    problem = xv.separable(model, y, solver=xv.lower.SVD())
    with jax.enable_x64(True):
        method = xv.algorithms.SpectralProjectedGradient()
        layer = xv.layers.jax.solve(problem, jax.numpy.array([2.0]), algorithm=method, tol=1e-5)
        y = jax.numpy.exp(-0.5 * jax.numpy.arange(8.0))
        for t in (list(map(float, range(8))), pd.Series(np.arange(8.0))):
            np.testing.assert_allclose(layer({"t": t, "y": y}).theta, 0.5, rtol=1e-3)


def test_chunks_of_rows_hold_lists_and_columns():
    def model(theta, t):
        return xv.models.exponentials(t, theta)

    parts = [(TABLE["t"][:20], TABLE["y"][:20]), (T[20:].tolist(), Y[20:].tolist())]
    fits = [
        xv.solve(xv.separable(model, rows), START, over=BOX, max_iter=3)
        for rows in (
            xv.RowChunks([(T[:20], Y[:20]), (T[20:], Y[20:])]),
            xv.RowChunks(parts),
            xv.RowChunks.cut(TABLE["t"], TABLE["y"], 20),
            xv.RowChunks.cut(T.tolist(), Y.tolist(), 20),
        )
    ]
    for fit in fits:
        assert np.array_equal(fit.theta, fits[0].theta)
        assert np.array_equal(fit.fitted, fits[0].fitted)


def test_weights_of_several_data_sets_are_given_as_their_targets():
    def model(theta, data):
        return xv.array_namespace(theta).concat([xv.models.exponentials(t, theta) for t in data])

    cuts, masks = (slice(0, 15), slice(15, 40)), np.arange(40) % 5 > 0
    t, y = [TABLE["t"][c] for c in cuts], [TABLE["y"][c] for c in cuts]
    want = xv.solve(xv.separable(model, Y, data=t, weights=masks), START, over=BOX)
    for weights in ([masks[c] for c in cuts], [pd.Series(masks)[c] for c in cuts], [masks[c] * 1.0 for c in cuts]):
        assert np.array_equal(
            xv.solve(xv.separable(model, y, data=t, weights=weights), START, over=BOX).theta, want.theta
        )


def test_refusals_are_short():
    ragged, long = [[1.0, 2.0], [3.0]], np.arange(5000.0)
    for make, message in (
        (lambda: posed(ragged), r"data\['more'\]\['t'\] given as a list must hold numbers, or lists of them of one le"),
        (lambda: posed(TABLE), r"data\['more'\]\['t'\] must be an array; got a pandas.* a table\. Pass its columns"),
        (lambda: posed(T, y=TABLE), r"^y must be an array; .* which is a table\. Pass x\.to_numpy\(\), or one"),
        (lambda: xv.Each(TABLE), r"^xv\.Each must be an array; .* which is a table\. Pass x\.to_numpy\(\), or one of"),
        (lambda: posed(T, y=TABLE["y"].astype(str)), r"^y must hold numbers; got dtype \w+\. Convert it to floats"),
        (lambda: solved(T, y=TABLE["y"].astype(object)), r"^y must hold numbers on numpy; got dtype object"),
        (lambda: solved(TABLE["t"].astype(object)), r"^data\['more'\]\['t'\] must hold numbers on numpy"),
        (lambda: solved(T.astype(object)), r"^data\['more'\]\['t'\] must .*; got dtype object\. Convert it"),
        (lambda: posed(T, weights=[long, None]), r"weights given as a list must hold arrays.*\(5000,\), NoneType"),
        (lambda: posed(T, y=[long[:, None], long]), r"y given as a list must hold arrays with the same number of colu"),
        (lambda: posed(T, y=[long.tolist(), [1.0]]), r"got a list of 2, the first a list of 5000, the first 0.0"),
        (lambda: posed(T, mu=long), r"mu must be a finite number >= 0, got an array of shape \(5000,\)"),
        (lambda: xv.Each(ragged), r"xv\.Each given as a list must hold numbers"),
    ):
        with pytest.raises(ProblemError, match=message) as caught:
            make()
        assert len(str(caught.value)) < 300
