"""Reports of the conformance suite: a record that holds what was found, and the page that shows it."""

import re

import numpy as np
import pytest

from xvarpro import conformance as cf
from xvarpro.conformance import markdown
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


def test_a_reason_why_something_does_not_apply_comes_once():
    again = outcome("torch", case="Box 9", state="inapplicable", units=float("nan"), note=INAPPLICABLE.note)
    (found,) = report(*PASSED, INAPPLICABLE, again).record()["inapplicable"]
    assert found == {
        "area": "sets",
        "check": "oracle",
        "reason": "no | projection",
        "cases": 2,
        "targets": ["numpy cpu float64", "torch cpu float64"],
    }


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
        ('{"targets": [], "format": 0}', "a report of format 2 is required; .* has format 0"),
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
        assert not re.search(r"(?<!\\)<", block)


def test_the_page_has_the_matrix_and_the_processor_paths():
    text = markdown.page(BAD.record())
    assert "| area | numpy cpu float64 | numpy cpu float32 | torch cpu float64 | torch cpu float32 |" in text
    assert "| sets | 1 passed, 0.5 | 1 passed, 0.002 | 1 of 3 FAIL, 134 | 1 of 1 FAIL, inf |" in text
    assert "2 of 7 cases failed on 4 targets; processor paths: 1 failed, 1 cannot run here; 1 do not apply" in text
    assert "| torch/default/2 | failed | mkl OFF | 0 | 1 | 134 | A=1 |" in text
    assert "| jax/AVX512/1 | cannot run here |  | 0 | 0 |  | the processor has no AVX512F |" in text
    assert "Processor paths" not in markdown.page(GOOD.record())
