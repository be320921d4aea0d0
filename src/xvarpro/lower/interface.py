"""The interface of the solvers of a lower level, and the ridge: all that the package knows of `lam` and `Omega`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

from xvarpro.backends import Backend
from xvarpro.core.namespace import as_complex, conj, device, is_complex, namespace_of, positive_or_one, solve
from xvarpro.core.struct import Array, Struct
from xvarpro.core.trees import adjoint, inner, sum_
from xvarpro.operators.blocks import Stacked
from xvarpro.operators.interface import Operator, as_operator


class Ridge(NamedTuple):
    """``1/2 <Omega w, lam Omega w>``, for w of shape (n, k): the rows ``sqrt(lam) Omega w`` of a level, fitted to 0.

    Parameters
    ----------
    lam : float or array
        A number >= 0, or 0-d and > 0: one for all. With two axes, entries >= 0: (n, 1) has one for each row of
        ``Omega w``, which are the weights where Omega is the identity, (1, k) one for each right-hand side, (n, k)
        both. In a batch (b, n, 1) or (b, 1, 1), and Omega an array.
    Omega : array or Operator, shape (r, n), optional
        None is the identity. Where it is not square, M and Omega together make w unique.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro.lower.interface import Ridge
    >>> ridge = Ridge(np.array([[4.0], [0.0]]))
    >>> float(ridge.value(np.ones((2, 1)))), ridge.slope(np.ones((2, 1)))[:, 0]
    (2.0, array([4., 0.]))
    """

    lam: Any = 0.0
    Omega: Array | Operator | None = None

    @property
    def present(self) -> bool:
        """Whether there is one; an array is one, whatever its values, which may be traced."""
        return not isinstance(self.lam, int | float) or self.lam > 0

    @property
    def uniform(self) -> bool:
        """Whether one number is for all weights and right-hand sides."""
        return isinstance(self.lam, int | float) or not self.lam.ndim

    @property
    def square(self) -> bool:
        """Whether Omega has an inverse, as a square one has; blocks may depend on each other."""
        if self.Omega is None or isinstance(self.Omega, Stacked):
            return self.Omega is None
        return self.Omega.shape[0] == self.Omega.shape[1]

    @property
    def definite(self) -> bool:
        """Whether w is unique for every design: some entries of an array may be 0."""
        certain = self.lam > 0 if isinstance(self.lam, int | float) else not self.lam.ndim
        return certain and self.square

    def height(self, n: int) -> int:
        """The number of its rows, of n weights."""
        return n if self.Omega is None else self.Omega.shape[0]

    @property
    def plain(self) -> bool:
        """Whether it is a number times the identity."""
        return self.Omega is None and self.uniform

    @property
    def columns(self) -> int | None:
        """The number of right-hand sides where each has a ridge of its own; None where they share one."""
        return None if isinstance(self.lam, int | float) or self.lam.shape[-1:] in ((), (1,)) else self.lam.shape[-1]

    @property
    def root(self) -> Any:
        """``sqrt(lam)``."""
        return self.lam**0.5

    def weighted(self, w: Array) -> Array:
        """``Omega w``."""
        if self.Omega is None:
            return w
        return self.Omega.matvec(w) if isinstance(self.Omega, Operator) else as_complex(self.Omega, w) @ w

    def weighted_back(self, u: Array) -> Array:
        """``Omega^H u``."""
        return u if self.Omega is None else as_operator(self.Omega).rmatvec(u)

    def rows(self, w: Array) -> Array:
        """``sqrt(lam) Omega w``, (n, k)."""
        return self.lam**0.5 * self.weighted(w)

    def rows_back(self, u: Array) -> Array:
        """The adjoint of `rows`, ``Omega^H sqrt(lam) u``."""
        return self.weighted_back(self.lam**0.5 * u)

    def slope(self, w: Array) -> Array:
        """The gradient of `value`, ``Omega^H lam Omega w``, (n, k)."""
        return self.weighted_back(self.lam * self.weighted(w))

    def slope_tangent(self, dOmega: Array, w: Array) -> Array:
        """The derivative of `slope` by Omega, along a change of it."""
        moved = self._replace(Omega=dOmega)
        return moved.weighted_back(self.lam * self.weighted(w)) + self.weighted_back(self.lam * moved.weighted(w))

    def value(self, w: Array) -> Array:
        """``1/2 <Omega w, lam Omega w>``, 0-d."""
        return 0.5 * self.coupling(w, w)

    def coupling(self, w: Array, v: Array) -> Array:
        """``Re <Omega w, lam Omega v>``, 0-d."""
        found = self.lam * self.by_lam(w, v)
        return namespace_of(found).sum(found) if found.ndim else found

    def by_lam(self, w: Array, v: Array) -> Array:
        """The derivative of `coupling` with respect to lam, in its shape."""
        a = self.weighted(w)
        b = a if v is w else self.weighted(v)
        if self.uniform:
            return inner(a, b)
        xp, shape = namespace_of(a), self.lam.shape
        product = xp.real(conj(a) * b) if is_complex(a) else a * b
        shared = tuple(i for i, size in enumerate(shape) if size == 1)
        return xp.sum(product, axis=shared, keepdims=True)

    def by_Omega(self, w: Array, v: Array) -> Array:
        """The derivative of `coupling` with respect to Omega, (r, n)."""
        xp, pair = namespace_of(w), (w, v)
        rows = xp.concat([self.lam * self.weighted(x) for x in pair], axis=1)
        Omega: Any = self.Omega
        return as_operator(Omega).outer(rows, xp.concat(pair[::-1], axis=1)).dense()

    def log_det(self, backend: Backend) -> tuple[Array, Array, Array, Array]:
        """``log det B`` of ``B = sqrt(lam) Omega`` on the range of ``B^H``, half of that of ``B^H B``, 0-d.

        Its derivatives by lam, one for each row, (r, 1), and by Omega, (r, n), are those of changes that keep the rank.
        Last X with columns that are 0 or of that range, ``X^H B^H B X`` the identity in the others. Right-hand sides
        share lam, and Omega is given. The rank is that of the rows of Omega where lam is not 0, to working precision,
        whatever the sizes of lam.
        """
        Omega: Any = self.array
        xp, (r, n) = namespace_of(Omega), Omega.shape
        root = xp.sqrt(self.lam + 0 * abs(Omega[:, :1]))
        _, s, Vh = backend.svd(xp.where(root > 0, Omega, xp.zeros_like(Omega)))
        kept = as_complex(xp.astype(s > max(r, n) * xp.finfo(s.dtype).eps * s[0], s.dtype), Omega)
        eye = xp.eye(s.shape[0], dtype=Omega.dtype, device=device(Omega))
        # a direction outside of the range has a row of its own, with determinant 1
        A = backend.placement.concat_rows(kept * ((root * Omega) @ adjoint(Vh)), (1 - kept) * eye)
        Q, R = backend.qr(A)
        inverse = backend.solve_triangular(R, eye)
        slopes = root * (kept * (Q[:r, :] @ adjoint(inverse)) @ Vh)
        by_lam = conj(slopes) * Omega
        by_lam = 0.5 * xp.sum(xp.real(by_lam) if is_complex(Omega) else by_lam, axis=1, keepdims=True)
        found = xp.sum(xp.log(xp.abs(xp.linalg.diagonal(R))))
        return found, by_lam / positive_or_one(root**2), slopes, adjoint(Vh) @ (kept * inverse)

    def dense(self, like: Array) -> Array:
        """``sqrt(lam) Omega`` for matrices like this one, (..., n): (r, n), or (k, r, n) with one for each column."""
        xp, n = namespace_of(like), like.shape[-1]
        Omega = xp.eye(n, dtype=like.dtype, device=device(like)) if self.Omega is None else as_complex(self.array, like)
        root = self.lam**0.5
        return (root if self.columns is None else root.mT[..., None]) * Omega

    @property
    def array(self) -> Array | None:
        """Omega as an array."""
        return self.Omega.dense() if isinstance(self.Omega, Operator) else self.Omega

    def diagonal(self, like: Array) -> Array:
        """The diagonal of ``Omega^H lam Omega``, real, (n, 1) or (n, k); `like` is real, (n, 1) or (n, k)."""
        if self.array is None:
            return self.lam + 0 * like
        return abs(self.array.mT) ** 2 @ (self.lam + 0 * abs(self.array[:, :1]) * like[:1, :])

    def part(self, indices: Array) -> Ridge:
        """That of some of the right-hand sides."""
        if self.columns is None:
            return self
        return self._replace(lam=namespace_of(self.lam).take(self.lam, indices, axis=1))

    # -- for the dual form, in ``Omega w``

    def unweighted(self, x: Array) -> Array:
        """``Omega^-1 x``."""
        return x if self.array is None else solve(namespace_of(x), as_complex(self.array, x), x)

    def unweighted_back(self, c: Array) -> Array:
        """``Omega^-H c``."""
        return c if self.array is None else solve(namespace_of(c), adjoint(as_complex(self.array, c)), c)


NO_RIDGE = Ridge()


class System(NamedTuple):
    """The problem of a lower level, ``min 1/2 |M w - y|^2 + 1/2 <Omega w, lam Omega w>``, but for y."""

    M: Operator
    ridge: Ridge = NO_RIDGE


class Adjoint(NamedTuple):
    """The lower level's part of the reduced gradient: ``-<dM w - dy, q> - sum <s, dM v> over (s, v) in pairs``.

    A ridge that depends on theta adds ``-<Omega w, dlam Omega v>``.
    """

    q: Array  # M v, (m, k)
    pairs: tuple[tuple[Array, Array], ...]  # of shapes (m, k) and (n, k)
    v: Array | None = None  # H^-1 c, (n, k); a solver that does not support a ridge chosen by theta leaves it out
    coupling: Array | None = None  # Re <Omega w, Omega v>, 0-d, where products of w and v lose it: in the dual form


class Volume(NamedTuple):
    """``log det R`` of the stacked ``A = Q R``, less ``log det sqrt(lam)``, and its derivative by M and lam.

    Of matrices with one for each right-hand side, their sum.
    """

    ridge: Ridge
    sizes: Array  # the diagonal of R or the singular values, (n,) or (k, n)
    pair: Callable[[], tuple[Array, Array]]  # (q, p), whose columns have ``sum Re <q, dM p>`` for the derivative by M
    dual: bool = False  # whether ``log |det Omega|`` is taken off as well, and q and p have changed roles in the ridge

    @property
    def stack(self) -> int:
        """How many matrices there are."""
        return self.sizes.shape[0] if self.sizes.ndim > 1 else 1

    def log_det(self) -> Array:
        """0-d."""
        xp, ridge = namespace_of(self.sizes), self.ridge
        total = xp.sum(xp.log(xp.abs(self.sizes)))
        if not ridge.present:
            return total
        lam, each = ridge.lam, 0.5 * self.sizes.shape[-1] * self.stack
        if isinstance(lam, int | float):
            return total - each * math.log(lam)
        xp = namespace_of(lam)
        kept = xp.log(xp.where(lam == 0, 1, lam))  # amplitudes without a ridge are flat
        return -each / math.prod(lam.shape) * xp.sum(kept) + total

    def pairs(self) -> tuple[tuple[Array, Array], ...]:
        """`pair`; of a stack, one for each column of p, of shapes (m, k) and (n, k)."""
        q, p = self.pair()
        if q.ndim == 2:
            return ((q, p),)
        return tuple((q[..., j].mT, p[..., j].mT) for j in range(p.shape[-1]))

    def dof(self) -> Array:
        """``tr H^-1 M^H M``, 0-d: how many amplitudes the data determine, of all right-hand sides."""
        return sum_(self.ridge.by_lam(p, p) if self.dual else inner(q, q) for q, p in self.pairs())

    def by_lam(self, n: int) -> Array:
        """The derivative by lam, in its shape."""
        lam = self.ridge.lam
        if self.ridge.uniform:
            return -0.5 * self.dof() / lam
        found = sum_(self.ridge.by_lam(p, p) for _, p in self.pairs())
        return 0.5 * (found - n * self.stack / math.prod(lam.shape) / lam)


class Diagnosis(NamedTuple):
    """Rank, condition and kinks of a lower level; 0-d arrays."""

    deficient: Array  # bool: no unique solution to working precision
    condition: Array  # 2-norm condition of what was factored, columns of length 1 where w does not depend on units
    kinks: Array  # int: weights at which `argmin` is not differentiable, to working precision
    truncated: Array  # bool: `argmin` chose among several solutions; its derivative is then not that of one

    @classmethod
    def of(cls, deficient: Array, condition: Array) -> Diagnosis:
        """Without kinks, and nothing truncated; a condition that is no number where the rank is deficient is inf."""
        xp = namespace_of(condition)
        none = xp.zeros((), dtype=xp.int32, device=device(condition))
        condition = xp.where(deficient & xp.isnan(condition), xp.full_like(condition, xp.inf), condition)
        return cls(deficient, condition, none, none > 0)


class Condensed(NamedTuple):
    """``|M w - y|^2 + lam |Omega w|^2 = |R w - z|^2 + rest`` for every w, R triangular."""

    R: Array  # (n, n)
    z: Array  # (n, k)
    rest: Array  # 0-d

    def argmin(self, backend: Backend) -> Array:
        """``w = R^-1 z``."""
        return backend.solve_triangular(self.R, self.z)

    def energy(self) -> Array:
        """``1/2 |y|^2``."""
        return 0.5 * (inner(self.z, self.z) + self.rest)


class Accumulation(Struct):
    """A way to condense the rows of a level block by block; a state is a tuple of arrays of fixed shapes."""

    @abstractmethod
    def start(self, ridge: Array, zero: Array) -> Any:
        """No rows yet: `ridge` is ``sqrt(lam) Omega``, or zeros, (n, n); `zero` is zeros, (n, k)."""

    @abstractmethod
    def fold(self, backend: Backend, state: Any, A: Array, y: Array) -> Any:
        """With the rows `A`, (m, n), and `y`, (m, k), added."""

    @abstractmethod
    def merge(self, backend: Backend, a: Any, b: Any) -> Any:
        """The state of the rows of two others."""

    @abstractmethod
    def condensed(self, backend: Backend, state: Any) -> Condensed:
        """What is left when all rows are in."""

    @abstractmethod
    def deficient(self, backend: Backend, R: Array, rows: int) -> Array:
        """0-d bool: the columns of the `rows` rows are dependent to working precision."""

    @abstractmethod
    def noise(self, value: Array, energy: Array | float) -> Array:
        """What rounding leaves open of a value, over eps; `energy` is ``1/2 |y|^2``."""


class LowerSolver(Struct):
    """Factors ``H = M^H M + lam Omega^H Omega`` once per theta, and answers from that for w and for the adjoint.

    M is m x n; a target y has shape (m, k), w and a right-hand side c have shape (n, k). A factor is a tree of arrays:
    it may cross a compiled loop. Nothing raises for the values of arrays: what fails is NaN.
    """

    exact: ClassVar[bool] = True  # right to rounding; where not, the error is estimated
    accumulation: ClassVar[Accumulation | None] = None  # how rows in chunks are condensed; None needs all at once

    @abstractmethod
    def factor(self, backend: Backend, system: System) -> Any:
        """What the other methods share; NaN where no ridge makes the solution unique, and it is not."""

    @abstractmethod
    def argmin(self, backend: Backend, system: System, factor: Any, y: Array) -> Array:
        """``w = H^-1 M^H y``."""

    def tangent(self, backend: Backend, system: System, factor: Any, y: Array, w: Array) -> Callable[[Array], Array]:
        """The derivative of `w`, the `argmin` of y, by its target: a linear function of tangents of that, (m, k)."""
        return partial(self.argmin, backend, system, factor)

    def refine(
        self, backend: Backend, system: System, factor: Any, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        """`w` and ``r = M w - y`` to the accuracy of the gradient, which asks once; trial points of a search do not."""
        return w, r

    @abstractmethod
    def adjoint(self, backend: Backend, system: System, factor: Any, c: Array, y: Array, w: Array, r: Array) -> Adjoint:
        """What the reduced gradient needs of ``v = H^-1 c``; `w` and `r` as from `refine`."""

    def improved(self, backend: Backend, system: System, factor: Any, g: Array, y: Array, w: Array, r: Array) -> Array:
        """`w` after a step by the slope g of the level there, which has the digits of small columns next to a ridge."""
        v = self.adjoint(backend, system, factor, g, y, w, r).v
        return w if v is None else w - v

    def volume(self, backend: Backend, system: System, factor: Any) -> Volume | None:
        """The determinant of what was factored, for marginal likelihoods; None of a solver that does not give it."""
        return None

    @abstractmethod
    def diagnose(self, backend: Backend, system: System, factor: Any, y: Array) -> Diagnosis:
        """Rank, condition and kinks, for the report of a solve."""
