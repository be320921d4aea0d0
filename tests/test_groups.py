"""Rows and columns that two processes hold: the answer of one process, the same bits in both, one message for all."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

PROGRAM = """
import sys
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
    import xvarpro as xv

    t = np.linspace(0.0, 2.0, 200)
    y = np.exp(-np.outer(t, [1.0, 5.0])) @ np.random.default_rng(0).uniform(1, 2, (2, 6))
    y = y + 0.01 * np.random.default_rng(1).normal(size=y.shape)
    problem = xv.separable(
        lambda theta, t: xv.array_namespace(theta).exp(-t[:, None] * theta),
        y,
        data=t,
        lam=1e-3,
        R=lambda theta: theta @ theta,
        mu=1e-2,
    )
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


def test_a_process_that_fails_ends_all_with_its_message(processes):
    first, second = (str(found["error"]) for found in processes)
    assert first.startswith("GroupError: process 1 of 2 failed")
    assert second.startswith("ModelError")
    assert "no such sample" in first
    assert "no such sample" in second
