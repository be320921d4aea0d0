"""Reports of the conformance suite: a record that holds what was found, and the page that shows it."""

import re
from dataclasses import replace

import numpy as np
import pytest

from xvarpro import conformance as cf
from xvarpro.conformance import markdown, words
from xvarpro.conformance.changes import changes
from xvarpro.conformance.record import ENTRIES, compared
from xvarpro.errors import ProblemError

EXEMPTION = cf.Exemption("torch", "sets/*", "float64", 10.0, "its <square> root rounds twice")
WRONG = cf.Measured("<g, v>", np.array([1.0, 2.5, 3.0]), np.array([1.0, 2.0, 3.0]), 1e-3)
TRACEBACK = "Traceback (most recent call last):\nValueError: <script>alert('|')</script>\n"


def outcome(
    backend="numpy", dtype="float64", area="sets", check="oracle", case="Box 1", state="passed", units=0.5, **rest
):
    return cf.Outcome(backend, "cpu", dtype, area, check, case, state, units, says="Vertices are <exact>.", **rest)


PASSED = (
    outcome(),
    outcome(area="exchange", check="round trip", case="", units=0.0),
    outcome(dtype="float32", units=2e-3),
)
INAPPLICABLE = outcome(case="Box 2", state="inapplicable", units=float("nan"), note="no | projection")
FAILED = outcome("torch", state="failed", units=WRONG.units, failures=(WRONG,), path="torch/default/2")
RAISED = outcome("torch", "float32", case="it's", state="raised", units=float("nan"), note=TRACEBACK)
EXEMPTED = (
    outcome("torch", case="Box 3", units=0.5, exemption=EXEMPTION),
    outcome("torch", case="Box 4", units=0.05, exemption=EXEMPTION),
)
PROOFS = (
    cf.Proof("torch/default/2", {"A": "1"}, "failed", "mkl OFF"),
    cf.Proof("jax/AVX512/1", {"B": "2"}, "cannot run here", reason="the processor has no AVX512F"),
)


def report(*outcomes, **rest):
    facts = {"numpy": {"numpy": "2.0"}, "torch": {"torch": "2.9", "TF32": False}}
    return cf.Report(tuple(outcomes), facts, absent={"cupy": "not installed"}, **rest)


GOOD = report(*PASSED, INAPPLICABLE)
BAD = report(*PASSED, INAPPLICABLE, FAILED, RAISED, *EXEMPTED, processors=PROOFS)
both = pytest.mark.parametrize("found", [GOOD, BAD], ids=["good", "bad"])


# -- the record --------------------------------------------------------------------------------------------------------


@both
def test_the_record_survives_json(found, tmp_path):
    found.save(tmp_path / "report.json")
    assert cf.read(tmp_path / "report.json") == found.record()
    found.save(tmp_path / "first.md")
    cf.write(cf.read(tmp_path / "report.json"), tmp_path / "again.md")
    assert (tmp_path / "again.md").read_text() == (tmp_path / "first.md").read_text()


def test_the_record_has_a_field_for_every_target_and_area_that_met():
    record = BAD.record()
    assert record["areas"] == ["exchange", "sets"]
    fields = {(t["backend"], t["dtype"]): t["areas"] for t in record["targets"]}
    assert set(fields) == {("numpy", "float64"), ("numpy", "float32"), ("torch", "float64"), ("torch", "float32")}
    assert set(fields["torch", "float64"]) == {"sets"}
    here = fields["numpy", "float64"]["sets"]
    assert (here["passed"], here["failed"], here["inapplicable"], here["units"]) == (1, 0, 1, 0.5)
    assert (fields["torch", "float64"]["sets"]["passed"], fields["torch", "float64"]["sets"]["failed"]) == (2, 1)
    assert fields["torch", "float64"]["sets"]["units"] == pytest.approx(WRONG.units)
    assert fields["torch", "float32"]["sets"]["units"] == "inf"  # what raised is as wrong as can be
    assert (record["ok"], GOOD.record()["ok"]) == (False, True)


@pytest.mark.parametrize(
    ("state", "ok"), [("proven", True), ("cannot run here", True), ("not proven", False), ("failed", False)]
)
def test_a_path_that_is_not_proven_is_no_success(state, ok):
    assert report(*PASSED, processors=(cf.Proof("numpy/Haswell/1", {}, state),)).ok is ok


