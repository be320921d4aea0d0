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


# Where every case compiles a program of its own, for seconds: on JAX these run with `-m thorough`.
COMPILES_FOR_LONG = (
    "test_combinators", "test_constrained_weights", "test_faces", "test_fourier", "test_in_face", "test_active_set",
    "test_krylov", "test_matrix_sets", "test_operators", "test_reseed", "test_rivals", "test_sets", "test_stochastic",
    "test_vector_sets", "test_frank_wolfe_steps", "test_autoencoder", "test_deblurring", "test_deconvolution",
    "test_fewshot", "test_algorithms", "test_compression",
)  # fmt: skip


# One solve on JAX, with arrays from everywhere: one case of each runs in any case.
VARIANTS = (
    "test_results_go_home", "test_result_does_not_share_memory_across_frameworks", "test_memory_of_every_sort",
    "test_data_may_come_from_any_framework", "test_round_trip_through_a_file",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    met = set()
    for item in items:
        compiled = "jax" in item.name or "compiled" in item.name
        name = item.name.partition("[")[0]
        variant = "quasi-Newton" in item.name or (name in VARIANTS and name in met)
        if compiled and (variant or item.path.stem in COMPILES_FOR_LONG):
            item.add_marker(pytest.mark.thorough)
        elif compiled:
            met.add(name)


def float64(backend):
    if backend.name != "jax":
        return nullcontext()
    import jax

    return jax.enable_x64(True)
