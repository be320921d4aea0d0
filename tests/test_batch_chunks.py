"""Batches in chunks: the answers of one batch, files that survive, memory of a chunk."""

import signal
import subprocess
import sys
import tracemalloc
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import tqdm
import zarr

import xvarpro as xv
from xvarpro.errors import ProblemError

from . import processes
from .support import decays, host, rng, send, together
from .test_out_of_core import stored as stored_arrays

T = np.linspace(0.0, 2.0, 40)
B = 11
BOX = xv.sets.Box(0.0, 20.0)
DRAW = rng(5)
RATES = np.stack([DRAW.uniform(0.5, 1.5, B), DRAW.uniform(3.0, 8.0, B)], axis=1)
Y = np.exp(-RATES[:, None, :] * T[:, None]) @ [2.0, 1.0] + 0.01 * DRAW.normal(size=(B, T.size))
Y[7] = np.nan
START = np.tile([0.7, 4.0], (B, 1))


def of_each(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(theta, axis=1) * xp.expand_dims(data["t"], axis=2))


def problem(y=Y, **more):
    return xv.separable(together, y, data={"t": T}, **more)


def same(found, expected):
    for name in ("theta", "w", "value", "status"):
        np.testing.assert_allclose(host(getattr(found, name)), host(getattr(expected, name)), rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("chunks", [4, 100])
def test_chunks_have_the_answers_of_one_batch(chunks, backend):
    expected = xv.solve_many(problem(), START, BOX, tol=1e-9)
    found = xv.solve_many(problem(), START, BOX, tol=1e-9, chunks=chunks, backend=backend)
    same(found, expected)
    np.testing.assert_allclose(found.statistics().theta_stderr, expected.statistics().theta_stderr, rtol=1e-6)
    assert found.statistics().reasons["w is NaN or inf"].tolist() == [7]
    np.testing.assert_allclose(found.statistics().covariance, expected.statistics().covariance, rtol=1e-6)


def test_chunks_of_all_that_belongs_to_single_problems(backend):
    lam, weights = DRAW.uniform(1e-3, 1e-1, B), DRAW.uniform(0.5, 1.0, Y.shape)
    more = {"lam": lam, "weights": weights}
    expected = xv.solve_many(problem(**more), START, BOX, tol=1e-9, starts=np.array([[1.0, 9.0]]))
    found = xv.solve_many(problem(**more), START, BOX, tol=1e-9, starts=np.array([[1.0, 9.0]]), chunks=3)
    same(found, expected)


def test_a_chunk_that_is_kept_is_not_solved_again(tmp_path, monkeypatch):
    calls, bars = [], set()

    def counting(theta, data):
        calls.append(len(theta))
        return together(theta, data)

    one = xv.separable(counting, Y, data={"t": T})
    first = xv.solve_many(one, START, BOX, chunks=4, checkpoint=tmp_path / "fits")
    names = sorted(file.name for file in (tmp_path / "fits").iterdir())
    assert names == [f"problems_{i:012d}.npz" for i in (0, 4, 8)]
    (tmp_path / "fits" / names[1]).unlink()
    calls.clear()
    with monkeypatch.context() as patch:
        patch.setattr(tqdm.tqdm, "close", lambda bar: bars.add((bar.initial, bar.n)))
        again = xv.solve_many(one, START, BOX, chunks=4, checkpoint=tmp_path / "fits", progress=True)
    same(again, first)
    assert max(calls) == 4
    assert bars == {(7, 11)}  # the rate counts those after the first seven, which were read
    assert again.read == 7
    assert str(again).startswith("11 problems, 4 of them solved by this call, in ")
    calls.clear()
    how = {"backend": "numpy", "dtype": "float64"}  # as it was computed in any case
    same(xv.solve_many(one, START, BOX, chunks=4, checkpoint=tmp_path / "fits", **how), first)
    assert set(calls) == {1}  # one problem of all tells whether the model is the same


def test_files_of_other_problems_or_damaged_ones_are_refused(tmp_path):
    xv.solve_many(problem(), START, BOX, chunks=4, checkpoint=tmp_path)
    for changed, match in (
        ({"tol": 1e-3, "max_iter": 7}, "max_iter, tol\\. Take another folder for checkpoint=, or remove this one$"),
        ({"over": xv.sets.Box(0.0, 19.0)}, "over.upper"),
        ({"theta0": START + 0.1}, "theta0"),
        ({"theta0": xv.backends.get("array-api-strict").asarray(START)}, "backend"),
        ({"problem": problem(Y + 1.0)}, "lower.y"),
        ({"problem": problem(W=xv.lower.Nonnegative())}, "lower.W"),
        ({"problem": problem(weights=np.ones(T.size))}, "lower.weights"),
        ({"chunks": 5}, "a chunk of 4 problems, where this call has 5.*, or remove this one$"),
        ({"problem": problem(np.tile(Y, (2, 1))[:12]), "theta0": np.tile(START, (2, 1))[:12]}, "added, its last file$"),
    ):
        given = {"problem": problem(), "theta0": START, "over": BOX, "chunks": 4, "checkpoint": tmp_path} | changed
        with pytest.raises(ProblemError, match=f"in chunks of the same size; got others: .*{match}"):
            xv.solve_many(**given)
    file = tmp_path / "problems_000000000004.npz"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ProblemError, match=r"damaged.* Remove this file alone"):
        xv.solve_many(problem(), START, BOX, chunks=4, checkpoint=tmp_path)
    with pytest.raises(ProblemError, match="whole number > 0"):
        xv.solve_many(problem(), START, BOX, chunks=0)
    with pytest.raises(ProblemError, match="need chunks="):
        xv.solve_many(problem(), START, BOX, checkpoint=tmp_path)


