"""The driver: how a solve ends, what it hands back, and what it leaves alone."""

import gc
import pickle
import re
import sys
import time
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import Status
from xvarpro.core import trees
from xvarpro.core.namespace import device
from xvarpro.operators.interface import Operator
from xvarpro.sets import Box, L1Ball

from .support import (
    HOST_BACKENDS,
    SIGNAL,
    Quarter,
    T,
    decay_problem,
    decays,
    dictionary_problem,
    dictionary_start,
    error,
    host,
    host_tree,
    rng,
    send,
    send_tree,
    vector,
)

START = np.array([0.5, 8.0])
BOX = Box(0.0, 10.0)
PAPER = xv.algorithms.cr_varpro()
FAST = xv.algorithms.SpectralProjectedGradient()  # to compile
SIMPLE = xv.algorithms.FrankWolfe(Quarter())  # the same, where any method will do


def solve(problem=None, theta0=START, **keywords):
    return xv.solve(problem or decay_problem(noise=0.05), theta0, **{"over": BOX, **keywords})


def test_time_limit(backend):
    def slow(theta, data):
        if backend.name != "jax":
            time.sleep(0.005)
        return decays(theta, data)

    problem = xv.separable(slow, SIGNAL, data={"t": T}, solver=xv.lower.SVD())
    fit = solve(problem, backend=backend.name, algorithm=SIMPLE, tol=0.0, max_iter=10**6, time_limit=0.1)
    assert fit.status is Status.TIME_LIMIT
    assert 0.1 <= fit.seconds < 20.0  # 2.1 were seen next to other programs
    none = solve(problem, backend=backend.name, algorithm=SIMPLE, time_limit=0)
    assert (none.status, none.n_iter) == (Status.TIME_LIMIT, 0)


# -- how it ends -------------------------------------------------------------------------------------------------------


def test_callback_sees_every_iterate_and_can_stop(backend):
    seen = []

    def callback(info):
        seen.append((info.iteration, info.value, info.gap_A, info.alpha_A, info.seconds, host(info.theta)))
        return info.iteration == 4

    problem = decay_problem(noise=0.05, solver=xv.lower.SVD())
    fit = solve(problem, backend=backend.name, callback=callback, tol=0.0, algorithm=PAPER)
    assert fit.status is Status.STOPPED
    assert fit.n_iter == 4
    assert [s[0] for s in seen] == [1, 2, 3, 4]
    assert [s[1] for s in seen] == fit.trace.value[1:].tolist()
    assert [s[2] for s in seen] == fit.trace.gap_A[1:].tolist()
    assert [s[3] for s in seen] == fit.trace.alpha_A[1:].tolist()
    assert (seen[-1][-1] == host(fit.theta)).all()


def test_a_moment_has_the_weights_of_its_own_iteration(backend):
    """For the target as given, in its own units and shape, of one that was compressed too."""
    wide = rng(3).normal(size=(T.size, 200))
    for y, name in ((1e100 * SIGNAL, "vector"), (wide, "compressed")):
        problem, moments = xv.separable(decays, y, data={"t": T}, lam=1e-3), []
        start = send(backend, np.array([0.5, 3.0]))
        fit = xv.solve(problem, start, over=xv.sets.Box(0.0, 9.0), callback=moments.append, max_iter=2, tol=0.0)
        assert fit.provenance["compressed"] == (name == "compressed")
        for m in moments:
            assert type(m.w) is type(start)
            assert error(m.w, xv.solve_lower(problem, m.theta).w) < 1e-9
        assert error(moments[-1].w, fit.w) < 1e-9


def twins(theta, data):
    """Two equal columns at every theta."""
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * xp.stack([theta[0], theta[0]]))


def test_loss_of_rank_is_a_status(backend):
    fit = solve(xv.separable(twins, SIGNAL, data={"t": T}), algorithm=SIMPLE, backend=backend.name)
    assert fit.status is Status.RANK_DEFICIENT
    assert "linearly dependent" in fit.message
    assert "lam > 0" in fit.message


@dataclass(frozen=True)
class Liar(Operator):
    """A design whose `outer` has the wrong sign: the gradient does not belong to the objective."""

    array: object = None
    shape = property(lambda self: self.array.shape)

    def matvec(self, w):
        return self.array @ w

    def rmatvec(self, r):
        return self.array.mT @ r

    def outer(self, r, w):
        return Liar(-(r @ w.mT))

    def dense(self):
        return self.array


