"""A stack of convolutions that share one small unknown kernel, and its lower level by correlations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.core.namespace import array_namespace, device
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.stack import condition_of
from xvarpro.operators.convolutions import Convolution, Layout, drawn
from xvarpro.operators.fourier import Grid, backward, fast


@final
@dataclass(frozen=True)
class StackedConvolution(Convolution):
    """All of the convolutions of N images with one kernel `w`, the images zero outside, above each other.

    ``(M w)[n, i] = sum_j images[n, i - j] w[j]``, of shape ``(N prod(size + kernel - 1), prod(kernel))``: tall.

    Parameters
    ----------
    images : array, shape (N, *size), real
    kernel : tuple of int
        Shape of `w`, one length for each axis of an image.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro_experiments.convolutions import StackedConvolution
    >>> StackedConvolution(np.array([[1.0, 2.0], [0.0, 1.0]]), (2,)).dense()
    array([[1., 0.],
           [2., 1.],
           [0., 2.],
           [0., 0.],
           [1., 0.],
           [0., 1.]])
    """

    images: Array
    kernel: Grid

    def __post_init__(self) -> None:
        if self.images.ndim != 1 + len(self.kernel):
            raise ProblemError(
                f"StackedConvolution needs images of shape (N, *size) and a kernel with a length for each axis, "
                f"got shapes {tuple(self.images.shape)} and {tuple(self.kernel)}"
            )

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[StackedConvolution, ...]:
        """Instances of exactly that shape around NumPy arrays; none where it cannot have the shape."""
        m, n = shape
        return (cls(drawn(2, m // 2 - n + 1), (n,)),) if m % 2 == 0 and m // 2 >= n else ()

    @property
    def layout(self) -> Layout:
        rows = tuple(n + k - 1 for n, k in zip(self.images.shape[1:], self.kernel, strict=True))
        return Layout(tuple(self.kernel), rows, tuple(map(fast, rows)), (0,) * len(rows))

    @property
    def blocks(self) -> Array:
        return self.images[..., None]

    def _holding(self, kernels: Array) -> StackedConvolution:
        return StackedConvolution(kernels[..., 0], self.kernel)


class CorrelationFactor(NamedTuple):
    """``M^T M + lam I = L L^T``."""

    L: Array


@final
@dataclass(frozen=True)
class Correlation(LowerSolver):
    """Normal equations of a `StackedConvolution`, whose matrix is the autocorrelation of the images.

    Two transforms and a Cholesky factorisation of the size of the kernel, where QR would need the dense design: 166000
    rows for a photograph. Errors grow with the square of the condition, which the ridge bounds by
    ``|M|^2 / lam``; a matrix that is not positive definite in working precision is NaN and ends a solve.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro_experiments.convolutions import Correlation, StackedConvolution
    >>> problem = xv.separable(
    ...     lambda u, _: StackedConvolution(u, (2,)), np.arange(4.0), lam=1e-3, solver=Correlation()
    ... )
    >>> value, gradient = xv.value_and_gradient(problem, np.array([[1.0, 0.0, 2.0]]))
    >>> gradient.shape
    (1, 3)
    """

    def factor(self, backend: Any, system: System) -> CorrelationFactor:
        M = system.M
        if not isinstance(M, StackedConvolution) or system.Omega is not None:
            raise ProblemError(
                f"Correlation solves a StackedConvolution with Omega None, got {type(M).__name__} and "
                f"{type(system.Omega).__name__}"
            )
        G = gram(M)
        if system.ridged:
            xp = array_namespace(G)
            G = G + system.lam * xp.eye(G.shape[0], dtype=G.dtype, device=device(G))
        return CorrelationFactor(backend.cholesky(G))

    def argmin(self, backend: Any, system: System, factor: CorrelationFactor, y: Array) -> Array:
        return _solved(backend, factor, system.M.rmatvec(y))

    def adjoint(
        self, backend: Any, system: System, factor: CorrelationFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        v = _solved(backend, factor, c)
        return Adjoint(system.M.matvec(v), ((r, v),), v)

    def diagnose(self, backend: Any, system: System, factor: CorrelationFactor, y: Array) -> Diagnosis:
        xp = array_namespace(factor.L)
        bad = xp.any(xp.isnan(factor.L))
        kappa = condition_of(backend, adjoint(xp.where(bad, xp.ones_like(factor.L), factor.L)))
        return Diagnosis.of(bad, xp.where(bad, xp.full_like(kappa, xp.inf), kappa))


def gram(M: StackedConvolution) -> Array:
    """``M^T M`` as an array, from one autocorrelation."""
    layout, X = M.layout, M.spectrum(True)
    xp = array_namespace(X)
    power = xp.sum(xp.abs(X) ** 2, axis=0, keepdims=True)
    lags = backward(xp.astype(power, X.dtype), layout.period, True)
    index = xp.zeros((1, 1), dtype=xp.int64 if hasattr(xp, "int64") else xp.int32, device=device(X))
    for n, period in zip(layout.grid, layout.period, strict=True):
        i = xp.arange(n, dtype=index.dtype, device=device(X))
        along = (xp.expand_dims(i, axis=1) - i + period) % period
        index = xp.reshape(index, (index.shape[0], 1, index.shape[1], 1)) * period
        index = xp.reshape(index + xp.reshape(along, (1, n, 1, n)), (index.shape[0] * n, index.shape[2] * n))
    size = math.prod(layout.grid)
    return xp.reshape(xp.take(xp.reshape(lags, (-1,)), xp.reshape(index, (-1,))), (size, size))


def _solved(backend: Any, factor: CorrelationFactor, c: Array) -> Array:
    half = backend.solve_triangular(factor.L, c, lower=True)
    return backend.solve_triangular(factor.L, half, lower=True, transpose=True)
