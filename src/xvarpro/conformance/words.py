"""What all renderings of a record say alike: numbers, names, sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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


def target(t: Mapping[str, Any]) -> str:
    """Backend, device and precision."""
    return f"{t['backend']} {t['device']} {t['dtype']}"


def count(cell: Mapping[str, Any]) -> str:
    """How many passed, or how many fail."""
    if cell["failed"]:
        return f"{cell['failed']} of {cell['passed'] + cell['failed']} FAIL"
    return f"{cell['passed']} passed" if cell["passed"] else "not applicable"


def cells(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every field of the matrix."""
    for t in record["targets"]:
        yield from t["areas"].values()


def verdict(record: Mapping[str, Any]) -> str:
    """One sentence: whether all is well."""
    passed, failed, rest = (sum(c[key] for c in cells(record)) for key in ("passed", "failed", "inapplicable"))
    on = f"on {number(len(record['targets']), 'target')}"
    more = f"; {rest} do not apply" if rest else ""
    more += f"; of {', '.join(record['only'])} alone" if record["only"] else ""
    if failed:
        return f"{failed} of {number(passed + failed, 'case')} failed {on}{more}"
    return f"{number(passed, 'case')} passed {on}{more}"


def where(found: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """The targets that something holds for."""
    return "all" if len(found["targets"]) == len(record["targets"]) else ", ".join(found["targets"])


def off(value: Mapping[str, Any]) -> str:
    """How far a value is off, and how much of it."""
    size = f"{value['differ']} of {value['size']} entries differ; " if value.get("size", 0) > 1 else ""
    if not value["tolerance"]:
        return f"{size}has to be equal"
    error = f"error {float(value['error']):.3g}"
    return f"{size}{error}, tolerance {value['tolerance']:.3g}: {units(value['units'])} tolerances"


def entries(value: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Where, what the target gave, what is right."""
    if "entries" not in value:
        yield "", value["got"], value["want"]
        return
    for e in value["entries"]:
        yield str(e["at"]) if e["at"] else "", e["got"], e["want"]


def exempted(e: Mapping[str, Any]) -> str:
    """What an exemption widened."""
    return f"{e['backend']} {e['dtype']} {e['address']}: {e['factor']:g} times as wide"


def exemptions(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A table of those that covered something, head first."""
    rows = [(exempted(e), str(e["cases"]), str(e["needed"]), e["reason"]) for e in record["exemptions"]]
    return [("tolerance", "cases", "that needed it", "why"), *rows]


def inapplicable(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A table of what does not apply, head first."""
    rows = [
        (f"{x['area']}/{x['check']}", str(x["cases"]), x["reason"], where(x, record)) for x in record["inapplicable"]
    ]
    return [("check", "cases", "why", "targets"), *rows]


def versions(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What ran, and what did not."""
    described = {**record["facts"], "machine": record["machine"]}
    for name, found in described.items():
        yield name, ", ".join(f"{key} {value}" for key, value in found.items())
    for name, why in record["absent"].items():
        yield name, f"not run: {why}"


def seconds(record: Mapping[str, Any]) -> float:
    """Of all cases."""
    return float(sum(c["seconds"] for c in cells(record)))
