"""Rows and columns that two processes hold: the answer of one process, the same bits in both, one message for all.

Slow, hanging and dying processes; what they send to each other; who writes checkpoints.
"""

import contextlib
import datetime
import io
import os
import signal
from typing import NamedTuple

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro_conformance.members import together

from .processes import both, start
from .support import decays

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

T = np.linspace(0.0, 2.0, 200)
Y = np.exp(-np.outer(T, [1.0, 5.0])) @ np.random.default_rng(0).uniform(1, 2, (2, 6))
Y = Y + 0.01 * np.random.default_rng(1).normal(size=Y.shape)


def penalty(theta):
    return theta @ theta


START, NEAR, BOX = np.array([0.5, 8.0]), np.array([0.9, 5.5]), xv.sets.Box(0.0, 20.0)


def program(rank, store):
    """Everything that is asked of a process, in a group of two, by name."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    group = xv.distributed.TorchGroup()
    own = Own(rank, group, slice(100 * rank, 100 * rank + 100), slice(3 * rank, 3 * rank + 3))
    parts = collectives, solves, mini_batches, sent, checkpoints, failures
    found = {name: x for part in parts for name, x in part(own, store).items()}
    dist.destroy_process_group()
    return found


class Own(NamedTuple):
    """What a process holds: its rows or its columns."""

    rank: int
    group: xv.distributed.TorchGroup
    rows: slice
    columns: slice

    def chunks(self, rows=40):
        return xv.RowChunks.cut(T[self.rows], Y[self.rows], rows, self.group)

    def parts(self):
        return xv.ColumnChunks([Y[:, self.columns]], self.group)


def of_all(own):
    """The same problem by rows, by columns, and by columns that are compressed."""
    given = {"lam": 1e-3, "R": penalty, "mu": 1e-2}
    return {
        "rows": xv.separable(decays, own.chunks(), **given),
        "columns": xv.separable(decays, own.parts(), data=T, compress=False, **given),
        "compressed": xv.separable(decays, own.parts(), data=T, **given),
    }


def collectives(own, store):
    x = np.array([1.0, own.rank])
    (total,), (first,), gathered = own.group.total((x,)), own.group.first((x,)), own.group.gather((x,))
    return {"collectives": (total, first, *(part for (part,) in gathered)), "texts": own.group.texts(f"{own.rank}")}


def solves(own, store):
    found = {}
    for name, problem in of_all(own).items():
        fit = xv.solve(problem, NEAR, over=BOX, tol=1e-8)
        found |= {f"{name} theta": fit.theta, f"{name} w": fit.w, f"{name} trace": fit.trace.value}
        found |= {f"{name} status": fit.status, f"{name} counted": fit.counts.rows / fit.counts.values}
    for name, compress in (("compressed", True), ("columns", False)):
        problem = xv.separable(decays, own.parts(), data=T, lam=1e-3, compress=compress)
        s = xv.statistics.linear_theory(problem, np.array([1.0, 5.0]), BOX)
        found |= {f"{name} covariance": s.theta_covariance}
        found[f"{name} goodness"] = [s.data, s.dof, s.chi2, s.r_squared]
    fit = xv.solve(xv.separable(decays, own.chunks()), fit.theta, over=BOX)
    if own.rank == 0:
        found["shown"] = str(fit) + fit._repr_html_()  # which asks nothing of the other process
    s = fit.statistics()
    return found | {"covariance": s.covariance, "goodness": [s.data, s.dof, s.chi2, s.r_squared]}


def batched(lower=None):
    return xv.algorithms.StochasticProjectedGradient(lower=lower, certify=3, update=xv.algorithms.Adam(rate=0.05))


def mini_batches(own, store):
    found, second = {}, xv.algorithms.SecondBatch()
    for name, lower, rows in (("second", second, 40), ("uneven", None, 40 - 20 * own.rank)):
        problem = xv.separable(decays, own.chunks(rows), lam=1e-3, R=penalty, mu=1e-2)
        fit = xv.solve(problem, START, over=BOX, algorithm=batched(lower), max_iter=7)
        found |= {f"{name} batches": fit.trace.value, f"{name} batch theta": fit.theta}
    return found


def sent(own, store):
    """Bytes that are sent in each iteration, for few rows and for many."""
    bytes_sent, honest = [0], {name: getattr(dist, name) for name in ("all_reduce", "all_gather", "broadcast")}

    def counting(collective):
        def call(x, *args, **kwargs):
            bytes_sent[0] += sum(part.nbytes for part in x) if isinstance(x, list) else x.nbytes
            return collective(x, *args, **kwargs)

        return call

    def by_iteration(problem):
        at = []
        xv.solve(problem, START, over=BOX, max_iter=3, tol=0.0, callback=lambda info: at.append(bytes_sent[0]))
        return np.diff(at)

    for name, collective in honest.items():
        setattr(dist, name, counting(collective))
    found = {}
    for m in (200, 4000):
        x = np.linspace(0.0, 2.0, m)
        z = np.exp(-np.outer(x, [1.0, 5.0])) @ np.random.default_rng(0).uniform(1, 2, (2, 6))
        z = z + 0.01 * np.sin(1e3 * x)[:, None]
        rows, columns = (
            slice(m // 2 * own.rank, m // 2 * (own.rank + 1)),
            xv.ColumnChunks([z[:, own.columns]], own.group),
        )
        chunks = xv.RowChunks.cut(x[rows], z[rows], m // 5, own.group)
        found[f"rows of {m}"] = by_iteration(xv.separable(decays, chunks, lam=1e-3))
        found[f"columns of {m}"] = by_iteration(xv.separable(decays, columns, data=x, lam=1e-3, compress=False))
    for name, collective in honest.items():
        setattr(dist, name, collective)
    return found


def checkpoints(own, store):
    path, common = f"{store}{own.rank}.npz", f"{store}.npz"
    t, y = T[own.rows], Y[own.rows]
    problem = xv.separable(decays, xv.RowChunks([(t, y)], group=own.group), lam=1e-3)
    whole = xv.solve(problem, START, over=BOX, max_iter=3)
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        half = xv.solve(problem, START, over=BOX, max_iter=1, checkpoint=path, progress=True)
    found = {"printed": printed.getvalue(), "written": os.path.exists(path)}
    xv.solve(problem, START, over=BOX, max_iter=1, checkpoint=common)
    again = (xv.solve(problem, START, over=BOX, max_iter=3, resume=common), xv.solve(problem, half, max_iter=3))
    found["gone on"] = [fit.trace.value for fit in (whole, *again)]
    other = xv.separable(decays, xv.RowChunks([(t, y + own.rank)], group=own.group), lam=1e-3)  # in process 1
    found["other rows"] = said(lambda: xv.solve(other, START, over=BOX, max_iter=3, resume=common))
    nowhere = os.path.join(common, "no", "folder")
    return found | {"no folder": said(lambda: xv.solve(problem, START, over=BOX, checkpoint=nowhere))}


def said(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def failures(own, store):
    def fails(info):
        if own.rank == 1 and info.iteration == 2:
            raise ValueError("no such folder")
        return info.w is None  # which of rows takes a pass of both

    def broken(theta, t):
        if own.rank == 1:
            raise KeyError("no such sample")
        return decays(theta, t)

    found = {}
    for name, problem in (("rows", xv.separable(decays, own.chunks(), lam=1e-3)), ("columns", of_all(own)["columns"])):
        found[f"callback, {name}"] = said(lambda problem=problem: xv.solve(problem, START, over=BOX, callback=fails))
    mine = Y[:, own.columns]
    for name, compress in (("compressed", True), ("columns", False)):
        for what, passes in {"short": [[mine], [Y[:, 3:4]]], "empty": [[Y[:, :0]]], "complex": [[1j * Y]],
                             "rows": [[Y[1:]]]}.items():  # fmt: skip

            def source(passes=passes):
                return iter(passes.pop(0) if len(passes) > 1 else passes[0])

            parts = xv.ColumnChunks(source if own.rank else [mine], own.group)
            problem = xv.separable(decays, parts, data=T, compress=compress)
            found[f"{what} {name}"] = said(lambda problem=problem: xv.solve(problem, START, over=BOX).statistics())
    return found | {"error": said(lambda: xv.value_and_gradient(xv.separable(broken, own.chunks()), START))}


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    return both(program, tmp_path_factory.mktemp("group") / "store")


@pytest.fixture(scope="module")
def whole():
    problem = xv.separable(decays, Y, data=T, lam=1e-3, R=penalty, mu=1e-2)
    return xv.solve(problem, NEAR, over=BOX, tol=1e-8)


def test_collectives_give_all_processes_the_same(processes):
    for found in processes:
        assert [x.tolist() for x in found["collectives"]] == [[2.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
        assert found["texts"] == ["0", "1"]


@pytest.mark.parametrize("kind", ["rows", "columns", "compressed"])
def test_two_processes_find_what_one_does(processes, whole, kind):
    for rank, found in enumerate(processes):
        assert found[f"{kind} status"] is xv.Status.CONVERGED
        order = np.argsort(found[f"{kind} theta"])  # which rate is which is up to the algorithm
        np.testing.assert_allclose(found[f"{kind} theta"][order], whole.theta, rtol=1e-6)
        w = whole.w if kind == "rows" else whole.w[:, 3 * rank : 3 * rank + 3]
        np.testing.assert_allclose(found[f"{kind} w"][order, :], w, rtol=1e-5)
        if kind != "compressed":
            assert found[f"{kind} counted"] == {"rows": 200, "columns": 6}[kind]
    for name in ("theta", "trace"):
        first, second = (found[f"{kind} {name}"] for found in processes)
        assert first.tobytes() == second.tobytes()


def test_steps_are_those_of_the_columns_of_all():
    def solve(y):
        fit = xv.solve(of_columns("columns", y, compress=False), START, over=BOX, max_iter=4)
        return fit, fit._prepared.call(lambda f, theta: f.scale(theta), fit._prepared.theta)

    want, scale = solve(Y)
    for fit, found in together(2, lambda group: solve(xv.ColumnChunks([Y[:, 4 * group.rank :][:, :4]], group))):
        np.testing.assert_allclose(fit.trace.value, want.trace.value, rtol=1e-10)
        np.testing.assert_allclose(fit.theta, want.theta, rtol=1e-8)
        np.testing.assert_allclose(found, scale, rtol=1e-12)


def test_statistics_are_those_of_the_rows_of_all(processes):
    fit = xv.solve(xv.separable(decays, Y, data=T), processes[0]["rows theta"], over=BOX)
    s = fit.statistics()
    for found in processes:
        np.testing.assert_allclose(found["covariance"], s.covariance, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(found["goodness"], [s.data, s.dof, s.chi2, s.r_squared], rtol=1e-8)


@pytest.mark.parametrize("kind", ["columns", "compressed"])
def test_statistics_are_those_of_the_columns_of_all(processes, kind):
    problem = xv.separable(decays, Y, data=T, lam=1e-3)
    s = xv.statistics.linear_theory(problem, np.array([1.0, 5.0]), BOX)
    for found in processes:
        np.testing.assert_allclose(found[f"{kind} covariance"], s.theta_covariance, rtol=1e-8)
        np.testing.assert_allclose(found[f"{kind} goodness"], [s.data, s.dof, s.chi2, s.r_squared], rtol=1e-8)


def test_one_process_may_print_a_fit(processes):
    assert str(processes[0]["shown"]).count("standard errors: fit.report()") == 2


@pytest.mark.parametrize("kind", ["second", "uneven"])
def test_a_mini_batch_is_a_chunk_of_each_process(processes, kind):
    """Where one process has more chunks than the other, that one begins again meanwhile."""
    first, second = processes
    for name in (f"{kind} batches", f"{kind} batch theta"):
        assert first[name].tobytes() == second[name].tobytes()
    assert first[f"{kind} batches"][-1] < 0.9 * first[f"{kind} batches"][0]
    if kind == "uneven":
        return

    def source():
        for a in (0, 40, 80):
            both = [*range(a, min(a + 40, 100)), *range(100 + a, min(140 + a, 200))]
            yield T[both], Y[both]

    problem = xv.separable(decays, xv.RowChunks(source), lam=1e-3, R=penalty, mu=1e-2)
    method = batched(xv.algorithms.SecondBatch())
    fit = xv.solve(problem, START, over=BOX, algorithm=method, max_iter=7)
    np.testing.assert_allclose(first[f"{kind} batches"], fit.trace.value, rtol=1e-9)
    np.testing.assert_allclose(first[f"{kind} batch theta"], fit.theta, rtol=1e-8)


def first_half(theta, t):
    return decays(theta, t[:100])


def second_half(theta, t):
    return decays(theta, t[100:])


def of_columns(kind, y, compress):
    """Mini-batches of columns, of rows, and of the rows of an upper level."""
    part = (lambda a, b: xv.ColumnChunks([y.source[0][a:b]], y.group)) if isinstance(y, xv.ColumnChunks) else None
    part = part or (lambda a, b: y[a:b])
    return {
        "columns": lambda: xv.separable(decays, y, data=T, lam=1e-3, compress=compress),
        "rows": lambda: xv.separable(decays, y, data={"t": xv.Samples(T)}, lam=1e-3, compress=compress),
        "two levels": lambda: xv.bilevel(
            lower=xv.Level(first_half, part(0, 100), lam=1e-3),
            upper=xv.Level(second_half, part(100, 200)),
            data=T,
            compress=compress,
        ),
    }[kind]()


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("kind", "batch", "lower"),
    [
        ("columns", 1, None),
        ("columns", 4, None),
        ("columns", 6, None),
        ("rows", 40, xv.algorithms.SecondBatch()),
        ("two levels", 10, None),
    ],
)
def test_mini_batches_of_columns_in_uneven_parts_are_those_of_one_process(backend, kind, batch, lower):
    """Batches of which some members have no column, and those of all columns, too."""
    method = xv.algorithms.StochasticProjectedGradient(
        batch=batch, lower=lower, certify=3, update=xv.algorithms.Adam(rate=0.05)
    )

    def solve(y):
        problem = of_columns(kind, y, compress=False)
        options = {"over": BOX, "algorithm": method, "max_iter": 5, "backend": backend}
        return xv.solve(problem, START, **options)

    want, edges = solve(Y), (0, 1, 2, 6)
    for fit in together(3, lambda group: solve(xv.ColumnChunks([Y[:, slice(*edges[group.rank :][:2])]], group))):
        np.testing.assert_allclose(fit.trace.value, want.trace.value, rtol=1e-10)
        np.testing.assert_allclose(fit.theta, want.theta, rtol=1e-9)
        assert fit.counts.rows == want.counts.rows


def test_names_are_text_in_the_notebook_of_one_process():
    def shown(group):
        columns = xv.ColumnChunks([Y], group)
        problem = xv.separable(lambda theta, t: decays(theta["<b>"], t), columns, data=T, compress=False)
        return xv.solve(problem, {"<b>": START}, over={"<b>": BOX})._repr_html_()

    for text in together(2, shown):
        assert "&lt;b&gt;[0]" in text
        assert "<b>" not in text


def test_mini_batches_of_columns_take_no_other_rows_for_w():
    def solve(group):
        method = xv.algorithms.StochasticFrankWolfe(batch=2, lower=xv.algorithms.SecondBatch())
        xv.solve(of_columns("columns", xv.ColumnChunks([Y[:, :3]], group), False), np.ones(2), algorithm=method)

    with pytest.raises(ProblemError, match="lower must be left out where each right-hand side has w of its own"):
        together(2, solve)


def test_a_process_that_fails_ends_all_with_its_message(processes):
    first, second = (str(found["error"]) for found in processes)
    assert first.startswith("GroupError: process 1 of 2 failed")
    assert second.startswith("ModelError")
    assert "no such sample" in first
    assert "no such sample" in second


@pytest.mark.parametrize("name", ["compressed", "columns"])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("short", "the same columns on every pass; got 1 of them on this pass and 3 before"),
        ("empty", "source of ColumnChunks must yield at least one row and one column; got none"),
        ("rows", "must have the same number of rows; got 200 and y, chunk 0, of shape (199, 6)"),
    ],
)
def test_chunks_of_one_process_that_are_none_end_all(processes, name, what, message):
    first, second = (str(found[f"{what} {name}"]) for found in processes)
    assert message in second
    assert first == f"GroupError: process 1 of 2 failed: {second}"


@pytest.mark.parametrize("name", ["compressed", "columns"])
def test_real_and_complex_columns_do_not_go_together(processes, name):
    first, second = (str(found[f"complex {name}"]) for found in processes)
    assert first == second
    assert "complex" in first.partition("all processes must have the same")[2]


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_a_callback_that_fails_in_one_process_ends_all_with_its_message(processes, kind):
    """Though the others are in a pass over all rows then, for the w that their callbacks ask for."""
    first, second = (str(found[f"callback, {kind}"]) for found in processes)
    assert second == "ValueError: no such folder"
    assert first == f"GroupError: process 1 of 2 failed: {second}"


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_what_is_sent_does_not_depend_on_the_number_of_rows(processes, kind):
    for found in processes:
        few, many = (found[f"{kind} of {m}"] for m in (200, 4000))
        np.testing.assert_array_equal(few, many)
        assert few.size == 2
        assert 0 < few.max() < 10_000


def test_the_first_process_shows_progress(processes):
    shown, silent = (str(found["printed"]) for found in processes)
    assert "/1 [" in shown
    assert not silent


def test_the_first_process_writes_checkpoints_and_all_read_them(processes):
    assert [bool(found["written"]) for found in processes] == [True, False]
    for found in processes:
        whole, resumed, continued = found["gone on"]
        assert resumed.tobytes() == continued.tobytes() == whole.tobytes()
        assert "lower.y.source[0][1] has other values" in str(found["other rows"])
    first, second = (str(found["no folder"]) for found in processes)
    assert "Error: [Errno" in first
    assert second.startswith("GroupError: process 0 of 2 failed: ")
    assert first in second


def lost(rank, store, how):
    """A solve in which process 1 is lost, or interrupted."""
    torch.set_num_threads(1)
    given = {"init_method": f"file://{store}", "rank": rank, "world_size": 2}
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=1), **given)
    t = np.linspace(rank, rank + 1.0, 100)
    rows = xv.RowChunks([(t, np.exp(-t))], group=xv.distributed.TorchGroup())

    def lose(info):
        if rank == 1 and how == "Ctrl-C":
            raise KeyboardInterrupt
        if rank == 1:
            os.kill(os.getpid(), getattr(signal, how))

    xv.solve(xv.separable(decays, rows), np.array([5.0]), over=BOX, callback=lose)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no signal stops a process here")
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP", "Ctrl-C"])
def test_a_process_that_is_lost_or_hangs_ends_the_others_with_one_message(tmp_path, how):
    first, second = (start(lost, rank, tmp_path / "store", how) for rank in range(2))
    try:
        assert "GroupError: another process of the group ended or could not be reached" in first.raised()
        if how == "Ctrl-C":  # it says nothing more to the others, who would take it for what they wait for
            own = second.raised()
            assert "KeyboardInterrupt" in own
            assert "GroupError" not in own
    finally:
        second.process.kill()
