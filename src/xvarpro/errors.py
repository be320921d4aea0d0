"""Errors for wrong use. A numerical outcome is never an error: it is a `Status` of the result."""

import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)


class XvarproError(Exception):
    """Base of every error this package raises on purpose."""


class ProblemError(XvarproError, ValueError):
    """The problem, the start or the sets do not fit together; the message says which, and what to do."""


class ModelError(XvarproError, TypeError):
    """A model function returned the wrong thing, or left the array namespace it was given."""


class ExchangeError(XvarproError, TypeError):
    """An array could not be moved to another framework without loss."""


class UnknownBackendError(XvarproError, ValueError):
    """No backend of that name, or none that owns an array of that type."""


class BackendNotInstalledError(XvarproError, ImportError):
    """The backend is known but its framework is not installed."""


class PluginError(XvarproError, TypeError):
    """A backend from another package does not keep to what `xvarpro.backends.Backend` promises."""


class UnsupportedError(XvarproError, NotImplementedError):
    """The framework has no such thing, for instance no complex numbers of a precision; the message says what."""


class UnsupportedDtypeError(ExchangeError, UnsupportedError):
    """An array could not be moved because the other framework has nothing of its dtype."""


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line outside of the package that led here."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
