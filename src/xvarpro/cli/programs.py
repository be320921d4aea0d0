"""What the commands that compile keep from one call to the next."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def folder() -> Path:
    """Where compiled programs are kept: in the cache folder of the user."""
    home, environ = Path.home(), os.environ
    places = {"win32": environ.get("LOCALAPPDATA", home / "AppData" / "Local"), "darwin": home / "Library" / "Caches"}
    base = places.get(sys.platform, environ.get("XDG_CACHE_HOME") or home / ".cache")
    return Path(base) / "xvarpro" / "jax"


def keep() -> None:
    """Let JAX keep what takes it long to compile, in `folder`; settings that are there already stay.

    JAX reads them when it is imported, which happens after this.
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
