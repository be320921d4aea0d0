"""Projections under transformations of a framework and of points far away, and regions of several sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from xvarpro import sets
from xvarpro.core import trees
from xvarpro.core.struct import Array, Tree
from xvarpro.sets import norms
from xvarpro.sets.interface import Set
from xvarpro.sets.region import resolve
from xvarpro_conformance.checks.sets import SIZE, Case, cases, inside, offering, project_to
from xvarpro_conformance.frameworks import hooks
from xvarpro_conformance.problems import held
from xvarpro_conformance.suite import Inapplicable, Measured, Target, alternate, check


def projected() -> dict[str, Case]:
    """The first case of every class with a projection."""
    found = {type(case.C): name for name, case in reversed(offering("has_projection")().items())}
    return {name: case for name, case in cases().items() if name in found.values()}


@check("sets", projected, dtypes=("float64",))
def transformed_projection(target: Target, case: Case) -> Iterator[Measured]:
    """Under a framework's transformations, mapped and compiled, a projection has the slope of its values."""
    if target.backend.compiled and not case.C.compiles:
        raise Inapplicable("a solver on the host is not compiled")
    alike = (type(v.C) for v in projected().values() if type(v.C).__module__ == type(case.C).__module__)
    target.represent(("float64",) if type(case.C) is next(alike) else ())  # classes of a file project alike
    draw, size = np.random.default_rng(5), min(case.diameter, 1e3)
    n, d = draw.normal(size=(2, 3, *case.shape))
    n = n / np.sqrt(case.inner(n, n)).reshape(-1, *(1,) * len(case.shape))
    middle = np.asarray(case.C.center(np.zeros(case.shape)))
    x = middle + size * n * np.array([1e-3, 1.5, 40.0]).reshape(-1, *(1,) * len(case.shape))
    with target.scope():
        project = target.send_tree(case.C).project
        found = hooks(target.backend).transformed(project, target.send(x), target.send(d))
        if found is None:
            raise Inapplicable("the framework has no transformations")
        values, along, gradient = map(target.host, found)
    step = 1e-6 * size * d
    ends = (np.stack([np.asarray(case.C.project(y)) for y in z]) for z in (x, x + step, x - step))
    want, ahead, behind = ends
    slope = (ahead - behind) / (2e-6 * size)
    yield Measured("values", values, want, case.rounding * target.eps, case.size)
    yield Measured("derivative along d", along, slope, 1e-6, 1.0)
    yield Measured("gradient in reverse, of a slope that is symmetric", gradient, slope, 1e-6, 1.0)


@cache
def far_away(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Points 2^24 sizes away, and the nearest ones of a polytope: of those draws that are far enough to be alone."""
    draw, size = np.random.default_rng(9), max(case.diameter, 1.0)
    x = draw.normal(size=(10, *case.shape))
    for i in range(4):
        x[i] = 0.0
        x[i].flat[draw.integers(x[i].size)] = (-1.0) ** i
    x = held(x) * 2.0**24 * size
    p, further = (np.asarray(case.C.project(y)) for y in (x, 4 * x))
    axes = tuple(range(1, x.ndim))
    alone = np.abs(p - further).max(axis=axes) <= 1e-9 * case.size
    return x[alone], p[alone]


@check("sets", lambda: {k: v for k, v in offering("has_projection")().items() if v.C.polytope})
def far_projection(target: Target, case: Case) -> Iterator[Measured]:
    """Once a point is far from a polytope, further away along its ray changes nothing, to 1e30 times the size."""
    target.represent(())
    x, want = far_away(case)
    for power in (0, 16, 40, 76):
        p = target.eager.compute(project_to, case.C, x * 2.0**power)
        yield Measured(f"2^{24 + power} sizes away", p, want, case.rounding * target.eps, case.size)


# -- several sets with free blocks, as a region has them ---------------------------------------------------------------


def _columns(g: np.ndarray) -> np.ndarray:
    """Lengths of columns; an array with one axis is one."""
    return np.linalg.norm(g if g.ndim > 1 else g[:, None], axis=0)


def _rows(g: np.ndarray) -> np.ndarray:
    return np.linalg.norm(g if g.ndim > 1 else g[None, :], axis=1)


def _singular(g: np.ndarray) -> np.ndarray:
    return np.linalg.svd(g if g.ndim > 1 else g[None, :], compute_uv=False)


def _entries(g: np.ndarray) -> np.ndarray:
    return np.abs(g).ravel()


# of each norm the numbers that it looks at in an array, how the norm sums these up, and its dual
DUAL: dict[type, tuple[Callable[[np.ndarray], np.ndarray], Any, Any]] = {
    norms.L2: (_entries, 2, 2),
    norms.Sign: (_entries, np.inf, 1),
    norms.L1: (_entries, 1, np.inf),
    norms.ColumnNorm: (_columns, np.inf, 1),
    norms.RowNorm: (_rows, np.inf, 1),
    norms.Spectral: (_singular, np.inf, 1),
}


def _norms() -> list[Any]:
    kinds = (kind for kind in vars(norms).values() if inspect.isclass(kind) and issubclass(kind, norms.Norm))
    return [kind for kind in kinds if not inspect.isabstract(kind)]


def blocks() -> dict[str, Any]:
    """A set and a free block with each norm, and gradients with ties there."""
    over = (sets.L1Ball(2.0), sets.Box(-1.0, 2.0), sets.Simplex(3.0), sets.NonnegativeL2Ball(), sets.LinfBall(0.5))
    return {
        kind.__name__: (kind(), Case(over[i % len(over)], (SIZE,), alternate(i))) for i, kind in enumerate(_norms())
    }


def _blmo(C: Set, ball: sets.Free, theta: Tree, g: Tree) -> tuple[Array, ...]:
    leaves, _ = trees.flatten(theta)
    region = resolve((C, ball), theta)
    way = region.blmo(tuple(leaves), tuple(trees.leaves(g)))
    return *way.d, way.gap_A, way.gap_B, region.violation(tuple(leaves))


@check("sets", blocks)
def gap(target: Target, case: tuple[norms.Norm, Case]) -> Iterator[Measured]:
    """The Frank-Wolfe gap is ``<g, x - v>`` in the set and the radius times the dual norm in the free block."""
    norm, of = case
    target.represent(of.turn)
    draw, radius = np.random.default_rng(6), 0.5
    x, free = inside(of)[-1], (np.zeros((3, 4)), np.zeros(5))
    g = held(draw.normal(size=SIZE)), (held(draw.normal(size=(3, 4))), draw.choice([-1.0, 0.0, 1.0], 5))
    dA, *dB, gap_A, gap_B, off = target.compute(_blmo, of.C, sets.Free(norm, radius), (x, free), g)
    tolerance = of.rounding * target.eps
    yield Measured("direction of the set", dA, of.of(g[0]) - x, tolerance)
    yield Measured("gap of the set", gap_A, of.known.support(-g[0]) + g[0] @ x, tolerance)
    numbers, own, dual = DUAL[type(norm)]
    size = radius * np.linalg.norm(np.concatenate([numbers(y) for y in g[1]]), dual)
    yield Measured("gap of the free block", gap_B, size, tolerance)
    steepest = -sum(np.sum(y * d) for y, d in zip(g[1], dB, strict=True))
    yield Measured("-<g, d> of the free block", steepest, size, tolerance)
    length = np.linalg.norm(np.concatenate([numbers(d) for d in dB]), own)
    yield Measured("length of its step", length, radius, tolerance)
    yield Measured("violation", off, 0.0, tolerance, 1.0)
