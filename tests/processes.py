"""Processes that tests start: forked from one that has imported what takes seconds, by what asks first for it."""

import atexit
import multiprocessing
import os
import traceback
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

PRELOADED = ["numpy", "scipy.linalg", "torch", "jax", "distributed", "dask.array", "xvarpro", "tests.support"]


@cache
def context():
    """Of all processes here. None of the frameworks has been used where they are forked: each has its own threads."""
    if os.name != "posix":
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    atexit.register(forkserver._forkserver._stop)  # waits: nothing outlives the tests
    return found


class Child(NamedTuple):
    """A process that calls a function of a module."""

    process: BaseProcess
    answer: Connection

    def returned(self, seconds=300.0):
        """What the function returned."""
        how, found = self._end(seconds)
        assert how == "returned", found
        return found

    def raised(self, seconds=300.0):
        """The traceback of what it raised."""
        how, found = self._end(seconds)
        assert how == "raised", found
        return found

    def _end(self, seconds):
        try:
            assert self.answer.poll(seconds), f"no answer within {seconds} s"
            answer = self.answer.recv()
            self.process.join(seconds)
            assert self.process.exitcode == 0
        finally:
            self.process.kill()
        return answer


def start(fun, *args, **environment):
    """A process that calls ``fun(*args)`` with variables of its environment set."""
    answer, there = context().Pipe(duplex=False)
    process = context().Process(target=_call, args=(there, environment, fun, args))
    process.start()
    there.close()
    return Child(process, answer)


def _call(there, environment, fun, args):
    os.environ.update(environment)
    try:
        found = "returned", fun(*args)
    except BaseException:  # Ctrl-C as well
        found = "raised", traceback.format_exc()
    there.send(found)


def both(fun, *args, **environment):
    """What ``fun(rank, *args)`` returns in each of two processes."""
    children = [start(fun, rank, *args, **environment) for rank in range(2)]
    try:
        return [child.returned() for child in children]
    finally:
        for child in children:
            child.process.kill()
