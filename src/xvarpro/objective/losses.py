"""A level with a loss at one theta, ``f(w) = loss(M w, y) + 1/2 <Omega w, lam Omega w>``, and its derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.core.trees import inner
from xvarpro.lower.interface import Adjoint
from xvarpro.lower.newton import LossSystem, Rooted
from xvarpro.lower.stack import as_one, joined
from xvarpro.objective.least_squares import EvaluatedLevel, LevelOutputs, like_target, outers


def apart(loss: Any, w: Array) -> Array:
    """Columns (k, c) that span the rows of w: of classes those that sum to 0, which a ridge of all classes asks for."""
    k, xp = w.shape[1], namespace_of(w)
    V = np.eye(k)
    return xp.asarray(V if loss.by_entry else np.linalg.qr(V[:, 1:] - 1 / k)[0], dtype=w.dtype, device=device(w))


class LossLevel(EvaluatedLevel):
    """As `EvaluatedLevel`, with the prediction ``z = M w`` wherever that has a residual."""

    @property
    def system(self) -> Any:
        return LossSystem(self.M, self.loss, self.y, self.ridge, self.weights, self.start)

    def residual(self, w: Array) -> Array:
        return self.M.matvec(w)

    def fitted(self, z: Array) -> Array:
        return z

    def value(self, w: Array, z: Array) -> Array:
        value = self.loss.value(z, self.y, self.weights) * self.loss.unit**2
        return value + self.ridge.value(w) if self.ridge.present else value

    def slope(self, w: Array, z: Array) -> Array:
        found: Array = self.system.back(self.loss.slope(z, self.y, self.weights), w)
        return found

    def condition(self, w: Array, v: Array) -> Array:
        value = inner(self.loss.slope(self.M.matvec(w), self.y, self.weights), self.M.matvec(v))
        return value + self.ridge.coupling(w, v) if self.ridge.present else value

    def value_cotangents(self, outputs: LevelOutputs, w: Array, z: Array) -> LevelOutputs:
        lam = None if outputs.lam is None else 0.5 * self.ridge.by_lam(w, w)
        s = self.loss.slope(z, self.y, self.weights)
        y = None if outputs.y is None else like_target(self._by_target(z), outputs.y)
        return LevelOutputs(self.M.outer(s, w), y, lam)

    def condition_cotangents(self, outputs: LevelOutputs, w: Array, adjoint: Adjoint) -> LevelOutputs:
        """Derivative of ``-<grad_w f, v>``: ``-(S M v) w^H - s v^H`` for M, with slope s and second derivative S."""
        z, v, q = self.M.matvec(w), adjoint.v, adjoint.q
        assert v is not None
        s, turned = self.loss.slope(z, self.y, self.weights), self.loss.bend(z, self.y, self.weights)(q)
        lam = None if outputs.lam is None else -self.ridge.by_lam(w, v)
        y = None if outputs.y is None else like_target(-self._by_target(z, q), outputs.y)
        return LevelOutputs(outers(self.M, (-turned, w), (-s, v)), y, lam)

    def _by_target(self, z: Array, *q: Array) -> Array:
        """The derivative by y of the loss, or of its slope along q, as the framework takes it."""

        def fun(y: Array, *rest: Array) -> tuple[Array]:
            z, *q = rest
            if q:
                return (inner(self.loss.slope(z, y, self.weights), *q),)
            return (self.loss.value(z, y, self.weights) * self.loss.unit**2,)

        outputs, pull = backends.owner(z).vjp(fun, (self.y,), (z, *q))
        return pull((namespace_of(outputs[0]).ones_like(outputs[0]),))[0]

    def linear(self, w: Array, z: Array) -> EvaluatedLevel:
        loss, given = self.loss, (z, self.y, self.weights)
        if loss.by_entry:
            system, y = self.system.squares(z, loss.scoring(*given))
            return EvaluatedLevel(system.M, y, self.ridge, self.W)
        M: Any = Rooted(self.M, *loss.root(*given))
        return EvaluatedLevel(M, M.root(z) - loss.slope(*given) / positive_or_one(M.u), self.ridge)

    def step(self, w: Array, z: Array, curvature: Any) -> tuple[Array, Array]:
        """Rows and target of a Newton step from w with the derivatives at predictions z, as one column (`joined`)."""
        B, s = self.system.roots(z, curvature)
        off = (B @ (z - self.M.matvec(w))[:, :, None])[:, :, 0]
        return joined(self.M.dense(), B @ apart(self.loss, w)), as_one(off - s, w.shape[1])

    @property
    def size(self) -> Array:
        """What its value is a small difference of, 0-d."""
        return namespace_of(self.y).sum(self.loss.sizes(self.y, self.weights)) * self.loss.unit**2
