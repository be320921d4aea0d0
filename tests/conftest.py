"""The list of backends, as data: every test that takes `backend` runs on all of them."""

from __future__ import annotations

import os
import signal
import zlib
from collections import Counter
from contextlib import nullcontext

import pytest

from xvarpro import backends

from .support import BACKENDS, no_cuda

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # a test compiles what it runs
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a job in the background of a shell: programs that tests start, and interrupt, would never end
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=BACKENDS)
def backend(request):
    """A backend, in float64: JAX arrays keep their digits for as long as the test lasts."""
    name = request.param
    if name == "cupy" and (reason := no_cuda("cupy")):
        pytest.skip(reason)
    chosen = backends.get(name)
    with float64(chosen):
        yield chosen


# NumPy under another name, with an array type of its own
BACKEND = """
import array_api_compat.numpy as xp
import numpy as np

from xvarpro.backends import get

class Array(np.ndarray):
    pass

class {name}Backend(type(get("numpy"))):
    name = "{name}"
    roots = ("{name}",)
    array_types = (Array,)

    def asarray(self, x, *, dtype=None, device=None):
        return super().asarray(x, dtype=dtype, device=device).view(Array)

    def to_numpy(self, x):
        return np.asarray(x)

{changes}
"""


@pytest.fixture
def plug(tmp_path, monkeypatch):
    """Installs a package with a backend of the name, as pip would lay it out; every test takes a name of its own."""

    def install(name, changes="", source=BACKEND, target="{name}:{name}Backend"):
        (tmp_path / f"{name}.py").write_text(source.format(name=name, changes=changes))
        info = tmp_path / f"xvarpro_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: xvarpro-{name}\nVersion: 1.0\n")
        entry = target.format(name=name)
        (info / "entry_points.txt").write_text(f"[xvarpro.backends]\n{name} = {entry}\n")
        monkeypatch.syspath_prepend(tmp_path)
        backends.registry._plugins.cache_clear()
        return name

    yield install
    backends.registry._plugins.cache_clear()
    backends.registry._of_type.cache_clear()


# Where every case compiles a program of its own, for seconds: on JAX these run with `-m thorough`. What JAX computes is
# compared with NumPy by the conformance suite in any case.
COMPILES_FOR_LONG = (
    "test_accuracy", "test_active_set", "test_algorithms", "test_batch_weights", "test_combinators", "test_compression",
    "test_constrained_weights", "test_cross_validation", "test_doubts", "test_errors", "test_faces",
    "test_fit_figures", "test_fourier", "test_implicit", "test_in_face", "test_intervals", "test_krylov",
    "test_levels", "test_levenberg_marquardt", "test_linear_theory", "test_lower",
    "test_matrix_sets", "test_minibatches", "test_models", "test_multistart", "test_norms", "test_operators",
    "test_prediction", "test_purity", "test_reduced", "test_reseed", "test_sets", "test_solve",
    "test_sparse_weights", "test_special", "test_steps", "test_stochastic", "test_streamed", "test_vector_sets",
)  # fmt: skip

# Of these files, what is about JAX, or about what compiled loops do differently, or the one run of its kind on JAX.
ON_JAX = (
    "test_a_batch_is_the_problem_of_its_rows", "test_callback_sees_every_iterate_and_can_stop",
    "test_certified_standard_deviations", "test_converged",
    "test_device_can_be_asked_for_while_jax_is_in_single_precision", "test_every_backend_takes_the_same_steps",
    "test_every_minimum_is_found_and_counted", "test_float32_jax_works_with_x64_off",
    "test_its_derivative_is_the_same_on_every_backend", "test_loss_of_rank_is_a_status",
    "test_profiles_end_where_the_objective_has_risen", "test_time_limit",
)  # fmt: skip

# Contracts that the conformance suite asks of every backend too: array-api-strict, which is slow, and Torch in double
# precision are asked there, and here with `-m thorough`. NumPy is asked in both precisions.
ASKED_BY_THE_SUITE = ("test_lower", "test_matrix_sets", "test_operators", "test_sets", "test_vector_sets")

# Of many combinations of the same things one in so many runs, always the same ones; all of them with `-m thorough`.
# Rows of a table of messages are no combinations: every one runs.
ONE_IN = {
    "test_accuracy": 2, "test_active_set": 4, "test_algorithms": 3,
    "test_constrained_weights": 3, "test_doubts": 2,
    "test_faces": 2, "test_fourier": 3, "test_in_face": 4, "test_krylov": 2,
    "test_many": 2, "test_minibatches": 2, "test_models": 2, "test_operators": 3, "test_reduced": 2, "test_rules": 3,
    "test_sets": 2, "test_stochastic": 2, "test_streamed": 2,
}  # fmt: skip
MANY = 6
MESSAGES = {"match", "message", "said"}


def pytest_collection_modifyitems(items):
    variants = Counter(_function(item) for item in items)
    for item in items:
        many = variants[_function(item)] >= MANY and not MESSAGES & set(item.fixturenames)
        combined = many and zlib.crc32(item.name.encode()) % ONE_IN.get(item.path.stem, 1)
        if combined or _compiles_for_long(item) or _asked_elsewhere(item):
            item.add_marker(pytest.mark.thorough)


def _function(item):
    return item.path, item.name.partition("[")[0]


def _compiles_for_long(item):
    if "jax" not in item.name and "compiled" not in item.name:
        return False
    long = item.path.stem in COMPILES_FOR_LONG and _function(item)[1] not in ON_JAX
    return long or "quasi-Newton" in item.name


def _asked_elsewhere(item):
    double = "float64" in item.name or "complex" in item.name
    elsewhere = "array-api-strict" in item.name or ("torch" in item.name and double)
    return item.path.stem in ASKED_BY_THE_SUITE and elsewhere


def float64(backend):
    if backend.name != "jax":
        return nullcontext()
    import jax

    return jax.enable_x64(True)
