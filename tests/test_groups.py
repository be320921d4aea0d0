"""Rows and columns that two processes hold: the answer of one process, the same bits in both, one message for all.

Slow, hanging and dying processes; what they send to each other; who writes checkpoints.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.conformance.members import together
from xvarpro.errors import ProblemError

pytest.importorskip("torch")

T = np.linspace(0.0, 2.0, 200)
Y = np.exp(-np.outer(T, [1.0, 5.0])) @ np.random.default_rng(0).uniform(1, 2, (2, 6))
Y = Y + 0.01 * np.random.default_rng(1).normal(size=Y.shape)


def decays(theta, t):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)


PROGRAM = """
import contextlib, io, os, sys, time
import numpy as np, torch, torch.distributed as dist, xvarpro as xv

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
group = xv.distributed.TorchGroup()
t = np.linspace(0.0, 2.0, 200)
y = np.exp(-np.outer(t, [1.0, 5.0])) @ np.random.default_rng(0).uniform(1, 2, (2, 6))
y = y + 0.01 * np.random.default_rng(1).normal(size=y.shape)

def M(theta, t):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)

def broken(theta, t):
    if rank == 1:
        raise KeyError("no such sample")
    return M(theta, t)

def penalty(theta):
    return theta @ theta

rows, columns = slice(100 * rank, 100 * rank + 100), slice(3 * rank, 3 * rank + 3)
chunks = xv.RowChunks.cut(t[rows], y[rows], 40, group)
own = xv.ColumnChunks([y[:, columns]], group)
problems = {
    "rows": xv.separable(M, chunks, lam=1e-3, R=penalty, mu=1e-2),
    "columns": xv.separable(M, own, data=t, lam=1e-3, R=penalty, mu=1e-2, compress=False),
    "compressed": xv.separable(M, own, data=t, lam=1e-3, R=penalty, mu=1e-2),
}
found = {}
for name, problem in problems.items():
    value, gradient = xv.value_and_gradient(problem, np.array([0.5, 8.0]))
    fit = xv.solve(problem, np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 20.0), tol=1e-8)
    found |= {name + " value": value, name + " gradient": gradient, name + " theta": fit.theta, name + " w": fit.w}
    found |= {name + " trace": fit.trace.value, name + " status": str(fit.status)}
    found[name + " counted"] = fit.counts.rows / fit.counts.values
for name, compress in (("compressed", True), ("columns", False)):
    s = xv.statistics.linear_theory(
        xv.separable(M, own, data=t, lam=1e-3, compress=compress), np.array([1.0, 5.0]), xv.sets.Box(0.0, 20.0)
    )
    found |= {name + " covariance": s.theta_covariance, name + " w errors": s.w_stderr}
    found[name + " goodness"] = [s.data, s.dof, s.chi2, s.r_squared]
if rank == 0:
    found["shown"] = str(fit) + fit._repr_html_()  # which asks nothing of the other process
s = xv.solve(xv.separable(M, chunks), fit.theta, over=xv.sets.Box(0.0, 20.0)).statistics()
found |= {"covariance": s.covariance, "goodness": [s.data, s.dof, s.chi2, s.r_squared]}

second = xv.algorithms.SecondBatch()
for name, lower, rows_each in (("same", None, 40), ("second", second, 40), ("uneven", None, 40 - 20 * rank)):
    method = xv.algorithms.StochasticProjectedGradient(lower=lower, certify=5, update=xv.algorithms.Adam(rate=0.05))
    problem = xv.separable(M, xv.RowChunks.cut(t[rows], y[rows], rows_each, group), lam=1e-3, R=penalty, mu=1e-2)
    fit = xv.solve(problem, np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 20.0), algorithm=method, max_iter=20)
    found |= {name + " batches": fit.trace.value, name + " batch theta": fit.theta}
