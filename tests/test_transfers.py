"""What a solve reads from a device: scalars, a few an iteration, and no array of the size of the target."""

import array_api_strict as strict
import numpy as np
import pytest

import xvarpro as xv
from xvarpro.backends.strict import StrictBackend

from .support import product, rng

K = 1200  # columns: a target that is too large to be refined, as one that is worth a device


@pytest.fixture
def reads(monkeypatch):
    """Sizes of what array-api-strict's host reads, if all that the backend itself does were done on a device."""
    found, on_device = [], []

    def count(cls, name, entries):
        method = getattr(cls, name)

        def counted(self, *arguments, **keywords):
            if entries and not on_device:
                found.append(entries(*arguments))
            on_device.append(name)
            try:
                return method(self, *arguments, **keywords)
            finally:
                on_device.pop()

        monkeypatch.setattr(cls, name, counted)

    for name in ("__bool__", "__float__", "__int__", "__complex__", "__index__"):
        count(type(strict.asarray(1.0)), name, lambda: 1)
    count(StrictBackend, "to_numpy", lambda x: int(np.prod(x.shape)))
    count(StrictBackend, "to_floats", lambda scalars: 1)
    for name in ("_by_numpy", "index_add", "checksum"):
        count(StrictBackend, name, None)
    return found


@pytest.mark.parametrize("step", [xv.steps.ShortStep(), xv.steps.Armijo()], ids=repr)
def test_an_iteration_reads_its_record_and_one_number_a_trial(step, reads):
    D, Y = rng(0).normal(size=(60, 3)), rng(1).normal(size=(60, K))
    D = strict.asarray(D / np.abs(D).sum() / 2)
    problem = xv.separable(product, strict.asarray(Y), lam=1e-2, compress=False)
    seen = []
    for n in (0, 2, 6):  # the first solve looks at the model as well
        reads.clear()
        fit = xv.solve(problem, D, (-1.0, 1.0), algorithm=xv.algorithms.FrankWolfe(step), tol=0.0, max_iter=n)
        assert fit.n_iter == n
        assert max(reads) <= 60 * 3  # theta0 for the recipe, and nothing larger
        seen.append((len(reads), fit.counts.values))
    _, (reads_2, values_2), (reads_6, values_6) = seen
    assert reads_6 - reads_2 == 4 + values_6 - values_2
