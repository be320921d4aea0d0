"""Groups of entries of the last axis. Groups of one size are worked on together, as rows of one array."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from xvarpro._namespace import array_namespace, device
from xvarpro.errors import ProblemError
from xvarpro.protocols import Array

Grouping: TypeAlias = int | tuple[tuple[int, ...], ...]


class Plan(NamedTuple):
    entries: tuple[np.ndarray, ...]  # per size: which entries, one group a row
    groups: tuple[np.ndarray, ...]  # per size: which groups
    back: np.ndarray  # entries in the order of the parts -> entries in their own order
    order: np.ndarray  # the same for groups


@lru_cache(maxsize=256)
def plan_of(groups: Grouping, n: int) -> Plan:
    if isinstance(groups, int):
        groups = tuple(tuple(range(i, min(i + groups, n))) for i in range(0, n, groups))
    sizes = np.array([len(group) for group in groups])
    which = tuple(np.flatnonzero(sizes == size).astype(np.int32) for size in np.unique(sizes))
    entries = tuple(np.array([groups[i] for i in some], dtype=np.int32) for some in which)
    flat = np.concatenate([part.ravel() for part in entries])
    if not np.array_equal(np.sort(flat), np.arange(n)):
        raise ProblemError(f"groups of {flat.size} entries do not hold each of {n} entries once")
    back, order = np.argsort(flat), np.argsort(np.concatenate(which))
    return Plan(entries, which, back.astype(np.int32), order.astype(np.int32))


def _take(x: Array, indices: np.ndarray) -> Array:
    xp = array_namespace(x)
    return xp.take(x, xp.asarray(indices, device=device(x)), axis=-1)


def split(groups: Grouping, x: Array) -> list[Array]:
    """Groups as rows, one array per size of group."""
    xp = array_namespace(x)
    plan = plan_of(groups, x.shape[-1])
    return [xp.reshape(_take(x, part.ravel()), (*x.shape[:-1], *part.shape)) for part in plan.entries]


def join(groups: Grouping, parts: list[Array]) -> Array:
    """Inverse of `split`."""
    xp = array_namespace(*parts)
    flat = [xp.reshape(part, (*part.shape[:-2], part.shape[-2] * part.shape[-1])) for part in parts]
    whole = xp.concat(flat, axis=-1)
    return _take(whole, plan_of(groups, whole.shape[-1]).back)


def by_group(groups: Grouping, parts: list[Array], n: int) -> Array:
    """One number per group, in the order of the groups."""
    return _take(array_namespace(*parts).concat(parts, axis=-1), plan_of(groups, n).order)


def to_parts(groups: Grouping, numbers: Array, n: int) -> list[Array]:
    """Inverse of `by_group`."""
    return [_take(numbers, some) for some in plan_of(groups, n).groups]


def own(groups: Grouping, best: Array, n: int, parts: list[Array]) -> list[Array]:
    """The parts with every group but `best` set to 0."""
    xp = array_namespace(best)
    out = []
    for some, part in zip(plan_of(groups, n).groups, parts, strict=True):
        chosen = xp.asarray(some, dtype=best.dtype, device=device(best)) == xp.expand_dims(best, axis=-1)
        out.append(xp.where(xp.expand_dims(chosen, axis=-1), part, xp.zeros_like(part)))
    return out


def grouping(owner: Any) -> None:
    groups, name = owner.groups, type(owner).__name__
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= 1:
        return
    try:
        groups = tuple(tuple(int(i) for i in group) for group in groups)
    except TypeError:
        raise ProblemError(
            f"{name}: groups must be a number >= 1 or a tuple of tuples of int, got {groups!r}"
        ) from None
    flat = sorted(i for group in groups for i in group)
    if not groups or not all(groups) or flat != list(range(len(flat))):
        raise ProblemError(f"{name}: groups must be none empty and hold each of 0, 1, .. once, got {groups!r}")
    object.__setattr__(owner, "groups", groups)


def fitting(owner: Any, shape: tuple[int, ...]) -> Plan:
    n = math.prod(shape)
    if not isinstance(owner.groups, int) and (got := sum(map(len, owner.groups))) != n:
        raise ProblemError(f"{type(owner).__name__}: groups hold {got} entries, theta's leaf of shape {shape} has {n}")
    return plan_of(owner.groups, n)


def groupings(shape: tuple[int, ...]) -> tuple[Grouping, ...]:
    """One group, groups of one, and groups of two sizes that are not next to each other."""
    n = math.prod(shape)
    odd = (tuple(range(1, n, 2)), (0,), *((i,) for i in range(2, n, 2)))
    return (n, 1, tuple(group for group in odd if group))
