"""Files as sources of chunks: read as arrays are, in whole stored chunks, the next one while one is in use."""

import os
import pickle
import signal
import threading
import time
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import zarr

import xvarpro as xv
from xvarpro.errors import ModelError, ProblemError
from xvarpro.problem.stored import CHUNK_BYTES, THREAD_BYTES, FileRows, length, sliceable

from .support import BACKENDS, Watched, decays, error, posix, rng
from .test_streamed import BOX, SIGNAL, START, T

TABLE = {"t": T, "late": T > 1.0, "step": (10 * T).astype("int32")}
WIDE = rng(2).normal(size=(4, 500))
KINDS = ("npy", "zarr", "hdf5")


def of_table(theta, d):
    xp = xv.array_namespace(theta)
    scale = xp.where(d["late"], xp.full_like(d["t"], 0.5), xp.ones_like(d["t"]))
    return decays(theta, d["t"] + scale + 0.1 * xp.astype(d["step"], d["t"].dtype))


def stored(kind, folder, chunks=(20,), **arrays):
    """Arrays of files, by name."""
    if kind == "npy":
        for name, x in arrays.items():
            np.save(folder / f"{name}.npy", x)
        return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in arrays}
    if kind == "zarr":
        for name, x in arrays.items():
            path = str(folder / "arrays.zarr" / name)
            zarr.open_array(path, mode="w", shape=x.shape, chunks=chunks, dtype=x.dtype)[:] = x
        return {name: zarr.open_array(str(folder / "arrays.zarr" / name), mode="r+") for name in arrays}
    with h5py.File(folder / "arrays.h5", "w") as file:
        for name, x in arrays.items():
            file.create_dataset(name, data=x, chunks=chunks, compression="gzip")
    return dict(h5py.File(folder / "arrays.h5").items())


def evaluate(chunks, M=decays, backend=None):
    return xv.value_and_gradient(xv.separable(M, chunks), START, backend=backend)


