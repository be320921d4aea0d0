"""The seams: what a set, a step rule, a lower-level solver and an algorithm promise.

This module imports nothing from the package. Everything that plugs into a solve is a frozen dataclass derived from
`Struct`, can be built without arguments, and holds parameters only: the state of a solve lives in the solve.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import optree

from xvarpro._namespace import array_namespace, device

Array: TypeAlias = Any  # an array of any framework; the array API standard gives it no nominal type
Tree: TypeAlias = Any  # an array or any nesting of dicts, lists, tuples and named tuples of arrays
Leaves: TypeAlias = tuple[Array, ...]

NAMESPACE = "xvarpro"


class Struct(ABC):  # noqa: B024 - what is abstract is its subclasses' to say
    """A frozen dataclass that the package can take apart into arrays and everything else.

    Compiled backends need the arrays of a problem, a set or a rule as arguments and the rest as a hashable key;
    deriving from `Struct` registers the class with optree so that `trees.partition` finds both.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register: Any = optree.register_pytree_node  # typed for collections, works for any class
        register(cls, _flatten, _unflattener(cls), namespace=NAMESPACE)


def _flatten(obj: Any) -> tuple[tuple[Any, ...], None, tuple[str, ...]]:
    names = tuple(field.name for field in dataclasses.fields(obj))
    return tuple(getattr(obj, name) for name in names), None, names


def _unflattener(cls: type) -> Callable[[None, tuple[Any, ...]], Any]:
    def unflatten(_: None, children: tuple[Any, ...]) -> Any:
        # __init__ validates what a user typed; the children here may be tracers or placeholders
        obj: Any = object.__new__(cls)
        for field, child in zip(dataclasses.fields(cls), children, strict=True):
            object.__setattr__(obj, field.name, child)
        return obj

    return unflatten


