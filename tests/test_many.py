"""Batches: the answers of a loop, a status per problem, and no problem that another one can harm."""

import pickle
from functools import lru_cache

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.algorithms.levenberg_marquardt import Point, minimise_model
from xvarpro.batch import driver
from xvarpro.batch.driver import BatchState, _assessed
from xvarpro.batch.prepare import prepare
from xvarpro.driver.prepare import prepare as prepare_one
from xvarpro.objective.gauss_newton import Local, gauss_newton
from xvarpro.sets.region import resolve

from .support import decays, error, host, rng, send, send_tree, together

EPS = np.finfo(np.float64).eps
T = np.linspace(0.0, 2.0, 30)
BOX = xv.sets.Box(0.0, 20.0)


@lru_cache
def noisy(b=7, noise=1e-2, k=0, seed=0):
    draw = rng(seed)
    rates = np.stack([draw.uniform(0.5, 1.5, b), draw.uniform(3.0, 8.0, b)], axis=1)
    w = draw.uniform(0.5, 2.0, (b, 2, k or 1))
    y = np.exp(-rates[:, None, :] * T[:, None]) @ w
    y = y + noise * draw.normal(size=y.shape)
    return y if k else y[..., 0]


def start(b=7):
    return np.tile([0.7, 4.0], (b, 1))


@lru_cache
def looped(tol):
    fits = [xv.solve(xv.separable(decays, y, data={"t": T}), start(1)[0], over=BOX, tol=tol) for y in noisy()]
    return fits, [np.array([getattr(fit, name) for fit in fits]) for name in ("theta", "w", "value")]


def test_wide_designs_with_a_small_ridge_keep_their_digits_in_single_precision(backend):
    """Where the residual is a difference of the target, theta is off by up to 3e-3, and derivatives by twice that."""
    draw = rng(103)
    B, c, D, y = (draw.normal(size=shape) for shape in ((4, 12), (1, 12), (4, 12), 4))

    def waves(theta, data):
        xp = xv.array_namespace(theta)
        return (
            data["B"] * xp.cos(theta[..., :1, None] * data["c"]) + xp.sin(theta[..., 1:, None] * data["c"]) * data["D"]
        )

    def found(dtype):
        data = {name: x.astype("float32").astype(dtype) for name, x in (("B", B), ("c", c), ("D", D))}
        targets = np.stack([y, y + 1e-3]).astype("float32").astype(dtype)
        problem = xv.separable(waves, targets, data=data, lam=1e-6)
        theta0 = np.full((2, 2), 0.1, dtype)
        return xv.solve_many(problem, theta0, over=xv.sets.Box(-3.0, 3.0), tol=1e-9, backend=backend)

    single, double = found("float32"), found("float64")
    np.testing.assert_allclose(host(single.theta), host(double.theta), atol=2e-4)
    np.testing.assert_allclose(host(single.w), host(double.w), atol=2e-4)
    np.testing.assert_allclose(host(single.value), host(double.value), rtol=1e-5)


def test_equals_a_loop_of_solves(backend):
    _, (theta, w, value) = looped(1e-11)
    fit = xv.solve_many(xv.separable(together, noisy(), data={"t": T}), start(), over=BOX, tol=1e-11, backend=backend)
    assert fit.success.all()
    np.testing.assert_allclose(host(fit.value), value, rtol=1e-10)
    np.testing.assert_allclose(host(fit.theta), theta, rtol=1e-5)
    np.testing.assert_allclose(host(fit.w), w, rtol=1e-4)


def mixtures(theta, K):
    """``sum_s theta_s K_s``, shape (b, m, n)."""
    return xv.array_namespace(theta).tensordot(theta, K, axes=((1,), (0,)))


def mixture(theta, K):
    """One problem of them."""
    return xv.array_namespace(theta).tensordot(theta, K, axes=1)


def test_a_simplex_per_problem(backend):
    draw = rng(3)
    K = draw.normal(size=(5, 20, 3))
    mixed = np.einsum("bs,smn,bn->bm", draw.dirichlet(np.full(5, 0.3), 6), K, draw.normal(size=(6, 3)))
    y = mixed + 0.05 * draw.normal(size=(6, 20))
    theta0, over = np.full((6, 5), 0.2), xv.sets.Simplex()
    problem = xv.separable(mixtures, y, data=K, lam=1e-3)
    fit = xv.solve_many(problem, theta0, over=over, tol=1e-9, backend=backend)
    assert fit.success.all()
    assert np.abs(host(fit.theta).sum(axis=1) - 1).max() <= 1e-12
    assert (host(fit.theta) < 1e-12).any()
    same = 0
    for i in range(6):
        one = xv.separable(mixture, y[i], data=K, lam=1e-3)
        at_fit, gradient = xv.value_and_gradient(one, host(fit.theta)[i])
        assert float(at_fit) == pytest.approx(host(fit.value)[i], rel=1e-11)
        gap = gradient @ host(fit.theta)[i] - gradient.min()
        assert gap <= 1e-7 * at_fit
        single = xv.solve(one, theta0[i], over=over, tol=1e-9)
        same += abs(float(at_fit) - single.value) <= 1e-8 * single.value
    assert same >= 5  # the problems are not convex: another method may end in another minimum


