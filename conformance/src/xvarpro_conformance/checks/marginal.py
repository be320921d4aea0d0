"""Marginal likelihoods against a hundred digits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro.core.namespace import find_dtype, namespace_of
from xvarpro.core.struct import Array, Tree
from xvarpro.driver.prepare import prepare
from xvarpro.objective.curvature import marginal_hessian
from xvarpro_conformance.problems import decays
from xvarpro_conformance.references.marginal import Case, drawn
from xvarpro_conformance.suite import Measured, Target, alternate, check


@cache
def cases() -> dict[str, Case]:
    """Every prior of w and of the noise, weights of every kind, real and complex."""
    kinds: dict[str, Any] = {
        "flat": {"ridge": "flat"},
        "flat, unknown noise": {"ridge": "flat", "noise": None, "weights": "rows"},
        "ridge, Omega and a mean": {"ridge": "number", "noise": xv.InverseGamma(2.0, 0.3), "Omega": True, "mean": True},
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
        value, gradient = problem.log_density_and_gradient(target.send(theta))
        prepared = prepare(problem, theta, backend=target.backend, device=target.device)
        ones = tuple(namespace_of(x).ones_like(x) for x in prepared.theta)
        (bend,) = (target.host(x) for x in prepared.call(marginal_hessian, prepared.theta, ones))
    known, size, slope, bends = exact(name)
    yield Measured("log density", target.host(value), np.asarray(-known), 12 * target.eps * case.condition, size)
    yield Measured("gradient", target.host(gradient), -slope, 100 * target.eps * case.condition)
    yield Measured("H u", bend, bends, 100 * target.eps * case.condition**2)


T = np.linspace(0.0, 2.0, 12)
START: dict[str, np.ndarray] = {"rate": np.array([0.8, 3.0, 1.0, -1.0]), "share": np.array([0.2, 0.5, 0.3])}
OVER = {
    "rate": xv.sets.Box([0.5, 1.0, -np.inf, -np.inf], [2.0, np.inf, 2.0, np.inf]),
    "share": xv.sets.Simplex(),
}


def _curves(theta: Tree, t: Array) -> Array:
    xp = namespace_of(t)
    t = xp.expand_dims(t, axis=1)
    return xp.exp(-t * theta["rate"][:2]) + t * xp.sum(theta["rate"][2:] ** 2) + t**2 * theta["share"][:2]


@cache
def smooth() -> xv.Marginal:
    """A density of rates and shares."""
    y = np.exp(-T) + 0.1 * np.cos(30 * T)
    return xv.marginal(xv.separable(_curves, y, data=T, lam=0.5), 0.5)


@cache
def on_coordinates() -> tuple[Any, Any, Any]:
    """Coordinates of START, and the log density and its gradient there, on NumPy: tests have the Jacobians."""
    plain = smooth().unconstrained(START, OVER)
    u = plain.from_theta(START)
    return u, *plain.log_density_and_gradient(u)


@check("reduced gradient")
def unconstrained_densities(target: Target, _: None) -> Iterator[Measured]:
    """Log densities with the Jacobians of the maps onto boxes and simplices, and their gradients."""
    u, value, slope = on_coordinates()
    with target.scope():
        sent = smooth().unconstrained(target.send_tree(START), OVER)
        at = target.send(u)
        density, gradient = sent.log_density_and_gradient(at)
        theta, back = sent.to_theta(at), sent.from_theta(sent.to_theta(at))
    yield Measured("log density", target.host(density), np.asarray(value), 500 * target.eps)
    yield Measured("gradient", target.host(gradient), slope, 5e3 * target.eps)
    for key, x in START.items():
        yield Measured(key, target.host(theta[key]), x, 50 * target.eps)
    yield Measured("u", target.host(back), u, 100 * target.eps)


def _draws(**options: Any) -> xv.Draws:
    m = xv.marginal(xv.separable(decays, 2 * np.exp(-T) + 0.1 * np.cos(30 * T), data=T, lam=0.01))
    return xv.solve(m, np.array([0.7], dtype=options.pop("start", None)), xv.sets.Box(0.1, 4.0), **options).sample(9)


on_numpy = cache(_draws)


@check("reduced gradient")
def draws_of_densities(target: Target, _: None) -> Iterator[Measured]:
    """Draws of theta, w and the noise are those of NumPy's generator wherever the density is computed."""
    with target.scope():
        found = _draws(start=target.dtype, backend=target.backend, device=target.device)
    bound = max(1e-8, 2e4 * target.eps)
    for name in ("theta", "w", "sigma"):
        yield Measured(name, getattr(found, name), getattr(on_numpy(), name), bound)
