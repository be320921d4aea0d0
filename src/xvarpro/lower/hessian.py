"""Systems with the Hessian of a loss, solved by products with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.core.trees import inner
from xvarpro.lower.stack import identity
from xvarpro.operators.interface import Operator

PRODUCTS = 500  # at most, in one system of conjugate gradients; LSMR has a limit of its own


@dataclass(frozen=True)
class Rooted:
    """``B M`` for a loss of rows whose second derivative is ``B^T B``, as `Softmax.root` has it."""

    M: Operator
    u: Array  # (m, k)
    p: Array

    @property
    def columns(self) -> int:
        return self.u.shape[1]

    def root(self, d: Array) -> Array:
        """``B d``."""
        return self.u * (d - namespace_of(d).sum(self.p * d, axis=1, keepdims=True))

    def matvec(self, w: Array) -> Array:
        return self.root(self.M.matvec(w))

    def residual(self, w: Array, y: Array) -> Array:
        return self.matvec(w) - y

    def rmatvec(self, r: Array) -> Array:
        r = self.u * r
        return self.M.rmatvec(r - self.p * namespace_of(r).sum(r, axis=1, keepdims=True))

    @property
    def blocks(self) -> Array:
        """B of every row, (m, k, k)."""
        return self.u[:, :, None] * (identity(self.u) - self.p[:, None, :])


def conjugate_gradients(
    backend: Backend,
    system: Any,
    bend: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    c: Array,
    tol: Any = None,
    limit: int = PRODUCTS,
) -> tuple[Array, Array]:
    """``H^-1 c`` to a relative residual, or to rounding, NaN where that is not reached, and the number of products.

    It is NaN too where H is not positive. The second derivative of the loss is `bend`. The solution is of the range of
    the preconditioner, such as a face of a set; of classes, what H leaves open has no part in it.
    """
    xp = namespace_of(c)
    least = (4 * xp.finfo(c.dtype).eps if tol is None else tol) ** 2
    c = _seen(system, c)

    def product(v: Array) -> Array:
        found: Array = system.back(bend(system.residual(v)), v)
        return found

    def solve(v: Array, r: Array, whole: Array) -> tuple[Array, Array]:
        s = precondition(r)
        rho = inner(r, s)
        n = xp.zeros((), dtype=xp.int32, device=device(rho))

        def going(state: tuple[Array, ...]) -> Array:
            return (state[3] > least * whole) & (state[4] < limit)

        def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
            (v, r), p, rho, n = state[:2], *state[2:]
            q = product(p)
            curved = inner(p, q)
            alpha = rho / xp.where(curved > 0, curved, xp.nan)
            r = _seen(system, r - alpha * q)
            s = precondition(r)
            fresh = inner(r, s)
            return v + alpha * p, r, s + (fresh / positive_or_one(rho)) * p, fresh, n + 1

        found, *_, rho, n = backend.while_loop(going, step, (v, r, s, rho, n))
        reached = xp.abs(rho) <= least * whole if tol is None else rho >= 0
        return xp.where(reached, found, xp.nan), n

    whole = inner(c, precondition(c))
    v, n = solve(0 * c, c, whole)
    if tol is None:  # residuals that are carried along drift
        v, n = solve(v, _seen(system, c - product(v)), whole)
    return _seen(system, v), n


class Shared(NamedTuple):
    """The inverse of a Hessian that all columns of w share."""

    half: Array  # its root
    condition: Array  # of the root, by pivots, 0-d

    def __call__(self, r: Array) -> Array:
        found: Array = self.half.mT @ (self.half @ r)
        return found


def of_weights(backend: Backend, system: Any, h: Array) -> Shared:
    """The inverse of a Hessian with the same curvatures h for all columns, (m, 1)."""
    ridge, xp = system.ridge, namespace_of(h)
    A = system.M.dense()
    rows = xp.sqrt(h) * A
    G = rows.mT @ rows
    n, eps = G.shape[0], xp.finfo(G.dtype).eps
    if ridge.present:
        below = ridge.dense(A)
        G = G + (below.mT @ below if below.ndim == 2 else xp.mean(below.mT @ below, axis=0))
    size = xp.sqrt(positive_or_one(xp.linalg.diagonal(G)))[:, None]
    eye = xp.eye(n, dtype=G.dtype, device=device(G))
    L = backend.cholesky(G / (size * size.mT) + 10 * n * eps * eye)
    share = xp.linalg.diagonal(L)
    # products with the inverse are good enough here, and not every framework has a substitution of one vector
    return Shared(backend.solve_triangular(L, eye, lower=True) / size.mT, xp.max(share) / xp.min(share))


def _seen(system: Any, v: Array) -> Array:
    """Without what the loss of classes does not see: one vector added to all columns, which is 0 in w.

    A ridge of its own for each class sees that.
    """
    ridge = system.ridge
    if system.loss.by_entry or ridge.columns is not None:
        return v
    return v - namespace_of(v).mean(v, axis=1, keepdims=True)
