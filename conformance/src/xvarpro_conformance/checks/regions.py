"""Several sets with free blocks, as a region has them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xvarpro import sets
from xvarpro.core import trees
from xvarpro.core.struct import Array, Tree
from xvarpro.sets import norms
from xvarpro.sets.interface import Set
from xvarpro.sets.region import resolve
from xvarpro_conformance.checks.sets import SIZE, Case, inside
from xvarpro_conformance.problems import held
from xvarpro_conformance.suite import Measured, Target, alternate, check


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
