"""The suite run on targets: what passed, what did not, and how to see it again."""

from __future__ import annotations

import shlex
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from xvarpro import backends as registry
from xvarpro._version import __version__
from xvarpro.backends import Backend
from xvarpro.conformance import exemptions
from xvarpro.conformance.exemptions import Exemption
from xvarpro.conformance.suite import AREAS, Check, Inapplicable, Measured, Target, every, reference
from xvarpro.errors import ProblemError

DTYPES = ("float64", "float32")
REFERENCE = "numpy"


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
        The traceback of what was raised, why it does not apply, or the reason of the exemption that was used.
    seconds : float
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

    @property
    def ok(self) -> bool:
        return self.state in ("passed", "inapplicable")

    @property
    def address(self) -> str:
        """``area/check/case``: what ``--only`` takes."""
        return address(self.area, self.check, self.case)

    @property
    def command(self) -> str:
        """What runs this case alone."""
        return (
            f"xvarpro conformance --backend {self.backend} --device {self.device} --dtype {self.dtype} "
            f"--only {shlex.quote(self.address)}"
        )


def address(area: str, check: str, case: str) -> str:
    """``area/check/case``, without what is empty."""
    return "/".join(part for part in (area, check, case) if part)


def targets(
    backends: Sequence[str | Backend] | None = None,
    devices: Sequence[str] | None = None,
    dtypes: Sequence[str] = DTYPES,
) -> list[Target]:
    """Every backend that is installed, on its first device, in both precisions, unless told otherwise.

    Raises
    ------
    ProblemError
        A precision that there is not, or a device that none of the backends has.
    """
    if wrong := [d for d in dtypes if d not in DTYPES]:
        raise ProblemError(f"dtype must be float64 or float32, got {wrong[0]!r}")
    found = []
    for name in backends if backends is not None else usable():
        backend = registry.get(name) if isinstance(name, str) else name
        there = backend.devices()
        wanted = there[:1] if devices is None else [d for d in devices if _has(there, d)]
        found += [Target(backend, device, dtype) for device in wanted for dtype in dtypes]
    if not found:
        raise ProblemError(f"no backend has a device {', '.join(devices or ())}: see `xvarpro backends`")
    return found


def usable() -> list[str]:
    """Backends that are installed and have a device."""
    found = []
    for name in registry.known():
        if not registry.installed(name):
            continue
        try:
            if registry.get(name).devices():
                found.append(name)
        except Exception:  # installed but broken, as CuPy without a driver: `xvarpro backends` says how
            continue
    return found


def _has(there: Sequence[str], device: str) -> bool:
    return device in there or any(d.partition(":")[0] == device for d in there)


def plan(target: Target, only: Sequence[str] = ()) -> Iterator[tuple[Check, str, Any]]:
    """Checks and cases for a target, those whose address begins with or matches a pattern of `only`."""
    for check in every():
        if target.dtype not in check.dtypes:
            continue
        for case, given in check.cases().items():
            if not only or any(_matches(address(check.area, check.name, case), pattern) for pattern in only):
                yield check, case, given


def _matches(where: str, pattern: str) -> bool:
    return where == pattern or where.startswith(f"{pattern}/") or fnmatchcase(where, pattern)


