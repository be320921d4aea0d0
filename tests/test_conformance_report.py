"""What the user of the conformance suite sees: reports that hold what was found, and a command that says so."""

import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from xvarpro import backends as registry
from xvarpro import conformance as cf
from xvarpro.backends.numpy import NumPyBackend
from xvarpro.cli import app
from xvarpro.conformance import exemptions, html, markdown, runner, suite, words
from xvarpro.conformance.values import ENTRIES, compared
from xvarpro.errors import ProblemError, UnknownBackendError

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


# -- the run -----------------------------------------------------------------------------------------------------------


def right(target, case):
    """Sums are right."""
    if case == "none":
        raise cf.Inapplicable("there is nothing to add")
    yield cf.Measured("sum", target.host(target.send(np.ones(3))).sum(), 3.0, target.eps)


def wrong(target, case):
    """Sums are wrong."""
    yield cf.Measured("sum", np.array([3.0, 4.0]), np.array([3.0, 4.5]), 0.01)


def broken(target, case):
    """Sums raise."""
    raise RuntimeError("no sum today")


def entered(*funs, **cases):
    return [
        cf.Check("arithmetic", f.__name__, f, lambda: cases or {"a": 1, "none": "none"}, ("float64", "float32"))
        for f in funs
    ]


@pytest.fixture
def suite_of(monkeypatch):
    """Replaces the suite: a few checks of milliseconds."""
    list(suite.every())  # what is imported later would be entered here, and lost

    def replace(*funs, **cases):
        monkeypatch.setattr(suite, "CHECKS", entered(*funs, **cases))

    return replace


class Mine(NumPyBackend):
    """A plugin: an array library of its own, as far as the registry knows."""

    name = "mine"
    roots = ("nowhere",)
    exemptions = (cf.Exemption("mine", "arithmetic/wrong/*", "float32", 20.0, "rounds sums to halves"),)

    def describe(self):
        return {"mine": "1.2.3"}


@pytest.fixture
def plugin(monkeypatch):
    monkeypatch.setattr(registry, "_plugins", lambda: {"mine": SimpleNamespace(load=lambda: Mine)})


def test_states(suite_of):
    suite_of(right, wrong, broken)
    found = cf.run("numpy")
    states = {f"{o.check}/{o.case}": o.state for o in found.outcomes if o.dtype == "float64"}
    assert states == {
        "right/a": "passed",
        "right/none": "inapplicable",
        "wrong/a": "failed",
        "wrong/none": "failed",
        "broken/a": "raised",
        "broken/none": "raised",
    }
    assert found.cell(found.targets[0], "arithmetic")[:4] == (1, 4, 1, np.inf)
    assert "RuntimeError: no sum today" in found.failures[-1].note


def test_what_is_asked_for(suite_of):
    suite_of(right, wrong)
    assert [o.address for o in cf.run("numpy", "arithmetic/right/a").outcomes] == ["arithmetic/right/a"] * 2
    assert len(cf.run(["numpy", cf.targets(["numpy"], dtypes=["float32"])[0]], "arithmetic/right").outcomes) == 6
    assert cf.run([registry.get("numpy")], ["*/a", "arithmetic/wrong"]).only == ("*/a", "arithmetic/wrong")
    for address in ("arithmetics", "arithmetic/right/b", "right", "arithmetic/right/a/b"):
        with pytest.raises(ProblemError, match="no check has the address"):
            cf.run("numpy", ["arithmetic", address])
    with pytest.raises(UnknownBackendError, match="unknown backend 'foo'"):
        cf.run("foo")


def test_cases_that_nobody_asked_for_are_not_made(suite_of, monkeypatch):
    def never():
        raise AssertionError

    suite_of(right)
    monkeypatch.setattr(suite, "CHECKS", [*suite.CHECKS, cf.Check("sets", "oracle", wrong, never, ("float64",))])
    assert cf.run("numpy", ["arithmetic/r*"]).ok


def test_a_plugin_is_run_with_its_exemptions(suite_of, plugin):
    suite_of(wrong, a=1)
    assert "mine" in {o.backend for o in cf.run().outcomes}
    found = cf.run("mine")
    assert [o.state for o in found.outcomes] == ["failed", "passed"]  # the exemption is for float32
    (told,) = found.record()["exemptions"]
    assert (told["reason"], told["needed"]) == ("rounds sums to halves", 1)
    assert found.facts == {"mine": {"mine": "1.2.3"}}


def test_a_backend_without_a_device_is_named_with_its_reason(suite_of, monkeypatch):
    def driver():
        raise OSError("no driver\nand more")

    suite_of(right)
    monkeypatch.setattr(registry.get("torch"), "devices", driver)
    assert runner.absent()["torch"] == "ProblemError: backend 'torch' has no device to compute on: OSError: no driver"
    with pytest.raises(ProblemError, match="'torch' has no device to compute on: OSError: no driver"):
        cf.targets(["torch"])


def test_every_exemption_of_the_package_is_one_of_a_case_that_there_is():
    for e in exemptions.BUILT_IN:
        assert e.backend in registry.known()
        assert e.factor > 1


# -- the command -------------------------------------------------------------------------------------------------------


