"""Progress bars on a terminal, silence in a pipe."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Bar:
    """A progress bar that disappears at the end; the context manager draws nothing unless `show` says so.

    Parameters
    ----------
    total : int or None
        Number of units at most, if it is known.
    show : bool or None
        None shows the bar if standard error is a terminal.
    unit : str
        What is counted.
    name : str, optional
        Text before the bar.
    delay : float
        Seconds until the bar is drawn.
    """

    def __init__(
        self, total: int | None, show: bool | None, unit: str = "it", name: str | None = None, delay: float = 0.0
    ) -> None:
        self._options = {"total": total, "unit": unit, "desc": name, "delay": delay}
        self._show = sys.stderr.isatty() if show is None else show
        self._bar: Any = None

    def __enter__(self) -> Bar:
        if self._show:
            from tqdm import tqdm  # only where a bar is drawn

            self._bar = tqdm(leave=False, file=sys.stderr, **self._options)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, n: int = 1, value: float | None = None, gap: float | None = None) -> None:
        """Advance by `n` units, and show the objective and the gap."""
        if self._bar is not None:
            if value is not None and gap is not None:
                self._bar.set_postfix_str(f"f={value:.6g} gap={gap:.2g}", refresh=False)
            self._bar.update(n)
