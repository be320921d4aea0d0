"""Batches in chunks: the answers of one batch, files that survive, memory of a chunk."""

import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.errors import ProblemError

from .support import host, rng, together

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


def test_a_chunk_that_is_kept_is_not_solved_again(tmp_path):
    calls = []

    def counting(theta, data):
        calls.append(len(theta))
        return together(theta, data)

    one = xv.separable(counting, Y, data={"t": T})
    first = xv.solve_many(one, START, BOX, chunks=4, checkpoint=tmp_path / "fits")
    names = sorted(file.name for file in (tmp_path / "fits").iterdir())
    assert names == [f"problems_{i:012d}.npz" for i in (0, 4, 8)]
    (tmp_path / "fits" / names[1]).unlink()
    calls.clear()
    again = xv.solve_many(one, START, BOX, chunks=4, checkpoint=tmp_path / "fits")
    same(again, first)
    assert max(calls) == 4
    calls.clear()
    same(xv.solve_many(one, START, BOX, chunks=4, checkpoint=tmp_path / "fits"), first)
    assert not calls


def test_files_of_other_problems_or_damaged_ones_are_refused(tmp_path):
    xv.solve_many(problem(), START, BOX, chunks=4, checkpoint=tmp_path)
    for changed, match in (
        ({"tol": 1e-3}, "options"),
        ({"over": xv.sets.Box(0.0, 19.0)}, "over.upper"),
        ({"theta0": START + 0.1}, "theta0"),
        ({"problem": problem(Y + 1.0)}, "lower.y"),
    ):
        given = {"problem": problem(), "theta0": START, "over": BOX, "chunks": 4, "checkpoint": tmp_path} | changed
        with pytest.raises(ProblemError, match=f"same problems, starts and options; got others: .*{match}"):
            xv.solve_many(**given)
    file = tmp_path / "problems_000000000004.npz"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ProblemError, match="damaged"):
        xv.solve_many(problem(), START, BOX, chunks=4, checkpoint=tmp_path)
    with pytest.raises(ProblemError, match="whole number > 0"):
        xv.solve_many(problem(), START, BOX, chunks=0)
    with pytest.raises(ProblemError, match="needs chunks="):
        xv.solve_many(problem(), START, BOX, checkpoint=tmp_path)


KILLED = """
import os, signal, sys, numpy as np, xvarpro as xv
from tests.test_batch_chunks import BOX, START, T, Y, together
solved = []
def dying(theta, data):
    if len(os.listdir(sys.argv[1])) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return together(theta, data)
xv.solve_many(xv.separable(dying, Y, data={"t": T}), START, BOX, chunks=3, checkpoint=sys.argv[1])
"""


def test_a_killed_call_goes_on_after_its_last_chunk(tmp_path):
    folder = tmp_path / "fits"
    folder.mkdir()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder)])
    assert killed.returncode == -signal.SIGKILL
    before = {file.name: file.read_bytes() for file in folder.glob("problems_*.npz")}
    assert len(before) == 2
    found = xv.solve_many(problem(), START, BOX, chunks=3, checkpoint=folder)
    same(found, xv.solve_many(problem(), START, BOX))
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_memory_is_that_of_a_chunk(tmp_path):
    b, m = 20_000, T.size
    y = np.lib.format.open_memmap(tmp_path / "y.npy", mode="w+", dtype=np.float64, shape=(b, m))
    y[:] = np.exp(-np.linspace(0.5, 3.0, b)[:, None] * T)
    y.flush()
    y = np.load(tmp_path / "y.npy", mmap_mode="r")
    tracemalloc.start()
    fit = xv.solve_many(problem(y), np.full((b, 1), 1.0), chunks=500)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(fit.theta[:, 0], np.linspace(0.5, 3.0, b), rtol=1e-4)
    assert peak < 0.8 * y.nbytes  # 6.4 MB; one batch takes ten times as much


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
