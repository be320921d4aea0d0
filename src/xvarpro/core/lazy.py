"""Packages that import their names on first use, and classes that import their methods."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package, from its stub, ``__init__.pyi``.

    There is one list of the names then, which type checkers and editors read too: see SPEC 1 of Scientific Python.
    """
    module: Any = sys.modules[package]
    stub = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    (names,) = [ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign)]
    origin = {name.asname or name.name: (str(node.module), name.name) for node in imports for name in node.names}

    def load(name: str) -> Any:
        if name not in origin:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        source, attribute = origin[name]
        if source == package:  # a module of its own
            found = import_module(f"{package}.{attribute}")
        else:
            found = getattr(__import__(source, fromlist=[attribute]), attribute)
        setattr(module, name, found)
        return found

    return load, lambda: names, names


class Method:
    """A function as a method, by its full name: it is imported when it is first asked for."""

    def __init__(self, name: str) -> None:
        self._module, _, self._name = name.rpartition(".")

    def __get__(self, obj: object, owner: type | None = None) -> Any:
        found = getattr(import_module(self._module), self._name)
        return found if obj is None else MethodType(found, obj)
