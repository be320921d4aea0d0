"""Many right-hand sides, replaced by few: the same function, exactly."""

import gc
from itertools import pairwise

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.errors import ProblemError

from .support import BACKENDS, Watched, dictionary_start, error, host, rng, send

M_ROWS, MANY = 6, 50
Y = rng(0).normal(size=(M_ROWS, MANY))
Y_UPPER = rng(1).normal(size=(4, MANY))
D = dictionary_start(M_ROWS, 3)
BALL = xv.sets.L1Ball(4.0)
STEPS = xv.algorithms.FrankWolfe(xv.steps.Armijo(), cap=0.25)


def design(theta, data):
    return theta


def first_rows(theta, data):
    xp = xv.array_namespace(theta)
    return xp.sin(theta[:4, :])


def separable(y=Y, **keywords):
    return xv.separable(design, y, lam=0.1, **keywords)


def bilevel(y=Y, y_upper=Y_UPPER, **keywords):
    return xv.bilevel(lower=xv.Level(design, y, lam=0.1), upper=xv.Level(first_rows, y_upper), **keywords)


MAKERS = {"separable": separable, "bilevel": bilevel}


def chunks(y, width=7):
    return xv.ColumnChunks(lambda: (y[:, i : i + width] for i in range(0, y.shape[1], width)))


CHUNKED = {"separable": lambda: separable(chunks(Y)), "bilevel": lambda: bilevel(chunks(Y), chunks(Y_UPPER))}


# -- the factor --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 6, 7, 24, 25, 26, 100])
def test_factor_has_the_same_gram_matrix(k, backend):
    y = rng(k).normal(size=(M_ROWS, k))
    L = host(xv.compress(send(backend, y)))
    assert L.shape == (M_ROWS, min(M_ROWS, k))
    assert np.abs(L @ L.T - y @ y.T).max() <= 1e-13 * np.abs(y @ y.T).max()


@pytest.mark.parametrize("dependent", [False, True])
def test_factor_of_single_precision_has_all_its_digits(dependent, backend):
    y = rng(3).normal(size=(5, 3000)).astype(np.float32)
    y[4] = y[3] if dependent else y[3] + 1e-3 * y[4]
    L = host(xv.compress(send(backend, y)))
    assert L.dtype == np.float32
    want = y.astype(float) @ y.T.astype(float)
    got = L.astype(float) @ L.T.astype(float)
    assert np.linalg.norm(got - want) <= 4 * np.finfo(np.float32).eps * np.linalg.norm(want)


def test_factor_of_chunks_is_that_of_the_whole(backend):
    cuts = [0, 1, 10, 12, 31, 45, MANY]
    blocks = [send(backend, Y[:, a:b]) for a, b in pairwise(cuts)]
    L = host(xv.compress(xv.ColumnChunks(lambda: iter(blocks))))
    assert np.abs(L @ L.T - Y @ Y.T).max() <= 1e-13 * np.abs(Y @ Y.T).max()
    assert np.abs(np.triu(L, 1)).max() == 0


# -- the function ------------------------------------------------------------------------------------------------------


def turned(theta, data):
    xp = xv.array_namespace(theta)
    return theta + 0.5j * xp.cos(theta)


@pytest.mark.parametrize("width", [None, 7])
def test_complex_targets_are_compressed_to_the_same_function(width):
    """The factor is an adjoint: its conjugate has the same absolute values and another function."""
    y = Y + 1j * rng(2).normal(size=Y.shape)
    L = xv.compress(y if width is None else chunks(y, width))
    np.testing.assert_allclose(L @ L.conj().T, y @ y.conj().T, rtol=1e-12, atol=1e-12)
    problem = xv.separable(turned, y if width is None else chunks(y, width), lam=0.1)
    value, gradient = xv.value_and_gradient(problem, D)
    want, want_gradient = xv.value_and_gradient(xv.separable(turned, y, lam=0.1, compress=False), D)
    assert error(value, want) <= 1e-12
    assert error(gradient, want_gradient) <= 1e-12


# -- when --------------------------------------------------------------------------------------------------------------


def compressed(problem):
    return xv.solve(problem, D, over=BALL, max_iter=0).provenance["compressed"]


@pytest.mark.parametrize(("k", "expected"), [(M_ROWS + 4, False), (M_ROWS + 5, True)])
def test_a_bilevel_problem_counts_the_rows_of_both(k, expected):
    assert compressed(bilevel(Y[:, :k], Y_UPPER[:, :k])) == expected


