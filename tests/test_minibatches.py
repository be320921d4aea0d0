"""Mini-batches that touch a mini-batch: marked data, what determines w, update rules, batches from a source."""

from functools import partial
from itertools import product

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.algorithms import (
    SGD,
    Adam,
    AllRows,
    Optax,
    SameBatch,
    SecondBatch,
    StochasticFrankWolfe,
    StochasticProjectedGradient,
)
from xvarpro.driver.prepare import prepare
from xvarpro.errors import ProblemError
from xvarpro.objective.mini_batch import some_columns
from xvarpro.sets import Box
from xvarpro_conformance.members import together

from .support import error, rng, vector

X = np.linspace(-1.0, 1.0, 48)
Y = np.exp(-2.0 * X) + np.exp(-0.5 * X) + 0.01 * rng(0).normal(size=48)
START = np.array([0.3, 1.5])
BOX = Box(0.0, 5.0)
RIDGED = {"lam": 0.1, "solver": xv.lower.QR()}  # compiles fast


def exponentials(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["x"], axis=1) * theta)


def across(theta, data):
    """With samples along the second axis."""
    return exponentials(theta, {"x": data["X"][1, :]})


def moving(theta, data):
    return data["y"] + 0.1 * data["x"] * theta[0]


def of_first(theta, data):
    return exponentials(theta, {"x": data["t"]})


DATA = {"x": xv.Samples(X), "y": xv.Samples(Y)}
WEIGHTS = rng(1).uniform(0.5, 2.0, 48)
LAYOUT = {"X": xv.Samples(np.stack([Y, X]), axis=1)}
CASES = {
    "array": (exponentials, Y, DATA, {}),
    "axis": (across, Y, LAYOUT, {}),
    "weights": (exponentials, Y, DATA, {"weights": WEIGHTS}),
    "target of theta, weights": (exponentials, moving, DATA, {"weights": WEIGHTS}),
    "several right-hand sides": (exponentials, np.stack([Y, X, Y * X], axis=1), DATA, {}),
}


def whole(problem, indices, b, scale=None):
    """The rows at `indices`, scaled up, as a problem that is stated for them."""
    M, y, data, more = problem
    rows = np.asarray(indices)
    taken = {k: np.take(mark.x, rows, axis=mark.axis) for k, mark in data.items()}
    weights = more.get("weights", np.ones(48))[rows] * (48 / b if scale is None else scale)
    level = xv.Level(M, y if callable(y) else y[rows], lam=0.1, weights=weights)
    return level, taken


def of_batch(f, theta, indices, lower):
    point, gradient = f.restricted(indices, lower).value_and_gradient(theta)
    return point.value, gradient


@pytest.mark.parametrize("name", CASES)
def test_a_batch_is_the_problem_of_its_rows(name, backend):
    """Each choice of w against the problem written out: value and gradient."""
    M, y, data, more = CASES[name]
    problem = xv.separable(M, y, data=data, compress=False, **RIDGED, **more)
    first, second = [3, 40, 17, 8], [21, 5, 33, 30]
    (upper, above), (lower, below) = (whole(CASES[name], rows, 4) for rows in (first, second))
    every, full = whole(CASES[name], range(48), 48)
    prepared = prepare(problem, START, backend=backend)

    def part(i):
        return lambda theta, pair: (upper.M if i else lower.M)(theta, pair[i])

    def split(low, high, pair):
        ys = [level.y if not callable(level.y) else _entry(level.y, i) for i, level in enumerate((low, high))]
        return xv.bilevel(
            lower=xv.Level(part(0), ys[0], lam=0.1, weights=low.weights),
            upper=xv.Level(part(1), ys[1], lam=0.1, weights=high.weights), data=pair, compress=False,
        )  # fmt: skip

    same = xv.separable(upper.M, upper.y, data=above, lam=0.1, weights=upper.weights, compress=False)
    for choice, drawn, want in (
        (SameBatch(), first, same),
        (None, first, same),
        (SecondBatch(), first + second, split(lower, upper, (below, above))),
        (AllRows(), first, split(every, upper, (full, above))),
    ):
        indices = backend.asarray(np.array(drawn, np.int32))
        value, gradient = prepared.call(partial(of_batch, lower=choice), prepared.theta, indices)
        stated, slope = xv.value_and_gradient(want, START)
        assert vector(value)[0] == pytest.approx(float(stated), rel=1e-10), choice
        assert error(vector(gradient), slope) <= 1e-8, choice


def _entry(y, i):
    return lambda theta, pair: y(theta, pair[i])


