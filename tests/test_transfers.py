"""What a solve reads from a device: scalars, a few an iteration, and no array of the size of the target."""

from functools import partial

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import algorithms, sets, steps

from .hostile import LAUNCHES, READS
from .support import decays, product, rng

K = 1200  # columns: a target that is too large to be refined, as one that is worth a device


def sent(hostile, x):
    return hostile.asarray(x, device=hostile.devices()["cuda:1"])


def dictionary(hostile, shape=(60, 3), columns=K):
    D = rng(0).normal(size=shape)
    problem = xv.separable(product, sent(hostile, rng(1).normal(size=(len(D), columns))), lam=1e-2, compress=False)
    return problem, sent(hostile, D / abs(D).sum() / 2)


def rates(hostile, theta0=(0.5, 8.0)):
    t = np.linspace(0.0, 2.0, 200)
    y = np.exp(-np.outer(t, rng(2).uniform(0.5, 5.0, 400))) + 1e-3 * rng(3).normal(size=(200, 400))
    problem = xv.separable(decays, sent(hostile, y), data=sent(hostile, t), lam=1e-9, compress=False)
    return problem, sent(hostile, np.array(theta0))


def seen(make, method, over, hostile, n, more):
    """Reads, launches and values of iterations from number n to n + more."""
    problem, theta0 = make(hostile)
    found = []
    for count in (n, n + more):  # what a solve does at its start and at its end is in both
        READS.clear()
        LAUNCHES.clear()
        fit = xv.solve(problem, theta0, over, algorithm=method, tol=0.0, max_iter=count)
        assert fit.n_iter == count
        assert fit.theta.device == theta0.device
        assert max(size for _, size in READS) <= max(theta0.size, 20)  # theta0 for the recipe
        found.append((len(READS), LAUNCHES.total(), fit.counts.values))
    return np.subtract(*reversed(found))


METHODS = {
    "the paper's steps": (algorithms.FrankWolfe(steps.ShortStep()), 2, 130),
    "open loop": (algorithms.FrankWolfe(steps.OpenLoop()), 2, 105),
    "atoms": (algorithms.ActiveSetFrankWolfe(), 3, 270),
    "away steps": (algorithms.ActiveSetFrankWolfe(algorithms.AwayStep()), 3, 300),
    "pairwise steps": (algorithms.ActiveSetFrankWolfe(algorithms.Pairwise()), 3, 290),
    "in the face": (algorithms.InFaceFrankWolfe(), 2, 285),
    "projected gradient": (algorithms.SpectralProjectedGradient(), 2, 125),
    "accelerated": (algorithms.AcceleratedProjectedGradient(), 2, 160),
    "quasi-Newton, before it begins": (algorithms.ProjectedQuasiNewton(), 2, 190),
    "quasi-Newton": (algorithms.ProjectedQuasiNewton(settle=0), 2, 330),
    "in-face quasi-Newton, before it begins": (algorithms.InFaceQuasiNewton(), 3, 230),
    "mini-batches": (algorithms.StochasticProjectedGradient(batch=K), 2, 110),
}


@pytest.mark.parametrize("name", METHODS)
def test_an_iteration_reads_two_or_three_numbers(name, hostile):
    method, reads, launches = METHODS[name]
    found = seen(dictionary, method, (-1.0, 1.0), hostile, 2, 4)
    assert found[0] <= 4 * reads
    assert found[1] <= 4 * launches


L1 = sets.Columns(sets.L1Ball(0.5))
BALLS = {
    "the default": (L1, algorithms.ProjectedQuasiNewton(), 230),
    "quasi-Newton": (L1, algorithms.ProjectedQuasiNewton(settle=0), 420),
    "singular values": (sets.NuclearBall(0.2), algorithms.SpectralProjectedGradient(), 200),
}


@pytest.mark.parametrize("name", BALLS)
def test_a_projection_onto_balls_of_l1_and_its_kin_reads_nothing(name, hostile):
    over, method, launches = BALLS[name]
    reads, launched, _ = seen(dictionary, method, over, hostile, 2, 4)
    assert reads <= 4 * 2
    assert launched <= 4 * launches


