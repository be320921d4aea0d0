"""The outcomes of a run, the matrix of targets and areas, and the record that pages are made of."""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from xvarpro._version import __version__
from xvarpro.conformance import words
from xvarpro.conformance.exemptions import Exemption
from xvarpro.conformance.record import FORMAT, compared, number, write
from xvarpro.conformance.suite import AREAS, Measured, reference


@dataclass(frozen=True)
class Outcome:
    """One case of one check on one target.

    Attributes
    ----------
    backend, device, dtype : str
        The target.
    area, check, case : str
    state : str
        ``"passed"``, ``"failed"`` (a value is off), ``"raised"`` (there was none), ``"left out"`` (others stand for it)
        or ``"inapplicable"``.
    units : float
        Worst error in units of its tolerance; NaN where nothing was measured.
    failures : tuple of Measured
        What was off; empty unless failed.
    note : str
        The traceback of what was raised, or why it did not run.
    seconds : float
    says : str
        The statement of the check.
    against : str
        Of `AGAINST`: what it is proven against.
    exemption : Exemption, optional
        What made the tolerance wider.
    thorough : bool
        Whether the target compiles every example.
    path : str
        The processor path that it ran on; empty where none was asked for.
    """

    backend: str
    device: str
    dtype: str
    area: str
    check: str
    case: str
    state: str
    units: float
    failures: tuple[Measured, ...] = ()
    note: str = ""
    seconds: float = 0.0
    says: str = ""
    against: str = "NumPy"
    exemption: Exemption | None = None
    thorough: bool = False
    path: str = ""

    @property
    def ok(self) -> bool:
        return self.state not in ("failed", "raised")

    @property
    def ran(self) -> bool:
        return self.state in ("passed", "failed", "raised")

    @property
    def proof(self) -> str:
        """What the case is proven against; ``"itself"``, which is no proof, where NumPy is compared with NumPy."""
        compared = reference()
        itself = (self.backend, self.dtype) == (compared.backend.name, compared.dtype)
        return "itself" if itself and self.against == "NumPy" else self.against

    @property
    def message(self) -> str:
        """What was off first, or the first line of what was raised."""
        if self.failures:
            return self.failures[0].what
        lines = self.note.splitlines()
        last = max((i for i, line in enumerate(lines) if line.startswith("  File ")), default=0)
        return next((line for line in lines[last:] if line[:1].strip()), "")

    @property
    def target(self) -> tuple[str, str, str]:
        """Backend, device and precision."""
        return self.backend, self.device, self.dtype

    @property
    def address(self) -> str:
        """``area/check/case``: what ``--only`` takes."""
        return address(self.area, self.check, self.case)

    @property
    def command(self) -> str:
        """What runs this case alone."""
        where = f"--processors --path {self.path}" if self.path else f"--backend {self.backend} --device {self.device}"
        rest = f"--only {shlex.quote(self.address)}{' --thorough' if self.thorough else ''}"
        return f"xvarpro conformance {where} --dtype {self.dtype} {rest}"


def address(area: str, check: str, case: str) -> str:
    """``area/check/case``, without what is empty."""
    return "/".join(part for part in (area, check, case) if part)


class Cell(NamedTuple):
    """An area on a target: how many cases passed, failed, were left out or do not apply; the worst error in tolerances;
    seconds; how many of those that passed are proven against what.
    """

    passed: int
    failed: int
    left_out: int
    inapplicable: int
    units: float
    seconds: float
    against: Mapping[str, int]


@dataclass(frozen=True)
class Proof:
    """What became of a processor path.

    Attributes
    ----------
    path : str
        ``backend/kernels/threads``.
    variables : mapping of str to str
        The environment variables that choose it.
    state : str
        ``"proven"``, ``"failed"``, ``"not proven"`` (other kernels were in use), ``"no case applies"`` or ``"cannot run
        here"``.
    kernels : str
        What was in use.
    reason : str
        Why it is not proven.
    """

    path: str
    variables: Mapping[str, str]
    state: str
    kernels: str = ""
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.state not in ("failed", "not proven")


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
    }


