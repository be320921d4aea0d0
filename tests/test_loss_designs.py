"""Levels with a loss whose design is known by its products, or comes in chunks of rows: as those of arrays."""

import tracemalloc
from functools import partial

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro.objective.streamed_losses import StreamedLosses
from xvarpro_conformance.members import together

from .support import central_differences, error, host, rng, send
from .test_losses import LOSSES, THETA, T, data, design, every_loss, target, two_levels

# -- products ----------------------------------------------------------------------------------------------------------


def products(theta, data):
    def forward(p, w):
        return design(p, data) @ w

    return xv.operators.MatrixFree(forward, None, (data["t"].shape[0], 3), theta)


def by_products(name, two, put=np.asarray, solver=None, **given):
    level = xv.Level(products, put(target(name)), loss=LOSSES[name], solver=solver or xv.lower.LSMR(), **given)
    upper = two_levels(name, put).upper if two else None
    return xv.Problem(level, upper, data={k: put(x) for k, x in data().items()})


@every_loss
@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_products_give_the_gradients_of_arrays_on_every_framework(backend, name, lam):
    for two in (False, True):
        of_array = xv.Level(design, target(name), loss=LOSSES[name], lam=lam)
        problem = xv.Problem(of_array, two_levels(name).upper if two else None, data=data())
        want = xv.value_and_gradient(problem, THETA)
        found = xv.value_and_gradient(by_products(name, two, lambda x: send(backend, x), lam=lam), send(backend, THETA))
        assert error([host(x) for x in found], list(want)) < 1e-9


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_gradients_by_products_are_those_of_the_value(name):
    problem = by_products(name, True, lam=0.1)

    def derivative(theta):
        """Differences of two widths, so that the error is of fourth order."""
        fine, wide = (
            central_differences(lambda x: float(xv.value_and_gradient(problem, x)[0]), theta, h) for h in (1e-3, 2e-3)
        )
        return (4 * fine - wide) / 3

    assert error(xv.value_and_gradient(problem, THETA)[1], derivative(THETA)) < 1e-9


def scaled(theta, data):
    return xv.operators.MatrixFree(lambda p, w: p * w, None, (4096, 4096), theta)


def test_a_design_that_is_too_large_for_an_array_takes_products_by_itself():
    y = (np.arange(4096) % 3 == 0).astype(float)
    problem = xv.separable(scaled, y, loss="logistic", lam=0.1)
    w = xv.solve_lower(problem, np.array([2.0])).w
    assert np.max(np.abs(2 * (1 / (1 + np.exp(-2 * w)) - y) + 0.1 * w)) < 1e-12
    assert xv.solve(problem, np.array([2.0]), xv.sets.Box(1.0, 3.0)).success


@pytest.mark.parametrize(
    "preconditioner",
    [xv.lower.Jacobi(), xv.lower.Given(lambda M, P, x: P * x, np.geomspace(1, 1e-4, 20)[:, None] ** 2)],
    ids=["Jacobi", "Given"],
)
def test_preconditioners_save_products_with_badly_scaled_columns(preconditioner):
    A, calls = rng(0).normal(size=(200, 20)) * np.geomspace(1, 1e4, 20), []
    y = (A[:, 0] + rng(1).normal(size=200) > 0).astype(float)

    def count(solver):
        def forward(p, w):
            calls.append(1)
            return p * (A @ w)

        def M(theta, data):
            return xv.operators.MatrixFree(forward, lambda p, r: p * (A.T @ r), A.shape, theta)

        problem = xv.separable(M, y, loss="logistic", lam=1e-3, solver=solver)
        calls.clear()
        w = xv.solve_lower(problem, np.ones(1)).w
        return len(calls), w

    few, w = count(xv.lower.LSMR(preconditioner=preconditioner))
    many, _ = count(xv.lower.LSMR())
    assert few < many / 3
    g = A.T @ (1 / (1 + np.exp(-A @ w)) - y) + 1e-3 * w
    assert np.max(np.abs(g) / np.linalg.norm(A, axis=0)) < 1e-10


def test_too_few_products_are_no_gradient():
    fit = xv.solve(by_products("logistic", True, solver=xv.lower.LSMR(limit=1)), THETA, xv.sets.Box(0.1, 3.0))
    assert fit.status is xv.Status.NON_FINITE


# -- chunks of rows ----------------------------------------------------------------------------------------------------


def cut(name, put=np.asarray, size=13, **given):
    y, e = target(name), put(np.asarray(1.0))
    parts = [slice(i, i + size) for i in range(0, T.size, size)]
    return xv.RowChunks([({"t": put(T[part]), "e": e}, put(y[part])) for part in parts], **given)


def in_chunks(name, two, put=np.asarray, lam=0.1, solver=None, **given):
    lower = xv.Level(design, cut(name, put, **given), loss=LOSSES[name], lam=lam, solver=solver)
    y = np.cos(T[:, None] * [1.0, 2.0, 3.0]) if name == "softmax" else np.sin(T)
    upper = [({"t": put(T[i : i + 9]), "e": put(np.asarray(1.0))}, put(y[i : i + 9])) for i in range(0, T.size, 9)]
    return xv.Problem(lower, xv.Level(design, xv.RowChunks(upper)) if two else None)


