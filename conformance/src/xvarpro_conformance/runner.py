"""Run the suite on targets."""

from __future__ import annotations

import re
import shlex
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from xvarpro import backends as registry
from xvarpro.backends import Backend
from xvarpro.backends.adapters import prove
from xvarpro.errors import ProblemError, UnsupportedError
from xvarpro_conformance import frameworks
from xvarpro_conformance.frameworks import Exemption
from xvarpro_conformance.suite import AREAS, Check, Inapplicable, LeftOut, Measured, Target, every

DTYPES = ("float64", "float32")


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
    says : str
        The statement of the check.
    exemption : Exemption, optional
        What made the tolerance wider.
    thorough : bool
        Whether the target compiles every example.
    """

    backend: str
    device: str
    dtype: str
    area: str
    check: str
    case: str
    state: str = "passed"
    units: float = float("nan")
    failures: tuple[Measured, ...] = ()
    note: str = ""
    says: str = ""
    exemption: Exemption | None = None
    thorough: bool = False

    @property
    def ok(self) -> bool:
        return self.state not in ("failed", "raised")

    @property
    def ran(self) -> bool:
        return self.state in ("passed", "failed", "raised")

    @property
    def address(self) -> str:
        """``area/check/case``: what ``--only`` takes."""
        return address(self.area, self.check, self.case)

    @property
    def command(self) -> str:
        """What runs this case alone."""
        where = f"--backend {self.backend} --device {self.device} --dtype {self.dtype}"
        rest = f"--only {shlex.quote(self.address)}{' --thorough' if self.thorough else ''}"
        return f"xvarpro conformance {where} {rest}"


class Outcomes(list[Outcome]):
    """What `run` found, case by case."""

    @property
    def ok(self) -> bool:
        """Whether everything that applies passed."""
        return not self.failures

    @property
    def failures(self) -> list[Outcome]:
        """Those that failed or raised."""
        return [outcome for outcome in self if not outcome.ok]


def address(area: str, check: str, case: str) -> str:
    """``area/check/case``, without what is empty."""
    return "/".join(part for part in (area, check, case) if part)


def targets(
    backends: Sequence[str | Backend] | None = None,
    devices: Sequence[str] | None = None,
    dtypes: Sequence[str] = DTYPES,
    thorough: bool = False,
) -> list[Target]:
    """Targets: by default every installed backend on the devices it names to the suite, or the first of its own.

    Parameters
    ----------
    backends : sequence of str or Backend, optional
    devices : sequence of str, optional
        As ``"cpu"``, ``"cuda:1"``, or ``"cuda"``; a backend runs on those that it has.
    dtypes : sequence of str
    thorough : bool
        Whether every example is compiled; by default one represents its class, in one precision.

    Returns
    -------
    list of Target

    Raises
    ------
    ProblemError
        An unknown precision, a backend without a device, or a device that none of the backends has.
    PluginError
        A backend whose arrays do not come back as they went, or are not known to be its own.
    UnknownBackendError, BackendNotInstalledError
        An unknown backend, or one whose framework is not installed.

    Examples
    --------
    >>> from xvarpro import conformance
    >>> [str(target) for target in conformance.targets(["numpy"])]
    ['numpy cpu float64', 'numpy cpu float32']
    """
    if wrong := [d for d in dtypes if d not in DTYPES]:
        raise ProblemError(f"dtype must be float64 or float32; got {wrong[0]!r}")
    found = []
    for name in backends if backends is not None else usable():
        backend = registry.get(name) if isinstance(name, str) else name
        there = _devices(backend)
        has = set(there) | {d.partition(":")[0] for d in there}
        prove(backend)
        if devices is None:
            first, *others = frameworks.hooks(backend).suite_devices or there[:1]
            wanted = [(first, dtype) for dtype in dtypes] + [(device, dtypes[0]) for device in others]
        else:
            wanted = [(device, dtype) for device in devices if device in has for dtype in dtypes]
        found += [Target(backend, device, dtype, thorough) for device, dtype in wanted]
    if not found:
        raise ProblemError(
            f"device must be one of a backend's; got {', '.join(devices or ())}; `xvarpro backends` lists them"
        )
    return found


def usable() -> list[str]:
    """Backends that are installed and have a device."""
    return [name for name in registry.known() if _is_usable(name)]


def _is_usable(name: str) -> bool:
    if not registry.installed(name):
        return False
    try:
        return bool(registry.get(name).devices())
    except Exception:  # a broken framework raises what it likes, as CuPy without a driver
        return False


def _devices(backend: Backend) -> list[str]:
    try:
        there, why = list(backend.devices()), "it sees none"
    except Exception as error:  # as CuPy without a driver
        there, why = [], f"{type(error).__name__}: {error}".partition("\n")[0]
    if not there:
        raise ProblemError(f"a backend must have a device; {backend.name!r} has none: {why}")
    return there


def selection(only: Sequence[str] = ()) -> list[tuple[Check, Mapping[str, Any]]]:
    """Checks with those of their cases whose address begins with or matches a pattern of `only`.

    Raises
    ------
    ProblemError
        Nothing has such an address.
    """
    found = [(check, cases) for check in every() if (cases := cases_of(check, only))]
    there = [address(check.area, check.name, case) for check, cases in found for case in cases]
    if unmet := [p for p in only if not any(matches(where, p) for where in there)]:
        raise ProblemError(
            f"only must be the address of a check; got {unmet[0]!r}; areas are {', '.join(AREAS)}; "
            "--collect-only -q lists the checks"
        )
    return found


def cases_of(check: Check, only: Sequence[str] = ()) -> Mapping[str, Any]:
    """Those cases of a check that `only` asks for."""
    patterns = [p for p in only if _may_match(address(check.area, check.name, ""), p)]
    if not patterns:
        return {} if only else check.cases()
    where = partial(address, check.area, check.name)
    return {case: given for case, given in check.cases().items() if any(matches(where(case), p) for p in patterns)}


def matches(where: str, pattern: str) -> bool:
    """Whether an address begins with or matches a pattern of ``--only``."""
    return where == pattern or where.startswith(f"{pattern}/") or fnmatchcase(where, pattern)


def _may_match(check: str, pattern: str) -> bool:
    """Whether a case of this check may match: spares making the cases of the others."""
    head = re.split(r"[*?[]", pattern, maxsplit=1)[0]
    return check.startswith(head) or head.startswith(check)


def run_case(target: Target, check: Check, case: str, given: object) -> Outcome:
    """One case; whatever it raises becomes part of the outcome."""
    where = target.backend.name, target.device, target.dtype, check.area, check.name, case
    covering = (e for e in frameworks.hooks(target.backend).exemptions if e.covers(address(*where[3:]), target.dtype))
    known = next(covering, None)
    outcome = Outcome(*where, says=check.says, exemption=known, thorough=target.thorough)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # precision and dead units are what some checks are about
            measured = list(check.fun(target, given))
    except LeftOut as reason:
        return replace(outcome, state="left out", note=str(reason))
    except (Inapplicable, UnsupportedError) as reason:
        return replace(outcome, state="inapplicable", note=str(reason))
    except Exception:
        return replace(outcome, state="raised", note=traceback.format_exc(limit=-6))
    if known is not None:
        measured = [replace(m, tolerance=known.factor * m.tolerance) for m in measured]
    failures = tuple(m for m in measured if not m.units <= 1.0)
    units = max((m.units for m in measured), default=float("nan"))
    return replace(outcome, state="failed" if failures else "passed", units=units, failures=failures)


def run(
    among: str | Backend | Target | Iterable[str | Backend | Target] | None = None, only: str | Sequence[str] = ()
) -> Outcomes:
    """The suite on every target, one after another, in this process.

    Parameters
    ----------
    among : str, Backend or Target, or several of them; optional
        A backend runs on its first device in both precisions; `targets` makes others. By default all that are
        usable.
    only : str or sequence of str
        Addresses, or their beginnings, or patterns of them: ``"sets"``, ``"sets/oracle/L1Ball 0"``, ``"*/Simplex*"``.

    Returns
    -------
    list of Outcome
        One of each case, with its ``address``, whether it is ``ok`` and, where it is not, the ``failures`` or the
        ``note`` of an error. The list has ``ok`` and ``failures`` of all of them.

    Raises
    ------
    ProblemError
        `only` is no address; and what `targets` raises. A check that fails or raises is an outcome.

    Examples
    --------
    >>> from xvarpro import conformance
    >>> found = conformance.run(["numpy", "array-api-strict"], only="sets/projection/Simplex 0")
    >>> found.ok, len(found)
    (True, 5)
    """
    several = [among] if among is None or isinstance(among, str | Backend | Target) else among
    asked = [t for x in several for t in ([x] if isinstance(x, Target) else targets(x if x is None else [x]))]
    found = Outcomes(outcomes(asked, (only,) if isinstance(only, str) else only))
    if not found:
        raise ProblemError(f"only must select a check of the precisions; got {only!r}; add the other precision")
    return found


def outcomes(among: Iterable[Target], only: Sequence[str] = ()) -> Iterator[Outcome]:
    """As `run`, case by case."""
    chosen = selection(only)
    for target in among:
        for check, cases in chosen:
            if target.dtype in check.dtypes:
                yield from (run_case(target, check, case, given) for case, given in cases.items())
        target.forget()
