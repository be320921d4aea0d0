"""Derivatives for frameworks that have none: the package's own tape over their array-API namespace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from xvarpro.backends import tape
from xvarpro.backends.eager import EagerBackend
from xvarpro.backends.interface import Array, Pullback, Pushforward
from xvarpro.core.namespace import adjoint, device


class TapedBackend(EagerBackend):
    """NumPy, CuPy and array-api-strict."""

    autodiff = "tape"
    digits = 2 / 3
    # where Cholesky QR pays: columns of a tall matrix per row, and entries (benchmarks/overhead.py)
    _aspect, _entries = 4, 2**14

    @abstractmethod
    def index_add(self, x: Array, key: Any, v: Array) -> Array:
        """`x` with `v` added at an integer-array key; repeated indices accumulate; `x` itself is not changed."""

    def vjp(
        self, fun: Callable[..., tuple[Array, ...]], primals: tuple[Array, ...], constants: tuple[Array, ...] = ()
    ) -> tuple[tuple[Array, ...], Pullback]:
        return tape.vjp(fun, primals, constants, xp=self.xp, index_add=self.index_add)

    def jvp(
        self,
        fun: Callable[..., tuple[Array, ...]],
        primals: tuple[Array, ...],
        tangents: tuple[Array, ...],
        constants: tuple[Array, ...] = (),
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        return tape.jvp(fun, primals, tangents, constants, xp=self.xp, index_add=self.index_add)

    def sparse_product(self, rows: Array, columns: Array, data: Array, shape: tuple[int, int], w: Array) -> Array:
        xp = self.xp
        terms = xp.expand_dims(data, axis=1) * xp.take(w, columns, axis=0)
        zeros = xp.zeros((shape[0], w.shape[1]), dtype=terms.dtype, device=device(w))
        return self.index_add(zeros, rows, terms)

    def linearise(
        self, fun: Callable[..., tuple[Array, ...]], primals: tuple[Array, ...], constants: tuple[Array, ...] = ()
    ) -> tuple[tuple[Array, ...], Pushforward]:
        # the transpose of the pull-back, which is linear
        outputs, pullback = tape.vjp(fun, primals, constants, xp=self.xp, index_add=self.index_add)
        zeros = [self.xp.zeros_like(y) for y in outputs]
        return outputs, tape.vjp(lambda *u: pullback(u), zeros, xp=self.xp, index_add=self.index_add)[1]

    def differential(self, fun: Callable[[Array], Array], x: Array) -> Callable[[Array], Array]:
        """By central differences, to ``eps**digits``: no tape records a loop that ends where the values say so."""
        xp = self.xp

        def slope(d: Array) -> Array:
            long = xp.max(xp.abs(d))
            h = xp.finfo(x.dtype).eps ** (1 / 3) * (xp.max(xp.abs(x)) / xp.where(long > 0, long, xp.ones_like(long)))
            h = xp.where(h > 0, h, xp.ones_like(h))
            return (fun(x + h * d) - fun(x - h * d)) / (2 * h)

        return slope

    def curvature(
        self, fun: Callable[..., Array], primals: tuple[Array, ...], constants: tuple[Array, ...] = ()
    ) -> tuple[tuple[Array, ...], Pushforward]:
        n = len(primals)

        def gradient(*arrays: Array) -> tuple[Array, ...]:
            xp = arrays[0].__array_namespace__()  # of the tape that records this gradient
            value, pullback = tape.vjp(fun, arrays[:n], arrays[n:], xp=xp, index_add=self.index_add)
            return pullback(xp.ones_like(value))

        # a Hessian is its own transpose
        return tape.vjp(gradient, primals, constants, xp=self.xp, index_add=self.index_add)

    @abstractmethod
    def householder_qr(self, A: Array) -> tuple[Array, Array]:
        """The framework's own reduced QR factorisation."""

    def qr(self, A: Array) -> tuple[Array, Array]:
        """Cholesky QR twice where A is tall and not too badly conditioned: products instead of reflections.

        The second pass gives what Householder's gives, Q orthogonal and ``Q R - A`` zero to rounding, if the first left
        ``|Q^T Q - I| < 1`` (Yamamoto, Nakatsukasa, Yanagisawa, Fukaya 2015), which is looked at. Here it is three to
        five times as fast, for Householder's panels are products with vectors.
        """
        m, n = A.shape[-2:]
        if A.ndim > 2 or m < self._aspect * n or m * n < self._entries:
            return self.householder_qr(A)
        xp = self.xp
        R = adjoint(self.cholesky(adjoint(A) @ A))
        Q = adjoint(self.solve_triangular(R, adjoint(A), transpose=True))
        gram = adjoint(Q) @ Q
        eye = xp.eye(n, dtype=A.dtype, device=device(A))
        # NaN, from a Gram matrix that is indefinite or overflowed, is not below anything
        if not bool(n * xp.max(xp.abs(gram - eye)) < 0.1):
            return self.householder_qr(A)
        second = adjoint(self.cholesky(gram))
        # near the identity an inverse is as good as a solve, and the product with it leaves Q in row order
        return Q @ self.solve_triangular(second, eye), second @ R
