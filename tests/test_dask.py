"""Rows on the workers of a Dask cluster: the answer of one process, data that stay where they are, workers that die."""

import contextlib
import errno
import os
import re
import signal
import time

import numpy as np
import pytest

import xvarpro as xv

from . import processes
from .support import decays, error, posix

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
zict = pytest.importorskip("zict")

ROWS, CHUNK = 20_000, 5_000
START, BOX = np.array([0.5, 8.0]), xv.sets.Box(0.0, 20.0)


def broken(theta, t):
    if t.shape[0] == 7:
        raise KeyError("no such sample")
    return decays(theta, t)


def signal_of(t):
    return 2.0 * np.exp(-t) + np.exp(-5.0 * t) + 0.01 * np.sin(1e4 * t)


@contextlib.contextmanager
def cluster(workers, **given):
    """A client of workers that are forked with all imports done."""
    method = processes.context().get_start_method()
    settings = {"distributed.worker.multiprocessing-method": method, "distributed.worker.profile.enabled": False}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0", **given) as made,
        distributed.Client(made, set_as_default=workers > 1) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client():
    with cluster(2) as found:
        yield found


@pytest.fixture(scope="module")
def lazy(client):
    t = da.linspace(0.0, 2.0, ROWS, chunks=CHUNK)  # workers can make it again
    return t, t.map_blocks(signal_of)


@pytest.fixture(scope="module")
def whole():
    t = np.linspace(0.0, 2.0, ROWS)
    return xv.separable(decays, xv.RowChunks.cut(t, signal_of(t), CHUNK), lam=1e-3)


@pytest.fixture(scope="module")
def undisturbed(client, lazy):
    return xv.solve(xv.separable(decays, xv.distributed.dask_rows(*lazy), lam=1e-3), START, over=BOX, max_iter=4)


def same_bits(fit, other):
    np.testing.assert_array_equal(fit.theta, other.theta)
    np.testing.assert_array_equal(fit.trace.value, other.trace.value)


def received(client):
    """Bytes that each worker has got from others."""
    return client.run(lambda dask_worker: sum(x["total"] for x in dask_worker.transfer_incoming_log))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_cluster_finds_what_one_process_does(client, lazy, whole, backend):
    problem = xv.separable(decays, xv.distributed.dask_rows(*lazy), lam=1e-3)
    value, gradient = xv.value_and_gradient(problem, START, backend=backend)
    expected, slope = xv.value_and_gradient(whole, START)
    assert error(value, expected) <= 1e-13
    assert error(gradient, slope) <= 1e-11


def test_data_stay_on_the_workers(client, lazy, whole):
    problem = xv.separable(decays, xv.distributed.dask_rows(*lazy), lam=1e-3)
    xv.value_and_gradient(problem, START)
    before = received(client)
    fit = xv.solve(problem, START, over=BOX, max_iter=3)
    after = received(client)
    assert fit.counts.values >= 3
    # triangles, sums and theta of some six passes; a chunk has 80,000 bytes
    assert max(after[worker] - before[worker] for worker in after) < 40_000


@posix
def test_a_worker_that_dies_costs_no_digit(client, lazy, undisturbed):
    problem = xv.separable(decays, xv.distributed.dask_rows(*lazy), lam=1e-3)
    killed = []

    def kill(info):
        if info.iteration == 2:
            killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    fit = xv.solve(problem, START, over=BOX, max_iter=4, callback=kill)
    assert killed
    same_bits(fit, undisturbed)


def test_a_slow_worker_costs_no_digit(client, lazy, undisturbed):
    rows, slow = xv.distributed.dask_rows(*lazy), next(iter(client.run(os.getpid).values()))

    def M(theta, t):
        if os.getpid() == slow:
            time.sleep(0.01)
        return xv.array_namespace(theta).exp(-t[:, None] * theta)

    fit = xv.solve(xv.separable(M, rows, lam=1e-3), START, over=BOX, max_iter=4)
    same_bits(fit, undisturbed)


