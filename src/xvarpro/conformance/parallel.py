"""The suite in several processes: a process keeps to a target, area by area, for what it has compiled there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import cache
from itertools import chain
from multiprocessing import get_context

from xvarpro import backends as registry
from xvarpro.conformance.report import Outcome
from xvarpro.conformance.suite import AREAS, Target
from xvarpro.errors import ProblemError

Area = Callable[[Target, str, Sequence[str]], list[Outcome]]


def pieces(
    run_area: Area, among: Sequence[Target], only: Sequence[str], jobs: int
) -> Generator[list[Outcome], None, None]:
    """Outcomes of every target and area, in the order of their ends.

    As many targets are in work as there are processes, those that compile first: they take longest. Where an area ends,
    the next one of its target goes to the process that is free now, the same one unless two end at once.

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
    work = (iter([(t, area) for area in AREAS]) for t in sorted(among, key=lambda t: not t.backend.compiled))
    running: dict[Future[list[Outcome]], Iterator[tuple[Target, str]]] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:

        def begin(waiting: Iterable[Iterator[tuple[Target, str]]]) -> None:
            for areas in waiting:
                for t, area in areas:
                    where = t.backend.name, t.device, t.dtype, t.thorough, t.quick
                    running[pool.submit(_piece, run_area, tuple(only), where, area)] = areas
                    return

        for _ in range(jobs):
            begin(work)
        while running:
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                begin(chain([running.pop(ended)], work))
                yield ended.result()


def _piece(run_area: Area, only: tuple[str, ...], where: tuple[str, str, str, bool, bool], area: str) -> list[Outcome]:
    return run_area(_target(*where), area, only)


@cache
def _target(name: str, device: str, dtype: str, thorough: bool, quick: bool) -> Target:
    return Target(registry.get(name), device, dtype, thorough, quick)