def run_case(target: Target, check: Check, case: str, given: Any) -> Outcome:
    """One case; whatever it raises becomes part of the outcome."""
    began = time.perf_counter()
    where = address(check.area, check.name, case)
    known = _exemption(target, where)
    outcome = Outcome(
        target.backend.name, target.device, target.dtype, check.area, check.name, case, "passed", float("nan")
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # precision and dead units are what some checks are about
            measured = list(check.fun(target, given))
        if known is not None:
            measured = [replace(m, tolerance=known.factor * m.tolerance) for m in measured]
        failures = tuple(m for m in measured if not m.units <= 1.0)
        outcome = replace(
            outcome,
            state="failed" if failures else "passed",
            units=max((m.units for m in measured), default=float("nan")),
            failures=failures,
            note=known.reason if known is not None else "",
        )
    except Inapplicable as reason:
        outcome = replace(outcome, state="inapplicable", note=str(reason))
    except Exception:
        outcome = replace(outcome, state="raised", note=traceback.format_exc(limit=-6))
    return replace(outcome, seconds=time.perf_counter() - began)


def _exemption(target: Target, where: str) -> Exemption | None:
    known = (*exemptions.BUILT_IN, *getattr(target.backend, "exemptions", ()))
    return next((e for e in known if e.covers(target.backend.name, where, target.dtype)), None)


def run(among: Iterable[Target], only: Sequence[str] = (), told: Callable[[Outcome], None] | None = None) -> Report:
    """The suite on every target, one after another.

    Parameters
    ----------
    among : iterable of Target
        As `targets` finds them.
    only : sequence of str
        Addresses, or their beginnings, or patterns of them: ``"sets"``, ``"sets/oracle/L1Ball 0"``, ``"*/Simplex*"``.
    told : callable, optional
        Called with every outcome.

    Raises
    ------
    ProblemError
        Nothing has such an address.
    """
    among, outcomes, facts = list(among), [], {}
    for target in among:
        facts[target.backend.name] = target.backend.describe()
        for check, case, given in plan(target, only):
            outcomes.append(run_case(target, check, case, given))
            if told is not None:
                told(outcomes[-1])
        target.forget()
    reference().forget()
    if not outcomes:
        raise ProblemError(f"no check has the address {', '.join(only)}: areas are {', '.join(AREAS)}")
    return Report(tuple(outcomes), facts)


class Cell(NamedTuple):
    """How many cases of an area passed, failed or do not apply on a target; the worst error in tolerances; seconds."""

    passed: int
    failed: int
    inapplicable: int
    units: float
    seconds: float


@dataclass(frozen=True)
class Report:
    """What came of it.

    Attributes
    ----------
    outcomes : tuple of Outcome
    facts : dict
        Versions and precision switches, by backend.
    version : str
        Of this package.
    """

    outcomes: tuple[Outcome, ...]
    facts: dict[str, dict[str, Any]]
    version: str = __version__

    @property
    def ok(self) -> bool:
        """Whether everything that applies passed."""
        return all(o.ok for o in self.outcomes)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        return tuple(o for o in self.outcomes if not o.ok)

    @property
    def targets(self) -> list[tuple[str, str, str]]:
        """Backend, device and precision, in the order in which they ran."""
        return list(dict.fromkeys((o.backend, o.device, o.dtype) for o in self.outcomes))

    @property
    def areas(self) -> list[str]:
        met = {o.area for o in self.outcomes}
        return [a for a in AREAS if a in met]

    def cell(self, target: tuple[str, str, str], area: str) -> Cell:
        """A field of the matrix of targets and areas."""
        found = [o for o in self.outcomes if (o.backend, o.device, o.dtype) == target and o.area == area]
        units = [o.units for o in found if o.units == o.units]
        return Cell(
            sum(o.state == "passed" for o in found),
            sum(not o.ok for o in found),
            sum(o.state == "inapplicable" for o in found),
            max(units, default=float("nan")),
            sum(o.seconds for o in found),
        )

    def record(self) -> dict[str, Any]:
        """Everything but the values that passed, as JSON takes it."""
        return {
            "xvarpro": self.version,
            "ok": self.ok,
            "facts": self.facts,
            "targets": [
                {
                    "backend": target[0],
                    "device": target[1],
                    "dtype": target[2],
                    "areas": {area: self.cell(target, area)._asdict() for area in self.areas},
                }
                for target in self.targets
            ],
            "failures": [
                {
                    "backend": o.backend,
                    "device": o.device,
                    "dtype": o.dtype,
                    "address": o.address,
                    "state": o.state,
                    "units": o.units,
                    "note": o.note,
                    "command": o.command,
                    "values": [
                        {
                            "what": m.what,
                            "error": m.error,
                            "tolerance": m.tolerance,
                            "got": repr(m.got),
                            "want": repr(m.want),
                        }
                        for m in o.failures
                    ],
                }
                for o in self.failures
            ],
        }
