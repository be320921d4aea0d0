"""The list of backends, as data: every test that takes `backend` runs on all of them."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from itertools import combinations

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


MOST = 12  # variants of a test function that run by default


def pytest_collection_modifyitems(items):
    """Leave to ``-m frameworks`` what NumPy is asked by default, to ``-m thorough`` what a few variants stand for."""
    functions = {}
    for item in items:
        decided = any(map(item.get_closest_marker, ("frameworks", "gallery", "thorough")))
        if not decided and item.path.parent.name != "conformance":  # which marks its parts itself
            functions.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    for variants in functions.values():
        default = [item for item in variants if _framework(item) in (None, "numpy")] or variants
        others = [item for item in variants if item not in default]
        beyond = {*_beyond(MOST, default), *_beyond(MOST, others)}
        for item in variants:
            if item in beyond:
                item.add_marker(pytest.mark.thorough)
            elif item in others:
                item.add_marker(pytest.mark.frameworks)


def _framework(item):
    """The framework that a variant is about: the one that a parameter names."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((x for x in values if isinstance(x, str) and x in BACKENDS), None)


def _beyond(most, items):
    """All but `most` variants, which have every value of every parameter, then every pair, as far as they go."""
    if len(items) <= most:
        return []
    having = {item: set(item.callspec.indices.items()) for item in items}
    pairs = {item: set(combinations(sorted(values), 2)) for item, values in having.items()}
    left, seen, seen_pairs = list(items), set(), set()
    for _ in range(most):
        best = max(left, key=lambda item: (len(having[item] - seen), len(pairs[item] - seen_pairs)))
        seen |= having[best]
        seen_pairs |= pairs[best]
        left.remove(best)
    return left


def float64(backend):
    if backend.name != "jax":
        return nullcontext()
    import jax

    return jax.enable_x64(True)
