"""What every part of the experiments refuses before any work."""

import math

import numpy as np
import pytest
from xvarpro_experiments import autoencoder, deconvolution, dictionary, fewshot, race
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.methods import Solver
from xvarpro_experiments.rivals import IPALM, AlternatingLeastSquares, JointAdam, Jointly, JointProjectedGradient

from xvarpro.errors import ProblemError

X = np.ones((5, 4))


MISTAKES = [
    (lambda: autoencoder.problem(X, ridge=0.0), "ridge must be"),
    (lambda: autoencoder.problem(X, splits=3), "splits must be 1 or 2"),
    (lambda: autoencoder.problem(X, scale=math.inf), "scale must be"),
    (lambda: autoencoder.problem(X[0]), "X must have shape"),
    (lambda: autoencoder.start(4, ()), "pixels and widths"),
    (lambda: autoencoder.start(4, (2,), rho=0.0), "rho must be"),
    (lambda: autoencoder.load("faces"), "must be one of"),
    (lambda: autoencoder.load("digits", 0), "samples must be"),
    (lambda: autoencoder.setting("digits", units=0.0), "units must be"),
    (lambda: autoencoder.setting(autoencoder.centred(X, X, (2, 2))), "widths of the layers"),
    (lambda: autoencoder.Adam(rate=-1.0), "rate must be"),
    (lambda: autoencoder.Adam(batch=0), "batch must be"),
    (lambda: deconvolution.problem(X[0]), "signals, \\*grid"),
    (lambda: deconvolution.start(X, rho=0.0), "rho"),
    (lambda: deconvolution.signals(noise=-1.0), "noise"),
    (lambda: deconvolution.optimum(X[0]), "real array"),
    (lambda: deconvolution.experiment(units=0.0), "units"),
    (lambda: deconvolution.experiment(dtype="int8"), "dtype"),
    (lambda: dictionary.start(X, 0), "atoms"),
    (lambda: dictionary.start(X, 2, math.inf), "radius"),
    (lambda: dictionary.experiment(X, atoms=2, lam=-1.0), "lam"),
    (lambda: dictionary.experiment(X, atoms=2, units=0.0), "units"),
    (lambda: dictionary.experiment(X, atoms=2, pixels=-1), "pixels must be 0, or from 1 to the 5 of an image"),
    (lambda: dictionary.experiment(X, atoms=2, pixels=6), "pixels must be 0, or from 1 to the 5 of an image"),
    (lambda: fewshot.experiment(source="mars"), "source must be one of"),
    (lambda: fewshot.experiment(trained="all"), "trained must be one of"),
    (lambda: fewshot.experiment(units=0.0), "units must be"),
    (lambda: fewshot.experiment(validation=0), "validation must be"),
    (lambda: fewshot.experiment(shots=0), "shots and tests"),
    (lambda: fewshot.experiment(shots=500), "needs more than 1000 validation images"),
    (lambda: fewshot.episode(fewshot.digits_backbone(), 1, 10, 0, "training"), "half must be one of"),
    (lambda: fewshot.targets(np.array([0, 5]), 5), "labels must lie in"),
    (lambda: fewshot.start(8, 0), "width must be"),
    (lambda: IPALM(inertia=1.0), "inertia"),
    (lambda: IPALM(scale=0.0), "scale"),
    (lambda: JointProjectedGradient(scale=-1.0), "scale"),
    (lambda: JointAdam(rate=math.inf), "rate"),
    (lambda: AlternatingLeastSquares(sweeps=0), "sweeps"),
    (lambda: Jointly(inner=None), "inner"),
    (lambda: Budget(0), "iterations"),
    (lambda: Budget(1, math.nan), "time"),
    (lambda: Solver("x", family="friend"), "family"),
    (lambda: race.run(dictionary.experiment(X, atoms=2), Budget(1), seeds=()), "seeds"),
]


def test_a_mistake_is_refused(subtests):
    for number, (call, reason) in enumerate(MISTAKES):
        with subtests.test(f"{number}: {reason}"), pytest.raises(ProblemError, match=reason):
            call()
