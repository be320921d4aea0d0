"""The suite in several processes: an area on a target is one piece of work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import get_context

from xvarpro import backends as registry
from xvarpro.conformance.report import Outcome
from xvarpro.conformance.suite import AREAS, Target
from xvarpro.errors import ProblemError

Area = Callable[[Target, str, Sequence[str]], list[Outcome]]


@contextmanager
def pieces(
    run_area: Area, among: Sequence[Target], only: Sequence[str], jobs: int
) -> Iterator[Iterator[list[Outcome]]]:
    """Outcomes of every target and area, in their order, not in the order of their ends.

    Processes are started anew: a copy of one in which a framework has threads would wait for threads that it has not.

    Parameters
    ----------
    run_area : callable
        What a piece of work is; a function of a module.
    among : sequence of Target
        Of registered backends: another process finds them by name.
    only : sequence of str
    jobs : int

    Raises
    ------
    ProblemError
        A backend that is not registered.
    """
    for target in among:
        name = target.backend.name
        if name not in registry.known() or registry.get(name) is not target.backend:
            raise ProblemError(
                f"with jobs > 1 every backend must be registered, for other processes to find it; {name!r} is not; "
                "use jobs=1"
            )
    work = [((t.backend.name, t.device, t.dtype, t.thorough, t.quick), area) for t in among for area in AREAS]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield pool.map(partial(_piece, run_area, tuple(only)), *zip(*work, strict=True))


def _piece(run_area: Area, only: tuple[str, ...], where: tuple[str, str, str, bool, bool], area: str) -> list[Outcome]:
    return run_area(_target(*where), area, only)


@cache
def _target(name: str, device: str, dtype: str, thorough: bool, quick: bool) -> Target:
    return Target(registry.get(name), device, dtype, thorough, quick)
