"""Preconditioners of iterative solvers: approximations of ``H^-1``."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from xvarpro.core import checks
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import REQUIRED, Array, Leaves, Struct, Tree
from xvarpro.core.trees import complexified, is_complex
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import System
from xvarpro.lower.normal import random_signs
from xvarpro.operators.circulant import as_circulant
from xvarpro.operators.convolutions import Convolution, flat, signals
from xvarpro.operators.fourier import Grid, backward, by_parts, fast, forward, part
from xvarpro.operators.interface import Operator


class Preconditioner(Struct):
    """A Hermitian positive definite P near ``H^-1``, ``H = M^H M + lam Omega^H Omega``."""

    @abstractmethod
    def prepare(self, system: System, like: Array) -> Leaves:
        """What `apply` needs, once per theta, as a tuple of arrays; `like` has dtype and device of the design."""

    @abstractmethod
    def apply(self, system: System, prepared: Leaves, x: Array) -> Array:
        """``P x``, column by column, shape (n, k)."""


@final
@dataclass(frozen=True)
class Identity(Preconditioner):
    """No preconditioner.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.lower.LSMR(preconditioner=xv.lower.Identity()) == xv.lower.LSMR()
    True
    """

    def prepare(self, system: System, like: Array) -> Leaves:
        return ()

    def apply(self, system: System, prepared: Leaves, x: Array) -> Array:
        return x


@final
@dataclass(frozen=True)
class Jacobi(Preconditioner):
    """The inverse of the diagonal of H: columns are scaled to equal length.

    Where a design is cheap as an array, the lengths of its columns are computed. Of any other they are estimated
    without bias from products with random signs, ``(M^H z)_j^2``: that takes `probes` products, and is right to
    ``sqrt(2 / probes)``, which is enough for columns that differ by orders of magnitude.

    Parameters
    ----------
    probes : int
        >= 1.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> solver = xv.lower.LSMR(preconditioner=xv.lower.Jacobi())
    >>> problem = xv.separable(lambda theta, data: theta, np.ones(3), lam=1e-3, solver=solver)
    """

    probes: int = 16

    def __post_init__(self) -> None:
        checks.whole(self, "probes", 1)

    def prepare(self, system: System, like: Array) -> Leaves:
        M, ridge = system
        diagonal = _squares(M, like, self.probes)
        if ridge.present:
            diagonal = diagonal + ridge.diagonal(diagonal)
        return (1 / positive_or_one(diagonal),)

    def apply(self, system: System, prepared: Leaves, x: Array) -> Array:
        (scale,) = prepared
        return scale * x


@final
@dataclass(frozen=True)
class Given(Preconditioner):
    """A preconditioner as a function of the design and of parameters of its own.

    Parameters
    ----------
    fun : callable
        ``fun(M, parameters, x)`` -> P x for the operator M at the current theta and x of shape (n, k), written with
        ``xp = xv.array_namespace(x)``. It must be linear in x, Hermitian and positive definite.
    parameters : pytree of arrays, optional
        Moved to the backend with the problem.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> P = xv.lower.Given(lambda M, scale, x: scale * x, np.full((2, 1), 0.5))
    >>> problem = xv.separable(lambda theta, data: theta, np.ones(3), solver=xv.lower.LSMR(preconditioner=P))
    """

    fun: Callable[[Operator, Any, Array], Array] | None = None
    parameters: Tree = None

    def __post_init__(self) -> None:
        if self.fun is not None and not callable(self.fun):
            raise ProblemError(f"Given needs a function fun(M, parameters, x) -> P x, got {type(self.fun).__name__}")

    def prepare(self, system: System, like: Array) -> Leaves:
        return ()

    def apply(self, system: System, prepared: Leaves, x: Array) -> Array:
        return x if self.fun is None else self.fun(system.M, self.parameters, x)


def _squares(M: Operator, like: Array, probes: int) -> Array:
    """Squared lengths of the columns of M, real, shape (n, 1), or (n, k) where each right-hand side has its own M."""
    xp = namespace_of(like)
    if M.explicit:
        squares = xp.sum(_square(M.dense()), axis=-2)
        return xp.expand_dims(squares, axis=1) if squares.ndim == 1 else squares.mT
    z = random_signs((M.shape[0], probes), like)
    if M.columns is None:
        return xp.mean(_square(M.rmatvec(z)), axis=1, keepdims=True)
    rows = [_square(M.rmatvec(xp.broadcast_to(z[:, i : i + 1], (M.shape[0], M.columns)))) for i in range(probes)]
    return xp.mean(xp.stack(rows), axis=0)


def _square(x: Array) -> Array:
    """``|x|^2``, entry by entry."""
    xp = namespace_of(x)
    return xp.real(x) ** 2 + xp.imag(x) ** 2 if is_complex(x) else x * x


# -- for convolution designs ------------------------------------------------------------------------------------------


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
            R = forward(signals(r, self.grid), self.grid, self.is_real)
            return flat(backward(R / self.spectrum, self.grid, self.is_real))

        return by_parts(divided, r, self.is_real)


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
    >>> P = xv.lower.circulant_preconditioner(System(M, xv.lower.Ridge(0.1)))
    >>> P.apply(np.ones((6, 1))).shape
    (6, 1)
    """
    M, ridge = system
    if not isinstance(M, Convolution):
        raise ProblemError(f"circulant_preconditioner needs a convolution or circulant design, got {type(M).__name__}")
    own = as_circulant(ridge.Omega, M)
    real = M.is_real and (own is None or own.is_real)
    eigenvalues = _gram_spectrum(M, real)
    xp = namespace_of(eigenvalues)
    if ridge.present and own is not None:
        eigenvalues = eigenvalues + ridge.lam * xp.abs(own.spectrum(real)) ** 2
    elif ridge.present:
        zeros = xp.zeros((M.shape[1], 1), dtype=eigenvalues.dtype, device=device(eigenvalues))
        eigenvalues = eigenvalues + xp.mean(ridge.diagonal(zeros), axis=0, keepdims=True)
    axes = tuple(range(eigenvalues.ndim - 1))
    largest = xp.max(eigenvalues, axis=axes, keepdims=True)
    floor = xp.finfo(eigenvalues.dtype).eps ** 0.5 * largest
    return CirculantPreconditioner(xp.maximum(eigenvalues, floor), M.grid, real)


def _gram_spectrum(M: Convolution, real: bool) -> Array:
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
    lags = backward(complexified(xp.abs(K) ** 2), lengths, real)
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
    share = xp.arange(n, dtype=xp.abs(lags).dtype, device=device(lags)) / n
    share = xp.reshape(share, (*(1,) * axis, n, *(1,) * (lags.ndim - axis - 1)))
    return (1 - share) * ahead + share * behind
