"""A diagonal plus a product of low rank, with a ridge: a QR of the size of the rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

from xvarpro.backends import Backend
from xvarpro.core.namespace import conj, device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.stack import deficient, singular_ratio
from xvarpro.operators import LowRankPlusDiagonal


class LowRankFactor(NamedTuple):
    """``[M; sqrt(lam) I] E^-1`` in parts, ``E = (|d|^2 + lam)^1/2``; see `LowRankQR`."""

    e: Array  # (n, 1)
    c: Array  # d / e
    s: Array  # sqrt(lam) / e
    Q: Array  # of V / e = Q T
    N: Array
    B: tuple[Array, Array]  # its factors


@final
@dataclass(frozen=True)
class LowRankQR(LowerSolver):
    """``M = diag(d) + U V^H`` with a ridge and no Omega, in order ``n r^2``.

    Rotations ``G = [c, -s; s, conj(c)]`` of row j with row n + j turn ``[diag(d); sqrt(lam) I]`` into ``[E; 0]``. With
    ``V / e = Q T`` what is left is ``[I; 0] + G^H [U; 0] T^H Q^H``: the identity outside of the span of Q, inside of it

    ``B = [I + Q^H K1; K2]``, with ``[K1; K2] = G^H [U; 0] T^H``, coupled to the outside by ``N = (I - Q Q^H) K1``.

    B has r columns and is factored by QR. Nothing is squared, and the columns of the stacked matrix are scaled by E.
    """

    def factor(self, backend: Backend, system: System) -> LowRankFactor:
        M = system.M
        assert isinstance(M, LowRankPlusDiagonal)
        U, V = M.U, M.V
        xp = namespace_of(U)
        d = xp.expand_dims(M.d, axis=1)
        e = xp.sqrt(xp.abs(d) ** 2 + system.ridge.lam)
        c, s = d / e, system.ridge.root / e
        Q, T = backend.qr(V / xp.astype(e, V.dtype))
        UT = U @ adjoint(T)
        K1, K2 = conj(c) * UT, -s * UT
        inside = adjoint(Q) @ K1
        B = xp.concat([xp.eye(inside.shape[0], dtype=U.dtype, device=device(U)) + inside, K2])
        return LowRankFactor(e, c, s, Q, K1 - Q @ inside, backend.qr(B))

    def argmin(self, backend: Backend, system: System, factor: LowRankFactor, y: Array) -> Array:
        e, c, s, Q, N, (QB, RB) = factor
        above = conj(c) * y
        inside = adjoint(Q) @ above
        a = backend.solve_triangular(RB, adjoint(QB) @ namespace_of(y).concat([inside, -s * y]))
        return (Q @ a + (above - Q @ inside) - N @ a) / e

    def adjoint(
        self, backend: Backend, system: System, factor: LowRankFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        e, cosine, s, Q, N, (QB, RB) = factor
        z, rank = c / e, Q.shape[1]
        inside = adjoint(Q) @ z
        outside = z - Q @ inside
        b = backend.solve_triangular(RB, inside - adjoint(N) @ outside, transpose=True)
        fitted, a = QB @ b, backend.solve_triangular(RB, b)
        q = cosine * (outside + Q @ fitted[:rank, :]) - s * fitted[rank:, :]
        v = (Q @ a + outside - N @ a) / e
        return Adjoint(q, ((r, v),), v)

    def diagnose(self, backend: Backend, system: System, factor: LowRankFactor, y: Array) -> Diagnosis:
        QB, RB = factor.B
        return Diagnosis.of(deficient(backend, RB, QB.shape[0]), self._condition(backend, factor))

    def _condition(self, backend: Backend, factor: LowRankFactor) -> Array:
        """Of ``[M; sqrt(lam) I] E^-1``."""
        R, N = factor.B[1], factor.N
        (n, rank), xp = N.shape, namespace_of(N)
        if n == rank:
            return singular_ratio(backend, R)
        coupling = backend.qr(N, mode="r")[1]
        one = xp.eye(coupling.shape[0], dtype=N.dtype, device=device(N))
        below = xp.concat([xp.zeros((rank, one.shape[0]), dtype=N.dtype, device=device(N)), R], axis=1)
        return singular_ratio(backend, xp.concat([xp.concat([one, coupling], axis=1), below]))
