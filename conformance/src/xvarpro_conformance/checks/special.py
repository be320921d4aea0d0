"""Functions that the standard lacks: values and derivatives against 40 digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from xvarpro import special
from xvarpro.backends import Backend
from xvarpro.backends.calculus import hessian_product
from xvarpro.backends.special import evaluate
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import BackendNotInstalledError
from xvarpro_conformance.problems import held
from xvarpro_conformance.suite import Inapplicable, Measured, Target, check

ENTIRE = np.concatenate([np.linspace(-3.0, 6.0, 21), [1.999, 2.0, 2.001, 9.0]])
POINTS = {"erf": ENTIRE, "erfc": ENTIRE, "erfcx": np.append(ENTIRE, 400.0), "gammaln": np.logspace(-2, 2, 23)}
# in eps, by the order of the derivative: what the functions promise
LIMITS = {"erf": (3, 3, 3, 3, 3), "erfc": (3, 3, 3, 3, 3), "erfcx": (3, 30, 200, 1000, 4000), "gammaln": (20,) * 5}


@cache
def exact(name: str) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Value and four derivatives at the points, and what an error of each of them is relative to."""
    import mpmath as mp

    functions = {"erf": mp.erf, "erfc": mp.erfc, "erfcx": lambda x: mp.exp(x * x) * mp.erfc(x), "gammaln": mp.loggamma}
    x = held(POINTS[name])
    with mp.workdps(40):
        found = [np.array([float(mp.diff(functions[name], mp.mpf(float(t)), n)) for t in x]) for n in range(5)]
    # the condition of exp(x^2), and the zeros that the functions and their derivatives have
    sizes = {
        "erf": lambda y: (np.abs(y) + np.exp(-x * x)) * (1 + x * x),
        "erfc": lambda y: (np.abs(y) + np.exp(-x * x)) * (1 + x * x),
        "erfcx": lambda y: np.abs(y) * (1 + np.where(x < 0, x * x, 0)),
        "gammaln": lambda y: np.maximum(np.abs(y), 1),
    }
    return tuple(found), np.array([sizes[name](y) for y in found])


@cache
def computed(backend: Backend, name: str) -> Callable[[Array], tuple[Array, ...]]:
    """Value and derivatives, two by a Hessian: functions act on each entry alone, so that it is its diagonal."""

    def values(x: Array) -> tuple[Array, ...]:
        xp, function = namespace_of(x), getattr(special, name)
        gradient, product = hessian_product(backend, lambda t: namespace_of(t).sum(function(t)), (x,))
        return function(x), gradient[0], product((xp.ones_like(x),))[0], evaluate(x, name, 3), evaluate(x, name, 4)

    return values


@check("derivatives", lambda: {name: name for name in POINTS})
def special_functions(target: Target, name: str) -> Iterator[Measured]:
    """Every function of `xv.special` and its first four derivatives are within the digits that it promises."""
    try:
        found: Any = target.typed(computed(target.backend, name), held(POINTS[name]))
    except BackendNotInstalledError as error:
        raise Inapplicable(str(error)) from error
    wanted, sizes = exact(name)
    yield Measured("dtypes", set(found.dtypes), {target.dtype})
    for order, (got, want, size) in enumerate(zip(found.values, wanted, sizes, strict=True)):
        # of the entry that is furthest off, for each has digits of its own
        worst = np.argmax(np.abs(got - want) / size)
        tolerance = LIMITS[name][order] * target.eps
        yield Measured(f"derivative {order}", got[worst], want[worst], tolerance, float(size[worst]))
