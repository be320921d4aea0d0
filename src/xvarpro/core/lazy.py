"""Packages that import their names on first use, and classes that import their methods."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import MethodType, ModuleType
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


class Aliases(MetaPathFinder, Loader):
    """Imports modules by the public names that are not those of their folders, as the same modules.

    Parameters
    ----------
    origin : dict of str to str
        Full names of modules by their public full names; what lies below is found by both.
    """

    def __init__(self, origin: dict[str, str]) -> None:
        self._origin = origin

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Where one of the public names, or a module below, comes from."""
        public = next((public for public in self._origin if f"{name}.".startswith(f"{public}.")), None)
        return None if public is None else ModuleSpec(name, self, origin=self._origin[public] + name[len(public) :])

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself, whose own specification is kept aside while Python replaces it."""
        module = import_module(str(spec.origin))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: it has been."""
        spec: Any = module.__spec__
        module.__spec__ = spec.loader_state


class Method:
    """A function as a method, by its full name: it is imported when it is first asked for."""

    def __init__(self, name: str) -> None:
        self._module, _, self._name = name.rpartition(".")

    def __get__(self, obj: object, owner: type | None = None) -> Any:
        found = getattr(import_module(self._module), self._name)
        return found if obj is None else MethodType(found, obj)