def test_a_path_counts_its_own_cases():
    failed, rest = BAD.record()["processors"]
    assert (failed["passed"], failed["failed"], failed["units"]) == (0, 1, pytest.approx(WRONG.units))
    assert (rest["passed"], rest["failed"], rest["units"]) == (0, 0, None)
    assert FAILED.command == (
        "xvarpro conformance --processors --path torch/default/2 --dtype float64 --only 'sets/oracle/Box 1'"
    )


def test_an_exemption_counts_the_cases_that_needed_it():
    (found,) = BAD.record()["exemptions"]
    assert (found["cases"], found["needed"], found["reason"]) == (2, 1, EXEMPTION.reason)


def test_a_reason_why_something_did_not_run_comes_once():
    nan = float("nan")
    again = outcome("torch", case="Box 9", state="inapplicable", units=nan, note=INAPPLICABLE.note)
    other = outcome("torch", check="support", case="Box 9", state="left out", units=nan, note="long")
    found = report(*PASSED, INAPPLICABLE, again, other)
    assert found.record()["not_run"] == [
        {
            "state": "inapplicable",
            "reason": "no | projection",
            "cases": 2,
            "checks": {"sets/oracle": 2},
            "targets": ["numpy cpu float64", "torch cpu float64"],
        },
        {
            "state": "left out",
            "reason": "long",
            "cases": 1,
            "checks": {"sets/support": 1},
            "targets": ["torch cpu float64"],
        },
    ]
    assert found.ok


def test_a_field_says_what_it_is_proven_against():
    rest = (
        outcome(case=name, against=kind) for name, kind in (("a", "definition"), ("b", "definition"), ("c", "twin"))
    )
    target = report(outcome(), *rest, outcome(dtype="float32"), outcome("torch")).record()["targets"]
    assert [t["areas"]["sets"]["against"] for t in target] == [
        {"itself": 1, "definition": 2, "twin": 1},  # NumPy in double precision is no proof of itself
        {"NumPy": 1},
        {"NumPy": 1},
    ]


# -- causes ------------------------------------------------------------------------------------------------------------


def off(backend, got=2.5, case="a", what="<g, v>", **rest):
    m = cf.Measured(what, np.array([got]), np.array([2.0]), 1e-3)
    return outcome(backend, case=case, state="failed", units=m.units, failures=(m,), **rest)


def raised(backend, check, line=3, text="no sum of 5"):
    note = f'Traceback (most recent call last):\n  File "a.py", line {line}, in f\n    f()\nValueError: {text}\nmore\n'
    return outcome(backend, check=check, state="raised", units=float("nan"), note=note)


def causes(*outcomes):
    return report(*outcomes).record()["causes"]


def test_one_cause_is_one_box():
    twenty = [off(b, 2.5 + i, f"CG {i}", f"value {i}") for i in range(10) for b in ("torch", "jax")]
    others = [
        off("torch", 9.0, what="gap"),
        *(raised("torch", name, text=f"no sum of {int(name) * (1,)}") for name in "345"),
    ]
    first, gap, error = causes(*(outcome(case=f"CG {i}") for i in range(10)), *twenty, *others)
    assert (first["checks"], first["targets"]) == (
        {"sets/oracle": 20},
        {"torch cpu float64": 10, "jax cpu float64": 10},
    )
    assert first["failures"][:2] == [18, 19]  # the worst first
    assert (gap["checks"], error["checks"]) == ({"sets/oracle": 1}, {"sets/3": 1, "sets/4": 1, "sets/5": 1})
    two = replace(off("torch"), failures=(*off("torch", what="value").failures, *off("torch", what="gap").failures))
    assert len(causes(two, off("torch", case="b", what="gap"))) == 1
    assert len(causes(raised("torch", "3", line=3), raised("torch", "3", line=4))) == 2