@pytest.mark.parametrize("status", list(Status))
def test_every_status_is_a_sentence_with_advice_and_two_are_success(status):
    assert status.sentence.endswith(".")
    assert status.advice.endswith(".")
    assert status.success == (status in (Status.CONVERGED, Status.ROUNDING))
    assert Status.of(status.code) is status
    assert pickle.loads(pickle.dumps(status)) is status
    assert f"{status}" == f"Status.{status.name}"


ALGORITHMS = [PAPER, None, *(k() for k in (xv.algorithms.FrankWolfe, xv.algorithms.AcceleratedProjectedGradient))]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_a_gradient_that_lies_ends_in_no_descent(algorithm):
    y = SIGNAL + 0.05 * rng(1).normal(size=T.size)
    problem = xv.separable(lambda theta, data: Liar(decays(theta, data)), y, data={"t": T})
    fit = solve(problem, algorithm=algorithm, max_iter=20)
    assert fit.status is Status.NO_DESCENT
    assert "does not belong to the objective" in fit.message
    assert fit.theta == pytest.approx(START, rel=1e-9)


@pytest.mark.parametrize("status", [Status.NO_DESCENT, Status.STALLED, Status.MAX_ITER])
@pytest.mark.parametrize("condition", [1e3, 1e6])
def test_columns_that_become_equal_are_named_where_nothing_descends(status, condition):
    """As of two rates that are fitted to one decay."""
    fit = solve()
    fit = replace(fit, status=status, verified=replace(fit.verified, condition=condition))
    stuck = status is not Status.MAX_ITER and condition == 1e6
    assert fit.message.endswith("as by xv.multistart." if stuck else status.advice)
    assert ("nearly dependent there, condition 1.0e+06" in str(fit)) is stuck


# -- what it reports ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "start", "shared"),
    [
        (PAPER, 1, 0),
        (xv.algorithms.SpectralProjectedGradient(), 2, 1),
        (xv.algorithms.AcceleratedProjectedGradient(), 2, 2),
    ],
    ids=["paper", "spectral", "accelerated"],
)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_model_calls_are_what_the_counts_say(algorithm, start, shared, backend):
    """Gradients at the start reuse its value; so does, per iteration, the gradient where the last trial was."""
    calls = []

    def counted(theta, data):
        calls.append(1)
        return decays(theta, data)

    problem = xv.separable(counted, SIGNAL + T, data={"t": T})
    fit = solve(problem, algorithm=algorithm, max_iter=6, tol=0.0, backend=backend)
    shapes, repeated, verification = 1, 1, 1
    reused = start + shared * fit.n_iter
    expected = fit.counts.values + fit.counts.gradients - reused + shapes + repeated + verification
    assert len(calls) == expected


def test_provenance(backend):
    found = solve(backend=backend.name, max_iter=1).provenance
    assert found["backend"] == backend.name
    assert found["dtype"] == "float64"
    assert found["device"] in map(str, backend.devices().values())
    assert found["xvarpro"] == xv.__version__
    assert found["compressed"] is False
    assert found["framework"]
    assert all(isinstance(x, str | int | bool) for x in found["framework"].values())


def test_dead_units_are_counted_and_warned_about(backend):
    """A full step to a vertex of the l1 ball leaves one live atom."""
    start = dictionary_start()
    start[:, 1] = 0.0
    with pytest.warns(xv.DeadUnitsWarning, match=r"1 of 4 columns of M\(theta\) are zero to rounding") as caught:
        fit = xv.solve(dictionary_problem(), start, over=L1Ball(), max_iter=0, backend=backend.name)
    assert (fit.verified.units, fit.verified.dead_units) == (4, 1)
    assert caught[0].filename == __file__


