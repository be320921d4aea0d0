"""The whole suite, in both precisions, and a solve as a user writes it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import xvarpro as xv
from xvarpro import conformance


@pytest.mark.parametrize("target", conformance.targets(["mlx"]), ids=str)
def test_conformance(target):
    report = conformance.run([target])
    assert report.ok, report.failures


def test_arrays_come_and_go():
    """theta0 decides: MLX in, MLX out, in its precision."""

    def decays(theta, data):
        xp = xv.array_namespace(theta)
        return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)

    t = np.linspace(0.0, 2.0, 100)
    y = 2.0 * np.exp(-1.0 * t) + 1.0 * np.exp(-5.0 * t)
    problem = xv.separable(decays, y, data={"t": t}, lam=1e-9)
    fit = xv.solve(problem, mx.array([0.5, 8.0], dtype=mx.float64), over=xv.sets.Box(0.0, 10.0))
    assert isinstance(fit.theta, mx.array)
    assert fit.theta.dtype == mx.float64
    assert np.allclose(np.asarray(fit.theta), [1.0, 5.0], atol=1e-5)