# -- problems that fail, together with some that do not ----------------------------------------------------------------


def test_a_status_per_problem(backend):
    y, theta0 = np.array(noisy()), start()
    y[1, 3] = np.nan
    y[2] = 0.0
    y[4, 0] = np.inf
    theta0[5] = [2.0, 2.0]
    fit = xv.solve_many(xv.separable(together, y, data={"t": T}), theta0, over=BOX, tol=1e-9, backend=backend)
    bad = {1: xv.Status.NO_DATA, 4: xv.Status.NO_DATA, 5: xv.Status.RANK_DEFICIENT}
    assert [xv.Status.of(code) for code in fit.status] == [bad.get(i, xv.Status.CONVERGED) for i in range(7)]
    assert fit.counts == {xv.Status.CONVERGED: 4, xv.Status.NO_DATA: 2, xv.Status.RANK_DEFICIENT: 1}
    assert "{Status.CONVERGED: 4, " in str(fit.counts)
    assert fit.ended(xv.Status.NO_DATA).tolist() == [1, 4]
    assert (fit.status == xv.Status.NO_DATA).nonzero()[0].tolist() == [1, 4]
    assert (fit.status != xv.Status.NO_DATA).sum() == 5
    with pytest.raises(xv.errors.ProblemError, match="errors=False"):
        pickle.loads(pickle.dumps(fit)).to_frame()
    assert np.isnan(host(fit.theta)[[1, 4]]).all()
    assert host(fit.value)[2] == 0
    assert fit.n_iter[[1, 2, 4, 5]].max() == 0
    assert np.isnan(host(fit.value)[list(bad)]).all()
    clean = xv.solve_many(xv.separable(together, noisy(), data={"t": T}), start(), over=BOX, tol=1e-9, backend=backend)
    for name in ("theta", "w", "value", "gap_A", "condition"):
        alone, among = (host(getattr(x, name))[[0, 3, 6]] for x in (clean, fit))
        np.testing.assert_allclose(among, alone, rtol=1e-5, atol=1e-9)
    assert "first: 1, 4" in str(fit)
    assert repr(fit) == "ManyResult(7 problems: 4 CONVERGED, 2 NO_DATA, 1 RANK_DEFICIENT)"


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_those_that_have_ended_are_left_out_and_the_others_go_on(name):
    """Each with its own data, ridge and target; a size at which a compiled loop is made smaller too."""
    b = 2000 if name == "jax" else 200
    draw = rng(4)
    data = {"t": xv.Each(T * draw.uniform(0.8, 1.2, (b, 1))), "name": "decay"}
    lam, theta0 = draw.uniform(1e-6, 1e-3, b), start(b) * draw.uniform(0.5, 2.0, (b, 2))
    problem = xv.separable(together, noisy(b), data=data, lam=lam)
    early, late = (
        xv.solve_many(problem, theta0, over=BOX, tol=1e-9, max_iter=n, backend=name, dtype="float64") for n in (9, 300)
    )
    done = early.success
    assert 0.1 * b < done.sum() < 0.9 * b
    assert set(early.counts) == {xv.Status.CONVERGED, xv.Status.MAX_ITER}
    assert (early.n_iter[~done] == 9).all()
    assert late.success.all()
    np.testing.assert_array_equal(early.n_iter[done], late.n_iter[done])
    np.testing.assert_allclose(host(early.theta)[done], host(late.theta)[done], rtol=1e-9)
    for i in (0, 13, 39, int(np.argmax(late.n_iter))):
        one = xv.separable(decays, noisy(b)[i], data={"t": data["t"].array[i]}, lam=lam[i])
        value, _ = xv.value_and_gradient(one, host(late.theta)[i])
        assert float(value) == pytest.approx(host(late.value)[i], rel=1e-9)


