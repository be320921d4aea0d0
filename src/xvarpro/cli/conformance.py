"""``xvarpro conformance``."""

from __future__ import annotations

import os

import typer

from xvarpro.cli import programs


def command(context: typer.Context) -> None:
    r"""Check that backends give the right answers, by pytest, whose options it takes and whose exit status it has.

    \b
    --backend NAMES    with commas; default: all that are installed
    --device NAMES     as cpu,cuda:0; default: each backend's first
    --dtype NAMES      float64,float32 unless it says otherwise
    --only ADDRESS     area, area/check, area/check/case, or a pattern
    --quick            a few cases of each check
    --thorough         compile every example, in both precisions
    --table FILE.md    write how many cases passed
    -n NUMBER          processes, as in pytest-xdist
    --collect-only -q  list the checks, and run nothing
    """
    # arrays of the suite are small: where cores are shared, threads that wait for each other take ten times as long
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    programs.keep()
    import xvarpro.conformance  # noqa: F401 - says what to install where it is not
    from xvarpro_conformance.command import main

    raise typer.Exit(main(context.args))
