"""Sets of matrices given by a set of their singular values or eigenvalues, and the decompositions of such."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np

from xvarpro.backends import registry
from xvarpro.backends.interface import linalg_errors
from xvarpro.backends.transformations import push, with_derivative
from xvarpro.core.namespace import adjoint, conj, device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.sets.interface import Set, check_matrix
from xvarpro.sets.vectors import or_one, real_dtype


class SpectralSet(Set):
    """Matrices on the last two axes whose singular values, or eigenvalues, lie in `spectrum`.

    By the trace inequalities of von Neumann and of Fan the best matrix has the vectors of the gradient, the nearest one
    those of the point.
    """

    event_ndim = 2
    spectral = True
    takes_complex = True
    of_eigenvalues = False

    @property
    @abstractmethod
    def spectrum(self) -> Set:
        """The set of the values, which does not depend on their order."""

    @abstractmethod
    def _decomposed(self, x: Array) -> tuple[Array, Array, Array]:
        """``U, s, Vh`` with ``x = U diag(s) Vh``; s of shape (*batch, values)."""

    def check(self, shape: tuple[int, ...]) -> None:
        check_matrix(self, shape)

    def lmo(self, g: Array) -> Array:
        U, s, Vh = self._decomposed(g)
        return composed(U, self.spectrum.lmo(s), Vh)

    def support(self, g: Array) -> Array:
        return self.spectrum.support(self._decomposed(g)[1])

    def project(self, x: Array) -> Array:
        def nearest(x: Array) -> Array:
            U, s, Vh = self._decomposed(x)
            return composed(U, self.spectrum.project(s), Vh)

        return with_derivative(nearest, self.slope, x)

    def slope(self, x: Array) -> Callable[[Array], Array]:
        """The derivative of `project` at x, a linear map of directions, in divided differences.

        No derivative of singular vectors has a part in it, which equal values do not have. Source:
        Lewis and Sendov, "Nonsmooth analysis of singular values", Set-Valued Analysis 2005.
        """
        xp = namespace_of(x)
        U, s, Vh = self._decomposed(x)
        f, r = self.spectrum.project(s), s.shape[-1]
        eye = xp.eye(r, dtype=s.dtype, device=device(s))
        J = self._bends(s, f, eye)
        own = xp.linalg.diagonal(J)
        # values closer than this have the mean of the derivatives at both, to its square
        near = xp.finfo(s.dtype).eps ** (1 / 3) * xp.max(xp.abs(s), axis=-1)[..., None, None]

        def over(a: Array, b: Array, limit: Array) -> Array:
            apart = xp.abs(b) > near
            return xp.where(apart, a / xp.where(apart, b, xp.ones_like(b)), limit)

        (s_i, s_j), (f_i, f_j), (J_i, J_j) = ((v[..., :, None], v[..., None, :]) for v in (s, f, own))
        mean = 0.5 * (J_i + J_j)
        even, odd = over(f_i - f_j, s_i - s_j, mean - J), over(f_i + f_j, s_i + s_j, mean)
        share = over(f_i, s_i, J_i)  # of directions beyond the vectors

        def along(d: Array) -> Array:
            E = adjoint(U) @ d @ adjoint(Vh)
            H = hermitian(E)
            turned = even * H + xp.sum(J * xp.linalg.diagonal(H)[..., None, :], axis=-1)[..., None] * eye
            if self.of_eigenvalues:
                return U @ turned @ Vh
            left, right = d @ adjoint(Vh) - U @ E, adjoint(U) @ d - E @ Vh
            return U @ (turned + odd * (E - H)) @ Vh + (left * adjoint(share)) @ Vh + U @ (share * right)

        return along

    def _bends(self, s: Array, f: Array, eye: Array) -> Array:
        """The derivative at s of the projection onto the spectrum, which is f: a matrix each."""
        xp, C, r = namespace_of(s), self.spectrum, s.shape[-1]
        if C.polytope and C.has_faces:
            units = xp.reshape(eye, (r, *(1,) * (s.ndim - 1), r)) + xp.zeros_like(s)
            return xp.moveaxis(C.tangent(units, f), 0, -1)
        return xp.stack([push(C.project, s, xp.broadcast_to(eye[j, :], s.shape)) for j in range(r)], axis=-1)

    def diameter(self, like: Array) -> float:
        return self.spectrum.diameter(np.empty(min(like.shape[-2:])))

    def violation(self, x: Array) -> Array:
        return self.spectrum.violation(self._decomposed(x)[1])


def hermitian(x: Array) -> Array:
    """Hermitian part."""
    return 0.5 * x + 0.5 * adjoint(x)


def svd(x: Array) -> tuple[Array, Array, Array]:
    """Thin singular value decomposition ``U, s, Vh``: NaN where a matrix of the batch is not finite, and only there."""
    unit, scale, poison = scaled_matrices(x)
    U, s, Vh = registry.owner(x).svd(unit)
    return U + poison, s * scale[..., 0] + poison[..., 0], Vh + poison


def eigh(x: Array) -> tuple[Array, Array]:
    """Eigenvalues, ascending, and eigenvectors of the Hermitian part of square matrices."""
    xp = namespace_of(x)
    unit, scale, poison = scaled_matrices(x)
    try:
        w, Q = xp.linalg.eigh(hermitian(unit))
    except linalg_errors():  # the iteration did not converge
        return xp.full(x.shape[:-1], xp.nan, dtype=real_dtype(x), device=device(x)), xp.full_like(x, xp.nan)
    return w * scale[..., 0] + poison[..., 0], Q + poison


def polar(x: Array) -> tuple[Array, Array]:
    """The polar factor ``U V^H`` and the singular values; 0 on null directions, whose vectors are arbitrary."""
    xp = namespace_of(x)
    U, s, Vh = svd(x)
    kept = s > xp.max(s, axis=-1, keepdims=True) * (max(x.shape[-2:]) * xp.finfo(s.dtype).eps)
    return composed(U, xp.astype(kept, s.dtype), Vh), s


def scaled_matrices(x: Array) -> tuple[Array, Array, Array]:
    """Matrices over their largest entry, that entry, and a term that is 0, or NaN where one was not finite.

    LAPACK raises on what is not finite, for the whole batch; and not every framework's routine scales by itself.
    """
    xp = namespace_of(x)
    fine = xp.all(xp.isfinite(x), axis=(-2, -1), keepdims=True)
    clean = xp.where(fine, x, xp.zeros_like(x))
    scale = xp.max(xp.abs(clean), axis=(-2, -1), keepdims=True)
    zero = xp.zeros_like(scale)
    return clean / or_one(scale), scale, xp.where(fine, zero, xp.full_like(zero, xp.nan))


def outer(u: Array, v: Array) -> Array:
    """``u v^H`` of vectors on the last axis."""
    xp = namespace_of(u)
    return xp.expand_dims(u, axis=-1) * xp.expand_dims(conj(v), axis=-2)


def composed(U: Array, s: Array, Vh: Array) -> Array:
    """``U diag(s) Vh``."""
    return (U * namespace_of(s).expand_dims(s, axis=-2)) @ Vh
