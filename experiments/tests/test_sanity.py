"""What a summary has to show: every check fails on the fault that it is for."""

import copy
import math

import pytest
from xvarpro_experiments import sanity


@pytest.fixture
def summary():
    def run(family, objective, gap, start_gap, infeasibility=0.0):
        return {
            "family": family, "seed": 0, "objective": objective, "gap": gap, "start_gap": start_gap,
            "infeasibility": infeasibility,
        }  # fmt: skip

    runs = [run("paper", 3.0, 2.0, 9.0), run("ours", 1.0, 0.1, 9.0), run("rival", 5.0, 9.0, 9.0, 1e-16)]
    compare = {"relations": {"torch": {"excess": 2.0}}}
    return {"config": {"dtype": "float64"}, "start_objective": {0: 4.0}, "runs": runs, "compare": compare}


def failed(summary):
    return [check.what.replace(",", "").partition(" ")[0] for check in sanity.checks(summary) if not check.passed]


def test_a_sound_summary_passes(summary):
    assert len(list(sanity.checks(summary))) == 4
    assert failed(summary) == []


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (lambda s: s["runs"][0].update(objective=4.0), "objective"),
        (lambda s: s["runs"][1].update(objective=None), "objective"),
        (lambda s: s["runs"][1].update(gap=1.0), "gap"),
        (lambda s: s["runs"][2].update(infeasibility=1e-9), "infeasibility"),
        (lambda s: s["runs"][0].update(infeasibility=math.nan), "infeasibility"),
        (lambda s: s["compare"]["relations"]["torch"].update(excess=31.0), "objectives"),
        (lambda s: s["compare"]["relations"]["torch"].update(excess=None), "objectives"),
    ],
)
def test_a_fault_is_found(summary, fault, check):
    wrong = copy.deepcopy(summary)
    fault(wrong)
    assert failed(wrong) == [check]


def test_a_rival_may_fail_to_descend(summary):
    summary["runs"][2]["objective"] = 8.0
    assert failed(summary) == []


def test_float32_is_feasible_to_its_own_rounding(summary):
    summary["config"]["dtype"] = "float32"
    summary["runs"][1]["infeasibility"] = 1e-6
    assert failed(summary) == []