def one_more(theta, data):
    M = together(theta, data)
    xp = xv.array_namespace(M)
    return xp.concat([M, xp.ones_like(M[..., :1])], axis=2)


OTHERS = [
    one_more,
    lambda theta, data: 2.0 * together(theta, data),
    lambda theta, data: together(theta, data) + 1e-3 * xv.array_namespace(theta).cos(61.3 * data["t"])[:, None],
]
HELD = {"W": xv.lower.Nonnegative()}
COUNTS = np.round(np.abs(100 * np.nan_to_num(Y)))
STATED = {
    "complex": (Y * (1 + 1j), {}),
    "nonnegative, single": (Y.astype("float32"), HELD),
    "counts": (COUNTS, HELD | {"loss": "poisson"}),
    "one by one": (Y, {"W": xv.lower.Simplex(3.0)}),
}


@pytest.mark.parametrize("stated", STATED)
def test_files_of_another_model_are_refused(stated, backend, tmp_path):
    """Functions have no fingerprint: one evaluation of what has been read tells, and takes no rounding for a change."""
    y, more = STATED[stated]
    of = {"over": BOX, "chunks": 4, "checkpoint": tmp_path, "backend": backend}
    kind = "float32" if "single" in stated else "float64"

    def solved(M):
        return xv.solve_many(xv.separable(M, y, data={"t": T.astype(kind)}, **more), START.astype(kind), **of)

    first = solved(together)
    np.testing.assert_array_equal(solved(together).theta, first.theta)
    for other in OTHERS:
        with pytest.raises(ProblemError, match=r"same model functions; got others: .* there is an objective of"):
            solved(other)


KILLED = """
import os, signal, sys, xvarpro as xv, zarr
from tests.test_batch_chunks import BOX, START, T, together
def dying(theta, data):
    if len(os.listdir(sys.argv[1])) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return together(theta, data)
y = xv.Each(zarr.open_array(sys.argv[2], mode="r"))
xv.solve_many(xv.separable(dying, y, data={"t": T}), START, BOX, chunks=3, checkpoint=sys.argv[1])
"""


def test_a_killed_call_goes_on_after_its_last_chunk(tmp_path):
    folder, stored = tmp_path / "fits", str(tmp_path / "y.zarr")
    folder.mkdir()
    y = zarr.open_array(stored, mode="w", shape=Y.shape, chunks=(3, T.size), dtype="float64")
    y[:] = Y
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), stored])
    assert killed.returncode == -signal.SIGKILL
    before = {file.name: file.read_bytes() for file in folder.glob("problems_*.npz")}
    assert len(before) == 2
    found = xv.solve_many(problem(xv.Each(y)), START, BOX, chunks=3, checkpoint=folder)
    same(found, xv.solve_many(problem(), START, BOX))
    assert {name: (folder / name).read_bytes() for name in before} == before


# -- what is not in memory ---------------------------------------------------------------------------------------------


class Slices:
    """An array of which only slices can be had; it counts what it gives."""

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.read = x, x.shape, x.dtype, []

    def __getitem__(self, index):
        part = self.x[index]
        self.read.append(len(part))
        return part

    def __array__(self, *_, **__):
        raise AssertionError("read whole")


