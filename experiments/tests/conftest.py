"""A backend, in float64, for every test that takes `backend`."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.support import BACKENDS, no_cuda
from xvarpro import backends


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param == "cupy" and (reason := no_cuda("cupy")):
        pytest.skip(reason)
    chosen = backends.get(request.param)
    with double(chosen):
        yield chosen


def double(chosen):
    """JAX arrays keep their digits for as long as the test lasts."""
    if chosen.name != "jax":
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def pytest_collection_modifyitems(items):
    """What compiles a program of its own on JAX runs with ``-m thorough``; `test_backends` runs JAX in any case."""
    for item in items:
        if "jax" in item.name and item.path.parent.parent.name == "experiments" and item.path.stem != "test_backends":
            item.add_marker(pytest.mark.thorough)
