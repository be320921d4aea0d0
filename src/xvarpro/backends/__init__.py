"""Array frameworks: the registry of backends. What authors of new ones need is in `xvarpro.backends.adapters`."""

from xvarpro.backends.interface import Backend
from xvarpro.backends.registry import get, installed, known, of, to_numpy

__all__ = ["Backend", "get", "installed", "known", "of", "to_numpy"]
