"""What the screen and the page say alike: numbers, names, sentences, rows of tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Fields = Mapping[str, Any]  # of a record, or of a part of it

LEGEND = (
    "Each field: cases that passed, or how many of them fail, then the worst error in units of its tolerance: 1 and "
    "below passes. Areas build on each other: what fails first explains what fails after it."
)


def units(x: float | str | None) -> str:
    """An error in tolerances; empty where none was measured."""
    if x is None:
        return ""
    return f"{float(x):.0f}" if 100 <= float(x) < 1e5 else f"{float(x):.2g}"


def number(n: int, of: str) -> str:
    """A count with its noun."""
    return f"{n} {of}{'' if n == 1 else 's'}"


def target(t: Fields) -> str:
    """Backend, device and precision, and the processor path of a failure."""
    path = f" ({t['path']})" if t.get("path") else ""
    return f"{t['backend']} {t['device']} {t['dtype']}{path}"


def count(cell: Fields) -> str:
    """How many passed, or how many fail."""
    if cell["failed"]:
        return f"{cell['failed']} of {cell['passed'] + cell['failed']} FAIL"
    return f"{cell['passed']} passed" if cell["passed"] else "not applicable"


def cells(record: Fields) -> Iterator[Fields]:
    """Every field of the matrix."""
    for t in record["targets"]:
        yield from t["areas"].values()


def verdict(record: Fields) -> str:
    """One sentence: how many cases passed or failed, and which part of the suite ran."""
    passed, failed, rest = (sum(c[key] for c in cells(record)) for key in ("passed", "failed", "inapplicable"))
    more = f" on {number(len(record['targets']), 'target')}"
    if record["processors"]:
        states = [p["state"] for p in record["processors"]]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        more += f"; processor paths: {counts}"
    more += f"; {rest} do not apply" if rest else ""
    more += f"; of {', '.join(record['only'])} alone" if record["only"] else ""
    if failed:
        return f"{failed} of {number(passed + failed, 'case')} failed{more}"
    return f"{number(passed, 'case')} passed{more}"


def off(value: Fields) -> str:
    """How far a value is off, and how much of it."""
    size = f"{value['differ']} of {value['size']} entries differ; " if value.get("size", 0) > 1 else ""
    if not value["tolerance"]:
        return f"{size}has to be equal"
    error = f"error {float(value['error']):.3g}"
    return f"{size}{error}, tolerance {value['tolerance']:.3g}: {units(value['units'])} tolerances"


def entries(value: Fields) -> Iterator[tuple[str, str, str]]:
    """Where, what the target gave, what is right."""
    if "entries" not in value:
        yield "", value["got"], value["want"]
        return
    for e in value["entries"]:
        yield str(e["at"]) if e["at"] else "", e["got"], e["want"]


def exempted(e: Fields) -> str:
    """What an exemption widened."""
    return f"{e['backend']} {e['dtype']} {e['address']}: {e['factor']:g} times as wide"


def processors(record: Fields) -> Iterator[tuple[str, ...]]:
    """A row for every processor path: the path, what is known of it, the kernels in use, counts, the worst error."""
    for p in record["processors"]:
        why = p["reason"] or " ".join(f"{key}={value}" for key, value in p["variables"].items())
        yield p["path"], p["state"], p["kernels"], *map(str, (p["passed"], p["failed"])), units(p["units"]), why


PROCESSORS = ("path", "state", "in use", "passed", "failed", "worst", "variables, or why not")


def versions(record: Fields) -> Iterator[tuple[str, str]]:
    """What ran, and what did not."""
    described = {**record["facts"], "machine": record["machine"]}
    for name, found in described.items():
        yield name, ", ".join(f"{key} {value}" for key, value in found.items())
    for name, why in record["absent"].items():
        yield name, f"not run: {why}"


def seconds(record: Fields) -> float:
    """The time of all cases."""
    return float(sum(c["seconds"] for c in cells(record)))
