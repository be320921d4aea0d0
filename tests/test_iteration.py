"""When a solve ends, and how exactly an inexact lower level is solved on the way: the documented rules, in numbers."""

import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.algorithms import FrankWolfe, SpectralProjectedGradient, StochasticFrankWolfe
from xvarpro.algorithms.interface import Counts, Iterate
from xvarpro.backends import get
from xvarpro.core.status import Status
from xvarpro.driver.checkpoint import Checkpoint, Schedule
from xvarpro.driver.iteration import (
    Program,
    Tracked,
    _for_step,
    negligible_decrease,
    negligible_gap,
    noise,
    with_status,
)
from xvarpro.driver.prepare import prepare
from xvarpro.driver.run import Record, Run
from xvarpro.driver.units import near_one
from xvarpro.fit.solve import chosen
from xvarpro.objective.interface import LowerError
from xvarpro.sets import Box

from .support import decay_problem, rng

EPS = np.finfo(np.float64).eps
RUNNING, ENDED, NO_DESCENT = (s.code for s in (Status.RUNNING, Status.STALLED, Status.NO_DESCENT))


class State(NamedTuple):
    iterate: Any


def iterate(value=2.0, gap_A=0.0, gap_B=0.0, status=RUNNING, bend=0.0, **others):
    numbers = (np.asarray(x) for x in (value, gap_A, gap_B, 0.0, 0.0))
    zero = np.asarray(0.0)
    given = {k: np.asarray(x) if isinstance(x, float) else x for k, x in others.items()}
    counts = Counts(zero, zero, zero, zero, zero)
    return Iterate((np.zeros(2),), *numbers, np.asarray(status, np.int32), counts, np.asarray(bend), **given)


def ended(algorithm=None, tol=1e-3, floor=8.0, **fields):
    state = with_status(State(iterate(**fields)), algorithm or FrankWolfe(), np.asarray(tol), np.asarray(floor))
    return int(state.iterate.status), state.iterate


def test_a_gap_is_negligible_below_the_tolerance_or_rounding():
    assert negligible_gap(np.asarray(-2.0), np.asarray(1e-3), np.asarray(8.0)) == 2e-3
    assert negligible_gap(np.asarray(2.0), np.asarray(0.0), np.asarray(8.0)) == 80 * EPS
    assert negligible_gap(np.asarray(2, np.float32), np.float32(0), np.float32(8)) == np.float32(80) * 2**-23


def test_a_decrease_is_negligible_below_the_squared_tolerance_or_rounding():
    one = np.asarray(1.0)
    assert negligible_decrease(-2 * one, 1e-3 * one, 8 * one) == pytest.approx(2e-6, rel=1e-15)
    assert negligible_decrease(2 * one, 0 * one, 8 * one) == pytest.approx(100 * EPS**2 * 8, rel=1e-15)
    # a residual that is rounding has no slope that means anything: 100 eps of |y|
    edge = (100 * EPS) ** 2 * 8
    assert negligible_decrease(0.99 * edge * one, 0 * one, 8 * one) == np.inf
    assert negligible_decrease(1.01 * edge * one, 0 * one, 8 * one) < np.inf


def test_noise_of_an_objective_is_that_of_its_residual():
    assert noise(np.asarray(-4.0), np.asarray(9.0)) == pytest.approx(4 * EPS * (4 + 6), rel=1e-15)


CERTIFICATES = {
    "gap below": ({"gap_A": 1.9e-3}, Status.CONVERGED),
    "gap above": ({"gap_A": 2.1e-3}, Status.RUNNING),
    "what oracles may hide counts": ({"gap_A": 1.9e-3, "slack": 0.2e-3}, Status.RUNNING),
    "a free gap alone is none of the sets'": ({"gap_B": 1.0}, Status.CONVERGED),
    "what a model promises of the free block": ({"gap_B": 1.0, "bend": 1.9e-6}, Status.CONVERGED),
    "it promises more": ({"gap_B": 1.0, "bend": 2.1e-6}, Status.RUNNING),
    "the square of the gap": ({"gap_B": 10.0, "bend": 0.21e-6}, Status.RUNNING),
    "of the sets the method has no model": ({"gap_A": 1e-3, "bend": 1e3}, Status.CONVERGED),
    "an end stays": ({"gap_A": 1.0, "status": ENDED}, Status.STALLED),
    "an end at a minimum is one": ({"gap_A": 1e-3, "status": NO_DESCENT}, Status.CONVERGED),
    "no number": ({"value": np.nan}, Status.NON_FINITE),
    "no finite gap": ({"gap_A": np.inf}, Status.NON_FINITE),
    "no finite free gap": ({"gap_B": np.nan}, Status.NON_FINITE),
    "a decrease is what counts": ({"gap_A": 1.0, "decrease": 1.9e-8}, Status.CONVERGED),
    "a decrease above": ({"gap_A": 0.0, "decrease": 2.1e-8}, Status.RUNNING),
    "no descent, and rounding is left": (
        {"decrease": 1e-15, "status": NO_DESCENT, "tol": 0.0}, Status.ROUNDING
    ),
    "no descent, and more is left": ({"decrease": 1e-3, "status": NO_DESCENT, "tol": 0.0}, Status.NO_DESCENT),
}  # fmt: skip