def test_no_more_than_a_chunk_is_read_at_once():
    weights, t = DRAW.uniform(0.5, 1.0, (*Y.shape, 1)), DRAW.uniform(0.0, 2.0, Y.shape)
    lam = np.full(B, 1e-3)
    held = {"y": Y[:, :, None], "weights": weights, "lam": lam, "t": t}
    stored = {name: Slices(x) for name, x in held.items()}

    def stated(y, weights, lam, t):
        return xv.separable(of_each, y, data={"t": xv.Each(t)}, weights=weights, lam=lam)

    expected = xv.solve_many(stated(held["y"], xv.Each(weights), lam, t), START, BOX, tol=1e-9)
    marked = stated(*(xv.Each(stored[name]) for name in ("y", "weights", "lam")), stored["t"])
    found = xv.solve_many(marked, START, BOX, tol=1e-9, chunks=4)
    same(found, expected)
    np.testing.assert_allclose(found.statistics().covariance, expected.statistics().covariance, rtol=1e-6)
    for x in stored.values():
        assert max(x.read) == 4
        assert sum(x.read) == 3 * B  # by the solve, for the errors, for the covariances
    one = xv.many.single(marked, 5)
    assert [x.read[-1] for x in stored.values()] == [1] * 4
    np.testing.assert_allclose(xv.solve(one, START[5], BOX, tol=1e-9).theta, expected.theta[5], rtol=1e-6)
    same(xv.solve_many(marked, START, BOX, tol=1e-9), expected)  # without chunks it is read at once
    with pytest.raises(ProblemError, match=r"b = 10 entries, as theta0, or 1 for all; got shape \(11, 40, 1\)"):
        xv.solve_many(marked, START[1:], BOX, chunks=4)
    with pytest.raises(ProblemError, match=r"b = 10 entries, as theta0, or 1 for all; got shape \(11, 40\)"):
        xv.solve_many(problem(), START[1:], BOX, chunks=4)


@pytest.mark.parametrize("kind", ["npy", "zarr", "hdf5", "dask"])
def test_files_are_read_as_arrays_are(kind, tmp_path):
    if kind == "dask":
        file = {"y": pytest.importorskip("dask.array").from_array(Y, chunks=(3, 20))}
    else:
        file = stored_arrays(kind, tmp_path, chunks=(3, 20), y=Y)
    problem = xv.many.lifted(xv.separable(decays, xv.Each(file["y"]), data=T))
    found = xv.solve_many(problem, START, BOX, chunks=4)
    same(found, xv.solve_many(xv.many.lifted(xv.separable(decays, xv.Each(Y), data=T)), START, BOX, chunks=4))
    assert np.isfinite(found.statistics().theta_stderr[0]).all()


def test_a_file_that_cannot_be_read_is_named():
    class Damaged(Slices):
        def __getitem__(self, index):
            raise OSError("no such block")

    with pytest.raises(ProblemError, match=r"xv\.Each, rows 0 to 4, could not be read: OSError: no such block"):
        xv.solve_many(problem(xv.Each(Damaged(Y))), START, BOX, chunks=4)


def test_memory_is_that_of_two_chunks(tmp_path):
    """6 chunks take no more than 2, but for the answers and what is kept of each chunk."""
    m, size = 4000, 20
    t = np.linspace(0.0, 2.0, m)

    def peak(b):
        rates = np.linspace(0.5, 3.0, b)
        y = zarr.open_array(str(tmp_path / f"{b}.zarr"), mode="w", shape=(b, m), chunks=(size, m), dtype="float64")
        y[:] = np.exp(-rates[:, None] * t)
        tracemalloc.start()
        fit = xv.solve_many(xv.separable(together, xv.Each(y), data={"t": t}), np.ones((b, 1)), chunks=size)
        fit.statistics()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        np.testing.assert_allclose(fit.theta[:, 0], rates, rtol=1e-4)
        return found

    peak(size)  # what is made once
    assert peak(6 * size) - peak(2 * size) < size * m * 8


# -- in other processes ------------------------------------------------------------------------------------------------


def test_two_processes_solve_chunks(tmp_path):
    with ProcessPoolExecutor(2, mp_context=processes.context()) as pool:
        found = xv.solve_many(problem(), START, BOX, chunks=2, executor=pool, checkpoint=tmp_path)
        errors = found.statistics(executor=pool)
        inner = xv.separable(lambda theta, data: together(theta, data), Y, data={"t": T})
        with pytest.raises(ProblemError, match=r"defined by def at the top of a module.*; got Can't .*lambda"):
            xv.solve_many(inner, START, BOX, chunks=2, executor=pool)
    same(found, xv.solve_many(problem(), START, BOX))
    np.testing.assert_array_equal(errors.theta_stderr, found.statistics().theta_stderr)
    assert len(list(tmp_path.iterdir())) == 6
    same(xv.solve_many(problem(), START, BOX, chunks=2, checkpoint=tmp_path), found)
    with pytest.raises(ProblemError, match="executor need chunks="):
        xv.solve_many(problem(), START, BOX, executor=pool)


# -- what has no data --------------------------------------------------------------------------------------------------


