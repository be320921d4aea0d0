"""Where a user's data lie."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "XVARPRO_DATA"


def find(names: Iterable[str], below: Iterable[str], folder: str | os.PathLike[str] | None = None) -> Path | None:
    """The first file or folder of such a name below `folder` or ``$XVARPRO_DATA``, None where there is none."""
    root = folder or os.environ.get(VARIABLE)
    if not root:
        return None
    names = tuple(names)
    return next((p for sub in below for name in names if (p := Path(root, sub, name)).exists()), None)
