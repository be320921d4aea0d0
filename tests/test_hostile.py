"""The suite on a library that does what CUDA's libraries may do."""

import pytest

from xvarpro import backends, conformance
from xvarpro_conformance.checks import exchange

AREAS = (
    "exchange",
    "derivatives",
    "factorisations",
    "control flow",
    "numerics scope",
    "sets",
    "steps",
    "operators",
    "lower level",
    "reduced gradient",
    "solves",
    "results",
    "paper",
    "distributed",
)


@pytest.fixture
def hostile(plug):
    exchange.cases.cache_clear()
    yield backends.get(plug("hostile", source="", target="tests.hostile:HostileBackend"))
    exchange.cases.cache_clear()


@pytest.mark.frameworks
@pytest.mark.parametrize("area", AREAS)
def test_suite(hostile, area, subtests):
    for outcome in conformance.run(conformance.targets([hostile], dtypes=["float64"]), [area]):
        with subtests.test(outcome.address):
            assert outcome.ok, outcome.note or outcome.failures
