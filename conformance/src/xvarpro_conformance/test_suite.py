"""The suite on every backend that is installed, one test of each check on each target.

Under the command ``xvarpro conformance`` its options say what runs. By itself, as in this project's own tests, NumPy
runs a case of every class in double precision, and one case of each check runs on PyTorch and, in turn, on JAX or
array-api-strict, which is on its second device there. With ``-m frameworks`` the others run, in both precisions; JAX
compiles a case of every class of shapes; whole solves are made once in single precision and on JAX, and so is each
check in single precision on array-api-strict, whose rules do not depend on it. The rest of these has ``-m thorough``.
"""

from __future__ import annotations

import re

import pytest

from xvarpro import backends
from xvarpro_conformance import plugin, runner, suite

SOLVES = ("solves", "results", "paper", "distributed")  # areas whose cases are whole solves
LONG = ("step decisions", "known minimum", "first member")  # many iterations
# what JAX compiles for more than a second
SLOW_TO_COMPILE = ("results", "mixtures", "modes of the caller", "draws of densities", "unconstrained densities")
# checks whose first case takes JAX as long: it runs where the other frameworks do
LATER = ("gauss newton model", "marginal likelihoods", "derivative of a solution")
NUMPY, STRICT = suite.NUMPY, "array-api-strict"
COMPILED = 2  # cases of a check that --quick compiles


def every(target, check, cases):
    """All cases; where everything is compiled, those that represent their class by themselves."""
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


def representatives(cases):
    """One case of each class: names that differ by a number are examples of one."""
    of = {}
    for case in cases:
        of.setdefault(re.sub(r" \d+", "", case), case)
    return {case: cases[case] for case in of.values()}


def classes(target, check, cases):
    """One case of each class."""
    yield from every(target, check, representatives(cases))


def examples(target, check, cases):
    """The other cases of every class."""
    named = representatives(cases)
    yield from every(target, check, {case: given for case, given in cases.items() if case not in named})


def few(target, check, cases):
    """One case of each class; where everything is compiled a few that apply, and other ones in the next check."""
    if not target.backend.compiled:
        yield from classes(target, check, cases)
        return
    position, ran = list(suite.every()).index(check), 0
    # by multiples of the golden ratio: what comes first is far apart
    turn = {case: (position + i) * 0.618034 % 1 for i, case in enumerate(representatives(cases))}
    for outcome in every(target, check, {case: cases[case] for case in sorted(turn, key=turn.__getitem__)}):
        yield outcome
        ran += outcome.ran
        if ran == COMPILED:
            return


def parts(target, check):
    """Which cases of a check run on a target, by marker."""
    name, compiled, solves = target.backend.name, target.backend.compiled, check.area in SOLVES
    alone = target.dtype == check.dtypes[0]  # in double precision, unless the check is about single
    frameworks, thorough = pytest.mark.frameworks, pytest.mark.thorough
    if target == NUMPY:
        # the course of whole solves is what the others are compared with
        decisions = (check.area, check.name) == ("solves", "step decisions")
        # tests/ has solves on NumPy
        return [] if decisions else [(every, frameworks)] if solves else [(classes, ()), (examples, frameworks)]
    if (name, target.device, target.dtype) == (STRICT, "cpu", "float64"):
        return [(every, thorough)]  # its second device stands for both
    if not alone:
        some = first if solves or compiled or name == STRICT else every if name == "numpy" else classes
        more = thorough if compiled and (solves or check.name in SLOW_TO_COMPILE) else frameworks
        return [(some, more), (every, thorough)] if more is frameworks and some is not every else [(every, more)]
    slow = check.name in LONG or (compiled and (solves or check.name in SLOW_TO_COMPILE))
    # other frameworks are asked a case of it: JAX in its turn, but where it compiles for long
    quick = not solves and check.name not in (*LONG, *SLOW_TO_COMPILE, *LATER)
    turn = STRICT if not quick or list(suite.every()).index(check) % 2 else "jax"
    now = () if name in ("torch", turn) else frameworks
    return [(first, now), (others, thorough if slow else frameworks)]


WHICH = {every: "", few: "", first: ": first", others: ": others", classes: ": classes", examples: ": examples"}


def variant(target, check, among, marks=()):
    return pytest.param(target, check, among, id=f"{target}: {check.area}: {check.name}{WHICH[among]}", marks=marks)


def variants():
    """What this project's own tests ask."""
    usable = runner.usable()
    for target in runner.targets(usable):
        for check in suite.every():
            if target.dtype in check.dtypes:
                for among, marks in parts(target, check):
                    yield variant(target, check, among, marks)
    for name in backends.known():
        if name not in usable:
            reason = f"{name} is not installed, or has no device"
            yield pytest.param(None, None, None, id=name, marks=pytest.mark.skip(reason=reason))


def asked(targets, only, quick):
    """What options of the command ask."""
    checks = list(suite.every())
    chosen = [check for check, _ in runner.selection(only)] if only else checks
    for target in targets:
        for check in chosen:
            # in turn in double and in single precision
            alone = quick and target.backend.compiled and len(check.dtypes) > 1
            if target.dtype in (suite.alternate(checks.index(check)) if alone else check.dtypes):
                yield variant(target, check, few if quick else every)


def pytest_generate_tests(metafunc):
    if "among" in metafunc.fixturenames:
        config = metafunc.config
        targets = config.stash.get(plugin.TARGETS, None)
        found = variants() if targets is None else asked(targets, config.option.only, config.option.quick)
        metafunc.parametrize(("target", "check", "among"), list(found))


def described(outcome):
    """Both values of everything that is off, by how much, and the command that runs it again."""
    lines = [f"{outcome.backend} {outcome.device} {outcome.dtype}: {outcome.address}: {outcome.state}", outcome.says]
    for m in outcome.failures:
        lines += [
            f"  {m.what}: error {m.error:.2e}, tolerance {m.tolerance:.2e}, {m.units:.3g} times as much",
            f"    got  {m.got!r}",
            f"    want {m.want!r}",
        ]
    return "\n".join([*lines, outcome.note, f"  {outcome.command}"])


def test_suite(target, check, among, subtests, record_property, pytestconfig):
    outcomes = []
    for outcome in among(target, check, runner.cases_of(check, pytestconfig.getoption("--only", []))):
        outcomes.append(outcome)
        if not outcome.ok:
            with subtests.test(outcome.case):
                pytest.fail("\n" + described(outcome))
    if outcomes:
        record_property(plugin.PROPERTY, plugin.measured(outcomes))
    if outcomes and not any(o.ran for o in outcomes):
        with subtests.test("applies"):
            pytest.skip(outcomes[0].note)
