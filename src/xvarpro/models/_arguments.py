"""Samples down, parameters across: what broadcasts to a design.

Functions take the namespace of what they have computed from their arguments, not of an argument: samples may be plain
arrays where parameters are traced.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

from xvarpro.core.checks import described
from xvarpro.core.namespace import dtype_name, is_array, is_inexact, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError


def aligned(**arguments: Array | float) -> list[Any]:
    """Samples (..., m), the first argument, as (..., m, 1); parameters (..., n) as (..., 1, n), single ones as given.

    Raises
    ------
    ProblemError
        An argument is no floating array, or no number where it may be one; parameters have different lengths.
    """
    (name, samples), *parameters = arguments.items()
    check_samples(name, samples)
    for parameter, p in parameters:
        if not isinstance(p, Real) or isinstance(p, bool):
            _check_floating(parameter, p, "a number or a floating array of shape (n,)")
    lengths = {parameter: p.shape[-1] for parameter, p in parameters if is_array(p) and p.ndim}
    if len(set(lengths.values()) - {1}) > 1:
        raise ProblemError(f"parameters must have one length, or length 1 where columns share them; got {lengths}")
    return [namespace_of(samples).expand_dims(samples, axis=-1), *(_across(p) for _, p in parameters)]


def check_samples(name: str, x: Array | float) -> None:
    """Refuse what is no floating array with an axis."""
    required = "a floating array of shape (m,)"
    _check_floating(name, x, required)
    if not getattr(x, "ndim", 0):
        raise ProblemError(f"{name} must be {required}; got shape (). Reshape it")


def _check_floating(name: str, x: Array | float, required: str) -> None:
    if not is_array(x) or not is_inexact(x):
        found = f"dtype {dtype_name(x)}" if is_array(x) else described(x)
        raise ProblemError(f"{name} must be {required}; got {found}. Convert it with xp.asarray or xp.astype")


def _across(p: Array | float) -> Array | float:
    return namespace_of(p).expand_dims(p, axis=-2) if is_array(p) and p.ndim else p
