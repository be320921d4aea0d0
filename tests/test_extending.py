"""The examples of docs/extending.md keep every promise of their seams."""

import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import conformance
from xvarpro_conformance.checks import lower_level, sets, steps
from xvarpro_conformance.references import sets as definitions
from xvarpro_conformance.references.sets import Known

from .support import HOST_BACKENDS, Quadratic, rng, states

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")


@cache
def example(heading):
    """The module that the block below a heading makes."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)
    module = ModuleType(f"extending_{heading.split()[-1]}")
    sys.modules[module.__name__] = module  # where a dataclass looks up its annotations
    exec(block, vars(module))
    return module


def test_the_solve_of_an_example_converges(monkeypatch):
    space = {"__name__": "extending_head"}
    monkeypatch.setitem(sys.modules, space["__name__"], ModuleType(space["__name__"]))
    exec(re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)[0], space)
    assert space["fit"].success
    assert np.all(np.diff(space["fit"].theta) < 1e-12)
    for heading in ("A set", "A step rule", "A lower solver", "An algorithm"):
        assert example(heading).fit.success, heading


def truncated_cone(C, shape):
    """The set as the suite knows it: support and distance, written out once more."""

    def parts(x):
        return np.linalg.norm(x[..., :-1], axis=-1), x[..., -1]

    def support(g):
        length, t = parts(g)
        return C.radius * np.maximum(t + length, 0.0)

    def outside(x):
        length, t = parts(x)
        return np.maximum(np.maximum(length - t, t - C.radius), 0.0) / C.radius

    return Known(support, outside)


@pytest.mark.parametrize(
    ("heading", "room", "name", "found"),
    [
        ("A set", xv.sets, "TruncatedCone", sets.cases),
        ("A step rule", xv.steps, "Doubling", steps.rules),
        ("A lower solver", xv.lower, "TextbookQR", lower_level.levels),
    ],
)
def test_an_example_passes_the_suite_once_it_is_exported_and_defined(heading, room, name, found, monkeypatch):
    monkeypatch.setitem(definitions.DEFINITIONS, example("A set").TruncatedCone, truncated_cone)
    cached = [f for f in (found, lower_level.solvers, lower_level.dependent) if hasattr(f, "cache_clear")]
    monkeypatch.setattr(room, name, getattr(example(heading), name), raising=False)
    monkeypatch.setattr(room, "__all__", [*room.__all__, name])
    for f in cached:
        f.cache_clear()
    try:
        report = conformance.run(["array-api-strict"], only=f"*/{name}*")
    finally:
        for f in cached:
            f.cache_clear()
    assert report.ok, report


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_the_algorithm_runs_on_every_backend(name):
    part = example("An algorithm")
    problem = replace(part.problem, lower=replace(part.problem.lower, solver=xv.lower.QR()))  # compiles fast
    how = {"over": part.over, "algorithm": part.ProjectedGradient(), "max_iter": 20, "dtype": "float64"}
    fit, want = (xv.solve(problem, part.start_at, backend=b, **how) for b in (name, "numpy"))
    assert fit.n_iter == want.n_iter == 20
    np.testing.assert_allclose(fit.theta, want.theta, rtol=1e-9)


def test_the_algorithm_certifies_counts_and_descends():
    f = Quadratic(np.diag(np.linspace(1.0, 9.0, 6)), rng().normal(size=6))
    region, theta = xv.sets.region.resolve(xv.sets.Simplex(), np.full(6, 1 / 6)), (np.full(6, 1 / 6),)
    iterates = list(states(example("An algorithm").ProjectedGradient(), f, region, theta, 30))
    for iterate in iterates:
        (x,) = iterate.theta
        g = f.H @ x - f.b
        assert float(iterate.gap_A) == pytest.approx(g @ x - g.min(), rel=1e-9, abs=1e-12)
        assert float(region.violation(iterate.theta)) <= 1e-14
    values = [float(iterate.value) for iterate in iterates]
    assert (np.diff(values) <= 1e-15).all()
    assert int(iterates[-1].counts.values) == f.values
    assert int(iterates[-1].counts.gradients) == f.gradients
    assert float(iterates[-1].gap_A) <= 1e-3 * float(iterates[0].gap_A)
