"""Special functions on any framework, each with its derivatives of every order.

A backend has a method ``special(x, name, n)``, the n-th derivative of a function of `FUNCTIONS` at a raw array; most
call `derivative` with their framework's own module of special functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from xvarpro.backends.registry import of
from xvarpro.core.namespace import is_array, namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ModelError, UnsupportedError

SLOPE = 2.0 / math.sqrt(math.pi)  # of erf at 0
# where the derivatives of erfcx change from a recurrence to a continued fraction: up to here the recurrence loses one
# digit in the first derivative and two in the second, and from here so many terms give all digits in double precision
BORDER, TERMS = 2.0, 50


def evaluate(x: Array, name: str, n: int = 0) -> Array:
    """The n-th derivative of a function of `FUNCTIONS` at an array of any kind, those that a tape records included."""
    if not is_array(x) or not (xp := namespace_of(x)).isdtype(x.dtype, "real floating"):
        raise ModelError(
            f"xv.special.{name} needs a real floating array; got {getattr(x, 'dtype', type(x).__name__)}. Convert it "
            "with xp.asarray or xp.astype, xp = xv.array_namespace(theta)"
        )
    backend: Any = of(x)
    if backend is None:
        return xp._smooth(x, partial(evaluate, name=name), n)
    if not hasattr(backend, "special"):
        raise UnsupportedError(
            f"xv.special.{name} needs a backend with a method `special`; {backend.name} has none. Derive it from "
            "xvarpro.backends.adapters.HostedBackend, or define special(x, name, n)"
        )
    return backend.special(x, name, n)


def derivative(functions: Any, x: Array, name: str, n: int) -> Array:
    """The n-th derivative by a module that has erf, erfc, erfcx, gammaln, digamma and zeta, as ``scipy.special``."""
    return getattr(functions, name)(x) if n == 0 else FUNCTIONS[name](functions, x, n)


def _erf(functions: Any, x: Array, n: int) -> Array:
    # the slope s = c exp(-x^2) has s' = -2 x s, and each derivative of that adds one term
    before, now = 0.0, SLOPE * namespace_of(x).exp(-x * x)
    for k in range(1, n):
        before, now = now, -2 * x * now - 2 * (k - 1) * before
    return now


def _erfc(functions: Any, x: Array, n: int) -> Array:
    return -_erf(functions, x, n)


def _erfcx(functions: Any, x: Array, n: int) -> Array:
    xp = namespace_of(x)
    low, high = xp.minimum(x, xp.full_like(x, BORDER)), xp.maximum(x, xp.full_like(x, BORDER))
    return xp.where(x < BORDER, _recurrence(functions.erfcx(low), low, n), continued_fraction(high, n))


def _recurrence(value: Array, x: Array, n: int) -> Array:
    """``y' = 2 x y - c``, differentiated: terms of one sign for x < 0, differences for x > 0."""
    before, now = value, 2 * x * value - SLOPE
    for k in range(1, n):
        before, now = now, 2 * x * now + 2 * k * before
    return now


def continued_fraction(x: Array, n: int) -> Array:
    """The n-th derivative of erfcx for x >= 2, without a difference.

    The recurrence, solved for the quotients q_k of one derivative by that before it, is ``-q_k = 2 k / (2 x - q_k+1)``,
    which is Laplace's continued fraction; it starts from the quotient of an infinite order (Gautschi, SIAM Review 9,
    1967).
    """
    xp = namespace_of(x)
    last = TERMS + n
    q = 2 * last / (x + xp.sqrt(x * x + 2 * last))
    factor: Any = 1.0
    for k in range(last - 1, 0, -1):
        q = 2 * k / (2 * x + q)
        factor = -factor * q if k <= n else factor
    return factor * (SLOPE / (2 * x + q))


def _gammaln(functions: Any, x: Array, n: int) -> Array:
    if n == 1:
        return functions.digamma(x)
    # polygamma by the zeta function of Hurwitz: PyTorch's own trigamma has nine digits
    return (-1) ** n * math.factorial(n - 1) * functions.zeta(n, x)


FUNCTIONS: dict[str, Callable[[Any, Array, int], Array]] = {
    "erf": _erf,
    "erfc": _erfc,
    "erfcx": _erfcx,
    "gammaln": _gammaln,
}
