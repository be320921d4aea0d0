"""The report of benchmarks/gpu.py, from its record."""

from __future__ import annotations

from typing import Any

Part = dict[str, Any]
SHOWN = 30  # failures per target


def render(record: dict[str, Any]) -> str:
    """The report as Markdown."""
    suite = [part for part in record["parts"] if part["kind"] == "suite"]
    timed = [part for part in record["parts"] if part["kind"] == "timings"]
    targets = _targets(suite)
    blocks = [f"# {'Dry run' if record['dry_run'] else 'xvarpro on a GPU'}, {record['date'][:10]}"]
    if record["dry_run"]:
        blocks.append("**On a processor, with a few checks at tiny sizes: nothing here was measured on a GPU.**")
    blocks += [_machine(record), "## Conformance", _matrix(targets), *(_failures(part) for part in targets)]
    blocks += [_ended([*suite, *timed]), "## Timings", "Milliseconds: of three solves the fastest."]
    blocks += [_timings(timed, dtype) for dtype in ("float64", "float32")]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _machine(record: dict[str, Any]) -> str:
    facts = {"date": record["date"], "took": f"{record['seconds']:.0f} s", **record["machine"]}
    for part in record["parts"]:  # those on the device come first, and what they say stays
        for row in part["rows"]:
            facts |= {name: value for name, value in row.get("facts", {}).items() if name not in facts}
    facts["device"] = facts["device"] or "no NVIDIA device found"
    return _table(["", ""], [[name, str(value)] for name, value in facts.items()])


def _targets(suite: list[Part]) -> list[Part]:
    """The parts of each backend and precision as one, which is done where all of them are."""
    found: dict[str, Part] = {}
    for part in suite:
        whole = found.setdefault(f"{_place(part)} {part['dtypes'][0]}", {**part, "rows": [], "state": "done"})
        whole["rows"] = whole["rows"] + part["rows"]
        if part["state"] != "done":
            whole["state"] = f"{', '.join(part['areas'])}: {part['state']}"
    return list(found.values())


def _place(part: Part) -> str:
    return f"{part['backend']} {part['device']}"


def _matrix(suite: list[Part]) -> str:
    areas = list(dict.fromkeys(row["area"] for part in suite for row in part["rows"] if "area" in row))
    head = ["area", *(f"{_place(part)} {part['dtypes'][0]}" for part in suite)]
    rows = [[area, *(_cell([r for r in part["rows"] if r.get("area") == area]) for part in suite)] for area in areas]
    rows.append(["ended", *(part["state"] for part in suite)])
    return f"Cases that passed; in brackets the worst error in units of its tolerance.\n\n{_table(head, rows)}"


def _cell(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "not reached"
    passed = sum(row["state"] == "passed" for row in rows)
    wrong = sum(row["state"] in ("failed", "raised") for row in rows)
    worst = max((row["units"] for row in rows if row["units"] is not None), default=None)
    brackets = "" if worst is None else f" ({worst:.2g})"
    return f"**{wrong} of {passed + wrong} fail**{brackets}" if wrong else f"{passed}{brackets}"


def _failures(part: Part) -> str:
    wrong = [row for row in part["rows"] if row.get("state") in ("failed", "raised")]
    if not wrong:
        return ""
    lines = [f"### What failed: {_place(part)} {part['dtypes'][0]}", ""]
    for row in wrong[:SHOWN]:
        lines.append(f"- `{row['address']}`: {'; '.join(row['values']) or row['note']}. `{row['command']}`")
    if len(wrong) > SHOWN:
        lines.append(f"- and {len(wrong) - SHOWN} more, in the JSON file")
    return "\n".join(lines)


def _ended(parts: list[Part]) -> str:
    """What the parts said that did not end by themselves, or not well."""
    said = []
    for part in parts:
        if part["state"] != "done":
            quote = f"\n\n```text\n{part['said']}\n```" if part["said"] else ""
            where = ", ".join((_place(part), *part["dtypes"], *part["areas"]))
            said.append(f"### {part['kind']}, {where}: {part['state']}{quote}")
    return "\n\n".join(said)


def _timings(timed: list[Part], dtype: str) -> str:
    found = {(row["what"], _place(part)): row["milliseconds"] for part in timed for row in _timed(part, dtype)}
    if not found:
        return ""
    places = list(dict.fromkeys(_place(part) for part in timed))
    rows = []
    for what in dict.fromkeys(what for what, _ in found):
        rows.append([what, *(f"{found[what, place]:.3g}" if (what, place) in found else "-" for place in places)])
    return f"### {dtype}\n\n{_table(['', *places], rows)}"


def _timed(part: Part, dtype: str) -> list[dict[str, Any]]:
    return [row for row in part["rows"] if row.get("dtype") == dtype]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
