"""Tables on a screen and summaries in files."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from xvarpro.fit.comparison import Comparison
from xvarpro.results.files import write_atomically

_WIDTH = 120  # of a pipe or a file, where no terminal says how wide it is


class _Screen(Console):
    """A reader who has seen enough, as ``head``, ends what is shown, but neither files nor the exit status."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def print(self, *objects: Any, **how: Any) -> None:
        try:
            super().print(*objects, **how)
        except BrokenPipeError:  # of rich before 13.8
            self.on_broken_pipe()


def console() -> Console:
    """Standard output: a terminal at its own width, anything else at 120 columns."""
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}  # 'xvarpro[jax]' is no markup
    screen = _Screen(**plain)
    return screen if screen.is_terminal or "COLUMNS" in os.environ else _Screen(width=_WIDTH, **plain)


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Table of two columns without lines."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def table(screen: Console, *columns: str, right: Iterable[str] = (), wrap: str = "") -> Table:
    """Table with a line under its head only, columns `right` aligned so; `wrap` wraps on a narrow screen, no other."""
    out = Table(box=box.SIMPLE_HEAD, padding=(0, int(screen.width >= 100), 0, 0), pad_edge=False)
    for name in columns:
        out.add_column(name, justify="right" if name in right else "left", no_wrap=name != wrap, overflow="fold")
    return out


def agreement(screen: Console, found: Comparison) -> Table:
    """Table of a comparison, one row per backend."""
    numbers = ("objective", "iter.", "seconds")
    out = table(screen, "backend", *numbers, "device", "version", right=numbers, wrap="version")
    for name, fit in found.fits.items():
        known = fit.provenance
        package, version = next(iter(known["framework"].items()))
        cells = (f"{fit.value:.13g}", str(fit.n_iter), f"{fit.seconds:.2f}", known["device"], f"{package} {version}")
        out.add_row(name, *cells)
    return out


def versions(described: Mapping[str, object]) -> str:
    """Names and versions in one line."""
    return ", ".join(f"{name} {value}" for name, value in described.items())


def write_summary(path: Path, content: Mapping[str, object]) -> None:
    """Write strict JSON; a number that is not finite becomes null."""
    write_text(path, json.dumps(_plain(content), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file that holds all of the text, or what it held before."""
    write_atomically(path, lambda file: file.write(text.encode()))


def _plain(x: object) -> object:
    if isinstance(x, Mapping):
        return {str(key): _plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(value) for value in x]
    if isinstance(x, float) and not math.isfinite(x):
        return None
    return str(x) if isinstance(x, Path) else x
