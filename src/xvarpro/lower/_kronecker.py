"""Kronecker products, solved by what is known of their factors. None of the solvers takes an Omega."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import REQUIRED, Array
from xvarpro.core.trees import adjoint
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.stack import QRFactor, factored, padded
from xvarpro.operators import Dense, Kronecker


@final
@dataclass(frozen=True)
class Folded(LowerSolver):
    """``A x I``: the level of A, with the right-hand sides of all its copies side by side.

    Parameters
    ----------
    inner : LowerSolver
        Solves the level of A.
    """

    inner: LowerSolver = REQUIRED

    def factor(self, backend: Backend, system: System) -> Any:
        return self.inner.factor(backend, _left(system))

    def argmin(self, backend: Backend, system: System, factor: Any, y: Array) -> Array:
        return _unfold(self.inner.argmin(backend, _left(system), factor, _fold(system, y)), y)

    def refine(
        self, backend: Backend, system: System, factor: Any, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        folded = (_fold(system, x) for x in (y, w, r))
        w, r = self.inner.refine(backend, _left(system), factor, *folded)
        return _unfold(w, y), _unfold(r, y)

    def adjoint(self, backend: Backend, system: System, factor: Any, c: Array, y: Array, w: Array, r: Array) -> Adjoint:
        folded = (_fold(system, x) for x in (c, y, w, r))
        q, pairs, v, coupling = self.inner.adjoint(backend, _left(system), factor, *folded)
        unfolded = tuple((_unfold(s, y), _unfold(x, y)) for s, x in pairs)
        return Adjoint(_unfold(q, y), unfolded, None if v is None else _unfold(v, y), coupling)

    def diagnose(self, backend: Backend, system: System, factor: Any, y: Array) -> Diagnosis:
        return self.inner.diagnose(backend, _left(system), factor, _fold(system, y))


def _left(system: System) -> System:
    M = system.M
    assert isinstance(M, Kronecker)
    return System(Dense(M.A), system.ridge)


def _fold(system: System, x: Array) -> Array:
    M = system.M
    assert isinstance(M, Kronecker)
    return namespace_of(x).reshape(x, (x.shape[0] // M.size, M.size * x.shape[1]))


def _unfold(x: Array, y: Array) -> Array:
    return namespace_of(x).reshape(x, (-1, y.shape[1]))


TwoQR: TypeAlias = tuple[QRFactor, QRFactor]  # of A and of B, with rows of zeros under what is wide


@final
@dataclass(frozen=True)
class KroneckerQR(LowerSolver):
    """``A x B`` without a ridge: ``(QA x QB) (RA x RB)``."""

    def factor(self, backend: Backend, system: System) -> TwoQR:
        left, right = (factored(backend, system, padded(backend, A, max(A.shape))) for A in _factors(system))
        return left, right

    def argmin(self, backend: Backend, system: System, factor: TwoQR, y: Array) -> Array:
        return _triangular(backend, factor, Kronecker(*map(adjoint, _tops(system, factor))).matvec(y))

    def adjoint(
        self, backend: Backend, system: System, factor: TwoQR, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        z = _triangular(backend, factor, c, transpose=True)
        v = _triangular(backend, factor, z)
        return Adjoint(Kronecker(*_tops(system, factor)).matvec(z), ((r, v),), v)

    def diagnose(self, backend: Backend, system: System, factor: TwoQR, y: Array) -> Diagnosis:
        A, B = (part.diagnosis(backend) for part in factor)
        return Diagnosis.of(A.deficient | B.deficient, A.condition * B.condition)


def _tops(system: System, factor: TwoQR) -> tuple[Array, Array]:
    A, B = _factors(system)
    return factor[0].Q[: A.shape[0], :], factor[1].Q[: B.shape[0], :]


def _factors(system: System) -> tuple[Array, Array]:
    M = system.M
    assert isinstance(M, Kronecker)
    assert M.B is not None
    return M.A, M.B


def _triangular(backend: Backend, factor: TwoQR, x: Array, transpose: bool = False) -> Array:
    """``(RA x RB)^-1 x``, or of the adjoint."""
    (_, RA), (_, RB) = factor
    xp, a, b, k = namespace_of(x), RA.shape[0], RB.shape[0], x.shape[1]
    x = backend.solve_triangular(RA, xp.reshape(x, (a, b * k)), transpose=transpose)
    x = xp.reshape(xp.permute_dims(xp.reshape(x, (a, b, k)), (1, 0, 2)), (b, a * k))
    x = backend.solve_triangular(RB, x, transpose=transpose)
    return xp.reshape(xp.permute_dims(xp.reshape(x, (b, a, k)), (1, 0, 2)), (a * b, k))


class TwoSVD(NamedTuple):
    """``A = UA diag(sA) VA^H`` and ``B = UB diag(sB) VB^H``, thin."""

    UA: Array
    sA: Array
    VhA: Array
    UB: Array
    sB: Array
    VhB: Array
    lam: Array

    @property
    def left(self) -> Kronecker:
        """``UA x UB``."""
        return Kronecker(self.UA, self.UB)

    @property
    def right(self) -> Kronecker:
        """``(VA x VB)^H``."""
        return Kronecker(self.VhA, self.VhB)

    @property
    def s(self) -> Array:
        """Singular values of ``A x B``, shape (r, 1), in the order of its factors."""
        xp = namespace_of(self.sA)
        return xp.reshape(xp.expand_dims(self.sA, axis=1) * self.sB, (-1, 1))

    @property
    def damped(self) -> Array:
        """``s^2 + lam``."""
        return self.s**2 + self.lam

    @property
    def spans_rows(self) -> bool:
        """Whether every target is a combination of left singular vectors."""
        return self.left.shape[0] == self.left.shape[1]

    @property
    def spans_columns(self) -> bool:
        """Whether every w is a combination of right singular vectors."""
        return self.right.shape[0] == self.right.shape[1]


@final
@dataclass(frozen=True)
class KroneckerSVD(LowerSolver):
    """``A x B`` with a ridge: singular values of the product are products of those of its factors.

    Where every target can be fitted the dual form is taken, in which lam cancels, as in `DualQR`.
    """

    def factor(self, backend: Backend, system: System) -> TwoSVD:
        (UA, sA, VhA), (UB, sB, VhB) = (backend.svd(A) for A in _factors(system))
        return TwoSVD(UA, sA, VhA, UB, sB, VhB, namespace_of(sA).zeros_like(sA[0]) + system.ridge.lam)

    def argmin(self, backend: Backend, system: System, factor: TwoSVD, y: Array) -> Array:
        return factor.right.rmatvec(factor.s / factor.damped * factor.left.rmatvec(y))

    def refine(
        self, backend: Backend, system: System, factor: TwoSVD, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        # of order lam: a difference would lose it
        return w, -system.ridge.lam * _multiplier(factor, y) if factor.spans_rows else r

    def adjoint(
        self, backend: Backend, system: System, factor: TwoSVD, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        z = factor.right.matvec(c)
        rest = factor.right.rmatvec(factor.lam / factor.damped * z)
        if not factor.spans_columns:
            rest = rest + (c - factor.right.rmatvec(z))
        v = rest / system.ridge.lam
        pair = (-_multiplier(factor, y), rest) if factor.spans_rows else (r, v)
        return Adjoint(factor.left.matvec(factor.s / factor.damped * z), (pair,), v)

    def diagnose(self, backend: Backend, system: System, factor: TwoSVD, y: Array) -> Diagnosis:
        xp = namespace_of(factor.sA)
        large = xp.max(factor.sA) * xp.max(factor.sB)
        small = xp.min(factor.sA) * xp.min(factor.sB)
        if not (factor.spans_rows or factor.spans_columns):
            small = xp.zeros_like(small)
        return Diagnosis.of(xp.isnan(large), xp.sqrt(large**2 + factor.lam) / xp.sqrt(small**2 + factor.lam))


def _multiplier(factor: TwoSVD, y: Array) -> Array:
    """``(M M^H + lam I)^-1 y`` where the left singular vectors span every y."""
    return factor.left.matvec(factor.left.rmatvec(y) / factor.damped)
