"""Batches whose problems share leaves of theta: the answers of one solve of all, on boxes and with losses."""

from functools import lru_cache

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.algorithms.levenberg_marquardt import minimise_model
from xvarpro.batch.shared import prepare_shared
from xvarpro.errors import ModelError, ProblemError
from xvarpro.objective.gauss_newton import Arrow, diagonal, plus, solve_scaled, times
from xvarpro.sets.region import resolve

from .support import host, rng, send

B, T = 5, np.linspace(0.0, 2.0, 40)
Each = xv.Each


def peaks(theta, t):
    """A decay and a peak of each problem's own, on a background and with a width of all: designs (b, m, 3)."""
    xp, t = xv.array_namespace(theta), t[..., :]
    own, width, back = theta["own"], theta["width"][..., None], theta["b"][..., :1]
    bell = (t - own[..., 1:]) / width
    return xp.stack([xp.exp(-own[..., :1] * t), xp.exp(-bell * bell), xp.exp(-back * t)], axis=-1)


def stacked(theta, t):
    """The designs of all problems along a diagonal."""
    xp, b = xv.array_namespace(theta), theta["own"].shape[0]
    common = {name: xp.broadcast_to(theta[name], (b, *theta[name].shape)) for name in ("b", "width")}
    each = peaks({"own": theta["own"]} | common, t)
    return xp.concat([xp.concat([each[i, ...] * float(i == j) for j in range(b)], axis=1) for i in range(b)], axis=0)


@lru_cache
def data(b=B):
    draw = rng(11)
    own = np.stack([draw.uniform(3.0, 6.0, b), draw.uniform(1.0, 1.2, b)], axis=1)
    theta = {"own": own, "width": np.full(b, 0.2), "b": np.full((b, 1), 0.5)}
    clean = (peaks(theta, T) @ draw.uniform(1.0, 2.0, (b, 3, 1)))[..., 0]
    return clean + 1e-2 * draw.normal(size=clean.shape)


def start(b=B, mark=Each):
    return {"own": mark(np.tile([4.5, 1.1], (b, 1))), "width": np.asarray(0.22), "b": np.array([0.4])}


BOXES = {"own": xv.sets.Box(0.0, np.array([4.6, 1.19])), "width": (0.1, 1.0), "b": None}

SUMS = ("data", "parameters", "dof", "chi2")
KINDS = {
    "free": dict,
    "in boxes": lambda: {"over": BOXES},
    "counts": lambda: {"y": np.round(50 * np.maximum(data(), 0)), "loss": xv.losses.Poisson()},
    "nonnegative": lambda: {"y": data() - 1.5 * np.exp(-0.5 * T), "W": xv.lower.Nonnegative()},
}


@lru_cache
def whole(kind):
    given = KINDS[kind]()
    y, over = given.pop("y", data()), given.pop("over", None)
    one = xv.separable(stacked, y.ravel(), data=T, **given)
    fit = xv.solve(one, start(mark=np.asarray), over, tol=1e-11)
    assert fit.success
    return xv.separable(peaks, y, data=T, **given), over, fit, fit.statistics()


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_that_of_one_solve_of_all(kind, backend):
    problem, over, one, errors = whole(kind)
    fit = xv.solve_many(problem, start(), over, tol=1e-11, backend=backend)
    assert fit.success.all()
    for name, x in one.theta.items():  # to 1e-6 of its error: those at bounds have none
        off = np.abs(host(fit.theta[name]) - x)
        assert (off <= 1e-6 * errors.theta_stderr[name] + 1e-12).all(), (name, off)
    np.testing.assert_allclose(np.sum(host(fit.value)), one.value, rtol=1e-11)
    np.testing.assert_allclose(host(fit.w).ravel(), one.w.ravel(), rtol=1e-6, atol=1e-12)
    assert fit.shared == ("theta['b']", "theta['width']")
    found = fit.statistics()
    for name, x in errors.theta_stderr.items():
        np.testing.assert_allclose(host(found.theta_stderr[name]), x, rtol=1e-6)
    np.testing.assert_allclose(host(found.w_stderr).ravel(), errors.w_stderr, rtol=1e-6)
    np.testing.assert_allclose([np.sum(getattr(found, n)) for n in SUMS], [getattr(errors, n) for n in SUMS], rtol=1e-9)


