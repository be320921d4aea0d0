"""LSMR (Fong, Saunders 2011): the lower level by iteration, for designs that are known through their products."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from xvarpro.backends import Backend
from xvarpro.core import checks
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import changed, corner, partition
from xvarpro.errors import ProblemError
from xvarpro.lower._bidiagonal import Basis, advance, begin_fit, begin_solve, condition
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.normal import Normal, norms, products
from xvarpro.lower.preconditioners import Given, Preconditioner


@final
@dataclass(frozen=True)
class LSMR(LowerSolver):
    """Golub-Kahan bidiagonalisation with the least ``|A^H r|`` at every step: the choice for designs known by products.

    One product with M and one with M^H per step. A column ends where ``|M^H (y - M w) - lam Omega^H Omega w|``, in the
    norm of the preconditioner, has fallen by `tol`; the adjoint where ``|c - H v|`` has. By itself the solver takes
    `tol`. Inside a solve the tolerance follows the outer gap: as loose as leaves the gradient with an error of `share`
    of the gap, between `tol` and `loosest`.

    Parameters
    ----------
    tol : float
        Relative residual that the solver takes by itself, and the tightest inside a solve; >= 0.
    limit : int
        Steps at most. A solve that needs more ends with the status `LOWER_LEVEL`.
    preconditioner : Preconditioner
        `Jacobi`, or `Given` for one of the user's; none by default.
    loosest : float
        The largest relative residual inside a solve, < 1.
    share : float
        The part of the outer gap that the error of the lower level may have, in (0, 1).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> problem = xv.separable(lambda theta, data: theta, np.ones(3), lam=1e-3, solver=xv.lower.LSMR())
    """

    exact: ClassVar[bool] = False

    tol: float | Array = 1e-10
    limit: int = 1000
    preconditioner: Preconditioner = field(default_factory=Given)
    loosest: float = 1e-2
    share: float = 0.1
    value_tol: float | Array | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        name = type(self).__name__
        checks.nonnegative(self, "tol")
        checks.nonnegative(self, "loosest")
        if not self.tol <= self.loosest < 1:
            raise ProblemError(f"{name} needs tol <= loosest < 1, got {self.tol!r} and {self.loosest!r}")
        checks.between(self, "share", 0, 1)
        checks.whole(self, "limit", 1)
        if not isinstance(self.preconditioner, Preconditioner):
            raise ProblemError(
                f"{name}: preconditioner must be one such as xv.lower.Jacobi(), got {self.preconditioner!r}"
            )

    def with_tolerance(self, tol: Array | float, separable: bool) -> LSMR:
        """The solver whose errors are a share of the gap where a relative residual of `tol` made one of all of it.

        A value is second order in the error of w where the levels are one function, and first order where they are not:
        there w is solved for to the square of the tolerance, since steps promise a descent of the order of gap^2.
        """
        if isinstance(tol, float):
            tol = min(max(self.share * tol, self.tol), self.loosest)
        else:
            xp = namespace_of(tol)
            least, most = (xp.full_like(tol, x) for x in (self.tol, self.loosest))
            tol = xp.minimum(xp.maximum(self.share * tol, least), most)
        return self.to(tol, tol if separable else tol * tol)

    def to(self, tol: Array | float, value_tol: Array | float) -> LSMR:
        """The solver with other tolerances, of the adjoint and of w."""
        return changed(self, tol=tol, value_tol=value_tol)

    def factor(self, backend: Backend, system: System) -> Leaves:
        """Nothing is factored: what the preconditioner keeps per theta."""
        return self.preconditioner.prepare(system, corner(partition(system.M)[0][0]))

    def normal(self, system: System, factor: Leaves) -> Normal:
        """The normal equations as products, with the preconditioner."""
        return Normal(system, lambda x: self.preconditioner.apply(system, factor, x))

    def argmin(self, backend: Backend, system: System, factor: Leaves, y: Array) -> Array:
        tol = self.tol if self.value_tol is None else self.value_tol
        normal = self.normal(system, factor)
        return self._solve(backend, normal, *begin_fit(normal, y), tol, fits=True)

    def adjoint(
        self, backend: Backend, system: System, factor: Leaves, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        normal = self.normal(system, factor)
        v = self._solve(backend, normal, *begin_solve(normal, c), self.tol, fits=False)
        return Adjoint(system.M.matvec(v), ((r, v),), v)

    def diagnose(self, backend: Backend, system: System, factor: Leaves, y: Array) -> Diagnosis:
        """The condition is a lower bound, by at most 40 steps of the bidiagonalisation.

        No rank is deficient, but for NaN: from a start at 0 the iteration finds the solution of minimum norm.
        """
        found = condition(backend, Normal(system, lambda x: x), y)
        size = namespace_of(y).sum(products(y, y) + norms((system.M.rmatvec(y),)))
        return Diagnosis.of(namespace_of(y).isnan(size), found)

    def _solve(
        self, backend: Backend, normal: Normal, basis: Basis, size: Array, tol: Array | float, *, fits: bool
    ) -> Array:
        """``min |A x - [y; 0]|`` where it `fits`, else ``H x = c``, from the start of the process; x has shape (n, k).

        Columns that have reached the tolerance stay as they are. NaN ends a column, and shows in x.
        """
        xp = namespace_of(size)
        target = xp.maximum(tol + 0 * size, xp.full_like(size, xp.finfo(size.dtype).eps)) * size

        def going(state: tuple[Any, ...]) -> Array:
            return xp.any(state[1] > target) & (state[0] < self.limit)

        def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
            n, norm, x, h, hbar, basis, last, cbar, sbar, zetabar = state
            active = norm > target
            basis, row = advance(normal, basis, fits)
            # the second rotation, of R^H: the letters of Fong and Saunders, whose alphabar is `turned`
            turned = cbar * row.rho
            rhobar = xp.sqrt(turned * turned + row.theta * row.theta)
            hbar = h - sbar * row.rho * row.rho / last * hbar
            cbar, sbar = turned / rhobar, row.theta / rhobar
            zeta, zetabar = cbar * zetabar, -sbar * zetabar
            x = xp.where(active, x + zeta / (row.rho * rhobar) * hbar, x)
            norm = xp.where(active, xp.abs(zetabar), norm)
            h = basis.v - row.theta / row.rho * h
            return n + 1, norm, x, h, hbar, basis, row.rho * rhobar, cbar, sbar, zetabar

        zero, one, x = xp.zeros_like(size), xp.ones_like(size), xp.zeros_like(basis.v)
        clock = xp.zeros((), dtype=xp.int32, device=device(size))
        start = (clock, size, x, basis.v, x, basis, one, one, zero, size)
        _, norm, x, *_ = backend.while_loop(going, step, start)
        sound = xp.isfinite(norm) & xp.isfinite(size)
        return xp.where(sound, x, xp.full_like(x, float("nan")))
