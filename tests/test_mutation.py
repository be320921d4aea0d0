"""The campaign that plants faults: that each is planted as it says, and that suite and tests are asked with it."""

import json
import subprocess
import sys
import textwrap

import pytest

from benchmarks.mutants import mutants, planted

MODULE = '''
def f(xp, x, y=1, flag=False):
    """Words."""
    if x < 0.5 and not flag:
        raise ValueError("two" + f"{2}")
    y += 1
    z = xp.where(x > y, conj(x) * x.mT, xp.sum(x, axis=-1, dtype=x.dtype))
    z = adjoint(z)
    record(z)
    while z:
        break
    return g(x, z)
'''


def test_every_kind_of_fault_is_planted_where_it_says():
    found = [(m.kind, *planted(MODULE, m)[1:]) for m in mutants(MODULE)]
    where = "z = xp.where(x > y, conj(x) * x.mT, xp.sum(x, axis=-1, dtype=x.dtype))"
    test = "if x < 0.5 and (not flag):"
    assert {
        ("comparison", test, "if x <= 0.5 and (not flag):"),
        ("constant", test, "if x < 0.5000005 and (not flag):"),
        ("boolean", test, "if x < 0.5 or not flag:"),
        ("negation", test, "if x < 0.5 and flag:"),
        ("condition", test, "if not (x < 0.5 and (not flag)):"),
        ("constant", "def f(xp, x, y=1, flag=False):", "def f(xp, x, y=1, flag=True):"),
        ("statement removed", "raise ValueError('two' + f'{2}')", "pass"),
        ("statement removed", "y += 1", "pass"),
        ("statement removed", "z = adjoint(z)", "pass"),
        ("statement removed", "record(z)", "pass"),
        ("statement removed", "break", "pass"),
        ("arithmetic", where, where.replace("conj(x) *", "conj(x) /")),
        ("factor", where, where.replace("x.mT", "x.mT * 1.000001")),
        ("transposed", where, where.replace(".mT", "")),
        ("call dropped", where, where.replace("conj(x)", "x")),
        ("another function", where, where.replace("sum", "mean")),
        ("axis", where, where.replace("-1", "-2")),
        ("keyword dropped", where, where.replace(", dtype=x.dtype", "")),
        ("branches swapped", where, "z = xp.where(x > y, xp.sum(x, axis=-1, dtype=x.dtype), conj(x) * x.mT)"),
        ("conjugate dropped", "z = adjoint(z)", "z = z.mT"),
        ("argument returned", "return g(x, z)", "return x"),
    } <= set(found)
    for same in ("0 * x", "4 * xp.finfo(x.dtype).eps * x"):
        assert "factor" not in {m.kind for m in mutants(f"def f(x):\n    return {same}")}


@pytest.mark.skipif(sys.platform == "win32", reason="mutants live in forked processes")
def test_suite_and_tests_are_asked_about_a_fault(tmp_path):
    """Faults that the case finds, that the test finds, and that neither does."""
    script = """
        import json, sys
        from pathlib import Path
        from benchmarks import mutation as m

        file, test = "sets/simplex.py", "src/xvarpro/sets/simplex.py::xvarpro.sets.simplex.CappedSimplex"
        text = (m.SOURCE / file).read_text()
        m.prepare(Path(sys.argv[1]), frameworks=("numpy", "pytest"))
        case = m.Case(("numpy", "cpu float64", "sets", "oracle"), "Simplex 0", 0.1)
        suite, tests = (m.Recorded([one], {file: {m.ANY: {0}}}) for one in (case, m.Case((test,), test, 0.1)))
        there = {m.planted(text, one)[1:]: one for one in m.mutants(text)}
        chosen = [m.Drawn("sets", file, there[tuple(pair)]) for pair in json.loads(sys.argv[2])]
        verdicts = dict(m.answered(chosen, (suite, tests), {}, 2, 60.0))
        print(json.dumps([verdicts[i]["verdict"] for i in range(len(chosen))]))
    """
    oracle = "return vertex(g, namespace_of(g).argmin(g, axis=-1, keepdims=True), self.radius)"
    capped = "return xp.where(fits, clipped, onto_simplex(x, self.radius))"
    length = "return (math.sqrt(2) if like.shape[-1] > 1 else 1.0) * self.radius"
    faults = {
        (oracle, oracle.replace("argmin", "argmax")): "suite",
        (capped, "return xp.where(fits, onto_simplex(x, self.radius), clipped)"): "tests",
        (length, length.replace("> 1", "> 2")): "survived",
    }
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), json.dumps(list(faults))]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout.splitlines()[-1]) == list(faults.values())
