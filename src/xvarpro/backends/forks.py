"""Frameworks whose threads do not live on in a process that was forked: it would wait for them for ever."""

from __future__ import annotations

import os

from xvarpro.errors import UnsupportedError


def refuse_fork(framework: str, process: int, otherwise: str = "") -> None:
    """Raise `UnsupportedError` in another process than the one whose id `process` is."""
    if os.getpid() != process:
        raise UnsupportedError(
            f"{framework} needs a process of its own; this one was forked from one where {framework} was loaded, whose "
            "threads it does not have, and would wait for them for ever. Start processes with "
            f"multiprocessing.get_context('spawn'){otherwise}, or solve on NumPy in this one"
        )
