"""The report of benchmarks/gpu.py, from its record."""

from __future__ import annotations

from typing import Any

Part = dict[str, Any]
SHOWN = 30  # failures per part


def render(record: dict[str, Any]) -> str:
    """The report as Markdown."""
    blocks = [f"# {'Dry run' if record['dry_run'] else 'xvarpro on a GPU'}, {record['date'][:10]}"]
    if record["dry_run"]:
        blocks.append("**On a processor, with a few checks at tiny sizes: nothing here was measured on a GPU.**")
    facts = {"date": record["date"], "took": f"{record['seconds']:.0f} s", **record["machine"]}
    for row in (row for part in record["parts"] for row in part["rows"]):
        facts |= {name: value for name, value in row.get("facts", {}).items() if name not in facts}
    facts["device"] = facts["device"] or "no NVIDIA device found"
    blocks.append(_table(["", ""], [[name, str(value)] for name, value in facts.items()]))
    blocks.append("Cases that passed; in brackets the worst error in units of its tolerance.")
    head = ["backend", "device", "dtype", "area", "cases", "ended"]
    blocks.append(_table(head, [row for part in record["parts"] for row in _areas(part)]))
    return "\n\n".join([*blocks, *(_wrong(part) for part in record["parts"] if _wrong(part))]) + "\n"


def _areas(part: Part) -> list[list[str]]:
    """A row for each area that was reached."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in part["rows"]:
        if "area" in row:
            found.setdefault(row["area"], []).append(row)
    place = [part["backend"], part["device"], part["dtype"]]
    rows = [[*place, area, _cell(cases), part["state"]] for area, cases in found.items()]
    return rows or [[*place, ", ".join(part["areas"]), "not reached", part["state"]]]


def _cell(rows: list[dict[str, Any]]) -> str:
    passed = sum(row["state"] == "passed" for row in rows)
    wrong = sum(row["state"] in ("failed", "raised") for row in rows)
    worst = max((row["units"] for row in rows if row["units"] is not None), default=None)
    brackets = "" if worst is None else f" ({worst:.2g})"
    return f"**{wrong} of {passed + wrong} fail**{brackets}" if wrong else f"{passed}{brackets}"


def _wrong(part: Part) -> str:
    """What failed, and what a part said that did not end well."""
    lines = [
        f"- `{row['address']}`: {'; '.join(row['values']) or row['note']}. `{row['command']}`"
        for row in part["rows"]
        if row.get("state") in ("failed", "raised")
    ]
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"- and {len(lines) - SHOWN} more, in the JSON file"]
    if part["said"]:
        lines.append(f"\n```text\n{part['said']}\n```")
    place = ", ".join((part["backend"], part["device"], part["dtype"], *part["areas"]))
    return "\n".join([f"### {place}: {part['state']}", "", *lines]) if lines else ""


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
