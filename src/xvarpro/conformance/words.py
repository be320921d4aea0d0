"""What the screen and the page say alike: numbers, names, sentences, rows of tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xvarpro.conformance.suite import AGAINST

Fields = Mapping[str, Any]  # of a record, or of a part of it

# of AGAINST, in a field of the matrix
LETTERS = {kind: kind if kind == "itself" else kind[0].upper() for kind in AGAINST}

LEGEND = (
    "Each field: cases that passed, or that fail; of how many, where some stand for others that were left out; the "
    "worst error in units of its tolerance: 1 and below passes; what those that passed are proven against: "
    f"{', '.join(f'{letter} {kind}' for kind, letter in LETTERS.items() if kind != letter)}; itself: NumPy against "
    "NumPy, no proof. Areas build on each other: what fails first explains what fails after it."
)


def units(x: float | str | None) -> str:
    """An error in tolerances; empty where none was measured."""
    if x is None:
        return ""
    return f"{float(x):.0f}" if 100 <= float(x) < 1e5 else f"{float(x):.2g}"


def number(n: int, of: str) -> str:
    """A count with its noun."""
    return f"{n:,} {of}{'' if n == 1 else 's'}"


def target(t: Fields) -> str:
    """Backend, device and precision, and the processor path of a failure."""
    path = f" ({t['path']})" if t.get("path") else ""
    return f"{t['backend']} {t['device']} {t['dtype']}{path}"


def count(cell: Fields) -> str:
    """How many passed, or how many fail, and of how many that apply."""
    ran, rest = cell["passed"] + cell["failed"], cell["left_out"]
    if cell["failed"]:
        return f"{cell['failed']:,} FAIL of {ran:,}"
    if ran:
        return f"{ran:,} passed" + (f" of {ran + rest:,}" if rest else "")
    return f"{rest:,} left out" if rest else "not applicable"


def field(cell: Fields) -> list[str]:
    """The lines of a field of the matrix."""
    some, _, of = count(cell).partition(" of ")
    letters = " ".join(letter for kind, letter in LETTERS.items() if kind in cell["against"])
    return [line for line in (some, f"of {of}" if of else "", units(cell["units"]), letters) if line]


def cells(record: Fields) -> Iterator[Fields]:
    """Every field of the matrix."""
    for t in record["targets"]:
        yield from t["areas"].values()


def verdict(record: Fields) -> str:
    """One sentence: how many cases passed or failed, and which part of the suite ran."""
    keys = ("passed", "failed", "left_out", "inapplicable")
    passed, failed, left, rest = (sum(c[key] for c in cells(record)) for key in keys)
    more = f" on {number(len(record['targets']), 'target')}"
    if record["processors"]:
        states = [p["state"] for p in record["processors"]]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        more += f"; processor paths: {counts}"
    more += f"; {left:,} left out" if left else ""
    more += f"; {rest:,} do not apply" if rest else ""
    more += f"; of {', '.join(record['only'])} alone" if record["only"] else ""
    more += "; the quick part" if record["quick"] else ""
    if failed:
        causes = f", by {number(len(record['causes']), 'cause')}"
        return f"{failed:,} of {number(passed + failed, 'case')} failed{causes}{more}"
    return f"{number(passed, 'case')} passed{more}"


def blame(cause: Fields) -> str:
    """Whose fault it is."""
    failing, passing = ", ".join(cause["failing"]), ", ".join(cause["passing"])
    if cause["verdict"] == "reference":
        return f"The reference is in doubt: {failing} fail alike. It is wrong, or what they share, the text of xvarpro."
    if cause["verdict"] == "NumPy":
        return f"NumPy is in doubt, which is the reference here: {failing} agree with each other and not with it."
    if cause["verdict"] == "undecided":
        return f"{failing} or the reference is wrong: a run with another backend would decide."
    alone = " alone" if len(cause["failing"]) == 1 else ""
    rest = f"{passing} passed the same cases" if passing else "each is off in another way"
    return f"Wrong on {failing}{alone}: {rest}."


def title(cause: Fields) -> str:
    """The check where it shows first, and how many others."""
    first, *others = cause["checks"]
    return f"{first} and {number(len(others), 'other check')}" if others else str(first)


def extent(cause: Fields) -> str:
    """How many cases of which checks and targets."""
    checks = _checks(cause["checks"])
    targets = ", ".join(f"{name} {n:,}" for name, n in cause["targets"].items())
    return f"{number(len(cause['failures']), 'failure')}: {checks}; {targets}"


def proofs(record: Fields) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: how many of the cases that passed are proven against what, by area."""
    kinds = [kind for kind in AGAINST if any(kind in cell["against"] for cell in cells(record))]
    rows = []
    for area in record["areas"]:
        found = [t["areas"][area]["against"] for t in record["targets"] if area in t["areas"]]
        counts = [sum(against.get(kind, 0) for against in found) for kind in kinds]
        rows.append([area, *(f"{n:,}" if n else "" for n in counts)])
    return ["area", *kinds], rows


