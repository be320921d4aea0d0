"""What JAX compiles: once for a structure, not for other numbers."""

import logging
import os
import subprocess
import sys

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.cli import programs
from xvarpro.core import trees

jax = pytest.importorskip("jax")


def design(theta, data):
    return data * theta


@pytest.fixture(scope="module")
def solved():
    """A function that solves a dictionary problem and counts the compilations of it."""
    draw = np.random.default_rng(0)
    start = draw.normal(size=(8, 3))
    start /= np.abs(start).sum()

    def solve(caplog, lam=1e-3, radius=1.0, tol=1e-8, scale=1.0, unit=1.0, **options):
        y = scale * np.random.default_rng(1).normal(size=(8, 5))
        problem = xv.separable(design, y, data=np.full((8, 1), unit), lam=lam, solver=xv.lower.SVD())
        caplog.clear()
        with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
            fit = xv.solve(problem, start, over=xv.sets.L1Ball(radius), tol=tol, backend="jax", max_iter=5, **options)
            found = fit.value, fit.w
        return found, sum("Finished XLA compilation" in record.getMessage() for record in caplog.records)

    return solve


def test_other_numbers_compile_nothing(solved, caplog):
    """Of the same structure: another ridge, radius, tolerance, target or data. An end by its limit asks for no look."""
    _, first = solved(caplog)
    assert first > 0
    for other in ({"lam": 2e-2}, {"radius": 1.5}, {"tol": 1e-9}, {"scale": 1.1}, {"unit": 2.0}):
        assert solved(caplog, **other)[1] == 0, other


def test_commands_keep_programs(tmp_path, monkeypatch):
    """In the user's cache folder, unless a variable names another one."""
    code = "from xvarpro.cli import programs; programs.keep(); import jax; print(jax.config.jax_compilation_cache_dir)"
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    env |= {"XDG_CACHE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path), "HOME": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) in found
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # set back after the test
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    programs.keep()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"


def traced(C):
    """Arrays of a set, its numbers among them, and the rest; None where it has no such numbers."""
    found = trees.partition(trees.with_numbers(C, np.float32))
    return found if len(found[0]) > len(trees.partition(C)[0]) else None


def examples(kind):
    cases = [(C, shape) for shape in ((6,), (3, 3)) for C in kind.examples(shape)]
    return [(C, shape) for C, shape in cases if C.event_ndim == len(shape) and C.compiles and traced(C)]


@pytest.mark.parametrize(
    "most", [pytest.param(1, marks=pytest.mark.frameworks), pytest.param(None, marks=pytest.mark.thorough)]
)
def test_the_radius_of_a_set_may_be_traced(most, subtests):
    """No oracle asks for its value."""
    kinds = [kind for name in xv.sets.__all__ if isinstance(kind := getattr(xv.sets, name), type)]
    for kind in kinds:
        if issubclass(kind, xv.sets.Set) and kind is not xv.sets.Set:
            with subtests.test(kind.__name__):
                trace(kind, most)


def trace(kind, most):
    draw = np.random.default_rng(0)
    for C, shape in examples(kind)[:most]:
        arrays, skeleton = traced(C)
        g, x = (draw.normal(size=shape).astype("float32") for _ in range(2))

        def oracles(arrays, g, x, skeleton=skeleton):
            C = skeleton.fill(arrays)
            found = [*C.certified(g), C.violation(x)]
            if C.has_projection:
                found.append(C.project(x))
            if C.has_faces:
                found += [C.away(g, x), C.tangent(g, x), C.reach(g, x), C.slide(g, x)]
            return [y for y in found if y is not None]

        jax.eval_shape(oracles, arrays, g, x)