def test_a_column_whose_weight_is_coupled_to_others_is_no_dead_unit():
    """Pixels that are not seen have weights from their neighbours, and a gain of 0 has a gradient."""
    gains, seen = np.ones(20), np.arange(20) != 4
    gains[5] = 0.0
    more = {"data": np.eye(20), "lam": 0.1, "Omega": np.diff(np.eye(20), 2, axis=0), "weights": seen}
    fit = xv.solve(xv.separable(lambda s, A: A * s, np.sin(np.arange(20.0)), **more), gains, Box(0.0, 1.0), max_iter=0)
    assert (fit.verified.units, fit.verified.dead_units) == (20, 0)
    less = {"data": np.eye(20), "lam": 1e-3, "W": xv.lower.Simplex()}
    fit = xv.solve(xv.separable(lambda s, A: A * s, np.full(20, 0.01), **less), gains, Box(0.0, 1.0), max_iter=0)
    assert (fit.verified.units, fit.verified.dead_units) == (20, 0)


def test_device_and_dtype_can_be_asked_for(backend):
    for name, place in backend.devices().items():
        assert solve(backend=backend.name, device=name, max_iter=1).provenance["device"] == str(place)
    fit = solve(theta0=send(backend, START), backend="numpy", max_iter=1)
    assert fit.provenance["device"] == "cpu"
    assert xv.backends.of(fit.theta) is backend
    fit = solve(theta0=START.astype("float32"), dtype="float64", backend=backend.name, max_iter=2)
    assert fit.provenance["dtype"] == fit.theta.dtype == "float64"


def test_a_small_solve_is_a_short_walk():
    """Calls of the package's own functions, iterators each time that they go on, and frames of them in each other.

    Both may only fall.
    """
    package, calls, depth, deepest = str(Path(xv.__file__).parent), 0, 0, 0

    def count(frame, event, _):
        nonlocal calls, depth, deepest
        if frame.f_code.co_filename.startswith(package):
            calls, depth = calls + (event == "call"), depth + (event == "call") - (event == "return")
            deepest = max(deepest, depth)

    problem = decay_problem(noise=0.05)
    solve(problem)  # the first one imports
    earlier = sys.getprofile()
    sys.setprofile(count)
    try:
        fit = solve(problem)
    finally:
        sys.setprofile(earlier)
    assert calls <= 1_000 + 295 * (fit.n_iter + 1)
    assert deepest <= 14


def test_progress_is_silent_in_pipes_and_goes_to_stderr(capfd):
    for progress, shown in (({}, False), ({"progress": False}, False), ({"progress": True}, True)):
        solve(max_iter=3, **progress)
        out, err = capfd.readouterr()
        assert out == ""
        assert bool(err) == shown


def test_progress_shows_objective_and_gap(capsys):
    solve(progress=True, max_iter=3, tol=0.0, callback=lambda info: time.sleep(0.12))
    shown = capsys.readouterr().err
    assert re.search(r"2/3.*f=0\.0\d+ gap=\d", shown), shown


# -- frameworks, devices, dtypes ---------------------------------------------------------------------------------------


@pytest.mark.frameworks
def test_float64_numpy_on_jax_with_x64_off_just_works():
    """The flag of the process is off: nothing of the solve may be made outside the backend's scope."""
    import jax

    assert not jax.config.jax_enable_x64
    problem, how = decay_problem(noise=0.05, solver=xv.lower.SVD()), {"algorithm": FAST, "max_iter": 8, "tol": 0.0}
    want = solve(problem, **how)
    for place in (None, "cpu"):
        fit = solve(problem, backend="jax", device=place, **how)
        assert fit.theta.dtype == np.float64
        assert fit.provenance["dtype"] == "float64"
        assert fit.value == pytest.approx(want.value, rel=1e-12)
        assert not jax.config.jax_enable_x64
        assert jax.numpy.ones(2).dtype == "float32"


def test_float32_jax_works_with_x64_off():
    import jax.numpy as jnp

    y, t = SIGNAL.astype("float32"), T.astype("float32")
    problem = xv.separable(decays, y, data={"t": t}, solver=xv.lower.SVD())
    fit = solve(problem, jnp.asarray(START, dtype="float32"), algorithm=FAST, max_iter=5)
    assert fit.theta.dtype == fit.w.dtype == "float32"


@pytest.mark.frameworks
def test_a_model_on_jax_has_the_callers_float64_in_a_solve_in_single_precision():
    import jax

    kinds = []

    def M(theta, data):
        kinds.append(jax.numpy.asarray(1 / 3, dtype="float64").dtype.name)
        return decays(theta, data)

    with jax.enable_x64(True):
        y, t = SIGNAL.astype("float32"), T.astype("float32")
        problem = xv.separable(M, y, data={"t": t}, solver=xv.lower.SVD())
        solve(problem, backend="jax", dtype="float32", algorithm=SIMPLE, max_iter=1)
    assert set(kinds) == {"float64"}


