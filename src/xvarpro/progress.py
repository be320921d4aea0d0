"""A progress bar on a terminal, silence in a pipe."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Bar:
    """Iterations done, objective and gap.

    Parameters
    ----------
    total : int
        Iterations at most.
    show : bool or None
        None shows the bar where standard error is a terminal.
    unit : str
        What is counted.
    """

    def __init__(self, total: int, show: bool | None, unit: str = "it") -> None:
        self._total, self._unit = total, unit
        self._show = sys.stderr.isatty() if show is None else show
        self._bar: Any = None

    def __enter__(self) -> Bar:
        if self._show:
            from tqdm import tqdm  # only where a bar is drawn

            self._bar = tqdm(total=self._total, unit=self._unit, leave=False, file=sys.stderr)
        return self

    def update(self, n: int, value: float, gap: float) -> None:
        """Advance by `n` iterations."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"f={value:.6g} gap={gap:.2g}", refresh=False)
            self._bar.update(n)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
