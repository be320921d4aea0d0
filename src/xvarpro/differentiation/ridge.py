"""Ridge regression as a function: many small problems at once, with derivatives of every order and no theta."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from xvarpro import backends
from xvarpro.backends import Backend
from xvarpro.core.checks import described
from xvarpro.core.namespace import (
    adjoint,
    conj,
    device,
    dtype_name,
    is_array,
    is_complex,
    is_inexact,
    namespace_of,
)
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import sum_
from xvarpro.errors import ProblemError
from xvarpro.lower import QR, DualQR, System
from xvarpro.lower.stack import QRFactor, as_column, as_columns, as_complex
from xvarpro.operators import Dense


def ridge(A: Array, y: Array, lam: float | Array) -> Array:
    """The minimiser of ``1/2 |A w - y|^2 + lam/2 |w|^2`` over w, differentiable by A, y and lam.

    One QR of ``[A; sqrt(lam) I]``, or of its dual form where A is wide, gives w and its gradients, to the accuracy of
    the lower level of a solve: no square of the condition of A, no loss as lam goes to 0. On PyTorch it is a function
    for ``backward``, `torch.func.grad`, `jacrev` and `vmap`, on JAX for `jax.jit`, `grad`, `jacrev` and `vmap`; second
    and higher derivatives are exact, and take one more solve each with the same factor. There is no forward mode. On
    other frameworks w has no derivative.

    Parameters
    ----------
    A : array, shape (m, n) or (b, m, n)
        Real or complex; one matrix, or a stack of b problems.
    y : array, shape (m,) or (m, k); with a stack of A also (b, m) or (b, m, k)
        Targets, k right-hand sides that share A. One vector (m,) is for all problems of a stack.
    lam : float or array, 0-d or (b,)
        Ridge, > 0: one for all problems or one for each, with one A too. Where an array is not > 0, w is NaN.

    Returns
    -------
    array, shape (n,) or (n, k), of a stack (b, n) or (b, n, k)

    Raises
    ------
    ProblemError
        Shapes, dtypes or frameworks that do not fit together, or a number lam that is not > 0.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> A, y = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]), np.array([2.0, 5.0, 1.0])
    >>> np.round(xv.ridge(A, y, 1.0), 12)
    array([1., 2.])

    A head on features, whose ridge is trained too:

    >>> import torch
    >>> lam = torch.tensor(1.0, requires_grad=True)
    >>> w = xv.ridge(torch.from_numpy(A).float(), torch.from_numpy(y).float(), lam)
    >>> w.sum().backward()
    >>> round(float(lam.grad), 4)
    -0.9
    """
    backend = _owner(A, y)
    xp = backend.xp
    real = (xp.real(A) if is_complex(A) else A).dtype
    if isinstance(lam, int | float):
        if not lam > 0:
            raise ProblemError(f"lam must be > 0; got {lam!r}")
        lam = xp.asarray(lam, dtype=real, device=device(A))
    if not is_array(lam) or backends.owner(lam) is not backend or lam.dtype != real or lam.ndim > 1:
        raise ProblemError(f"lam must be a number, or an array like A, {real}, 0-d or (b,); got {described(lam)}")
    vector = y.ndim == 1 or (y.ndim, A.ndim) == (2, 3)
    y = y[..., None] if vector else y
    sizes = {x.shape[0] for x, one in ((A, 2), (y, 2), (lam, 0)) if x.ndim > one}
    if y.ndim > 3 or y.shape[-2] != A.shape[-2] or len(sizes) > 1:
        found = [tuple(x.shape) for x in (A, y[..., 0] if vector else y, lam)]
        raise ProblemError(
            "A, y and lam must have shapes (m, n), (m,) or (m, k), and (); in a stack (b, m, n), (b, m) or (b, m, k), "
            f"and (b,); got {', '.join(map(str, found))}"
        )
    b = max(sizes, default=1)
    A, y = (xp.broadcast_to(as_complex(x, o), (b, *x.shape[-2:])) for x, o in ((A, y), (y, A)))
    lam = xp.broadcast_to(xp.where(lam > 0, lam, xp.full_like(lam, xp.nan)), (b,))
    w = _augmented(backend, True)(A, lam, y)[1]
    w = w[..., 0] if vector else w
    return w if sizes else w[0, ...]


def _owner(A: Array, y: Array) -> Backend:
    """The framework of both, once they are known to be numbers of one precision."""
    for name, x, axes in ("A", A, (2, 3)), ("y", y, (1, 2, 3)):
        if not (is_array(x) and x.ndim in axes and 0 not in x.shape and is_inexact(x)):
            raise ProblemError(f"{name} must be a float array with {axes[0]} to {axes[-1]} axes; got {described(x)}")
    backend = backends.owner(A)
    if backends.owner(y) is not backend or backend.xp.finfo(y.dtype).bits != backend.xp.finfo(A.dtype).bits:
        raise ProblemError(f"A and y must have one framework and precision; got {described(A)} and {described(y)}")
    return backend


@cache
def _augmented(backend: Backend, upper: bool) -> Callable[..., Leaves]:
    """``(A, lam, h) -> (a, b)`` with ``a + A b = f`` and ``A^H a - lam b = g``; h is f where `upper`, else g.

    The other one is 0. The factor follows, or is returned where it is not given. Of ``f = y`` b is w; of ``g = c`` the
    answers ``(A v, -v)`` are those of the adjoint. The system is Hermitian, so that its own solutions (alpha, beta) for
    cotangents of a and b are all that a gradient needs: ``-(alpha b^H + a beta^H)`` is that of A, ``Re beta^H b`` that
    of lam. They are functions of this kind again, and have derivatives in turn. Of a wide A most of beta may be
    orthogonal to b, and ``lam b = A^H a - g`` takes its place.
    """

    def solved(A: Array, lam: Array, h: Array, *factor: Array) -> Leaves:
        m, n = A.shape[-2:]
        xp, solver = namespace_of(A), DualQR() if n > m else QR()
        with backend.scope(dtype_name(lam)):
            # over sqrt(lam) the stacked matrix has the same Q, and every problem of a stack the ridge 1
            root = as_complex(xp.sqrt(lam), A)[:, None, None]
            system = System(Dense(A / root), 1.0, None)
            made = () if factor else solver.factor(backend, system)
            by: Any = QRFactor(*factor, *made)
            right = as_columns(h if upper else h / root)
            if upper and n <= m:
                b = as_column(solver.argmin(backend, system, by, right), by.R) / root
                return h - A @ b, b, *made
            if upper:
                b, r = solver.refine(backend, system, by, right, right, right)  # which needs no w to begin with
                a = -r
            else:
                none = xp.zeros((m, right.shape[1]), dtype=A.dtype, device=device(A))
                found: Any = solver.adjoint(backend, system, by, right, none, right, none)
                a, b = found.q, -found.v
            return as_column(a, by.R), as_column(b, by.R) / root, *made

    def pull(inputs: Leaves, outputs: Leaves, cotangents: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        A, lam, h, *factor = inputs
        a, b, *made = outputs
        if cotangents[0] is None and cotangents[1] is None:
            return tuple(None for _ in inputs)
        bars = [(side, bar) for side, bar in zip((True, False), cotangents, strict=False) if bar is not None]
        parts = zip(*(_augmented(backend, side)(A, lam, bar, *factor, *made) for side, bar in bars), strict=True)
        alpha, beta = map(sum_, parts)
        if A.shape[1] < A.shape[2]:
            top = cotangents[0]
            by_lam = _inner(-alpha if top is None else top - alpha, a)
            by_lam = (by_lam if upper else by_lam - _inner(beta, h)) / lam
        else:
            by_lam = _inner(beta, b)
        return -(alpha @ adjoint(b) + a @ adjoint(beta)), by_lam, alpha if upper else beta, *(None for _ in factor)

    return backend.with_pullback(solved, pull)


def _inner(x: Array, y: Array) -> Array:
    """``Re <x, y>`` of every problem, (b,)."""
    product = conj(x) * y
    return namespace_of(x).sum(namespace_of(x).real(product) if is_complex(product) else product, axis=(1, 2))
