"""The backends and the rule of variants of the tests of the library."""

from __future__ import annotations

from dataclasses import replace

import pytest
from xvarpro_experiments.methods import Tuned

from tests import conftest

backend = conftest.backend


@pytest.fixture(scope="session")
def less_tuned():
    """Methods with a candidate each, of the middle: `test_race` is about tuning, and it takes most of the time."""

    def of(methods):
        grids = {m.name: m.candidates for m in methods if isinstance(m, Tuned)}
        middle = {name: grid[len(grid) // 2 :][:1] for name, grid in grids.items()}
        return tuple(replace(m, candidates=middle[m.name]) if m.name in middle else m for m in methods)

    return of


def pytest_collection_modifyitems(items):
    """What compiles a program of its own on JAX runs with ``-m thorough``; ``xvarpro run all`` compares backends."""
    mine = [item for item in items if item.path.parent.parent.name == "experiments"]
    conftest.pytest_collection_modifyitems(mine)
    for item in mine:
        if "jax" in item.name:
            item.add_marker(pytest.mark.thorough)
