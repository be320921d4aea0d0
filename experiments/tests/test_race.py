"""Races: one budget, one rule of tuning, equal readings, nothing done twice."""

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from xvarpro_experiments import datasets, dictionary, race, report
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.methods import Curve, Method, Outcome, Solver, Tuned
from xvarpro_experiments.race import Experiment, Race
from xvarpro_experiments.rivals import IPALM, JointProjectedGradient

import xvarpro as xv
from xvarpro import Status

MEASURES = {
    "live atoms": lambda found: found.fit.verified.units - found.fit.verified.dead_units,
    "codes": lambda found: np.sum(found.w),
}
METHODS = (
    Solver("paper", "paper", xv.algorithms.cr_varpro()),
    Solver("default"),
    JointProjectedGradient("PG"),
    IPALM("iPALM"),
)


def small(methods=METHODS, measures=None):
    base = dictionary.experiment(datasets.digits(80).X, atoms=5)
    return replace(base, methods=methods, task=lambda seed: replace(base.task(seed), measures=measures or {}))


@pytest.fixture(scope="module")
def found():
    return race.run(small(measures=MEASURES), Budget(8, 60.0), seeds=(0, 1))


def outcome(name, family, iterations, seconds, value, status=Status.TIME_LIMIT):
    curve = Curve(*(np.asarray(x, float) for x in (iterations, seconds, value)))
    end = float(curve.value[-1])
    return Outcome(
        name, family, None, end, status, curve, own_objective=end, gap=0.0,
        iterations=int(iterations[-1]), seconds=float(seconds[-1]),
    )  # fmt: skip


class Stub(Method):
    def run(self, task, budget):
        raise AssertionError("is not run")


def raced(*outcomes):
    methods = tuple(Stub(o.method, o.family) for o in outcomes)
    return Race(Experiment("e", "t", None, methods, {}, {}), Budget(), {0: outcomes}, {0: None})


def test_curves_share_their_start_and_end_at_the_objective(found):
    for outcomes in found.outcomes.values():
        for o in outcomes:
            assert o.curve.iterations[0] == o.curve.seconds[0] == 0
            assert o.curve.value[0] == pytest.approx(outcomes[0].curve.value[0], rel=1e-10)
            assert o.curve.value[-1] == o.objective
            assert o.curve.iterations[-1] == o.iterations
            assert np.all(np.diff(o.curve.iterations) > 0)
            assert np.all(np.diff(o.curve.seconds) >= 0)


def test_measures_are_taken_of_the_iterates_that_were_kept(found):
    for o in found.outcomes[0]:
        assert set(o.measured) == set(MEASURES)
        live = np.count_nonzero(np.any(o.theta != 0, axis=0))
        assert o.measured["live atoms"].value[-1] == live
        D, X = o.theta, datasets.digits(80).X
        W = np.linalg.solve(D.T @ D + 1e-5 * np.eye(5), D.T @ X)
        assert o.measured["codes"].value[-1] == pytest.approx(np.sum(W), rel=1e-6)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_time_ends_every_method(method):
    o = method.run(small().task(0), Budget(None, 0.02))
    assert o.status in (Status.TIME_LIMIT, Status.CONVERGED)


def test_a_method_is_tuned_once_by_the_worst_of_the_starts():
    candidates = tuple(JointProjectedGradient(scale=10.0**k) for k in (-4, 0))
    rival = Tuned("PG, tuned", candidates=candidates)
    found = race.run(small((METHODS[0], rival)), Budget(10, 60.0), seeds=(0, 1))
    runs = found.of("PG, tuned")
    assert [o.run_as for o in runs] == [runs[0].run_as] * 2
    scores = [max(c.run(small().task(s), Budget(10, 60.0)).objective for s in (0, 1)) for c in candidates]
    assert f"scale={candidates[int(np.argmin(scores))].scale!r}" in runs[0].run_as


@dataclass(frozen=True)
class Scripted(Method):
    """A method whose objectives are given: after a fifth of the budget, and after all of it."""

    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()

    def run(self, task, budget):
        values = self.short if budget.iterations == 2 else self.long
        o = outcome(self.name, "rival", range(len(values)), range(len(values)), values)
        return replace(o, objective=min(values), curve=o.curve.lowest(), last=values[-1])


