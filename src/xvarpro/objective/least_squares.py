"""One least-squares level at one theta, ``1/2 |M w - y|^2 + lam/2 |Omega w|^2``: what both objectives are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from xvarpro.core.namespace import array_namespace
from xvarpro.core.struct import Array, Tree
from xvarpro.core.trees import inner, is_array, is_complex, partition, sum_
from xvarpro.lower.interface import Adjoint, System
from xvarpro.operators import Dense, Weighted, as_operator
from xvarpro.operators.interface import Operator
from xvarpro.problem.problem import Level


class LevelOutputs(NamedTuple):
    """What a level's functions returned, or the gradient with respect to it; None for what is constant."""

    M: Any
    y: Array | None
    lam: Array | None


class EvaluatedLevel(NamedTuple):
    """A level with its constants filled in; `y` is a matrix."""

    M: Operator
    y: Array
    lam: Any
    Omega: Any  # an array, an Operator, or None

    @property
    def system(self) -> System:
        """What a lower-level solver is asked to solve."""
        return System(self.M, self.lam, self.Omega)

    def residual(self, w: Array) -> Array:
        """``M w - y``."""
        return self.M.residual(w, self.y)

    def value(self, w: Array, r: Array) -> Array:
        """The level's objective, 0-d."""
        value = 0.5 * inner(r, r)
        return value + self.lam * self.half_ridge(w) if self.system.ridged else value

    def half_ridge(self, w: Array) -> Array:
        """``1/2 |Omega w|^2``, the derivative with respect to lam."""
        Ow = self._weighed(w)
        return 0.5 * inner(Ow, Ow)

    def slope(self, w: Array, r: Array) -> Array:
        """The gradient in w."""
        return self.M.rmatvec(r) + self.ridge(w) if self.system.ridged else self.M.rmatvec(r)

    def ridge(self, w: Array) -> Array:
        """``lam Omega^H Omega w``."""
        return self.lam * (w if self.Omega is None else as_operator(self.Omega).rmatvec(self._weighed(w)))

    def coupling(self, w: Array, v: Array) -> Array:
        """``Re <Omega w, Omega v>``."""
        return inner(self._weighed(w), self._weighed(v))

    def pull(self, stated: LevelOutputs, w: Array, r: Array) -> LevelOutputs:
        """The gradient of the level's objective with respect to what its functions returned, w held."""
        lam = None if stated.lam is None else self.half_ridge(w)
        return LevelOutputs(self.M.outer(r, w), like_target(-r, stated.y), lam)

    def _weighed(self, w: Array) -> Array:
        return w if self.Omega is None else as_operator(self.Omega).matvec(w)


class LowerSolution(NamedTuple):
    """What the gradient is made of: w as accurate as the gradient is to be, residuals there, and the adjoint."""

    w: Array
    r: Array  # of the lower level
    upper_r: Array  # of the upper level: r again for a separable problem
    adjoint: Adjoint | None  # None for a separable problem


def state(level: Level, theta: Tree, data: Tree, weights: Array | None) -> LevelOutputs:
    """Call a level's functions; its weights, and a target that is complex, become part of what they return."""
    M = as_operator(level.M(theta, data))
    y = level.y(theta, data) if callable(level.y) else None
    lam = level.lam(theta, data) if callable(level.lam) else None
    target = level.y if y is None else y
    if isinstance(M, Dense) and is_array(target) and is_complex(target) and not is_complex(M.array):
        M = Dense(array_namespace(M.array).astype(M.array, target.dtype))
    if weights is None:
        return LevelOutputs(M, y, lam)
    root = array_namespace(weights).sqrt(weights)
    return LevelOutputs(weighed(M, root), None if y is None else scaled(y, root), lam)


def weighed(M: Operator, root: Array) -> Operator:
    """M with its rows, or the rows of each right-hand side, scaled."""
    if isinstance(M, Dense) and root.shape[1] == 1 and M.columns is None:
        return Dense(as_kind(root, M.array) * M.array)
    return Weighted(M, root)


def scaled(y: Array, root: Array) -> Array:
    """A target with its rows or entries scaled by a matrix of roots of weights; a vector stays one."""
    xp = array_namespace(y)
    root = as_kind(root, y)
    return root[:, 0] * y if y.ndim == 1 and root.shape[1] == 1 else xp.reshape(root * as_matrix(y), y.shape)


def as_kind(x: Array, like: Array) -> Array:
    """`x` in the dtype of `like`: not every framework multiplies real by complex."""
    return x if x.dtype == like.dtype else array_namespace(x).astype(x, like.dtype)


def fill(level: Level, stated: LevelOutputs) -> EvaluatedLevel:
    """The level with the constants that its functions do not give."""
    target: Any = level.y if stated.y is None else stated.y
    y = as_matrix(target)
    Omega = level.Omega
    if is_complex_design(stated.M):
        y = y if is_complex(y) else complexified(y)
    if is_array(Omega) and is_complex(y):
        Omega = as_kind(Omega, y)
    return EvaluatedLevel(stated.M, y, level.lam if stated.lam is None else stated.lam, Omega)


def is_complex_design(M: Operator) -> bool:
    """Whether any array of a design is complex."""
    return any(is_complex(x) for x in partition(M)[0])


def like_target(s: Array, y: Array | None) -> Array | None:
    """A cotangent in the shape and kind of the target that a user's function returned; None for a constant one."""
    if y is None:
        return None
    xp = array_namespace(s)
    return xp.reshape(xp.real(s) if is_complex(s) and not is_complex(y) else s, y.shape)


def outers(M: Operator, *pairs: tuple[Array, Array]) -> Operator:
    """Gradient of ``sum of Re <r, M w> over (r, w) in pairs`` with respect to the arrays that make up M."""
    terms = [partition(M.outer(r, w)) for r, w in pairs]
    return terms[0][1].fill([sum_(arrays) for arrays in zip(*(arrays for arrays, _ in terms), strict=True)])


def as_matrix(y: Array) -> Array:
    """A target of shape (m,) as (m, 1)."""
    return y if y.ndim == 2 else array_namespace(y).expand_dims(y, axis=1)


def complexified(x: Array) -> Array:
    """A real array as a complex one."""
    xp = array_namespace(x)
    return xp.astype(x, xp.complex64 if x.dtype == xp.float32 else xp.complex128)
