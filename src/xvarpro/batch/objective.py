"""The reduced objectives of a batch, with their gradients and Gauss-Newton matrices, all problems at once.

The formulas are those of ``docs/mathematics.md``. Derivatives of `w` along a direction of theta come from the factors,

``dw = -R^-1 (R^-H dM^H r + Q^H (dM w - dy))``,

so that the residual's whole Jacobian (Golub, Pereyra 1973) costs one tangent of the user's functions per entry of
theta, whatever the number of problems. Vectors over rows lie along the last axis: see `batch.small`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from xvarpro.backends import Backend
from xvarpro.backends.failures import model_failures
from xvarpro.backends.interface import linalg_errors
from xvarpro.batch import small
from xvarpro.batch.small import Factor
from xvarpro.core import trees
from xvarpro.core.namespace import complex_dtype, complexified, device, namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import is_complex
from xvarpro.lower.interface import Ridge
from xvarpro.objective.gauss_newton import Local
from xvarpro.objective.in_memory import check_same
from xvarpro.problem.problem import Level, Problem
from xvarpro.problem.samples import plain
from xvarpro.problem.whitening import Whitening
from xvarpro.sets.region import Region

ADVICE = (
    "In a batch it is given leaves of theta with one entry per problem along the first axis; what has one in data, "
    "too, must be marked, xv.Each(array); xv.many.lifted makes a batch of functions of one problem"
)


class Outputs(NamedTuple):
    """What the user's functions return, or their tangents; None for what does not depend on theta."""

    M_L: Any = None
    y_L: Any = None
    M_U: Any = None
    y_U: Any = None
    R: Any = None


class Lower(NamedTuple):
    """A solved lower level."""

    # of the columns that are free, with a row of the identity below for each of the others; where the design is wide, Q
    # spans what the columns leave
    factor: Factor
    w: Array  # (b, k, n)
    r: Array  # (b, k, m), then the ridge's rows; ``M w - y`` comes first
    deficient: Array  # (b,)
    R: Array  # of all columns
    free: Array | None = None  # (b, n), of which w is between its bounds; None where it has none


class Linear(NamedTuple):
    """Separable problems, or their right-hand sides, to first order; rows are scaled by the roots of their weights."""

    A: Any  # (b, n, m + r), columns of the design and of the ridge below it
    w: Any  # (b, k, n)
    r: Any  # (b, k, m)
    X: Any  # (b, p k, m), tangents of r along each entry of theta, with w held
    free: Any  # (b, n), or None
    root: Any = None  # of the weights, (b, k, m) or (b, 1, m), if any
    deviance: Any = None  # (b,), of a loss that is a log likelihood