def test_blocks_are_solved_as_one_batch_and_keep_what_they_had_when_interrupted(monkeypatch, backend):
    data = {"t": xv.Each(T * rng(4).uniform(0.8, 1.2, (23, 1)))}
    problem, theta0 = xv.separable(together, noisy(23), data=data), start(23)

    def solved(**options):
        return xv.solve_many(problem, theta0, over=BOX, tol=1e-9, backend=backend, **options)

    at_once = solved()
    monkeypatch.setattr(driver, "AT_ONCE", 7 * T.size * 2)
    monkeypatch.setattr(driver, "SMALLEST", 1)
    whole, sizes = driver.Run._of, []

    def counted(run, members):
        sizes.append(len(members))
        if len(sizes) == 7:
            raise KeyboardInterrupt
        return whole(run, members)

    in_blocks = solved()
    np.testing.assert_array_equal(in_blocks.status, at_once.status)
    np.testing.assert_array_equal(in_blocks.n_iter, at_once.n_iter)
    np.testing.assert_allclose(host(in_blocks.theta), host(at_once.theta), rtol=1e-9)
    monkeypatch.setattr(driver.Run, "_of", counted)
    with pytest.raises(KeyboardInterrupt) as caught:
        solved()
    assert max(sizes) == 7
    done = caught.value.result.n_iter > 0
    assert (done[:7].all(), done[14:].any()) == (True, False)


@pytest.mark.parametrize("b", [0, 1])
def test_a_batch_of_one_and_of_none(backend, b):
    problem = xv.separable(together, noisy()[:b], data={"t": T})
    fit = xv.solve_many(problem, start(b), over=BOX, tol=1e-9, backend=backend)
    assert len(fit) == b
    assert (fit.theta.shape, fit.w.shape, fit.value.shape, fit.condition.shape) == ((b, 2), (b, 2), (b,), (b,))
    assert fit.success.all()
    assert str(fit).startswith(f"{b} problems in ")
    if b:
        np.testing.assert_allclose(host(fit.value)[0], looped(1e-11)[1][2][0], rtol=1e-8)


def test_float32(backend):
    y, theta0 = noisy().astype(np.float32), start().astype(np.float32)
    problem = xv.separable(together, y, data={"t": T.astype(np.float32)})
    fit = xv.solve_many(problem, theta0, over=BOX, tol=1e-3, backend=backend)
    assert host(fit.theta).dtype == host(fit.w).dtype == np.float32
    # how close to rounding a gap comes depends on the instructions: what is left has to be rounding, and say so
    assert len(fit.ended(xv.Status.CONVERGED)) + len(fit.ended(xv.Status.NO_DESCENT)) == len(fit.success)
    assert np.mean(fit.success) > 0.5
    np.testing.assert_allclose(host(fit.value), looped(1e-11)[1][2], rtol=2e-3)


# -- derivatives -------------------------------------------------------------------------------------------------------


def two_leaves(theta, data):
    """A design (b, 8, 3) of two leaves."""
    xp = xv.array_namespace(theta)
    phase = xp.expand_dims(theta["a"], axis=1) * data[None, :, None]
    return xp.sin(phase) + xp.expand_dims(theta["c"][:, :, 0] * theta["c"][:, :, 1], axis=1)


def other_design(theta, data):
    return two_leaves(theta, data * 1.3)


def moving(theta, data):
    xp = xv.array_namespace(theta)
    return xp.cos(theta["a"][:, :1] * data[None, :])


def penalty(theta):
    xp = xv.array_namespace(theta)
    return xp.sum(theta["a"] ** 4, axis=1)


X = np.linspace(0.3, 3.0, 8)
THETA = {"a": rng(5).uniform(0.5, 2.0, (4, 3)), "c": rng(6).uniform(0.5, 1.5, (4, 3, 2))}
OMEGA = np.eye(3) + 0.2 * rng(7).normal(size=(3, 3))
TARGETS = rng(8).normal(size=(2, 4, 8, 2))
LAM = np.array([0.0, 0.1, 0.2, 0.4])


def stated(kind):
    """The same problems as a batch, and each by itself with a leading axis of length 1."""
    return {
        "separable": lambda at: xv.separable(two_leaves, TARGETS[0][at, :, 0], data=X),
        "ridged": lambda at: xv.separable(two_leaves, TARGETS[0][at], data=X, lam=LAM[at], Omega=OMEGA),
        "penalised": lambda at: xv.separable(two_leaves, moving, data=X, lam=0.2, R=penalty, mu=0.1),
        "bilevel": lambda at: xv.bilevel(
            lower=xv.Level(two_leaves, TARGETS[0][at], LAM[at] + 0.1, OMEGA),
            upper=xv.Level(other_design, TARGETS[1][at]),
            data=X,
        ),
        "both ridged": lambda at: xv.bilevel(
            lower=xv.Level(two_leaves, moving, 0.3), upper=xv.Level(other_design, TARGETS[1][at, :, 0], 0.2, OMEGA),
            data=X,
        ),
    }[kind]  # fmt: skip


