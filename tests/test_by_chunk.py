"""Right-hand sides in chunks with weights in a set: the function of all of them, in the memory of one chunk."""

import tracemalloc

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro.objective import by_chunk

from .support import error, rng, send

X = np.linspace(0.0, 1.0, 30)
TRUE, START, BOX = np.array([0.25, 0.6]), np.array([0.15, 0.7]), xv.sets.Box(0.0, 1.0)
POSITIVE = xv.lower.Nonnegative()
SETS = {
    "nonnegative": POSITIVE,
    "bounded": xv.lower.Bounded(0.0, 0.7),
    "simplex": xv.lower.Simplex(),
    "l1": xv.lower.L1(0.02),
    "equations": xv.lower.Equality(np.ones((1, 3)), np.ones(1)),
    "a subspace": xv.lower.Equality(np.ones((1, 3)), np.zeros(1)),
}


def bumps(theta, x):
    """Two Gaussians at theta on a background."""
    xp = xv.array_namespace(theta)
    x = xp.expand_dims(x, axis=1)
    return xp.concat([xp.exp(-(((x - theta) / 0.15) ** 2)), xp.ones_like(x)], axis=1)


def pixels(k, seed=0):
    w = rng(seed).uniform(size=(3, k)) * (rng(seed + 1).random((3, k)) < 0.6)
    return bumps(TRUE, X) @ w + 0.05 * rng(seed + 2).normal(size=(X.size, k))


def square(theta):
    xp = xv.array_namespace(theta)
    return xp.sum(theta * theta)


Y = pixels(60)
CHUNKS = xv.ColumnChunks.cut(Y, 22)


def problem(y, W=POSITIVE, **given):
    return xv.separable(bumps, y, data=X, W=W, **given)


@pytest.mark.parametrize("W", SETS.values(), ids=SETS)
def test_a_fit_is_that_of_the_target_in_memory(W):
    given = {"lam": 0.01, "R": square, "mu": 0.5, "weights": np.linspace(0.0, 2.0, X.size)}
    for options in ({}, given):
        want = xv.solve(problem(Y, W, **options), START, BOX)
        fit = xv.solve(problem(CHUNKS, W, **options), START, BOX)
        assert (fit.status, fit.n_iter, fit.verified.kinks) == (want.status, want.n_iter, want.verified.kinks)
        np.testing.assert_allclose(fit.theta, want.theta, rtol=1e-10)
        np.testing.assert_allclose(
            [fit.value, fit.verified.condition], [want.value, want.verified.condition], rtol=1e-11
        )
        assert [w.shape[1] for w in fit.w_chunks()] == [22, 22, 16]
        np.testing.assert_allclose(fit.w, want.w, atol=1e-9)
        np.testing.assert_allclose(fit.residuals, want.residuals, atol=1e-9)


def test_value_gradient_and_weights_on_every_backend(backend):
    chunks = xv.ColumnChunks.cut(Y, 30)  # alike: what is compiled is compiled once
    want, slope = xv.value_and_gradient(problem(Y), START)
    value, gradient = xv.value_and_gradient(problem(chunks), send(backend, START))
    assert error(value, want) <= 1e-12
    assert error(gradient, slope) <= 1e-11
    found = xv.solve_lower(problem(chunks), send(backend, START))
    assert error(found.w, xv.solve_lower(problem(Y), START).w) <= 1e-11


def test_methods_without_a_jacobian_pass_over_the_chunks():
    for method in (xv.algorithms.FrankWolfe(), xv.algorithms.SpectralProjectedGradient()):
        want, fit = (xv.solve(problem(y), START, BOX, algorithm=method, max_iter=5) for y in (Y, CHUNKS))
        np.testing.assert_allclose(fit.theta, want.theta, rtol=1e-9)
        assert fit.counts.rows == want.counts.rows


def test_memory_is_that_of_a_chunk(monkeypatch):
    """Twice as many chunks take no more, and not much more than what makes one next to the one before it."""
    columns = 2000
    monkeypatch.setattr(by_chunk, "NARROW", 500)  # of more columns in a chunk, as files have

    def peak(chunks, use):
        tracemalloc.start()
        try:
            use(xv.ColumnChunks(lambda: (pixels(columns, seed) for seed in range(chunks))))
            return tracemalloc.get_traced_memory()[1] / (8 * X.size * columns)
        finally:
            tracemalloc.stop()

    def fitted(chunks):
        fit = xv.solve(problem(chunks), START, BOX, max_iter=1)
        assert all(w.shape == (3, columns) for w in fit.w_chunks())

    fitted(xv.ColumnChunks.cut(np.ones((X.size, columns))))  # loads modules
    alone, few, many = peak(2, lambda chunks: [x.shape for x in chunks]), peak(2, fitted), peak(4, fitted)
    assert many < min(1.05 * few, alone + 1.0)


def test_what_it_does_not_do_is_said():
    each = xv.lower.Bounded(0.0, np.ones((3, 60)))
    with pytest.raises(ProblemError, match="W must be the same for all columns"):
        problem(CHUNKS, each)
    with pytest.raises(ProblemError, match="two levels with y as ColumnChunks must have no W"):
        xv.bilevel(lower=xv.Level(bumps, CHUNKS, W=POSITIVE), upper=xv.Level(bumps, CHUNKS), data=X)
    fit = xv.solve(problem(CHUNKS), START, BOX, max_iter=1)
    with pytest.raises(ProblemError, match="statistics need right-hand sides in memory where w lies in a set"):
        fit.statistics()
    with pytest.raises(ProblemError, match="mini-batches need y as an array where w lies in a set"):
        xv.solve(problem(CHUNKS), START, BOX, algorithm=xv.algorithms.StochasticFrankWolfe())  # batches of all columns
    calls = iter(range(100))
    fickle = xv.ColumnChunks(lambda: [Y[:, : 40 + next(calls) // 3]])
    with pytest.raises(ProblemError, match="must yield the same columns on every pass"):
        xv.solve(problem(fickle), START, BOX)