def test_the_status_is_read_off_the_certificate(subtests):
    for name, (fields, status) in CERTIFICATES.items():
        with subtests.test(name):
            assert ended(**fields)[0] == status.code


def test_methods_that_project_answer_for_both_gaps():
    fields = {"gap_A": 1e-3, "gap_B": 1e-3}
    projecting = SpectralProjectedGradient()
    assert ended(projecting, **fields, bend=0.49)[0] == Status.CONVERGED.code
    assert ended(projecting, **fields, bend=0.51)[0] == Status.RUNNING.code
    assert ended(FrankWolfe(), **fields, bend=1.9)[0] == Status.CONVERGED.code
    assert ended(FrankWolfe(), **fields, bend=2.1)[0] == Status.RUNNING.code


def error(residual=1e-4, slack=0.0, reached=True):
    return LowerError(np.asarray(residual), np.asarray(1.0), np.asarray(slack), np.asarray(reached))


INEXACT = {
    "no descent, within the error: again": ({"slack": 1.1e-3}, NO_DESCENT, Status.RUNNING),
    "no descent, without it": ({"slack": 0.9e-3}, NO_DESCENT, Status.NO_DESCENT),
    "out of reach, but small": ({"slack": 0.9, "reached": False}, RUNNING, Status.RUNNING),
    "out of reach": ({"slack": 1.1, "reached": False}, RUNNING, Status.LOWER_LEVEL),
    "out of reach, no descent": ({"slack": 1.1, "reached": False}, NO_DESCENT, Status.LOWER_LEVEL),
    "reached": ({"slack": 1.1}, RUNNING, Status.RUNNING),
}


def test_an_inexact_lower_level_is_part_of_the_status(subtests):
    for name, (fields, before, after) in INEXACT.items():
        with subtests.test(name):
            code, it = ended(gap_A=0.75, gap_B=0.25, status=before, lower=error(**fields))
            assert code == after.code
            again = before == NO_DESCENT and after is Status.RUNNING
            assert it.lower.residual == pytest.approx(1e-4 * (1.1e-3 if again else 1.0), rel=1e-14)


def test_what_has_converged_has_not_failed():
    code, _ = ended(gap_A=1e-3, lower=error(slack=3e-3, reached=False))
    assert code == Status.CONVERGED.code


class Asked:
    exact = False

    def with_lower_tolerance(self, tol):
        return float(tol)


@pytest.mark.parametrize(
    ("fields", "slack", "want"),
    [
        ({"gap_A": 0.75, "gap_B": 0.25}, 2.0, 1e-4 / 2.0),  # the error is proportional to the residual
        ({"gap_A": -0.75, "gap_B": 0.25}, 2.0, 0.25e-4 / 2.0),
        ({"gap_A": 1e-9}, 2.0, 2e-3 * 1e-4 / 2.0),  # no tighter than the end asks for
        ({"gap_A": 0.5}, 0.0, 0.5),  # nothing is known of the error yet
    ],
)
def test_the_tolerance_of_the_lower_level_follows_the_gap(fields, slack, want):
    state = State(iterate(**fields, lower=error(slack=slack)))
    assert _for_step(Asked(), state, np.asarray(1e-3), np.asarray(8.0)) == pytest.approx(want, rel=1e-14)


def test_an_exact_lower_level_has_no_tolerance():
    f = Asked()
    f.exact = True
    assert _for_step(f, State(iterate(lower=error())), np.asarray(1e-3), np.asarray(8.0)) is f
    assert _for_step(Asked(), State(iterate()), np.asarray(1e-3), np.asarray(8.0)).exact is False


@pytest.mark.parametrize(
    ("value", "ahead"), [(2.0, False), (2 + 20 * EPS, False), (2 + 28 * EPS, True), (np.nan, True)]
)
def test_the_best_iterate_is_ahead_by_more_than_rounding(value, ahead):
    assert bool(Tracked(State(iterate(value)), iterate(2.0)).ahead(np.asarray(8.0))) is ahead


