"""A circulant matrix near ``H = M^H M + lam Omega^H Omega``, for iterative solvers of convolution designs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import REQUIRED, Array, Struct
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import System
from xvarpro.operators import as_operator
from xvarpro.operators.circulant import as_circulant
from xvarpro.operators.convolutions import Convolution, flat, spread
from xvarpro.operators.fourier import Grid, backward, by_parts, complexified, fast, forward, part


@final
@dataclass(frozen=True)
class CirculantPreconditioner(Struct):
    """The inverse of a Hermitian positive definite circulant matrix, by its spectrum; see `circulant_preconditioner`.

    Parameters
    ----------
    spectrum : array, shape (1, *frequencies, columns)
        Eigenvalues, real and > 0; the non-negative frequencies of the last axis where the matrix is real. `columns` is
        1 where all right-hand sides share a matrix.
    grid : tuple of int
        Shape of a column as a signal.
    is_real : bool
        Whether the matrix is.
    """

    spectrum: Array = REQUIRED
    grid: Grid = (1,)
    is_real: bool = True

    def apply(self, r: Array) -> Array:
        """``C^-1 r``, column by column, shape (n, k)."""

        def divided(r: Array) -> Array:
            R = forward(spread(r, self.grid), self.grid, self.is_real)
            return flat(backward(R / self.spectrum, self.grid, self.is_real))

        return by_parts(divided, r) if self.is_real else divided(r)


def circulant_preconditioner(system: System) -> CirculantPreconditioner:
    """The circulant matrix nearest to the Toeplitz matrix that H is, or is but for the borders.

    ``M^H M`` of a full convolution is the Toeplitz matrix of the kernel's autocorrelation; of a valid one it lacks the
    rows that the border cuts off, which is made up for on average. The nearest circulant matrix in the Frobenius norm
    (T. Chan 1988) is positive semidefinite where that one is. For a circulant design it is ``M^H M`` itself.
    Eigenvalues below ``sqrt(eps)`` of the largest are raised to that: a preconditioner has to be definite.

    Parameters
    ----------
    system : System
        Its design one of the convolutions or circulants of `xvarpro.operators`. An `Omega` that is no `Circulant` on
        the grid counts as its root mean square.

    Returns
    -------
    CirculantPreconditioner

    Raises
    ------
    ProblemError
        A design that is no convolution.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro.lower import System
    >>> M = xv.operators.FullConvolution(np.array([1.0, -0.5]), (6,))
    >>> P = xv.lower.circulant_preconditioner(System(M, 0.1, None))
    >>> P.apply(np.ones((6, 1))).shape
    (6, 1)
    """
    M, Omega = system.M, system.Omega
    if not isinstance(M, Convolution):
        raise ProblemError(f"circulant_preconditioner needs a convolution or circulant design, got {type(M).__name__}")
    own = as_circulant(Omega, M)
    real = M.is_real and (own is None or own.is_real)
    eigenvalues = _normal(M, real)
    xp = namespace_of(eigenvalues)
    if system.ridged:
        ridge: Any = 1.0
        if own is not None:
            ridge = xp.abs(own.spectrum(real)) ** 2
        elif Omega is not None:
            ridge = xp.mean(xp.abs(as_operator(Omega).dense()) ** 2) * M.shape[1]
        eigenvalues = eigenvalues + system.lam * ridge
    axes = tuple(range(eigenvalues.ndim - 1))
    largest = xp.max(eigenvalues, axis=axes, keepdims=True)
    floor = xp.finfo(eigenvalues.dtype).eps ** 0.5 * largest
    return CirculantPreconditioner(xp.maximum(eigenvalues, floor), M.grid, real)


def _normal(M: Convolution, real: bool) -> Array:
    """Eigenvalues of the circulant matrix for ``M^H M``."""
    layout = M.layout
    if layout.grid == layout.period:
        X = M.spectrum(real)
        xp = namespace_of(X)
        return xp.sum(xp.abs(X) ** 2, axis=0, keepdims=True)
    kernels = M.blocks
    xp = namespace_of(kernels)
    lengths = tuple(fast(p + n - 1) for p, n in zip(kernels.shape[1:-1], layout.grid, strict=True))
    K = forward(kernels, lengths, real)
    power = xp.sum(xp.abs(K) ** 2, axis=0, keepdims=True)
    lags = backward(complexified(power), lengths, real)
    for axis, (n, length) in enumerate(zip(layout.grid, lengths, strict=True), 1):
        lags = _folded(lags, axis, n, length)
    share = math.prod(
        min(1.0, m / max(n, p)) for m, n, p in zip(layout.rows, layout.grid, kernels.shape[1:-1], strict=True)
    )
    return share * xp.real(forward(lags, layout.grid, real))


def _folded(lags: Array, axis: int, n: int, length: int) -> Array:
    """Along an axis, ``(1 - d/n) a[d] + d/n a[d - n]`` for d from 0 to n - 1."""
    xp = namespace_of(lags)
    ahead, behind = part(lags, axis, 0, n), part(lags, axis, length - n, length)
    real = xp.real(ahead).dtype if xp.isdtype(ahead.dtype, "complex floating") else ahead.dtype
    share = xp.arange(n, dtype=real, device=device(lags)) / n
    share = xp.reshape(share, (*(1,) * axis, n, *(1,) * (lags.ndim - axis - 1)))
    return (1 - share) * ahead + share * behind