def single(kind, i):
    """Problem i in the form that `xv.solve` takes."""

    def alone(fun):
        return lambda theta, *data: fun({k: theta[k][None, ...] for k in theta}, *data)[0, ...]

    def level(level):
        lam = float(level.lam[0]) if np.ndim(level.lam) else level.lam
        return xv.Level(alone(level.M), alone(level.y) if callable(level.y) else level.y[0], lam, level.Omega)

    problem = stated(kind)(slice(i, i + 1))
    lower = level(problem.lower)
    if problem.upper is not None:
        return xv.bilevel(lower=lower, upper=level(problem.upper), data=X)
    R = problem.R and alone(problem.R)
    return xv.separable(lower.M, lower.y, data=X, lam=lower.lam, Omega=lower.Omega, R=R, mu=problem.mu)


@pytest.mark.parametrize("kind", ["separable", "ridged", "penalised", "bilevel", "both ridged"])
def test_gradients_and_gauss_newton_matrices_are_those_of_the_problems_by_themselves(backend, kind):
    prepared = prepare(stated(kind)(slice(None)), THETA, backend=backend)
    f, x = prepared.assemble(prepared.problem, prepared.region), prepared.theta
    with backend.scope("float64"):
        local = f.local(x)
    for i in range(4):
        theta = {k: v[i] for k, v in THETA.items()}
        value, gradient = xv.value_and_gradient(single(kind, i), theta)
        assert host(local.value)[i] == pytest.approx(float(value), rel=1e-12)
        assert error(host(local.grad)[i], np.concatenate([gradient["a"], gradient["c"].ravel()])) <= 1e-11
        if kind != "penalised":
            one = prepare_one(single(kind, i), theta)
            assert error(host(local.curvature)[i], gauss_newton(one.assemble(one.problem), one.theta)[2]) <= 1e-10


def test_vertices_where_nothing_projects(backend):
    theta0, over = np.full((3, 3), 1 / 3), xv.sets.Oracle(xv.sets.Simplex().lmo, width=2.0)
    problem = xv.separable(mixtures, rng(1).normal(size=(3, 12)), data=rng(2).normal(size=(3, 12, 2)))
    fit = xv.solve_many(problem, theta0, over=over, tol=5e-3, max_iter=2000, backend=backend)
    assert fit.success.all()
    best = xv.solve_many(problem, theta0, over=xv.sets.Simplex(), tol=1e-9, backend=backend)
    np.testing.assert_allclose(host(fit.value), host(best.value), rtol=5e-3)


def test_many_parameters():
    theta0 = np.full((3, 40), 1 / 40)
    problem = xv.separable(mixtures, rng(1).normal(size=(3, 60)), data=rng(2).normal(size=(40, 60, 2)), lam=0.1)
    fit = xv.solve_many(problem, theta0, over=xv.sets.Simplex(), tol=1e-6)
    assert fit.success.all()


def test_leaves_of_two_kinds(backend):
    """Rates under bounds and a shift that is free: both parts of the gap, and a tree back."""

    def M(theta, data):
        xp = xv.array_namespace(theta)
        return together(theta["rate"], data) + xp.expand_dims(theta["shift"], axis=2)

    theta0 = {"rate": start(), "shift": np.zeros((7, 1))}
    y = noisy(noise=0.0) + 0.3
    problem = xv.separable(M, y, data={"t": T})
    fit = xv.solve_many(problem, send_tree(backend, theta0), over={"rate": BOX}, tol=1e-10, max_iter=500)
    assert set(fit.theta) == {"rate", "shift"}
    assert xv.backends.of(fit.theta["shift"]) is backend
    assert fit.success.all()
    assert (host(fit.value) <= 1e-9).all()
    assert (host(fit.gap_B) >= 0).all()