def test_the_best_iterate_is_the_lowest_before_the_last():
    now = Tracked.of(State(iterate(3.0)), iterate(3.0))
    for value, best in ((2.0, 3.0), (4.0, 2.0), (np.nan, 2.0), (1.0, 2.0), (1.5, 1.0)):
        now = now.after(get("numpy"), State(iterate(value)))
        assert now.best.value == best


@pytest.mark.parametrize("start", [0, 3])
def test_a_checkpoint_is_written_every_so_many_iterations(start):
    """From where this run began; and at once, so that a file that cannot be written is known."""
    written, at = [], [start]
    schedule = Schedule(lambda: written.append(at[0]), 5, start)
    assert schedule.left(start) == 5
    for done in range(start + 1, start + 13):
        at[0] = done
        schedule.after(done)
    assert written == [start, start + 5, start + 10]
    assert schedule.left(start + 12) == 3
    assert Schedule(written.clear, 5.0, 0).left(3) == sys.maxsize
    Schedule(lambda: written.append(-1), 1e-9, 0).after(1)
    Schedule(lambda: written.append(-2), 1e9, 0).after(10**12)
    assert written == [-1, -1, -2]


def test_a_checkpoint_is_written_every_so_many_seconds():
    """From when the last one was written."""
    now, written = [100.0], []
    schedule = Schedule(lambda: written.append(now[0]), 10.0, 0, lambda: now[0])
    for at in (109.0, 112.0, 121.0, 123.0, 140.0, 149.0):
        now[0] = at
        schedule.after(1)
    assert written == [100.0, 112.0, 123.0, 140.0]


def test_a_record_keeps_every_so_many_rows_and_the_last():
    first = np.arange(12.0)
    kept = Record(np.array([first * 0]), 3)
    for n in range(1, 8):
        kept.add(n * first[2:], seconds=0.5 * n)
        if n == 4:
            mark = kept.mark()
    assert (kept.done, kept.seconds, kept.row) == (7, 3.5, (7 * first[2:]).tolist())
    assert kept.table()[:, 0].tolist() == [0, 3, 6, 7]
    assert kept.table()[:, 2].tolist() == [0, 6, 12, 14]
    assert kept.table(mark)[:, 0].tolist() == [0, 3, 4]
    kept.row = [-x for x in first[2:]]
    assert kept.table()[-1].tolist() == [7, 3.5, *-first[2:]]
    kept.rewind(mark)
    assert kept.done == 4
    kept.add(9 * first[2:], seconds=9.0)
    assert kept.table()[:, :2].tolist() == [[0, 0], [3, 1.5], [5, 9.0]]


def test_a_compiled_loop_returns_within_a_fifth_of_a_second(subtests):
    for elapsed, done, pace, limit, steps in (
        (1.0, 10, 0.0, np.inf, 2),  # a fifth of a second's worth
        (1.0, 10, 0.05, np.inf, 2),
        (1.0, 1000, 0.05, np.inf, 4),  # later ones take longer
        (1.0, 10, 0.5, np.inf, 1),
        (1.0, 1000, 0.0, 1.1, 100),
        (1.0, 1000, 0.0, 1.0, 1),
        (0.0, 0, 0.0, np.inf, 1),
        (0.0, 3, 0.0, np.inf, 200_000_000),
    ):
        with subtests.test(str((elapsed, done, pace, limit))):
            for compiled, want in ((True, steps), (False, 1)):
                it = SimpleNamespace(prepared=SimpleNamespace(backend=SimpleNamespace(compiled=compiled)), _pace=pace)
                assert Run._batch(it, elapsed, done, limit) == pytest.approx(want, abs=1 if want > 100 else 0)


def test_iterations_of_one_call_of_a_loop_share_its_time(monkeypatch, tmp_path):
    """The limits of a solve and the times of its checkpoints are those of single iterations."""
    problem, theta0 = decay_problem(noise=0.02, lam=1e-3), np.array([0.5, 8.0])
    given = {"over": Box(0.0, 10.0), "algorithm": FrankWolfe(), "tol": 0.0, "max_iter": 17}
    one = xv.solve(problem, theta0, **given).trace
    monkeypatch.setattr(Run, "_batch", lambda self, elapsed, done, limit: 5)
    many = xv.solve(problem, theta0, **given).trace
    assert many.iteration.tolist() == list(range(18))
    for name in ("value", "gap_A", "alpha_A", "gradients"):
        assert (getattr(many, name) == getattr(one, name)).all()
    spent = np.diff(many.seconds)
    assert (spent > 0).all()
    for i in range(0, 15, 5):
        assert spent[i : i + 5] == pytest.approx(spent[i], rel=1e-6)
    written = []
    monkeypatch.setattr(Checkpoint, "save", lambda self, path: written.append(int(self.table[-1, 0])))
    xv.solve(problem, theta0, **given, checkpoint=tmp_path / "x.npz", checkpoint_every=3)
    assert written == [0, 3, 6, 9, 12, 15, 17]