def test_a_candidate_that_oscillates_is_discarded():
    early = Scripted("early", "rival", (9.0, 3.0), (9.0, 3.0, 8.0))
    good = Scripted("good", "rival", (9.0, 4.0), (9.0, 4.0, 3.5))
    last = Scripted("last", "rival", (9.0, 5.0), (9.0, 5.0, 3.0))
    never = Scripted("never", "rival", (9.0, 6.0), (9.0, 6.0, 1.0))
    tuned = Tuned("tuned", candidates=(early, good, last, never)).tuned([small().task(0)], Budget(10, 60.0))
    assert tuned.long == last.long, "the better of the first two that end where they are lowest"
    alone = Tuned("tuned", candidates=(early,)).tuned([small().task(0)], Budget(10, 60.0))
    assert alone.long == early.long


def test_a_method_is_compared_by_its_best_iterate():
    o = Scripted("x", "rival", (9.0, 3.0, 8.0)).run(None, Budget(2))
    assert o.oscillates
    assert o.curve.at("iterations", 2) == o.objective == 3.0
    assert Curve(*(np.asarray([0.0, 1.0]),) * 2, np.asarray([math.nan, 1.0])).lowest().value[-1] == 1.0


def test_a_solver_may_have_a_set_of_its_own():
    wide = Solver(over=xv.sets.L1Ball(2.0)).run(small().task(0), Budget(20, 60.0))
    assert 1.01 < np.sum(np.abs(wide.theta)) <= 2.0 + 1e-9