NOT_RUN = ("cases", "why", "checks", "targets")


def not_run(record: Fields, state: str) -> Iterator[tuple[str, str, str, str]]:
    """A row for every reason of ``"left out"`` or ``"inapplicable"`` cases, those with most cases first."""
    for each in record["not_run"]:
        if each["state"] == state:
            yield f"{each['cases']:,}", each["reason"], _checks(each["checks"]), _where(each["targets"], record)


def _where(targets: Sequence[str], record: Fields) -> str:
    return "all" if len(targets) == len(record["targets"]) else ", ".join(targets)


def _checks(counts: Mapping[str, int]) -> str:
    """Checks with their numbers of cases; areas where there are many."""
    if len(counts) > 3:
        areas: Counter[str] = Counter()
        for check, n in counts.items():
            areas[check.partition("/")[0]] += n
        counts = areas
    return ", ".join(f"{name} {n:,}" for name, n in counts.items()) if len(counts) > 1 else next(iter(counts))


CHANGES = {"failing": "newly failing", "gone": "gone", "passing": "newly passing", "new": "new"}


def changed(record: Fields) -> Iterator[tuple[str, str, str]]:
    """A row for every check in which something changed: how, what, where."""
    changes = record["since"]
    for kind, how in CHANGES.items():
        checks: dict[str, list[Fields]] = {}
        for each in changes[kind]:
            checks.setdefault("/".join(each["address"].split("/")[:2]), []).append(each)
        for check, found in checks.items():
            cases = [each["address"].removeprefix(check).lstrip("/") for each in found]
            where = list(dict.fromkeys(name for each in found for name in each["targets"]))
            yield how, f"{check}: {_some(cases)}" if any(cases) else check, _where(where, record)
    for each in changes["slower"]:
        yield f"{each['now'] / each['before']:.1f} times as slow", each["check"], each["target"]
    for how, key in (("cannot run any more", "cannot_run"), ("not compared", "not_compared")):
        for name in changes[key]:
            yield how, "everything", name
    for name, (before, now) in changes["versions"].items():
        yield "version", f"{name}: {before}, now {now}", ""


def since(changes: Fields) -> str:
    """One sentence: how much changed."""
    counts = ", ".join(f"{len(changes[kind]):,} {how}" for kind, how in CHANGES.items() if changes[kind])
    slower = f"; {number(len(changes['slower']), 'check')} slower" if changes["slower"] else ""
    return f"since {changes['date']}: {counts or 'nothing fails, passes or is gone that did not before'}{slower}"


def _some(names: Sequence[str], most: int = 6) -> str:
    """Names, the first of many."""
    rest = len(names) - most
    return "; ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


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
        yield str(e["at"]).replace(" ", "") if e["at"] else "", e["got"], e["want"]


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
