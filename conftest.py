"""What pytest leaves out, one thread per process, and what makes the frameworks quicker.

Two workers with two threads each would wait for one another. ``xvarpro conformance`` runs what users run.
"""

import gc
import os
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
# XLA ends the process where it does not know a flag
if find_spec("jaxlib") and version("jaxlib").startswith(("0.8.", "0.9.", "0.10.")):
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")

# what one run compiled is not compiled again by another
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".pytest_cache" / "jax"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

if find_spec("array_api_strict"):
    # which seeks the dtype of every array in tuples, one comparison in Python after the other
    from array_api_strict import _array_object, _dtypes

    _array_object._all_dtypes = frozenset(_dtypes._all_dtypes)
    for name, dtypes in _dtypes._dtype_categories.items():
        _dtypes._dtype_categories[name] = frozenset(dtypes)

# the examples of an adapter whose framework is not installed cannot be imported
ADAPTERS = ["src/xvarpro/backends/cupy.py", "conformance/src/xvarpro_conformance/frameworks/cupy.py"]
collect_ignore = [] if find_spec("cupy") else ADAPTERS

gc.disable()  # until all is imported, none of which is garbage


def pytest_collection_finish():
    """A collection of garbage in a test looks at what the tests made, not at the frameworks."""
    gc.freeze()
    gc.set_threshold(20_000)  # what is frozen counts no more: every thousand of objects would be a look at all new ones
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """All tests of a file run in one process, which makes their fixtures and compiles their programs once.

    So do those of all files that start processes: what these are forked from imports the frameworks, for seconds.
    """
    from xdist.scheduler import LoadFileScheduling

    uses = re.compile(r"^from \.(processes import| import processes)", re.MULTILINE)
    files = Path(__file__).parent.glob("tests/test_*.py")
    forking = {f"tests/{file.name}" for file in files if uses.search(file.read_text(encoding="utf-8"))}

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "processes" if file in forking else file

    return ByFile(config, log)
