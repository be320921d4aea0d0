"""The suite on a library that does what those of a GPU may do, in double precision, on the second of its devices.

Members of a group have one value to the last bit: "distributed" does not apply where sums have another order at every
call. How that library differs from NumPy is in `tests/hostile.py`.
"""

import numpy as np
import pytest

from xvarpro import backends, conformance
from xvarpro.backends import exchange
from xvarpro.core import namespace
from xvarpro_conformance import suite

from .hostile import READS
from .support import rng


@pytest.mark.frameworks
@pytest.mark.parametrize("area", [area for area in suite.AREAS if area != "distributed"])
def test_the_suite(hostile, area, subtests):
    for outcome in conformance.run(conformance.targets([hostile], dtypes=["float64"]), area):
        with subtests.test(outcome.address):
            assert outcome.ok, outcome.note or outcome.failures


def test_arrays_of_any_layout_are_made_compact_before_dlpack_hands_them_over(hostile):
    strict = backends.get("array-api-strict")  # its second device is no host: what goes there goes by DLPack
    given = {name: make() for name, make in hostile.suite_hooks().array_fixtures().items() if name != "float16"}
    for x, values in given.values():
        READS.clear()
        there = exchange.move(x, strict, device=strict.devices()["device1"])
        assert [kind for kind, _ in READS] == ["dlpack"]
        assert there.shape == values.shape
        assert (strict.to_numpy(there) == values).all()


@pytest.mark.parametrize(("of_A", "of_B"), [((), (2,)), ((2,), ()), ((3, 1), (2,))])
def test_stacks_of_systems_broadcast(of_A, of_B, hostile):
    A, B = rng(0).normal(size=(*of_A, 4, 4)) + 4 * np.eye(4), rng(1).normal(size=(*of_B, 4, 2))
    solved = namespace.solve(hostile.xp, hostile.asarray(A), hostile.asarray(B))
    assert np.allclose(hostile.to_numpy(solved), np.linalg.solve(A, B), rtol=0, atol=1e-14)
    solved = hostile.solve_triangular(hostile.asarray(A), hostile.asarray(B), lower=True)
    assert np.allclose(np.tril(A) @ hostile.to_numpy(solved), B, rtol=0, atol=1e-14)