def test_a_moving_target_is_not_compressed():
    def moving(theta, data):
        return data * xv.array_namespace(theta).sum(theta)

    assert not compressed(xv.separable(design, moving, data=Y, lam=0.1))
    assert not compressed(
        xv.bilevel(lower=xv.Level(design, moving, lam=0.1), upper=xv.Level(first_rows, Y_UPPER), data=Y)
    )


# -- w -----------------------------------------------------------------------------------------------------------------


def exact_w(theta, y=Y):
    theta = host(theta)
    return np.linalg.solve(theta.T @ theta + 0.1 * np.eye(3), theta.T @ y)


@pytest.mark.parametrize("levels", MAKERS)
@pytest.mark.parametrize("source", ["whole", "chunks", "declined"])
def test_w_is_recovered_in_full(levels, source, backend):
    problem = CHUNKED[levels]() if source == "chunks" else MAKERS[levels](compress=source == "whole")
    fit = xv.solve(problem, D, over=BALL, max_iter=3, backend=backend.name, algorithm=STEPS)
    assert fit.w.shape == (3, MANY)
    assert error(fit.w, exact_w(fit.theta)) <= 1e-12
    assert isinstance(fit.w, np.ndarray)


def test_w_of_a_wide_target_comes_in_blocks(monkeypatch):
    monkeypatch.setattr("xvarpro.driver.outcome.ORDINARY", 0)
    y = rng(2).normal(size=(M_ROWS, 2500))
    fit = xv.solve(separable(y), D, over=BALL, max_iter=2, algorithm=STEPS)
    parts = list(fit.w_chunks())
    assert len(parts) == 3
    assert error(np.concatenate(parts, axis=1), exact_w(fit.theta, y)) <= 1e-12
    assert (np.concatenate(parts, axis=1) == fit.w).all()


def test_chunks_from_another_framework(backend):
    for name in (n for n in BACKENDS if n != "cupy"):
        owner = xv.backends.get(name)
        pieces = [owner.asarray(Y[:, i : i + 20].astype("float32")) for i in range(0, MANY, 20)]
        fit = xv.solve(separable(xv.ColumnChunks(pieces)), send(backend, D.astype("float32")), over=BALL, max_iter=0)
        assert error(fit.w, exact_w(fit.theta)) <= 1e-4


# -- one chunk at a time -----------------------------------------------------------------------------------------------


def test_chunks_are_consumed_one_at_a_time(backend):
    source = Watched(Y, size=2)
    gc.disable()
    try:
        fit = xv.solve(
            separable(xv.ColumnChunks(source)), D, over=BALL, max_iter=2, backend=backend.name, algorithm=STEPS
        )
        assert source.passes == 1
        assert source.most <= 2, "one in work, one on its way"
        for part in fit.w_chunks():
            assert part.shape == (3, 2)
    finally:
        gc.enable()
    assert source.passes == 2
    assert source.most <= 2


def test_levels_in_chunks_are_read_side_by_side():
    lower, upper = Watched(Y, size=2), Watched(Y_UPPER, size=2)
    xv.value_and_gradient(bilevel(xv.ColumnChunks(lower), xv.ColumnChunks(upper)), D)
    assert max(lower.most, upper.most) <= 2


# -- wrong chunks ------------------------------------------------------------------------------------------------------


def ragged(*last):
    return separable(xv.ColumnChunks([Y[:, :9], Y[:, 9:], np.ones(last)]))


def test_chunks_that_do_not_fit_are_named(subtests):
    for make, message in (
        (lambda: ragged(5, 2), r"chunk 2, must have shape \(6, k_i\); got \(5, 2\)"),
        (lambda: ragged(6), r"chunk 2, must have shape \(6, k_i\); got \(6,\)"),
        (
            lambda: separable(chunks(np.where(Y[0, 20] == Y, np.nan, Y), 10)),
            "y, chunk 2 must be finite.* Leave the column out",
        ),
        (lambda: separable(xv.ColumnChunks([])), "at least one row and one column"),
        (lambda: separable(chunks(Y), compress=False), "compress must be True"),
        (lambda: bilevel(chunks(Y), Y_UPPER), "both levels"),
        (lambda: bilevel(chunks(Y, 7), chunks(Y_UPPER, 8)), "chunk"),
        (lambda: bilevel(chunks(Y, 10), chunks(Y_UPPER[:, :30], 10)), "chunk"),
        (lambda: bilevel(Y, Y_UPPER[:, :-1]), "same number of columns of y"),
    ):
        with subtests.test(message), pytest.raises(ProblemError, match=message):
            xv.solve(make(), D, over=BALL)