def test_dead_pixels_are_said_whatever_is_dead_of_them(subtests):
    """NaN in a target, weights, data or a start, no weight at all, a whole chunk; together and one by one."""
    weights, t, theta0 = np.ones_like(Y), np.tile(T, (B, 1)), np.array(START)
    weights[1, 2], weights[2], weights[3, 4], t[4, 5], theta0[7] = np.nan, 0.0, np.inf, np.inf, np.nan
    y = np.array(Y)
    y[0, 0] = y[8:] = np.nan
    theta0[8:] = np.nan
    weights[0, 0] = 0.0  # what has no weight may be NaN
    for more in (
        {},
        {"lam": 1e-3},
        {"W": xv.lower.Nonnegative()},
        {"W": xv.lower.Simplex(3.0)},
        {"loss": xv.losses.Cauchy(1.0)},
    ):
        with subtests.test(repr(more)):
            stated = xv.separable(of_each, y, data={"t": xv.Each(t)}, weights=weights, **more)
            fit = xv.solve_many(stated, theta0, BOX, chunks=4)
            assert fit.ended(xv.Status.NO_DATA).tolist() == [1, 2, 3, 4, 7, 8, 9, 10]
            assert fit.success[[0, 5, 6]].all()
            for x in (fit.theta, fit.w, fit.value, fit.gap_A, fit.condition):
                assert np.flatnonzero(np.isnan(x.reshape(B, -1)).all(axis=1)).tolist() == [1, 2, 3, 4, 7, 8, 9, 10]
            again = xv.solve_many(stated, fit.theta, BOX)
            np.testing.assert_array_equal(again.success, fit.success)
            found = fit.statistics()
            assert np.isfinite(found.theta_stderr[[0, 5, 6]]).all()
            assert np.isnan(found.theta_stderr[[1, 2, 3, 4, 7, 8, 9, 10]]).all()


# -- starts of neighbours ----------------------------------------------------------------------------------------------


def peaks(theta, x):
    xp = xv.array_namespace(theta)
    return xp.exp(-4 * (x[None, :, None] - xp.expand_dims(theta, axis=1)) ** 2)


X, N = np.linspace(0.0, 10.0, 80), 25
PLACES = np.stack([np.linspace(3.0, 6.0, N), np.linspace(4.5, 8.0, N)], axis=1)  # two peaks that move away
MOVING = np.exp(-4 * (X[:, None] - PLACES[:, None, :]) ** 2) @ [1.0, 0.7] + 0.01 * DRAW.normal(size=(N, X.size))
FIRST = np.tile(PLACES[0], (N, 1))


def test_a_series_starts_where_the_spectrum_before_ended(backend, tmp_path, subtests):
    y, box = np.array(MOVING), xv.sets.Box(0.0, 10.0)
    y[10] = np.nan
    series, alive = xv.separable(peaks, xv.Each(y), data=X), np.arange(N) != 10
    assert np.abs(xv.solve_many(series, FIRST, box).theta - PLACES)[alive].max() > 0.5
    with backend.scope("float64"):
        first = send(backend, np.where(alive[:, None], FIRST, np.nan))  # no start of what has no data is asked for
    for order in (5, 1) if backend.name == "numpy" else (5,):
        with subtests.test(order):
            last, by_hand = FIRST[:order], []
            for i in range(0, N, order):
                some, start = slice(i, i + order), last[: N - i]
                one = xv.solve_many(xv.separable(peaks, y[some], data=X), start, box)
                by_hand.append(one.theta)
                last = np.where(one.success[:, None], one.theta, start)
            folder = tmp_path / str(order)
            fit, again = (xv.solve_many(series, first, box, order=order, checkpoint=folder) for _ in range(2))
            assert fit.success[alive].all()
            assert np.abs(host(fit.theta) - PLACES)[alive].max() < 0.05
            np.testing.assert_allclose(host(fit.theta), np.concatenate(by_hand), rtol=1e-5)
            np.testing.assert_array_equal(host(again.theta), host(fit.theta))
            assert len(list(folder.iterdir())) == -(-N // order)
            assert np.isfinite(host(fit.statistics().theta_stderr)[alive]).all()


def test_the_end_of_a_neighbour_is_brought_into_the_bounds_of_each_problem():
    k = np.array([1.4, 0.7, 0.7, 1.4])
    series = xv.separable(together, np.exp(-k[:, None] * T), data={"t": T})
    over = xv.sets.Box(xv.Each(np.full((4, 1), 0.3)), xv.Each(np.where(k > 1, 2.0, 1.0)[:, None]))
    fit = xv.solve_many(series, np.full((4, 1), 0.8), over, order=1)
    np.testing.assert_allclose(fit.theta[:, 0], k, rtol=1e-6)


def test_an_order_is_refused_with_chunks():
    for more in ({"chunks": 2}, {"executor": object()}):
        with pytest.raises(ProblemError, match="order must be given without chunks and executor"):
            xv.solve_many(problem(), START, BOX, order=1, **more)
    with pytest.raises(ProblemError, match="order, must be a whole number > 0"):
        xv.solve_many(problem(), START, BOX, order=0)
