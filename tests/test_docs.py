"""The generated pages are those of the docstrings, what they say is true of the code, their links lead somewhere."""

import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path

import numpy as np

import xvarpro as xv

ROOT = Path(__file__).parents[1]


def load(name):
    spec = importlib.util.spec_from_file_location(f"xvarpro_docs_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = load("tables")
EXPORTED = [(file, heading, obj) for file, page in tables.PAGES.items() for heading, obj in tables.exported(page)]
RECORDS = (xv.steps.Line, xv.steps.Search)  # what a rule is given and returns: in docs/extending.md
CLASSES = [(file, obj) for file, _, obj in EXPORTED if isinstance(obj, type) and obj not in RECORDS]
LONGEST = 120  # characters of a cell


def field(cls, name):
    return tables.notes(cls)[0][name]


def of(base):
    return [cls for _, cls in CLASSES if issubclass(cls, base)]


def test_a_page_is_what_the_docstrings_make_it(subtests):
    for file in tables.PAGES:
        with subtests.test(file):
            fresh = (ROOT / "docs" / file).read_text(encoding="utf-8") == tables.render(file)
            assert fresh, f"docs/{file} is stale: run `python docs/tables.py`"


def test_check_writes_nothing_and_fails_if_a_page_is_stale(tmp_path, monkeypatch, capsys):
    pages = {file: (ROOT / "docs" / file).read_text(encoding="utf-8") for file in tables.PAGES}
    stale = {**pages, "steps.md": "Mine.\n" + pages["steps.md"].replace("Armijo", "Amijo")}
    for file, text in stale.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.setattr(tables, "HERE", tmp_path)
    assert tables.main(["--check"]) == 1
    assert {file: (tmp_path / file).read_text(encoding="utf-8") for file in pages} == stale
    assert tables.main([]) == 0
    assert tables.main(["--check"]) == 0
    assert capsys.readouterr().out == "stale: steps.md\nwritten: steps.md\n"
    assert (tmp_path / "steps.md").read_text(encoding="utf-8") == "Mine.\n" + pages["steps.md"]


def test_every_exported_class_has_a_row_with_all_of_its_fields(subtests):
    for file, cls in CLASSES:
        with subtests.test(cls.__name__):
            kind = tables.kind_of(tables.PAGES[file], cls)
            assert kind is not None, f"docs/tables.py has no table for {cls.__name__}"
            found, _ = tables.notes(cls)
            assert tuple(found) == kind.fields, (
                f"the Notes of {cls.__name__} must begin with {kind.fields}, one per line"
            )
            assert all(len(tables.markdown(text, file).replace("`", "")) <= 2 * LONGEST for text in found.values())
            assert max(map(len, found.values())) <= LONGEST


def test_every_exported_class_has_an_example_that_shows_something(subtests):
    for _, cls in CLASSES:
        with subtests.test(cls.__name__):
            lines = tables.sections(cls)["Examples"].split("\n")
            assert lines[0].startswith(">>> import")
            assert not lines[-1].startswith((">>>", "..."))


def test_a_set_says_that_it_has_no_projection_where_it_has_none(subtests):
    for cls in of(xv.sets.Set):
        with subtests.test(cls.__name__):
            has = tables.depends(cls, "has_projection")
            assert field(cls, "Projection").startswith("none, because ") == (has is False)


def test_the_letters_are_those_of_the_instances(subtests):
    for cls in of(xv.sets.Set):
        with subtests.test(cls.__name__):
            on, *letters = tables.nature(cls).replace("(", "").replace(")", "").split()
            fixed = tables.nature(cls).partition("(")[0].split()[1:]
            for shape in ((4,), (3, 3), (3, 2, 1, 1)):
                for C in cls.examples(shape):
                    has = {"P": C.polytope, "F": C.has_faces, "C": C.takes_complex, "H": not C.compiles}
                    assert {key for key in fixed if not has[key]} == set()
                    assert {key for key in has if has[key]} <= set(letters)
                    assert on in ("varies", ("entries", "vectors", "matrices", "", "")[C.event_ndim])


def test_a_rule_says_whether_it_is_monotone(subtests):
    for cls in of(xv.steps.StepRule):
        with subtests.test(cls.__name__):
            assert field(cls, "Monotone").split(",")[0] == ("yes" if cls.monotone else "no")


def test_an_algorithm_says_whether_it_projects(subtests):
    for cls in of(xv.algorithms.Algorithm):
        with subtests.test(cls.__name__):
            needs = tables.depends(cls, "needs_projection")
            assert field(cls, "Oracle").startswith("projection") == (needs is True)
            assert field(cls, "Polytope only").split(";")[0] in ("yes", "no")


def test_an_iteration_takes_what_the_row_says(subtests):
    for cls in of(xv.algorithms.Algorithm):
        with subtests.test(cls.__name__):
            said = {
                what: int(n) for n, what in re.findall(r"(\d+) (gradient|LMO|projection)", field(cls, "Per iteration"))
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


def test_a_page_has_one_section_for_everything_exported(subtests):
    for file in tables.PAGES:
        with subtests.test(file):
            headings = re.findall(r"^### (.*)$", (ROOT / "docs" / file).read_text(encoding="utf-8"), re.MULTILINE)
            wanted = [h for page, h, obj in EXPORTED if page == file and obj not in RECORDS]
            assert headings == wanted
            names = {name for name in wanted if "." not in name}
            module = getattr(xv, file.removesuffix(".md"))
            public = {
                n for n in module.__all__ if callable(getattr(module, n)) and not inspect.isabstract(getattr(module, n))
            }
            assert names == public - {record.__name__ for record in RECORDS}


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
    found = [tables.anchor(heading) for heading in headings]
    assert len(set(found)) == len(found), "two headings of one name have one anchor"
    return found


def test_tables_are_rectangular():
    for file in tables.PAGES:
        for block in re.findall(r"(?:^\|.*\|\n)+", (ROOT / "docs" / file).read_text(encoding="utf-8"), re.MULTILINE):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