def invoke(*args, columns="120"):
    return CliRunner().invoke(app, ["conformance", *(str(a) for a in args)], env={"COLUMNS": columns})


def test_all_is_well(suite_of, tmp_path):
    suite_of(right)
    result = invoke("--backend", "numpy", "--report", tmp_path / "new" / "a.html", "--report", tmp_path / "a.json")
    assert (result.exit_code, result.stderr) == (0, "")  # and no bar in a pipe
    assert re.search(r"arithmetic\s+1 passed\s+1 passed", result.stdout)
    assert "arithmetic/right  2: there is nothing to add" in result.stdout
    assert "2 cases passed on 2 targets; 2 do not apply" in result.stdout
    assert cf.read(tmp_path / "a.json")["ok"] is True
    assert (tmp_path / "new" / "a.html").read_text() == html.page(cf.read(tmp_path / "a.json"))


@pytest.mark.parametrize("columns", ["120", "60"])
def test_a_failure_is_status_1_with_both_values_and_the_command(suite_of, columns):
    suite_of(right, wrong, broken, a=1)
    result = invoke("--backend", "numpy", "--dtype", "float32", columns=columns)
    assert result.exit_code == 1
    told = " ".join(result.stdout.split())
    assert "failed: numpy cpu float32 arithmetic/wrong/a Sums are wrong." in told
    assert re.search(r"\[1\] 4\.0 4\.5", told)
    assert "raised: numpy cpu float32 arithmetic/broken/a" in told
    assert "RuntimeError: no sum today" in told
    command = "xvarpro conformance --backend numpy --device cpu --dtype float32 --only arithmetic/wrong/a"
    assert command in result.stdout.splitlines()  # on one line, to be copied
    again = invoke(*command.split()[2:])
    assert again.exit_code == 1
    assert "1 of 1 case failed on 1 target; of arithmetic/wrong/a alone" in " ".join(again.stdout.split())


def test_many_targets_fit_a_narrow_screen(suite_of):
    suite_of(right)
    result = invoke("--backend", "numpy,torch,array-api-strict", columns="60")
    assert max(len(line) for line in result.stdout.splitlines() if "passed" in line) <= 60
    assert sum("array-api-strict" in line for line in result.stdout.splitlines()[:20]) == 1
    assert result.stdout.count("1 passed") == 6


def test_more_failures_than_a_screen_holds_are_counted(suite_of):
    suite_of(wrong, **{f"case {i}": i for i in range(15)})
    result = invoke("--backend", "numpy")
    assert result.stdout.count("Sums are wrong.") == 20
    assert "and 10 more: --report FILE.html" in result.stdout


def test_a_report_is_shown_and_rendered_again(tmp_path):
    for found in (GOOD, BAD):
        found.save(tmp_path / "a.json")
        result = invoke("--from", tmp_path / "a.json", "--report", tmp_path / "a.md")
        assert result.exit_code == int(not found.ok)
        assert words.verdict(found.record()) in " ".join(result.stdout.split())
        assert (tmp_path / "a.md").read_text() == markdown.page(found.record())
    assert "torch float64 sets/*: 10 times as wide, needed by 1 of 2 cases" in result.stdout


def test_the_suite_is_listed(suite_of):
    suite_of(right, wrong)
    result = invoke("--list")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "arithmetic/right  (2 cases)", "    Sums are right.", "arithmetic/wrong  (2 cases)", "    Sums are wrong."
    ]  # fmt: skip
    assert "    arithmetic/wrong/a" in invoke("--list", "--only", "*/wrong/*").stdout.splitlines()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--backend", "foo"], "unknown backend 'foo'"),
        (["--backend", ","], "a name is needed"),
        (["--backend", "numpy", "--device", "cuda:7"], "no backend has a device cuda:7"),
        (["--backend", "numpy", "--dtype", "float16"], "dtype must be float64 or float32, got 'float16'"),
        (["--backend", "numpy", "--only", "arithmetic/left"], "no check has the address 'arithmetic/left'"),
        (["--list", "--only", "left"], "no check has the address 'left'"),
        (["--report", "report.pdf"], "a report ends in .html, .md, .json"),
        (["--from", "nowhere.json"], "No such file or directory: nowhere.json"),
        (["--from", "nowhere.json", "--only", "sets"], "--from shows a report as it was written"),
    ],
)
def test_wrong_use_is_status_2_in_one_line(suite_of, args, told):
    suite_of(right)
    result = invoke(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert told in result.stderr


def test_a_mistake_in_a_precision_that_no_check_speaks_about(suite_of, monkeypatch):
    suite_of(right)
    monkeypatch.setattr(suite, "CHECKS", [cf.Check("solves", "right", right, lambda: {"a": 1}, ("float64",))])
    result = invoke("--backend", "numpy", "--dtype", "float32", "--only", "solves")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "speaks about this precision" in result.stderr


def test_json_is_what_any_reader_accepts(tmp_path):
    BAD.save(tmp_path / "a.json")

    def refuse(name):
        raise AssertionError(name)

    json.loads((tmp_path / "a.json").read_text(), parse_constant=refuse)
