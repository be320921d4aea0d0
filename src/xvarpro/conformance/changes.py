"""What changed between two reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xvarpro.conformance import words
from xvarpro.conformance.runner import matches

TIMES = 2.0  # as long: slower
SECONDS = 1.0  # that a check has to lose for that: below, machines breathe


def changes(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """What changed in the targets that both reports have, among the cases that `now` asked for.

    Returns
    -------
    dict
        ``ok`` is False where something fails that did not fail before, or is gone: it ran before, and now there is no
        such case, it does not apply, or its backend cannot run any more. A case that is left out is not gone.
    """
    targets, earlier = ({words.target(t): t for t in record["targets"]} for record in (now, before))
    found: dict[str, dict[str, list[str]]] = {"failing": {}, "passing": {}, "gone": {}, "new": {}}
    slower = []
    for name in (name for name in targets if name in earlier):
        here, there = targets[name], earlier[name]
        for case in {**there["cases"], **here["cases"]}:
            if now["only"] and not any(matches(case, pattern) for pattern in now["only"]):
                continue
            if kind := _kind(there["cases"].get(case), here["cases"].get(case)):
                found[kind].setdefault(case, []).append(name)
        slower += [{"target": name, **each} for each in _slower(here["seconds"], there["seconds"])]
    missing = [name for name in earlier if name not in targets]
    gone = [name for name in missing if earlier[name]["backend"] in now["absent"]]
    return {
        "date": before["date"],
        "ok": not (found["failing"] or found["gone"] or gone),
        **{kind: [{"address": case, "targets": names} for case, names in by.items()] for kind, by in found.items()},
        "slower": slower,
        "cannot_run": gone,
        "not_compared": [name for name in missing if name not in gone],
        "versions": _versions(now, before),
    }


def _kind(before: str | None, now: str | None) -> str:
    """The list that a case belongs to, by its states; empty where nothing changed."""
    ran, failed = before in ("passed", "failed", "raised"), ("failed", "raised")
    if now in failed:
        return "" if before in failed else "failing"
    if now == "passed":
        return "passing" if before in failed else "" if ran else "new"
    return "gone" if ran and now != "left out" else ""


def _slower(now: Mapping[str, float], before: Mapping[str, float]) -> list[dict[str, Any]]:
    """Checks that take longer, in the cases that both ran."""
    sums: dict[str, list[float]] = {}
    for case in now.keys() & before.keys():
        both = sums.setdefault("/".join(case.split("/")[:2]), [0.0, 0.0])
        both[0] += before[case]
        both[1] += now[case]
    return [
        {"check": check, "before": there, "now": here}
        for check, (there, here) in sorted(sums.items())
        if here > TIMES * there and here - there > SECONDS
    ]


def _versions(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, list[str]]:
    """Versions and switches that are not what they were: before and now."""
    here, there = (
        {
            "xvarpro": record["xvarpro"],
            **{f"{name} {key}": x for name, facts in record["facts"].items() for key, x in facts.items()},
            **record["machine"],
        }
        for record in (now, before)
    )
    return {key: [str(there[key]), str(x)] for key, x in here.items() if key in there and str(there[key]) != str(x)}