@pytest.mark.parametrize("C", [xv.sets.Simplex(2.0), xv.sets.L1Ball(3.0), xv.sets.L2Ball(2.0), xv.sets.Box(-0.5, 0.5)])
def test_a_model_is_minimised_over_the_set(backend, C):
    """Against the variational inequality of the minimum: <slope, v - x> >= 0 for all v."""
    draw, b, p = rng(0), 20, 4
    A = draw.normal(size=(b, 6, p)) * np.array([1.0, 10.0, 0.1, 3.0])
    B, g = A.mT @ A + 1e-3 * np.eye(p), 10 * draw.normal(size=(b, p))
    regions = resolve(C, np.zeros(p))
    theta = C.project(draw.normal(size=(b, p)))
    with backend.scope("float64"):
        x, decrease = minimise_model(backend, regions, *(send(backend, a) for a in (theta, g, B)))
    x, decrease = host(x), host(decrease)
    slope = g + np.einsum("bij,bj->bi", B, x - theta)
    gap = np.sum(slope * (x - C.lmo(slope)), axis=1)
    assert float(np.max(C.violation(x))) <= 1e-12
    np.testing.assert_allclose(decrease, -np.sum((g + slope) * (x - theta), axis=1) / 2, rtol=1e-8)
    share = 1e-2 if not C.has_faces else 1e-6  # without faces a model is minimised roughly, by its gradient alone
    assert (gap <= share * decrease).all()


# -- what is refused ---------------------------------------------------------------------------------------------------


def coupled(theta, data):
    xp = xv.array_namespace(theta)
    return together(theta - 1e-3 * xp.mean(theta, axis=0, keepdims=True), data)


BAD = {
    r"one entry per problem .* mark the others, xv\.Each": (lambda: {"theta0": {"a": np.ones(7), "b": np.ones(())}}),
    r"IndexError: too many indices.* shape \(7,\), but 2 were": lambda: {
        "M": lambda theta, data: theta[:, None, :] * T[:, None],
        "theta0": np.ones(7),
        "over": None,
    },
    r"\(b, m\) or \(b, m, k\) with b = 7.* first axis of theta0": lambda: {"y": noisy()[:3]},
    r"b = 2, or 1.* np\.tile\(start": lambda: {"theta0": start()[0], "over": xv.sets.Box([0.0] * 2, [20.0] * 2)},
    "function M must return an array; got NoneType": lambda: {"M": lambda theta, data: None},
    r"M must return \(b, m, n\)": lambda: {"M": lambda theta, data: together(theta, data)[0]},
    "same number of rows": lambda: {"y": noisy()[:, :5]},
    "finite numbers >= 0": lambda: {"lam": np.array([1.0, -1, 1, 1, 1, 1, 1])},
    r"lam must have shape \(b,\)": lambda: {"lam": np.ones(3)},
    r"lam must be .* or \(b, 2, 1\); got \(7, 2\)": lambda: {"lam": np.ones((7, 2))},
    "Omega must have shape": lambda: {"lam": 1.0, "Omega": np.eye(3)},
    "leave out solver": lambda: {"solver": xv.lower.SVD()},
    "R must return one number per problem": lambda: {"R": lambda theta: theta * theta, "mu": 1.0},
    "first axis has b = 7": lambda: {"data": {"t": xv.Each(T)}},
    r"marked, xv.Each\(array\)": lambda: {"data": {"t": np.tile(T, (7, 1))}},
    r"in data, too, must be marked, xv.Each": lambda: {"data": {"t": np.tile(T, (7, 1))}, "chunks": 3},
    "changes with the": lambda: {"M": coupled},
    "must be feasible": lambda: {"theta0": start() + 30},
    r"theta must be finite; got NaN or inf at index \[0, 0\]": lambda: {"theta0": start() * np.nan},
    "w is not unique": lambda: {"M": lambda theta, data: together(theta, data)[:, :1, :], "y": noisy()[:, :1]},
    "Omega must be finite": lambda: {"lam": 1.0, "Omega": np.full((2, 2), np.nan)},
    "tol must be": lambda: {"tol": -1.0},
    "max_iter must be": lambda: {"max_iter": 1.5},
    "method must be": lambda: {"method": xv.algorithms.FrankWolfe()},
    "in pieces": lambda: {"y": xv.ColumnChunks(lambda: iter([noisy()]))},
    "norms.L2": lambda: {"over": xv.sets.Free(norm=xv.sets.norms.Sign())},
}


def test_what_does_not_fit_is_refused(subtests):
    for match, wrong in BAD.items():
        given = {"M": together, "y": noisy(), "data": {"t": T}, "theta0": start(), "over": BOX} | wrong()
        options = {k: given.pop(k) for k in ("theta0", "over", "tol", "max_iter", "method", "chunks") if k in given}
        if isinstance(options["theta0"], dict):
            options["over"] = None
        expected = pytest.raises((xv.errors.ProblemError, xv.errors.ModelError), match=match)
        with subtests.test(match), expected:
            xv.solve_many(xv.separable(given.pop("M"), given.pop("y"), **given), **options)


