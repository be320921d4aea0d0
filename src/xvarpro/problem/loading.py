"""A user's problem by name: ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError, XvarproError
from xvarpro.problem.problem import Problem


class ProblemSpec(NamedTuple):
    """A problem, its start and its sets, as a user's function returns them."""

    problem: Problem
    theta0: Tree
    over: Any = None


def split_name(name: object) -> tuple[str, str]:
    """Module or file, and function, that a name stands for; a ProblemError where it is none."""
    where, _, function = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    if not where or not function:
        raise ProblemError(f"a problem must be named package.module:function or file.py:function; got {name!r}")
    return where, function


def relocated(name: str, folder: str, other: str) -> str:
    """A name whose file is looked up from `folder`, as a name that is looked up from another folder.

    A module keeps its name, as do an absolute path and one where there is no file. Folders are divided by ``/``.
    """
    where, function = split_name(name)
    path = os.path.join(folder, where)
    if where.endswith(".py") and not os.path.isabs(where) and os.path.isfile(path):
        try:
            seen = os.path.relpath(path, other or os.curdir)
        except ValueError:  # on Windows, where the folders are on two drives
            seen = os.path.abspath(path)
        return f"{seen.replace(os.sep, '/')}:{function}"  # as every system reads it
    return name


def load(name: str, folder: str = "") -> ProblemSpec:
    """Call the function that `name` points to, which returns ``(problem, theta0)`` or ``(problem, theta0, over)``.

    A module is found from the current folder too; a relative path to a file begins in `folder`. A ProblemError says
    that module, file or function does not exist, or that the function returns something else.
    """
    _, make = find(name, folder)
    with failures(name):
        made = make()
    if not (isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], Problem)):
        raise ProblemError(
            f"{name} must return (problem, theta0) or (problem, theta0, over), with a problem of xvarpro.separable or "
            f"xvarpro.bilevel; got {type(made).__name__}"
        )
    return ProblemSpec(*made)


def find(name: str, folder: str = "") -> tuple[ModuleType, Callable[..., Any]]:
    """The module and the function that a name stands for; arguments and errors of `load`. The module is run."""
    where, function = split_name(name)
    with failures(where):
        module = _module(os.path.join(folder, where) if where.endswith(".py") else where)
    found = getattr(module, function, None)
    if not callable(found):
        own = [n for n, x in vars(module).items() if inspect.isfunction(x) and x.__module__ == module.__name__]
        raise ProblemError(f"{where} has no function {function}; it has {', '.join(own[:10]) or 'none'}")
    return module, found


@contextmanager
def failures(name: str) -> Iterator[None]:
    """What a user's code raises, as an error with the line."""
    try:
        yield
    except XvarproError:
        raise
    except SystemExit as error:
        if error.code:  # a signal ends so as well
            raise
        raise ProblemError(f"{name} ended Python by sys.exit(), before there was a result") from error
    except SyntaxError as error:  # which says where
        raise ProblemError(f"{name} failed with {type(error).__name__}: {error}") from error
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ProblemError(
            f"{name} failed with {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        ) from error


def _module(where: str) -> ModuleType:
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise ProblemError(f"there is no file {where}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None  # of a file that ends in .py there always is one
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        if (folder := str(path.parent.resolve())) not in sys.path:
            sys.path.append(folder)  # of the files that it imports
        listed = sys.modules.setdefault(spec.name, module) is module  # where dataclasses look for it
        try:
            spec.loader.exec_module(module)
        finally:
            if listed:
                del sys.modules[spec.name]
        return module
    if importlib.util.find_spec(where.partition(".")[0]) is None and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and where.startswith(error.name):
            raise ProblemError(f"there is no module {where}") from error
        raise
