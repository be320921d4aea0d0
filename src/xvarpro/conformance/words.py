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
    passed, failed, inapplicable = (sum(c[key] for c in cells(record)) for key in ("passed", "failed", "inapplicable"))
    where = f"on {len(record['targets'])} {'target' if len(record['targets']) == 1 else 'targets'}"
    rest = f"; {inapplicable} do not apply" if inapplicable else ""
    if failed:
        return f"{failed} of {passed + failed} cases fail {where}{rest}"
    return f"all {passed} cases pass {where}{rest}"


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
