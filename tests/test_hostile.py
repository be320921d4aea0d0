"""The suite on a library that does what those of a GPU may do, in double precision, on the second of its devices.

Members of a group have one value to the last bit: "distributed" does not apply where sums have another order at every
call. How that library differs from NumPy is in `tests/hostile.py`.
"""

import pytest

from xvarpro import conformance
from xvarpro_conformance import suite
from xvarpro_conformance.checks import exchange


@pytest.fixture
def cases_of_this_test(hostile):
    exchange.cases.cache_clear()  # among which are arrays of every backend that is known
    yield
    exchange.cases.cache_clear()


@pytest.mark.frameworks
@pytest.mark.parametrize("area", [area for area in suite.AREAS if area != "distributed"])
def test_the_suite(hostile, cases_of_this_test, area, subtests):
    for outcome in conformance.run(conformance.targets([hostile], dtypes=["float64"]), area):
        with subtests.test(outcome.address):
            assert outcome.ok, outcome.note or outcome.failures
