"""The suite that ships with the package, on every backend that is installed.

NumPy runs every case in double precision, and one case of each check runs elsewhere in one precision; array-api-strict
is on its second device there. With ``-m frameworks`` the others run, in both precisions; JAX compiles a case of every
class of shapes; whole solves are made once in single precision and on JAX, and so is each check in single precision on
array-api-strict, whose rules do not depend on it. The rest of these has ``-m thorough``.
A case that fails is named. ``xvarpro conformance`` runs all of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from xvarpro import backends
from xvarpro.conformance import runner, suite

CHECKS = list(suite.every())
USABLE = runner.usable()
TARGETS = runner.targets(USABLE)
ABSENT = [name for name in backends.known() if name not in USABLE]
SOLVES = ("solves", "results", "paper", "distributed")  # areas whose cases are whole solves
LONG = ("step decisions", "steps by definition", "known minimum", "first member")  # many iterations
# what JAX compiles for more than a second
SLOW_TO_COMPILE = ("results", "mixtures", "modes of the caller", "weights in a set", "certified")
NUMPY, STRICT = suite.reference(), "array-api-strict"


def every(target, check, cases):
    """All cases; where everything is compiled, those that represent their class."""
    for case in cases:
        yield runner.run_case(target, check, case, cases[case])


def first(target, check, cases):
    """Up to the first case that applies."""
    for outcome in every(target, check, cases):
        yield outcome
        if outcome.ran:
            return


def others(target, check, cases):
    """All cases but the first."""
    yield from every(target, check, dict(list(cases.items())[1:]))


def classes(target, check, cases):
    """One case of each class: names that differ by a number are examples of one."""
    of = {}
    for case in cases:
        of.setdefault(re.sub(r" \d+", "", case), case)
    yield from every(target, check, {case: cases[case] for case in of.values()})


def parts(target, check):
    """Which cases of a check run on a target, by marker."""
    name, compiled, solves = target.backend.name, target.backend.compiled, check.area in SOLVES
    alone = target.dtype == check.dtypes[0]  # in double precision, unless the check is about single
    frameworks, thorough = pytest.mark.frameworks, pytest.mark.thorough
    if target == NUMPY:
        return (
            [] if (check.area, check.name) == ("solves", "step decisions") else [(every, ())]
        )  # the others' reference
    if (name, target.device, target.dtype) == (STRICT, "cpu", "float64"):
        return [(every, thorough)]  # its second device stands for both
    if not alone:
        some = first if solves or compiled or name == STRICT else every if name == "numpy" else classes
        more = thorough if compiled and (solves or check.name in SLOW_TO_COMPILE) else frameworks
        return [(some, more), (every, thorough)] if more is frameworks and some is not every else [(every, more)]
    slow = check.name in LONG or (compiled and (solves or check.name in SLOW_TO_COMPILE))
    now = () if name in ("torch", "jax", STRICT) and not (compiled and slow) else frameworks
    return [(first, now), (others, thorough if slow else frameworks)]


WHICH = {every: "", first: ": first", others: ": others", classes: ": classes"}


def variants():
    for target in TARGETS:
        for check in CHECKS:
            if target.dtype in check.dtypes:
                for among, marks in parts(target, check):
                    where = f"{target}: {check.area}: {check.name}{WHICH[among]}"
                    yield pytest.param(target, check, among, id=where, marks=marks)
    for name in ABSENT:
        reason = f"{name} is not installed, or has no device"
        yield pytest.param(None, None, None, id=name, marks=pytest.mark.skip(reason=reason))


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


@pytest.mark.parametrize(("target", "check", "among"), list(variants()))
def test_suite(target, check, among, subtests):
    outcomes = []
    for outcome in among(target, check, check.cases()):
        outcomes.append(outcome)
        with subtests.test(outcome.case):
            assert outcome.ok, "\n" + described(outcome)
    if outcomes and not any(o.ran for o in outcomes):
        with subtests.test("applies"):
            pytest.skip(outcomes[0].note)


CODE = """
from xvarpro import conformance
among = conformance.targets(["jax"], ["cpu:1"], ["float64"])
found = conformance.run(among, only=["exchange/copies", "exchange/results/jax", "control flow/loops",
    "control flow/columns that settle", "derivatives/functions/places", "factorisations/triangular solves/upper",
    "sets/oracle/Simplex 0", "paper/implicit formula"])
print([(o.address, o.note, [m.what for m in o.failures]) for o in found.outcomes if not o.ok], len(found.outcomes))
"""


@pytest.mark.frameworks
@pytest.mark.skipif("jax" not in USABLE, reason="jax is not installed")
def test_jax_on_the_second_of_two_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True)
    assert done.stdout.startswith("[] 1"), done.stdout + done.stderr