def test_workers_that_hang_end_in_one_message(client, lazy, tmp_path):
    """All of them: one that works would take the chunks of one that hangs."""
    flag, here, address = tmp_path / "hangs", os.getpid(), "|".join(map(re.escape, client.run(os.getpid)))

    def M(theta, t):
        while os.getpid() != here and flag.exists():
            time.sleep(0.01)
        return xv.array_namespace(theta).exp(-t[:, None] * theta)

    patient, problem = (
        xv.separable(M, xv.distributed.dask_rows(*lazy, timeout=timeout), lam=1e-3) for timeout in (None, 1.0)
    )
    value, _ = xv.value_and_gradient(patient, START)
    flag.touch()
    try:
        with pytest.raises(xv.errors.GroupError, match=rf"no chunk came back within 1 s: chunk \d.* on ({address})\."):
            xv.value_and_gradient(problem, START)
    finally:
        flag.unlink()
    assert xv.value_and_gradient(patient, START)[0] == value


def test_chunks_of_which_a_selection_leaves_nothing_are_left_out(client, lazy):
    t, y = lazy
    kept = [x[(t < 0.4) | (t > 1.1)].compute_chunk_sizes() for x in (t, y)]
    assert 0 in kept[0].chunks[0]
    value, gradient = xv.value_and_gradient(xv.separable(decays, xv.distributed.dask_rows(*kept)), START)
    t, y = (x.compute() for x in kept)
    want, slope = xv.value_and_gradient(xv.separable(decays, y, data=t), START)
    assert (float(value), *gradient) == pytest.approx((float(want), *slope), rel=1e-9)
    with pytest.raises(xv.errors.ProblemError, match="y must have rows; got 4 chunks without any"):
        xv.distributed.dask_rows(*(x[lazy[0] < -1.0].compute_chunk_sizes() for x in lazy))


def test_a_lost_connection_ends_in_one_message_and_another_client_goes_on(client, lazy, undisturbed, tmp_path):
    def problem(through):
        return xv.separable(decays, xv.distributed.dask_rows(*lazy, through), lam=1e-3)

    given = {"over": BOX, "max_iter": 4, "checkpoint": tmp_path / "run.npz", "checkpoint_every": 1}
    with distributed.Client(client.scheduler.address, set_as_default=False) as other:

        def cut(info):
            if info.iteration == 2:
                other.loop.add_callback(other.scheduler_comm.comm.abort)

        with pytest.raises(xv.errors.GroupError, match=r"connection to the cluster was lost \(.*resume="):
            xv.solve(problem(other), START, **given, callback=cut)
    fit = xv.solve(problem(client), START, **given, resume=tmp_path / "run.npz")
    same_bits(fit, undisturbed)


