"""Products of real with complex arrays, numbers for examples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xvarpro.core.namespace import complexified, is_complex, namespace_of
from xvarpro.core.struct import Array


def alike(A: Array, B: Array) -> tuple[Array, Array]:
    """Both complex where one of them is."""
    if A.dtype == B.dtype or is_complex(A) == is_complex(B):
        return A, B
    return complexified(A), complexified(B)


def product(A: Array, B: Array) -> Array:
    """``A @ B``; one may be real and the other complex."""
    A, B = (A, B) if A.dtype == B.dtype else alike(A, B)
    return A @ B


def as_gradient(g: Array, x: Array) -> Array:
    """A gradient `g` with respect to `x`: its real part where `x` is real."""
    return namespace_of(g).real(g) if is_complex(g) and not is_complex(x) else g


def divisors(n: int) -> tuple[int, int]:
    """``n = a b`` with a and b as close as they come, ``a >= b``."""
    b = max(i for i in range(1, math.isqrt(n) + 1) if n % i == 0)
    return n // b, b


def drawn(*shape: int, seed: int = 0) -> Any:
    """Numbers of order 1 for an example."""
    return np.random.default_rng([seed, *shape]).normal(size=shape)
