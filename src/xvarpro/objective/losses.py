"""A level with a loss at one theta, ``f(w) = loss(M w, y) + 1/2 <Omega w, lam Omega w>``, and its derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from xvarpro.backends import registry
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint_product, inner
from xvarpro.lower.hessian import Rooted
from xvarpro.lower.interface import Adjoint, System
from xvarpro.lower.stack import as_one, identity, joined
from xvarpro.objective.least_squares import EvaluatedLevel, LevelOutputs, like_target, outers
from xvarpro.operators import Dense, Weighted

Curvature: TypeAlias = Callable[[Array, Array, Any], Array]  # of predictions, targets and weights


def apart(loss: Any, w: Array) -> Array:
    """Columns (k, c) that span the rows of w: of classes those that sum to 0, which a ridge of all classes asks for."""
    k, xp = w.shape[1], namespace_of(w)
    V = np.eye(k)
    return xp.asarray(V if loss.by_entry else np.linalg.qr(V[:, 1:] - 1 / k)[0], dtype=w.dtype, device=device(w))


class LossLevel(EvaluatedLevel):
    """As `EvaluatedLevel`, with the prediction ``z = M w`` wherever that has a residual; what `Newton` solves."""

    @property
    def system(self) -> Any:
        return self

    @property
    def rowwise(self) -> Array | None:
        """M where it is one matrix for a loss of rows: sums over these want predictions column by column in memory."""
        return None if self.loss.by_entry or not isinstance(self.M, Dense) or self.M.columns else self.M.array

    def residual(self, w: Array) -> Array:
        A = self.rowwise
        return self.M.matvec(w) if A is None else (w.mT @ A.mT).mT

    def value(self, w: Array, z: Array) -> Array:
        value = self.loss.value(z, self.y, self.weights) * self.loss.unit**2
        return value + self.ridge.value(w) if self.ridge.present else value

    def at(self, w: Array) -> tuple[Array, Array]:
        """The value at w, and predictions."""
        z = self.residual(w)
        return self.value(w, z), z

    def by_prediction(self, z: Array) -> Array:
        """The slope of the loss alone, (m, k)."""
        slope: Array = self.loss.slope(z, self.y, self.weights)
        return slope

    def back(self, s: Array, w: Array) -> Array:
        """``M^T s + Omega^T lam Omega w``, (n, k): where s is the slope of the loss at w, that of the level."""
        A = self.rowwise
        g = self.M.rmatvec(s) if A is None else adjoint_product(s, A).mT
        return g + self.ridge.slope(w) if self.ridge.present else g

    def slope(self, w: Array, z: Array) -> Array:
        return self.back(self.by_prediction(z), w)

    def condition(self, w: Array, v: Array) -> Array:
        value = inner(self.by_prediction(self.residual(w)), self.residual(v))
        return value + self.ridge.coupling(w, v) if self.ridge.present else value

    # -- the level of least squares near predictions z, whose minimiser ends a Newton step

    def squares(self, z: Array, curvature: Curvature) -> tuple[System, Array]:
        """With curvatures as `Loss.second` has them, and the target: it has the gradient of the loss."""
        xp, h = namespace_of(z), curvature(z, self.y, self.weights)
        root = xp.sqrt(h)
        return System(Weighted(self.M, root), self.ridge), root * z - self.by_prediction(z) / positive_or_one(root)

    def roots(self, z: Array, curvature: Curvature) -> tuple[Array, Array]:
        """Matrices (m, k, k) of rows, B with a second derivative ``B^T B``, and slopes ``B^-T s``, (m, k)."""
        given = z, self.y, self.weights
        u, p = (namespace_of(z).sqrt(curvature(*given)), 0 * z) if self.loss.by_entry else self.loss.root(*given)
        return Rooted(self.M, u, p).blocks, self.by_prediction(z) / positive_or_one(u)

    def joined(self, z: Array, curvature: Curvature) -> tuple[System, Array]:
        """As `squares`, for one column that has all of w; the rows of the ridge are among the others."""
        (B, s), A, xp = self.roots(z, curvature), self.M.dense(), namespace_of(z)
        rows, y = joined(A, B), as_one((B @ z[:, :, None])[:, :, 0] - s, z.shape[1])
        if self.ridge.present:
            below = joined(self.ridge.dense(A), identity(z))
            rows, y = xp.concat([rows, below]), xp.concat([y, 0 * below[:, :1]])
        return System(Dense(rows)), y

    def step(self, w: Array, z: Array, curvature: Curvature) -> tuple[Array, Array]:
        """Rows and target of a Newton step from w with the derivatives at predictions z, as one column (`joined`)."""
        B, s = self.roots(z, curvature)
        off = (B @ (z - self.M.matvec(w))[:, :, None])[:, :, 0]
        return joined(self.M.dense(), B @ apart(self.loss, w)), as_one(off - s, w.shape[1])

    def linear(self, w: Array, z: Array) -> EvaluatedLevel:
        if self.loss.by_entry:
            system, y = self.squares(z, self.loss.scoring)
            return EvaluatedLevel(system.M, y, self.ridge, self.W)
        M: Any = Rooted(self.M, *self.loss.root(z, self.y, self.weights))
        return EvaluatedLevel(M, M.root(z) - self.by_prediction(z) / positive_or_one(M.u), self.ridge)

    # -- derivatives by what the functions return

    def value_cotangents(self, outputs: LevelOutputs, w: Array, z: Array) -> LevelOutputs:
        lam = None if outputs.lam is None else 0.5 * self.ridge.by_lam(w, w)
        y = None if outputs.y is None else like_target(self._by_target(z), outputs.y)
        Omega = None if outputs.Omega is None else 0.5 * self.ridge.by_Omega(w, w)
        return LevelOutputs(self.M.outer(self.by_prediction(z), w), y, lam, Omega)

    def condition_cotangents(self, outputs: LevelOutputs, w: Array, adjoint: Adjoint) -> LevelOutputs:
        """Derivative of ``-<grad_w f, v>``: ``-(S M v) w^H - s v^H`` for M, with slope s and second derivative S."""
        z, v, q = self.residual(w), adjoint.v, adjoint.q
        assert v is not None
        turned = self.loss.bend(z, self.y, self.weights)(q)
        lam, Omega = self.ridge_cotangents(outputs, w, v)
        y = None if outputs.y is None else like_target(-self._by_target(z, q), outputs.y)
        return LevelOutputs(outers(self.M, (-turned, w), (-self.by_prediction(z), v)), y, lam, Omega)

    def _by_target(self, z: Array, *q: Array) -> Array:
        """The derivative by y of the loss, or of its slope along q, as the framework takes it."""

        def fun(y: Array, *rest: Array) -> tuple[Array]:
            z, *q = rest
            if q:
                return (inner(self.loss.slope(z, y, self.weights), *q),)
            return (self.loss.value(z, y, self.weights) * self.loss.unit**2,)

        outputs, pull = registry.owner(z).vjp(fun, (self.y,), (z, *q))
        return pull((namespace_of(outputs[0]).ones_like(outputs[0]),))[0]

    @property
    def size(self) -> Array:
        """What its value is a small difference of, 0-d."""
        return namespace_of(self.y).sum(self.loss.sizes(self.y, self.weights)) * self.loss.unit**2