@pytest.mark.parametrize(
    "W",
    [
        xv.lower.Simplex(2.0),
        xv.lower.Bounded(0.0, np.linspace(0.5, 2.0, 8).reshape(2, 4)),
        xv.lower.Equality(np.array([[1.0, 1.0]]), np.array([[0.5, 1.0, 1.5, 2.0]])),
        xv.lower.L1(0.3),
    ],
    ids=lambda W: type(W).__name__,
)
def test_right_hand_sides_have_the_average_of_all_within_their_sets_too(W):
    t = np.linspace(0.0, 2.0, 30)
    y = np.exp(-np.outer(t, [1.0, 5.0])) @ np.random.default_rng(0).uniform(0.5, 2.0, (2, 4))
    problem = xv.separable(lambda theta, t: xv.models.exponentials(t, theta), y, data=t, W=W, compress=False)
    theta = np.array([0.8, 4.0])
    parts = [xv.value_and_gradient(some_columns(problem, np.array([i]), 4**0.5), theta) for i in range(4)]
    value, gradient = xv.value_and_gradient(problem, theta)
    np.testing.assert_allclose(np.mean([x for x, _ in parts]), value, rtol=1e-9)
    np.testing.assert_allclose(np.mean([x for _, x in parts], axis=0), gradient, rtol=1e-7)


def identity(theta):
    return xv.array_namespace(theta).eye(2)


@pytest.mark.parametrize(
    ("lower", "drawn", "rows"), [(SameBatch(), 4, 4), (SecondBatch(), 8, 4), (AllRows(), 4, 48), (None, 4, 48)]
)
def test_ridges_are_of_the_rows_that_determine_w(lower, drawn, rows):
    """As M of the lower level; without `lower` of one of two levels."""
    data, indices, found = {"x": DATA["x"]}, np.arange(drawn, dtype=np.int32), []
    for lam, Omega in (
        (lambda theta, data: data["x"].shape[0] * theta[0], lambda theta, data: data["x"].shape[0] * identity(theta)),
        (lambda theta, data: rows * theta[0], rows * np.eye(2)),
    ):
        level = xv.Level(exponentials, Y, lam=lam, Omega=Omega)
        problem = xv.separable(exponentials, Y, data=data, lam=lam, Omega=Omega)
        prepared = prepare(xv.bilevel(lower=level, upper=level, data=data) if lower is None else problem, START)
        found.append(prepared.call(partial(of_batch, lower=lower), prepared.theta, indices))
    (value, gradient), (stated, slope) = found
    assert (value, *gradient[0]) == pytest.approx((stated, *slope[0]), rel=1e-12)


METHODS = {
    "Frank-Wolfe": StochasticFrankWolfe(batch=8, certify=5),
    "projected": StochasticProjectedGradient(batch=8, certify=5, update=Adam(rate=0.05)),
}


@pytest.mark.parametrize("name", METHODS)
def test_eight_rows_drawn_are_eight_rows_seen(name):
    """The model itself counts, on backends that run it in every iteration."""
    method = METHODS[name]
    for backend, (lower, per_batch) in product(
        ("numpy", "torch"), ((None, {8}), (SecondBatch(), {8}), (AllRows(), {8, 48}))
    ):
        seen = []

        def counted(theta, data, seen=seen):
            seen.append(data["x"].shape[0])
            return exponentials(theta, data)

        problem = xv.separable(counted, Y, data={"x": DATA["x"]}, lam=0.1)
        chosen = type(method)(**{**vars(method), "lower": lower})
        begun = []
        fit = xv.solve(
            problem, START, BOX, algorithm=chosen, max_iter=10, tol=0.0, backend=backend,
            callback=lambda info, begun=begun, seen=seen: begun.append((info.iteration, list(seen), seen.clear())),
        )  # fmt: skip
        iterations = dict((k, rows) for k, rows, _ in begun)
        assert all(set(iterations[k]) == per_batch for k in (2, 3, 4, 6, 7, 8, 9)), (backend, lower)
        # from one certificate to the next the trace counts what the model saw, the certificate included
        rows = np.diff(fit.trace.rows)
        assert [int(n) for n in rows[1:]] == [sum(iterations[k]) for k in range(2, 11)], (backend, lower)
        assert fit.counts.rows == fit.trace.rows[-1]


def test_rows_of_methods_that_evaluate_all_of_them(backend):
    fit = xv.solve(xv.separable(exponentials, Y, data=DATA, lam=0.1), START, BOX, backend=backend, max_iter=5)
    assert fit.counts.rows == 48 * fit.counts.values