def reading():
    """Threads that read a chunk."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("xvarpro")]


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "cupy"], indirect=True)
def test_files_are_read_as_arrays_are(kind, backend, tmp_path):
    file = stored(kind, tmp_path, y=SIGNAL, **TABLE)
    data = {name: file[name] for name in TABLE} | {"unit": 1.0}  # what is no array is the same in every chunk
    want, want_gradient = xv.value_and_gradient(xv.separable(of_table, SIGNAL, data=TABLE), START)
    for rows in (None, 40):
        value, gradient = evaluate(xv.RowChunks.cut(data, file["y"], rows), of_table, backend.name)
        assert error(value, want) <= 1e-12
        assert error(gradient, want_gradient) <= 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_a_solve_from_a_file_is_that_from_memory(kind, tmp_path):
    file = stored(kind, tmp_path, t=T, y=SIGNAL)
    want, fit = (
        xv.solve(xv.separable(decays, xv.RowChunks.cut(t, y, 40)), START, over=BOX, tol=1e-9)
        for t, y in ((T, SIGNAL), (file["t"], file["y"]))
    )
    same_bits(fit, want)
    assert fit.recipe.fingerprints == want.recipe.fingerprints
    assert not reading()


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_a_file(kind, tmp_path):
    y = stored(kind, tmp_path, chunks=(4, 60), y=WIDE)["y"]
    for columns in (None, 150):
        L = xv.compress(xv.ColumnChunks.cut(y, columns))
        np.testing.assert_allclose(L @ L.T, WIDE @ WIDE.T, rtol=1e-12)
    problem = xv.separable(decays, xv.ColumnChunks.cut(y, 150), data=T[:4], lam=0.1)
    fit, want = (xv.solve(p, START, max_iter=2) for p in (problem, xv.separable(decays, WIDE, data=T[:4], lam=0.1)))
    assert error(fit.w, want.w) <= 1e-9
    assert not reading()


@pytest.mark.parametrize(
    ("chunks", "width", "want"),
    [
        ([None], 8, CHUNK_BYTES // 64),  # about 64 MB
        ([(1000, 8)], 8, CHUNK_BYTES // 64 // 1000 * 1000),  # in whole stored chunks
        ([(600, 8), (1000, 8)], 8, CHUNK_BYTES // 128 // 3000 * 3000),  # of both arrays
        ([(10_000, 50)], 10_000, 10_000),  # at least one
        ([(99_991, 8), (100_000, 8)], 100, 100_000),  # the longer ones, where those of both would be too much
        ([((10, 20), (8,))], 8, CHUNK_BYTES // 64),  # Dask's differ from each other
    ],
)
def test_chunks_are_whole_stored_ones(chunks, width, want):
    arrays = [SimpleNamespace(shape=(10**7, width), dtype=np.dtype("float64"), chunks=c) for c in chunks]
    assert length(arrays, axis=0) == want
    turned = [SimpleNamespace(shape=x.shape[::-1], dtype=x.dtype, chunks=x.chunks and x.chunks[::-1]) for x in arrays]
    assert length(turned, axis=1) == want


def test_what_slices_to_something_else_is_read_when_it_is_sliced():
    """As TensorStore, whose slices are promises."""

    class Promise:
        dtype = np.dtype("float64")

        def __init__(self, x):
            self.x, self.shape = x, x.shape

        def __getitem__(self, key):
            return Promise(self.x[key])

        def __array__(self, dtype=None, copy=None):
            return self.x

    value, _ = evaluate(xv.RowChunks.cut(Promise(T), Promise(SIGNAL), 40))
    assert error(value, evaluate(xv.RowChunks.cut(T, SIGNAL, 40))[0]) == 0


# -- memory maps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_map_and_its_views_are_read_as_arrays_are(order, tmp_path):
    x = np.asarray(rng(0).normal(size=(60, 9)), order=order)
    np.save(tmp_path / "x.npy", x)
    kept = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert isinstance(sliceable(kept, 0), FileRows) is (order == "C")
    for view, want in ((kept, x), (kept[7:50], x[7:50]), (kept[:, 3], x[:, 3]), (kept[::-2], x[::-2])):
        found = [y for _, y in xv.RowChunks.cut(None, view, 13).source()]
        np.testing.assert_array_equal(np.concatenate(found), want)
    np.testing.assert_array_equal(np.concatenate(list(xv.ColumnChunks.cut(kept, 4)), axis=1), x)


def test_a_map_of_records_is_read_from_its_file(tmp_path):
    record = np.zeros(60, dtype=[("a", "<f8"), ("b", ">i2"), ("c", "<f4", (3,))])
    record["b"], record["c"] = np.arange(60), rng(0).normal(size=(60, 3))
    (tmp_path / "x").write_bytes(b"head" + record.tobytes())
    kept = np.memmap(tmp_path / "x", dtype=record.dtype, mode="r", offset=4)
    np.testing.assert_array_equal(sliceable(kept, 0)[11:31,], record[11:31])


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_what_was_written_to_a_map_counts(mode, tmp_path):
    np.save(tmp_path / "y.npy", SIGNAL)
    y = np.load(tmp_path / "y.npy", mmap_mode=mode)
    y[:] = 2 * SIGNAL
    value, _ = evaluate(xv.RowChunks.cut(T, y, 40))
    assert error(value, evaluate(xv.RowChunks.cut(T, 2 * SIGNAL, 40))[0]) == 0


def test_the_chunks_of_a_map_do_not_hold_it(tmp_path):
    x = np.zeros((4000, 100))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", x[:, 0])
    kept, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    chunks = xv.RowChunks.cut(kept, y, 3000)
    assert len(pickle.dumps(chunks)) < 10_000
    for data, y in pickle.loads(pickle.dumps(chunks)).source:
        assert not np.shares_memory(data, kept)
        assert data.base is None or data.base.nbytes == data.nbytes
        assert y.base is None or y.base.nbytes == y.nbytes


def test_maps_are_read_ahead_where_a_chunk_is_long_to_copy(tmp_path):
    np.save(tmp_path / "y.npy", np.zeros(THREAD_BYTES // 4))
    y = np.load(tmp_path / "y.npy", mmap_mode="r")
    long, short = (xv.RowChunks.cut(y, y, THREAD_BYTES // size).source for size in (8, 16))
    assert isinstance(long, xv.ReadAhead)
    assert not isinstance(short, xv.ReadAhead)
    assert not isinstance(xv.RowChunks.cut(np.array(y), np.array(y)).source, xv.ReadAhead)


# -- files that fail ---------------------------------------------------------------------------------------------------


def shortened(folder):
    _, chunks = reads("npy", folder)
    yield chunks
    os.truncate(folder / "t.npy", 128 + 8 * 50)


def removed(folder):
    _, chunks = reads("npy", folder)
    yield chunks
    os.remove(folder / "y.npy")


def damaged(folder):
    _, chunks = reads("zarr", folder)
    yield chunks
    (path,) = (folder / "arrays.zarr" / "t").rglob("2")
    path.write_bytes(path.read_bytes()[:20])


def closed(folder):
    file, chunks = reads("hdf5", folder)
    yield chunks
    file["t"].file.close()


def resized(folder):
    file, chunks = reads("zarr", folder)
    yield chunks
    file["t"].resize((50,))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (shortened, r"data, chunk 2, rows 40 to 60, could not be read: EOFError: .*t.npy has become shorter"),
        (removed, r"y, chunk 0, rows 0 to 20, could not be read: FileNotFoundError: .*y.npy"),
        (damaged, r"data, chunk 2, rows 40 to 60, could not be read: .*"),
        (closed, r"data, chunk 0, rows 0 to 20, could not be read: .*"),
        (resized, r"data, chunk 2, must have 20 rows from 40 to 60; got shape \(10,\)"),
    ],
)
def test_a_file_that_fails_is_an_error_that_names_the_chunk(make, match, tmp_path):
    made = make(tmp_path)
    chunks = next(made)
    evaluate(chunks)
    next(made, None)
    with pytest.raises(ProblemError, match=match):
        evaluate(chunks)
    assert not reading()


@pytest.mark.parametrize("kind", ["zarr", "hdf5"])
def test_a_file_is_not_an_array(kind, tmp_path):
    file = stored(kind, tmp_path, t=T, y=SIGNAL)
    group = zarr.open_group(str(tmp_path / "group.zarr"), mode="w") if kind == "zarr" else file["t"].file
    with pytest.raises(
        ProblemError, match=r"data must be a tree of arrays; got a (Group|File), .*\{'t': file\['t'\]\}"
    ):
        xv.RowChunks.cut(group, file["y"])
    with pytest.raises(ProblemError, match=r"y must be an array \(m, k\); got"):
        xv.ColumnChunks.cut(file["y"])


def test_lengths_and_sources_that_cannot_be():
    supply = iter([(T, SIGNAL)] * 2)
    for message, call in (
        (r"columns must be a whole number > 0 per chunk; got 2\.5", lambda: xv.ColumnChunks.cut(WIDE, 2.5)),
        (r"cube\.reshape\(ny \* nx, m\)\.T", lambda: xv.ColumnChunks.cut(np.ones((2, 3, 4)))),
        (r"source of ReadAhead must be a list of chunks or a function", lambda: xv.ReadAhead(iter([]))),
        ("must start a fresh pass", lambda: evaluate(xv.RowChunks(xv.ReadAhead(lambda: supply)))),
        ("at least one chunk", lambda: evaluate(xv.RowChunks(xv.ReadAhead([])))),
    ):
        with pytest.raises(ProblemError, match=message):
            call()


def same_bits(fit, want):
    for name in ("theta", "w", "residuals"):
        np.testing.assert_array_equal(getattr(fit, name), getattr(want, name))


# -- reading ahead -----------------------------------------------------------------------------------------------------


def watched(**how):
    return Watched(T, SIGNAL, size=10, **how)


def test_the_next_chunk_is_read_while_one_is_in_use_and_no_other():
    """The model waits for it: without a thread it never came."""
    source, calls, seen = watched(), [], []

    def M(theta, t):
        turn, i = divmod(len(calls) - 1, 9)  # after a first look, which is one call
        if 0 <= i < 8 and turn >= 0:
            want, until = 1 + 9 * turn + i + 2, time.monotonic() + 10
            while source.asked < want:
                assert time.monotonic() < until, "the next chunk was not read"
                time.sleep(0.001)
            seen.append(source.asked - want)
        calls.append(1)
        return decays(theta, t)

    problem = xv.separable(M, xv.RowChunks(xv.ReadAhead(source)))
    xv.value_and_gradient(problem, START)
    assert max(seen) == 0, "one chunk ahead, no more"
    assert source.asked == 1 + 2 * 9, "a look at the first chunk, which reads no other, and two passes"
    assert source.most <= 2, "both arrays of the one that is in use"
    assert source.ended == 3
    assert not reading()


def test_reading_ahead_changes_no_bit():
    source = watched()
    want, *found = (
        xv.solve(xv.separable(decays, xv.RowChunks(given)), START, over=BOX, tol=1e-9)
        for given in (source, xv.ReadAhead(source), xv.ReadAhead(list(source())))
    )
    for fit in found:
        same_bits(fit, want)


def test_a_source_of_another_frameworks_arrays_keeps_their_digits(backend):
    """Precision, of JAX's arrays, belongs to a thread."""
    xp = backend.xp

    def source():
        for a in range(0, 90, 30):
            yield xp.asarray(T[a : a + 30]), xp.asarray(SIGNAL[a : a + 30])

    value, gradient = evaluate(xv.RowChunks(xv.ReadAhead(source)), backend=backend.name)
    want, want_gradient = xv.value_and_gradient(xv.separable(decays, SIGNAL, data=T), START)
    assert error(value, want) <= 1e-12
    assert error(gradient, want_gradient) <= 1e-12