class Set(Struct):
    """A compact convex set `C`, reached through its linear minimisation oracle.

    Elementwise sets (`event_ndim == 0`) act on every entry, vector sets (1) on the last axis, matrix sets (2) on the
    last two; all leading axes are batch axes. Inside a solve a vector set constrains the whole leaf it is given,
    flattened: ``over=L1Ball(1.0)`` on a matrix is the entrywise l1 ball, ``over=Columns(L1Ball(1.0))`` one ball per
    column. The inner product is ``Re sum conj(g) v``.
    """

    @property
    def event_ndim(self) -> int:
        """Trailing axes that make one point of the set."""
        return 1

    @property
    def polytope(self) -> bool:
        """Whether the set is the convex hull of finitely many points, all of which `lmo` returns."""
        return False

    @property
    def strictly_convex(self) -> bool:
        """Whether no segment lies in the boundary, as of a Euclidean ball: every face is a point."""
        return False

    @property
    def spectral(self) -> bool:
        """Whether singular values or eigenvalues are what is constrained: a projection decomposes the whole matrix."""
        return False

    @property
    def takes_complex(self) -> bool:
        """Whether points may be complex."""
        return False

    @property
    def compiles(self) -> bool:
        """Whether the oracle runs inside a compiled loop; one that calls a solver on the host does not."""
        return True

    @property
    def has_projection(self) -> bool:
        """Whether `project` is offered."""
        return type(self).project is not Set.project

    @property
    def has_faces(self) -> bool:
        """Whether `away`, `tangent` and `reach` are offered."""
        return type(self).tangent is not Set.tangent

    @abstractmethod
    def lmo(self, g: Array) -> Array:
        """``argmin <g, v> over v in C``. Ties go to the first index; ``lmo(0)`` is feasible and finite."""

    def certified(self, g: Array) -> tuple[Array, Array | None]:
        """``lmo(g)``, and how far ``<g, v>`` may lie above the minimum: batch shape, None where the oracle is exact.

        An inexact oracle under-estimates the Frank-Wolfe gap by at most that much.
        """
        return self.lmo(g), None

    def support(self, g: Array) -> Array:
        """``max <g, v> over v in C``. Batch shape."""
        return self._sum(_real_product(g, self.lmo(-g)))

    def project(self, x: Array) -> Array:
        """Euclidean projection of `x`. A set that offers none leaves this as it is."""
        raise NotImplementedError(f"{type(self).__name__} offers no projection: use a Frank-Wolfe method")

    @abstractmethod
    def diameter(self, like: Array) -> float:
        """Euclidean diameter of the set for an event shaped like `like`; an upper bound where the class says so."""

    @abstractmethod
    def violation(self, x: Array) -> Array:
        """How far `x` is outside, relative to the size of the set; 0 inside. Batch shape."""

    def contains(self, x: Array, tol: float = 1e-9) -> Array:
        """Whether `x` violates the set by at most `tol`, relative to the size of the set. Batch shape, boolean."""
        return self.violation(x) <= tol

    def center(self, like: Array) -> Array:
        """A point in the relative interior, shaped like `like`: the origin unless the set says otherwise."""
        return array_namespace(like).zeros_like(like)

    def random_point(self, like: Array, seed: int = 0) -> Array:
        """A random feasible point shaped like `like`, the same on every framework: a mixture of eight vertices.

        Not uniform: what is uniform on one set has no cheap algorithm on another.
        """
        xp, rng = array_namespace(like), np.random.default_rng(seed)
        shape = (8, *like.shape)
        g: Any = rng.normal(size=shape)
        if xp.isdtype(like.dtype, "complex floating"):
            g = g + 1j * rng.normal(size=shape)
        vertices = self.lmo(xp.asarray(g, dtype=like.dtype, device=device(like)))
        shares = rng.dirichlet(np.ones(8)).reshape(8, *(1,) * like.ndim)
        return xp.sum(xp.asarray(shares, dtype=like.dtype, device=device(like)) * vertices, axis=0)

    # -- faces, for methods that stay inside them ----------------------------------------------------------------------

    def away(self, g: Array, x: Array) -> Array:
        """``argmax <g, v> over v in the smallest face that contains x``: the vertex to leave."""
        raise NotImplementedError(f"{type(self).__name__} does not describe its faces")

    def tangent(self, d: Array, x: Array) -> Array:
        """Orthogonal projection of a direction on those that stay in the affine hull of the smallest face of `x`."""
        raise NotImplementedError(f"{type(self).__name__} does not describe its faces")

    def reach(self, d: Array, x: Array) -> Array:
        """Largest alpha with ``x + alpha d`` in the set, for a direction of `tangent` or towards a vertex. Batch shape;
        inf where the direction is zero.
        """
        raise NotImplementedError(f"{type(self).__name__} does not describe its faces")

    def slide(self, d: Array, x: Array) -> Array | None:
        """Where a way of length 1 from `x` along `d` ends that stays in the smallest face of `x`, and in each face that
        it meets; None where it has to be walked from one to the next, with `tangent` and `reach`.
        """
        return None

    # -- parameters ----------------------------------------------------------------------------------------------------

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise `ProblemError` if a leaf of that shape cannot lie in the set."""

    @classmethod
    def examples(cls, shape: tuple[int, ...]) -> tuple[Set, ...]:
        """Instances for an event of that shape: what the contract suite tests and the documentation measures.

        A class whose parameters depend on the shape, or that has more than one regime, overrides it.
        """
        return (cls(),)

    def _sum(self, x: Array) -> Array:
        """Sum over the axes of an event; over all of them for an elementwise set."""
        axes = tuple(range(-self.event_ndim, 0)) if self.event_ndim else None
        return array_namespace(x).sum(x, axis=axes)


def _real_product(g: Array, v: Array) -> Array:
    """``Re conj(g) v``, entry by entry."""
    xp = array_namespace(g)
    if not xp.isdtype(g.dtype, "complex floating"):
        return g * v
    return xp.real(g) * xp.real(v) + xp.imag(g) * xp.imag(v)


class Operator(Struct):
    """A design ``M``, an m x n matrix that may be known through its products only. `w` and `r` are matrices.

    Arrays may be complex: then so is `w`, `rmatvec` is the conjugate transpose, and inner products are real parts. The
    arrays that make up an operator are its fields: `theta` reaches it through them alone.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """``(m, n)``."""

    @property
    def columns(self) -> int | None:
        """How many right-hand sides the operator is made for, each with a matrix of its own; None for one matrix."""
        return None

    @abstractmethod
    def matvec(self, w: Array) -> Array:
        """``M w``, column by column."""

    def residual(self, w: Array, y: Array) -> Array:
        """``M w - y``."""
        return self.matvec(w) - y

    @abstractmethod
    def rmatvec(self, r: Array) -> Array:
        """``M^H r``, column by column."""

    @abstractmethod
    def outer(self, r: Array, w: Array) -> Operator:
        """Gradient of ``Re <r, M w>`` with respect to the arrays that make up M, in the same structure."""

    @property
    def explicit(self) -> bool:
        """Whether `dense` costs no more than a few products. Without, a level is solved by iteration."""
        return True

    @abstractmethod
    def dense(self) -> Array:
        """M as an array (m, n); as (columns, m, n) where each column has a matrix of its own."""

    def sizes(self) -> Array | None:
        """Sum of the absolute values of every column, shape (n,) or (columns, n): 0 where a unit is dead.

        None where only the dense form would tell, and that is to be avoided.
        """
        if not self.explicit:
            return None
        A = self.dense()
        xp = array_namespace(A)
        return xp.sum(xp.abs(A), axis=-2)

    def solver(self, lam: Any, Omega: Any) -> LowerSolver | None:
        """The solver that fits the structure, for a ridge of that kind; None leaves the choice to `lower.choose`."""
        return None

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        """Instances of exactly that shape around NumPy arrays, one per regime; none where it cannot have the shape.

        What the contract suite tests; a class that names none of any shape is not tested.
        """
        return ()