def test_full_disks_cost_no_digit_as_long_as_memory_lasts(lazy, whole):
    def fill():
        def refuse(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        zict.File.__setitem__ = refuse

    def pause(dask_worker):  # what distributed does where memory is full
        dask_worker.status = distributed.Status.paused

    memory = {"target": 1e-4, "spill": False, "pause": False, "terminate": False}  # spills from 100 kB on
    with (
        dask.config.set({f"distributed.worker.memory.{name}": x for name, x in memory.items()}),
        cluster(1, memory_limit="1GiB") as client,
    ):
        client.run(fill)
        rows = xv.distributed.dask_rows(*lazy, client)
        value, _ = xv.value_and_gradient(xv.separable(decays, rows, lam=1e-3), START)
        assert error(value, xv.value_and_gradient(whole, START)[0]) <= 1e-13
        (left,) = client.run(lambda dask_worker: dask_worker.data.fast.total_weight - dask_worker.data.fast.n).values()
        assert left > 0  # which it would have written
        client.run(pause)
        rows = xv.distributed.dask_rows(*lazy, client, timeout=1.0)
        with pytest.raises(xv.errors.GroupError, match=r"chunk 0 on no worker \(.*disks are full"):
            xv.value_and_gradient(xv.separable(decays, rows, lam=1e-3), START)


def test_an_error_on_a_worker_names_its_chunk(client, lazy):
    t, y = (x[: 3 * CHUNK + 7] for x in lazy)
    with pytest.raises(xv.errors.ModelError, match=r"^chunk 3: .*no such sample"):
        xv.value_and_gradient(xv.separable(broken, xv.distributed.dask_rows(t, y)), START)


def test_batches_on_a_cluster_are_those_of_one_process(client):
    def M(theta, data):
        xp = xv.array_namespace(theta)
        return xp.exp(-xp.expand_dims(theta, axis=1) * xp.expand_dims(data["t"], axis=2))

    rng = np.random.default_rng(0)
    t, rates = rng.uniform(0.0, 2.0, (23, 30)), np.sort(rng.uniform(1.0, 8.0, (23, 2)), axis=1)
    y = np.exp(-rates[:, None, :] * t[:, :, None]) @ rng.uniform(1.0, 2.0, (23, 2, 2))
    y = y + 0.01 * rng.normal(size=y.shape)
    start, of_rows = rates + 0.1, rng.uniform(0.5, 1.0, 30)
    for weights in (of_rows, rng.uniform(0.5, 1.0, (30, 2)), xv.Each(rng.uniform(0.5, 1.0, (23, 30)))):
        problem = xv.separable(M, y, data={"t": xv.Each(t)}, weights=weights, lam=rng.uniform(0.0, 1e-3, 23))
        together = xv.solve_many(problem, start, BOX)
        spread = xv.solve_many(problem, start, BOX, chunks=5, executor=client.get_executor(pure=False))
        np.testing.assert_array_equal(spread.status, together.status)
        assert error(spread.theta, together.theta) <= 1e-9
        assert error(spread.w, together.w) <= 1e-9
        assert len(spread) == 23


def test_arrays_of_a_cluster_are_not_pulled_into_one_process(client, lazy):
    t, y = lazy
    with pytest.raises(xv.errors.ProblemError, match=r"xv\.distributed\.dask_rows"):
        xv.separable(decays, y, data=t)
    with pytest.raises(xv.errors.ProblemError, match="must be a Dask array; got"):
        xv.distributed.dask_rows(t, np.ones(ROWS))
    with pytest.raises(xv.errors.ProblemError, match=r"got data has 10, y has 20000"):
        xv.distributed.dask_rows(t[:10], y)


@pytest.mark.parametrize("lower", [None, xv.algorithms.SecondBatch()])
def test_a_chunk_is_a_mini_batch(lazy, whole, lower):
    """The same iterations as with all chunks in one process."""
    method = xv.algorithms.StochasticProjectedGradient(lower=lower, certify=4, update=xv.algorithms.Adam(rate=0.1))
    problem = xv.separable(decays, xv.distributed.dask_rows(*lazy), lam=1e-3)
    fit = xv.solve(problem, START, over=BOX, algorithm=method, max_iter=5)
    expected = xv.solve(whole, START, over=BOX, algorithm=method, max_iter=5)
    assert error(fit.trace.value, expected.trace.value) <= 1e-9
    assert error(fit.theta, expected.theta) <= 1e-7
    assert fit.value < fit.trace.value[0]


def test_statistics_of_rows_on_a_cluster(lazy, whole):
    rows = xv.separable(decays, xv.distributed.dask_rows(*lazy), lam=1e-3)
    fit, expected = (xv.solve(problem, START, over=BOX, max_iter=3) for problem in (rows, whole))
    assert error(fit.statistics().covariance, expected.statistics().covariance) <= 1e-6
    with distributed.Client(processes=False, dashboard_address=":0"):
        fit = xv.solve(xv.separable(decays, xv.distributed.dask_rows(*lazy)), START, over=BOX, max_iter=1)
    assert "no standard errors: the client that these chunks came from is closed: close it later, or attach" in str(fit)
    with pytest.raises(xv.errors.ProblemError, match="the client that these chunks came from is closed"):
        print(fit.residuals)
