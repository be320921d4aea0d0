"""Checks of the numbers that a user types."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isabstract
from numbers import Integral, Real
from pickle import PicklingError
from typing import Any

import numpy as np

from xvarpro.core.namespace import is_array, namespace_of
from xvarpro.errors import ProblemError


def described(x: Any) -> str:
    """What a message says of `x`, in a few words: never all entries of an array or a list."""
    if is_array(x) and not isinstance(x, Real):
        return f"an array of shape {tuple(x.shape)}"
    if isinstance(x, list | tuple) and x:
        return f"a {type(x).__name__} of {len(x)}, the first {described(x[0])}"
    return f"{x!r:.80}" if isinstance(x, Real | str) else type(x).__name__


def shown(x: Any) -> str:
    """What was typed, in a message: the shape of an array, the beginning of anything long."""
    if is_array(x) and not isinstance(x, Real) and x.ndim:
        return described(x)
    text = repr(x)
    return text if len(text) <= 80 else f"{text[:80]}..."


def nonnegative(owner: object, name: str) -> None:
    """Refuse a field that is no finite number >= 0."""
    _number(owner, name, lambda value: 0 <= value < math.inf, "a finite number >= 0")


def above(owner: object, name: str, least: float) -> None:
    """Refuse a field that is no finite number > `least`."""
    _number(owner, name, lambda value: least < value < math.inf, f"a finite number > {least:g}")


def between(owner: object, name: str, low: float, high: float) -> None:
    """Refuse a field that is no number in the open interval (low, high)."""
    _number(owner, name, lambda value: low < value < high, f"in ({low:g}, {high:g})")


def share(owner: object, name: str, most: float = 1.0) -> None:
    """Refuse a field that is no number in the half-open interval (0, most]."""
    _number(owner, name, lambda value: 0 < value <= most, f"a number with 0 < {name} <= {most:g}")


def _number(owner: object, name: str, fits: Callable[[float], bool], required: str) -> None:
    """Refuse a field that does not fit, and keep it as a Python float: NumPy's scalars count as arrays."""
    value: Any = getattr(owner, name)
    if _traced(value):
        return  # in a function that is compiled: the number was checked before
    if not fits(number(value)):
        raise ProblemError(f"{type(owner).__name__}: {name} must be {required}, got {shown(value)}")
    object.__setattr__(owner, name, float(value))


def number(value: Any) -> float:
    """A real number of any type, or in a 0-d array, as a Python float; NaN for anything else, truth values among it."""
    value = _unwrapped(value)
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number beyond the floats
        beyond: Any = value
        return math.inf if beyond > 0 else -math.inf


def _unwrapped(x: Any) -> Any:
    """The number in a 0-d array of a framework as Python's; anything else as it is."""
    if isinstance(x, Real) or not is_array(x) or x.ndim or _traced(x):
        return x
    found = namespace_of(x).isdtype
    try:
        return int(x) if found(x.dtype, "integral") else float(x) if found(x.dtype, "real floating") else x
    except RuntimeError:  # PyTorch maps over it: it is no number
        return x


def confidence(level: Any) -> None:
    """Refuse a level of confidence that is no number in (0, 1)."""
    if not 0 < number(level) < 1:
        raise ProblemError(f"level must be a number in (0, 1), such as 0.95; got {described(level)}")


def instance(x: Any, base: type) -> Any:
    """An object of a class, also from a class of that kind or from its name, as "soft_l1" for SoftL1; None for none."""
    named = {kind.__name__.lower(): kind for kind in _concrete(base)}
    x = named.get(x.replace("_", "").lower(), x) if isinstance(x, str) else x
    x = x() if isinstance(x, type) and issubclass(x, base) else x
    return x if isinstance(x, base) else None


def _concrete(base: type) -> list[type]:
    kinds: list[type] = base.__subclasses__()
    below = [c for kind in kinds for c in _concrete(kind)]
    return below if isabstract(base) else [base, *below]


def switch(name: str, value: object) -> None:
    """Refuse what is neither True nor False: the word "no" would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise ProblemError(f"{name} must be True or False; got {described(value)}")


def _traced(x: Any) -> bool:
    """Whether `x` is a 0-d array that has no value yet."""
    if isinstance(x, Real | np.ndarray) or not is_array(x) or x.ndim:
        return False
    try:
        float(x)
    except TypeError:
        return True
    except RuntimeError:  # a complex number of PyTorch's, or one that it maps over
        return False
    return False


def whole(owner: object, name: str, least: int) -> None:
    """Refuse a field that is no whole number >= `least`, and keep it as a Python int."""
    value: Any = _unwrapped(getattr(owner, name))
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ProblemError(f"{type(owner).__name__}: {name} must be a whole number >= {least}, got {shown(value)}")
    object.__setattr__(owner, name, int(value))


@contextmanager
def pickled() -> Iterator[None]:
    """Turn what processes say of functions that they cannot be sent into a `ProblemError`."""
    try:
        yield
    except (PicklingError, AttributeError, TypeError) as error:
        # the type is another one in each version of Python
        if not any(words in str(error) for words in ("pickle", "local object")):
            raise
        raise ProblemError(
            "functions of a problem that processes of an executor solve must be defined by def at the top of a module, "
            f"where each process imports them; got {error}. Move a lambda or an inner function there, with what it "
            "took from around it in data=, or take a ThreadPoolExecutor or no executor"
        ) from error
