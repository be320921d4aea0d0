"""Polynomials, for backgrounds and drifts."""

from __future__ import annotations

import math
from numbers import Integral

from xvarpro.core.checks import number
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.models._arguments import design, samples_of


def polynomials(x: Array, degree: int, domain: tuple[float, float] = (-1.0, 1.0)) -> Array:
    """Legendre polynomials of degree 0 to `degree`: all polynomials up to it, in columns that are nearly orthogonal.

    Parameters
    ----------
    x : array, shape (m,)
        Samples, usually from `data`; whole numbers become doubles. Of shape (b, m) in a batch where each has its own.
    degree : int
        At least 0.
    domain : two numbers
        The ends of the interval that is mapped to [-1, 1], in the units of `x`: where samples begin and end. The
        default leaves `x` as it is. Numbers, not the ends of what `x` holds: rows in chunks share one map.

    Returns
    -------
    array, shape (m, degree + 1)
        Within [-1, 1] where `x` is in the domain; with the default domain the first two columns are 1 and x.
        ``numpy.polynomial.Legendre(w, domain)`` is the polynomial with weights w, and its
        ``convert(kind=numpy.polynomial.Polynomial)`` has the coefficients of the powers of x.

    Raises
    ------
    ProblemError
        `x` is no array of numbers, `degree` no whole number >= 0, or `domain` not two finite numbers that increase.

    Notes
    -----
    On many even samples of the domain the columns are orthogonal but for terms of 1/m, and their condition is near
    ``sqrt(2 degree + 1)``; that of powers grows by a factor of 2.4 per degree. From the recurrence of the NIST Digital
    Library of Mathematical Functions, 18.9.1.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.models.polynomials(np.array([10.0, 15.0, 20.0]), 2, (10.0, 20.0))
    array([[ 1. , -1. ,  1. ],
           [ 1. ,  0. , -0.5],
           [ 1. ,  1. ,  1. ]])
    """
    x = samples_of("x", x)
    if not isinstance(degree, Integral) or isinstance(degree, bool) or degree < 0:
        raise ProblemError(f"degree must be a whole number >= 0; got {degree!r}")
    low, high = _ends(domain)
    u = (x - 0.5 * (low + high)) / (0.5 * (high - low))
    xp = namespace_of(u)
    found = [xp.ones_like(u), u]
    for k in range(1, degree):
        found.append(((2 * k + 1) * u * found[k] - k * found[k - 1]) / (k + 1))
    return design(xp.stack(found[: degree + 1], axis=-2))


def _ends(domain: tuple[float, float]) -> tuple[float, float]:
    ends = [number(end) for end in domain] if isinstance(domain, tuple | list) else []
    if len(ends) != 2 or not -math.inf < ends[0] < ends[1] < math.inf:
        raise ProblemError(f"domain must be two finite numbers that increase; got {domain!r}")
    return ends[0], ends[1]
