"""Every public name has an entry, and links work in the repository; `sphinx-build -W` says the rest."""

import importlib
import inspect
import re
from pathlib import Path

import xvarpro as xv

DOCS = Path(__file__).parents[1] / "docs"
REFERENCE = DOCS / "reference"
# public, and imported by their own names
ASIDE = ("sklearn", "conformance", "backends.adapters")


def entries():
    """What the pages of the reference list, by full name."""
    found = []
    for page in sorted(REFERENCE.glob("*.rst")):
        text = page.read_text(encoding="utf-8")
        if module := re.search(r"^\.\. currentmodule:: (\S+)$", text, re.MULTILINE):
            for block in re.findall(r"^\.\. autosummary::\n(?:   :.*\n)*\n((?:   \S+\n?)+)", text, re.MULTILINE):
                found += [f"{module[1]}.{name}" for name in block.split()]
            found += [f"{module[1]}.{name}" for name in re.findall(r"^\.\. data:: (\S+)$", text, re.MULTILINE)]
    return found


def public(module, name):
    """Full name and value of what a module and the modules that it exports have for their users."""
    for key in module.__all__:
        value = getattr(module, key)
        if inspect.ismodule(value):
            yield from public(value, f"{name}.{key}")
        else:
            yield f"{name}.{key}", value


def resolve(name):
    value = xv
    for key in name.split(".")[1:]:
        value = getattr(value, key) if hasattr(value, key) else importlib.import_module(f"{value.__name__}.{key}")
    return value


def test_every_public_name_has_an_entry():
    listed = entries()
    assert len(set(listed)) == len(listed), "a name is listed twice"
    known = {id(resolve(name)) for name in listed}
    names = dict(public(xv, "xvarpro"))
    for name in ASIDE:
        names |= dict(public(importlib.import_module(f"xvarpro.{name}"), f"xvarpro.{name}"))
    missing = [name for name, value in names.items() if id(value) not in known]
    assert not missing, f"in no page of docs/reference: {missing}"


def test_public_names_are_few():
    """Counted with every entry of every list, modules and names that stand in two lists included."""
    modules = [xv, *(value for name in xv.__all__ if inspect.ismodule(value := getattr(xv, name)))]
    assert len(modules) > 15
    assert 200 < sum(len(module.__all__) for module in modules) <= 250


def test_no_object_has_two_entries():
    values = [id(resolve(name)) for name in entries()]
    assert len(set(values)) == len(values)


def test_a_page_of_the_gallery_or_the_reference_is_no_target(subtests):
    """Links lead to files of the repository: pages that only the site has are named by their sources."""
    for page in (*sorted(DOCS.glob("*.md")), *sorted((DOCS / "sklearn").glob("*.md"))):
        with subtests.test(page.stem):
            links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
            assert not [link for link in links if "auto_gallery" in link or link.endswith(".html")]
