"""The lower level in a set of faces, or with a penalty of kinks: the face by pivoting, the adjoint within it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from xvarpro.backends import Backend
from xvarpro.core import trees
from xvarpro.core.namespace import as_complex, device, namespace_of, positive_or_one
from xvarpro.core.struct import Array
from xvarpro.core.trees import adjoint_product, changed, is_array
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, System
from xvarpro.lower.stack import QRFactor, as_column, as_columns, condition_of, factored, padded, stacked
from xvarpro.lower.weight_sets._pivoting import (
    Box,
    Equation,
    Inverses,
    Inverter,
    Solution,
    is_worth_a_guess,
    nearly,
    pivot,
    product,
)
from xvarpro.operators.interface import Dense

SHORT = 1e-10  # w is refined where the machine epsilon is larger, as in float32
LARGEST = 2**28  # entries of the dense form of a structured design: 2 GiB, and its QR takes a few times that
FEW = 64  # right-hand sides at most for which it is: a step costs about what the solution did


class Scaled(NamedTuple):
    """A level, condensed to a triangle, in units in which its columns have length 1."""

    R: Array  # (n, n), or (k, n, n) with one for each right-hand side
    z: Array  # ``Q^T`` times the target, (n, k)
    lengths: Array  # of the columns, (n, 1) or (n, k)


class Face(NamedTuple):
    """The linear level that is left on a face of w, in units in which columns have length 1."""

    X: Inverses
    lengths: Array
    b: Array | None  # ``X^T a`` of the equation of the set

    def along(self, t: Array) -> Array:
        """What the equation leaves of ``Q^T`` times a target."""
        if self.b is None:
            return t
        xp, b = namespace_of(t), self.b
        return t - b * (xp.sum(b * t, axis=0) / xp.sum(b * b, axis=0))

    def solve(self, t: Array) -> Array:
        return self.X.solve(t) / self.lengths


class OnFace(LowerSolver):
    """One QR and pivoting on its triangle (see `_pivoting`).

    On the free entries F of a column of w the minimiser is that of an unconstrained level with the columns F of M, and
    so are its derivative and the adjoint: ``v_F = (H_FF)^-1 c_F``, 0 elsewhere. Accurate to ``eps cond(M)``.
    """

    @abstractmethod
    def solution(self, backend: Backend, level: Scaled) -> tuple[Array, Array]:
        """The minimiser and which of its entries are free, (n, k) each."""

    @abstractmethod
    def free(self, w: Array) -> Array:
        """Which entries of a minimiser are free."""

    @abstractmethod
    def kinks(self, backend: Backend, level: Scaled, y: Array) -> Array:
        """Entries of w, (n, k) of bool, which leave their face, or enter another, whichever way the target moves."""

    def equation(self, level: Scaled) -> Equation:
        """What the set asks of a column besides bounds: ``<a, u> = t`` for u = lengths w, with a (n, k), t (k,)."""
        return ()

    @property
    @abstractmethod
    def separable(self) -> bool:
        """Whether the set is a product of sets for the entries of w."""

    @abstractmethod
    def of_rows(self, rows: Callable[[Array], Array]) -> OnFace:
        """The solver for some rows of w, as `rows` takes them from an array, (n, k), where the set is separable."""

    def factor(self, backend: Backend, system: System) -> QRFactor:
        m, n = system.M.shape
        if m * n > LARGEST and not isinstance(system.M, Dense):
            raise ProblemError(
                f"W needs M(theta) as a matrix of {LARGEST} entries at most; got a {type(system.M).__name__} of shape "
                f"({m}, {n}). Leave out W, or make theta of the unknowns, with their set in over=; of a convolution "
                "the known kernel is then the weights, W=xv.lower.Fixed"
            )
        return factored(backend, system, _real(stacked(backend, system.M.dense(), system.ridge)))

    def argmin(self, backend: Backend, system: System, factor: QRFactor, y: Array) -> Array:
        return as_complex(self.weights(backend, factor.R, _projected(backend, factor, y))[0], y)

    def weights(self, backend: Backend, R: Array, z: Array) -> tuple[Array, Array]:
        """W for a triangle R, or a stack with one for as many columns each, and ``Q^T`` times the target, (n, k).

        And which of its entries are free.
        """
        return self.solution(backend, _scaled(R, z))

    def slope(self, w: Array) -> Array | float:
        """Of what the set adds to the squares, at a minimiser."""
        return 0.0

    def refine(
        self, backend: Backend, system: System, factor: QRFactor, y: Array, w: Array, r: Array
    ) -> tuple[Array, Array]:
        """In single precision by a step of Newton on the face, so that r does not round as w does."""
        if namespace_of(w).finfo(w.dtype).eps < SHORT or w.shape[1] > FEW or system.ridge.present:
            return w, r
        step: Any = self.adjoint(backend, system, factor, system.M.rmatvec(r) + self.slope(w), y, w, r).v
        return w - step, r - system.M.matvec(step)

    def adjoint(
        self, backend: Backend, system: System, factor: QRFactor, c: Array, y: Array, w: Array, r: Array
    ) -> Adjoint:
        face = self._face(backend, factor, y, w)
        c = namespace_of(c).real(c) if trees.is_complex(c) else c
        t = face.along(face.X.adjoint(c / face.lengths))
        v = as_complex(face.solve(t), y)
        q = _complex(as_columns(factor.Q @ as_column(t, factor.R)), y)[: y.shape[0], :]
        return Adjoint(q, ((r, v),), v)

    def tangent(
        self, backend: Backend, system: System, factor: QRFactor, y: Array, w: Array
    ) -> Callable[[Array], Array]:
        face = self._face(backend, factor, y, w)
        return lambda dy: as_complex(face.solve(face.along(_projected(backend, factor, dy))), dy)

    def _face(self, backend: Backend, factor: QRFactor, y: Array, w: Array) -> Face:
        level = _scaled(factor.R, _projected(backend, factor, y))
        free = self.free(namespace_of(w).real(w) if trees.is_complex(w) else w)
        X = Inverter(backend, level.R)(level.R, free)
        equation = self.equation(level)
        return Face(X, level.lengths, X.adjoint(equation[0]) if equation else None)

    def diagnose(self, backend: Backend, system: System, factor: QRFactor, y: Array) -> Diagnosis:
        xp = namespace_of(factor.R)
        kinks = self.kinks(backend, _scaled(factor.R, _projected(backend, factor, y)), y)
        count = xp.sum(xp.astype(kinks, xp.int32), dtype=xp.int32)
        return factor.diagnosis(backend)._replace(kinks=count)


@final
@dataclass(frozen=True)
class InBox(OnFace):
    """``lower <= w <= upper``, entry by entry, and the sum of every column `total` where that is given.

    Parameters
    ----------
    lower, upper : number or array, shape (n,), (n, 1) or (n, k)
    total : float, optional
        > 0, for nonnegative w without upper bounds.
    """

    lower: Array | float = 0.0
    upper: Array | float = float("inf")
    total: Array | float | None = None

    numbers = ("total",)

    @property
    def separable(self) -> bool:
        return self.total is None

    def of_rows(self, rows: Callable[[Array], Array]) -> InBox:
        lower, upper = (rows(_column(x, x)) if is_array(x) else x for x in (self.lower, self.upper))
        return changed(self, lower=lower, upper=upper)

    def equation(self, level: Scaled) -> Equation:
        if self.total is None:
            return ()
        xp, z = namespace_of(level.z), level.z
        return xp.broadcast_to(1 / level.lengths, z.shape), xp.zeros_like(z[0, :]) + self.total

    def free(self, w: Array) -> Array:
        return (w > _column(self.lower, w)) & (w < _column(self.upper, w))

    def improved(
        self, backend: Backend, system: System, factor: QRFactor, g: Array, y: Array, w: Array, r: Array
    ) -> Array:
        """By pivoting anew: entries are held by their own slope too."""
        xp, R = namespace_of(w), factor.R
        w, g = (xp.real(x) if trees.is_complex(x) else x for x in (w, g))
        z = product(R, w) - as_columns(backend.solve_triangular(R, as_column(g, R), transpose=True))
        return as_complex(self.weights(backend, R, z)[0], y)

    def solution(self, backend: Backend, level: Scaled) -> tuple[Array, Array]:
        solution, xp = self._pivoted(backend, level), namespace_of(level.z)
        w = solution.x / level.lengths
        lower, upper = self._bounds(level)
        held = xp.where(solution.high, upper, lower)
        w = xp.where(solution.free, xp.minimum(xp.maximum(w, lower), upper), held)
        if self.total is not None:  # to the last bits, which columns of very different lengths take from it
            w = w * (self.total / xp.sum(w, axis=0))
        return _ended(w, solution), solution.free

    def kinks(self, backend: Backend, level: Scaled, y: Array) -> Array:
        """Entries at a bound, or as near as rounding can tell, whose multiplier is 0 as nearly."""
        solution, box = self._pivoted(backend, level), self._box(level)
        xp = namespace_of(level.z)
        off = xp.minimum(solution.x - box.lower, box.upper - solution.x)
        small, smaller = _roundings(backend, level, solution.x, y)
        return (off <= small) & (box.lower < box.upper) & (xp.abs(solution.gradient) <= smaller)

    def _pivoted(self, backend: Backend, level: Scaled) -> Solution:
        """By pivoting from what is free at a first guess."""
        box, xp = self._box(level), namespace_of(level.z)
        if not is_worth_a_guess(box):
            free = xp.ones_like(box.z, dtype=xp.bool)
            return pivot(backend, box, free, ~free)
        u = nearly(backend, box.R, box.z, lambda u, step: box.nearly_nearest(u))
        return pivot(backend, box, (u > box.lower) & (u < box.upper), u >= box.upper)

    def _bounds(self, level: Scaled) -> tuple[Array, Array]:
        return _column(self.lower, level.lengths), _column(self.upper, level.lengths)

    def _box(self, level: Scaled) -> Box:
        xp = namespace_of(level.z)
        lower, upper = (xp.broadcast_to(level.lengths * bound, level.z.shape) for bound in self._bounds(level))
        return Box(level.R, level.z, lower, upper, self.equation(level))


@final
@dataclass(frozen=True)
class Lasso(OnFace):
    """``min 1/2 |M w - y|^2 + lam/2 |Omega w|^2 + alpha |w|_1``, by its dual, which is a problem between bounds.

    With ``g = H w - M^H y`` the minimiser has ``|g_i| <= alpha``, and any w_i but 0 has ``g_i = -alpha sign w_i``:
    these are the conditions of ``min 1/2 |R^-T g + z|^2 over |g| <= alpha``, whose multipliers are w.

    Parameters
    ----------
    alpha : float
        > 0.
    nonnegative : bool
        w >= 0 besides.
    """

    alpha: Array | float = 1.0
    nonnegative: bool = False

    numbers = ("alpha",)

    @property
    def separable(self) -> bool:
        return True

    def of_rows(self, rows: Callable[[Array], Array]) -> Lasso:
        return self

    def free(self, w: Array) -> Array:
        return w != 0

    def slope(self, w: Array) -> Array:
        return self.alpha * namespace_of(w).sign(w)

    def solution(self, backend: Backend, level: Scaled) -> tuple[Array, Array]:
        xp, (R, z, lengths) = namespace_of(level.z), level
        weight = xp.broadcast_to(self.alpha / lengths, z.shape)
        eye = xp.broadcast_to(xp.eye(R.shape[-1], dtype=R.dtype, device=device(R)), R.shape)
        dual = _scaled(backend.solve_triangular(R, eye).mT, -z)
        bound = dual.lengths * weight
        top = xp.full_like(bound, xp.inf) if self.nonnegative else bound
        box = Box(dual.R, dual.z, -bound, top)
        if is_worth_a_guess(box):
            u = nearly(backend, R, z, lambda u, step: self._shrunk(u, step * weight))
        else:
            u = xp.zeros_like(z)
        solution = pivot(backend, box, u == 0, u < 0)
        free, sign = ~solution.free, xp.where(solution.high, -xp.ones_like(z), xp.ones_like(z))
        X = Inverter(backend, R)(R, free)
        u = X.solve(z - X.adjoint(sign * weight))
        w = xp.where(free & (sign * u > 0), u / lengths, xp.zeros_like(u))
        return _ended(w, solution), free

    def kinks(self, backend: Backend, level: Scaled, y: Array) -> Array:
        """Entries at 0, or as near as rounding can tell, whose slope is one of its extremes as nearly."""
        xp, (R, z, lengths) = namespace_of(level.z), level
        u = lengths * self.solution(backend, level)[0]
        small, smaller = _roundings(backend, level, u, y)
        slope = product(R.mT, product(R, u) - z)
        slack = self.alpha / lengths + (slope if self.nonnegative else -xp.abs(slope))
        return (xp.abs(u) <= small) & (xp.abs(slack) <= smaller)

    def _shrunk(self, u: Array, by: Array) -> Array:
        xp = namespace_of(u)
        zero = xp.zeros_like(u)
        return xp.maximum(u - by, zero) + (zero if self.nonnegative else xp.minimum(u + by, zero))


def _scaled(R: Array, z: Array) -> Scaled:
    xp = namespace_of(R)
    if R.ndim == 3 and R.shape[0] < z.shape[1]:
        R = xp.repeat(R, z.shape[1] // R.shape[0], axis=0)
    lengths = positive_or_one(xp.sqrt(xp.sum(R * R, axis=-2, keepdims=True)))
    return Scaled(R / lengths, z, lengths.mT if R.ndim == 2 else lengths[:, 0, :].mT)


def _roundings(backend: Backend, level: Scaled, u: Array, y: Array) -> tuple[Array, Array]:
    """What rounding may leave of an entry of u, and of a multiplier."""
    xp = namespace_of(u)
    sizes = (xp.max(xp.abs(x), axis=0) for x in (u, y))
    small = (100 * level.R.shape[-1] * xp.finfo(level.R.dtype).eps) * trees.sum_(sizes)
    return condition_of(backend, level.R) * small, small


def _ended(w: Array, solution: Solution) -> Array:
    """w, NaN where pivoting has not ended."""
    xp = namespace_of(w)
    unsolved = ~xp.all(xp.isfinite(solution.x), axis=0)
    return xp.where(unsolved, xp.asarray(xp.nan, dtype=w.dtype, device=device(w)), w)


def _column(bound: Array | float, like: Array) -> Array:
    """A bound as (n, 1) or (n, k)."""
    if isinstance(bound, int | float):
        return namespace_of(like).full_like(like, bound)
    return bound if bound.ndim == 2 else namespace_of(bound).expand_dims(bound, axis=1)


# -- complex numbers: w is real, so that real and imaginary parts are rows ---------------------------------------------


def _real(A: Array) -> Array:
    xp = namespace_of(A)
    return xp.concat([xp.real(A), xp.imag(A)], axis=-2) if trees.is_complex(A) else A


def _projected(backend: Backend, factor: QRFactor, y: Array) -> Array:
    """``Q^T`` times the target."""
    Q, R = factor
    y = _real(padded(backend, y, Q.shape[-2] // 2)) if trees.is_complex(y) else y
    return as_columns(adjoint_product(Q[..., : y.shape[0], :], as_column(y, R)))


def _complex(x: Array, like: Array) -> Array:
    """Inverse of `_real` where `like` is complex."""
    if not trees.is_complex(like):
        return x
    half = x.shape[0] // 2
    return trees.complexified(x[:half, :]) + 1j * trees.complexified(x[half:, :])
