"""Backends from other packages: found by entry point, checked when they are loaded, loaded on first use."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import backends, conformance
from xvarpro.backends import adapters
from xvarpro.errors import BackendNotInstalledError, PluginError, UnknownBackendError, UnsupportedError
from xvarpro_conformance import suite


def test_a_plugin_passes_the_suite(plug):
    name = plug("plain")
    assert name in backends.known()
    report = conformance.run(conformance.targets([name]), ["sets/*/Box *", "sets/*/Simplex *"])
    assert {(o.backend, o.device, o.dtype) for o in report} == {(name, "cpu", "float64"), (name, "cpu", "float32")}
    assert report.ok, report.failures
    assert sum(o.state == "passed" for o in report) >= 8


def test_results_are_of_its_own_type(plug):
    backend = backends.get(plug("typed"))
    problem = xv.separable(lambda theta, data: theta, np.ones((3, 2)), lam=0.1)
    theta0 = backend.asarray(np.ones((3, 1)))
    fit = xv.solve(problem, theta0, max_iter=2)
    assert type(fit.theta) is type(theta0) is not np.ndarray
    assert fit.provenance["backend"] == "typed"
    fit = xv.solve(problem, np.ones((3, 1)), max_iter=2, backend="typed")
    assert type(fit.theta) is np.ndarray


def test_exemptions_travel_with_the_backend(plug):
    wider = """
    def suite_hooks(self):
        from xvarpro_conformance import Exemption, Hooks

        class Wider(Hooks):
            exemptions = (Exemption("sets/projection/Box 0", "float32", 4.0, "its clip is bad"),)

        return Wider()
"""
    name = plug("exempt", wider)
    report = conformance.run(conformance.targets([name]), ["sets/projection/Box 0"])
    assert [o.exemption and o.exemption.reason for o in report] == [None, "its clip is bad"]


def test_what_a_framework_lacks_does_not_apply(plug):
    without = """
    from types import ModuleType
    real = ModuleType("realonly.xp")
    real.__dict__.update((k, v) for k, v in vars(xp).items() if not k.startswith("complex"))
    xp = real
"""
    name = plug("realonly", without)
    with pytest.raises(UnsupportedError, match="dtype 'complex64' is required"):
        adapters.find_dtype(backends.get(name).xp, "complex64")

    @conformance.check("exchange")
    def complex_numbers(target, _):
        target.send(np.ones(2, complex))
        yield conformance.Measured("there", 1.0, 1.0)

    try:
        report = conformance.run(conformance.targets([name, "numpy"], dtypes=["float64"]), ["exchange/complex numbers"])
    finally:
        suite.CHECKS.pop()
    assert [o.state for o in report] == ["inapplicable", "passed"]
    assert "dtype 'complex128' is required" in report[0].note


def test_nothing_is_loaded_before_it_is_asked_for(plug):
    name = plug("lazy", source="raise RuntimeError('imported')")
    assert backends.installed(name)
    backends.registry._of_type.cache_clear()
    assert backends.of(np.ones(2)).name == "numpy"
    assert backends.of([1.0]) is backends.of(None) is None
    assert xv.sets.Box(0.0, 1.0).lmo(np.ones(2)).tolist() == [0.0, 0.0]
    with pytest.raises(RuntimeError, match="imported"):
        backends.get(name)


def test_a_framework_that_is_not_installed_changes_nothing(plug, monkeypatch):
    name = plug("absent", source="import no_such_framework")
    with pytest.raises(BackendNotInstalledError, match=r"'absent'.*absent:absentBackend.*no_such_framework"):
        backends.get(name)
    assert backends.of(type("Thing", (), {"__module__": "elsewhere"})()) is None
    monkeypatch.setattr(backends, "known", lambda: ("numpy", name))  # the others take seconds to import
    assert [t.backend.name for t in conformance.targets(dtypes=["float32"])] == ["numpy"]


def test_bases_are_public_and_imported_on_demand():
    code = (
        "import sys, xvarpro; print('xvarpro.backends.eager' in sys.modules); "
        "from xvarpro.backends.adapters import EagerBackend as E, TapedBackend as T; print(issubclass(T, E))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out == ["False", "True"]
    with pytest.raises(AttributeError, match="LazyBackend"):
        backends.LazyBackend  # noqa: B018


def test_missing_methods_are_listed_with_what_they_promise(plug):
    source = """
from xvarpro.backends.adapters import TapedBackend

class {name}Backend(TapedBackend):
    name = "{name}"
    roots = ("{name}",)
