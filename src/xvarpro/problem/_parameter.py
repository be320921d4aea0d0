"""One parameter, with a value of its own or tied to others, made from what a user typed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from xvarpro import backends
from xvarpro.backends import exchange
from xvarpro.core.checks import shown
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.sets import Box, Free
from xvarpro.sets.box import unbounded
from xvarpro.sets.interface import Set


@final
@dataclass(frozen=True, eq=False)
class Parameter:
    """A parameter with a value of its own; all arrays have the shape of `value` and are never written to."""

    value: np.ndarray  # start, or for entries that are fixed the value
    min: np.ndarray  # bounds, infinite where there is none
    max: np.ndarray
    vary: np.ndarray  # of bool: which entries vary
    over: Set | Free | None = None  # set of the whole array, in the place of bounds

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self.value.shape

    @property
    def varies(self) -> bool:
        """Whether any entry does."""
        return bool(self.vary.any())

    def varying(self, x: np.ndarray) -> np.ndarray:
        """The entries of `x` that vary: a vector unless all do."""
        return x if self.vary.all() else x[self.vary]

    @property
    def region(self) -> Set | Free | None:
        """The set of the entries that vary; None without bounds."""
        low, high = self.varying(self.min), self.varying(self.max)
        if self.over is not None or not (np.isfinite(low).any() or np.isfinite(high).any()):
            return self.over
        return Box(one_if_equal(low), one_if_equal(high))

    def filled(self, x: Array | None, like: Array, lead: tuple[int, ...]) -> Array:
        """All entries, (*lead, *shape), of which `x` are those that vary."""
        xp = namespace_of(like)
        if x is None:
            return xp.broadcast_to(_sent(self.value, like), (*lead, *self.shape))
        if self.vary.all():
            return x
        fixed = _sent(self.value[~self.vary], like)
        parts = xp.concat([x, xp.broadcast_to(fixed, (*lead, *fixed.shape))], axis=-1)
        # where each entry is among those that vary, which come first, and those that are fixed
        places = np.argsort(np.argsort(~self.vary.ravel(), kind="stable"))
        entries = xp.take(parts, xp.asarray(places, device=device(like)), axis=-1)
        return xp.reshape(entries, (*lead, *self.shape))


@final
@dataclass(frozen=True, eq=False)
class Tied:
    """A parameter that follows from others: ``sum of factors[name] * parameter + offset``, entry by entry."""

    factors: Mapping[str, np.ndarray]
    offset: np.ndarray
    shape: tuple[int, ...]  # to which all of these broadcast

    def combined(self, found: Mapping[str, Array], like: Array, lead: tuple[int, ...]) -> Array:
        """The value, (*lead, *shape), from those of the parameters before it."""
        xp = namespace_of(like)
        total = _sent(self.offset, like)
        for name, factor in self.factors.items():
            own = found[name].shape[len(lead) :]
            aligned = (*lead, *(1,) * (len(self.shape) - len(own)), *own)
            total = total + _sent(factor, like) * xp.reshape(found[name], aligned)
        return xp.broadcast_to(total, (*lead, *self.shape))

    def __str__(self) -> str:
        terms = [name if (c == 1).all() else f"{text(c)} {name}" for name, c in self.factors.items()]
        return " + ".join(terms + [text(self.offset)] * bool(self.offset.any())).replace("+ -", "- ")


def _sent(x: np.ndarray, like: Array) -> Array:
    """Numbers in the framework, device and precision of `like`."""
    return namespace_of(like).asarray(np.array(x), dtype=like.dtype, device=device(like))


# -- from what a user typed --------------------------------------------------------------------------------------------


def parameter(name: str, value: Any, low: Any, high: Any, vary: Any, over: Any) -> Parameter:
    """A `Parameter`; see `Parameters.add` for the errors."""
    if value is None:
        raise ProblemError(f"{name} must have a value, or a tie to other parameters, got neither")
    x = _numbers(value, f"{name}: value")
    if not np.isfinite(x).all() or not x.size:
        raise ProblemError(f"{name}: value must be finite numbers, at least one, got {shown(value)}")
    low, high = (
        _spread(_numbers(unbounded(bound, infinity), f"{name}: {what}"), x.shape, f"{name}: {what}")
        for what, bound, infinity in (("min", low, -math.inf), ("max", high, math.inf))
    )
    free = np.asarray(vary)
    if free.dtype != bool:
        raise ProblemError(f"{name}: vary must be True or False, or an array of these, got {shown(vary)}")
    free = _spread(free, x.shape, f"{name}: vary")
    if (at := _first((low > high) | (low == math.inf) | (high == -math.inf))) is not None:
        raise ProblemError(
            f"{entry(name, at)}: min must be at most max and no bound beyond all numbers, got min={low[at]:g} and "
            f"max={high[at]:g}"
        )
    if (at := _first((x < low) | (x > high))) is not None:
        raise ProblemError(
            f"{entry(name, at)}: value must lie between min and max, got {x[at]:g} with min={low[at]:g} and "
            f"max={high[at]:g}. Move the start or the bound"
        )
    if over is not None:
        _check_set(name, over, free, bounded=bool(np.isfinite(low).any() or np.isfinite(high).any()))
    return Parameter(x, low, high, free, over)


def _check_set(name: str, over: Any, free: np.ndarray, bounded: bool) -> None:
    if not isinstance(over, Set | Free):
        raise ProblemError(f"{name}: over must be a set such as xv.sets.Simplex(), got {over!r}")
    if bounded:
        raise ProblemError(f"{name}: over takes the place of min and max, got both. Leave one out")
    if free.any() and not free.all():
        raise ProblemError(
            f"{name}: vary must be True or False for all entries of a set, got {free.tolist()}. Give bounds instead of "
            f"{over!r}, or make the entries that are fixed a parameter of their own"
        )
    if isinstance(over, Set):
        over.check(free.shape)


def tied(name: str, tie: Any, offset: Any, shapes: Mapping[str, tuple[int, ...]]) -> Tied:
    """A `Tied`; `shapes` are those of the parameters before it: a tie to these alone makes no cycle."""
    if not isinstance(tie, Mapping) or not tie:
        raise ProblemError(f"{name}: tie must be a dict of factors such as {{'k1': 2.0}}, or a name, got {shown(tie)}")
    if unknown := [other for other in tie if other not in shapes]:
        why = "itself" if unknown[0] == name else "which is not there"
        raise ProblemError(
            f"{name}: tie must be to parameters that were added before it, {', '.join(shapes) or 'none so far'}; got "
            f"{unknown[0]!r}, {why}. Add the parameters that others follow from first"
        )
    factors = {other: _numbers(c, f"{name}: the factor of {other}") for other, c in tie.items()}
    added = _numbers(0.0 if offset is None else offset, f"{name}: offset")
    if not all(np.isfinite(c).all() for c in (*factors.values(), added)):
        raise ProblemError(
            f"{name}: factors and offset of a tie must be finite, got tie={shown(tie)} and offset={shown(offset)}"
        )
    parts = [*(shapes[other] for other in tie), *(c.shape for c in factors.values()), added.shape]
    try:
        shape = np.broadcast_shapes(*parts)
    except ValueError:
        raise ProblemError(
            f"{name}: parameters, factors and offset of a tie must broadcast to one shape, got shapes "
            f"{', '.join(map(str, parts))}"
        ) from None
    return Tied(factors, added, shape)


def check_tied_alone(name: str, **given: Any) -> None:
    """Refuse what a tied parameter cannot have."""
    for what, x in given.items():
        if x is None:
            continue
        advice = {
            "value": "It follows from the tie: give an offset, or leave the tie out",
            "vary": "It varies with the parameters that it is tied to: leave vary out",
        }
        bounds = (
            "Bound the parameters that it is tied to; where a tie makes shares sum to 1, give all of them as one array "
            "with over=xv.sets.Simplex()"
        )
        raise ProblemError(f"{name}: a tied parameter must have no {what}, got {shown(x)}. {advice.get(what, bounds)}")


def frozen(x: np.ndarray) -> np.ndarray:
    """A copy as doubles that cannot be written to."""
    x = np.array(x, dtype=np.float64)
    x.setflags(write=False)
    return x


def _numbers(x: Any, what: str) -> np.ndarray:
    """Real numbers in any form, infinite ones included."""
    given = exchange.numbers(x, what)
    try:
        found = backends.to_numpy(given)
    except (TypeError, ValueError):  # of a traced array, or of an object
        found = np.asarray(None)
    if found.dtype.kind not in "iuf" or np.isnan(found).any():
        raise ProblemError(f"{what} must be a number or an array of numbers, got {shown(x)}")
    return frozen(found)


def _spread(x: np.ndarray, shape: tuple[int, ...], what: str) -> np.ndarray:
    try:
        return np.broadcast_to(x, shape)
    except ValueError:
        raise ProblemError(f"{what} must broadcast to the shape {shape} of the value, got shape {x.shape}") from None


def _first(wrong: np.ndarray) -> tuple[int, ...] | None:
    """Where the first True is."""
    return tuple(np.argwhere(wrong)[0].tolist()) if wrong.any() else None


# -- names and numbers as text -----------------------------------------------------------------------------------------


def entry(name: str, at: Sequence[int]) -> str:
    """Name of an entry: ``rates[0]``, ``D[1, 0]``; that of a number is the parameter's."""
    return f"{name}{list(at) if at else ''}"


def one_if_equal(x: np.ndarray) -> float | np.ndarray:
    """A number for an array of equal ones."""
    return float(x.flat[0]) if (x == x.flat[0]).all() else x


def text(x: Any) -> str:
    """Numbers on one line; the middle of a long array is left out."""
    formats: Any = {"float_kind": "{:.6g}".format, "bool": str}
    found = np.array2string(backends.to_numpy(x), separator=", ", threshold=8, edgeitems=2, formatter=formats)
    return " ".join(found.split())
