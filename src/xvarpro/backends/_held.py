"""A switch of a framework that has one state for all threads, held by every solve that wants it on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Held:
    """The first to hold it turns it on, the last to let go restores what `read` gave before the first.

    Had each put back what it found itself, two solves that overlap in two threads would leave it on.
    """

    def __init__(self, read: Callable[[], Any], turn_on: Callable[[], None], restore: Callable[[Any], None]) -> None:
        self._read, self._turn_on, self._restore = read, turn_on, restore
        self._lock, self._holders, self._before = threading.Lock(), 0, None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._holders:
                self._before = self._read()
                self._turn_on()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    self._restore(self._before)