def test_marks_change_nothing_but_batches():
    """Values, fits, predictions and files are those of plain arrays."""
    marked = xv.separable(exponentials, Y, data=DATA, lam=0.1)
    bare = xv.separable(exponentials, Y, data={"x": X, "y": Y}, lam=0.1)
    fits = [xv.solve(problem, START, BOX) for problem in (marked, bare)]
    assert (fits[0].theta == fits[1].theta).all()
    assert (fits[0].fitted == fits[1].fitted).all()
    assert (fits[0].predict({"x": X[:5], "y": Y[:5]}) == fits[1].predict({"x": X[:5], "y": Y[:5]})).all()
    errors = [fit.statistics().covariance for fit in fits]
    assert (errors[0] == errors[1]).all()
    assert float(xv.solve_lower(marked, START).value) == float(xv.solve_lower(bare, START).value)
    assert xv.verify(fits[0], marked).ok


def test_a_bilevel_problem_draws_from_its_upper_rows():
    problem = xv.bilevel(
        lower=xv.Level(of_first, Y[:20], lam=0.1), upper=xv.Level(exponentials, Y), data={**DATA, "t": X[:20]}
    )
    fit = xv.solve(problem, START, BOX, algorithm=METHODS["projected"], max_iter=20, tol=0.0)
    assert fit.value < fit.trace.value[0]
    assert fit.trace.rows[3] - fit.trace.rows[2] == 20 + 8


# -- update rules ------------------------------------------------------------------------------------------------------


def by_torch(kind, theta, grads, **options):
    import torch

    p = torch.tensor(theta, requires_grad=True)
    method = getattr(torch.optim, kind)([p], **options)
    for g in grads:
        p.grad = torch.tensor(g)
        method.step()
    return p.detach().numpy()


