"""Refinement of the augmented system ``[I A; A^T 0] [a; b] = [f; g]``, with residuals in twice the working precision.

Least squares (``f = y, g = 0``: ``b = w`` and ``a`` the residual) and the adjoint (``f = 0, g = c``: ``b = -v``,
``a = A v``) are both of this form (Bjorck 1967). A factorisation alone leaves an error of ``eps cond(A)``; one
refinement multiplies it by about ``eps cond(A)`` again.

Doubled precision needs no new arithmetic: both factors of a product are cut into slices of so few bits that the
products of slices are exact, whoever multiplies them (Ozaki, Ogita, Oishi, Rump 2012).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from array_api_compat import array_namespace

from xvarpro.protocols import Array

# entries of a right-hand side up to which refining is worth its six products; larger ones keep eps cond(A)
LARGEST = 2**16
_SLICES = 3


class Augmented(NamedTuple):
    """``A = Q R`` and the right-hand sides; None stands for zero."""

    A: Array
    Q: Array
    R: Array
    f: Array | None
    g: Array | None


def refine(backend: Any, system: Augmented, a: Array, b: Array) -> tuple[Array, Array]:
    """Improve ``(a, b)`` as often as the conditioning asks for: not at all where cond(A) is small.

    Parameters
    ----------
    backend : Backend
    system : Augmented
    a, b : arrays, shapes (m, k), (n, k)
        The solution that the factorisation gave.
    """
    if a.shape[0] * a.shape[1] > LARGEST:
        return a, b
    xp = array_namespace(a)
    steps = _steps(system.R)

    def again(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        n, a, b = state
        da, db = _correction(backend, system, a, b)
        return n + 1, a + da, b + db

    _, a, b = backend.while_loop(lambda s: s[0] < steps, again, (xp.zeros_like(steps), a, b))
    return a, b


def _steps(R: Array) -> Array:
    """None below cond = eps^-1/4, one below eps^-1/2, then three; the diagonal of R shows the condition."""
    xp = array_namespace(R)
    eps = xp.finfo(R.dtype).eps
    pivots = xp.abs(xp.linalg.diagonal(R))
    large, small = xp.max(pivots), xp.min(pivots)
    zero = xp.zeros_like(large)
    return xp.where(large * eps**0.25 > small, zero + 1, zero) + xp.where(large * eps**0.5 > small, zero + 2, zero)


def _correction(backend: Any, system: Augmented, a: Array, b: Array) -> tuple[Array, Array]:
    A, Q, R, f, g = system
    ahead = _accumulate([-a, *([] if f is None else [f]), *_products(A, b)])
    behind = _accumulate([*([] if g is None else [g]), *_products(A.mT, a)])
    turned = Q.mT @ ahead - backend.solve_triangular(R, behind, transpose=True)
    return ahead - Q @ turned, backend.solve_triangular(R, turned)


def _products(A: Array, b: Array) -> list[Array]:
    """Exact arrays whose sum is ``-A b`` to twice the precision, largest first."""
    left, right = _sliced(A, 1), _sliced(b, 0)
    return [-(left[i] @ right[j]) for order in range(_SLICES) for i in range(order + 1) for j in (order - i,)]


def _sliced(x: Array, axis: int) -> list[Array]:
    """`x` as a sum of arrays with few bits each, on a common grid along the axis that a product will sum over."""
    xp = array_namespace(x)
    bits = round(1 - math.log2(xp.finfo(x.dtype).eps))
    cut = math.ceil((bits + math.log2(x.shape[axis])) / 2)
    parts = []
    for _ in range(_SLICES - 1):
        top = xp.max(xp.abs(x), axis=axis, keepdims=True)
        grid = (1.5 * 2.0**cut) * 2.0 ** xp.ceil(xp.log2(top))
        high = (x + grid) - grid
        parts.append(high)
        x = x - high
    return [*parts, x]


def _accumulate(terms: list[Array]) -> Array:
    """Sum with the rounding error of every addition (Knuth) kept and added last."""
    total, lost = terms[0], 0.0 * terms[0]
    for term in terms[1:]:
        larger = total + term
        shadow = larger - total
        lost = lost + ((total - (larger - shadow)) + (term - shadow))
        total = larger
    return total + lost
