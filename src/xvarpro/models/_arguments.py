"""Samples and parameters as what broadcasts to the transpose of a design, whose rows are its columns.

Columns are computed one after the other, each in one piece of memory: with few of them, loops over rows are slow.

Functions take the namespace of what they have computed from their arguments, not of an argument: samples may be plain
arrays where parameters are traced.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from xvarpro.backends import exchange
from xvarpro.core.checks import described
from xvarpro.core.namespace import device, dtype_name, is_array, is_inexact, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError


def aligned(**arguments: Any) -> list[Any]:
    """Samples (..., m), the first argument, as (..., 1, m); parameters (..., n) as (..., n, 1), single ones as given.

    Raises
    ------
    ProblemError
        An argument is no array of numbers, or no number where it may be one; parameters have different lengths.
    """
    arrays = [x for x in arguments.values() if is_array(x)]
    like = next(filter(is_inexact, arrays), arrays[0] if arrays else np.zeros(1))
    (name, x), *given = arguments.items()
    samples = samples_of(name, x, like)
    needed = "a number or an array of numbers of shape (n,)"
    parameters = {parameter: p if _is_number(p) else _floating(parameter, p, like, needed) for parameter, p in given}
    lengths = {parameter: p.shape[-1] for parameter, p in parameters.items() if is_array(p) and p.ndim}
    if len(set(lengths.values()) - {1}) > 1:
        raise ProblemError(f"parameters must have one length, or length 1 where columns share them; got {lengths}")
    return [namespace_of(samples).expand_dims(samples, axis=-2), *map(_down, parameters.values())]


def design(rows: Array) -> Array:
    """The design whose columns these are, (..., n, m)."""
    return namespace_of(rows).matrix_transpose(rows)


def samples_of(name: str, x: Any, like: Any = None) -> Array:
    """Samples as a floating array with an axis; `like` says in which framework and precision if they are not."""
    needed = "an array of numbers of shape (m,)"
    found = _floating(name, x, (x if is_array(x) else np.zeros(1)) if like is None else like, needed)
    if not found.ndim:
        raise ProblemError(f"{name} must be {needed}; got shape (). Reshape it")
    return found


def _floating(name: str, x: Any, like: Any, needed: str) -> Array:
    """A floating array as it is; whole numbers, lists and columns of tables in the precision of `like`, or double."""
    if is_array(x) and is_inexact(x):
        return x
    if isinstance(x, list | tuple) and any(is_array(e) and not isinstance(e, np.generic) for e in x):
        raise ProblemError(f"{name} must be {needed}; got {described(x)}. Join them by xp.stack or xp.concat")
    found = x if is_array(x) else exchange.numbers(x, name)
    if not is_array(found) or not dtype_name(found).startswith(("int", "uint", "float", "complex")):
        got = f"dtype {dtype_name(found)}" if is_array(found) else described(found)
        raise ProblemError(f"{name} must be {needed}; got {got}")
    dtype = like.dtype if is_inexact(like) else namespace_of(like).float64
    if is_array(x):
        return namespace_of(x).astype(x, dtype)
    return namespace_of(like).asarray(found, dtype=dtype, device=device(like))


def _is_number(x: Any) -> bool:
    return isinstance(x, Real) and not isinstance(x, bool)


def _down(p: Any) -> Any:
    return namespace_of(p).expand_dims(p, axis=-1) if is_array(p) and p.ndim else p