@dataclass(frozen=True, repr=False)
class Report:
    """All outcomes of a run.

    Attributes
    ----------
    outcomes : tuple of Outcome
    facts : dict
        Versions and precision switches, by backend.
    version : str
        Of this package.
    absent : mapping of str to str
        Backends that are known and did not run because they cannot, and why.
    only : tuple of str
        The addresses that were asked for; empty for the whole suite.
    date : str
        When it was made: ISO 8601, UTC.
    machine : mapping
        Python, system and cores.
    processors : tuple of Proof
        The processor paths that were asked for, in their order.
    quick : bool
        Whether a few cases of each check stood for the others.

    Examples
    --------
    >>> from xvarpro import conformance
    >>> found = conformance.run("numpy", "sets/oracle/L1Ball 0")
    >>> found
    <Report: 2 cases passed on 2 targets; of sets/oracle/L1Ball 0 alone>
    >>> found.targets
    [('numpy', 'cpu', 'float64'), ('numpy', 'cpu', 'float32')]
    >>> found.cell(found.targets[0], "sets").passed
    1
    """

    outcomes: tuple[Outcome, ...]
    facts: dict[str, dict[str, Any]]
    version: str = __version__
    absent: Mapping[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    date: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    machine: Mapping[str, Any] = field(default_factory=_machine)
    processors: tuple[Proof, ...] = ()
    quick: bool = False

    def __repr__(self) -> str:
        return f"<Report: {words.verdict(self.record())}>"

    @property
    def ok(self) -> bool:
        """Whether everything that applies passed."""
        return all(o.ok for o in self.outcomes) and all(proof.ok for proof in self.processors)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        return tuple(o for o in self.outcomes if not o.ok)

    @property
    def targets(self) -> list[tuple[str, str, str]]:
        """Backend, device and precision, in the order in which they ran."""
        return list(dict.fromkeys(o.target for o in self.outcomes))

    @property
    def areas(self) -> list[str]:
        met = {o.area for o in self.outcomes}
        return [a for a in AREAS if a in met]

    def cell(self, target: tuple[str, str, str], area: str) -> Cell:
        """A field of the matrix of targets and areas."""
        found = [o for o in self.outcomes if o.target == target and o.area == area]
        return Cell(
            sum(o.state == "passed" for o in found),
            sum(not o.ok for o in found),
            sum(o.state == "left out" for o in found),
            sum(o.state == "inapplicable" for o in found),
            _worst(found),
            sum(o.seconds for o in found),
            Counter(o.proof for o in found if o.state == "passed"),
        )

    def record(self) -> dict[str, Any]:
        """Everything but the values that passed, as JSON takes it; `docs/conformance.md` has the fields.

        An error that is infinite is the string ``"inf"``, one that was not measured is null.
        """
        return {
            "format": FORMAT,
            "xvarpro": self.version,
            "date": self.date,
            "ok": self.ok,
            "only": list(self.only),
            "quick": self.quick,
            "machine": dict(self.machine),
            "facts": self.facts,
            "absent": dict(self.absent),
            "processors": [self._proof(proof) for proof in self.processors],
            "areas": self.areas,
            "targets": [self._target(target) for target in self.targets],
            "checks": self._checks(),
            "failures": [_failure(o) for o in self.failures],
            "causes": causes(self.outcomes),
            "not_run": self._not_run(),
            "exemptions": self._exemptions(),
        }

    def save(self, path: str | Path) -> None:
        """Write the report: a page for ``.md``, the record for ``.json``."""
        write(self.record(), path)

    def _proof(self, proof: Proof) -> dict[str, Any]:
        found = [o for o in self.outcomes if o.path == proof.path]
        return {
            "path": proof.path,
            "variables": dict(proof.variables),
            "state": proof.state,
            "kernels": proof.kernels,
            "reason": proof.reason,
            "passed": sum(o.state == "passed" for o in found),
            "failed": sum(not o.ok for o in found),
            "units": number(_worst(found)),
            "seconds": sum(o.seconds for o in found),
        }

    def _target(self, target: tuple[str, str, str]) -> dict[str, Any]:
        found = [o for o in self.outcomes if o.target == target]
        met = {o.area for o in found}
        cells = {area: self.cell(target, area)._asdict() for area in self.areas if area in met}
        areas = {area: {**cell, "units": number(cell["units"])} for area, cell in cells.items()}
        return {
            **dict(zip(("backend", "device", "dtype"), target, strict=True)),
            "areas": areas,
            # of a case that ran on several processor paths, what is worst
            "cases": {o.address: o.state for o in sorted(found, key=lambda o: not o.ok)},
            "seconds": {o.address: round(o.seconds, 4) for o in found if o.ran},
        }

    def _checks(self) -> list[dict[str, Any]]:
        """What was checked, and how close it came to its tolerance anywhere."""
        by: dict[tuple[str, str], list[Outcome]] = {}
        for o in sorted(self.outcomes, key=lambda o: AREAS.index(o.area)):
            by.setdefault((o.area, o.check), []).append(o)
        return [
            {
                "area": area,
                "check": check,
                "says": found[0].says,
                "against": found[0].against,
                "cases": len({o.case for o in found}),
                "units": number(_worst(found)),
                "seconds": sum(o.seconds for o in found),
            }
            for (area, check), found in by.items()
        ]

    def _not_run(self) -> list[dict[str, Any]]:
        """Every reason once, with the checks that it holds for, their numbers of cases, and the targets."""
        by: dict[tuple[str, str], list[Outcome]] = {}
        for o in self.outcomes:
            if not o.ran:
                by.setdefault((o.state, o.note), []).append(o)
        return [
            {
                "state": state,
                "reason": reason,
                "cases": len(found),
                "checks": Counter(f"{o.area}/{o.check}" for o in found),
                "targets": list(dict.fromkeys(" ".join(o.target) for o in found)),
            }
            for (state, reason), found in sorted(by.items(), key=lambda item: (item[0][0], -len(item[1])))
        ]

    def _exemptions(self) -> list[dict[str, Any]]:
        """Every exemption that covered a case, and how many cases would have failed without it."""
        by: dict[Exemption, list[Outcome]] = {}
        for o in self.outcomes:
            if o.exemption is not None:
                by.setdefault(o.exemption, []).append(o)
        return [
            {
                "backend": e.backend,
                "address": e.address,
                "dtype": e.dtype,
                "factor": e.factor,
                "reason": e.reason,
                "cases": len(found),
                "needed": sum(not o.units * e.factor <= 1.0 for o in found if not math.isnan(o.units)),
            }
            for e, found in by.items()
        ]


def _worst(found: Iterable[Outcome]) -> float:
    """What raised is as wrong as can be."""
    units = (math.inf if o.state == "raised" else o.units for o in found)
    return max((x for x in units if not math.isnan(x)), default=math.nan)


def _failure(o: Outcome) -> dict[str, Any]:
    return {
        **dict(zip(("backend", "device", "dtype"), o.target, strict=True)),
        "path": o.path,
        "address": o.address,
        "says": o.says,
        "against": o.against,
        "state": o.state,
        "units": number(o.units),
        "note": o.note,
        "exemption": o.exemption.reason if o.exemption is not None else "",
        "command": o.command,
        "values": [compared(m) for m in o.failures],
    }


def causes(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Failures of one cause together: of one check with a value off that others have off, or of one line that raises.

    Numbers in the names of values and in errors are the case's, and do not count.
    """
    ran: dict[tuple[str, str], list[Outcome]] = {}
    for o in outcomes:
        if o.ran:
            ran.setdefault((o.address, o.dtype), []).append(o)
    failures = [o for o in outcomes if not o.ok]
    groups: list[tuple[tuple[str, str], set[str], list[int]]] = []
    for i, o in enumerate(failures):
        line = o.note.rpartition("  File ")[2].partition("\n")[0]
        key = (line or f"{o.area}/{o.check}", fault(ran[o.address, o.dtype]))
        off = {" ".join(re.findall(r"[^\W\d]+", x)) for x in [m.what for m in o.failures] or [o.message]}
        for known, names, places in groups:
            if known == key and names & off:
                names |= off
                places.append(i)
                break
        else:
            groups.append((key, off, [i]))
    out = []
    for (_, verdict), _, places in groups:
        found = [failures[i] for i in places]
        all_of_them = _places(p for o in found for p in ran[o.address, o.dtype])
        failing = _places(found)
        worst = sorted(places, key=lambda place: _worst([failures[place]]), reverse=True)
        out.append(
            {
                "verdict": verdict,
                "failing": failing,
                "passing": [place for place in all_of_them if place not in failing],
                "checks": Counter(f"{o.area}/{o.check}" for o in found),
                "targets": Counter(" ".join(o.target) for o in found),
                "failures": worst,
            }
        )
    return out


def fault(same: Sequence[Outcome]) -> str:
    """Whose fault it is that a case fails, by all outcomes of it in one precision.

    Returns
    -------
    str
        ``"reference"`` where several backends ran it and all fail alike: it is wrong, or the text that they share is;
        ``"NumPy"`` where NumPy is the reference and all others fail alike; ``"undecided"`` where one backend ran alone,
        or with the NumPy that it is compared with; else ``"backends"``, those that fail.
    """
    # that NumPy equals NumPy says nothing
    name = reference().backend.name
    proven = [o for o in same if o.against != "NumPy" or o.backend != name or not o.ok]
    if _alike(same):
        return "reference"
    if len(proven) < len(same) and _alike(proven):
        return "NumPy"
    return "backends" if len({o.backend for o in proven}) > 1 else "undecided"


def _alike(found: Sequence[Outcome]) -> bool:
    """Whether several backends agree in what is wrong: the same values, within their tolerances, or the same error."""
    if any(o.ok for o in found) or len({o.backend for o in found}) < 2:
        return False
    first = found[0]
    wrong = {m.what: m for m in first.failures}
    return all(
        o.message == first.message
        and all(
            replace(m, want=wrong[m.what].got, tolerance=max(m.tolerance, wrong[m.what].tolerance)).units <= 1.0
            for m in o.failures
            if m.what in wrong
        )
        for o in found
    )


def _places(found: Iterable[Outcome]) -> list[str]:
    return list(dict.fromkeys(f"{o.backend} {o.device}" for o in found))
