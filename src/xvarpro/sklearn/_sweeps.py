"""Block coordinate descent on factorisations ``X ~ D W``, in Gram form: where an exact solve starts from.

A sweep minimises over the rows of W, one after the other, and then over the columns of D (hierarchical alternating
least squares: Cichocki, Zdunek, Amari 2007; in a set: Mairal, Bach, Ponce, Sapiro 2010), from points that momentum has
moved on, without it after a step that overshot (Ang, Gillis 2019). All that has the size of X is in matrix products.

Under one l1 budget for all atoms, each has a share of it, which is given anew in every sweep. A projection onto the
budget takes the same from the entries of all atoms, and so all of the smaller ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from xvarpro import sets
from xvarpro.backends import Backend
from xvarpro.backends.registry import owner
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array
from xvarpro.lower import L1, Nonnegative, Simplex
from xvarpro.lower.weight_sets.interface import WeightSet
from xvarpro.sets import Set

Rule: TypeAlias = Callable[[Array, Array], Array]  # a row's unconstrained minimiser and its curvature -> the minimiser

EVERY = 10  # sweeps between looks at the objective and at dead atoms
START, GROWTH, SLOW, SHRINK = 0.5, 1.05, 1.01, 1.5  # of the momentum, in (0, 1)
STEPS = 10  # accelerated steps on a block that does not part into rows


class Factors(NamedTuple):
    """A factorisation."""

    D: Array  # atoms, (m, n)
    W: Array  # codes, (n, k)
    value: float  # the objective; inf where it is not known
    sweeps: int  # how many led here


class Atoms(NamedTuple):
    """Where a dictionary, shape (m, n), lies."""

    C: Set  # of vectors, or, for all atoms together, of matrices
    shared: bool = False  # whether a set of vectors holds the whole dictionary and not each of its columns

    @property
    def together(self) -> bool:
        """Whether the set does not part into one for each atom."""
        return self.shared or self.C.event_ndim == 2

    @property
    def budget(self) -> float:
        """What the l1 norms of all atoms together may come to; 0 where the set says something else."""
        return self.C.radius if self.shared and isinstance(self.C, sets.L1Ball) else 0.0

    @property
    def over(self) -> Set:
        """The set of the dictionary."""
        return self.C if self.together else sets.Columns(self.C)

    def points(self, D: Array) -> Array:
        """The dictionary as points of `C`."""
        if self.shared and self.C.event_ndim == 1:
            return namespace_of(D).reshape(D, (-1,))
        return D if self.together else D.mT

    def dictionary(self, points: Array, like: Array) -> Array:
        """Inverse of `points`."""
        return namespace_of(like).reshape(points, like.shape) if self.together else points.mT

    def project(self, D: Array) -> Array:
        """The nearest dictionary."""
        return self.dictionary(self.C.project(self.points(D)), D)


def sweepable(atoms: Atoms, codes: WeightSet | None) -> bool:
    """Whether sweeps know how to minimise over a block of either kind."""
    return atoms.C.has_projection and (codes is None or isinstance(codes, Nonnegative | L1 | Simplex))


def factorise(
    X: Array,
    D: Array,
    W: Array,
    atoms: Atoms,
    codes: WeightSet | None,
    *,
    lam: float = 0.0,
    sweeps: int = 200,
    tol: float = 1e-4,
) -> Factors:
    """Sweeps on ``1/2 |D W - X|^2 + lam/2 |W|^2 + penalty(W)`` from D, (m, n), and W, (n, k); X is (m, k).

    It ends where ten sweeps lower the objective by less than a share `tol` of it, or where it is below
    ``tol^2 |X|^2/2``. Atoms that no sample uses become the samples that are approximated worst. Under a budget that all
    share they never do: it would take from those in use.
    """
    xp, backend = namespace_of(X), owner(X)
    eye = xp.eye(W.shape[0], dtype=X.dtype, device=device(X))
    half = 0.5 * xp.sum(X * X)
    linear = codes is None and lam > 0
    shares = atoms.budget > 0 and lam > 0 and not isinstance(codes, L1 | Simplex)

    def swept(D: Array, V: Array, W: Array, momentum: float) -> tuple[Array, Array, Array, Array]:
        """Atoms, codes, codes moved on, and the objective at the last with the atoms; from atoms D and codes V."""
        G = D.mT @ D + lam * eye
        new = xp.linalg.solve(G, D.mT @ X) if linear else best_codes(G, D.mT @ X, V, codes)
        V = new + momentum * (new - W)
        if shares:
            D, scale = shared_out(D, V, atoms.budget)
            new, V = scale * new, scale * V
        A, B = V @ V.mT, X @ V.mT
        D = no_longer(A, B, D) if shares else best_atoms(A, B, D, atoms)
        level = half - xp.sum(B * D) + 0.5 * xp.sum((D.mT @ D + lam * eye) * A)
        return D, new, V, level + (0.0 if codes is None else codes.penalty(V))

    ahead, V = D, W  # where the next sweep starts: D and W, moved on
    momentum, most = START, 1.0
    low, last = math.inf, math.inf
    done = 0
    while done < sweeps:
        new_D, new_W, new_V, level = swept(ahead, V, W, momentum)
        done += 1
        (value,) = backend.to_floats([level])
        if value <= low:
            D, W, ahead, V = new_D, new_W, new_D + momentum * (new_D - D), new_V
            low, momentum, most = value, min(most, GROWTH * momentum), min(1.0, SLOW * most)
        elif momentum:  # from where it was last lower, without the way that overshot
            ahead, V = D, W
            most, momentum = momentum, momentum / SHRINK
        if done % EVERY:
            continue
        if not atoms.shared and (alive := revived(backend, X, D, W, atoms)) is not D:
            D = ahead = alive
            V = W
        if not last - low > tol * abs(low) or low <= tol * tol * half:
            break
        last = low
    D, W, _, level = swept(D, W, W, 0.0)
    return Factors(D, W, backend.to_floats([level])[0], done + 1)


def best_codes(G: Array, B: Array, W: Array, codes: WeightSet | None) -> Array:
    """Codes that lower ``1/2 <W, G W> - <B, W>`` plus what `codes` says, from W."""
    if isinstance(codes, Simplex):
        total = sets.Simplex(codes.total)
        return accelerated(lambda V: G @ V - B, largest_eigenvalue(G), W, lambda V: total.project(V.mT).mT)
    return by_rows(G, B, W, _rule(codes))


def best_atoms(A: Array, B: Array, D: Array, atoms: Atoms) -> Array:
    """Atoms in their set that lower ``1/2 <D A, D> - <B, D>``, from D; A is ``W W^T``, B is ``X W^T``."""
    if atoms.together:
        return accelerated(lambda V: V @ A - B, largest_eigenvalue(A), D, atoms.project)
    return by_rows(A, B.mT, D.mT, lambda z, _: atoms.C.project(z)).mT


def shared_out(D: Array, W: Array, budget: float) -> tuple[Array, Array]:
    """Atoms with the l1 norms b, of the sum `budget`, that make the ridge on the codes smallest, and factors for codes.

    The product D W stays. With c the lengths of the codes of atoms of the norm 1, the ridge is ``sum (c/b)^2``, which
    has its minimum over b at ``b ~ c^(2/3)``. An atom with a share below rounding becomes zero.
    """
    xp = namespace_of(D)
    b = xp.sum(xp.abs(D), axis=0)
    root = (b * xp.sqrt(xp.sum(W * W, axis=1))) ** (2 / 3)
    total, one = xp.sum(root), xp.ones_like(b)
    kept = root > xp.finfo(D.dtype).eps * total
    factor = budget * root / (xp.where(kept, b, one) * xp.where(total > 0, total, one))
    factor = xp.where(total > 0, xp.where(kept, factor, 0 * b), one)
    return D * factor, xp.where(factor > 0, 1.0 / xp.where(factor > 0, factor, one), 0 * b)[:, None]


def no_longer(A: Array, B: Array, D: Array) -> Array:
    """One pass over atoms, as that of `best_atoms`, that keeps the l1 norm of each below what it is."""
    xp = namespace_of(D)
    b, ball = xp.sum(xp.abs(D), axis=0), sets.L1Ball()
    U = D / xp.where(b > 0, b, xp.ones_like(b))
    return b * by_rows(b[:, None] * A * b, (B * b).mT, U.mT, lambda z, _: ball.project(z)).mT


def _rule(codes: WeightSet | None) -> Rule:
    """How a row of codes is found from its unconstrained minimiser."""

    def l1(z: Array, curvature: Array) -> Array:
        xp, cut = namespace_of(z), codes.alpha / curvature  # type: ignore[union-attr]
        up = xp.maximum(z - cut, xp.zeros_like(z))
        return up if codes.nonnegative else up - xp.maximum(-z - cut, xp.zeros_like(z))  # type: ignore[union-attr]

    def nonnegative(z: Array, _: Array) -> Array:
        xp = namespace_of(z)
        return xp.maximum(z, xp.zeros_like(z))

    return l1 if isinstance(codes, L1) else nonnegative if isinstance(codes, Nonnegative) else lambda z, _: z


def by_rows(G: Array, B: Array, V: Array, rule: Rule) -> Array:
    """One pass of coordinate descent over the rows of V on ``1/2 <V, G V> - <B, V>``.

    It is the forward substitution of Gauss and Seidel with a rule for each row, done in halves, so that all but the
    last of it is in products of matrices. A row without curvature stays.
    """
    xp = namespace_of(V)
    return _substituted(G, B - xp.triu(G, k=1) @ V, V, rule)


def _substituted(G: Array, E: Array, V: Array, rule: Rule) -> Array:
    xp, n = namespace_of(V), V.shape[0]
    if n == 1:
        used = G > 0
        curvature = xp.where(used, G, xp.ones_like(G))
        return rule(xp.where(used, E / curvature, V), curvature)
    h = n // 2
    first = _substituted(G[:h, :h], E[:h, :], V[:h, :], rule)
    second = _substituted(G[h:, h:], E[h:, :] - G[h:, :h] @ first, V[h:, :], rule)
    return xp.concat([first, second])


def accelerated(
    gradient: Callable[[Array], Array], L: Array, V: Array, project: Callable[[Array], Array], steps: int = STEPS
) -> Array:
    """Accelerated projected gradient steps on a convex quadratic function, from the projection of V and not above it.

    `gradient` is affine, and L its Lipschitz constant.
    """
    xp = namespace_of(V)
    constant = gradient(xp.zeros_like(V))
    size = xp.where(L > 0, L, xp.ones_like(L))
    x = z = start = project(V)
    t = 1.0
    for _ in range(steps):
        y = project(z - gradient(z) / size)
        t, before = 0.5 + (0.25 + t * t) ** 0.5, t
        x, z = y, y + ((before - 1) / t) * (y - x)

    def value(U: Array) -> Array:
        return xp.sum(U * (gradient(U) + constant))

    return xp.where(value(x) <= value(start), x, start)


def largest_eigenvalue(G: Array) -> Array:
    """Of a symmetric matrix."""
    return namespace_of(G).linalg.eigvalsh(G)[-1]


def revived(backend: Backend, X: Array, D: Array, W: Array, atoms: Atoms) -> Array:
    """D with samples that are approximated worst in the place of atoms that are zero or of which no code is in use."""
    xp = namespace_of(D)
    alive = (xp.max(xp.abs(W), axis=1) > 0) & (xp.max(xp.abs(D), axis=0) > 0)
    dead = [j for j, a in enumerate(backend.to_floats(_entries(xp.astype(alive, D.dtype)))) if not a]
    if not dead:
        return D
    R = X - D @ W
    off = xp.sum(R * R, axis=0)
    worst = xp.argsort(off, descending=True)[: len(dead)]
    columns = [D[:, j] for j in range(D.shape[1])]
    length = xp.sqrt(xp.max(xp.sum(D * D, axis=0)))
    for place, j in enumerate(dead[: worst.shape[0]]):
        seed = xp.take(R, worst[place : place + 1], axis=1)[:, 0]
        size = xp.sqrt(xp.sum(seed * seed))
        columns[j] = seed * (length / xp.where(size > 0, size, xp.ones_like(size)))
    return atoms.project(xp.stack(columns, axis=1))


def _entries(x: Array) -> list[Array]:
    return [x[i] for i in range(x.shape[0])]
