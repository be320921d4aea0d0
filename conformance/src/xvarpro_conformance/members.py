"""A group whose members are threads of this process: what processes do together, wherever one program runs.

One member runs at a time, until it waits for the others. So a framework need not bear threads side by side, a program
that one member has compiled is there for the next, and no run differs from another by who is fast. What calls the group
must hold no lock, such as that of a `cached_property` before Python 3.12: the others would wait for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, TypeVar

import numpy as np

from xvarpro import backends
from xvarpro.backends import adapters, exchange
from xvarpro.backends.group import Group
from xvarpro.core.namespace import device
from xvarpro.core.struct import Leaves
from xvarpro.errors import GroupError

T = TypeVar("T")


@dataclass
class Meetings:
    """What members have given, call by call; the lock is held by the one that runs."""

    turn: Condition = field(default_factory=Condition)
    given: defaultdict[int, dict[int, tuple[object, Any]]] = field(default_factory=lambda: defaultdict(dict))
    ended: set[int] = field(default_factory=set)  # members that give no more


class Member(Group):
    """One of the threads.

    Attributes
    ----------
    sent : list of int
        Numbers of entries that it has given, call by call.
    """

    def __init__(self, rank: int, size: int, meetings: Meetings) -> None:
        self.rank, self.size, self._meetings = rank, size, meetings
        self.sent: list[int] = []

    def total(self, arrays: Leaves) -> Leaves:
        return _like(arrays, [sum(parts) for parts in zip(*self._hosted("total", arrays), strict=True)])

    def gather(self, arrays: Leaves) -> list[Leaves]:
        return [_like(arrays, part) for part in self._hosted("gather", arrays)]

    def first(self, arrays: Leaves) -> Leaves:
        return _like(arrays, self._hosted("first", arrays)[0])

    def texts(self, text: str) -> list[str]:
        return self._all("texts", text, len(text))

    def _hosted(self, method: str, arrays: Leaves) -> list[list[np.ndarray]]:
        """Those of all members, of the same shapes and dtypes, in the memory of the host.

        As in other groups: some frameworks have arrays that belong to a thread.
        """
        hosts = [np.asarray(backends.to_numpy(x)) for x in arrays]
        kinds = [(x.shape, x.dtype.name) for x in hosts]
        return self._all((method, kinds), hosts, sum(x.size for x in hosts))

    def _all(self, call: object, given: T, entries: int) -> list[T]:
        """What all members give in this call, in the order of ranks."""
        meetings, i = self._meetings, len(self.sent)
        self.sent.append(entries)
        here = meetings.given[i]
        here[self.rank] = call, given
        meetings.turn.notify_all()
        meetings.turn.wait_for(lambda: len(here) == self.size or meetings.ended - here.keys())
        if len(here) < self.size:
            raise GroupError(f"members {sorted({*range(self.size)} - here.keys())} have not come to call {i}: {call}")
        calls = [here[rank][0] for rank in range(self.size)]
        if any(other != call for other in calls):
            raise GroupError(f"all members must make the same calls; got {calls} for call {i}")
        return [here[rank][1] for rank in range(self.size)]


def _like(arrays: Leaves, hosts: Sequence[Any]) -> Leaves:
    """Copies of NumPy's arrays in the frameworks and on the devices of others."""
    pairs = zip(arrays, hosts, strict=True)
    return tuple(exchange.move(np.array(host), adapters.owner(x), device=device(x)) for x, host in pairs)


def together(size: int, fun: Callable[[Member], T]) -> list[T]:
    """What ``fun(member)`` returns in each member of a group of that size.

    Raises
    ------
    Exception
        What one of them raised; that of the others which only waited for it comes last.
    """
    meetings = Meetings()

    def run(rank: int) -> T:
        with meetings.turn:
            try:
                return fun(Member(rank, size, meetings))
            finally:
                meetings.ended.add(rank)
                meetings.turn.notify_all()

    with ThreadPoolExecutor(size) as threads:
        started = [threads.submit(copy_context().run, run, rank) for rank in range(size)]
    errors = [error for future in started if (error := future.exception()) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, GroupError)), errors[0])
    return [future.result() for future in started]