def test_settings_of_the_context_hold_in_the_source():
    seen = []

    def source():
        for part in (T[:40], T[40:]):
            seen.append(np.geterr()["over"])
            yield part, np.cos(part)

    evaluate(xv.RowChunks(source))
    evaluate(xv.RowChunks(xv.ReadAhead(source)))
    assert len(set(seen)) == 1


@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt, SystemExit])
def test_an_error_of_the_source_comes_where_its_chunk_is_due(failure):
    def fail(i):
        if i == 3:
            raise failure("disk on fire")

    source, calls = watched(fail=fail), []

    def M(theta, t):
        calls.append(1)
        return decays(theta, t)

    with pytest.raises(failure, match="disk on fire"):
        evaluate(xv.RowChunks(xv.ReadAhead(source)), M)
    assert len(calls) == 1 + 3
    assert source.ended == 2
    assert not reading()


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_pass_that_ends_early_leaves_no_thread_and_closes_its_source(failure):
    source, calls = watched(wait=0.01), []

    def M(theta, t):
        calls.append(1)
        if len(calls) == 4:
            raise failure
        return decays(theta, t)

    with pytest.raises(ModelError if failure is ValueError else failure) as kept:
        evaluate(xv.RowChunks(xv.ReadAhead(source)), M)
    assert kept.value is not None  # its traceback holds the pass
    assert source.ended == 2
    assert source.asked == 1 + 4
    assert not reading()


@posix
def test_an_interrupt_while_a_chunk_is_due():
    def fail(i):
        if i == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    source = watched(fail=fail)
    with pytest.raises(KeyboardInterrupt):
        evaluate(xv.RowChunks(xv.ReadAhead(source)))
    assert (source.ended, source.asked) == (2, 1 + 3)
    assert not reading()


def test_a_thread_that_cannot_start_is_an_error(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    source = watched()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start"):
        evaluate(xv.RowChunks(xv.ReadAhead(source)))
    assert source.ended == 2


def test_mini_batches_are_read_when_they_are_due():
    found = []
    for wrap in (lambda source: source, xv.ReadAhead):
        source = watched()
        problem = xv.separable(decays, xv.RowChunks(wrap(source)), lam=0.1)
        fit = xv.solve(problem, START, over=BOX, algorithm=xv.algorithms.StochasticFrankWolfe(), max_iter=5)
        found.append((*fit.theta, source.asked))
    assert found[0] == found[1]
    assert not reading()


def reads(kind, folder):
    """The times and the signal as files."""
    file = stored(kind, folder, t=T, y=SIGNAL)
    return file, xv.RowChunks.cut(file["t"], file["y"], 20)
