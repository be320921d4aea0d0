"""Write the table of docs/backends.md from docs/conformance.json, and the suite's table in docs/conformance.md.

python docs/support.py [REPORT.json ...] [--check]

Reports of ``xvarpro conformance --report REPORT.json`` replace the rows of their backends and devices in
docs/conformance.json; without one the pages are written from what is there. ``--check`` writes nothing and fails if a
page is stale.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xvarpro import conformance
from xvarpro.conformance import markdown, words
from xvarpro.conformance.runner import DTYPES
from xvarpro.conformance.suite import every

HERE = Path(__file__).parent
BACKENDS, PAGE, SUMMARY = HERE / "backends.md", HERE / "conformance.md", HERE / "conformance.json"

# what the package has adapters for: backend and kind of device, and how the page calls them
SUPPORTED = {
    ("numpy", "cpu"): "NumPy",
    ("torch", "cpu"): "PyTorch CPU",
    ("jax", "cpu"): "JAX CPU",
    ("array-api-strict", "cpu"): "array-api-strict",
    ("cupy", "cuda"): "CuPy",
    ("torch", "cuda"): "PyTorch CUDA",
    ("jax", "cuda"): "JAX CUDA",
}
NOT_RUN = (
    "**Not run**: the code and its tests are there; no machine with that device and that framework has run the suite."
)


def rows_of(record: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """What a report says in short, by backend and kind of device."""
    if record["quick"]:
        raise SystemExit("a report of the whole suite is required; got one of its quick part: omit --quick")
    if record["only"]:
        raise SystemExit(
            f"a report of the whole suite is required; got one of {', '.join(record['only'])} alone: omit --only"
        )
    out: dict[tuple[str, str], dict[str, Any]] = {}
    for target in record["targets"]:
        name, device = target["backend"], target["device"].partition(":")[0]
        version = " ".join(map(str, next(iter(record["facts"][name].items()))))
        known = {"backend": name, "device": device, "version": version}
        row = out.setdefault((name, device), {**known, "xvarpro": record["xvarpro"], "date": record["date"][:10]})
        row[target["dtype"]] = {
            area: {key: cell[key] for key in ("passed", "failed", "left_out", "units")}
            for area, cell in target["areas"].items()
        }
    return out


def support(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of the backends: a row for everything that is supported, and for everything else that ran."""
    ran = {(row["backend"], row["device"]): row for row in rows}
    names = SUPPORTED | {key: " ".join(key) for key in ran if key not in SUPPORTED}
    columns = ("", "version", *DTYPES, "areas passed", "worst error", "date")
    table = markdown.table(columns, [[name, *_row(ran.get(key))] for key, name in names.items()])
    if set(SUPPORTED) <= set(ran):
        return table
    return [*table, "", NOT_RUN]


def _row(row: Mapping[str, Any] | None) -> list[str]:
    if row is None:
        return ["", *("not run" for _ in DTYPES), "", "", ""]
    cells = [(area, cell) for dtype in DTYPES for area, cell in row.get(dtype, {}).items()]
    areas = {area for area, _ in cells}
    fell = {area for area, cell in cells if cell["failed"]}
    worst = max((float(cell["units"]) for _, cell in cells if cell["units"] is not None), default=None)
    counts = [_count(row[dtype]) if dtype in row else "not run" for dtype in DTYPES]
    return [row["version"], *counts, f"{len(areas - fell)} of {len(areas)}", words.units(worst), row["date"]]


def _count(areas: Mapping[str, Any]) -> str:
    keys = ("passed", "failed", "left_out")
    return words.count({key: sum(cell.get(key, 0) for cell in areas.values()) for key in keys})


def statements() -> list[str]:
    """Every check, by area."""
    return markdown.table(
        ("area", "check", "what has to hold", "proven against"), [(c.area, c.name, c.says, c.against) for c in every()]
    )


def between(text: str, name: str, lines: Sequence[str]) -> str:
    """A page with the lines between its marks ``<!-- generated: name -->`` and ``<!-- end -->``."""
    mark = f"<!-- generated: {name} -->"
    if text.count(mark) != 1:
        raise SystemExit(f"one line {mark} is needed, found {text.count(mark)}")
    table = "\n".join(("", *lines, "", ""))
    inside = rf"(?<={re.escape(mark)}\n).*?(?=<!-- end -->)"
    return re.sub(inside, lambda _: table, text, count=1, flags=re.DOTALL)


def pages(rows: Sequence[Mapping[str, Any]]) -> dict[Path, str]:
    """The text of the pages, as they should be."""
    return {
        BACKENDS: between(BACKENDS.read_text(encoding="utf-8"), "support", support(rows)),
        PAGE: between(PAGE.read_text(encoding="utf-8"), "statements", statements()),
    }


def main(arguments: list[str] | None = None) -> int:
    """Take reports in, write the pages, or say which are stale."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("reports", nargs="*", type=Path, metavar="REPORT.json")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page is stale")
    args = parser.parse_args(arguments)
    rows = json.loads(SUMMARY.read_text(encoding="utf-8"))
    for path in args.reports:
        known = {(row["backend"], row["device"]): row for row in rows}
        rows = list((known | rows_of(conformance.read(path))).values())
    fresh = pages(rows) | {SUMMARY: json.dumps(rows, indent=1, allow_nan=False) + "\n"}
    stale = [path for path, text in fresh.items() if path.read_text(encoding="utf-8") != text]
    if stale:
        print(("stale: " if args.check else "written: ") + ", ".join(path.name for path in stale))
    for path in () if args.check else stale:
        path.write_text(fresh[path], encoding="utf-8")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
