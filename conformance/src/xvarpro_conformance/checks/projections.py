"""Projections under transformations of a framework, and of points far away."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from xvarpro_conformance.checks.sets import Case, cases, offering, project_to
from xvarpro_conformance.frameworks import hooks
from xvarpro_conformance.problems import held
from xvarpro_conformance.suite import Inapplicable, Measured, Target, check


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