MUTABLE = [name for name in HOST_BACKENDS if name != "jax"]  # arrays that somebody could write to


@pytest.mark.parametrize("name", MUTABLE)
def test_arguments_are_never_written_to(name):
    backend = xv.backends.get(name)
    theta0, y, t = (send(backend, x) for x in (START, SIGNAL + T, T))
    low, high = send(backend, np.zeros(2)), send(backend, np.full(2, 10.0))
    Omega = send(backend, np.diag([1.0, 2.0]))
    problem = xv.separable(decays, y, data={"t": t}, lam=0.1, Omega=Omega)
    for algorithm in ALGORITHMS:
        xv.solve(problem, theta0, over=Box(low, high), algorithm=algorithm, max_iter=4, tol=0.0)
    kept = (START, SIGNAL + T, T, np.zeros(2), np.full(2, 10.0), np.diag([1.0, 2.0]))
    for x, want in zip((theta0, y, t, low, high, Omega), kept, strict=True):
        assert (host(x) == want).all()


@pytest.mark.parametrize("name", MUTABLE)
def test_model_that_returns_theta_or_data_itself(name):
    """The package computes residuals in place: never in an array that is the caller's."""
    backend = xv.backends.get(name)
    D, y = send(backend, dictionary_start()), send(backend, dictionary_problem().lower.y)
    kept = host(D).copy(), host(y).copy()
    for target in (y, lambda theta, data: data):
        xv.solve(xv.separable(lambda theta, data: theta, target, data=y, lam=0.1), D, over=L1Ball(4.0), max_iter=2)
    assert (host(D) == kept[0]).all()
    assert (host(y) == kept[1]).all()


def test_a_callback_cannot_change_the_solve():
    want = solve(max_iter=4, tol=0.0)

    def meddle(info):
        info.theta[:] = 0.0

    assert solve(max_iter=4, tol=0.0, callback=meddle).theta.tolist() == want.theta.tolist()


def unheld_design(theta, data):
    return decays(theta, data)  # a function of its own, so that nothing compiled earlier is used again


def test_a_finished_solve_lets_go_of_its_data(backend):
    """Compiled functions are cached by structure: they must not hold the arrays of the problem they were made for."""

    def run():
        t = np.linspace(0.0, 1.0, 54321)
        data = backend.asarray(t)
        solve(xv.separable(unheld_design, np.exp(-t), data={"t": data}), max_iter=1, backend=backend.name)
        return weakref.ref(data)

    alive = run()
    gc.collect()
    assert alive() is None


# -- files -------------------------------------------------------------------------------------------------------------

TREES = {
    "array": (START, BOX),
    "dict": ({"b": START[:1], "a": START[1:]}, {"b": BOX, "a": BOX}),
    "nested": ({"z": [START[:1], (START[1:],)]}, {"z": [BOX, None]}),
    "tuple": ((START[:1], START[1:]), (BOX, None)),
}


def flat_decays(theta, data):
    xp = xv.array_namespace(theta)
    return decays(xp.concat([xp.reshape(x, (-1,)) for x in trees.leaves(theta)]), data)


@pytest.mark.parametrize("tree", TREES)
def test_round_trip_through_a_file(tree, backend, tmp_path):
    theta0, over = TREES[tree]
    problem = xv.separable(flat_decays, SIGNAL + T, data={"t": T})
    fit = xv.solve(problem, send_tree(backend, theta0), over=over, max_iter=4)
    fit.save(tmp_path / "fit.npz")
    back = xv.Result.load(tmp_path / "fit.npz")
    theta = host_tree(fit.theta)
    assert trees.flatten(back.theta)[1] == trees.flatten(theta)[1]
    assert vector(back.theta).tolist() == vector(theta).tolist()
    assert (back.w == host(fit.w)).all()
    for name in ("value", "gap_A", "gap_B", "status", "n_iter", "counts", "verified", "algorithm", "provenance",
                 "seconds", "setup_seconds"):  # fmt: skip
        assert getattr(back, name) == getattr(fit, name), name
    for name, column in vars(fit.trace).items():
        assert (getattr(back.trace, name) == column).all(), name
    assert repr(back) == repr(fit)
    there = xv.Result.load(tmp_path / "fit.npz", like=fit.theta)
    for x, y in zip(trees.leaves((there.theta, there.w)), trees.leaves((fit.theta, fit.w)), strict=True):
        assert (type(x), x.dtype, device(x)) == (type(y), y.dtype, device(y))
        assert (host(x) == host(y)).all()