def whole(name, two, lam=0.1):
    y = np.cos(T[:, None] * [1.0, 2.0, 3.0]) if name == "softmax" else np.sin(T)
    lower = xv.Level(design, target(name), loss=LOSSES[name], lam=lam)
    return xv.Problem(lower, xv.Level(design, y) if two else None, data=data())


CHUNKED = [(name, two) for name in LOSSES for two in (False, True) if (name, two) != ("cauchy", True)]


@pytest.mark.parametrize("lam", [0.0, 0.1])
@pytest.mark.parametrize(("name", "two"), CHUNKED)
def test_chunks_give_the_gradients_of_arrays_on_every_framework(backend, name, two, lam):
    want = whole(name, two, lam)
    problem, theta = in_chunks(name, two, lambda x: send(backend, x), lam), send(backend, THETA)
    found = xv.value_and_gradient(problem, theta)
    assert error([host(x) for x in found], list(xv.value_and_gradient(want, THETA))) < 1e-10
    assert error(host(xv.solve_lower(problem, theta).w), xv.solve_lower(want, THETA).w) < 1e-10


def test_chunks_of_a_loss_by_normal_equations():
    for two in (False, True):
        problem = in_chunks("softmax", two, solver=xv.lower.Cholesky())
        want = xv.value_and_gradient(whole("softmax", two), THETA)
        assert error(list(xv.value_and_gradient(problem, THETA)), list(want)) < 1e-10


def test_rows_that_hardly_bend_leave_w_its_digits():
    """Their weighted targets are 1e8 and more, of which a factorisation would keep the rounding."""
    draw = rng(5)
    A, y = draw.normal(size=(60, 3)), draw.standard_t(1, size=60)
    loss = xv.losses.Quantile(0.4, 0.05)
    chunks = xv.RowChunks([(A[:25], y[:25]), (A[25:], y[25:])])
    problem = xv.separable(lambda theta, A: A * theta, chunks, loss=loss, lam=0.1)
    w = xv.solve_lower(problem, np.ones(1)).w
    assert np.max(np.abs(A.T @ loss.slope((A @ w)[:, None], y[:, None], 1.0)[:, 0] + 0.1 * w)) < 1e-11


def test_members_of_a_group_hold_chunks_of_a_loss():
    y = target("log_poisson")

    def found(group):
        own = slice(20 * group.rank, 20 * group.rank + 20)
        source = [({"t": T[own], "e": np.asarray(1.0)}, y[own])]
        problem = xv.separable(design, xv.RowChunks(source, group=group), loss="log_poisson", lam=0.1)
        return xv.value_and_gradient(problem, THETA)

    want = list(xv.value_and_gradient(whole("log_poisson", False), THETA))
    first, second = together(2, found)
    assert error(list(first), want) < 1e-12
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("loss", [None, "logistic"])
def test_levels_in_memory_keep_weights_and_loss_next_to_one_in_chunks(loss):
    weights, y = rng(3).uniform(0.1, 3.0, T.size), target("logistic")
    lower = xv.Level(design, y, lam=0.1, weights=weights, loss=loss)
    counts = target("log_poisson")
    chunks = xv.Level(design, cut("log_poisson"), loss="log_poisson")
    both = xv.bilevel(lower=lower, upper=xv.Level(design, counts, loss="log_poisson"), data=data())
    want = xv.value_and_gradient(both, THETA)
    found = xv.value_and_gradient(xv.bilevel(lower=lower, upper=chunks, data=data()), THETA)
    assert error(list(found), list(want)) < 1e-12


def test_solves_of_chunks_end_where_those_of_arrays_do():
    box = xv.sets.Box(0.1, 5.0)
    found, want = (xv.solve(p("softmax", False), THETA, box) for p in (partial(in_chunks, size=20), whole))
    assert found.success
    assert found.value == pytest.approx(want.value, rel=1e-9)
    assert error(found.w, want.w) < 1e-3


def test_steps_over_chunks_are_few_from_a_theta_nearby(monkeypatch):
    steps, solves = [], []
    step, solved = StreamedLosses._step, StreamedLosses._solved
    monkeypatch.setattr(StreamedLosses, "_step", lambda *args: steps.append(1) or step(*args))
    monkeypatch.setattr(StreamedLosses, "_solved", lambda *args: solves.append(1) or solved(*args))
    problem = in_chunks("log_poisson", False, size=20)
    xv.solve(problem, THETA, xv.sets.Box(0.0, 5.0), algorithm=xv.algorithms.FrankWolfe(), max_iter=5)
    assert len(steps) <= 5 * len(solves)  # two of these are from the beginning


def test_chunks_are_mini_batches_of_a_loss():
    algorithm = xv.algorithms.StochasticProjectedGradient(certify=5, update=xv.algorithms.Adam(rate=0.02))
    box, start = xv.sets.Box(0.1, 5.0), np.array([4.0, 1.0])
    fit = xv.solve(in_chunks("logistic", False, size=20), start, box, algorithm=algorithm, max_iter=20)
    assert fit.value < 0.98 * xv.value_and_gradient(whole("logistic", False), start)[0]


