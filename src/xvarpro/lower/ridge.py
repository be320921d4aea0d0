"""The ridge of a level: all that the package knows of `lam` and `Omega`."""

from __future__ import annotations

from typing import Any, NamedTuple

from xvarpro.core.namespace import as_complex, conj, device, is_complex, namespace_of, solve
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint, inner
from xvarpro.operators import as_operator
from xvarpro.operators.interface import Operator


class Ridge(NamedTuple):
    """``1/2 <Omega w, lam Omega w>``, for w of shape (n, k): the rows ``sqrt(lam) Omega w`` of a level, fitted to 0.

    Parameters
    ----------
    lam : float or array
        A number >= 0, or 0-d and > 0: one for all. With two axes, entries >= 0: (n, 1) has one for each row of
        ``Omega w``, which are the weights where Omega is the identity, (1, k) one for each right-hand side, (n, k)
        both. In a batch (b, n, 1) or (b, 1, 1), and Omega an array.
    Omega : array or Operator, shape (n, n), optional
        None is the identity.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> ridge = xv.lower.Ridge(np.array([[4.0], [0.0]]))
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
    def definite(self) -> bool:
        """Whether w is unique for every design: some entries of an array may be 0."""
        return self.lam > 0 if isinstance(self.lam, int | float) else not self.lam.ndim

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

    def dense(self, like: Array) -> Array:
        """``sqrt(lam) Omega`` for matrices like this one, (..., n): (n, n), or (k, n, n) with one for each column."""
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
        lam = self.lam + 0 * like
        return lam if self.array is None else abs(self.array.mT) ** 2 @ lam

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