def test_covariances_are_blocks_of_those_of_all():
    problem, over, _, errors = whole("in boxes")
    fit = xv.solve_many(problem, start(), over, tol=1e-11)
    found, C = fit.statistics(), errors.covariance
    for i in range(B):  # b, the two of own, width, then w
        at = [0, 1 + 2 * i, 2 + 2 * i, 1 + 2 * B, *range(2 + 2 * B + 3 * i, 5 + 2 * B + 3 * i)]
        np.testing.assert_allclose(found.covariance[i], C[np.ix_(at, at)], rtol=1e-6, atol=1e-15)
    assert "problems, medians" in repr(found)


def test_an_arrow_is_the_matrix_that_it_stands_for(backend):
    n, p, q = 4, 3, 2
    size, draw = n * p + q, rng(2)
    dense = np.zeros((size, size))
    for i in range(n):
        J, at = draw.normal(size=(6, p + q)), [*range(i * p, i * p + p), size - 2, size - 1]
        dense[np.ix_(at, at)] += J.T @ J
    blocks = [dense[i * p : i * p + p] for i in range(n)]
    own = np.stack([row[:, i * p : i * p + p] for i, row in enumerate(blocks)])
    cross = np.stack([row[:, -q:].T for row in blocks])
    arrow = Arrow(*(send(backend, x[None]) for x in (own, cross, dense[-q:, -q:])))
    x, added = draw.normal(size=(1, size)), draw.uniform(0.0, 2.0, (1, size))
    np.testing.assert_allclose(host(diagonal(backend.xp, arrow))[0], np.diagonal(dense))
    np.testing.assert_allclose(host(times(arrow, send(backend, x)))[0], dense @ x[0], rtol=1e-12, atol=1e-12)
    solved = host(solve_scaled(backend.xp, plus(backend.xp, arrow, send(backend, added)), send(backend, x)))
    np.testing.assert_allclose(solved[0], np.linalg.solve(dense + np.diag(added[0]), x[0]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_model_is_minimised_between_all_bounds(seed):
    """Against the same matrix in full, whose steps end at the first bound: a third of all entries end at one."""
    n, draw = 30, rng(seed)
    J = draw.normal(size=(n, 5, 4))
    H = J.mT @ J
    size = 3 * n + 1
    dense = np.zeros((size, size))
    for i in range(n):
        at = [3 * i, 3 * i + 1, 3 * i + 2, size - 1]
        dense[np.ix_(at, at)] += H[i]
    arrow = Arrow(H[None, :, :3, :3], H[None, :, 3:, :3], np.sum(H[:, 3:, 3:], axis=0)[None])
    region, numpy = resolve(xv.sets.Box(-0.2, 0.2), np.zeros(size)), xv.backends.get("numpy")
    x, grad = np.zeros((1, size)), draw.normal(size=(1, size))
    found, decrease = minimise_model(numpy, region, x, grad, arrow)
    slope = grad[0] + dense @ found[0]
    assert np.mean(np.abs(found) == 0.2) > 0.3
    np.testing.assert_allclose(np.clip(found[0] - slope, -0.2, 0.2), found[0], atol=1e-6)
    np.testing.assert_allclose(decrease[0], -grad[0] @ found[0] - 0.5 * found[0] @ dense @ found[0], rtol=1e-9)


def test_gradients_are_those_of_differences():
    prepared = prepare_shared(xv.separable(peaks, data(), data=T, lam=1e-2), start())
    f, x = prepared.assemble(prepared.problem, prepared.region), prepared.theta
    grad, h = f.local(x).grad[0], 1e-6
    for i in (0, 3, 2 * B, 2 * B + 1):
        step = h * (np.arange(x.shape[1]) == i)
        slope = (f.local(x + step).value - f.local(x - step).value)[0] / (2 * h)
        np.testing.assert_allclose(grad[i], slope, rtol=1e-6)


@pytest.mark.parametrize("dead", ["NaN", "no weight"])
def test_a_problem_without_data_is_left_out_of_the_sum(dead):
    y, weights, kept = data().copy(), np.ones((B, T.size)), np.arange(B) != 2
    if dead == "NaN":
        y[2, 7] = np.nan
    else:
        weights[2] = 0.0
    fit = xv.solve_many(xv.separable(peaks, y, data=T, weights=weights), start(), tol=1e-10)
    rest = xv.solve_many(xv.separable(peaks, y[kept], data=T), start(B - 1), tol=1e-10)
    assert fit.ended(xv.Status.NO_DATA).tolist() == [2]
    np.testing.assert_allclose(fit.theta["own"][kept], rest.theta["own"], rtol=1e-8)
    np.testing.assert_allclose(fit.theta["width"], rest.theta["width"], rtol=1e-8)
    errors = fit.statistics()
    np.testing.assert_allclose(errors.theta_stderr["width"], rest.statistics().theta_stderr["width"], rtol=1e-6)
    assert np.isnan(errors.theta_stderr["own"][2]).all()
    assert errors.reasons["w is NaN or inf"].tolist() == [2]


def test_more_starts_keep_the_lowest_end_of_all():
    far = {"own": np.array([[4.5, 3.0]]), "width": np.array([0.9]), "b": np.array([[0.1]])}
    problem, best = xv.separable(peaks, data(), data=T), whole("free")[2]
    first = start() | {"own": Each(np.tile(far["own"], (B, 1))), "width": far["width"][0]}
    more = {"own": np.array([[4.5, 1.1]]), "width": np.array([0.22]), "b": np.array([[0.4]])}
    fit = xv.solve_many(problem, first, starts=more)
    np.testing.assert_allclose(fit.value.sum(), best.value, rtol=1e-9)
    frame = fit.to_frame()
    assert frame["width"].nunique() == frame["width_stderr"].nunique() == 1
    assert len(frame) == B


def test_all_marked_is_none_marked():
    theta0 = {"own": np.tile([4.5, 1.1], (B, 1)), "width": np.full(B, 0.22), "b": np.full((B, 1), 0.4)}
    problem = xv.separable(peaks, data(), data=T)
    marked = xv.solve_many(problem, {name: Each(x) for name, x in theta0.items()}, chunks=2)
    np.testing.assert_allclose(marked.theta["own"], xv.solve_many(problem, theta0).theta["own"], rtol=1e-6)
    assert marked.shared == ()


def test_what_cannot_be_shared_is_refused(subtests):
    spread = xv.sets.Box(Each(np.linspace(0.0, 0.1, B)), 1.0)
    bad = {
        "chunks= and order= take them apart": {"chunks": 2},
        "one problem at a time": {"loss": xv.losses.Cauchy(0.1)},
        "free or in a Box": {"over": {"own": xv.sets.LinfBall(20.0), "width": None, "b": None}},
        "must be the same for all": {"over": {"own": None, "width": spread, "b": None}},
        "free or in a Box; got Free": {"over": xv.sets.Free(radius=2.0)},
        r"\. theta\['width'\], not marked, .* if its 5 entries": {"theta0": start() | {"width": np.ones(B)}},
        r"first axis; got theta\['own'\]": {"theta0": start() | {"own": Each(np.asarray(1.0))}},
    }
    dead = xv.solve_many(xv.separable(peaks, data() * np.nan, data=T), start())
    ridged = xv.solve_many(xv.separable(peaks, data(), data=T, lam=1e-3), start())
    for match, fit in (("got none", dead), ("without a ridge", ridged)):
        with subtests.test(match), pytest.raises(ProblemError, match=match):
            fit.statistics()
    for match, given in bad.items():
        options = {"theta0": start()} | given
        problem = xv.separable(peaks, data(), data=T, loss=options.pop("loss", None))
        with subtests.test(match), pytest.raises((ProblemError, ModelError), match=match):
            xv.solve_many(problem, options.pop("theta0"), **options)