class Batch:
    """The reduced objectives of `problem` in batch form, at vectors (b, p).

    Of theta `treedef` is the structure, and `region` has the shapes. `found` has the name of what each of the user's
    functions returns, its shape, without the batch's axis, and dtype; () before they have been called.
    """

    def __init__(
        self, problem: Problem, backend: Backend, treedef: Any, region: Region, found: tuple[Any, ...] = ()
    ) -> None:
        self.columns = columns_of(problem, dict(found))
        self.problem = _repeated(problem, self.columns)
        self.backend, self.treedef, self.region = backend, treedef, region
        self.found = found
        self._complex = _has_complex(problem, dict(found))
        self.constants, self._data = trees.partition(problem.data)

    def outputs(self, x: Array, *constants: Array) -> Outputs:
        """What the user's functions return for all problems; with other arrays of the data if they are given."""
        return self._call(trees.parts(x, self.region.shapes), constants or self.constants)

    def _call(self, leaves: Leaves, constants: Leaves) -> Outputs:
        problem, tree, data = self.problem, trees.unflatten(self.treedef, leaves), plain(self._data.fill(constants))

        def level(level: Level | None) -> tuple[Any, Any]:
            if level is None:
                return None, None
            return level.M(tree, data), level.y(tree, data) if callable(level.y) else None

        with model_failures(self.backend, ADVICE, linalg_errors):
            penalty = problem.R(tree) if problem.R is not None and problem.mu else None
            outputs = Outputs(*level(problem.lower), *level(problem.upper), penalty)
        for name, was in self.found:
            array = getattr(outputs, name)
            check_same(f"the model function {name}", (tuple(array.shape[1:]), array.dtype), was)
        return outputs

    def weighted(self, outputs: Outputs) -> Outputs:
        """Designs, targets, or their tangents, as they are fitted: targets as rows, scaled by the roots of the weights.

        Where right-hand sides have weights or bounds of their own, each is a problem by itself.
        """
        fields = outputs._asdict()
        for side, level in zip("LU", self.problem.levels, strict=False):
            M, y, root = fields[f"M_{side}"], fields[f"y_{side}"], level.weights
            xp = namespace_of(M)
            M, y = M[:, None, :, :], None if y is None else rows(y)
            if isinstance(root, Whitening):
                M, y = root(M), None if y is None else root(y.mT).mT
            elif root is not None:
                M, y = root.mT[..., None] * M, None if y is None else root.mT * y
            M, y = self._alike(M, -2), None if y is None else self._alike(y, -1)
            M = xp.broadcast_to(M, (M.shape[0], self.columns, *M.shape[2:]))
            fields[f"M_{side}"] = xp.reshape(M, (-1, *M.shape[2:]))
            fields[f"y_{side}"] = y if y is None else self._apart(y, M.shape[0])
        return Outputs(**fields)

    def _alike(self, x: Array, axis: int) -> Array:
        """Complex numbers for all where some are, or where w is real their real parts above their imaginary ones."""
        if not self._complex:
            return x
        xp, x = namespace_of(x), complexified(x)
        return x if self.problem.lower.W is None else xp.concat([xp.real(x), xp.imag(x)], axis=axis)

    def _apart(self, y: Array, b: int) -> Array:
        """Rows of the targets of `b` problems, (b, k, m), or those of one right-hand side at a time, (b k, 1, m)."""
        if self.columns == 1:
            return y
        xp, m = namespace_of(y), y.shape[2]
        return xp.reshape(xp.broadcast_to(y, (b, self.columns, m)), (-1, 1, m))

    def together(self, x: Array) -> Array:
        """Numbers of problems that are solved with one theta, (b k, ...), as (b, k, ...)."""
        return namespace_of(x).reshape(x, (-1, self.columns, *x.shape[1:]))

    def _summed(self, x: Array) -> Array:
        return namespace_of(x).sum(self.together(x), axis=1)

    def _target(self, level: Level, y: Array | None, b: int) -> Array:
        """That of `weighted` outputs, or of `level` where it is constant, for so many problems."""
        constant: Any = level.y
        return self._apart(self._alike(rows(constant), -1), b // self.columns) if y is None else y

    def local(self, x: Array) -> Local:
        """Values, gradients and Gauss-Newton matrices: one tangent of the user's functions per entry of theta."""
        xp = namespace_of(x)
        outputs, tangents = self._tangents(x)
        low = self.lower(outputs)
        jacobian = self._separable if self.problem.is_separable else self._bilevel
        value, grad, J = jacobian(outputs, low, tangents)
        value, grad, curvature = map(self._summed, (value, grad, _real(J @ trees.adjoint(J))))
        deficient = xp.any(self.together(low.deficient), axis=1)
        if outputs.R is not None:
            value = value + (0.5 * self.problem.mu) * outputs.R
            grad = grad + (0.5 * self.problem.mu) * xp.stack([t.R for t in tangents], axis=1)
        return Local(xp.where(deficient, xp.full_like(value, xp.nan), value), grad, curvature, deficient)

    def _tangents(self, x: Array) -> tuple[Outputs, list[Outputs]]:
        """`weighted` outputs, and their tangents along each entry of theta."""
        xp = namespace_of(x)
        leaves, given = trees.parts(x, self.region.shapes), list[str]()

        def flat(*arrays: Array) -> Leaves:
            found = self._call(arrays[: len(leaves)], arrays[len(leaves) :])._asdict()
            given[:] = [name for name, y in found.items() if y is not None]
            return tuple(found[name] for name in given)

        values, push = self.backend.linearise(flat, leaves, self.constants)
        outputs = self.weighted(Outputs(**dict(zip(given, values, strict=True))))
        eye = xp.eye(x.shape[1], dtype=x.dtype, device=device(x))
        tangents = []
        for j in range(x.shape[1]):
            moved = push(trees.parts(xp.broadcast_to(eye[j, :], x.shape), self.region.shapes))
            tangents.append(self.weighted(Outputs(**dict(zip(given, moved, strict=True)))))
        return outputs, tangents

    def linear(self, x: Array) -> Linear:
        """Separable problems to first order in theta and w."""
        outputs, tangents = self._tangents(x)
        low = self.lower(outputs)
        return self._linear(outputs, low, self._moved(low, tangents))

    def _linear(self, outputs: Outputs, low: Lower, X: Array) -> Linear:
        M, level = outputs.M_L, self.problem.lower
        y = self._target(level, outputs.y_L, M.shape[0])
        root: Any = None if isinstance(level.weights, Whitening) else level.weights
        if root is not None:
            root = root.mT
            if root.shape[2] < M.shape[1]:  # of real parts above imaginary ones
                root = namespace_of(root).concat([root, root], axis=2)
            # of each right-hand side that is a problem by itself, or of all
            shape = (M.shape[0] // self.columns, self.columns * y.shape[1], M.shape[1])
            root = self._apart(namespace_of(M).broadcast_to(root, shape), shape[0])
        return Linear(stacked(M.mT, level.ridge), low.w, low.w @ M.mT - y, X, low.free, root)

    def energy(self, x: Array) -> Array:
        """``1/2 |y|^2`` of the upper level, per problem: the scale of what the objective is a difference of.

        Of wide designs less, as `InMemory.scale` has it.
        """
        level: Any = self.problem.upper or self.problem.lower
        outputs = self.weighted(self.outputs(x))
        given = outputs.y_L if self.problem.is_separable else outputs.y_U
        y = self._target(level, given, outputs.M_L.shape[0])
        energy = _half_squares(y)
        if self._is_wide(outputs.M_L):
            xp, back, r = namespace_of(y), y @ _conj(outputs.M_L), self.lower(outputs).r[..., : y.shape[2]]
            own = _half_squares(back) * (_half_squares(r) / (positive_or_one(energy) * level.ridge.lam))
            energy = xp.where(own < energy, own, energy)
        return self._summed(energy)

    # -- the levels

    def lower(self, outputs: Outputs) -> Lower:
        """Factor and solve the lower level of every problem, from `weighted` outputs."""
        level: Any = self.problem.lower
        M, y = outputs.M_L.mT, self._target(level, outputs.y_L, outputs.M_L.shape[0])
        if self._is_wide(outputs.M_L):
            return self._by_dual(outputs.M_L, y)
        A = stacked(M, level.ridge)
        f = small.factor(A)
        along = small.coefficients(f, y)
        lost = self._lost(f, M.shape[-1])
        if level.W is not None:
            return self._bounded(A, f, along, y, lost)
        return Lower(f, small.solve_upper(f.R, along), -small.rest(f, y, along), lost, f.R)

    def _lost(self, f: Factor, rows: int) -> Array:
        """Where columns depend on each other, and no ridge makes up for it."""
        lost, ridge = small.deficient(f, rows), self.problem.lower.ridge
        if ridge.definite:
            return namespace_of(lost).zeros_like(lost)
        return lost & namespace_of(lost).any(ridge.lam == 0, axis=(1, 2)) if ridge.present and ridge.square else lost

    def _is_wide(self, M: Array) -> bool:
        """Whether the dual form solves the lower level: w and r are then products, and no differences of the target."""
        level = self.problem.lower
        plain = level.W is None and level.ridge.plain and level.ridge.definite
        return bool(plain and self.problem.is_separable and M.shape[1] < M.shape[2])

    def _by_dual(self, M: Array, y: Array) -> Lower:
        """``V = [-root R^-1; Q]`` spans what ``[M; root]`` leaves, with ``[M^H; root] = [Q; .] R``, root of lam."""
        level, xp = self.problem.lower, namespace_of(M)
        b, m, n = M.shape
        eye = xp.broadcast_to(xp.eye(m, dtype=M.dtype, device=device(M)), (b, m, m))
        f = small.factor(xp.concat([_conj(M), level.ridge.root * eye], axis=2))
        Q, z = f.Q[..., :n], small.solve_adjoint(f.R, y)
        V = xp.concat([-level.ridge.root * small.solve_upper(f.R, eye), Q], axis=2)
        never = xp.zeros((b,), dtype=xp.bool, device=device(M))
        return Lower(f._replace(Q=V), z @ Q, level.ridge.root * (z @ V), never, f.R)

    def _bounded(self, A: Array, f: Factor, along: Array, y: Array, lost: Array) -> Lower:
        """With w between bounds.

        Where it is at one, a column of the identity takes the place of that of the design: the tangent of w is 0 there,
        and that of the residual keeps what it has along the column.
        """
        xp = namespace_of(A)
        w, free = self.within(f.R, along)
        held = with_held(A, free)
        blank = xp.zeros((*y.shape[:2], held.shape[2] - y.shape[2]), dtype=y.dtype, device=device(y))
        r = xp.concat([w @ A, xp.zeros_like(w)], axis=2) - xp.concat([y, blank], axis=2)
        return Lower(small.factor(held), w, r, lost, f.R, free)

    def within(self, R: Array, c: Array) -> tuple[Array, Array]:
        """Where ``|R w - c|`` is least between the bounds of w, (b, 1, n), and which entries are at none, (b, n)."""
        W: Any = self.problem.lower.W
        of_column = namespace_of(R).arange(R.shape[0], device=device(R)) % self.columns
        w, free = W.part(of_column, 1.0).solver(None).weights(self.backend, R, c[:, 0, :].mT)
        return w.mT[:, None, :], free.mT

    def _ridge_below(self, r: Array, w: Array) -> Array:
        level: Any = self.problem.upper
        return namespace_of(r).concat([r, level.ridge.rows(w.mT).mT], axis=-1) if level.ridge.present else r

    def _separable(self, outputs: Outputs, low: Lower, tangents: list[Outputs]) -> tuple[Array, Array, Array]:
        """Values, gradients, and Kaufman's Jacobians (b, p, ...): see `objective.gauss_newton`."""
        f, X = low.factor, self._moved(low, tangents)
        along = small.coefficients(f, X)
        left = along @ f.Q if self._is_wide(outputs.M_L) else small.rest(f, X, along)
        J = grouped(left, len(tangents))
        # equal to products with X, which would multiply what rounding leaves of r in the range of the design
        return _half_squares(low.r), products(J, low.r), J

    def _bilevel(self, outputs: Outputs, low: Lower, tangents: list[Outputs]) -> tuple[Array, Array, Array]:
        X, r = self._moved(low, tangents), low.r[..., : outputs.M_L.shape[1]]
        dw = self._answer(low, r, X, tangents)
        own = namespace_of(X).concat([_less(low.w @ t.M_U.mT, t.y_U) for t in tangents], axis=1)
        J = grouped(self._ridge_below(own + dw @ outputs.M_U.mT, dw), len(tangents))
        level: Any = self.problem.upper
        r = low.w @ outputs.M_U.mT - self._target(level, outputs.y_U, low.w.shape[0])
        r = self._ridge_below(r, low.w)
        return _half_squares(r), products(J, r), J

    def _answer(self, low: Lower, r: Array, X: Array, tangents: list[Outputs]) -> Array:
        """``dw`` for all tangents: r is the slope of the loss, and X are the tangents as rows of the factor."""
        f, xp = low.factor, namespace_of(X)
        C = xp.concat([r @ _conj(t.M_L) for t in tangents], axis=1)  # ``dM^H r``
        if low.free is not None:
            C = xp.where(low.free[:, None, :], C, xp.zeros_like(C))
        return -small.solve_upper(f.R, small.solve_adjoint(f.R, C) + small.coefficients(f, X))

    def _moved(self, low: Lower, tangents: list[Outputs]) -> Array:
        """``dM w - dy`` for all tangents, those of one problem behind one another, (b, p k, m)."""
        return namespace_of(low.w).concat([_less(low.w @ t.M_L.mT, t.y_L) for t in tangents], axis=1)


def columns_of(problem: Problem, found: dict[str, Any]) -> int:
    """How many right-hand sides are problems of their own, for their weights, ridges or bounds differ; 1 for none."""
    fields = [x for level in problem.levels for x in (level.weights, level.lam)]
    counts = [x.shape[2] for x in fields if trees.is_array(x)]
    if problem.lower.W is not None or any(level.loss is not None for level in problem.levels):
        y: Any = problem.lower.y
        shape = tuple(y.shape[1:]) if trees.is_array(y) else found.get("y_L", ((),))[0]
        counts += shape[1:]
    return max(counts, default=1)


def _has_complex(problem: Problem, found: dict[str, Any]) -> bool:
    given = [level.y for level in problem.levels if trees.is_array(level.y)]
    return any(complex_dtype(x.dtype) for x in given) or any(complex_dtype(dtype) for _, dtype in found.values())


def _repeated(problem: Problem, columns: int) -> Problem:
    """With ridges (b, n, k), or 1 for n or k, as those of one right-hand side at a time, (b k, n, 1)."""

    def level(level: Level | None) -> Any:
        lam: Any = None if level is None else level.lam
        if not trees.is_array(lam):
            return level
        xp, (b, n, _) = namespace_of(lam), lam.shape
        return trees.changed(level, lam=xp.reshape(xp.broadcast_to(lam.mT, (b, columns, n)), (-1, n, 1)))

    return trees.changed(problem, lower=level(problem.lower), upper=level(problem.upper))


def rows(y: Array) -> Array:
    """Targets (b, m) or (b, m, k) as (b, k, m)."""
    return namespace_of(y).expand_dims(y, axis=1) if y.ndim == 2 else y.mT


def _less(x: Array, y: Array | None) -> Array:
    return x if y is None else x - y


def stacked(M: Array, ridge: Ridge) -> Array:
    """Rows of ``[M; sqrt(lam) Omega]^T``."""
    if not ridge.present:
        return M
    xp, (b, n, _) = namespace_of(M), M.shape
    return xp.concat([M, xp.broadcast_to(ridge.dense(M.mT).mT, (b, n, ridge.height(n)))], axis=2)


def with_held(A: Array, free: Array) -> Array:
    """The rows A, (b, n, m), with columns of the identity for what is not free, (b, n)."""
    xp = namespace_of(A)
    on = xp.astype(free, A.dtype)[:, :, None]
    return xp.concat([A * on, (1 - on) * xp.eye(A.shape[1], dtype=A.dtype, device=device(A))], axis=2)


def _conj(x: Array) -> Array:
    return namespace_of(x).conj(x) if is_complex(x) else x


def _real(x: Array) -> Array:
    return namespace_of(x).real(x) if is_complex(x) else x


def _half_squares(r: Array) -> Array:
    xp = namespace_of(r)
    return 0.5 * xp.sum(small.squares(r), axis=1)


def grouped(X: Array, p: int) -> Array:
    """Rows (b, p k, m) as (b, p, k m)."""
    b, rows, m = X.shape
    return namespace_of(X).reshape(X, (b, p, rows // p * m))


def products(J: Array, r: Array) -> Array:
    """``Re <J_i, r>`` for the rows of J, shape (b, p)."""
    xp = namespace_of(J)
    flat = xp.reshape(r, (r.shape[0], r.shape[1] * r.shape[2]))
    return _real(small.products(J, flat))
