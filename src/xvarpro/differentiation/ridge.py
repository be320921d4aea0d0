"""Ridge regression as a function: many small problems at once, with derivatives of every order and no theta."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from xvarpro.backends import Backend, registry
from xvarpro.core.checks import described
from xvarpro.core.namespace import (
    adjoint,
    as_complex,
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
from xvarpro.lower import QR, DualQR
from xvarpro.lower.interface import Ridge, System
from xvarpro.lower.stack import QRFactor, as_column, as_columns, stacked
from xvarpro.operators import Dense


def ridge(A: Array, y: Array, lam: float | Array) -> Array:
    """The minimiser of ``1/2 |A w - y|^2 + 1/2 <w, lam w>`` over w, differentiable by A, y and lam.

    One QR of ``[A; sqrt(lam) I]``, or of its dual form where A is wide and all weights have one lam, gives w and its
    gradients, to the accuracy of the lower level of a solve: no square of the condition of A, and in the dual form no
    loss as lam goes to 0. On PyTorch it is a function for ``backward``, `torch.func.grad`, `jacrev` and `vmap`, on JAX
    for `jax.jit`, `grad`, `jacrev` and `vmap`; second and higher derivatives are exact, and take one more solve each
    with the same factor. There is no forward mode. On other frameworks w has no derivative.

    Parameters
    ----------
    A : array, shape (m, n) or (b, m, n)
        Real or complex; one matrix, or a stack of b problems.
    y : array, shape (m,) or (m, k); with a stack of A also (b, m) or (b, m, k)
        Targets, k right-hand sides that share A. One vector (m,) is for all problems of a stack.
    lam : float or array, 0-d or (b,); (n, 1), (1, k), (n, k), or in a stack (b, n, k) with 1 for n or k
        Ridge, > 0: one for all problems or one for each, with one A too. Where an array is not > 0, w is NaN. With two
        axes or three, one for each weight, for each right-hand side, or both, >= 0: an intercept has 0. The rest of A
        must then make w unique.

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
    if not is_array(lam) or registry.owner(lam) is not backend or lam.dtype != real or lam.ndim > 3:
        raise ProblemError(f"lam must be a number, or an array like A, {real}; got {described(lam)}")
    vector = y.ndim == 1 or (y.ndim, A.ndim) == (2, 3)
    y = y[..., None] if vector else y
    lams = xp.where(lam >= 0 if lam.ndim > 1 else lam > 0, lam, xp.full_like(lam, xp.nan))
    lams = lams if lam.ndim > 1 else xp.reshape(lams, (-1, 1, 1) if lam.ndim else (1, 1))
    sizes = {x.shape[0] for x in (A, y, lams) if x.ndim > 2}
    (m, n), k, (of_weights, of_columns) = A.shape[-2:], y.shape[-1], lams.shape[-2:]
    fits = of_weights in (1, n) and of_columns in (1, k)
    if y.ndim > 3 or y.shape[-2] != m or len(sizes) > 1 or not fits:
        found = [tuple(x.shape) for x in (A, y[..., 0] if vector else y, lam)]
        raise ProblemError(
            "A, y and lam must have shapes (m, n), (m,) or (m, k), and (), (n, 1), (1, k) or (n, k); in a stack "
            f"(b, m, n), (b, m) or (b, m, k), and (b,) or (b, n, k); got {', '.join(map(str, found))}"
        )
    b = max(sizes, default=1)
    A, y = (xp.broadcast_to(as_complex(x, o), (b, *x.shape[-2:])) for x, o in ((A, y), (y, A)))
    lams = xp.reshape(xp.broadcast_to(lams.mT, (b, of_columns, of_weights)), (-1, of_weights))
    if of_columns > 1:  # each right-hand side is a problem of its own
        A = xp.reshape(xp.broadcast_to(A[:, None, :, :], (b, k, m, n)), (-1, m, n))
        y = xp.reshape(y.mT, (-1, m, 1))
    w = _augmented(backend, True)(A, lams, y)[1]
    w = xp.reshape(w, (b, k, n)).mT if of_columns > 1 else w
    w = w[..., 0] if vector else w
    return w if sizes else w[0, ...]


