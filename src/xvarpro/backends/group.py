"""Processes that solve one problem together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from xvarpro.core.struct import Leaves
from xvarpro.core.trees import partition
from xvarpro.errors import GroupError

T = TypeVar("T")

FINE, SINGULAR, FAILED = 0.0, 1.0, 2.0  # how a process fared


class Group(ABC):
    """Processes that run one program on the same theta, each with rows or columns of its own.

    All of them call the same methods in the same order, and get the same bits.
    """

    rank: int  # of this process, from 0
    size: int

    @abstractmethod
    def total(self, arrays: Leaves) -> Leaves:
        """The sums over all processes."""

    @abstractmethod
    def gather(self, arrays: Leaves) -> list[Leaves]:
        """What each process gives, in the order of ranks; shapes are the same in all of them."""

    @abstractmethod
    def first(self, arrays: Leaves) -> Leaves:
        """What process 0 gives."""

    @abstractmethod
    def texts(self, text: str) -> list[str]:
        """A text of each process, in the order of ranks."""

    def numbers(self, values: Sequence[float]) -> np.ndarray:
        """A few numbers of each process, (size, len(values)) of float64."""
        return np.stack([np.asarray(x) for (x,) in self.gather((np.asarray(values, np.float64),))])

    def agree(self, value: float) -> float:
        """The number of process 0, such as its clock."""
        return float(self.first((np.asarray([value], np.float64),))[0][0])

    def same(self, obj: T) -> T:
        """What process 0 has, in every process: its arrays, around the rest of the own object."""
        arrays, skeleton = partition(obj)
        return skeleton.fill(self.first(arrays))

    @contextmanager
    def together(self, singular: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Let every process raise where one of them does; what is within calls the group in such blocks alone.

        One block may hold another: of a process that fails before it comes to the inner one the others learn there.

        Raises
        ------
        GroupError
            Another process failed; with its message.
        numpy.linalg.LinAlgError
            One raised an error of `singular`, and none another one.
        """
        failure: Exception | None = None
        fared = FINE
        try:
            yield
        except GroupError:
            raise  # from a block within: the others know
        except singular as error:
            fared, failure = SINGULAR, error
        except Exception as error:
            fared, failure = FAILED, error
        worst = float(self.numbers([fared]).max())
        if worst == FAILED:
            texts = self.texts(f"{type(failure).__name__}: {failure}" if fared == FAILED else "")
            if failure is not None and fared == FAILED:
                raise failure
            rank = next(i for i, text in enumerate(texts) if text)
            raise GroupError(f"process {rank} of {self.size} failed: {texts[rank]}")
        if worst == SINGULAR:
            raise np.linalg.LinAlgError("a model inverts a singular matrix") from failure

    def check_same(self, what: str, found: str) -> None:
        """Check that a description is the same in all processes."""
        texts = self.texts(found)
        other = next((i for i, text in enumerate(texts) if text != texts[0]), None)
        if other is not None:
            raise GroupError(
                f"all processes must have the same {what}; got {texts[0]} in process 0 and {texts[other]} in process "
                f"{other}"
            )