@pytest.mark.parametrize(
    ("theta0", "over"),
    [((0.5, 8.0), None), ((0.5, 8.0), (0.0, 10.0)), ((2.5, 8.0), (2.5, 10.0))],
    ids=["free", "inside", "at a bound"],
)
def test_an_iteration_of_levenberg_marquardt_reads_its_model_and_its_record(theta0, over, hostile):
    found = seen(partial(rates, theta0=theta0), algorithms.LevenbergMarquardt(), over, hostile, 3, 4)
    assert found[0] <= 4 * 2
    assert found[1] <= 4 * 85


@pytest.mark.parametrize("step", [steps.Armijo(), steps.Armijo(warm=True), steps.ShortStep(L=50.0)])
def test_an_iteration_reads_its_record_and_one_number_a_trial(step, hostile):
    reads, _, values = seen(dictionary, algorithms.FrankWolfe(step), (-1.0, 1.0), hostile, 2, 4)
    assert 4 < values <= 4 * 6
    assert reads == 4 + values


def test_whether_a_cholesky_factor_is_good_enough_is_read_with_the_record(hostile):
    tall = partial(dictionary, shape=(2048, 8), columns=40)
    assert seen(tall, algorithms.FrankWolfe(), (-1.0, 1.0), hostile, 3, 4)[0] <= 4 * 2
    reads, _, values = seen(tall, algorithms.ProjectedQuasiNewton(), L1, hostile, 20, 20)
    assert reads <= 2.3 * 20 < 2.3 * values  # one a trial, and of a second one again


@pytest.mark.parametrize(
    ("answers", "made"),
    [("111111", "012345"), ("110000", "0122345"), ("101010", "012345"), ("111011", "0123345")],
)
def test_a_step_is_made_again_where_a_steady_condition_has_changed(answers, made, hostile):
    """After two steps with the same answer it is guessed, and read with the record."""
    steps, given = [], [sent(hostile, np.array(a == "1")) for a in answers]

    def step(state):
        n, total = state
        steps.append(round(float(hostile.to_numpy(n))))
        return n + 1, hostile.when(given[steps[-1]], lambda x: x + 10, total, steady=True) + 1

    zero = sent(hostile, np.array(0.0))
    run = hostile.loop(lambda operands: step, lambda state: state[1:], lambda state: state[0] < 6, None)
    _, rows = run((), (zero, zero), 9)
    assert [row[0] for row in rows] == list(np.cumsum([1 + 10 * int(a) for a in answers]))
    assert "".join(map(str, steps)) == made


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


@pytest.mark.parametrize("loss", [None, "poisson"])
def test_levenberg_marquardt_goes_on_from_a_checkpoint_of_a_device(loss, hostile, tmp_path):
    """Its steps are those of NumPy, with what the device has computed; w stays on the device."""
    t = np.linspace(0.0, 2.0, 50)
    y = rng(3).poisson(1e3 * np.exp(-np.outer(t, [0.5, 4.0])) @ [2.0, 1.0]).astype(float)
    problem = xv.separable(decays, sent(hostile, y), data=sent(hostile, t), loss=loss)
    theta0, over = sent(hostile, np.array([1.0, 2.0])), (0.6, 10.0)
    whole = xv.solve(problem, theta0, over, tol=1e-9)
    path = tmp_path / "fit.npz"
    xv.solve(problem, theta0, over, tol=1e-9, max_iter=2, checkpoint=path)
    rest = xv.solve(problem, theta0, over, tol=1e-9, checkpoint=path)
    assert whole.success
    assert rest.success
    assert rest.n_iter > 2
    one, other = map(hostile.to_numpy, (whole.theta, rest.theta))
    np.testing.assert_allclose(one, other, rtol=1e-6)
    on_host = xv.separable(decays, y, data=t, loss=loss)
    np.testing.assert_allclose(xv.solve(on_host, np.array([1.0, 2.0]), over, tol=1e-9).theta, one, rtol=1e-6)
