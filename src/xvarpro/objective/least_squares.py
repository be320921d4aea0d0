"""One least-squares level at one theta, ``f(w) = 1/2 |M w - y|^2 + 1/2 <Omega w, lam Omega w>``, and its derivatives.

A penalty on w that its set brings is part of the value; no derivative by what the user's functions return has it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from xvarpro.core.namespace import complex_dtype, namespace_of
from xvarpro.core.struct import Array, Tree
from xvarpro.core.trees import complexified, inner, is_array, is_complex, leaves, map_arrays, partition, sum_
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import NO_RIDGE, Adjoint, Ridge, System
from xvarpro.lower.weight_sets.interface import WeightSet
from xvarpro.operators import BlockDiagonal, Dense, Stacked, Weighted
from xvarpro.operators.interface import Operator, as_operator
from xvarpro.problem.problem import Level, by_block
from xvarpro.problem.whitening import Whitening


class LevelOutputs(NamedTuple):
    """What a level's functions return, or cotangents of that; None for what is constant."""

    M: Any  # an `Operator`; in cotangents the same class, of cotangents of its arrays
    y: Array | None
    lam: Array | None
    Omega: Array | None = None


class EvaluatedLevel(NamedTuple):
    """A level at one theta, constants included: M is m x n, `w` has shape (n, k)."""

    M: Operator
    y: Array  # (m, k)
    ridge: Ridge = NO_RIDGE
    W: WeightSet | None = None  # where w lies, and what it adds
    loss: Any = None  # of `losses.LossLevel`
    weights: Any = 1.0  # of squares they are in M and y already
    start: Any = ()  # of `losses.LossLevel`: a w to begin with

    @property
    def system(self) -> System:
        """The level without its target, as a `LowerSolver` takes it: not every framework multiplies real by complex."""
        mixed = complex_dtype(self.y.dtype) and isinstance(self.M, Dense | BlockDiagonal | Stacked | Weighted)
        return System(map_arrays(complexified, self.M) if mixed else self.M, self.ridge)

    def residual(self, w: Array) -> Array:
        """``r = M w - y``, (m, k)."""
        return self.M.residual(w, self.y)

    def linear(self, w: Array, r: Array) -> EvaluatedLevel:
        """The level of least squares that has its slope and curvature near w."""
        return self

    @property
    def size(self) -> Array:
        """What its value is a small difference of, 0-d."""
        return 0.5 * inner(self.y, self.y)

    def value(self, w: Array, r: Array) -> Array:
        """``f(w)``, 0-d."""
        value = 0.5 * inner(r, r)
        value = value + self.ridge.value(w) if self.ridge.present else value
        return value if self.W is None else value + self.W.penalty(w)

    def slope(self, w: Array, r: Array) -> Array:
        """``grad_w f = M^H r + Omega^H lam Omega w``, (n, k)."""
        return self.M.rmatvec(r) + self.ridge.slope(w) if self.ridge.present else self.M.rmatvec(r)

    def condition(self, w: Array, v: Array) -> Array:
        """``Re <grad_w f, v> = Re <M w - y, M v> + Re <Omega w, lam Omega v>``, 0-d."""
        value = inner(self.residual(w), self.M.matvec(v))
        return value + self.ridge.coupling(w, v) if self.ridge.present else value

    def value_cotangents(self, outputs: LevelOutputs, w: Array, r: Array) -> LevelOutputs:
        """Derivative of ``f(w)`` with respect to what the level's functions return, w held: ``r w^H`` for M."""
        lam = None if outputs.lam is None else 0.5 * self.ridge.by_lam(w, w)
        Omega = None if outputs.Omega is None else 0.5 * self.ridge.by_Omega(w, w)
        return LevelOutputs(self.M.outer(r, w), like_target(-r, outputs.y), lam, Omega)

    def condition_cotangents(self, outputs: LevelOutputs, w: Array, adjoint: Adjoint) -> LevelOutputs:
        """Derivative of ``-Re <grad_w f, v>`` with respect to what the level's functions return, w and v held.

        That is ``-(M v) w^H - r v^H`` for M, ``M v`` for y, and `ridge_cotangents`.
        """
        q, pairs, v, coupling = adjoint
        if v is None and not (outputs.lam is None and outputs.Omega is None):
            raise ProblemError(
                "solver must return v where lam depends on theta; got one that returns M v only. Use xv.lower.QR()"
            )
        lam, Omega = self.ridge_cotangents(outputs, w, v, coupling)
        M = outers(self.M, (-q, w), *((-s, x) for s, x in pairs))
        return LevelOutputs(M, like_target(q, outputs.y), lam, Omega)

    def ridge_cotangents(
        self, outputs: LevelOutputs, w: Array, v: Any, coupling: Array | None = None
    ) -> tuple[Array | None, Array | None]:
        """Those of ``-Re <Omega w, lam Omega v>``, for lam and for Omega."""
        lam = None if outputs.lam is None else -(self.ridge.by_lam(w, v) if coupling is None else coupling)
        return lam, None if outputs.Omega is None else -self.ridge.by_Omega(w, v)


