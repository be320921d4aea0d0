"""Groups of entries of the last axis. Groups of one size are worked on together, as rows of one array."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError

Grouping: TypeAlias = int | tuple[tuple[int, ...], ...]


def _take(x: Array, entries: np.ndarray) -> Array:
    xp = namespace_of(x)
    return xp.take(x, xp.asarray(entries, device=device(x)), axis=-1)


class Plan(NamedTuple):
    sizes: tuple[tuple[int, int], ...]  # of the parts, one per size of group: groups, entries in each
    entries: tuple[np.ndarray, ...]  # per part: which entries, group by group
    back: np.ndarray  # entries in the order of the parts -> entries in their own order
    order: np.ndarray  # the same for groups
    group: np.ndarray  # of each entry, its group


@lru_cache(maxsize=256)
def plan_of(groups: Grouping, n: int) -> Plan:
    if isinstance(groups, int):
        groups = tuple(tuple(range(i, min(i + groups, n))) for i in range(0, n, groups))
    sizes = np.array([len(group) for group in groups])
    which = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
    entries = [np.array([groups[i] for i in some]) for some in which]
    flat = np.concatenate([part.ravel() for part in entries])
    if not np.array_equal(np.sort(flat), np.arange(n)):
        raise ProblemError(f"groups must hold each of {n} entries once, got groups of {flat.size} entries")
    back, by_size = np.argsort(flat), np.concatenate(which)
    return Plan(
        tuple(part.shape for part in entries),
        tuple(part.ravel().astype(np.int32) for part in entries),
        back.astype(np.int32),
        np.argsort(by_size).astype(np.int32),
        np.repeat(by_size, sizes[by_size])[back].astype(np.int32),
    )


def split(groups: Grouping, x: Array) -> list[Array]:
    """Groups as rows, one array per size of group."""
    xp = namespace_of(x)
    plan = plan_of(groups, x.shape[-1])
    parts = zip(plan.entries, plan.sizes, strict=True)
    return [xp.reshape(_take(x, entries), (*x.shape[:-1], *shape)) for entries, shape in parts]


def join(groups: Grouping, parts: list[Array]) -> Array:
    """Inverse of `split`."""
    xp = namespace_of(*parts)
    flat = [xp.reshape(part, (*part.shape[:-2], part.shape[-2] * part.shape[-1])) for part in parts]
    whole = flat[0] if len(flat) == 1 else xp.concat(flat, axis=-1)
    return _take(whole, plan_of(groups, whole.shape[-1]).back)


def by_group(groups: Grouping, parts: list[Array], n: int) -> Array:
    """One number per group, in the order of the groups."""
    return _take(namespace_of(*parts).concat(parts, axis=-1), plan_of(groups, n).order)


def by_entry(groups: Grouping, numbers: Array, n: int) -> Array:
    """The number of its group for each entry."""
    return _take(numbers, plan_of(groups, n).group)


def grouping(owner: Any) -> None:
    groups, name = owner.groups, type(owner).__name__
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= 1:
        return
    try:
        groups = tuple(tuple(int(i) for i in group) for group in groups)
    except (TypeError, ValueError):
        raise ProblemError(
            f"{name}: groups must be a number >= 1 or a tuple of tuples of int, got {groups!r}"
        ) from None
    flat = sorted(i for group in groups for i in group)
    if not groups or not all(groups) or flat != list(range(len(flat))):
        raise ProblemError(f"{name}: groups must not be empty and must hold each of 0, 1, .. once, got {groups!r}")
    object.__setattr__(owner, "groups", groups)


def fitting(owner: Any, shape: tuple[int, ...]) -> Plan:
    n = math.prod(shape)
    if not n:
        raise ProblemError(f"{type(owner).__name__}: theta's leaf must have entries, got shape {shape}")
    if not isinstance(owner.groups, int) and (got := sum(map(len, owner.groups))) != n:
        raise ProblemError(f"{type(owner).__name__}: groups hold {got} entries, theta's leaf of shape {shape} has {n}")
    return plan_of(owner.groups, n)


def groupings(shape: tuple[int, ...]) -> tuple[Grouping, ...]:
    """One group, groups of one, and groups of two sizes that are not next to each other."""
    n = math.prod(shape)
    odd = (tuple(range(1, n, 2)), (0,), *((i,) for i in range(2, n, 2)))
    return (n, 1, tuple(group for group in odd if group))
