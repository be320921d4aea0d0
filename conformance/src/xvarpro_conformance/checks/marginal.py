"""Marginal likelihoods against a hundred digits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro.core.namespace import find_dtype, namespace_of
from xvarpro.driver.prepare import prepare
from xvarpro.objective.curvature import marginal_hessian
from xvarpro_conformance.references.marginal import NOISES, Case, drawn
from xvarpro_conformance.suite import Measured, Target, alternate, check

INVERSE_GAMMA = NOISES[-1]


@cache
def cases() -> dict[str, Case]:
    """Every prior of w and of the noise, weights of every kind, real and complex."""
    kinds: dict[str, Any] = {
        "flat": {"ridge": "flat"},
        "flat, unknown noise": {"ridge": "flat", "noise": None, "weights": "rows"},
        "ridge, Omega and a mean": {"ridge": "number", "noise": INVERSE_GAMMA, "Omega": True, "mean": True},
        "flat in some": {"ridge": "some", "noise": None},
        "ridge by entry": {"ridge": "entries", "weights": "entries"},
        "ridge of theta": {"ridge": "theta", "noise": None, "complex_": True},
        "covariance": {"ridge": "number", "weights": "toeplitz", "complex_": True},
        "wide": {"ridge": "theta", "shape": (3, 7), "Omega": True},
        "minimum norm": {"ridge": "number", "solver": xv.lower.SVD(), "columns": 1},
    }
    return {name: drawn(np.random.default_rng(i), **kind) for i, (name, kind) in enumerate(kinds.items())}


COMPILED = "flat, unknown noise", "ridge of theta"


@cache
def exact(name: str) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Minus the log density, the sizes of its terms, its gradient, and its Hessian times ones."""
    case = cases()[name]
    value, size = case.value()
    return float(value), float(size), case.gradient(), case.hessian(np.ones_like(case.theta))


@check("reduced gradient", lambda: {name: name for name in cases()})
def marginal_likelihoods(target: Target, name: str) -> Iterator[Measured]:
    """Log densities with w integrated out, constants included, their gradients and products with their Hessians."""
    case = cases()[name]
    if np.iscomplexobj(case.A):
        find_dtype(target.backend.xp, target.complex_dtype)
    target.represent(alternate(COMPILED.index(name)) if name in COMPILED else ())
    problem, theta = case.problem, case.theta.astype(target.dtype)
    with target.scope():
        value, gradient = problem.log_density_and_gradient(theta, target.backend, device=target.device)
        prepared = prepare(problem, theta, backend=target.backend, device=target.device)
        ones = tuple(namespace_of(x).ones_like(x) for x in prepared.theta)
        (bend,) = (target.host(x) for x in prepared.call(marginal_hessian, prepared.theta, ones))
    known, size, slope, bends = exact(name)
    yield Measured("log density", np.asarray(value), np.asarray(-known), 12 * target.eps * case.condition, size)
    yield Measured("gradient", np.asarray(gradient), -slope, 100 * target.eps * case.condition)
    yield Measured("H u", bend, bends, 100 * target.eps * case.condition**2)
