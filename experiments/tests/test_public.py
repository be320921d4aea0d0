"""Experiments and their examples use xvarpro as any user can: its exported names, tables and options of commands."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
import xvarpro_experiments

import xvarpro as xv
from xvarpro.backends import adapters

ROOT = Path(xvarpro_experiments.__file__).parent
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*/src/*"))
FILES = {
    path.relative_to(root.parent).as_posix(): path for root in (ROOT, *EXAMPLES) for path in sorted(root.rglob("*.py"))
}
FOR_COMMANDS = ("cli.tables", "cli.options")  # public for authors of commands
FOR_PARTS = ("Adjoint", "Diagnosis", "Ridge", "System")  # for authors of lower solvers: docs/reference/authors.rst
AUTHORS = {"backends.adapters": adapters.__all__, "lower.interface": FOR_PARTS}


def public(name):
    """Whether a dotted name is reached from `xvarpro` through exported names alone."""
    if name.startswith(FOR_COMMANDS):
        return "._" not in name
    module, _, last = name.rpartition(".")
    if module in AUTHORS or name in AUTHORS:
        return name in AUTHORS or last in AUTHORS[module]
    here = xv
    for part in name.split("."):
        if not inspect.ismodule(here):
            return True
        if part not in getattr(here, "__all__", [n for n in vars(here) if not n.startswith("_")]):
            return False
        here = getattr(here, part)
    return True


def imported(text, package):
    """Modules of a package with the names that a file imports from them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package):
            yield from ((node.module, alias.name) for alias in node.names)
        assert not isinstance(node, ast.Import) or all(
            alias.asname == "xv" for alias in node.names if alias.name.startswith("xvarpro")
        )


def names(text):
    """Names of xvarpro that a file imports, or reaches from `xv`."""
    for module, name in imported(text, "xvarpro"):
        if module.split(".")[0] == "xvarpro":
            yield f"{module}.{name}".partition(".")[2]
    yield from (name.rstrip(".") for name in re.findall(r"\bxv\.([\w.]+)", text))


def test_a_file_uses_public_names_alone(subtests):
    for file, path in FILES.items():
        with subtests.test(file):
            assert not sorted(name for name in set(names(path.read_text())) if not public(name))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import xvarpro as xv\nxv.sets.L1Ball", True),
        ("from xvarpro.errors import ProblemError", True),
        ("from xvarpro.cli import tables", True),
        ("from xvarpro.core import trees", False),
        ("from xvarpro.lower.interface import System", True),
        ("from xvarpro.lower.interface import NO_RIDGE", False),
        ("from xvarpro.backends.adapters import owner", True),
        ("import xvarpro as xv\nxv.lower.stack.factored", False),
        ("import xvarpro as xv\nxv.driver", False),
    ],
)
def test_what_is_public(text, found):
    assert all(map(public, names(text))) == found


def test_an_example_uses_public_names_of_the_experiments(subtests):
    for file in [file for file in FILES if not file.startswith(ROOT.name)]:
        with subtests.test(file):
            found = imported(FILES[file].read_text(), "xvarpro_experiments")
            assert not [name for name in found if "._" in ".".join(name)]


def test_files_import_each_other_without_cycles():
    modules = {name.removesuffix(".py").replace("/", "."): path for name, path in FILES.items()}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    arrows = {}
    for name, path in modules.items():
        found = imported(path.read_text(), "xvarpro_")
        arrows[name] = {f"{a}.{b}" if f"{a}.{b}" in modules else a for a, b in found} - {name}
    while arrows:
        leaves = {name for name, to in arrows.items() if not to & arrows.keys()}
        assert leaves, f"a cycle among {sorted(arrows)}"
        arrows = {name: to for name, to in arrows.items() if name not in leaves}
