"""Preconditioners of iterative solvers: approximations of ``H^-1``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from xvarpro.core import checks
from xvarpro.core.namespace import namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves, Struct, Tree
from xvarpro.core.trees import is_complex
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import System
from xvarpro.lower.normal import random_signs
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
    fun : callable, optional
        ``fun(M, parameters, x)`` -> P x for the operator M at the current theta and x of shape (n, k), written with
        ``xp = xv.array_namespace(x)``. It must be linear in x, Hermitian and positive definite.
        None is the identity: no preconditioner.
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
