"""The list of backends, as data: every test that takes `backend` runs on all of them."""

import signal
from collections import Counter
from contextlib import nullcontext
from itertools import combinations

import pytest

from xvarpro import backends

from .support import BACKENDS, no_cuda

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


@pytest.fixture
def hostile(plug):
    """CuPy's backend on a library that does what those of a GPU may do: see `tests/hostile.py`."""
    return backends.get(plug("hostile", source="", target="tests.hostile:HostileBackend"))


# Variants of a test function that run: on NumPy by default, elsewhere with ``-m frameworks``. What must hold for every
# framework is in the suite. NumPy has every value of every parameter, up to 12 variants, each with two values of the
# others, up to 8.
MOST = {"numpy": 12, "cupy": 12, "torch": 2, "array-api-strict": 1, "jax": 1}
ENOUGH = 8

# Files where every variant compiles a program of its own, for seconds: JAX is asked them with ``-m thorough``, but for
# what is about JAX or compiled loops, or is the one run of its kind. The suite compares what JAX computes in any case.
COMPILES_FOR_LONG = (
    "test_accuracy", "test_active_set", "test_algorithms", "test_batch_bounds", "test_batch_chunks",
    "test_batch_shared", "test_batch_statistics", "test_batch_weights", "test_combinators", "test_components",
    "test_compression", "test_constrained_weights", "test_covariance", "test_cross_validation",
    "test_cut_gradients", "test_doubts", "test_ends", "test_errors", "test_fit_figures", "test_fourier",
    "test_implicit", "test_in_face", "test_intervals", "test_krylov", "test_levels", "test_levenberg_marquardt",
    "test_lift", "test_linear_theory", "test_loss_batches", "test_lower", "test_many", "test_matrix_sets",
    "test_minibatches", "test_models", "test_multistart", "test_norms", "test_operators", "test_own_sets",
    "test_prediction", "test_purity", "test_reduced", "test_region", "test_reseed", "test_sets", "test_solve",
    "test_sparse_weights", "test_special", "test_steps", "test_stochastic", "test_streamed", "test_unbounded",
    "test_vector_sets",
)  # fmt: skip
ON_JAX = (
    "test_a_batch_is_the_problem_of_its_rows", "test_callback_sees_every_iterate_and_can_stop",
    "test_certified_standard_deviations", "test_chunks_have_the_answers_of_one_batch",
    "test_every_backend_has_the_same", "test_every_minimum_is_found_and_counted",
    "test_float32_jax_works_with_x64_off", "test_its_derivative_is_the_same_on_every_backend",
    "test_loss_of_rank_is_a_status", "test_profiles_end_where_the_objective_has_risen",
    "test_the_answer_is_that_of_one_solve_of_all", "test_time_limit",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """Leave to ``-m frameworks`` what NumPy is asked by default, to ``-m thorough`` what a few variants stand for."""
    functions = {}
    for item in items:
        decided = any(map(item.get_closest_marker, ("frameworks", "gallery", "thorough")))
        if not decided and item.path.name != "test_suite.py":  # which marks its parts itself
            functions.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    for (path, name), variants in functions.items():
        on = {framework: [item for item in variants if _framework(item) == framework] for framework in MOST}
        if not on["numpy"]:  # no test of all frameworks, or one of frameworks themselves
            on = {"numpy": variants}
        for framework, among in on.items():
            long = framework == "jax" and path.stem in COMPILES_FOR_LONG and name not in ON_JAX
            beyond = set(among) if long else _beyond(MOST[framework], among)
            for item in among:
                if item in beyond:
                    item.add_marker(pytest.mark.thorough)
                elif framework != "numpy":
                    item.add_marker(pytest.mark.frameworks)
    for item in items:
        if item.get_closest_marker("thorough"):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "frameworks"]


def _framework(item):
    """The framework that a variant is about: the one that a parameter names, or NumPy."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((x for x in values if isinstance(x, str) and x in BACKENDS), "numpy")


def _beyond(most, items):
    """All but variants that have every value of every parameter, as far as `most` go, and then pairs of them."""
    if len(items) <= min(most, ENOUGH):
        return set()
    having = {item: {(name, id(x)) for name, x in item.callspec.params.items()} for item in items}
    pairs = {item: set(combinations(sorted(values), 2)) for item, values in having.items()}
    left, times, seen_pairs = list(items), Counter(), set()

    def worth(item):
        had = [times[value] for value in having[item]]
        return had.count(0), had.count(0) + had.count(1), len(pairs[item] - seen_pairs)

    for taken in range(min(most, len(items))):
        best = max(left, key=worth)
        if taken >= ENOUGH and not worth(best)[0]:
            break
        times.update(having[best])
        seen_pairs |= pairs[best]
        left.remove(best)
    return set(left)


def float64(backend):
    if backend.name != "jax":
        return nullcontext()
    import jax

    return jax.enable_x64(True)