@pytest.mark.parametrize(
    ("against", "ran", "verdict", "failing"),
    [
        ("definition", [outcome(case="a"), off("torch"), outcome("jax", case="a")], "backends", ["torch cpu"]),
        ("definition", [off("numpy"), outcome("torch", case="a")], "backends", ["numpy cpu"]),
        ("definition", [off("numpy"), off("torch", 2.500001)], "reference", ["numpy cpu", "torch cpu"]),
        ("definition", [off("numpy"), off("torch", 2.6)], "backends", ["numpy cpu", "torch cpu"]),
        ("definition", [off("torch")], "undecided", ["torch cpu"]),
        ("NumPy", [outcome(case="a"), off("torch"), off("jax")], "NumPy", ["torch cpu", "jax cpu"]),
        ("NumPy", [outcome(case="a"), off("torch"), off("jax", 9.0)], "backends", ["torch cpu", "jax cpu"]),
        ("NumPy", [outcome(case="a"), off("torch"), outcome("jax", case="a")], "backends", ["torch cpu"]),
        ("NumPy", [outcome(case="a"), off("torch")], "undecided", ["torch cpu"]),
        # in one precision alone: that the other one passes says nothing about this one's tolerance
        ("definition", [off("numpy"), off("torch"), outcome("jax", "float32", case="a")], "reference", None),
    ],
)
def test_whose_fault_it_is(against, ran, verdict, failing):
    (cause,) = causes(*(replace(o, against=against) for o in ran))
    assert cause["verdict"] == verdict
    assert cause["failing"] == (failing or ["numpy cpu", "torch cpu"])
    assert set(cause["passing"]).isdisjoint(cause["failing"])


# -- what changed ------------------------------------------------------------------------------------------------------


def changed(now, before, **rest):
    return changes(report(*now, **rest).record(), report(*before).record())


def test_what_changed_since_an_earlier_report():
    before = [off("numpy", case="mended"), *(outcome(case=name) for name in ("same", "broken", "removed", "left"))]
    nan = float("nan")
    now = [
        outcome(case="mended"),
        outcome(case="same"),
        off("numpy", case="broken"),
        outcome(case="left", state="left out", units=nan),
        outcome(case="added"),
        off("numpy", case="added and wrong"),
    ]
    found = changed(now, before)
    names = {kind: [c["address"].split("/")[-1] for c in found[kind]] for kind in ("failing", "passing", "gone", "new")}
    assert names == {
        "failing": ["broken", "added and wrong"],
        "passing": ["mended"],
        "gone": ["removed"],
        "new": ["added"],
    }
    assert found["ok"] is False


@pytest.mark.parametrize(
    ("now", "before", "rest", "ok"),
    [
        ([off("numpy")], [off("numpy")], {}, True),  # known
        ([off("numpy")], [outcome(case="a")], {}, False),
        ([outcome(case="a", state="inapplicable")], [outcome(case="a")], {}, False),
        ([outcome()], [outcome(), outcome(case="Box 2")], {}, False),
        ([outcome()], [outcome(), outcome(case="Box 2")], {"only": ("sets/oracle/Box 1",)}, True),  # not asked for
        ([outcome()], [outcome(), outcome("torch")], {}, True),  # not compared
        ([outcome()], [outcome(), outcome("cupy")], {}, False),  # known, and can no longer run
    ],
)
def test_what_fails_anew_or_is_gone_is_no_success(now, before, rest, ok):
    assert changed(now, before, **rest)["ok"] is ok


def test_a_check_that_takes_twice_as_long():
    before = [outcome(seconds=1.0), outcome(case="Box 2", seconds=0.5), outcome(check="support", seconds=0.01)]
    now = [outcome(seconds=4.0), outcome(case="Box 3", seconds=99.0), outcome(check="support", seconds=0.9)]
    assert changed(now, before)["slower"] == [
        {"target": "numpy cpu float64", "check": "sets/oracle", "before": 1.0, "now": 4.0}
    ]


def test_versions_that_changed():
    before, now = report(outcome()), report(outcome(), version="9.9")
    assert changes(now.record(), before.record())["versions"] == {"xvarpro": [before.version, "9.9"]}


