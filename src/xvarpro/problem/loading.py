"""A user's problem by name: ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError
from xvarpro.problem.problem import Problem


class ProblemSpec(NamedTuple):
    """A problem, its start and its sets, as a user's function returns them."""

    problem: Problem
    theta0: Tree
    over: Any = None


def load(name: str) -> ProblemSpec:
    """Call the function that `name` points to.

    Parameters
    ----------
    name : str
        ``package.module:function``, found from the current folder too, or ``path/to/file.py:function``. The function
        takes no arguments and returns ``(problem, theta0)`` or ``(problem, theta0, over)``.

    Raises
    ------
    ProblemError
        The module, file or function does not exist, or the function returns something else.
    """
    where, found, function = name.rpartition(":")
    if not found or not where or not function:
        raise ProblemError(f"a problem must be named package.module:function or file.py:function; got {name!r}")
    make = getattr(_module(where), function, None)
    if not callable(make):
        raise ProblemError(f"{where} has no function {function}")
    made = make()
    if not (isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], Problem)):
        raise ProblemError(
            f"{name} must return (problem, theta0) or (problem, theta0, over), with a problem of xvarpro.separable or "
            f"xvarpro.bilevel; got {type(made).__name__}"
        )
    return ProblemSpec(*made)


def _module(where: str) -> ModuleType:
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise ProblemError(f"there is no file {where}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None  # of a file that ends in .py there always is one
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    if importlib.util.find_spec(where.partition(".")[0]) is None and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and where.startswith(error.name):
            raise ProblemError(f"there is no module {where}") from error
        raise