def test_starts_projected_one_by_one_are_accepted():
    """As the message advises; a batch of points is not one point of a vector set."""
    theta0, over = np.full((7, 2), 3.0), xv.sets.Simplex()
    problem = xv.separable(together, noisy(), data={"t": T}, lam=1e-3)
    with pytest.raises(xv.errors.ProblemError, match=r"xv.project\(theta, over\) .* of a single problem"):
        xv.solve_many(problem, theta0, over=over)
    projected = np.stack([xv.project(theta, over) for theta in theta0])
    assert len(xv.solve_many(problem, projected, over=over, max_iter=1)) == 7


def test_a_batch_is_refused_by_solve():
    for keywords in ({"y": noisy(k=2)}, {"y": noisy(), "lam": np.ones(7)}):
        problem = xv.separable(together, keywords.pop("y"), data={"t": T}, **keywords)
        with pytest.raises(xv.errors.ProblemError, match="solve_many"):
            xv.solve(problem, start())


# -- units and accuracy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("over", [None, BOX])
def test_units_of_targets_do_not_count(backend, over, dtype):
    """Problems of one batch with targets of 1e-80 .. 1e80, in single precision of 1e-12 .. 1e12."""
    y = np.array(noisy(), dtype=dtype)
    sizes = np.logspace(-80, 80, 7) if dtype == "float64" else np.logspace(-12, 12, 7)
    sizes = 2.0 ** np.round(np.log2(sizes))  # exact: the same digits
    theta0, t = start().astype(dtype), T.astype(dtype)

    def solved(y):
        return xv.solve_many(xv.separable(together, y, data={"t": t}), theta0, over=over, backend=backend)

    want, got = solved(y), solved((y * sizes[:, None]).astype(dtype))
    assert want.success.all()
    assert got.status.tolist() == want.status.tolist()
    assert got.n_iter.tolist() == want.n_iter.tolist()
    assert error(got.theta, host(want.theta)) <= 10 * np.finfo(dtype).eps
    np.testing.assert_allclose(host(got.w) / sizes[:, None], host(want.w), rtol=1e-5)
    if dtype == "float64":
        np.testing.assert_allclose(host(got.value) / sizes**2, host(want.value), rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["free", "box", "one side", "bound"])
def test_units_of_theta_and_the_order_of_rows_do_not_count(backend, name, dtype):
    y, high = np.array(noisy()), 80 if dtype == "float64" else 12
    bounds = {
        "box": ([0.0, 0.0], [20.0, 20.0]),
        "one side": ([0.0, -np.inf], [np.inf, np.inf]),
        "bound": ([0.9, 0.0], [np.inf, 5.0]),
    }

    def solved(units, sizes, order):
        data = {"t": T[order].astype(dtype), "units": units.astype(dtype)}
        over = None if name == "free" else xv.sets.Box(*(np.array(x) / units for x in bounds[name]))
        y_there = (sizes[:, None] * y[:, order]).astype(dtype)
        problem = xv.separable(lambda theta, data: together(theta * data["units"], data), y_there, data=data)
        theta0 = (np.array([1.0, 4.0]) / units * np.ones((7, 1))).astype(dtype)
        return xv.solve_many(problem, theta0, over=over, backend=backend)

    want = solved(np.ones(2), np.ones(7), slice(None))
    assert want.success.all()
    for seed in range(3):
        draw = rng(seed)
        units, sizes = 10.0 ** draw.uniform(-8, 8, 2), 10.0 ** draw.uniform(-high, high, 7)
        got = solved(units, sizes, draw.permutation(len(T)))
        assert got.status.tolist() == want.status.tolist()
        assert (np.abs(got.n_iter - want.n_iter) <= np.maximum(2, want.n_iter / 4)).all()
        assert error(host(got.theta) * units, host(want.theta)) <= (1e-6 if dtype == "float64" else 2e-3)


def test_a_penalty_keeps_its_weight_in_other_units(backend):
    y = np.array(noisy())

    def pull(theta):
        return xv.array_namespace(theta).sum((theta - 2.0) ** 2, axis=1)

    def solved(size):
        problem = xv.separable(together, y * size, data={"t": T}, R=pull, mu=1e-2 * size**2)
        return xv.solve_many(problem, start(), over=BOX, tol=1e-9, backend=backend)

    want, got = solved(1.0), solved(2.0**200)
    assert got.n_iter.tolist() == want.n_iter.tolist()
    assert error(got.theta, host(want.theta)) <= 1e-9
    np.testing.assert_allclose(host(got.value) / 2.0**400, host(want.value), rtol=1e-12)