def test_of_a_long_array_the_entries_that_differ_most_are_shown():
    want = np.zeros((10, 10))
    got = want.copy()
    got[3, :9] = np.arange(9)
    got[5, 5] = np.nan
    found = compared(cf.Measured("x", got, want, 1e-3))
    assert (found["size"], found["differ"], len(found["entries"])) == (100, 9, ENTRIES)
    assert found["entries"][0] == {"at": [5, 5], "got": "nan", "want": "0.0"}
    assert [e["at"] for e in found["entries"][1:]] == [[3, 8], [3, 7], [3, 6], [3, 5], [3, 4]]
    assert found["error"] == found["units"] == "inf"


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        (np.array([True, False]), np.array([True, False]), 0.0),
        (np.array([True, False]), np.array([True, True]), np.sqrt(0.5)),
        (np.array([3], np.uint8), np.array([4], np.uint8), 0.25),
        (5, 4, 0.25),
        (np.array([np.inf, 1.0]), np.array([np.inf, 2.0]), 0.5),  # an infinity makes no error of the rest small
        (np.array([np.inf, 1.0]), np.array([np.inf, 1.0]), 0.0),
        (np.array([np.nan, 2.0]), np.array([np.nan, 2.0]), 0.0),
        (np.array([1.0]), np.array([np.inf]), np.inf),
        (np.array([np.inf]), np.array([1.0]), np.inf),
    ],
)
def test_errors_of_booleans_counts_and_infinities(got, want, error):
    assert cf.Measured("x", got, want).error == pytest.approx(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a report must be JSON"),
        ("[1]", "a conformance report is required"),
        ('{"targets": [], "format": 0}', "a report of format 3 is required; .* has format 0"),
    ],
)
def test_a_file_that_is_no_report_is_refused(tmp_path, text, message):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ProblemError, match=message):
        cf.read(tmp_path / "report.json")


# -- the page ----------------------------------------------------------------------------------------------------------


def test_a_failure_shows_both_values_and_the_command_that_runs_it_again():
    text = markdown.page(BAD.record()).replace("\\", "")
    assert re.search(r"\[1\]\W+2\.5\W+2\.0", text)
    for part in (
        "1 of 3 entries differ; error 0.134, tolerance 0.001: 134 tolerances",
        FAILED.command,
        """xvarpro conformance --backend torch --device cpu --dtype float32 --only 'sets/oracle/it'"'"'s'""",
        "ValueError: <script>alert('|')</script>",
        "TF32 False",
        "not run: not installed",
        "torch float64 sets/*: 10 times as wide",
        "no | projection",
    ):
        assert part in text


@both
def test_tables_are_rectangular_and_escape_what_they_show(found):
    text = markdown.page(found.record())
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert len(blocks) >= 4
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
        assert not re.search(r"(?<!\\)<(?!br>)", block)


def test_the_page_has_the_matrix_and_the_processor_paths():
    text = markdown.page(BAD.record())
    names = (f"{b}<br>cpu<br>{dtype}" for b in ("numpy", "torch") for dtype in ("float64", "float32"))
    assert f"| area | {' | '.join(names)} |" in text
    fields = "1 passed<br>0.5<br>itself", "1 passed<br>0.002<br>N", "**1 FAIL**<br>of 3<br>134<br>N"
    assert f"| sets | {' | '.join(fields)} | **1 FAIL**<br>of 1<br>inf |" in text.replace("\xa0", " ")
    assert (
        "2 of 7 cases failed, by 2 causes on 4 targets; processor paths: 1 failed, 1 cannot run here; 1 do not apply"
        in text
    )
    assert "| torch/default/2 | failed | mkl OFF | 0 | 1 | 134 | A=1 |" in text
    assert "| jax/AVX512/1 | cannot run here |  | 0 | 0 |  | the processor has no AVX512F |" in text
    assert "Processor paths" not in markdown.page(GOOD.record())


def test_counts_say_of_how_many():
    nan = float("nan")
    left = [outcome("jax", case=str(i), state="left out", units=nan, note="long") for i in range(1046)]
    text = markdown.page(report(outcome("jax"), outcome("jax", case="Box 2"), *left).record()).replace("\xa0", " ")
    assert "| sets | 2 passed<br>of 1,048<br>0.5<br>N |" in text
    assert "2 cases passed on 1 target; 1,046 left out" in text
    assert "| 1,046 | long | sets/oracle | all |" in text


def test_the_page_says_whose_fault_it_is_and_what_changed():
    passed = report(outcome(case="a"), outcome("torch", case="a")).record()
    record = report(outcome(case="a", against="definition"), off("torch", against="definition")).record()
    record["since"] = changes(record, passed)
    text = markdown.page(record)
    assert "**Wrong on torch cpu alone: numpy cpu passed the same cases.**" in text
    assert f"Since {passed['date']}: 1 newly failing." in text
    assert "| newly failing | sets/oracle: a | torch cpu float64 |" in text
    both = report(off("numpy", against="definition"), off("torch", against="definition")).record()
    assert "**The reference is in doubt: numpy cpu, torch cpu fail alike." in markdown.page(both)
    assert words.since(changes(passed, passed)).endswith("nothing fails, passes or is gone that did not before")
