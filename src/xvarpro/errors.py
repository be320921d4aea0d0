"""Errors for wrong use. A numerical outcome is never an error: it is a `Status` of the result."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "BackendNotInstalledError",
    "ExchangeError",
    "GroupError",
    "ModelError",
    "PluginError",
    "ProblemError",
    "UnknownBackendError",
    "UnsupportedDtypeError",
    "UnsupportedError",
    "XvarproError",
]

_PACKAGE = str(Path(__file__).parent)


class XvarproError(Exception):
    """Base of the errors of this package."""


class ProblemError(XvarproError, ValueError):
    """The problem, the start, the sets or an option are invalid or do not fit together."""


class ModelError(XvarproError, TypeError):
    """A model function returned something invalid, or computed outside of the array namespace of its arguments."""


class ExchangeError(XvarproError, TypeError):
    """An array could not be moved to another framework without loss."""


class UnknownBackendError(XvarproError, ValueError):
    """No registered backend has the name, or owns arrays of the type."""


class BackendNotInstalledError(XvarproError, ImportError):
    """A framework, or another optional package, is not installed; the message gives the pip command."""


class PluginError(XvarproError, TypeError):
    """A backend of another package does not implement `xvarpro.backends.Backend`."""


class UnsupportedError(XvarproError, NotImplementedError):
    """The framework lacks something, such as complex numbers of a precision."""


class UnsupportedDtypeError(ExchangeError, UnsupportedError):
    """An array could not be moved because the other framework lacks its dtype."""


class GroupError(XvarproError, RuntimeError):
    """Another process of a group failed, or was lost; the message is that of the process."""


def pip_install(*extras: str) -> str:
    """The command that installs an extra, or one of several: from the index, and from a clone."""
    index, clone = (" or ".join(f"'{name}[{extra}]'" for extra in extras) for name in ("xvarpro", "."))
    return f"pip install {index}, or in a clone pip install {clone}"


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Around imports of packages of an extra, without which there is no `what`."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        raise BackendNotInstalledError(
            f"{what} needs the package {name!r}, which is not installed: {pip_install(extra)}", name=name
        ) from error


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line outside of the package that led here."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