def test_powers_of_two_bring_numbers_near_one():
    sizes = np.array([1.0, 1024.0, 1 / 1024, 1500.0, 1e-5, 0.0, np.nan, np.inf, 1e300, 1e-300])
    found = near_one(sizes, "float64")
    assert (found[[0, 1, 2, 5, 6, 7]] == 1).all()
    for i in (3, 4, 8, 9):
        assert 0.5 <= sizes[i] * found[i] < 1
        assert np.frexp(found[i])[0] == 0.5
    # whose own inverse the precision holds as well
    ends = near_one(np.array([5e-324, 1.7e308]), "float64")
    assert ends.tolist() == [2.0**1022, 2.0**-1022]
    assert near_one(np.array([1e-45, 3e38]), "float32").tolist() == [2.0**126, 2.0**-126]
    assert near_one(np.array([3.0, 5.0, 0.3]), "float64", within=4.0).tolist() == [1.0, 0.125, 1.0]


# -- a solve in one loop -----------------------------------------------------------------------------------------------


def in_one_loop(problem, theta0, over=None, algorithm=None, tol=1e-6, max_iter=1000):
    """What a compiled layer runs, on NumPy."""
    prepared = prepare(problem, theta0, over=over, solving=True)
    program, rest = Program.of(prepared, chosen(prepared, algorithm))
    with prepared.backend.scope(prepared.dtype):
        it, w = program.whole(prepared.backend, np.asarray(tol), rest, prepared.theta, max_iter)
    return it, w, Status.of(int(it.status))


ONE_LOOP = {
    "default": {},
    "in a box": {"over": Box(0.0, 10.0)},
    "free, by gradients": {"algorithm": SpectralProjectedGradient()},
    "in a box, by gradients": {"algorithm": SpectralProjectedGradient(), "over": Box(0.0, 10.0)},
    "by vertices": {"algorithm": FrankWolfe(), "over": Box(0.0, 10.0), "tol": 1e-2, "max_iter": 30},
    "by samples": {
        "algorithm": StochasticFrankWolfe(), "over": Box(0.0, 10.0), "tol": 1e-2, "max_iter": 20,
    },
    "too few": {"max_iter": 3},
    "too few, by gradients": {"algorithm": SpectralProjectedGradient(), "over": Box(0.0, 10.0), "max_iter": 4},
    "no iteration": {"max_iter": 0},
    "no iteration, by gradients": {"max_iter": 0, "algorithm": SpectralProjectedGradient()},
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_LOOP)
def test_a_solve_in_one_loop_is_the_solve(name):
    problem, theta0 = decay_problem(noise=0.02, lam=1e-3), np.array([0.5, 8.0])
    fit = xv.solve(problem, theta0, **ONE_LOOP[name])
    it, w, status = in_one_loop(problem, theta0, **ONE_LOOP[name])
    assert it.theta[0] == pytest.approx(fit.theta, rel=1e-12)
    assert float(it.value) == pytest.approx(fit.value, rel=1e-12)
    assert (float(it.gap_A), float(it.gap_B)) == pytest.approx((fit.gap_A, fit.gap_B), rel=1e-6)
    assert w[:, 0] == pytest.approx(fit.w, rel=1e-12)
    assert status is fit.status


def test_weights_of_a_solve_in_one_loop_are_solved_for_tightly():
    theta0, given = np.array([0.5, 8.0]), {"algorithm": SpectralProjectedGradient(), "tol": 1e-3, "max_iter": 50}
    it, w, _ = in_one_loop(decay_problem(noise=0.02, lam=1e-3, solver=xv.lower.LSMR()), theta0, **given)
    exact = xv.solve(decay_problem(noise=0.02, lam=1e-3), it.theta[0], max_iter=0)
    assert w[:, 0] == pytest.approx(exact.w, rel=1e-9)


def test_the_start_alone_is_solved_for_tightly():
    """With an ill-conditioned design a loose solution would have another objective and another gap."""
    A = rng(0).normal(size=(40, 15)) * np.logspace(0.0, -3.0, 15)
    y = rng(1).normal(size=40)

    def at_start(**lower):
        problem = xv.separable(lambda theta, A: A * theta, y, data=A, lam=1e-6, **lower)
        return xv.solve(problem, np.ones(15), over=Box(0.5, 10.0), max_iter=0)

    loose, exact = at_start(solver=xv.lower.LSMR()), at_start()
    assert loose.value == pytest.approx(exact.value, rel=1e-12)
    assert loose.gap_A == pytest.approx(exact.gap_A, rel=1e-6)