@pytest.mark.parametrize("keys", [(1,), (1, "s"), ("s", 1)])
def test_keys_that_a_file_cannot_hold(keys, tmp_path):
    problem = xv.separable(flat_decays, SIGNAL, data={"t": T})
    fit = xv.solve(problem, dict.fromkeys(keys, START), over=dict.fromkeys(keys, BOX), max_iter=1)
    with pytest.raises(xv.errors.ProblemError, match="string keys"):
        fit.save(tmp_path / "fit.npz")
    assert not (tmp_path / "fit.npz").exists()


# -- trees and shapes --------------------------------------------------------------------------------------------------


def test_scalars_and_empty_levels_of_trees(backend):
    def M(theta, data):
        xp = xv.array_namespace(theta["net"])
        return decays(xp.stack([theta["rate"], theta["net"][0][0]]), data)

    theta0 = {"rate": np.array(0.5), "net": [np.array([8.0])], "nothing": []}
    fit = xv.solve(
        xv.separable(M, SIGNAL + T, data={"t": T}), theta0, over={"rate": BOX}, max_iter=3, backend=backend.name
    )
    assert fit.theta["rate"].shape == ()
    assert fit.theta["nothing"] == []


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("owner", ["numpy", "torch"])
def test_results_can_be_written_to_whoever_computed_them(owner, name):
    here = xv.backends.get(owner)
    start = here.asarray(START)
    problem = decay_problem(noise=0.05, solver=xv.lower.SVD())
    fit, again = (solve(problem, start, backend=name, algorithm=FAST, max_iter=1) for _ in range(2))
    for x, same in ((fit.theta, again.theta), (fit.w, again.w)):
        assert type(x) is type(start)
        before = here.to_numpy(same).copy()
        x += 1
        assert (here.to_numpy(x) == before + 1).all()
    assert (here.to_numpy(start) == START).all()


def test_a_ridge_that_is_zero_at_theta_is_none():
    t = np.linspace(0.0, 1.0, 20)
    problems = [
        xv.separable(lambda theta, t: decays(theta, {"t": t}), np.exp(-2 * t), data=t, lam=lam)
        for lam in (0.0, lambda theta, t: 0 * xv.array_namespace(theta).sum(theta))
    ]
    values = [xv.value_and_gradient(problem, np.array([1.0, 3.0]))[0] for problem in problems]
    assert np.isfinite(values).all()
    assert values[1] == pytest.approx(values[0], rel=1e-9)


def test_an_end_without_descent_names_units_that_are_far_apart():
    fit = solve()
    for theta, named in ((np.array([1e-7, 0.0, 1e-17, 2.0]), True), (np.array([1e-3, 1e-17, 2.0]), False)):
        message = replace(fit, status=Status.NO_DESCENT, theta=theta).message
        assert ("sizes from 1e-07 to 2e+00: measure them in units" in message) is named is ("units" in message)
    assert "units" not in replace(fit, theta=np.array([1e-7, 2.0])).message


def test_a_method_that_a_message_names_takes_the_problem():
    theta, methods = np.array([0.7, 4.0]), xv.algorithms
    iterative = xv.separable(decays, SIGNAL, data={"t": T}, solver=xv.lower.LSMR())
    corners = xv.sets.Oracle(lambda g: np.where(g < 0, 5.0, 0.0), 8.0)
    for algorithm, over in (
        (methods.LevenbergMarquardt(), None),
        (methods.LevenbergMarquardt(), corners),
        (methods.ProjectedQuasiNewton(), corners),
    ):
        with pytest.raises(xv.errors.ProblemError, match="eave algorithm= out, for") as refusal:
            xv.solve(iterative, theta, over=over, algorithm=algorithm)
        named = str(refusal.value).split()[-1]
        assert named in xv.solve(iterative, theta, over=over, max_iter=0).algorithm
