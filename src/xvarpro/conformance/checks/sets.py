"""Every set that `xvarpro.sets` exports, by what it promises."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from xvarpro import sets
from xvarpro.conformance.suite import Inapplicable, Measured, Target, check
from xvarpro.errors import ProblemError
from xvarpro.protocols import Array, Set

SIZE = 5
COUNT = 24


class Case(NamedTuple):
    """A set, and the shape of one event."""

    C: Set
    shape: tuple[int, ...]

    @property
    def rounding(self) -> float:
        """In eps: a decomposition costs more digits than a comparison."""
        return float((200 if self.C.event_ndim == 2 else 40) * np.sqrt(np.prod(self.shape)))


@cache
def cases() -> dict[str, Case]:
    """Every example that a class offers, of the first shape that it accepts; a newcomer is found by its export."""
    found: dict[str, Case] = {}
    for kind in (getattr(sets, name) for name in sets.__all__):
        if inspect.isclass(kind) and issubclass(kind, Set) and not inspect.isabstract(kind):
            found |= {f"{kind.__name__} {i}": case for i, case in enumerate(_examples(kind))}
    return found


def _examples(kind: type[Set]) -> list[Case]:
    for shape in ((SIZE,), (SIZE, 3), (SIZE, SIZE)):
        fit = [Case(C, shape) for C in kind.examples(shape) if C.event_ndim in (0, len(shape)) and _takes(C, shape)]
        if fit:
            return fit
    return []


def _takes(C: Set, shape: tuple[int, ...]) -> bool:
    try:
        C.check(shape)
    except ProblemError:
        return False
    return True


def gradients(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random gradients that every precision holds exactly, a third of them of whole numbers: ties and zeros."""
    g = 2 * np.random.default_rng(seed).normal(size=(COUNT, *shape))
    g[::3] = np.round(g[::3])
    return g.astype(np.float32).astype(np.float64)


def lmo(C: Set, g: Array) -> Array:
    """The oracle, as a function that compiles once for a set."""
    return C.lmo(g)


def project(C: Set, x: Array) -> Array:
    """The projection, as a function that compiles once for a set."""
    return C.project(x)


@check("sets", cases)
def oracle(target: Target, case: Case) -> Iterator[Measured]:
    """The vertices of NumPy in double precision, ties broken alike."""
    g = gradients(case.shape)
    got, want = target.compute(lmo, case.C, g), target.reference.compute(lmo, case.C, g)
    clear = _clear(case, g)
    yield Measured("vertices", got[clear], want[clear], case.rounding * target.eps * 8)
    reached, best = _inner(g, got), _inner(g, want)
    yield Measured("<g, v>", reached, best, case.rounding * target.eps)


def _clear(case: Case, g: np.ndarray) -> np.ndarray:
    """Gradients whose vertex rounding does not decide: exact ties count, near ones do not."""
    return np.ones(len(g), bool)


def _inner(g: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.sum(np.real(np.conj(g) * v), axis=tuple(range(1, g.ndim)))


@check("sets", cases)
def projection(target: Target, case: Case) -> Iterator[Measured]:
    """The nearest point, as NumPy finds it in double precision; a feasible point is its own."""
    if not case.C.has_projection:
        raise Inapplicable("the set offers no projection")
    x: Any = gradients(case.shape, seed=1)
    want = target.reference.compute(project, case.C, x)
    got = target.compute(project, case.C, x)
    yield Measured("projections", got, want, case.rounding * target.eps)
    yield Measured("projections again", target.compute(project, case.C, got), got, case.rounding * target.eps)
