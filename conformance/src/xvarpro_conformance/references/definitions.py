"""What a set is known by, and the words that definitions are written with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from xvarpro.sets.interface import Set


class Known(NamedTuple):
    """A set for events of one shape, written out from its definition.

    Attributes
    ----------
    support : callable
        ``max Re <g, v>`` for gradients (*batch, *event), real or complex.
    outside : callable
        How far points (*batch, *event) are outside, as `Set.violation` promises it: relative to the size of the set.
    ties : callable, optional
        For one real gradient a direction: moved along it by little, it has the vertex alone that the documented rule
        takes where several are as good. The first entry counts most, and zero as positive.
    bound : bool
        Whether a violation may be a lower bound of that, good to a part in a thousand.
    """

    support: Callable[[np.ndarray], np.ndarray]
    outside: Callable[[np.ndarray], np.ndarray]
    ties: Callable[[np.ndarray], np.ndarray] | None = None
    bound: bool = False


Definition: TypeAlias = Callable[[Any, tuple[int, ...]], Known]
DEFINITIONS: dict[type, Definition] = {}  # by class: the reference of a set, for events of a shape


def known(C: Set, shape: tuple[int, ...]) -> Known:
    """The reference of a set, for events of that shape.

    Raises
    ------
    LookupError
        There is none: a set of the package is not compared with itself.
    """
    if type(C) not in DEFINITIONS:
        raise LookupError(f"{type(C).__name__} has no reference in xvarpro_conformance.references.sets")
    return DEFINITIONS[type(C)](C, shape)


def defines(
    *kinds: type,
) -> Callable[[Callable[[Any, tuple[int, ...]], Known]], Callable[[Any, tuple[int, ...]], Known]]:
    """Enter the reference of some classes."""

    def enter(make: Definition) -> Definition:
        DEFINITIONS.update(dict.fromkeys(kinds, make))
        return make

    return enter


def inner(g: np.ndarray, v: np.ndarray, axes: int = 1) -> np.ndarray:
    """``Re <g, v>`` over the last axes."""
    out: np.ndarray = np.sum(np.real(np.conj(g) * v), axis=tuple(range(-axes, 0)))
    return out


def by_value(g: np.ndarray, unit: np.ndarray | float = 1.0) -> np.ndarray:
    """Ties of a set that looks for the least entries, in units of their own: the first becomes the least."""
    rank = np.argsort(np.argsort(g / unit, kind="stable"))
    return unit * 16.0 ** (rank - len(g))


def by_size(g: np.ndarray, unit: np.ndarray | float = 1.0) -> np.ndarray:
    """Ties of a set that looks for the largest entries: the first becomes the largest."""
    rank = np.argsort(np.argsort(-abs(g / unit), kind="stable"))
    return unit * sign(g) * 16.0**-rank


def sign(x: np.ndarray) -> np.ndarray:
    """Signs, of which zero counts as positive."""
    return np.where(x < 0, -1.0, 1.0)


def excess(size: np.ndarray, radius: float) -> np.ndarray:
    """By how much a size is above a radius, relative to it."""
    return np.maximum(size - radius, 0.0) / (radius or 1.0)


def norm(x: np.ndarray, p: float = 2.0) -> np.ndarray:
    """Norms along the last axis."""
    out: np.ndarray = np.linalg.norm(x, ord=p, axis=-1)
    return out


def falling(x: np.ndarray) -> np.ndarray:
    """Entries from the largest down."""
    return -np.sort(-x, axis=-1)


def worst(*terms: Any) -> np.ndarray:
    """The largest of 0 and some terms, entry by entry."""
    return np.maximum.reduce(np.broadcast_arrays(0.0, *terms))


def groups_of(groups: Any, n: int) -> list[list[int]]:
    """The entries of each group."""
    if isinstance(groups, int):
        return [list(range(i, min(i + groups, n))) for i in range(0, n, groups)]
    return [list(group) for group in groups]


def falling_over(groups: list[list[int]]) -> np.ndarray:
    """Numbers that fall from one group to the next, by entry."""
    out = np.zeros(sum(map(len, groups)))
    for i, G in enumerate(groups):
        out[G] = 16.0**-i
    return out


def diameter(C: Set, shape: tuple[int, ...]) -> float:
    """The largest distance of two vertices that are met from many directions, each step going on from the farthest."""
    n, draw = int(np.prod(shape)), np.random.default_rng(0)
    signs = np.array(list(product((-1.0, 0.0, 1.0), repeat=n))[: 3**n // 2]) if n <= 4 else np.eye(n)[:2]
    u = np.concatenate([signs, draw.normal(size=(6, n))]).reshape(-1, *shape)
    lengths = np.zeros(len(u))
    for _ in range(100):
        apart = np.asarray(C.lmo(-u)) - np.asarray(C.lmo(u))
        found = norm(apart.reshape(len(u), n))
        longer = found > lengths * (1 + 1e-13)
        if not longer.any():
            break
        lengths[longer], u[longer] = found[longer], apart[longer]
    return float(lengths.max())
