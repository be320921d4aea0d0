"""The list of backends, as data: every test that takes `backend` runs on all of them."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from xvarpro import backends

from .support import BACKENDS, no_cuda


@pytest.fixture(params=BACKENDS)
def backend(request):
    """A backend, in float64: JAX arrays keep their digits for as long as the test lasts."""
    name = request.param
    if name == "cupy" and (reason := no_cuda("cupy")):
        pytest.skip(reason)
    chosen = backends.get(name)
    with float64(chosen):
        yield chosen


def float64(backend):
    if backend.name != "jax":
        return nullcontext()
    import jax

    return jax.enable_x64(True)
