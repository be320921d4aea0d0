"""Models whose rows depend on each other are refused where rows come in chunks or mini-batches."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import xvarpro as xv
from xvarpro.errors import ModelError

from .support import rng

X = rng(0).normal(size=(63, 2))
Y = rng(1).normal(size=63)
START = {"A": rng(2).normal(size=(2, 3))}


def centred(theta, x):
    xp = xv.array_namespace(theta)
    return xp.tanh((x - xp.mean(x, axis=0)) @ theta["A"])


def plain(theta, x):
    return xv.array_namespace(theta).tanh(x @ theta["A"])


def structured(theta, x):
    M = plain(theta, x)
    return xv.operators.Sum(xv.operators.Dense(M), xv.operators.Dense(2.0 * M))


FORMS = {
    "chunks": lambda M: xv.separable(M, xv.RowChunks.cut(X, Y, rows=21), lam=0.1),
    "samples": lambda M: xv.separable(M, Y, data=xv.Samples(X), lam=0.1),
    "upper chunks": lambda M: xv.bilevel(
        lower=xv.Level(plain, Y[:20], lam=0.1), upper=xv.Level(M, xv.RowChunks.cut(X, Y)), data=X[:20]
    ),
    "upper samples": lambda M: xv.bilevel(
        lower=xv.Level(lambda th, d: plain(th, d[0]), Y[:20], lam=0.1),
        upper=xv.Level(lambda th, d: M(th, d[1]), Y),
        data=(X[:20], xv.Samples(X)),
    ),
    "a target that is a function": lambda M: xv.separable(
        M, xv.RowChunks([X[:21], X[21:]], y=lambda theta, x: x[:, 0]), lam=0.1
    ),
    "a design for each right-hand side": lambda M: xv.separable(
        lambda th, x: xv.array_namespace(th).stack([M(th, x), 2.0 * M(th, x)]),
        np.stack([Y, -Y], axis=1),
        data=xv.Samples(X),
        lam=0.1,
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_dependent_rows_are_refused(name, form):
    with pytest.raises(ModelError, match=r"rows of M must not depend on each other.*Take no mean"):
        xv.solve(FORMS[form](centred), START, backend=name, max_iter=2)


@pytest.mark.parametrize("form", FORMS)
def test_independent_rows_are_solved(form):
    assert xv.solve(FORMS[form](plain), START, max_iter=2).n_iter == 2


@pytest.mark.parametrize("size", [1e-2, 0.0])
def test_rows_that_hardly_depend_on_each_other_in_single_precision(size):
    x, y, start = X.astype("float32"), Y.astype("float32"), {"A": START["A"].astype("float32")}
    problem = xv.separable(lambda th, x: plain(th, x) + size * centred(th, x), y, data=xv.Samples(x), lam=0.1)
    with pytest.raises(ModelError, match="must not depend on each other") if size else nullcontext():
        assert xv.solve(problem, start, max_iter=2).n_iter == 2


def test_batch_normalisation_by_batch_statistics_is_refused():
    norm = torch.nn.BatchNorm1d(3, track_running_stats=False).double()
    net = torch.nn.Sequential(torch.nn.Linear(2, 3).double(), norm).eval()
    problem = xv.separable(lambda net, x: net(x), Y, data=xv.Samples(X), lam=0.1)
    with pytest.raises(ModelError, match=r"rows of M must not depend on each other"):
        xv.solve(problem, net, max_iter=2)


def test_random_numbers_keep_their_message():
    draw = np.random.default_rng(0)
    problem = FORMS["chunks"](lambda theta, x: plain(theta, x) + draw.normal())
    with pytest.raises(ModelError, match="pure function"):
        xv.solve(problem, START, max_iter=2)


def test_operators_and_arrays_that_are_no_rows_are_left_alone():
    chunks = [({"x": X[i : i + 20], "shift": np.arange(3.0)}, Y[i : i + 20]) for i in (0, 20, 40)]
    problem = xv.separable(lambda th, d: plain(th, d["x"]) + d["shift"], xv.RowChunks(chunks), lam=0.1)
    assert xv.solve(problem, START, max_iter=2).n_iter == 2
    sampled = xv.separable(structured, Y, data=xv.Samples(X), lam=0.1)
    assert xv.solve(sampled, START, max_iter=2).n_iter == 2


def test_complex_designs_are_looked_at():
    problem = xv.separable(lambda th, x: plain(th, x) + 1j * plain(th, x), Y + 0j, data=xv.Samples(X), lam=0.1)
    assert xv.solve(problem, START, max_iter=2).n_iter == 2
    problem = xv.separable(lambda th, x: 1j * centred(th, x), Y + 0j, data=xv.Samples(X), lam=0.1)
    with pytest.raises(ModelError, match="must not depend on each other"):
        xv.solve(problem, START, backend="torch", max_iter=2)


def test_what_may_be_no_row_is_a_warning():
    """An array of the chunk's data that has as many entries as the chunk has rows, by chance."""
    chunks = [({"x": X[i : i + 20], "grid": np.arange(20.0)}, Y[i : i + 20]) for i in (0, 20, 40)]
    problem = xv.separable(
        lambda th, d: plain(th, d["x"]) * xv.array_namespace(th).sum(d["grid"]), xv.RowChunks(chunks), lam=0.1
    )
    with pytest.warns(
        UserWarning, match="rows of M must not depend on each other.*Ignore this if an array in data is no row"
    ):
        assert xv.solve(problem, START, max_iter=2).n_iter == 2


def test_a_model_of_whole_chunks_is_left_alone():
    def M(theta, x):
        return plain(theta, xv.array_namespace(theta).reshape(x, (200, 2)))

    x = rng(3).normal(size=(400, 2))
    problem = xv.separable(M, xv.RowChunks.cut(x, x[:, 0], rows=200), lam=0.1)
    assert xv.solve(problem, START, max_iter=2).n_iter == 2
    # mini-batches have as many samples as an algorithm likes
    with pytest.raises(ModelError, match="a model function failed on the numpy backend: ValueError: cannot reshape"):
        xv.solve(xv.separable(M, x[:200, 0], data=xv.Samples(x[:200]), lam=0.1), START)