class Line(NamedTuple):
    """The objective along a feasible direction d from theta, as a step rule sees it.

    A `separable` rule takes gap, dd and cap of shape (blocks,), and gives `phi` an alpha of that shape.
    """

    backend: Any  # for its `while_loop` and `when`
    phi: Callable[[Array], Any]  # alpha -> the objective's `Point` at ``theta + alpha d``
    value: Array  # f(theta)
    gap: Array  # -<grad, d>
    dd: Array  # <d, d>
    cap: Array  # largest step allowed, > 0
    slope: Callable[[Any], Array] | None = None  # `Point` -> <grad, d> there, shaped like `gap`; it costs a gradient


class Search(NamedTuple):
    """What a step rule returns."""

    alpha: Array  # accepted step, 0 if none was found
    point: Any  # the objective's `Point` at the accepted step
    memory: Array  # what the rule carries to the next iteration: its last alpha, its estimate of L, its clock
    n_values: Array  # trial points evaluated
    n_gradients: Array  # gradients that the rule asked for, near rounding


class StepRule(Struct):
    """A rule for the step size alpha along a feasible direction."""

    monotone: ClassVar[bool] = True  # whether an accepted step never raises the objective by more than its rounding
    separable: ClassVar[bool] = False  # whether `search` takes a vector of steps, one per block

    @property
    def uses_curvature(self) -> bool:
        """Whether `init` wants a measured L, which costs a gradient."""
        return False

    def of_block(self, free: bool) -> StepRule:
        """The rule for the free block alone, or for the constrained one: itself, unless its parameters differ."""
        return self

    @abstractmethod
    def init(self, L: Array) -> Array:
        """First memory of the rule, from an estimate `L` of the curvature along the first direction."""

    @abstractmethod
    def search(self, line: Line, memory: Array) -> Search:
        """Choose alpha in (0, cap]; `memory` is what the rule returned last time."""


class System(NamedTuple):
    """What a lower level has to solve: ``min 1/2 |M w - y|^2 + lam/2 |Omega w|^2``; None is the identity."""

    M: Operator
    lam: Any  # a number, or a 0-d array > 0 where the upper level chooses it
    Omega: Any  # an array, an `Operator`, or None

    @property
    def ridged(self) -> bool:
        """Whether there is a ridge, which does not depend on theta."""
        return not isinstance(self.lam, int | float) or self.lam > 0

    @property
    def root(self) -> Any:
        """``sqrt(lam)``; None without a ridge."""
        return self.lam**0.5 if self.ridged else None

    @property
    def weight(self) -> Array | None:
        """Omega as an array."""
        return self.Omega.dense() if isinstance(self.Omega, Operator) else self.Omega


