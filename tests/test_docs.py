"""What the pages and the notes of docstrings say is true of the code, and their links lead somewhere."""

import inspect
import re
from functools import cache
from pathlib import Path

import numpy as np

import xvarpro as xv
from xvarpro.algorithms._conditional_gradient import Blocks
from xvarpro.algorithms._corrective import Correction
from xvarpro.algorithms.stochastic import Estimator
from xvarpro.algorithms.updates import Update
from xvarpro.objective.mini_batch import LowerRows

ROOT = Path(__file__).parents[1]
LONGEST = 120  # characters of a field
# the first lines of the Notes of a class, ``Name : text``, by the first of these that it derives from
FIELDS = {
    xv.sets.Set: ("LMO", "Cost", "Diameter", "Projection"),
    xv.sets.Free: ("Dual norm", "Direction", "Cost"),
    xv.sets.norms.Norm: ("Dual norm", "Direction", "Cost"),
    xv.sets.Lanczos: ("Finds", "Cost", "When"),
    xv.steps.StepRule: ("Formula", "Evaluations", "Monotone", "Needs", "When"),
    xv.algorithms.Algorithm: ("Oracle", "Per iteration", "Memory", "Polytope only", "When"),
    Blocks: ("Searches", "Per iteration", "When"),
    Correction: ("Direction", "When"),
    Estimator: ("Estimate", "Per iteration", "When"),
    Update: ("Step", "Memory", "When"),
    LowerRows: ("Gradient", "Rows", "When"),
}


def concrete(module):
    found = (getattr(module, name) for name in module.__all__)
    return [x for x in found if isinstance(x, type) and not inspect.isabstract(x)]


NORMS = [getattr(xv.sets.norms, name) for name in ("L1", "L2", "ColumnNorm", "RowNorm", "Sign", "Spectral")]
CLASSES = [*concrete(xv.sets), *NORMS, *concrete(xv.steps), *concrete(xv.algorithms)]


def fields(cls):
    """Those at the head of the Notes."""
    notes = inspect.cleandoc(cls.__doc__).partition("\nNotes\n-----\n")[2].partition("\n\n")[0]
    return dict(re.findall(r"^([A-Z][A-Za-z ]*) : (\S.*(?:\n    .*)*)", notes, re.MULTILINE))


def of(base):
    return [cls for cls in CLASSES if issubclass(cls, base)]


def text(page):
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def rows(page):
    """Of the table "All ...", by the name in the first column."""
    table = re.findall(r"^\| `(\w+)` \| (.*) \|$", text(page).partition("\n## All ")[2], re.MULTILINE)
    return {name: [cell.strip() for cell in re.split(r"(?<!\\)\|", rest)] for name, rest in table}


def test_the_notes_of_a_class_begin_with_its_fields(subtests):
    for cls in CLASSES:
        with subtests.test(cls.__name__):
            wanted = next(names for base, names in FIELDS.items() if issubclass(cls, base))
            found = fields(cls)
            assert tuple(found) == wanted, f"the Notes of {cls.__name__} must begin with {wanted}, one per line"
            assert max(len(" ".join(x.split())) for x in found.values()) <= LONGEST


def test_every_exported_class_has_an_example_that_shows_something(subtests):
    for cls in CLASSES:
        with subtests.test(cls.__name__):
            lines = inspect.cleandoc(cls.__doc__).partition("\nExamples\n--------\n")[2].strip().split("\n")
            assert lines[0].startswith(">>> import")
            assert not lines[-1].startswith((">>>", "..."))


def test_the_table_of_sets_is_what_their_instances_say(subtests):
    table = rows("sets.md")
    assert list(table) == [cls.__name__ for cls in of(xv.sets.Set)]
    for cls in of(xv.sets.Set):
        with subtests.test(cls.__name__):
            on, projection, letters = table[cls.__name__]
            assert fields(cls)["Projection"].startswith("none, because ") == (projection == "no")
            always, _, sometimes = letters.rstrip(")").partition("(")
            for shape in ((4,), (3, 3), (3, 2, 1, 1)):
                for C in cls.examples(shape):
                    has = {"P": C.polytope, "F": C.has_faces, "C": C.takes_complex, "H": not C.compiles}
                    found = {key for key in has if has[key]}
                    assert set(always.split()) <= found <= {*always.split(), *sometimes.split()}
                    assert projection in ("depends", "yes" if C.has_projection else "no")
                    assert on in ("varies", ("entries", "vectors", "matrices", "", "")[C.event_ndim])


def test_the_table_of_rules_says_whether_they_are_monotone(subtests):
    table = rows("steps.md")
    assert list(table) == [cls.__name__ for cls in of(xv.steps.StepRule)]
    for cls in of(xv.steps.StepRule):
        with subtests.test(cls.__name__):
            said = "yes" if cls.monotone else "no"
            assert fields(cls)["Monotone"].split(",")[0] == table[cls.__name__][-2] == said


def test_an_algorithm_says_whether_it_projects(subtests):
    for cls in of(xv.algorithms.Algorithm):
        with subtests.test(cls.__name__):
            oracle = fields(cls)["Oracle"]
            assert oracle.startswith("that of") or oracle.startswith("projection") == cls().needs_projection
            assert fields(cls)["Polytope only"].split(";")[0] in ("yes", "no")


def test_an_iteration_takes_what_the_row_says(subtests):
    for cls in of(xv.algorithms.Algorithm):
        with subtests.test(cls.__name__):
            said = {
                what: int(n) for n, what in re.findall(r"(\d+) (gradient|LMO|projection)", fields(cls)["Per iteration"])
            }
            y = np.random.default_rng(0).uniform(size=(5, 40))
            problem = xv.separable(lambda theta, data: theta, y, lam=1.0, compress=False)
            over = xv.sets.Columns(xv.sets.Simplex())
            fit = xv.solve(problem, np.full((5, 3), 0.18) + 0.1 * np.eye(5, 3), over=over, algorithm=cls(), max_iter=6)
            assert fit.n_iter > 1
            assert said or cls is xv.algorithms.Reseeded
            done = {"gradient": fit.trace.gradients, "LMO": fit.trace.lmos, "projection": fit.trace.projections}
            for what, n in said.items():
                # what is not in every iteration, as a gradient near rounding, comes on top
                assert min(np.diff(done[what])) == n, what


def test_links_resolve(subtests):
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))):
        with subtests.test(path.name):
            text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if target.startswith(("http://", "https://")):
                    continue
                name, _, at = target.partition("#")
                to = path.parent / name if name else path
                assert to.exists(), target
                assert not at or at in anchors(to), target


@cache
def anchors(path):
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    found = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert len(set(found)) == len(found), "two headings of one name have one anchor"
    return found


def test_tables_are_rectangular(subtests):
    for path in sorted((ROOT / "docs").rglob("*.md")):
        with subtests.test(path.name):
            for block in re.findall(r"(?:^\|.*\|\n)+", path.read_text(encoding="utf-8"), re.MULTILINE):
                assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
