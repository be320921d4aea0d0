"""Threads that solve at the same time, and processes that are forked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import xvarpro as xv
from tests.support import HOST_BACKENDS, T, decays, host, linux
from xvarpro import backends


def task(i):
    """A problem, a start and a method: another for every i, in both dtypes and four shapes."""
    kind, m = ("float64", "float32")[i % 2], 20 + 2 * (i % 4)
    t, rates = T[:m], np.array([1.0 + 0.2 * i, 5.0])
    y = np.exp(-np.outer(t, rates)) @ np.array([2.0, 1.0 + i])
    problem = xv.separable(decays, y.astype(kind), data={"t": t.astype(kind)}, lam=1e-6 * (1 + i))
    method = (None, xv.algorithms.cr_varpro(), xv.algorithms.SpectralProjectedGradient())[i % 3]
    return problem, np.array([0.5, 8.0], kind), method


def answer(i, name):
    """What `task` comes to: every number of it, and the settings of the thread afterwards."""
    problem, theta0, method = task(i)
    before = backends.get(name).settings()
    fit = xv.solve(problem, theta0, over=xv.sets.Box(0.0, 10.0), algorithm=method, backend=name, max_iter=15)
    assert backends.get(name).settings() == before
    return host(fit.theta).tobytes(), host(fit.w).tobytes(), fit.value, fit.gap, fit.status, fit.trace.value.tobytes()


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_eight_threads_with_problems_of_their_own_give_the_bits_of_one(name):
    tasks = [i % 8 for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: answer(i, name), tasks))
    alone = {i: answer(i, name) for i in set(tasks)}
    assert together == [alone[i] for i in tasks]


def test_functions_of_jax_are_kept_for_threads_that_look_them_up_at_once():
    backend = type(backends.get("jax"))()
    failed, interval = Counter(), sys.getswitchinterval()

    def look_up(i):
        for k in range(500):
            try:
                backend._compile(lambda x: x, (i % 4, k % 97))
            except Exception as error:
                failed[type(error).__name__] += 1

    threads = [threading.Thread(target=look_up, args=(i,)) for i in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed
    assert len(backend._cache) == 64


def test_a_function_of_jax_is_compiled_once_and_the_oldest_is_dropped():
    backend = type(backends.get("jax"))()
    first = backend._compile(lambda x: x, "first")
    for i in range(63):
        backend._compile(lambda x: x, i)
        assert backend._compile(lambda x: -x, "first") is first
    backend._compile(lambda x: x, "one more")
    assert 0 not in backend._cache
    assert backend._compile(lambda x: -x, "first") is first


def test_threads_that_ask_for_a_backend_at_once_get_the_same():
    program = (
        "import sys, threading; from xvarpro import backends; sys.setswitchinterval(1e-6); found = []\n"
        "ts = [threading.Thread(target=lambda: found.append(backends.get('numpy'))) for _ in range(16)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]; print(len(found), len({id(x) for x in found}))"
    )
    assert run(program).split() == ["16", "1"]


# -- processes ---------------------------------------------------------------------------------------------------------


def run(program, *arguments, threads="1"):
    """What a Python of its own prints; a program that hangs fails."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout


FORKED = """
import os, sys, warnings, numpy as np, xvarpro as xv
warnings.simplefilter("ignore")  # JAX and Python warn of a fork
t = np.linspace(0.0, 2.0, 20)
def model(theta, t):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)
def solve(name):
    return xv.solve(xv.separable(model, np.exp(-t), data=t), np.array([0.5]), over=xv.sets.Box(0.0, 9.0), backend=name)
first, then, before = sys.argv[1:]
solve(first)
child = os.fork()
if not child:
    exec(before)
    try:
        print(solve(then).status.name, flush=True)
    except xv.errors.UnsupportedError as error:
        print("refused:", error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@linux
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_forked_process_is_told_at_once_that_it_has_no_threads(name):
    found = run(FORKED, name, name, "", threads="2")
    assert found.startswith("refused: ")
    assert "get_context('spawn')" in found


@linux
@pytest.mark.parametrize("first", ["numpy", "torch", "jax"])
def test_numpy_solves_in_a_forked_process_whatever_was_used_before(first):
    assert run(FORKED, first, "numpy", "", threads="2") == "CONVERGED\n"


@linux
def test_torch_solves_in_a_forked_process_of_one_thread():
    assert run(FORKED, "torch", "torch", "import torch; torch.set_num_threads(1)", threads="2") == "CONVERGED\n"