class LowerSolver(Struct):
    """Factors ``H = M^T M + lam Omega^T Omega`` once; answers every question about the lower level from that.

    A factor is a tuple of arrays, so that it can cross a compiled loop.
    """

    exact: ClassVar[bool] = True  # whether answers are right to rounding; what others leave has to be estimated

    @abstractmethod
    def factor(self, backend: Any, system: System) -> Any:
        """Factor the stacked matrix ``[M; sqrt(lam) Omega]``. Never raises: a failure shows as NaN."""

    @abstractmethod
    def argmin(self, backend: Any, system: System, factor: Any, y: Array) -> Array:
        """``w = H^-1 M^T y``."""

    def condense(self, factor: Any) -> Any:
        """The part of a factor that `refine` asks for: a line search carries it from trial to trial."""
        return ()

    def refine(self, backend: Any, system: System, condensed: Any, y: Array, w: Array, r: Array) -> tuple[Array, Array]:
        """`w` and the residual ``r = M w - y`` to the accuracy that the gradient is to have."""
        return w, r

    def near(self, w: Array) -> LowerSolver:
        """The same solver, told the solution or something near it: where that saves work."""
        return self

    @abstractmethod
    def adjoint(self, backend: Any, system: System, factor: Any, c: Array, y: Array, r: Array) -> Adjoint:
        """What the reduced gradient needs of ``v = H^-1 c``; `r` is the lower residual."""

    @abstractmethod
    def deficient(self, backend: Any, factor: Any) -> Array:
        """0-d bool: the lower level has no unique solution to working precision."""

    def truncated(self, factor: Any) -> Array | bool:
        """Whether `argmin` chose among several solutions; its derivative is then not that of one. 0-d bool."""
        return False

    @abstractmethod
    def condition(self, backend: Any, factor: Any) -> Array:
        """2-norm condition number of the matrix that was factored, columns scaled to length 1 where `w` does not depend
        on their units, 0-d.
        """

    def kinks(self, backend: Any, system: System, factor: Any, y: Array) -> Array:
        """Weights at which `argmin` is not differentiable, to working precision; 0-d, whole."""
        xp = array_namespace(y)
        return xp.zeros((), dtype=xp.int32, device=device(y))

    def toward(self, level: Any, separable: bool) -> LowerSolver:
        """The solver for an outer iterate; an inexact one chooses its tolerance by it (`lower.krylov.Iterative`)."""
        return self

    def diagnosis(self, backend: Any, system: System, y: Array) -> Diagnosis:
        """What a report tells of the level: whoever factors nothing needs products with M for it."""
        factor = self.factor(backend, system)
        kinks = self.kinks(backend, system, factor, y)
        return Diagnosis(self.deficient(backend, factor), self.condition(backend, factor), kinks)


class Diagnosis(NamedTuple):
    """Whether the lower level has no unique solution, the condition number, and weights at a kink; 0-d."""

    deficient: Array
    condition: Array
    kinks: Array


class Adjoint(NamedTuple):
    """The lower level's part of the reduced gradient: ``-<dM w - dy, q> - sum <s, dM v> over (s, v) in pairs``.

    A ridge that depends on theta adds ``-dlam <Omega w, Omega v>``.
    """

    q: Array  # M v
    pairs: tuple[tuple[Array, Array], ...]
    v: Array | None = None  # H^-1 c; a solver that does not support a ridge chosen by theta leaves it out


class Counts(NamedTuple):
    """Work done so far, 0-d integer arrays."""

    values: Array
    gradients: Array
    lmos: Array
    projections: Array


class Iterate(NamedTuple):
    """What every algorithm reports after every step."""

    theta: Leaves
    value: Array
    gap_A: Array  # -<grad, d> of the constrained block: its Frank-Wolfe gap, but for `slack`
    gap_B: Array  # dual norm of the gradient of the free block, times the radius of its ball
    alpha_A: Array  # the step just taken, per block; 0 where none was found
    alpha_B: Array
    status: Array  # 0 while running, else a `Status.code`
    counts: Counts
    slack: Any = 0.0  # what inexact oracles and lower levels may hide of the gap; reported as part of it
    lower: Any = ()  # `LowerError` where the lower level is solved inexactly


class LowerError(NamedTuple):
    """What an inexact lower level has left of its residual, and what that does to gradient and gap; 0-d arrays."""

    residual: Array  # relative, of the system for w and of the adjoint one, whichever is larger
    gradient: Array  # estimate of the Euclidean norm of the gradient's error
    slack: Array  # what it may hide of both parts of the gap
    reached: Array  # whether the residual is below the tolerance that was asked for


class Algorithm(Struct):
    """An optimisation method as two pure functions of fixed-shape states.

    A state is any named tuple whose field `iterate` is an `Iterate`. Neither function may branch in Python on the value
    of an array: the same text runs eagerly and inside a compiled loop.
    """

    @property
    def needs_projection(self) -> bool:
        """Whether every set of the region must offer a projection."""
        return False

    @property
    def stochastic(self) -> bool:
        """Whether steps are taken along an estimate of the gradient: then none of them is checked for descent."""
        return False

    @abstractmethod
    def init(self, f: Any, region: Any, theta: Leaves) -> Any:
        """State at `theta`, with value and certificate."""

    @abstractmethod
    def advance(self, f: Any, region: Any, state: Any) -> Any:
        """One iteration."""

    def finish(self, f: Any, region: Any, state: Any) -> Any:
        """The state to report when the iterations have ended: for a method that does not certify every one of them."""
        return state


class SupportsArrays(Protocol):
    """Anything with a shape and a dtype."""

    shape: tuple[int, ...]
    dtype: Any
