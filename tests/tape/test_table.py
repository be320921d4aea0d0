"""The table as a whole: complete, standard, and with a sentence for what it lacks."""

import warnings

import numpy as np
import pytest

from tests.support import in_turn
from xvarpro.backends.tape import NoRuleError, vjp
from xvarpro.backends.tape.engine import PASSED_ON, Tape
from xvarpro.backends.tape.namespace import CREATION, LIKE, PLAIN
from xvarpro.backends.tape.rules.table import COMPOSITES, CONSTANT, PRIMITIVES, SIMPLE

from .functions import CASES
from .namespaces import NUMPY, STRICT, jvp
from .standard import EXTENSIONS, MAIN

# what the standard has and the tape refuses: the result's shape depends on values, or no derivative is agreed on
REFUSED = {"nextafter", "unique_all", "unique_counts", "unique_inverse", "unique_values"}


def run_every_case(raw):
    for cases in CASES.values():
        for case in (c for c in cases if c.strict):
            args = [raw.array(a) for a in case.args]
            jvp(lambda *xs, f=case.fun: f(xs[0].__array_namespace__(), *xs), args, args, **raw.how)


def test_every_rule_has_a_case_that_runs_it(monkeypatch):
    """A newcomer in the table fails here until `cases` has an entry of its name."""
    seen = set()
    original = Tape._pull

    def spy(self, *args):
        for rules, *_ in filter(None, self.nodes):
            seen.update(rules if isinstance(rules, tuple) else (rules,))
        return original(self, *args)

    monkeypatch.setattr(Tape, "_pull", spy)
    run_every_case(NUMPY)
    rules = {rule for pair in SIMPLE.values() for rule in pair if rule is not None}
    # functions given with their derivatives are no functions of the standard: tests/test_special.py
    assert rules | {entry.rule for entry in PRIMITIVES.values()} == seen | {PRIMITIVES["_smooth"].rule}
    public = {name for name in (*SIMPLE, *PRIMITIVES, *COMPOSITES) if not name.startswith("_")}
    assert public | {"_getitem"} == set(CASES)


def test_rules_ask_for_what_the_standard_has_only():
    """So they run on CuPy, whose compat namespace has all of it, and nothing here needs a GPU to be sure of it."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        run_every_case(STRICT)


def test_the_traced_namespace_has_every_name_of_the_standard():
    full = MAIN | {f"{ext}_{name}" for ext, names in EXTENSIONS.items() for name in names}
    known = {*SIMPLE, *PRIMITIVES, *COMPOSITES, *CONSTANT, *CREATION, *LIKE, *PLAIN, *PASSED_ON}
    assert full - known - {"asarray", "full", "full_like"} == REFUSED


@pytest.mark.parametrize("name", sorted(REFUSED | {"linalg.expm", "fft.dct", "special_function"}))
def test_a_function_without_a_rule_is_named(name):
    def f(x):
        xp = x.__array_namespace__()
        for part in name.split("."):
            xp = getattr(xp, part)
        return xp(x)

    with pytest.raises(NoRuleError, match=rf"no derivative rule for '{name}'") as caught:
        vjp(f, (np.ones(3),), **NUMPY.how)
    assert f"rule for {name!r}" in str(caught.value)
    assert "torch" in str(caught.value)  # the remedy


def test_hasattr_tells_what_the_namespace_has():
    seen = []

    def f(x):
        xp = x.__array_namespace__()
        seen.extend(hasattr(ns, name) for ns, name in [(xp, "tanh"), (xp, "erf"), (xp.linalg, "inv"), (xp.fft, "dct")])
        return x

    vjp(f, (np.ones(3),), **NUMPY.how)
    assert seen == [True, False, True, False]


OF_ONE = """
    sign floor ceil round trunc isnan isinf isfinite logical_not signbit argmax argmin argsort all any count_nonzero
    zeros_like ones_like
    """.split()  # noqa: SIM905
OF_TWO = {
    **dict.fromkeys(("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"), 0.5),
    "floor_divide": 0.3,
    "logical_and": True,
}
STEPS = {**dict.fromkeys(OF_ONE, ()), **{name: (other,) for name, other in OF_TWO.items()}}


@in_turn("name", STEPS)
def test_functions_with_steps_only_are_constants(name):
    """Evaluated as on raw arrays; nothing recorded, so the gradient is an exact zero."""
    x = np.array([0.3, -1.7, 2.4])
    given = {"logical_not": x > 0, "logical_and": x > 0}.get(name, x)

    def f(x):
        xp = x.__array_namespace__()
        z = {"logical_not": x > 0, "logical_and": x > 0}.get(name, x)
        y = getattr(xp, name)(z, *STEPS[name])
        assert y.index is None
        assert y.tape.nodes == [None]
        return y

    y, pullback = vjp(f, (x,), **NUMPY.how)
    np.testing.assert_array_equal(y, getattr(NUMPY.xp, name)(given, *STEPS[name]))
    np.testing.assert_array_equal(pullback(np.ones_like(y))[0], np.zeros(3))
