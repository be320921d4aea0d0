"""The outcomes of a run, the matrix of targets and areas, and the record that pages are made of."""

from __future__ import annotations

import math
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from xvarpro._version import __version__
from xvarpro.conformance import words
from xvarpro.conformance.exemptions import Exemption
from xvarpro.conformance.record import FORMAT, compared, number, write
from xvarpro.conformance.suite import AREAS, Measured


@dataclass(frozen=True)
class Outcome:
    """One case of one check on one target.

    Attributes
    ----------
    backend, device, dtype : str
        The target.
    area, check, case : str
    state : str
        ``"passed"``, ``"failed"`` (a value is off), ``"raised"`` (there was none) or ``"inapplicable"``.
    units : float
        Worst error in units of its tolerance; NaN where nothing was measured.
    failures : tuple of Measured
        What was off; empty unless failed.
    note : str
        The traceback of what was raised, or why it does not apply.
    seconds : float
    says : str
        The statement of the check.
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
    exemption: Exemption | None = None
    thorough: bool = False
    path: str = ""

    @property
    def ok(self) -> bool:
        return self.state in ("passed", "inapplicable")

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
    """How many cases of an area passed, failed or do not apply on a target; the worst error in tolerances; seconds."""

    passed: int
    failed: int
    inapplicable: int
    units: float
    seconds: float


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
            sum(o.state == "inapplicable" for o in found),
            _worst(found),
            sum(o.seconds for o in found),
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
            "machine": dict(self.machine),
            "facts": self.facts,
            "absent": dict(self.absent),
            "processors": [self._proof(proof) for proof in self.processors],
            "areas": self.areas,
            "targets": [self._target(target) for target in self.targets],
            "checks": self._checks(),
            "failures": [_failure(o) for o in self.failures],
            "inapplicable": self._inapplicable(),
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
        met = {o.area for o in self.outcomes if o.target == target}
        cells = {area: self.cell(target, area)._asdict() for area in self.areas if area in met}
        areas = {area: {**cell, "units": number(cell["units"])} for area, cell in cells.items()}
        return {**dict(zip(("backend", "device", "dtype"), target, strict=True)), "areas": areas}

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
                "cases": len({o.case for o in found}),
                "units": number(_worst(found)),
                "seconds": sum(o.seconds for o in found),
            }
            for (area, check), found in by.items()
        ]

    def _inapplicable(self) -> list[dict[str, Any]]:
        """Every reason once, with the number of cases and the targets that it holds for."""
        by: dict[tuple[str, str, str], list[Outcome]] = {}
        for o in self.outcomes:
            if o.state == "inapplicable":
                by.setdefault((o.area, o.check, o.note), []).append(o)
        return [
            {
                "area": area,
                "check": check,
                "reason": reason,
                "cases": len(found),
                "targets": list(dict.fromkeys(" ".join(o.target) for o in found)),
            }
            for (area, check, reason), found in by.items()
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
        "state": o.state,
        "units": number(o.units),
        "note": o.note,
        "exemption": o.exemption.reason if o.exemption is not None else "",
        "command": o.command,
        "values": [compared(m) for m in o.failures],
    }
