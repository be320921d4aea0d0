"""Sets from lower and upper bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError
from xvarpro.sets._parameters import host
from xvarpro.sets.box import Box
from xvarpro.sets.free import Free
from xvarpro.sets.linf import LinfBall


def bounds(lower: Tree, upper: Tree = None) -> Any:
    """The set of everything between two bounds: a `Box`, a `LinfBall` for one number and its negative, `Free` for none.

    Parameters
    ----------
    lower : float, array, sequence of pairs, object with ``lb`` and ``ub``, or dict of these
        Lower bounds; without `upper`, both: SciPy's ``[(low, high), ...]`` or ``Bounds``. None and infinities stand for
        no bound. A dict gives a dict of sets, as ``over=`` takes it.
    upper : as `lower`
        Upper bounds.

    Returns
    -------
    Box, LinfBall, Free, or a dict of them

    Raises
    ------
    ProblemError
        Some entries are bounded on both sides and others are not, or one side alone: a linear function has no minimum
        there. Parts without bounds belong in a leaf of their own.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.sets.bounds(0.0, 2.0)
    Box(lower=0.0, upper=2.0)
    >>> xv.sets.bounds({"rate": [(0.0, 1.0), (0.0, 5.0)], "offset": None})["rate"]
    Box(lower=array([0., 0.]), upper=array([1., 5.]))
    """
    if isinstance(lower, Mapping):
        if upper is None:
            return {key: bounds(part) for key, part in lower.items()}
        if not isinstance(upper, Mapping) or set(upper) != set(lower):
            raise ProblemError(f"bounds: upper must have the keys {sorted(map(str, lower))}, got {upper!r}")
        return {key: bounds(part, _unbounded(upper[key], math.inf)) for key, part in lower.items()}
    if upper is None and hasattr(lower, "lb") and hasattr(lower, "ub"):
        lower, upper = lower.lb, lower.ub
    elif upper is None and isinstance(lower, list | tuple):
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in lower):
            raise ProblemError(f"bounds: without upper, lower must be pairs (low, high), got {lower!r}")
        pairs = lower
        lower = np.array([_unbounded(low, -math.inf) for low, _ in pairs])
        upper = np.array([_unbounded(high, math.inf) for _, high in pairs])
    lower, upper = _unbounded(lower, -math.inf), _unbounded(upper, math.inf)
    low, high = _numbers(lower), _numbers(upper)
    without = int(np.sum(np.isinf(low))) + int(np.sum(np.isinf(high)))
    if (low == -math.inf).all() and (high == math.inf).all():
        return Free()
    if without:
        raise ProblemError(
            "bounds: every entry of a leaf needs both bounds, or none of them any, since a linear function has no "
            f"minimum on a half-line; got lower={lower!r}, upper={upper!r}: put entries without bounds in a leaf of "
            "their own"
        )
    if not low.shape and not high.shape and 0 <= high == -low:
        return LinfBall(float(high))
    return Box(lower, upper)


def _unbounded(x: Any, infinity: float) -> Any:
    return infinity if x is None else x


def _numbers(x: Any) -> np.ndarray:
    try:
        return np.asarray(host(x), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ProblemError(f"bounds must be numbers or arrays of numbers, got {x!r}") from error


# -- what they share ---------------------------------------------------------------------------------------------------
