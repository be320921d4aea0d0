"""A leading singular or eigenvector of a large matrix, with an upper bound that holds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from xvarpro.backends import registry
from xvarpro.core import checks
from xvarpro.core.namespace import adjoint, device, namespace_of
from xvarpro.core.struct import Array, Struct
from xvarpro.errors import ProblemError
from xvarpro.sets.interface import RadiusSet, Set
from xvarpro.sets.spectra import SpectralSet, hermitian, outer, scaled_matrices
from xvarpro.sets.vectors import direction, norm, real_dtype, real_inner


class Leading(NamedTuple):
    """An approximate leading vector of an m x n matrix, its value, and an upper bound on the largest value."""

    vector: Array  # (*batch, n), of length 1
    image: Array  # (*batch, m), of length 1: the left singular vector
    value: Array  # batch
    bound: Array  # batch


class _Ritz(NamedTuple):
    """Ritz vectors of a Krylov space of a Hermitian matrix, from which the next one starts, and the leading value."""

    block: Array
    radius: Array  # the largest Ritz value in size
    first: Array  # the largest Ritz value
    rho: Array  # the residual of its vector


@final
@dataclass(frozen=True)
class Lanczos(Struct):
    """Restarted block Lanczos from a fixed start, for the sets whose oracle needs one leading vector.

    Every restart spans a Krylov space of `depth` blocks of `width` vectors from the best Ritz vectors of the last,
    until the residual or the growth of the leading Ritz value is below `tol`. It may stop short of the largest value:
    the gap is then under-estimated, so a certificate adds what may be missing, ``bound - value``. The bound comes from
    Cholesky factorisations of ``mu I - A``, which exist if and only if mu exceeds every eigenvalue of A: one Gram
    matrix of the shorter side and a third of ``n^3`` operations per trial mu, from the Ritz value upwards. It holds up
    to the rounding of a product, for which ``eps (16 bound + 8 |G|_F^2 / sqrt(n))`` is added. A matrix whose shorter
    side is at most ``width * depth`` is decomposed instead. Batches are taken matrix by matrix.

    Parameters
    ----------
    width : int
        Vectors per block, >= 2: clusters up to that size cost nothing extra.
    depth : int
        Blocks per restart, >= 2.
    restarts : int
        The most restarts, >= 1.
    tol : float
        Relative accuracy aimed at, > 0; the bound holds whether it is reached or not.

    Notes
    -----
    Finds : leading singular pair (`NuclearBall`), lowest eigenvector (`Spectraplex`, `UnitSpectrahedron`)
    Cost : some ``2 width depth`` products a restart; a Gram matrix and a Cholesky factorisation a certificate
    When : the shorter side is far above ``width depth``; below that it decomposes

    References
    ----------
    Golub, Luk, Overton, "A block Lanczos method for computing the singular values and corresponding singular vectors of
    a matrix", ACM Transactions on Mathematical Software 7, 1981.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> G = np.diag(0.5 ** np.arange(60.0))
    >>> found = xv.sets.Lanczos().singular(G)
    >>> float(found.value), bool(1 <= found.bound < 1 + 1e-6)
    (1.0, True)
    """

    width: int = 4
    depth: int = 6
    restarts: int = 30
    tol: float = 1e-6

    def __post_init__(self) -> None:
        for name, least in (("width", 2), ("depth", 2), ("restarts", 1)):
            checks.whole(self, name, least)
        checks.between(self, "tol", 0, 1)

    def replaces(self, shape: tuple[int, ...]) -> bool:
        """Whether a matrix of that shape is large enough: its shorter side exceeds the Krylov space."""
        return min(shape[-2:]) > self.width * self.depth

    def singular(self, g: Array, certify: bool = True) -> Leading:
        """Leading singular vectors of matrices for which `replaces` holds; `bound` is NaN without `certify`."""
        return _each(lambda x: self._singular(x, certify), g)

    def eigen(self, g: Array, certify: bool = True) -> Leading:
        """Eigenvector and value, the largest, of the Hermitian part of square matrices for which `replaces` holds."""
        return _each(lambda x: self._eigen(x, certify), g)

    def _singular(self, g: Array, certify: bool) -> Leading:
        xp = namespace_of(g)
        unit, scale, poison = scaled_matrices(g)
        size = scale[0, 0] + poison[0, 0]
        wide = g.shape[0] < g.shape[1]
        G = adjoint(unit) if wide else unit  # the Krylov space is one of the shorter side
        found = self._solve(lambda X: adjoint(G) @ (G @ X), G, G.shape[1])
        x = direction(found.block[:, -1])
        there = G @ x
        value = _norm(there)
        bound = xp.full_like(value, xp.nan)
        if certify:
            bound = xp.maximum(xp.sqrt(self._bound(found, adjoint(G) @ G, _norm(G) ** 2)), value)
        image = direction(there)
        # the roles of the two sides were exchanged for a wide matrix
        v, u = (image, x) if wide else (x, image)
        return Leading(v + poison[0, 0], u + poison[0, 0], value * size, bound * size)

    def _eigen(self, g: Array, certify: bool) -> Leading:
        xp = namespace_of(g)
        unit, scale, poison = scaled_matrices(g)
        size = scale[0, 0] + poison[0, 0]
        A = hermitian(unit)
        found = self._solve(lambda X: A @ X, A, A.shape[0])
        x = direction(found.block[:, -1])
        value = real_inner(x, A @ x, 1)
        bound = xp.full_like(value, xp.nan)
        if certify:
            bound = xp.maximum(self._bound(found, A, _norm(A)), value)
        x = x + poison[0, 0]
        return Leading(x, x, value * size, bound * size)

    def _solve(self, apply: Callable[[Array], Array], like: Array, n: int) -> _Ritz:
        """Restart until the leading Ritz value has settled."""
        xp, dtype = namespace_of(like), real_dtype(like)
        start = np.random.default_rng(0).normal(size=(n, self.width))
        tol = max(self.tol, 16 * float(xp.finfo(dtype).eps))

        def space(block: Array) -> _Ritz:
            blocks = [xp.linalg.qr(block)[0]]
            for _ in range(self.depth - 1):
                K = xp.concat(blocks, axis=1)
                new = apply(blocks[-1])
                new = new - K @ (adjoint(K) @ new)
                blocks.append(xp.linalg.qr(new)[0])
            # once more, all together: a space that A has exhausted must still come with an orthonormal basis
            K = xp.linalg.qr(xp.concat(blocks, axis=1))[0]
            AK = apply(K)
            T = hermitian(adjoint(K) @ AK)
            w, Y = xp.linalg.eigh(T)
            residual = (AK - K @ T) @ Y[:, -1:]
            return _Ritz(K @ Y[:, -self.width :], xp.maximum(-w[0], w[-1]), w[-1], _norm(residual))

        def again(state: tuple[_Ritz, Array, Array]) -> tuple[_Ritz, Array, Array]:
            found, _, n = state
            new = space(found.block)
            return new, new.first - found.first, n + 1

        def going(state: tuple[_Ritz, Array, Array]) -> Array:
            found, growth, n = state
            size = tol * found.radius
            return (found.rho > size) & (growth > 0.01 * size) & (n < self.restarts)

        first = space(xp.asarray(start, dtype=like.dtype, device=device(like)))
        found, _, _ = registry.owner(like).while_loop(going, again, (first, first.radius, xp.ones_like(first.first)))
        return found

    def _bound(self, found: _Ritz, A: Array, size: Array) -> Array:
        """Upper bound on the largest eigenvalue; `size` is a norm of A that no eigenvalue exceeds."""
        eps = namespace_of(size).finfo(size.dtype).eps
        bound = _by_cholesky(A, found.first, found.radius * max(self.tol, 16 * float(eps)), size)
        return bound + eps * (16 * abs(bound) + 8 * size / A.shape[0] ** 0.5)


def _by_cholesky(A: Array, lowest: Array, step: Array, ceiling: Array) -> Array:
    """The first of ``lowest + step 4^k`` that exceeds every eigenvalue of A, or `ceiling` if that is reached before."""
    xp, backend = namespace_of(A), registry.owner(A)
    eye = xp.eye(A.shape[0], dtype=A.dtype, device=device(A))

    def exceeds(mu: Array) -> Array:
        L = backend.cholesky(mu * eye - A)
        # NaN, where there is no factor, is not finite
        return xp.all(xp.isfinite(L))

    def trial(step: Array) -> tuple[Array, Array, Array]:
        mu = lowest + step
        over = mu >= ceiling
        mu = xp.where(over, ceiling, mu)
        return step, mu, over | exceeds(mu)

    step = xp.where(step > 0, step, xp.finfo(step.dtype).eps * ceiling)
    _, mu, _ = backend.while_loop(lambda state: ~state[2], lambda state: trial(4 * state[0]), trial(step))
    return mu


def _each(fun: Callable[[Array], Leading], g: Array) -> Leading:
    """`fun` on every matrix of a batch."""
    xp = namespace_of(g)
    if g.ndim == 2:
        return fun(g)
    batch = g.shape[:-2]
    if 0 in batch:
        value = xp.abs(g[..., 0, 0])
        return Leading(g[..., 0, :], g[..., :, 0], value, value)
    flat = xp.reshape(g, (-1, *g.shape[-2:]))
    parts = zip(*(fun(flat[i, ...]) for i in range(flat.shape[0])), strict=True)
    return Leading(*(xp.reshape(xp.stack(list(x)), (*batch, *x[0].shape)) for x in parts))


def _norm(x: Array) -> Array:
    """Euclidean norm of all entries, 0-d."""
    return norm(namespace_of(x).reshape(x, (-1,)))[0]


@dataclass(frozen=True)
class LeadingSet(RadiusSet, SpectralSet):
    """A set whose oracle needs one leading vector, of large matrices from `solver`."""

    radius: float = 1.0
    solver: Lanczos | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.solver is None or isinstance(self.solver, Lanczos)):
            raise ProblemError(f"{type(self).__name__}: solver must be None or Lanczos(...), got {self.solver!r}")

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        return cls(), cls(2.5)

    @abstractmethod
    def _leading(self, solver: Lanczos, g: Array, certify: bool = True) -> Leading:
        """The leading vector of matrices that are not decomposed."""

    def _solver(self, g: Array) -> Lanczos | None:
        return self.solver if self.solver is not None and self.solver.replaces(g.shape) else None

    def lmo(self, g: Array) -> Array:
        solver = self._solver(g)
        return SpectralSet.lmo(self, g) if solver is None else self._vertex(self._leading(solver, -g, certify=False))

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        solver = self._solver(g)
        if solver is None:
            return self.lmo(g), None
        found = self._leading(solver, -g)
        return self._vertex(found), self._most(found.bound) - self._most(found.value)

    def support(self, g: Array) -> Array:
        solver = self._solver(g)
        return SpectralSet.support(self, g) if solver is None else self._most(self._leading(solver, g).bound)

    def _vertex(self, found: Leading) -> Array:
        """The vertex for the gradient whose negative has that leading vector."""
        xp = namespace_of(found.value)
        weight = self.spectrum.lmo(-xp.expand_dims(found.value, axis=-1))
        return xp.expand_dims(weight, axis=-1) * outer(found.image, found.vector)

    def _most(self, value: Array) -> Array:
        """`support` of matrices with that leading value."""
        return self.spectrum.support(namespace_of(value).expand_dims(value, axis=-1))
