"""Experiments and their examples use xvarpro as any user can: its exported names, tables and options of commands."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
import xvarpro_experiments

import xvarpro as xv

ROOT = Path(xvarpro_experiments.__file__).parent
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*/src/*"))
FILES = {
    path.relative_to(root.parent).as_posix(): path for root in (ROOT, *EXAMPLES) for path in sorted(root.rglob("*.py"))
}
FOR_COMMANDS = ("xvarpro.cli.tables", "xvarpro.cli.options")  # public for authors of commands


def public(name):
    """Whether a dotted name is reached from `xvarpro` through exported names alone."""
    if name.startswith(FOR_COMMANDS):
        return not any(part.startswith("_") for part in name.split("."))
    *path, last = name.split(".")[1:] or ["__name__"]
    here = xv
    for part in path:
        if part not in exported(here):
            return False
        here = getattr(here, part)
    return (not path and last == "__name__") or last in exported(here)


def exported(module):
    return getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")])


def names(tree):
    """Dotted names of xvarpro that a file imports, or reaches from what it imports."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "xvarpro":
                    yield alias.name
                    known[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "xvarpro":
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts, inner = [node.attr], node.value
            while isinstance(inner, ast.Attribute):
                parts.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in known:
                module = known[inner.id]
                for part in reversed(parts):
                    if not _is_module(module):
                        break
                    module = f"{module}.{part}"
                    yield module


def _is_module(name):
    try:
        importlib.import_module(name if name != "xvarpro.steps" else "xvarpro.algorithms.steps")
    except ModuleNotFoundError:
        return False
    return True


def test_a_file_uses_public_names_alone(subtests):
    for file, path in FILES.items():
        with subtests.test(file):
            found = set(names(ast.parse(path.read_text()))) - {"xvarpro"}
            assert not sorted(name for name in found if not public(name))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import xvarpro as xv\nxv.sets.L1Ball", True),
        ("from xvarpro.errors import ProblemError", True),
        ("from xvarpro.cli import tables", True),
        ("from xvarpro.core import trees", False),
        ("from xvarpro.lower.interface import System", False),
        ("import xvarpro as xv\nxv.lower.interface.System", False),
        ("import xvarpro as xv\nxv.driver", False),
    ],
)
def test_what_is_public(text, found):
    assert all(public(name) for name in names(ast.parse(text)) if name != "xvarpro") == found


def test_an_example_uses_public_names_of_the_experiments(subtests):
    for name in [name for name in FILES if not name.startswith(ROOT.name)]:
        with subtests.test(name):
            for node in ast.walk(ast.parse(FILES[name].read_text())):
                if isinstance(node, ast.ImportFrom) and node.module.startswith("xvarpro_experiments"):
                    parts = [*node.module.split("."), *(alias.name for alias in node.names)]
                    assert not [part for part in parts if part.startswith("_")]


def test_files_import_each_other_without_cycles():
    modules = {name.removesuffix(".py").replace("/", "."): path for name, path in FILES.items()}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    arrows = {name: set(_imported(path, modules)) - {name} for name, path in modules.items()}
    while arrows:
        leaves = {name for name, to in arrows.items() if not to & arrows.keys()}
        assert leaves, f"a cycle among {sorted(arrows)}"
        arrows = {name: to for name, to in arrows.items() if name not in leaves}


def _imported(path, modules):
    """Modules that a file imports at its top, or later from a file that is no package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("xvarpro_"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules else node.module