@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("units", [[1.0, 1.0, 1.0, 1.0], [1e-5, 1e8, 1.0, 1e-9]])
@pytest.mark.parametrize("spread", [1, 5, 8])
def test_weights_and_condition_are_those_of_solve(backend, spread, units, k):
    """Ill conditioned and badly scaled designs; units of the columns are no part of the condition."""
    draw = rng(spread)
    left, right = (np.linalg.qr(draw.normal(size=(b, m, 4)))[0] for b, m in ((3, 40), (3, 4)))
    A = left * np.logspace(0, -spread, 4) @ right * np.array(units)
    size = np.linalg.norm(A, axis=1)
    w = draw.normal(size=(3, 4, k or 1)) / size[..., None]
    y = A @ w + 1e-3 * draw.normal(size=(3, 40, k or 1))
    y = y if k else y[..., 0]
    many = xv.separable(lambda theta, A: A * theta[:, :, None], y, data=xv.Each(A))
    fit = xv.solve_many(many, np.ones((3, 1)), over=BOX, max_iter=0, backend=backend)
    for i in range(3):
        one = xv.solve(xv.separable(lambda theta, A: A * theta, y[i], data=A[i]), np.ones(1), max_iter=0)
        condition = one.verified.condition
        assert host(fit.condition)[i] == pytest.approx(condition, rel=1e-3)
        scale = size[i][:, None] if k else size[i]
        assert error(host(fit.w)[i] * scale, one.w * scale) <= 10 * EPS * condition


def test_a_model_that_loses_digits_ends_within_the_tolerance_as_well():
    """Values round by 200 times their epsilon, in ``1 - E``: no step lowers them by the little that is promised."""
    flip, draw, n = np.deg2rad([2.0, 4.0, 6.0, 8.0, 10.0, 14.0, 18.0, 24.0]), rng(5), 400

    def ernst(T1, _=None):
        E = xv.array_namespace(T1).exp(-5.0 / T1)
        return (xv.array_namespace(T1).sin(flip) * (1 - E) / (1 - E * np.cos(flip)))[..., None]

    y = 5e3 * ernst(draw.uniform(300, 1300, (n, 1)))[..., 0] + 2 * draw.normal(size=(n, 8))
    fit = xv.solve_many(xv.separable(ernst, y), np.full((n, 1), 800.0), xv.sets.Box(50.0, 5000.0))
    assert fit.counts == {xv.Status.CONVERGED: n}
    alone = [xv.solve(xv.separable(ernst, y[i]), np.array([800.0])).status for i in range(0, n, 50)]
    assert set(alone) == {xv.Status.CONVERGED}


def test_equal_terms_are_a_minimum_as_in_a_solve_of_one_problem():
    """Where two rates are one the Gauss-Newton matrix is singular: what it promises is rounding divided by nearly 0."""
    t = np.linspace(0.0, 2.0, 40)
    y, lam = np.exp(-3.0 * t) + 0.1 * np.sin(9 * t), 2.0
    problem = xv.separable(together, y[None, :], data={"t": t}, lam=lam)
    fit = xv.solve_many(problem, np.array([[1.0, 2.0]]), over=(0.1, 10.0))
    assert fit.success.all()
    assert error(fit.theta[:, 0], fit.theta[:, 1]) <= 1e-5
    value, grad = xv.value_and_gradient(xv.separable(decays, y, data={"t": t}, lam=lam), fit.theta[0])
    assert fit.value[0] == pytest.approx(value, rel=1e-13)
    assert np.abs(grad).max() <= 1e-6 * value


def test_a_rate_that_a_closed_weight_has_left_is_looked_for_anew(backend):
    """One decay is fitted by two: a loop finds a lower value with the second one at a bound."""
    draw = rng(1)
    y = np.exp(-draw.uniform(0.5, 1.5, (4, 1)) * T) + 1e-2 * draw.normal(size=(4, 30))
    problem = xv.many.lifted(xv.separable(decays, xv.Each(y[3:]), data={"t": T}, W=xv.lower.Nonnegative()))
    fit = xv.solve_many(problem, start(1), over=BOX, tol=1e-8, backend=backend)
    one = xv.solve(xv.separable(decays, y[3], data={"t": T}, W=xv.lower.Nonnegative()), start(1)[0], over=BOX, tol=1e-8)
    assert one.theta[1] == 20.0
    np.testing.assert_allclose(host(fit.theta)[0], one.theta, rtol=1e-7)