class LowerSolution(NamedTuple):
    """w to the accuracy of the gradient, the residuals there, and the adjoint."""

    w: Array  # (n, k)
    r: Array  # of the lower level, (m, k)
    upper_r: Array  # of the upper level; r again for a separable problem
    adjoint: Adjoint | None  # None for a separable problem


def evaluate_level(level: Level, theta: Tree, data: Tree, weights: Array | Whitening | None) -> LevelOutputs:
    """Call a level's functions; roots of its residual weights, (m, 1) or (m, k), scale what they return."""
    M = as_operator(level.M(theta, data))
    y = level.y(theta, data) if callable(level.y) else None
    ridge = evaluate_ridge(level, theta, data)
    if weights is None or level.loss is not None:
        return LevelOutputs(M, y, *ridge)
    if isinstance(weights, Whitening):
        return LevelOutputs(weights.design(M), None if y is None else weights(y), *ridge)
    if weights.shape[0] != M.shape[0]:
        shape = tuple(getattr(level.y if y is None else y, "shape", weights.shape))
        raise ProblemError(f"M(theta) and y must have the same number of rows; got shapes {M.shape} and {shape}")
    root = namespace_of(weights).sqrt(weights)
    return LevelOutputs(weighted(M, root), None if y is None else scaled(y, root), *ridge)


def evaluate_ridge(level: Level, theta: Tree, data: Tree) -> tuple[Array | None, Array | None]:
    """Lam and Omega of a level's functions, blocks one below the other; None for what is constant."""
    lam: Any = level.lam(theta, data) if callable(level.lam) else None
    Omega: Any = level.Omega(theta, data) if callable(level.Omega) else None
    stacked = level.Omega.blocks if isinstance(level.Omega, Stacked) else ()
    blocks = Omega if isinstance(Omega, list | tuple) else stacked
    if len(blocks) and is_array(lam) and lam.ndim == 1:
        lam = by_block(lam, blocks)
    return lam, namespace_of(Omega[0]).concat(list(Omega)) if isinstance(Omega, list | tuple) else Omega


def ridge_of(level: Level, outputs: LevelOutputs) -> Ridge:
    """That of a level, from its functions where it depends on theta."""
    lam: Any = level.lam if outputs.lam is None else outputs.lam
    return Ridge(lam, level.Omega if outputs.Omega is None else outputs.Omega)


def weighted(M: Operator, root: Array) -> Operator:
    """M with its rows, or the rows of each right-hand side, scaled."""
    if isinstance(M, Dense) and root.shape[1] == 1 and M.columns is None:
        return Dense(root * M.array)
    if isinstance(M, BlockDiagonal) and root.shape[1] == 1:
        return BlockDiagonal([weighted(b, s) for b, s in zip(M.blocks, M.rows(root), strict=True)])
    return Weighted(M, root)


def scaled(y: Array, root: Array) -> Array:
    """A target with its rows or entries scaled by a matrix of roots of weights; a vector stays one."""
    xp = namespace_of(y)
    return root[:, 0] * y if y.ndim == 1 and root.shape[1] == 1 else xp.reshape(root * as_matrix(y), y.shape)


def fill(level: Level, outputs: LevelOutputs) -> EvaluatedLevel:
    """The level with the constants that its functions do not give."""
    target: Any = level.y if outputs.y is None else outputs.y
    y = as_matrix(target)
    if is_complex_design(outputs.M):
        y = complexified(y)
    ridge = ridge_of(level, outputs)
    if outputs.lam is not None:
        # where a ridge is negative the level has no minimum: a step that leads there has no value
        xp = namespace_of(outputs.lam)
        ridge = ridge._replace(lam=xp.where(outputs.lam < 0, xp.full_like(outputs.lam, math.nan), outputs.lam))
    return EvaluatedLevel(outputs.M, y, ridge, level.W)


def is_complex_design(M: Operator) -> bool:
    """Whether any array of a design is complex."""
    if isinstance(M, Dense):
        return complex_dtype(M.array.dtype)
    return any(is_complex(x) for x in leaves(M) if is_array(x))


def like_target(s: Array, y: Array | None) -> Array | None:
    """A cotangent in the shape and kind of the target that a user's function returned; None for a constant one."""
    if y is None:
        return None
    xp = namespace_of(s)
    return xp.reshape(xp.real(s) if is_complex(s) and not is_complex(y) else s, y.shape)


def outers(M: Operator, *pairs: tuple[Array, Array]) -> Operator:
    """Gradient of ``sum of Re <r, M w> over (r, w) in pairs`` with respect to the arrays that make up M."""
    terms = [partition(M.outer(r, w)) for r, w in pairs]
    return terms[0][1].fill([sum_(arrays) for arrays in zip(*(arrays for arrays, _ in terms), strict=True)])


def as_matrix(y: Array) -> Array:
    """A target of shape (m,) as (m, 1)."""
    return y if y.ndim == 2 else y[:, None]
