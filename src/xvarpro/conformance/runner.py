"""Run the suite on targets."""

from __future__ import annotations

import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from xvarpro import backends as registry
from xvarpro.backends import Backend, testing
from xvarpro.conformance import exemptions, parallel
from xvarpro.conformance.exemptions import Exemption
from xvarpro.conformance.report import Outcome, Report, address
from xvarpro.conformance.suite import AREAS, Check, Inapplicable, LeftOut, Target, alternate, every, reference
from xvarpro.errors import ProblemError, UnsupportedError

DTYPES = ("float64", "float32")
COMPILED = 2  # cases of a check that --quick compiles
QUICK = "left out by --quick: other cases of the check stand for it"


def targets(
    backends: Sequence[str | Backend] | None = None,
    devices: Sequence[str] | None = None,
    dtypes: Sequence[str] = DTYPES,
    thorough: bool = False,
    quick: bool = False,
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
    quick : bool
        Whether a few cases of each check stand for the others.

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
        registry.prove(backend)
        if devices is None:
            first, *others = testing.hooks(backend).suite_devices or there[:1]
            wanted = [(first, dtype) for dtype in dtypes] + [(device, dtypes[0]) for device in others]
        else:
            wanted = [(device, dtype) for device in devices if _has(there, device) for dtype in dtypes]
        found += [Target(backend, device, dtype, thorough, quick) for device, dtype in wanted]
    if not found:
        raise ProblemError(
            f"device must be one of a backend's; got {', '.join(devices or ())}; `xvarpro backends` lists them"
        )
    return found


def usable() -> list[str]:
    """Backends that are installed and have a device."""
    missing = absent()
    return [name for name in registry.known() if name not in missing]


def absent() -> dict[str, str]:
    """Backends that are known and cannot run here, and why."""
    reasons = {}
    for name in registry.known():
        if not registry.installed(name):
            reasons[name] = "not installed"
            continue
        try:
            _devices(registry.get(name))
        except Exception as error:  # a broken framework raises what it likes
            reasons[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
    return reasons


def _devices(backend: Backend) -> list[str]:
    try:
        there, why = list(backend.devices()), "it sees none"
    except Exception as error:  # as CuPy without a driver
        there, why = [], f"{type(error).__name__}: {error}".partition("\n")[0]
    if not there:
        raise ProblemError(f"a backend must have a device; {backend.name!r} has none: {why}")
    return there


def _has(there: Sequence[str], device: str) -> bool:
    return device in there or any(d.partition(":")[0] == device for d in there)


def selection(only: Sequence[str] = ()) -> list[tuple[Check, Mapping[str, Any]]]:
    """Checks with those of their cases whose address begins with or matches a pattern of `only`.

    Raises
    ------
    ProblemError
        Nothing has such an address.
    """
    found: list[tuple[Check, Mapping[str, Any]]] = []
    met: set[str] = set()
    for check in every():
        patterns = [p for p in only if _may_match(address(check.area, check.name, ""), p)]
        if only and not patterns:
            continue
        cases = check.cases()
        if only:
            hits = {case: [p for p in patterns if matches(address(check.area, check.name, case), p)] for case in cases}
            cases = {case: given for case, given in cases.items() if hits[case]}
            met.update(p for hit in hits.values() for p in hit)
        if cases:
            found.append((check, cases))
    if unmet := [p for p in only if p not in met]:
        raise ProblemError(
            f"only must be the address of a check; got {unmet[0]!r}; areas are {', '.join(AREAS)}, --list has the rest"
        )
    return found


def matches(where: str, pattern: str) -> bool:
    """Whether an address begins with or matches a pattern of ``--only``."""
    return where == pattern or where.startswith(f"{pattern}/") or fnmatchcase(where, pattern)


def _may_match(check: str, pattern: str) -> bool:
    """Whether a case of this check may match: spares making the cases of the others."""
    head = re.split(r"[*?[]", pattern, maxsplit=1)[0]
    return check.startswith(head) or head.startswith(check)


def _outcome(target: Target, check: Check, case: str, state: str, **known: Any) -> Outcome:
    return Outcome(
        target.backend.name,
        target.device,
        target.dtype,
        check.area,
        check.name,
        case,
        state,
        float("nan"),
        says=check.says,
        against=check.against,
        thorough=target.thorough,
        **known,
    )


def run_case(target: Target, check: Check, case: str, given: object) -> Outcome:
    """One case; whatever it raises becomes part of the outcome."""
    began = time.perf_counter()
    known = _exemption(target, address(check.area, check.name, case))
    outcome = _outcome(target, check, case, "passed", exemption=known)
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
        )
    except LeftOut as reason:
        outcome = replace(outcome, state="left out", note=str(reason))
    except (Inapplicable, UnsupportedError) as reason:
        outcome = replace(outcome, state="inapplicable", note=str(reason))
    except Exception:
        outcome = replace(outcome, state="raised", note=traceback.format_exc(limit=-6))
    return replace(outcome, seconds=time.perf_counter() - began)


def _exemption(target: Target, where: str) -> Exemption | None:
    known = (*exemptions.BUILT_IN, *testing.hooks(target.backend).exemptions)
    return next((e for e in known if e.covers(target.backend.name, where, target.dtype)), None)


def run(
    among: str | Backend | Target | Iterable[str | Backend | Target] | None = None,
    only: str | Sequence[str] = (),
    callback: Callable[[Outcome], None] | None = None,
    jobs: int = 1,
) -> Report:
    """The suite on every target, one after another.

    Parameters
    ----------
    among : str, Backend or Target, or several of them; optional
        A backend runs on its first device in both precisions; `targets` makes others. By default all that are
        usable.
    only : str or sequence of str
        Addresses, or their beginnings, or patterns of them: ``"sets"``, ``"sets/oracle/L1Ball 0"``, ``"*/Simplex*"``.
    callback : callable, optional
        Called with every outcome.
    jobs : int
        Processes to share the work, >= 1; of several, this one only collects.

    Returns
    -------
    Report

    Raises
    ------
    ProblemError
        `only` is no address, `jobs` is below 1, or above 1 for a backend that is not registered; and what `targets`
        raises. A check that fails or raises is an outcome.

    Examples
    --------
    >>> from xvarpro import conformance
    >>> found = conformance.run(["numpy", "array-api-strict"], only="sets/projection/Simplex 0")
    >>> found.ok, len(found.outcomes)
    (True, 5)
    """
    only = (only,) if isinstance(only, str) else tuple(only)
    if jobs < 1:
        raise ProblemError(f"jobs must be at least 1; got {jobs}")
    chosen, wanted = selection(only), _targets(among)
    outcomes: list[Outcome] = []

    def collect(found: Iterable[Outcome]) -> None:
        for outcome in found:
            outcomes.append(outcome)
            if callback is not None:
                callback(outcome)

    if jobs == 1:
        for target in wanted:
            collect(run_target(target, chosen))
            target.forget()
        reference().forget()
    else:
        with closing(parallel.pieces(run_area, wanted, only, jobs)) as pieces:
            for piece in pieces:
                collect(piece)
        places = {where: i for i, where in enumerate((t.backend.name, t.device, t.dtype) for t in wanted)}
        outcomes.sort(key=lambda outcome: (places[outcome.target], AREAS.index(outcome.area)))
    if not outcomes:
        raise ProblemError(
            f"only must select a check of the precisions; got {', '.join(only)}; add the other precision"
        )
    facts = {target.backend.name: target.backend.describe() for target in wanted}
    quick = any(target.quick for target in wanted)
    return Report(tuple(outcomes), facts, absent=absent() if among is None else {}, only=only, quick=quick)


def run_area(target: Target, area: str, only: Sequence[str]) -> list[Outcome]:
    """Those checks of an area on a target that `only` asks for."""
    found = list(run_target(target, [(check, cases) for check, cases in _chosen(tuple(only)) if check.area == area]))
    target.forget()
    return found


_chosen = cache(selection)  # making the cases takes seconds


def run_target(target: Target, chosen: Iterable[tuple[Check, Mapping[str, Any]]]) -> Iterator[Outcome]:
    """Outcomes on one target, as they are found, of checks and cases as `selection` gives them."""
    for check, cases in chosen:
        if target.dtype not in check.dtypes:
            continue
        order, few = _representatives(target, check, cases) if target.quick else (list(cases), len(cases))
        for case in order:
            if few > 0:
                outcome = run_case(target, check, case, cases[case])
                few -= outcome.state not in ("inapplicable", "left out")
                yield outcome
            else:
                yield _outcome(target, check, case, "left out", note=QUICK)


def _representatives(target: Target, check: Check, cases: Iterable[str]) -> tuple[list[str], int]:
    """The cases of a check in the order in which --quick takes them, and how many it takes.

    Names that differ by a number are examples of one class, and the first stands for it. Where everything is compiled,
    checks take turns with the precision, and a few classes stand for all, other ones in the next check.
    """
    classes: dict[str, str] = {}
    for case in cases:
        classes.setdefault(re.sub(r" \d+", "", case), case)
    first, few = list(classes.values()), len(classes)
    rest = [case for case in cases if case not in first]
    if target.backend.compiled:
        position = list(every()).index(check)
        few = COMPILED if len(check.dtypes) == 1 or target.dtype in alternate(position) else 0
        # by multiples of the golden ratio: what comes first is far apart
        turn = {case: (position + i) * 0.618034 % 1 for i, case in enumerate(first)}
        first.sort(key=turn.__getitem__)
    return first + rest, few


def _targets(among: str | Backend | Target | Iterable[str | Backend | Target] | None) -> list[Target]:
    if among is None:
        return targets()
    several = [among] if isinstance(among, str | Backend | Target) else among
    return [t for each in several for t in ([each] if isinstance(each, Target) else targets([each]))]
