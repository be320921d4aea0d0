"""The paper's experiments at two scalings of the units: who ends lowest, who is sooner there, which claims hold.

python benchmarks/experiments.py [--only dictionary] [--repeat 3] [--write]

Runs `xvarpro run` on each (a run that was interrupted goes on), and reads the summaries. `--write` puts both tables
into docs/experiments.md.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "experiments.md"
RIVALS, CLAIMS = "<!-- measured: rivals -->", "<!-- measured: claims -->"
GRADIENT = "joint projected gradient"  # what the paper compares itself with

# the arguments of the commands: the paper's sizes, each in its own units and in others
CASES: dict[str, list[dict[str, Any]]] = {
    "dictionary": [{"units": units, "time": 10.0} for units in (1.0, 1000.0)],
    "autoencoder": [{"units": units, "samples": 3000, "time": 6.0} for units in (1.0, 10.0)],
    "deconvolution": [{"units": units} for units in (1.0, 30.0)],
    "fewshot": [{"units": units, "repeat": 20} for units in (1.0, 10.0)],
}


def run(name: str, repeat: int, out: Path) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    command = importlib.import_module(f"xvarpro_experiments.commands.{name}").command
    for case in CASES[name]:
        folder = out / "-".join([name, *(f"{key}{value:g}" for key, value in case.items())])
        case = {"repeat": repeat} | case
        yield case, command(**case, out=folder)


def shown(name: str, case: Mapping[str, Any]) -> str:
    return f"`xvarpro run {name}{''.join(f' --{key} {value:g}' for key, value in case.items())}`"


def duels(summary: Mapping[str, Any]) -> Iterator[str]:
    """The default and the best of the package against the rivals."""
    shown = dict.fromkeys(["xvarpro's default", summary["best"]])
    for duel in summary["duels"]:
        if duel["method"] in shown and duel["rivals"]:
            cells = [ranged(duel["excess"], "{:+.2%}")]
            cells += ["neither" if x is None else ranged(x, "{:.2g}") for x in duel["speedup"].values()]
            yield f"{duel['method']} | {' | '.join(cells)}"


def ranged(x: Mapping[str, float], form: str) -> str:
    return "{} ({} to {})".format(*(form.format(x[key]) for key in ("median", "min", "max")))


def claim(summary: Mapping[str, Any]) -> Iterator[str]:
    """The paper's method against joint gradient methods and the best rival: objectives at equal time and iterations."""
    methods = {m["method"]: m for m in summary["methods"]}
    (paper,) = (m for m in summary["methods"] if m["family"] == "paper")
    rivals = [m for m in summary["methods"] if m["family"] == "rival"]
    best = min(rivals, key=lambda m: m["objective"]["median"])
    for rival in dict.fromkeys([n for n in methods if n.startswith(GRADIENT)] + [best["method"]]):
        ratios = [
            paper[key]["median"] / methods[rival][key]["median"] for key in ("at_equal_seconds", "at_equal_iterations")
        ]
        yield f"{rival} | " + " | ".join(f"{x:.3g} ({'lower' if x < 1 else 'higher'})" for x in ratios)


def write(mark: str, table: str) -> None:
    page = PAGE.read_text()
    before, found, after = page.partition(mark)
    if not found:
        raise SystemExit(f"{PAGE} has no line {mark}")
    rest = after.partition("<!-- end -->")[2]
    PAGE.write_text(f"{before}{mark}\n\n{table}\n<!-- end -->{rest}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("xvarpro-out/experiments"))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rivals = [
        "| command | method | over the best rival, equal time | times as fast to 1.1 | to 1.01 | to 1.001 |",
        "|---|---|---|---|---|---|",
    ]
    claims = [
        "| command | rival | paper's method over it, equal time | equal iterations |",
        "|---|---|---|---|",
    ]
    for name in args.only:
        for case, summary in run(name, args.repeat, args.out):
            said = shown(name, case)
            rivals += [f"| {said} | {row} |" for row in duels(summary)]
            claims += [f"| {said} | {row} |" for row in claim(summary)]
    head = "Medians over starts, ranges in brackets.\n\n"
    tables = {RIVALS: head + "\n".join(rivals) + "\n", CLAIMS: head + "\n".join(claims) + "\n"}
    for mark, table in tables.items():
        print(table)
        if args.write:
            write(mark, table)


if __name__ == "__main__":
    main()