found["uncertified theta"] = xv.solve(  # the uneven ones, by mini-batches alone
    problem, np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 20.0), max_iter=4,
    algorithm=xv.algorithms.StochasticProjectedGradient(certify=100, update=xv.algorithms.SGD(rate=0.05)),
).theta
start, box = np.array([0.5, 8.0]), xv.sets.Box(0.0, 20.0)
fit = xv.solve(
    problems["columns"], start, over=box, max_iter=12,
    algorithm=xv.algorithms.StochasticFrankWolfe(batch=2, certify=4, seed=1),
)
found |= {"columns batches": fit.trace.value, "columns batch theta": fit.theta, "columns batch rows": fit.counts.rows}

def slow(theta, t):
    time.sleep(0.01 * rank)
    return M(theta, t)

fits = [xv.solve(xv.separable(model, chunks, lam=1e-3), start, over=box) for model in (M, slow)]
found["slow"] = [fit.trace.value for fit in fits]

# what is sent in each iteration: rows of levels, and columns, whatever their number
sent = [0]

def counting(collective):
    def call(x, *args, **kwargs):
        sent[0] += sum(part.nbytes for part in x) if isinstance(x, list) else x.nbytes
        return collective(x, *args, **kwargs)
    return call

for name in ("all_reduce", "all_gather", "broadcast"):
    setattr(dist, name, counting(getattr(dist, name)))

def bytes_by_iteration(problem):
    at = []
    xv.solve(problem, start, over=box, max_iter=4, tol=0.0, callback=lambda info: at.append(sent[0]))
    return np.diff(at)

