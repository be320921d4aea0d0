"""The reduced objective and its derivatives, against values in a hundred digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro.core import trees
from xvarpro.core.namespace import find_dtype, namespace_of
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.differentiation import implicit
from xvarpro.differentiation.hessian import ReducedHessian
from xvarpro.driver.prepare import prepare
from xvarpro.objective.curvature import marginal_hessian
from xvarpro.objective.gauss_newton import gauss_newton, has_jacobian
from xvarpro.sets.interface import Set
from xvarpro_conformance import evaluation, kinds
from xvarpro_conformance.checks import sets
from xvarpro_conformance.problems import Data, Reference, decays, held
from xvarpro_conformance.references import lower
from xvarpro_conformance.references.marginal import Case, drawn
from xvarpro_conformance.suite import Inapplicable, Measured, Target, alternate, check

Make = Callable[[], Reference]
KINDS = kinds.KINDS
# those that are compiled: for values and gradients, and for second derivatives
COMPILED, SECOND = ([KINDS[name] for name in some] for some in (kinds.COMPILED, ("two_ridges", "complex_target")))


@cache
def exact(make: Make) -> lower.Exact:
    """A problem in long numbers."""
    reference = make()
    return lower.Exact(reference.problem, reference.theta0, reference.matrix)


@check("reduced gradient", kinds.every)
def kinds_of_problems(target: Target, make: Make) -> Iterator[Measured]:
    """Value, weights and gradient equal those of dense normal equations and differences in a hundred digits."""
    _take_turns(target, make, COMPILED)
    known, got, condition = exact(make), evaluation.evaluate(target, make()), exact(make).condition * make().inner
    value, gradient = (f(target.eps, condition) for f in (evaluation.value_tolerance, evaluation.gradient_tolerance))
    yield Measured("value", got.value, known.value, value)
    if got.w.shape == known.w.shape:
        yield Measured("w", got.w, known.w, gradient)
    else:  # compressed, which turns the columns of w
        yield Measured("w w^H", got.w @ got.w.conj().T, known.w @ known.w.conj().T, gradient)
    yield Measured("slopes", known.D.T @ got.gradient, known.slopes, gradient)


def _take_turns(target: Target, make: Make, compiled: Sequence[Make]) -> None:
    """Where problems are compiled, one of the small ones in each precision, and what others stand for in none.

    Raises where a problem of real data needs complex numbers that the framework does not have.
    """
    if make is KINDS["real_target"]:
        find_dtype(target.backend.xp, target.complex_dtype)
    if make in (every := list(KINDS.values())):
        target.represent(alternate(every.index(make)) if make in compiled else ())


@cache
def second() -> dict[str, Make]:
    """Problems with second derivatives: all rows in memory, few parameters, few columns."""
    none = ("streamed", "streamed_levels", "in_columns", "circulant", "rank_deficient")
    return {name: make for name, make in KINDS.items() if name not in none}


@check("reduced gradient", second)
def second_derivatives(target: Target, make: Make) -> Iterator[Measured]:
    """Products with the Hessian, also by the data, and slopes of w equal differences in a hundred digits."""
    _take_turns(target, make, SECOND)
    known = exact(make)
    e = [x for x in trees.leaves(known.e) if x.dtype.kind == "f"]
    Hu, mixed, bends = called(target, make(), _hessian, known.u, *e)
    tolerance = 100 * target.eps * (known.condition * make().inner) ** 2
    yield Measured("H u", known.D.T @ Hu, known.curvature, tolerance, float(np.linalg.norm(Hu)))
    yield Measured("slope of <u, gradient> by the data", mixed, known.data_slope, tolerance, float(np.linalg.norm(Hu)))
    yield Measured("slopes of w", known.D.T @ bends, known.bends, tolerance, float(np.linalg.norm(bends)))


def _hessian(f: Any, theta: Leaves, u: Array, *e: Array) -> Leaves:
    hessian = ReducedHessian(f, theta)
    (Hu,), by_data = hessian.product((u,))
    w = f.solve_lower(theta)
    (bends,), _ = hessian.pull_w(namespace_of(w).cumulative_sum(0 * w + 1, axis=0))
    return Hu, trees.dot(by_data, e), bends


@check("reduced gradient", second)
def gauss_newton_model(target: Target, make: Make) -> Iterator[Measured]:
    """Slopes of the residual, one for each entry of theta, equal differences in a hundred digits."""
    _take_turns(target, make, SECOND)
    known = exact(make)
    slopes, gram = called(target, make(), model)
    tolerance = 100 * target.eps * known.condition * make().inner
    want = (known.jacobian @ known.jacobian.conj().T).real
    yield Measured("slopes", known.D.T @ slopes, known.slopes, tolerance, float(np.linalg.norm(slopes)))
    yield Measured("J J^T", known.D.T @ gram @ known.D, want, tolerance)


def model(f: Any, theta: Leaves) -> Leaves:
    """Gradient and Gauss-Newton matrix."""
    if not has_jacobian(f.problem, f.structure):
        raise Inapplicable("there is no Gauss-Newton model of such a problem")
    _, slopes, H = gauss_newton(f, theta)
    return slopes, H


def called(target: Target, reference: Reference, fun: Callable[..., Leaves], *given: np.ndarray) -> list[np.ndarray]:
    """``fun(objective, theta0, *given)``, compiled where the backend compiles."""
    prepared = prepare(
        reference.problem, reference.theta0, backend=target.backend, device=target.device, dtype=target.dtype
    )
    with target.scope():
        return [target.host(x) for x in prepared.call(fun, prepared.theta, *map(target.send, given))]


def _one_column(theta: Array, data: Data) -> Array:
    return data["M"]


def _away(theta: Array, data: Data) -> Array:
    xp = namespace_of(theta)
    off = xp.reshape(theta - data["d"], (-1,))
    return xp.concat([0 * off[:1], off])


class Nearest(NamedTuple):
    """A set, and points of which the solution is the nearest point of the set."""

    C: Set
    d: np.ndarray
    turn: tuple[str, ...] = ()  # the precisions in which it is compiled, where solutions are


@cache
def solutions() -> dict[str, Nearest]:
    """Of every class that projects: a point inside, or on the affine hull, one outside, one of equal singular values.

    Where the nearest point has different derivatives to each side another one is drawn.
    """
    found = {}
    for name, case in sets.cases().items():
        C, shape = case.C, case.shape
        if not C.has_projection or not name.endswith(" 0"):
            continue
        size, middle = min(max(case.diameter, 1e-3), 2.0), np.asarray(C.center(np.zeros(shape)))
        where = {"inside": 1e-3, "outside": 2.0}
        for place, far in where.items():
            for seed in range(20):
                d = held(middle + far * size * np.random.default_rng(seed).normal(size=shape))
                # faces are flat: none other is as near as the differences of single precision reach
                near = (1e-6, 1e-2) if C.polytope else (1e-6,)
                if all(np.linalg.norm(np.subtract(*_slopes(C, d, h))) <= 1e-3 for h in near):
                    turn = ("float64",) * (name in ("L2Ball 0", "SpectralBall 0"))
                    found[f"{name}, {place}"] = Nearest(C, d, turn)
                    break
        if C.spectral and len(shape) == 2:
            equal = np.zeros(shape)
            np.fill_diagonal(equal, [3.0, 3.0, 2.25, 2.25])
            found[f"{name}, equal values"] = Nearest(C, equal)
    return found


def _slopes(C: Set, d: np.ndarray, step: float = 1e-6) -> tuple[np.ndarray, np.ndarray]:
    """Of the projection along one direction, to either side of d."""
    e, h = _way(d), step * float(np.max(np.abs(d)))
    behind, here, ahead = (np.asarray(C.project(d + t * e)) for t in (-h, 0.0, h))
    return (here - behind) / h, (ahead - here) / h


def _way(d: np.ndarray) -> np.ndarray:
    return np.random.default_rng(7).normal(size=d.shape)


@check("reduced gradient", solutions)
def derivative_of_a_solution(target: Target, case: Nearest) -> Iterator[Measured]:
    """The nearest point of a set to d moves with d as differences of projections say, inside and on the boundary."""
    target.represent(case.turn)
    C, d = case.C, case.d
    c = np.random.default_rng(8).normal(size=d.shape)
    problem = xv.separable(_one_column, _away, data={"M": np.eye(d.size + 1, 1), "d": d})  # 1/2 |theta - d|^2
    found = implicit.gradient(
        problem, C.project(d), implicit.Cotangent(theta=c), over=C,
        backend=target.backend, device=target.device, dtype=target.dtype,
    )  # fmt: skip
    got = float(np.sum(np.asarray(found.data["d"], np.float64) * _way(d)))
    want = float(np.sum(c * sum(_slopes(C, d))) / 2)
    yield Measured(
        "<c, dtheta>", got, want, 30 * target.eps ** (2 / 3), float(np.linalg.norm(c) * np.linalg.norm(_way(d)))
    )


# -- marginal likelihoods ----------------------------------------------------------------------------------------------


@cache
def densities() -> dict[str, Case]:
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


COMPILED_DENSITIES = "flat, unknown noise", "ridge of theta"


@cache
def exact_density(name: str) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Minus the log density, the sizes of its terms, its gradient, and its Hessian times ones."""
    case = densities()[name]
    value, size = case.value()
    return float(value), float(size), case.gradient(), case.hessian(np.ones_like(case.theta))


@check("reduced gradient", lambda: {name: name for name in densities()})
def marginal_likelihoods(target: Target, name: str) -> Iterator[Measured]:
    """Log densities with w integrated out, constants included, their gradients and products with their Hessians."""
    case = densities()[name]
    if np.iscomplexobj(case.A):
        find_dtype(target.backend.xp, target.complex_dtype)
    target.represent(alternate(COMPILED_DENSITIES.index(name)) if name in COMPILED_DENSITIES else ())
    problem, theta = case.problem, case.theta.astype(target.dtype)
    with target.scope():
        value, gradient = problem.log_density_and_gradient(target.send(theta))
        prepared = prepare(problem, theta, backend=target.backend, device=target.device)
        ones = tuple(namespace_of(x).ones_like(x) for x in prepared.theta)
        (bend,) = (target.host(x) for x in prepared.call(marginal_hessian, prepared.theta, ones))
    known, size, slope, bends = exact_density(name)
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