"""
    with pytest.raises(PluginError) as caught:
        backends.get(plug("bare", source=source))
    lines = str(caught.value).splitlines()
    assert lines[0] == f"backend 'bare': bareBackend has to define {len(lines) - 1} more:"
    assert "  cholesky(A): Lower Cholesky factor of A (..., n, n), NaN where it is not positive definite." in lines
    assert any(line.startswith("  asarray(x, *, dtype=None, device=None): An array") for line in lines)
    assert not any("vjp" in line for line in lines), "it comes from the tape"


SINGLE = """
    def asarray(self, x, *, dtype=None, device=None):
        return np.asarray(x, "float32" if dtype == "float64" else dtype).view(Array)
"""


ONE_DTYPE = """
    class xp:
        __name__ = "xp"
        float32 = "float32"
"""


WRONG = [
    ("rootless", "    roots = ()", "roots must be a tuple of the top-level modules.*'rootless'"),
    ("stringy", "    roots = 'stringy'", "roots must be a tuple.*got 'stringy'"),
    ("misnamed", "    name = 'other'", "name must be the name of its entry point, 'misnamed', got 'other'"),
    ("nonamespace", "    xp = None", "xp must be its array-API namespace"),
    ("single", ONE_DTYPE, r"must have float32, float64, int32.*dtype 'float64' is required"),
    ("foreign", "    asarray = type(get('numpy')).asarray", "numpy.ndarray, and those belong to backend 'numpy'"),
    ("shortened", SINGLE, "must keep the dtype 'float64', .* got 'float32'"),
    ("narrow", "    to_numpy = lambda self, x: np.asarray(x, 'float32')", r"must be x, float64 .*got float32"),
    ("flat", "    to_numpy = lambda self, x: np.ravel(x)", r"shape \(2, 3\): got .* shape \(6,\)"),
]


@pytest.mark.parametrize(("name", "changes", "wanted"), WRONG, ids=[name for name, *_ in WRONG])
def test_wrong_attributes_and_arrays_are_named(plug, name, changes, wanted):
    with pytest.raises(PluginError, match=wanted):
        conformance.targets([plug(name, changes)])


def test_names_that_lead_nowhere(plug):
    with pytest.raises(PluginError, match="typo:Backed must name a class"):
        backends.get(plug("typo", target="{name}:Backed"))
    with pytest.raises(PluginError, match="must be a class derived"):
        backends.get(plug("thing", target="{name}:xp"))
    with pytest.raises(UnknownBackendError, match="typo"):
        backends.get("missing")


PAGE = (Path(__file__).parents[1] / "docs" / "plugins.md").read_text(encoding="utf-8")
# a library that follows the standard, with arrays of its own
MYLIB = """
from array_api_compat.numpy import *
from array_api_compat import numpy as xp
from array_api_compat.numpy import bool, fft, linalg
import numpy as np

__version__ = "1.0"

class Array(np.ndarray):
    pass

def asarray(x, /, *, dtype=None, device=None, copy=None):
    return xp.asarray(np.asarray(x), dtype=dtype, copy=copy).view(Array)
"""


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.S)


def test_the_code_of_the_page_gives_a_first_green_run(plug, tmp_path):
    (project,) = blocks("toml")
    backend, solve, *_ = blocks("python")
    (entry,) = re.findall(r'\[project.entry-points."xvarpro.backends"\]\nmylib = "(.*)"', project)
    module = entry.partition(":")[0]
    (tmp_path / f"{module}.py").write_text(backend)
    name = plug("mylib", source=MYLIB, target=entry)
    report = conformance.run(conformance.targets([name]), ["factorisations", "sets/*/Box 0"])
    assert report.ok, report.failures
    assert {o.area for o in report} == {"factorisations", "sets"}
    exec(solve, {})


def test_messages_that_the_page_explains(plug):
    """The table quotes the messages that are raised here."""
    lines = [line.split("|")[1].strip().strip("`") for line in PAGE.splitlines() if line.startswith("| `")]
    quoted = {line.rpartition("...")[0] or line for line in lines}
    assert {"MyBackend has to define 2 more: ", "roots must be a tuple ", "unknown backend 'mylib'"} <= quoted
    source = (
        "from xvarpro.backends.adapters import HostedBackend as Base\nclass MyBackend(Base):\n    name = 'twoshort'"
    )
    with pytest.raises(PluginError, match="MyBackend has to define 2 more:") as caught:
        backends.get(plug("twoshort", source=source, target="{name}:MyBackend"))
    assert {line.split("(")[0].strip() for line in str(caught.value).splitlines()[1:]} == {"asarray", "to_numpy"}