for m in (200, 20_000):
    x = np.linspace(0.0, 2.0, m)
    z = np.exp(-np.outer(x, [1.0, 5.0])) @ np.random.default_rng(0).uniform(1, 2, (2, 6))
    z = z + 0.01 * np.sin(1e3 * x)[:, None]
    own_rows, parts = slice(m // 2 * rank, m // 2 * (rank + 1)), xv.ColumnChunks([z[:, columns]], group)
    found[f"rows of {m}"] = bytes_by_iteration(
        xv.separable(M, xv.RowChunks.cut(x[own_rows], z[own_rows], m // 5, group), lam=1e-3)
    )
    found[f"columns of {m}"] = bytes_by_iteration(xv.separable(M, parts, data=x, lam=1e-3, compress=False))

# checkpoints
path, held = store + f"{rank}.npz", xv.RowChunks([(t[rows], y[rows])], group=group)
problem = xv.separable(M, held, lam=1e-3)
common = store + ".npz"
whole = xv.solve(problem, start, over=box, max_iter=4)
with contextlib.redirect_stderr(io.StringIO()) as printed:
    half = xv.solve(problem, start, over=box, max_iter=2, checkpoint=path, progress=True)
found["printed"] = printed.getvalue()
found["written"] = os.path.exists(path)
xv.solve(problem, start, over=box, max_iter=2, checkpoint=common)
found["gone on"] = [
    fit.trace.value
    for fit in (
        whole,
        xv.solve(problem, start, over=box, max_iter=4, resume=common),
        xv.solve(problem, half, max_iter=4),
    )
]
other = xv.separable(M, xv.RowChunks([(t[rows], y[rows] + rank)], group=group), lam=1e-3)  # other rows in process 1
for name, call in {
    "other rows": lambda: xv.solve(other, start, over=box, max_iter=4, resume=common),
    "no folder": lambda: xv.solve(problem, start, over=box, checkpoint=os.path.join(common, "no", "folder")),
}.items():
    try:
        call()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
def fails(info):
    if rank == 1 and info.iteration == 2:
        raise ValueError("no such folder")
    return info.w is None  # which of rows takes a pass of both

for name, problem in (("rows", xv.separable(M, chunks, lam=1e-3)), ("columns", problems["columns"])):
    try:
        xv.solve(problem, start, over=box, callback=fails)
    except Exception as error:
        found["callback, " + name] = f"{type(error).__name__}: {error}"
for name, compress in (("compressed", True), ("columns", False)):
    for what, passes in {
        "short": [[y[:, columns]], [y[:, 3:4]]], "empty": [[y[:, :0]]], "complex": [[1j * y]], "rows": [[y[1:]]]
    }.items():
        def source(passes=passes):
            return iter(passes.pop(0) if len(passes) > 1 else passes[0])
        parts = xv.ColumnChunks(source if rank else [y[:, columns]], group)
        try:
            xv.solve(xv.separable(M, parts, data=t, compress=compress), start, over=box).statistics()
        except Exception as error:
            found[what + " " + name] = f"{type(error).__name__}: {error}"
try:
    xv.value_and_gradient(xv.separable(broken, chunks), np.array([0.5, 8.0]))
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"
np.savez(out, **found)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("group")
    (folder / "program.py").write_text(PROGRAM)
    outs = [folder / f"{rank}.npz" for rank in range(2)]
    started = [
        subprocess.Popen([sys.executable, folder / "program.py", str(rank), str(folder / "store"), str(outs[rank])])
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    return [dict(np.load(out)) for out in outs]


@pytest.fixture(scope="module")
def whole():
    problem = xv.separable(decays, Y, data=T, lam=1e-3, R=lambda theta: theta @ theta, mu=1e-2)
    start = np.array([0.5, 8.0])
    return *xv.value_and_gradient(problem, start), xv.solve(problem, start, over=xv.sets.Box(0.0, 20.0), tol=1e-8)


@pytest.mark.parametrize("kind", ["rows", "columns", "compressed"])
def test_two_processes_find_what_one_does(processes, whole, kind):
    value, gradient, fit = whole
    for rank, found in enumerate(processes):
        np.testing.assert_allclose(found[f"{kind} value"], value, rtol=1e-13)
        np.testing.assert_allclose(found[f"{kind} gradient"], gradient, rtol=1e-11)
        assert str(found[f"{kind} status"]) == "Status.CONVERGED"
        order = np.argsort(found[f"{kind} theta"])  # which rate is which is up to the algorithm
        np.testing.assert_allclose(found[f"{kind} theta"][order], fit.theta, rtol=1e-6)
        w = fit.w if kind == "rows" else fit.w[:, 3 * rank : 3 * rank + 3]
        np.testing.assert_allclose(found[f"{kind} w"][order, :], w, rtol=1e-5)
    for name in ("value", "gradient", "theta", "trace"):
        first, second = (found[f"{kind} {name}"] for found in processes)
        assert first.tobytes() == second.tobytes()


def test_statistics_are_those_of_the_rows_of_all(processes):
    fit = xv.solve(xv.separable(decays, Y, data=T), processes[0]["rows theta"], over=xv.sets.Box(0.0, 20.0))
    s = fit.statistics()
    for found in processes:
        np.testing.assert_allclose(found["covariance"], s.covariance, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(found["goodness"], [s.data, s.dof, s.chi2, s.r_squared], rtol=1e-8)


@pytest.mark.parametrize("kind", ["columns", "compressed"])
def test_statistics_are_those_of_the_columns_of_all(processes, kind):
    problem = xv.separable(decays, Y, data=T, lam=1e-3)
    s = xv.statistics.linear_theory(problem, np.array([1.0, 5.0]), xv.sets.Box(0.0, 20.0))
    for rank, found in enumerate(processes):
        np.testing.assert_allclose(found[f"{kind} covariance"], s.theta_covariance, rtol=1e-8)
        np.testing.assert_allclose(found[f"{kind} goodness"], [s.data, s.dof, s.chi2, s.r_squared], rtol=1e-8)
        np.testing.assert_allclose(found[f"{kind} w errors"], s.w_stderr[:, 3 * rank : 3 * rank + 3], rtol=1e-8)


def test_one_process_may_print_a_fit(processes):
    assert str(processes[0]["shown"]).count("standard errors: fit.report()") == 2


@pytest.mark.parametrize("kind", ["same", "second", "uneven"])
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

    problem = xv.separable(decays, xv.RowChunks(source), lam=1e-3, R=lambda theta: theta @ theta, mu=1e-2)
    method = xv.algorithms.StochasticProjectedGradient(
        lower=xv.algorithms.SecondBatch() if kind == "second" else None,
        certify=5,
        update=xv.algorithms.Adam(rate=0.05),
    )
    fit = xv.solve(problem, np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 20.0), algorithm=method, max_iter=20)
    np.testing.assert_allclose(first[f"{kind} batches"], fit.trace.value, rtol=1e-9)
    np.testing.assert_allclose(first[f"{kind} batch theta"], fit.theta, rtol=1e-8)


def test_a_chunk_stands_for_all_rows_of_its_process(processes):
    """Five chunks in one process and three in the other: rows count as those of the own process, not of all."""
    theta, moved = np.array([0.5, 8.0]), np.zeros(2)
    for i in range(4):
        first, second = range(100)[40 * (i % 3) :][:40], range(100, 200)[20 * i :][:20]
        rows = [*first, *second]
        scale = np.repeat([(100 / len(first)) ** 0.5, (100 / len(second)) ** 0.5], [len(first), len(second)])[:, None]
        batch = xv.separable(
            lambda theta, data: data["scale"] * decays(theta, data["t"]),
            scale * Y[rows],
            data={"scale": scale, "t": T[rows]},
            lam=1e-3,
            R=lambda theta: theta @ theta,
            mu=1e-2,
        )
        moved = 0.9 * moved + xv.value_and_gradient(batch, theta)[1] / 200
        theta = np.clip(theta - 0.05 * moved, 0.0, 20.0)
    assert np.max(np.abs(theta - [0.5, 8.0])) > 1e-4
    for found in processes:
        np.testing.assert_allclose(found["uncertified theta"], theta, rtol=1e-10)


def test_a_mini_batch_of_columns_is_drawn_from_those_of_all(processes):
    """The same that one process draws from all of them."""
    problem = xv.separable(decays, Y, data=T, lam=1e-3, R=lambda theta: theta @ theta, mu=1e-2, compress=False)
    method = xv.algorithms.StochasticFrankWolfe(batch=2, certify=4, seed=1)
    fit = xv.solve(problem, np.array([0.5, 8.0]), over=xv.sets.Box(0.0, 20.0), algorithm=method, max_iter=12)
    assert fit.trace.value[-1] < 0.9 * fit.trace.value[0]
    for found in processes:
        np.testing.assert_allclose(found["columns batches"], fit.trace.value, rtol=1e-10)
        np.testing.assert_allclose(found["columns batch theta"], fit.theta, rtol=1e-9)
        assert found["columns batch rows"] == fit.counts.rows


def marked(theta, data):
    return decays(theta, data["t"])


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
        "rows": lambda: xv.separable(marked, y, data={"t": xv.Samples(T)}, lam=1e-3, compress=compress),
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
        batch=batch, lower=lower, certify=4, update=xv.algorithms.Adam(rate=0.05)
    )

    def solve(y):
        problem = of_columns(kind, y, compress=False)
        options = {"over": xv.sets.Box(0.0, 20.0), "algorithm": method, "max_iter": 8, "backend": backend}
        return xv.solve(problem, np.array([0.5, 8.0]), **options)

    want, edges = solve(Y), (0, 1, 2, 6)
    for fit in together(3, lambda group: solve(xv.ColumnChunks([Y[:, slice(*edges[group.rank :][:2])]], group))):
        np.testing.assert_allclose(fit.trace.value, want.trace.value, rtol=1e-10)
        np.testing.assert_allclose(fit.theta, want.theta, rtol=1e-9)
        assert fit.counts.rows == want.counts.rows


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("columns", xv.algorithms.LevenbergMarquardt()),
        ("columns", xv.algorithms.AcceleratedProjectedGradient()),
        ("two levels", xv.algorithms.cr_varpro()),
    ],
)
def test_every_algorithm_steps_by_the_columns_of_all(kind, method):
    def solve(y):
        problem = of_columns(kind, y, compress=False)
        options = {"over": xv.sets.Box(0.0, 20.0), "algorithm": method, "max_iter": 8}
        fit = xv.solve(problem, np.array([0.5, 8.0]), **options)
        return fit, fit._prepared.call(lambda f, theta: f.scale(theta), fit._prepared.theta)

    want, scale = solve(Y)
    for fit, found in together(2, lambda group: solve(xv.ColumnChunks([Y[:, 4 * group.rank :][:, :4]], group))):
        np.testing.assert_allclose(fit.trace.value, want.trace.value, rtol=1e-10)
        np.testing.assert_allclose(fit.theta, want.theta, rtol=1e-8)
        np.testing.assert_allclose(found, scale, rtol=1e-12)


def test_names_are_text_in_the_notebook_of_one_process():
    def shown(group):
        problem = xv.separable(
            lambda theta, t: decays(theta["<b>"], t), xv.ColumnChunks([Y], group), data=T, compress=False
        )
        return xv.solve(problem, {"<b>": np.array([0.5, 8.0])}, over={"<b>": xv.sets.Box(0.0, 20.0)})._repr_html_()

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


def test_a_slow_process_costs_no_digit(processes):
    for found in processes:
        undisturbed, slow = found["slow"]
        assert slow.tobytes() == undisturbed.tobytes()


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_what_is_sent_does_not_depend_on_the_number_of_rows(processes, kind):
    for found in processes:
        few, many = (found[f"{kind} of {m}"] for m in (200, 20_000))
        np.testing.assert_array_equal(few, many)
        assert few.size == 3
        assert 0 < few.max() < 10_000


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_rows_and_right_hand_sides_of_all_processes_are_counted(processes, kind):
    for found in processes:
        assert found[f"{kind} counted"] == {"rows": 200, "columns": 6}[kind]


def test_the_first_process_shows_progress(processes):
    shown, silent = (str(found["printed"]) for found in processes)
    assert "/2 [" in shown
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


LOST = """
import datetime, os, signal, sys
import numpy as np, torch.distributed as dist, xvarpro as xv

rank, store, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group(
    "gloo", init_method="file://" + store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=2)
)
t = np.linspace(rank, rank + 1.0, 100)
rows = xv.RowChunks([(t, np.exp(-t))], group=xv.distributed.TorchGroup())
problem = xv.separable(lambda theta, t: xv.array_namespace(theta).exp(-t[:, None] * theta), rows)

def lose(info):
    if rank == 1 and how == "Ctrl-C":
        raise KeyboardInterrupt
    if rank == 1:
        os.kill(os.getpid(), getattr(signal, how))

xv.solve(problem, np.array([5.0]), over=xv.sets.Box(0.0, 20.0), callback=lose)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no signal stops a process here")
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP", "Ctrl-C"])
def test_a_process_that_is_lost_or_hangs_ends_the_others_with_one_message(tmp_path, how):
    (tmp_path / "program.py").write_text(LOST)
    command = [sys.executable, str(tmp_path / "program.py")]
    first, second = (
        subprocess.Popen([*command, str(rank), str(tmp_path / "store"), how], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    )
    try:
        _, message = first.communicate(timeout=60)
    finally:
        if how == "SIGSTOP" or first.poll() is None:
            second.kill()
        _, own = second.communicate(timeout=60)
    assert first.returncode == 1
    assert "GroupError: another process of the group ended or could not be reached" in message
    if how == "Ctrl-C":  # it says nothing more to the others, who would take it for what they wait for
        assert "KeyboardInterrupt" in own
        assert "GroupError" not in own