def test_a_race_that_was_interrupted_goes_on(tmp_path):
    budget, experiment = Budget(5, 60.0), small(measures=MEASURES)
    first = race.run(experiment, budget, (0,), tmp_path)
    next(tmp_path.rglob("0-iPALM.json")).unlink()
    begun = []
    again = race.run(experiment, budget, (0,), tmp_path, announce=begun.append)
    assert ["iPALM" in text for text in begun] == [True]
    for a, b in zip(first.outcomes[0], again.outcomes[0], strict=True):
        assert a.objective == b.objective
        np.testing.assert_array_equal(a.theta, b.theta)
        np.testing.assert_array_equal(a.curve.value, b.curve.value)
        for name in MEASURES:
            np.testing.assert_array_equal(a.measured[name].value, b.measured[name].value)
    assert race.run(experiment, Budget(6, 60.0), (0,), tmp_path).outcomes[0][0].iterations == 6
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_damaged_files_of_an_interrupted_race_count_as_absent(suffix, tmp_path):
    budget, experiment = Budget(3, 60.0), small(METHODS[:1])
    first = race.run(experiment, budget, (0,), tmp_path).outcomes[0][0]
    path = next(tmp_path.rglob(f"0-paper{suffix}"))
    whole, middle = path.read_bytes(), path.stat().st_size // 2
    for damaged in (b"", whole[:middle], b"[]", b'{"plain": 1}', None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        begun = []
        again = race.run(experiment, budget, (0,), tmp_path, announce=begun.append).outcomes[0][0]
        assert len(begun) == (damaged != whole)
        assert again.objective == first.objective
        whole = path.read_bytes()


def test_readings_are_taken_where_all_have_been():
    slow = outcome("slow", "rival", [0, 1, 2], [0.0, 1.0, 4.0], [9.0, 5.0, 4.0])
    fast = outcome("fast", "ours", [0, 1, 2, 3], [0.0, 0.5, 1.0, 2.0], [9.0, 6.0, 3.0, 2.0])
    both = raced(slow, fast)
    assert (both.common(0, "seconds"), both.common(0, "iterations")) == (2.0, 2)
    assert both.readings("slow", "seconds")[0] == 5.0
    assert both.readings("fast", "iterations")[0] == 3.0
    # one that has settled would not have moved on
    early = outcome("early", "ours", [0, 1], [0.0, 0.1], [9.0, 8.0], Status.CONVERGED)
    assert raced(slow, fast, early).common(0, "seconds") == 2.0
    assert raced(early).common(0, "seconds") == 0.1


def test_a_duel_is_over_common_targets():
    ours = outcome("ours", "ours", [0, 1, 2], [0.0, 1.0, 2.0], [9.0, 4.0, 3.0])
    one = outcome("one", "rival", [0, 1, 2], [0.0, 5.0, 8.0], [9.0, 7.0, 3.2])
    two = outcome("two", "rival", [0, 1], [0.0, 9.0], [9.0, 5.0])
    found = raced(ours, one, two)
    assert found.target(0, 0.1) == pytest.approx(3.3)
    assert found.seconds_to("one", 0.1) == [8.0]
    duel = found.duel("ours")
    assert duel["excess"]["median"] == pytest.approx(3 / 9 - 1), "at the 2 s that all have run for"
    assert duel["speedup"][0.1]["median"] == pytest.approx(4.0)
    assert duel["speedup"][0.01]["median"] == pytest.approx(4.5), "a bound: no rival arrives in its 9 s"
    worse = outcome("ours", "ours", [0, 1], [0.0, 1.0], [9.0, 6.0])
    assert raced(worse, one).duel("ours")["speedup"][0.1]["median"] == 0
    assert raced(worse).duel("ours")["rivals"] == 0


def test_the_sentence_of_a_duel_says_what_came(subtests):
    def ran(name, family, seconds, end):
        return outcome(name, family, [0, 1], [0.0, seconds], [9.0, end])

    first = raced(ran("ours", "ours", 1.0, 3.0), ran("one", "rival", 2.0, 3.0))
    alone = raced(ran("ours", "ours", 1.0, 3.0), ran("one", "rival", 1.0, 6.0))
    last = raced(ran("ours", "ours", 1.0, 6.0), ran("one", "rival", 1.0, 3.0))
    neither = replace(alone, optima={0: 1.0})
    known = "within 1 % of the best value known"
    small = raced(ran("ours", "ours", 1.0, 1e-3), ran("one", "rival", 1.0, 1e-6))
    for found, said in (
        (first, f"-66.67% at equal time; it is {known} 2 times as fast as the first rival"),
        (alone, f"-50.00% at equal time; it is {known}, no rival is"),
        (last, f"+100.00% at equal time; it is not {known}, a rival is"),
        (neither, f"-50.00% at equal time; it is not {known}, and no rival is"),
        (small, f"0.001 where they have 1e-06 at equal time; it is not {known}, a rival is"),
    ):
        with subtests.test(said):
            assert report.duel(found) == [f"ours against the rivals: {said}"]
    other = replace(first, experiment=replace(first.experiment, compared_by="accuracy"))
    assert report.duel(other) == ["The methods are compared by accuracy, not by the objective."]


def test_a_longer_run_of_the_lowest_method_sets_the_best_value(found):
    for seed, ran in found.outcomes.items():
        lowest = min(ran, key=lambda o: o.objective)
        assert not lowest.settled
        assert found.references[seed] < lowest.objective
        assert found.target(seed, 0.0) == found.references[seed]
        assert found.above(seed, lowest.objective) > 0
    assert found.record()["longer_run"] == found.references


def test_the_declared_method_is_the_default_whatever_came_out():
    default = outcome("xvarpro's default, two splits", "ours", [0, 1], [0.0, 1.0], [9.0, 8.0])
    better = outcome("better", "paper", [0, 1], [0.0, 1.0], [9.0, 5.0])
    assert raced(better, default).declared == default.method
    assert raced(better).declared == better.method


def test_how_long_a_race_takes_is_counted_with_tuning_and_the_longer_run():
    candidates = tuple(Stub(f"{i}", "rival") for i in range(5))
    methods = (Stub("a", "ours"), Tuned("b", candidates=candidates))
    stated = Experiment("e", "t", None, methods, {}, {})
    assert race.longest(stated, Budget(None, 2.0), (0,)) == pytest.approx(2 * (1 + (1 + 0.2 * 5 + 2) + 3))
    other = replace(stated, compared_by="accuracy")
    assert race.longest(other, Budget(None, 2.0), (0, 1)) == pytest.approx(2 * (2 + (2 + 0.2 * 5 + 4)))


def test_the_best_is_a_method_of_the_package_that_is_finite():
    nan = outcome("nan", "ours", [0, 1], [0.0, 1.0], [9.0, math.nan])
    good = outcome("good", "paper", [0, 1], [0.0, 1.0], [9.0, 5.0])
    rival = outcome("rival", "rival", [0, 1], [0.0, 1.0], [9.0, 1.0])
    assert raced(nan, good, rival).best() is good
    json.dumps(raced(good, rival).record(), allow_nan=False)


def test_the_best_over_several_starts_is_nearest_to_the_lowest_value_of_each():
    ends = {"once": [0.9, math.inf, math.inf], "low": [1.0, 200.0, 20.0], "near": [1.5, 100.0, 10.0]}
    starts = [tuple(outcome(name, "ours", [0, 1], [0.0, 1.0], [300.0, values[i]]) for name, values in ends.items())
              for i in range(3)]  # fmt: skip
    found = replace(raced(*starts[0]), outcomes=dict(enumerate(starts)), optima=dict.fromkeys(range(3)))
    assert [found.best(seed).method for seed in range(3)] == ["once", "near", "near"]
    assert found.best() is starts[0][2]


def test_a_theta_that_is_not_finite_has_no_certificate():
    task = small().task(0)
    assert task.certify(np.full_like(task.theta0, np.nan)) is None
