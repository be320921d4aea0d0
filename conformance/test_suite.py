"""The suite that ships with the package, on every backend that is installed.

NumPy runs every case in double precision. Elsewhere the first of each check runs, on JAX and array-api-strict in double
precision alone, and the rest with ``-m thorough``.
``xvarpro conformance`` runs all of it, an area in one process, which compiles less often.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from xvarpro import backends
from xvarpro.conformance import runner, suite

CHECKS = list(suite.every())
USABLE = runner.usable()
TARGETS = runner.targets(USABLE)
ABSENT = [name for name in backends.known() if name not in USABLE]


def once(target, check):
    """Whether one case is enough: all but NumPy in double precision, and what takes hundreds of iterations."""
    return (target.backend.name, target.dtype) != ("numpy", "float64") or check.name == "step decisions"


def cases():
    """A target, a check, and its cases: all, or the first of them and the rest apart."""
    for target in TARGETS:
        for check in CHECKS:
            if target.dtype not in check.dtypes:
                continue
            names, where = list(check.cases()), f"{target}: {check.area}: {check.name}"
            if not once(target, check):
                yield pytest.param(target, check, names, id=where)
                continue
            cut = 1 if target.dtype == "float64" or target.backend.name in ("numpy", "torch") else 0
            for part, marks in ((names[:cut], ()), (names[cut:], pytest.mark.thorough)):
                if part:
                    yield pytest.param(target, check, part, id=f"{where}{': rest' if marks else ''}", marks=marks)
    for name in ABSENT:
        reason = f"{name} is not installed, or has no device"
        yield pytest.param(None, None, [], id=name, marks=pytest.mark.skip(reason=reason))


def described(outcome):
    """Both values of everything that is off, by how much, and the command that runs it again."""
    lines = [f"{outcome.backend} {outcome.device} {outcome.dtype}: {outcome.address}: {outcome.state}"]
    for m in outcome.failures:
        lines += [
            f"  {m.what}: error {m.error:.2e}, tolerance {m.tolerance:.2e}, {m.units:.3g} times as much",
            f"    got  {m.got!r}",
            f"    want {m.want!r}",
        ]
    return "\n".join([*lines, outcome.note, f"  {outcome.command}"])


@pytest.mark.parametrize(("target", "check", "names"), list(cases()))
def test_suite(target, check, names):
    given = check.cases()
    outcomes = [runner.run_case(target, check, name, given[name]) for name in names]
    assert all(o.ok for o in outcomes), "\n" + "\n".join(described(o) for o in outcomes if not o.ok)
    if not any(o.ran for o in outcomes):
        pytest.skip(outcomes[0].note)


CODE = """
from xvarpro import conformance
among = conformance.targets(["jax"], ["cpu:1"], ["float64"])
found = conformance.run(among, only=["exchange/copies", "exchange/results/jax", "control flow/loops",
    "control flow/columns that settle", "derivatives/functions/take", "factorisations/triangular solves/upper",
    "sets/oracle/Simplex 0", "paper/implicit formula"])
print([(o.address, o.note, [m.what for m in o.failures]) for o in found.outcomes if not o.ok], len(found.outcomes))
"""


@pytest.mark.skipif("jax" not in USABLE, reason="jax is not installed")
def test_jax_on_the_second_of_two_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True)
    assert done.stdout.startswith("[] 1"), done.stdout + done.stderr
