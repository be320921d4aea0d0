"""Errors for wrong use. A numerical outcome is never an error: it is a `Status` of the result."""

import sys
import warnings
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
    """The framework of a known backend is not installed; the message gives the pip command."""


class PluginError(XvarproError, TypeError):
    """A backend of another package does not implement `xvarpro.backends.Backend`."""


class UnsupportedError(XvarproError, NotImplementedError):
    """The framework lacks something, such as complex numbers of a precision."""


class UnsupportedDtypeError(ExchangeError, UnsupportedError):
    """An array could not be moved because the other framework lacks its dtype."""


class GroupError(XvarproError, RuntimeError):
    """Another process of a group failed, or was lost; the message is that of the process."""


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line outside of the package that led here."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
