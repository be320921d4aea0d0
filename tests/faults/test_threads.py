"""Threads that solve at the same time, and processes that are forked."""

import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import xvarpro as xv
from tests.support import HOST_BACKENDS, T, decays, host
from xvarpro import backends
from xvarpro_conformance.frameworks import hooks


def task(i):
    """A problem, a start and a method: another for every i, in both dtypes and four shapes."""
    kind, m = ("float64", "float32")[i % 2], 20 + 2 * (i % 4)
    t, rates = T[:m], np.array([1.0 + 0.2 * i, 5.0])
    y = np.exp(-np.outer(t, rates)) @ np.array([2.0, 1.0 + i])
    problem = xv.separable(decays, y.astype(kind), data={"t": t.astype(kind)}, lam=1e-6 * (1 + i), solver=xv.lower.QR())
    method = (None, xv.algorithms.cr_varpro(), xv.algorithms.SpectralProjectedGradient())[i % 3]
    return problem, np.array([0.5, 8.0], kind), method


def answer(i, name):
    """What `task` comes to: every number of it, and the settings of the thread afterwards."""
    problem, theta0, method = task(i)
    before = hooks(backends.get(name)).settings()
    fit = xv.solve(problem, theta0, over=xv.sets.Box(0.0, 10.0), algorithm=method, backend=name, max_iter=6)
    assert hooks(backends.get(name)).settings() == before
    return host(fit.theta).tobytes(), host(fit.w).tobytes(), fit.value, fit.gap, fit.status, fit.trace.value.tobytes()


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_eight_threads_with_problems_of_their_own_give_the_bits_of_one(name):
    different = range(8) if name != "jax" else (1, 2)  # in both dtypes, of which each is compiled, fast
    tasks = [different[i % len(different)] for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: answer(i, name), tasks))
    alone = {i: answer(i, name) for i in set(tasks)}
    assert together == [alone[i] for i in tasks]


def test_functions_of_jax_are_kept_for_threads_that_look_them_up_at_once():
    backend = type(backends.get("jax"))()
    failed, interval = Counter(), sys.getswitchinterval()

    def look_up(i):
        for k in range(200):
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


def test_threads_that_ask_for_a_backend_at_once_get_the_same(plug):
    name = plug("asked", "    import time; time.sleep(0.01)  # other threads come meanwhile")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: backends.get(name), range(16)))
    assert len({id(x) for x in found}) == 1
