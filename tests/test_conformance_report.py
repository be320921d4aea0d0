"""Reports of the conformance suite: a record that holds what was found, and pages that show it."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from xvarpro import conformance as cf
from xvarpro.conformance import html, markdown, words
from xvarpro.conformance.values import ENTRIES, compared
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
FAILED = outcome("torch", state="failed", units=WRONG.units, failures=(WRONG,))
RAISED = outcome("torch", "float32", case="it's", state="raised", units=float("nan"), note=TRACEBACK)
EXEMPTED = (
    outcome("torch", case="Box 3", units=0.5, exemption=EXEMPTION),
    outcome("torch", case="Box 4", units=0.05, exemption=EXEMPTION),
)


def report(*outcomes):
    facts = {"numpy": {"numpy": "2.0"}, "torch": {"torch": "2.9", "TF32": False}}
    return cf.Report(tuple(outcomes), facts, absent={"cupy": "not installed"})


GOOD = report(*PASSED, INAPPLICABLE)
BAD = report(*PASSED, INAPPLICABLE, FAILED, RAISED, *EXEMPTED)
both = pytest.mark.parametrize("found", [GOOD, BAD], ids=["good", "bad"])


# -- the record --------------------------------------------------------------------------------------------------------


@both
def test_the_record_survives_json(found, tmp_path):
    found.save(tmp_path / "report.json")
    assert cf.read(tmp_path / "report.json") == found.record()
    for suffix in (".html", ".md"):
        found.save(tmp_path / f"first{suffix}")
        cf.write(cf.read(tmp_path / "report.json"), tmp_path / f"again{suffix}")
        assert (tmp_path / f"again{suffix}").read_text() == (tmp_path / f"first{suffix}").read_text()


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


def test_an_exemption_says_how_many_cases_needed_it():
    (told,) = BAD.record()["exemptions"]
    assert (told["cases"], told["needed"], told["reason"]) == (2, 1, EXEMPTION.reason)


def test_a_reason_why_something_does_not_apply_is_told_once():
    again = outcome("torch", case="Box 9", state="inapplicable", units=float("nan"), note=INAPPLICABLE.note)
    (told,) = report(*PASSED, INAPPLICABLE, again).record()["inapplicable"]
    assert told == {
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
    told = compared(cf.Measured("x", got, want, 1e-3))
    assert (told["size"], told["differ"], len(told["entries"])) == (100, 9, ENTRIES)
    assert told["entries"][0] == {"at": [5, 5], "got": "nan", "want": "0.0"}
    assert [e["at"] for e in told["entries"][1:]] == [[3, 8], [3, 7], [3, 6], [3, 5], [3, 4]]
    assert told["error"] == told["units"] == "inf"


@pytest.mark.parametrize(
    ("got", "want", "shown"),
    [
        (np.ones(3), np.ones(2), ("shape (3,): [1., 1., 1.]", "shape (2,): [1., 1.]")),
        ("float32", "float64", ("'float32'", "'float64'")),
        (np.ones(2), None, ("shape (2,): [1., 1.]", "None")),
    ],
)
def test_what_is_no_pair_of_arrays_is_shown_as_text(got, want, shown):
    told = compared(cf.Measured("x", got, want))
    assert (told["got"], told["want"]) == shown
    assert list(words.entries(told)) == [("", *shown)]


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        (np.array([True, False]), np.array([True, False]), 0.0),
        (np.array([True, False]), np.array([True, True]), np.sqrt(0.5)),
        (np.array([3], np.uint8), np.array([4], np.uint8), 0.25),
        (5, 4, 0.25),
        (np.array([np.inf, 1.0]), np.array([np.inf, 2.0]), 0.5),  # an infinity makes no error of the rest small
        (np.array([np.nan, 2.0]), np.array([np.nan, 2.0]), 0.0),
        (np.array([np.inf]), np.array([1.0]), np.inf),
    ],
)
def test_errors_of_booleans_counts_and_infinities(got, want, error):
    assert cf.Measured("x", got, want).error == pytest.approx(error)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is no JSON"),
        ("[1]", "is no conformance report"),
        ('{"targets": [], "format": 0}', "has format 0, this version reads 1"),
    ],
)
def test_a_file_that_is_no_report_is_refused(tmp_path, text, told):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ProblemError, match=told):
        cf.read(tmp_path / "report.json")


def test_a_report_of_another_ending_is_refused(tmp_path):
    with pytest.raises(ProblemError, match=r"ends in \.html, \.md, \.json: got '.*report\.pdf'"):
        GOOD.save(tmp_path / "report.pdf")


def test_json_is_what_any_reader_accepts(tmp_path):
    BAD.save(tmp_path / "a.json")

    def refuse(name):
        raise AssertionError(name)

    json.loads((tmp_path / "a.json").read_text(), parse_constant=refuse)


# -- the page ----------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """A page as a browser takes it: every tag closed in its turn, and what it asks others for."""

    VOID = ("meta", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.asks, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs).get("class")))
        self.asks += [value for name, value in attrs if name in ("src", "href", "action", "srcset", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def count(self, tag, name=None):
        return self.tags.count((tag, name))

    @property
    def told(self):
        return " ".join(" ".join(self.text).split())


@both
def test_the_page_is_well_formed_and_needs_nothing_else(found):
    text = html.page(found.record())
    page = Page(text)
    assert page.asks == []
    assert not re.search(r"https?:|url\(|@import|<link|<img", text)
    assert [page.count(tag) for tag in ("html", "main", "style", "script", "h1")] == [1] * 5


def test_the_page_escapes_what_it_shows():
    text = html.page(BAD.record())
    assert text.count("<script>") == 1
    for raw in ("<script>alert", "<g, v>", "<exact>", "<square>"):
        assert raw not in text.replace("\n<script>\n", "")
        assert raw in Page(text).told


def test_the_matrix_says_in_words_what_it_says_in_colour():
    page = Page(html.page(BAD.record()))
    assert "1 of 3 FAIL" in page.told
    assert page.count("td", "step2") == 1  # 0.5: passed
    assert page.count("td", "step4") == 1  # FAILED
    assert page.count("td", "step5") == 1  # RAISED
    assert page.count("td", "step0") == 2
    assert not page.count("td", "step3")


@pytest.mark.parametrize("render", [html.page, markdown.page], ids=["html", "markdown"])
def test_a_failure_shows_both_values_and_the_command_that_runs_it_again(render):
    text = render(BAD.record())
    told = Page(text).told if render is html.page else text.replace("\\", "")
    assert re.search(r"\[1\]\W+2\.5\W+2\.0", told)
    assert "1 of 3 entries differ; error 0.134, tolerance 0.001: 134 tolerances" in told
    assert "xvarpro conformance --backend torch --device cpu --dtype float64 --only 'sets/oracle/Box 1'" in told
    assert """--only 'sets/oracle/it'"'"'s'""" in told
    assert "ValueError: <script>alert('|')</script>" in told
    assert "TF32 False" in told
    assert "not run: not installed" in told
    assert "torch float64 sets/*: 10 times as wide" in told
    assert "no | projection" in told


@both
def test_markdown_tables_are_rectangular(found):
    blocks = re.findall(r"(?:^\|.*\|\n)+", markdown.page(found.record()), re.MULTILINE)
    assert len(blocks) >= 4
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_markdown_has_the_matrix():
    text = markdown.page(BAD.record())
    assert "| area | numpy cpu float64 | torch cpu float64 |" not in text
    assert "| area | numpy cpu float64 | numpy cpu float32 | torch cpu float64 | torch cpu float32 |" in text
    assert "| sets | 1 passed, 0.5 | 1 passed, 0.002 | 1 of 3 FAIL, 134 | 1 of 1 FAIL, inf |" in text
    assert "2 of 7 cases failed on 4 targets; 1 do not apply" in text