def test_rates_that_become_one_on_the_way_are_fitted_once_more_nearer_to_their_start():
    """Both weights at their bound: a first pass ends without descent, a relative 1e-7 from the minimum."""
    draw = rng(7)
    rates = np.stack([draw.uniform(0.5, 1.5, 60), draw.uniform(3.0, 8.0, 60)], axis=1)
    w = draw.uniform(0.8, 2.0, (60, 2, 1))
    y = (np.exp(-rates[:, None, :] * T[:, None]) @ w)[..., 0] + 1e-2 * draw.normal(size=(60, 30))
    problem = xv.separable(decays, xv.Each(y[6:7]), data={"t": T}, W=xv.lower.Bounded(0.0, 0.7))
    fit = xv.solve_many(xv.many.lifted(problem), start(1), over=BOX)
    assert fit.success.all()
    assert abs(fit.theta[0, 1] / fit.theta[0, 0] - 1) <= 2e-8


def test_rates_that_have_become_one_end_where_the_objective_bends_up():
    """Both weights at their bound: the Gauss-Newton matrix is singular, and 6 of 40 ended without a certificate."""
    draw = rng(0)
    rates = np.stack([draw.uniform(0.5, 1.5, 40), draw.uniform(3.0, 8.0, 40)], axis=1)
    y = np.exp(-rates[:, None, :] * T[:, None]).sum(axis=2) + 5e-2 * draw.normal(size=(40, 30))
    problem = xv.separable(together, y, data={"t": T}, W=xv.lower.Bounded(0.0, 0.6))
    fit = xv.solve_many(problem, start(40), over=BOX, tol=1e-9)
    assert (fit.status == xv.Status.CONVERGED.code).all()


def assessed(x, g, of, lowest, tol):
    """What ends without descent at x, (b, 1), in [lowest, 1] are: slopes there are g, and `of` gives gradients."""
    one, zero = np.ones(len(x)), np.zeros(len(x))

    class Objective:
        region = resolve(xv.sets.Box(lowest, 1.0), x[0])

        def local(self, at):
            return Local(one, of(at), 0 * at[:, :, None], one < 0)

    f, code = Objective(), np.full(len(x), xv.Status.NO_DESCENT.code)
    point = Point(x, f.local(x), g * (x[:, 0] - lowest), zero, one, None, zero)
    found = _assessed(f, np.asarray(tol), BatchState(point, one, code, zero), code)
    return [xv.Status.of(c) for c in found]


def test_an_end_without_descent_is_a_success_below_the_squared_tolerance():
    """Of parabolas 1/2 K (x - c)^2 the slopes are given: g^2 / (2 K) is left to gain, and the gap is g x."""
    g, K = 1e-3 * np.array([2**0.5 * 0.999, 2**0.5 * 1.001, 1.999, 2.001]), np.array([1.0, 1.0, 1e4, 1e4])
    x = np.full((4, 1), 0.5)
    found = assessed(x, g, lambda at: g[:, None] + K[:, None] * (at - x), 0.0, 1e-3)
    assert found == [xv.Status.CONVERGED, xv.Status.NO_DESCENT] * 2


def test_an_end_next_to_a_vertex_is_not_bent_up_by_rounding_of_gradients():
    """A slope of 1e-2 promises 5e-10 on the way to a vertex at 5e-8, where rounding of it is 1e-4."""
    x = np.array([[0.5 + 5e-8]])
    found = assessed(x, np.array([1e-2]), lambda at: np.where(at == x, 1e-2, 1e-2 - 1e-4), 0.5, 1e-6)
    assert found == [xv.Status.NO_DESCENT]


def test_more_starts_keep_the_lowest_end_of_each(backend):
    """A frequency that starts far from its own ends in another minimum."""
    t, rates = np.linspace(0.0, 6.0, 40), np.array([[1.0], [2.5], [4.0]])

    def waves(theta, data):
        xp = xv.array_namespace(theta)
        return xp.cos(xp.expand_dims(theta, axis=1) * data[None, :, None])

    y = 2.0 * np.cos(rates * t)
    y[2] = np.nan
    problem = xv.separable(waves, y, data=t)
    one = xv.solve_many(problem, np.full((3, 1), 1.1), backend=backend)
    fit = xv.solve_many(problem, np.full((3, 1), 1.1), starts=np.array([[2.3], [0.2]]), backend=backend)
    assert np.max(np.abs(host(one.theta)[:2] - rates[:2])) > 0.5
    np.testing.assert_allclose(host(fit.theta)[:2], rates[:2], atol=1e-6)
    np.testing.assert_allclose(host(fit.w)[:2], 2.0, atol=1e-6)
    assert fit.ended(xv.Status.NO_DATA).tolist() == [2]
    assert (fit.n_iter >= one.n_iter).all()
    assert np.isfinite(host(fit.statistics().chi2)[:2]).all()
    with pytest.raises(xv.errors.ProblemError, match=r"all problems share, in leaves of shape \(s, 1\)"):
        xv.solve_many(problem, np.full((3, 1), 1.1), starts=np.ones(2))