def test_memory_of_a_loss_is_bounded_by_the_chunk():
    rows, chunks, n = 4000, 16, 8

    def source():
        for i in range(chunks):
            t = (i + np.linspace(0.0, 1.0, rows)) / chunks
            yield t, (t > 0.5) * 1.0

    def M(theta, t):
        xp = xv.array_namespace(theta)
        return xp.exp(-t[:, None] * theta)

    problem = xv.separable(M, xv.RowChunks(source), loss="logistic", lam=1.0)
    theta = np.linspace(1.0, 7.0, n)
    tracemalloc.start()
    try:
        xv.value_and_gradient(problem, theta)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 8 * 8 * rows * n, "of a chunk; all rows are sixteen"


@pytest.mark.parametrize(
    ("name", "y", "match"),
    [("logistic", np.full(T.size, 2.0), "labels 0 and 1"), ("softmax", np.full((T.size, 3), 0.5), "sum to 1")],
)
def test_chunks_with_a_target_that_does_not_fit(name, y, match):
    chunks = xv.RowChunks([(data(), target(name)), (data(), y)])
    with pytest.raises(ProblemError, match=match):
        xv.solve(xv.separable(design, chunks, loss=name, lam=0.1), THETA)


def test_what_chunks_of_a_loss_do_not_have():
    above = xv.Level(design, np.sin(T))
    with pytest.raises(ProblemError, match=r"convex loss.*got Cauchy"):
        xv.bilevel(lower=xv.Level(design, cut("cauchy"), loss=LOSSES["cauchy"]), upper=above, data=data())
    lower = xv.Level(design, target("huber"), W=xv.lower.Nonnegative())
    with pytest.raises(ProblemError, match=r"no W and a constant ridge.*got W"):
        xv.bilevel(lower=lower, upper=xv.Level(design, cut("huber")), data=data())
    with pytest.raises(ProblemError, match=r"a function weights\(data\) of a chunk, .*got weights"):
        xv.separable(design, cut("huber"), weights=np.ones(T.size))
    for weights, why in (
        (lambda d: -d["t"], "must be >= 0"),
        (lambda d: d["t"][:2], "one entry per row of y, chunk 0"),
    ):
        with pytest.raises(ProblemError, match=why):
            xv.value_and_gradient(xv.separable(design, cut("huber"), weights=weights, loss=LOSSES["huber"]), THETA)


def weights_of(data):
    return data["weights"]


@pytest.mark.parametrize("name", [*LOSSES, None])
def test_chunks_bring_their_weights_on_every_framework(backend, name):
    """Zeros among them hide what is no number."""
    weights = rng(3).uniform(0.1, 3.0, T.size)
    weights[::7] = 0.0
    y, above = (x.copy() for x in (target(name or "huber"), np.sin(T)))
    above = np.stack([above] * y.shape[1], axis=1) if y.ndim > 1 else above
    y[::7], above[::7] = np.nan, np.nan
    loss, parts = LOSSES.get(name), [slice(i, i + 13) for i in range(0, T.size, 13)]

    def rows(y):
        def given(x):
            return send(backend, np.asarray(x))

        source = [({"t": given(T[p]), "e": given(1.0), "weights": given(weights[p])}, given(y[p])) for p in parts]
        return xv.RowChunks(source)

    one = xv.Level(design, y, lam=0.1, weights=weights, loss=loss)
    two = xv.Level(design, rows(y), lam=0.1, weights=weights_of, loss=loss)
    for both in (False, True)[: 1 if name == "cauchy" else 2]:
        whole = xv.Problem(one, xv.Level(design, above, weights=weights) if both else None, data=data())
        problem = xv.Problem(two, xv.Level(design, rows(above), weights=weights_of) if both else None)
        found = xv.value_and_gradient(problem, send(backend, THETA))
        assert error([host(x) for x in found], list(xv.value_and_gradient(whole, THETA))) < 1e-10


def test_mini_batches_of_chunks_have_their_weights():
    """One of two chunks stands for both: its weights count twice."""
    weights, y = rng(3).uniform(0.1, 3.0, T.size), target("logistic")
    halves = [slice(20, 40), slice(20)]  # the step of the first one leads down
    e = np.asarray(1.0)
    rows = xv.RowChunks([({"t": T[p], "e": e, "weights": weights[p]}, y[p]) for p in halves])
    problem = xv.separable(design, rows, weights=weights_of, loss="logistic", lam=0.1)
    algorithm = xv.algorithms.StochasticProjectedGradient(update=xv.algorithms.SGD(rate=1e-3))
    fit = xv.solve(problem, THETA, xv.sets.Box(0.1, 5.0), algorithm=algorithm, max_iter=1, tol=0.0)
    half = {"t": T[20:], "e": e}
    first = xv.separable(design, y[20:], weights=2 * weights[20:], loss="logistic", lam=0.1, data=half)
    _, g = xv.value_and_gradient(first, THETA)
    assert error(fit.theta, THETA - 1e-3 * g / T.size) < 1e-12  # of the mean over rows