def _owner(A: Array, y: Array) -> Backend:
    """The framework of both, once they are known to be numbers of one precision."""
    for name, x, axes in ("A", A, (2, 3)), ("y", y, (1, 2, 3)):
        if not (is_array(x) and x.ndim in axes and 0 not in x.shape and is_inexact(x)):
            raise ProblemError(f"{name} must be a float array with {axes[0]} to {axes[-1]} axes; got {_kind(x)}")
    backend = registry.owner(A)
    if registry.owner(y) is not backend or backend.xp.finfo(y.dtype).bits != backend.xp.finfo(A.dtype).bits:
        raise ProblemError(f"A and y must have one framework and precision; got {_kind(A)} and {_kind(y)}")
    return backend


def _kind(x: Any) -> str:
    return f"{described(x)}, {registry.owner(x).name} {x.dtype}" if is_array(x) else described(x)


@cache
def _augmented(backend: Backend, upper: bool) -> Callable[..., Leaves]:
    """``(A, lam, h) -> (a, b)`` with ``a + A b = f`` and ``A^H a - lam b = g``; h is f where `upper`, else g.

    The other one is 0. The factor follows, or is returned where it is not given. Of ``f = y`` b is w; of ``g = c`` the
    answers ``(A v, -v)`` are those of the adjoint. The system is Hermitian, so that its own solutions (alpha, beta) for
    cotangents of a and b are all that a gradient needs: ``-(alpha b^H + a beta^H)`` is that of A, ``Re beta^H b`` that
    of lam, (b, 1) or by weights (b, n). They are functions of this kind again, and have derivatives in turn. Of a wide
    A with one lam for all weights most of beta may be orthogonal to b, and ``lam b = A^H a - g`` takes its place.
    """

    def is_dual(A: Array, lam: Array) -> bool:
        return A.shape[-1] > A.shape[-2] and lam.shape[-1] == 1

    def solved(A: Array, lam: Array, h: Array, *factor: Array) -> Leaves:
        m, xp, dual = A.shape[-2], namespace_of(A), is_dual(A, lam)
        solver: QR | DualQR = DualQR() if dual else QR()
        with backend.scope(dtype_name(lam)):
            # over sqrt(lam) every problem of a stack has the ridge 1
            root: Any = as_complex(xp.sqrt(lam), A)[:, :, None] if dual else 1.0
            system = System(Dense(A / root), Ridge(1.0)) if dual else System(Dense(A), Ridge(lam.mT))
            made: tuple[Array, ...] = ()
            if not factor:
                made = solver.factor(backend, system) if dual else backend.qr(stacked(backend, A, system.ridge))
            by: Any = QRFactor(*factor, *made)
            right = as_columns(h if upper else h / root)
            if upper and not dual:
                b = as_column(solver.argmin(backend, system, by, right), by.R)
                # next to a large ridge small columns of Q have few digits
                left = adjoint(A) @ (h - A @ b) - lam[:, :, None] * b
                b = b + backend.solve_triangular(by.R, backend.solve_triangular(by.R, left, transpose=True))
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
        if is_dual(A, lam):
            top = cotangents[0]
            by_lam = _inner(-alpha if top is None else top - alpha, a, lam)
            by_lam = (by_lam if upper else by_lam - _inner(beta, h, lam)) / lam
        else:
            by_lam = _inner(beta, b, lam)
        return -(alpha @ adjoint(b) + a @ adjoint(beta)), by_lam, alpha if upper else beta, *(None for _ in factor)

    return backend.with_pullback(solved, pull)


def _inner(x: Array, y: Array, lam: Array) -> Array:
    """``Re <x, y>`` of every problem, or of every row of it, in the shape of lam."""
    xp, product = namespace_of(x), conj(x) * y
    sums = xp.sum(xp.real(product) if is_complex(product) else product, axis=2)
    return sums if lam.shape[1] > 1 else xp.sum(sums, axis=1, keepdims=True)