@pytest.mark.parametrize(
    ("rule", "kind", "options"),
    [
        (SGD(0.1, momentum=0.0), "SGD", {"lr": 0.1}),
        (SGD(0.1, momentum=0.8), "SGD", {"lr": 0.1, "momentum": 0.8}),
        (SGD(0.1, momentum=0.8, nesterov=True), "SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True}),
        (Adam(0.1, beta1=0.8), "Adam", {"lr": 0.1, "betas": (0.8, 0.999)}),
    ],
    ids=["plain", "momentum", "nesterov", "adam"],
)
def test_rules_are_those_of_torch(rule, kind, options, backend):
    grads = rng(2).normal(size=(7, 3))
    theta = (backend.asarray(np.ones(3)),)
    memory, k = rule.init(theta), backend.asarray(np.zeros(()))
    for g in grads:
        step, memory = rule.step((backend.asarray(g),), memory, theta, k)
        theta, k = (theta[0] + step[0],), k + 1
    assert error(vector(theta), by_torch(kind, np.ones(3), grads, **options)) <= 1e-12


def trained(update, backend="numpy", over=BOX, **options):
    method = StochasticProjectedGradient(**{"batch": 8, "update": update, **options})
    problem = xv.separable(exponentials, Y, data=DATA, **RIDGED)
    return xv.solve(problem, START, over, algorithm=method, max_iter=60, tol=0.0, backend=backend)


def test_steps_are_projected_and_the_same_on_every_backend(backend):
    over = Box(0.0, 1.6)
    for update in (Adam(rate=lambda k: 0.1 / (1 + 0.01 * k)), SGD(rate=0.5, momentum=0.5)):
        fit, want = (trained(update, name, over) for name in (backend.name, "numpy"))
        assert error(fit.theta, want.theta) <= 1e-10
        assert fit.counts == want.counts
        assert fit.counts.projections == fit.n_iter
        assert fit.value < fit.trace.value[0]
        assert fit.verified.violation == 0


def test_certificates_come_once_a_pass_unless_they_are_asked_for():
    fit = trained(Adam(rate=0.05))
    assert set(np.flatnonzero(np.diff(fit.trace.values) > 1) + 1) <= set(range(6, 61, 6))


@pytest.mark.frameworks
def test_optax():
    optax = pytest.importorskip("optax")
    update = Optax(optax.chain(optax.clip_by_global_norm(1e9), optax.adam(optax.constant_schedule(0.05))))
    assert error(trained(update, "jax").theta, trained(Adam(rate=0.05)).theta) <= 1e-6
    for backend in ("numpy", "torch"):
        with pytest.raises(ProblemError, match="Pass backend='jax' for those of Optax"):
            trained(update, backend)
    with pytest.raises(ProblemError, match=r"alone that computes with arrays of the jax backend; got .*'value'"):
        trained(Optax(optax.contrib.reduce_on_plateau()), "jax")


def test_rates_are_in_the_units_of_the_problem():
    """Targets far from 1 are not multiplied on the way, as they are for methods whose steps do not depend on it."""
    problem = xv.separable(exponentials, 1e6 * Y, data=DATA, lam=0.1)
    method = StochasticProjectedGradient(batch=48, update=SGD(rate=1e-13, momentum=0.0))
    fit = xv.solve(problem, START, algorithm=method, max_iter=1, tol=0.0)
    want = START - 1e-13 * xv.value_and_gradient(problem, START)[1] / 48
    assert error(fit.theta, want) <= 1e-12


# -- batches from a source ---------------------------------------------------------------------------------------------


def plain(theta, x):
    return exponentials(theta, {"x": x})


PIECES = [(X[a:b], Y[a:b]) for a, b in ((0, 10), (10, 25), (25, 33), (33, 48))]


def test_chunks_are_batches_in_turn(backend):
    """The next chunk in every iteration, scaled by its own size; certificates over all of them."""
    problem = xv.separable(plain, xv.RowChunks(PIECES), lam=0.1)
    method = StochasticProjectedGradient(update=SGD(rate=0.2, momentum=0.0))
    fit = xv.solve(problem, START, BOX, algorithm=method, max_iter=10, tol=0.0, backend=backend)
    theta, running = START, []
    for k in range(10):
        x, y = PIECES[k % 4]
        part = xv.separable(plain, y, data=x, lam=0.1, weights=np.full(len(x), 48 / len(x)))
        theta = np.clip(theta - 0.2 * xv.value_and_gradient(part, theta)[1] / 48, 0.0, 5.0)
        running.append(theta)
    values = [float(xv.value_and_gradient(problem, running[k - 1])[0]) for k in (4, 8, 10)]
    assert fit.value == pytest.approx(min(*values, fit.trace.value[0]), rel=1e-10)
    assert fit.counts.rows == 10 * 12 + (fit.counts.values - 10) * 48


def test_a_chunk_of_each_member_of_a_group_stands_for_the_rows_of_that_member():
    """Members hold 33 rows in three chunks and 15 in two, of unequal lengths."""
    parts = PIECES[:3], [(X[33:38], Y[33:38]), (X[38:], Y[38:])]
    method = StochasticProjectedGradient(update=SGD(rate=0.2, momentum=0.0), certify=100)

    def solved(member):
        problem = xv.separable(plain, xv.RowChunks(parts[member.rank], group=member), lam=0.1)
        return xv.solve(problem, START, BOX, algorithm=method, max_iter=6, tol=0.0).theta

    theta = START
    for k in range(6):
        (x0, y0), (x1, y1) = parts[0][k % 3], parts[1][k % 3 % 2]
        weights = np.repeat([33 / len(x0), 15 / len(x1)], [len(x0), len(x1)])
        drawn = xv.separable(plain, np.concatenate([y0, y1]), data=np.concatenate([x0, x1]), lam=0.1, weights=weights)
        theta = np.clip(theta - 0.2 * xv.value_and_gradient(drawn, theta)[1] / 48, 0.0, 5.0)
    for found in together(2, solved):
        assert error(found, theta) <= 1e-10


@pytest.mark.parametrize(
    ("backend", "lower"),
    [(None, None), (None, SecondBatch()), pytest.param("jax", None, marks=pytest.mark.frameworks)],
    ids=repr,
)
def test_a_loader_of_torch(backend, lower):
    torch = pytest.importorskip("torch")
    pairs = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    loader = torch.utils.data.DataLoader(
        pairs, batch_size=12, shuffle=True, generator=torch.Generator().manual_seed(0)
    )  # fmt: skip
    problem = xv.separable(plain, xv.RowChunks(loader), **RIDGED)
    method = StochasticProjectedGradient(lower=lower, update=Adam(rate=0.05))
    fit = xv.solve(problem, torch.tensor(START), BOX, algorithm=method, max_iter=40, tol=0.0, backend=backend)
    assert fit.value < 0.5 * fit.trace.value[0]
    stated = xv.value_and_gradient(xv.separable(plain, Y, data=X, lam=0.1), fit.theta.numpy())[0]
    assert fit.value == pytest.approx(float(stated), rel=1e-9)


@pytest.mark.frameworks
def test_a_second_batch_of_chunks_is_compiled_once():
    """JAX calls the user's function where it compiles, and only there."""
    pytest.importorskip("jax")
    calls = []

    def counted(theta, data):
        calls.append(len(data))
        return plain(theta, data)

    chunks, given = xv.RowChunks(PIECES[:2]), xv.Level(counted, Y[:20], **RIDGED)
    for problem, lower in (
        (xv.separable(counted, chunks, **RIDGED), SecondBatch()),
        (xv.bilevel(lower=given, upper=xv.Level(counted, chunks), data=X[:20]), None),
    ):
        method = StochasticProjectedGradient(lower=lower, update=SGD(rate=0.1), certify=1000)
        found = []
        for n in (4, 12):
            calls.clear()
            xv.solve(problem, START, BOX, algorithm=method, max_iter=n, tol=0.0, backend="jax")
            found.append(len(calls))
        assert found[1] <= found[0]


def test_chunks_for_the_upper_level_alone():
    lower = xv.Level(lambda theta, t: plain(theta, t), Y[:20], lam=0.1)
    problem = xv.bilevel(lower=lower, upper=xv.Level(plain, xv.RowChunks(PIECES)), data=X[:20])
    method = StochasticProjectedGradient(update=SGD(rate=0.2, momentum=0.0))
    fit = xv.solve(problem, START, BOX, algorithm=method, max_iter=4, tol=0.0)
    assert fit.value < fit.trace.value[0]
    reverse = xv.bilevel(lower=xv.Level(plain, xv.RowChunks(PIECES)), upper=lower, data=X[:20])
    with pytest.raises(ProblemError, match="must have RowChunks in its upper level"):
        xv.solve(reverse, START, BOX, algorithm=method)


def test_a_solve_of_batches_goes_on_where_it_was(tmp_path):
    file = tmp_path / "run.npz"
    stated = {
        "marked": xv.separable(exponentials, Y, data=DATA, lam=0.1),
        "chunks": xv.separable(plain, xv.RowChunks(PIECES), lam=0.1),
    }
    for problem in stated.values():
        options = {"over": BOX, "tol": 0.0, "algorithm": METHODS["projected"]}
        want = xv.solve(problem, START, max_iter=23, **options)
        xv.solve(problem, START, max_iter=9, checkpoint=file, **options)
        fit = xv.solve(problem, START, max_iter=23, resume=file, **options)
        assert (fit.theta == want.theta).all()
        assert fit.counts == want.counts


def test_a_checkpoint_of_chunks_that_are_shuffled_says_so(tmp_path):
    draw = np.random.default_rng(0)
    problem = xv.separable(plain, xv.RowChunks(lambda: [PIECES[i] for i in draw.permutation(4)]), lam=0.1)
    with pytest.warns(RuntimeWarning, match="another order"):
        fit = xv.solve(
            problem, START, over=BOX, algorithm=METHODS["projected"], max_iter=9, checkpoint=tmp_path / "run.npz"
        )
    assert np.sum(fit.residuals**2) == pytest.approx(fit.statistics().chi2, rel=1e-9)


# -- errors ------------------------------------------------------------------------------------------------------------


def stuck(theta, data):
    return exponentials(theta, {"x": data["all"]})


STATED = {"x": xv.Samples(X), "all": X}


def test_what_does_not_fit_is_said_at_the_start(subtests):
    for make, lower, message in (
        (lambda: xv.separable(exponentials, Y, data={"x": xv.Samples(X[1:])}), None, r"per row of y, 48; got \[47\]"),
        (lambda: xv.separable(stuck, Y, data=STATED, lam=1.0), None, "as many rows as the data of a mini-batch has, 8"),
        (lambda: xv.separable(exponentials, Y, data={"x": X}), SameBatch(), "needs data marked xv.Samples"),
        (lambda: xv.separable(plain, xv.RowChunks(PIECES)), AllRows(), "hold data in memory, marked xv.Samples"),
        (
            lambda: xv.bilevel(
                lower=xv.Level(exponentials, Y, lam=1.0), upper=xv.Level(exponentials, Y), data=DATA
            ),
            SecondBatch(),
            "must be left out where the lower level determines w of its own",
        ),
        (
            lambda: xv.separable(exponentials, np.stack([Y] * 9, axis=1), data={"x": X}, compress=False),
            SecondBatch(),
            "must be left out where each right-hand side has w of its own",
        ),
    ):  # fmt: skip
        with subtests.test(message), pytest.raises(ProblemError, match=message):
            xv.solve(make(), START, BOX, algorithm=StochasticProjectedGradient(batch=8, lower=lower))


def test_batches_with_fewer_rows_than_unknowns_need_a_ridge():
    with pytest.raises(ProblemError, match="as many as unknowns, or w have a ridge; got 1 rows and 2"):
        xv.solve(xv.separable(exponentials, Y, data=DATA), START, algorithm=StochasticProjectedGradient(batch=1))
