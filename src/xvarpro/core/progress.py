"""Progress bars on a terminal, silence in a pipe."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class _Drawn:
    """A bar that goes away when it is left; `Any` of tqdm's, which is imported only where a bar is drawn."""

    _bar: Any = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


class Bar(_Drawn):
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
        self._show = shown(show)

    def __enter__(self) -> Bar:
        if self._show:
            from tqdm import tqdm

            self._bar = tqdm(total=self._total, unit=self._unit, leave=False, file=sys.stderr)
        return self

    def update(self, n: int, value: float, gap: float) -> None:
        """Advance by `n` iterations."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"f={value:.6g} gap={gap:.2g}", refresh=False)
            self._bar.update(n)


class Pass(_Drawn):
    """Chunks done of one pass over rows, or the like; drawn only where it takes longer than `after` seconds.

    Parameters
    ----------
    total : int or None
        Chunks of the pass, if it is known.
    show : bool or None
        None shows the bar where standard error is a terminal.
    what, unit : str
        What is gone through, and a piece of it.
    """

    after = 1.0

    def __init__(self, total: int | None, show: bool | None, what: str = "rows", unit: str = "chunk") -> None:
        self._total, self._what, self._unit = total, what, unit
        self._show = shown(show)

    def __enter__(self) -> Pass:
        if self._show:
            from tqdm import tqdm

            self._bar = tqdm(
                total=self._total, desc=self._what, unit=self._unit, leave=False, file=sys.stderr, delay=self.after
            )
        return self

    def update(self) -> None:
        """One more piece."""
        if self._bar is not None:
            self._bar.update()


def shown(show: bool | None) -> bool:
    """Whether a bar is drawn: as told, or where standard error is a terminal."""
    return sys.stderr.isatty() if show is None else show
