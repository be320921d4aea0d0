"""Refinement of the augmented system ``[I A; A^T 0] [a; b] = [f; g]``, from residuals with more digits.

Least squares (``f = y, g = 0``: ``b = w`` and ``a`` the residual) and the adjoint (``f = 0, g = c``: ``b = -v``,
``a = A v``) are both of this form (Bjorck 1967). A factorisation alone leaves an error of ``eps cond(A)``; one
refinement multiplies it by about ``eps cond(A)`` again.

That takes no new arithmetic: where both factors of a product are cut to half of their digits, the product is exact,
whoever multiplies them (Ozaki, Ogita, Oishi, Rump 2012).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from xvarpro._namespace import array_namespace
from xvarpro.lower._stack import padded
from xvarpro.protocols import Array
from xvarpro.trees import adjoint, is_complex

# entries of a right-hand side up to which refining is worth its six products; larger ones keep eps cond(A)
LARGEST = 2**16
# condition from which on: below it a gradient has lost four digits at most, and keeps eleven in float64
HARD = 5e3


class Augmented(NamedTuple):
    """The matrix ``A = Q R`` and the right-hand sides; None stands for zero, `f` is zero below its own rows."""

    A: Array
    Q: Array
    R: Array
    f: Array | None
    g: Array | None


def refine(backend: Any, R: Array, state: Callable[[], Augmented], top: Array, b: Array) -> tuple[Array, Array]:
    """Improve the first rows of `a`, and `b`, as often as the conditioning asks for: not at all where it is good.

    Parameters
    ----------
    backend : Backend
    R : array, shape (n, n)
        The triangular factor, whose diagonal shows the condition.
    state : callable
        States the system; called only where there is something to refine.
    top, b : arrays, shapes (m, k), (n, k)
        The solution that the factorisation gave. Below `top`, where the ridge is, ``a = -A b``.
    """
    m = top.shape[0]
    if not affordable(m, b):
        return top, b
    xp = array_namespace(b)
    steps = _steps(R)

    def again(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        n, top, b = carry
        system = state()
        a = top if system.A.shape[0] == m else xp.concat([top, -(system.A[m:, :] @ b)])
        da, db = _correction(backend, system, a, b)
        return n + 1, top + da[:m, :], b + db

    def improve(solution: tuple[Array, Array]) -> tuple[Array, Array]:
        return backend.while_loop(lambda carry: carry[0] < steps, again, (xp.zeros_like(steps), *solution))[1:]

    return backend.when(steps > 0, improve, (top, b))


def affordable(m: int, b: Array) -> bool:
    """Whether a target with `m` rows is small enough to be refined."""
    return (m + b.shape[0]) * b.shape[1] <= LARGEST


def _steps(R: Array) -> Array:
    """None where the diagonal of R shows a condition below `HARD`, one below eps^-1/2, then three."""
    xp = array_namespace(R)
    pivots = xp.abs(xp.linalg.diagonal(R))
    large, small = xp.max(pivots), xp.min(pivots)
    one, zero = xp.ones_like(large), xp.zeros_like(large)
    worse = xp.where(large * xp.finfo(R.dtype).eps ** 0.5 > small, one + 1, zero)
    return xp.where(large > HARD * small, one, zero) + worse


def _correction(backend: Any, system: Augmented, a: Array, b: Array) -> tuple[Array, Array]:
    A, Q, R, f, g = system
    ahead = _doubled(([] if f is None else [padded(f, a.shape[0])]) + [-a], A, b)
    behind = _doubled([] if g is None else [g], adjoint(A), a)
    turned = adjoint(Q) @ ahead - backend.solve_triangular(R, behind, transpose=True)
    return ahead - Q @ turned, backend.solve_triangular(R, turned)


def _doubled(terms: list[Array], A: Array, b: Array) -> Array:
    """The sum of `terms` minus ``A b``: cancellation leaves three halves of the digits where it would leave none.

    The leading halves of A and b have an exact product, which goes into the sum with the rounding error of every
    addition kept (Knuth); what is left of the product is small enough to be rounded. Complex numbers are pairs of real
    ones, and a sum of two products then one product.
    """
    if is_complex(A):
        xp = array_namespace(A)
        real, imaginary = xp.real(A), xp.imag(A)
        pairs = xp.concat([xp.concat([real, -imaginary], axis=1), xp.concat([imaginary, real], axis=1)])
        halves = _doubled([_parts(x) for x in terms], pairs, _parts(b))
        return halves[: A.shape[0], :] + 1j * halves[A.shape[0] :, :]
    A_high, b_high = _leading(A, 1), _leading(b, 0)
    small = A_high @ (b - b_high) + (A - A_high) @ b
    total, *rest = [*terms, -(A_high @ b_high)]
    for term in rest:
        larger = total + term
        shadow = larger - total
        small = small - ((total - (larger - shadow)) + (term - shadow))
        total = larger
    return total - small


def _parts(x: Array) -> Array:
    """The real parts above the imaginary ones."""
    xp = array_namespace(x)
    return xp.concat([xp.real(x), xp.imag(x)])


def _leading(x: Array, axis: int) -> Array:
    """Half of the digits of `x`, on a common grid along the axis that a product will sum over."""
    xp = array_namespace(x)
    bits = round(1 - math.log2(xp.finfo(x.dtype).eps))
    cut = math.ceil((bits + math.log2(x.shape[axis])) / 2)
    top = xp.max(xp.abs(x), axis=axis, keepdims=True)
    grid = (1.5 * 2.0**cut) * 2.0 ** xp.ceil(xp.log2(top))
    return (x + grid) - grid
