"""What a solve reads from a device: scalars, a few an iteration, and no array of the size of the target."""

import pytest

import xvarpro as xv

from .hostile import READS
from .support import product, rng

K = 1200  # columns: a target that is too large to be refined, as one that is worth a device


def sent(hostile, x):
    return hostile.asarray(x, device=hostile.devices()["cuda:1"])


@pytest.mark.parametrize(("step", "trials"), [(xv.steps.ShortStep(), 1), (xv.steps.Armijo(), 4)])
def test_an_iteration_reads_its_record_and_one_number_a_trial(step, trials, hostile):
    D, Y = rng(0).normal(size=(60, 3)), sent(hostile, rng(1).normal(size=(60, K)))
    D = sent(hostile, D / abs(D).sum() / 2)
    problem = xv.separable(product, Y, lam=1e-2, compress=False)
    seen = []
    for n in (0, 2, 6):  # the first solve looks at the model as well
        READS.clear()
        fit = xv.solve(problem, D, (-1.0, 1.0), algorithm=xv.algorithms.FrankWolfe(step), tol=0.0, max_iter=n)
        assert fit.n_iter == n
        assert max(size for _, size in READS) <= 60 * 3  # theta0 for the recipe, and nothing larger
        seen.append((len(READS), fit.counts.values))
    _, (reads_2, values_2), (reads_6, values_6) = seen
    assert reads_6 - reads_2 == 4 + values_6 - values_2 <= 4 * (1 + trials)
    assert fit.theta.device == Y.device


def test_a_small_problem_of_a_device_is_solved_on_the_host_and_returns(hostile):
    problem = xv.separable(product, rng(1).normal(size=(6, 4)), lam=1e-2)
    theta0 = sent(hostile, rng(0).normal(size=(6, 2)))
    fit = xv.solve(problem, theta0, backend="numpy", max_iter=1)
    assert fit.provenance["backend"] == "numpy"
    assert fit.theta.device == fit.w.device == theta0.device
    with pytest.raises(xv.errors.ProblemError, match="device must be one of 'cuda:0', 'cuda:1' on hostile; got 'cpu'"):
        xv.solve(problem, theta0, device="cpu")


def test_targets_are_hashed_when_fingerprints_are_asked_for(hostile):
    problem = xv.separable(product, sent(hostile, rng(1).normal(size=(60, K))), lam=1e-2, compress=False)
    READS.clear()
    fit = xv.solve(problem, sent(hostile, rng(0).normal(size=(60, 3))), max_iter=1)
    assert ("asnumpy", 60 * K) not in READS
    assert fit.recipe.fingerprints["lower.y"] != fit.recipe.fingerprints["theta0"]
    assert READS.count(("asnumpy", 60 * K)) == 1
