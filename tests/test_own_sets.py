"""Sets of one's own with a mistake in them: none may end in a success."""

from dataclasses import dataclass

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.errors import ModelError, ProblemError

from .support import in_turn, rng

A = rng(0).normal(size=(60, 6))
Y = A @ np.array([0.5, 0.3, 0.0, 0.0, 0.0, 0.4]) * 0.9 + 0.3
START = np.full(6, 1 / 6)


SIMPLEX = xv.sets.Simplex()


@dataclass(frozen=True)
class Probabilities(xv.sets.Set):
    """The unit simplex, as a user would write it: right in all but what a class below gets wrong."""

    def lmo(self, g):
        return SIMPLEX.lmo(g)

    def project(self, x):
        return SIMPLEX.project(x)

    def diameter(self, like):
        return 2.0**0.5

    def violation(self, x):
        return SIMPLEX.violation(x)

    def center(self, like):
        return SIMPLEX.center(like)


def mistaken(name, of=Probabilities, **methods):
    """A class with methods of its own."""
    return type(name, (of,), {key: lambda self, x, fun=fun: fun(x) for key, fun in methods.items()})


def rescaled(x):
    xp = xv.array_namespace(x)
    x = xp.abs(x) + 1e-3
    return x / xp.sum(x, axis=-1, keepdims=True)


def single(x):
    xp = xv.array_namespace(x)
    return xp.astype(SIMPLEX.project(x), xp.float32)


WrongSign = mistaken("WrongSign", lmo=lambda g: SIMPLEX.lmo(-g))
Outside = mistaken("Outside", lmo=lambda g: 2.0 * SIMPLEX.lmo(g))
WrongShape = mistaken("WrongShape", lmo=lambda g: SIMPLEX.lmo(g)[:2])
WrongDtype = mistaken("WrongDtype", project=single)
ToTheCentre = mistaken("ToTheCentre", project=SIMPLEX.center)
TooNarrow = mistaken("TooNarrow", diameter=lambda like: 1.0)
Constant = mistaken("Constant", lmo=lambda g: SIMPLEX.lmo(0.0 * g))
Half = mistaken("Half", lmo=lambda g: (SIMPLEX.lmo(g) + SIMPLEX.center(g)) / 2)
Constant.project = Half.project = xv.sets.Set.project  # none


class Inexact(Probabilities):
    """Right, with an oracle that says by how much it may be off."""

    def lmo(self, g):
        return self.certified(g)[0]

    def certified(self, g):
        v, c = super().lmo(g), self.center(g)
        return 0.9 * v + 0.1 * c, 0.1 * xv.array_namespace(g).sum(g * (c - v), axis=-1)


class Orthant(xv.sets.Set):
    """A set without bounds."""

    bounded = False

    def lmo(self, g):
        raise NotImplementedError

    def diameter(self, like):
        return float("inf")

    def project(self, x):
        return xv.array_namespace(x).clip(x, 0.0, None)

    def violation(self, x):
        return xv.array_namespace(x).max(-x, axis=-1)

    def center(self, like):
        return 0.0 * like


Reflected = mistaken("Reflected", Orthant, project=lambda x: xv.array_namespace(x).abs(x))
Everywhere = mistaken("Everywhere", Orthant, project=lambda x: x)
MISTAKES = {
    WrongSign: "lmo.* must minimise",
    Constant: "lmo.* must minimise",
    Half: "lmo.* must minimise",
    mistaken(
        "NotToTheEnd", lmo=lambda g: SIMPLEX.lmo(g) * (1 - 1e-5) + 1e-5 * SIMPLEX.center(g)
    ): "lmo.* must minimise",
    mistaken("JustOutside", lmo=lambda g: (1 + 1e-4) * SIMPLEX.lmo(g)): "what lmo returns.* must lie in the set",
    Outside: "what lmo returns.* must lie in the set",
    WrongShape: "lmo must return an array with the shape",
    WrongDtype: "project must return an array with the shape and dtype",
    ToTheCentre: "project.* must be the nearest",
    mistaken("Rescaled", project=rescaled): "project.* must be the nearest",
    mistaken(
        "NotQuiteTheNearest", project=lambda x: SIMPLEX.project(x) * (1 - 1e-4) + 1e-4 * SIMPLEX.center(x)
    ): "project.* must be the nearest",
    mistaken("HalfWay", project=lambda x: (x + SIMPLEX.project(x)) / 2): r"project.x. must lie in the set",
    mistaken("NoCentre", center=lambda like: 0.0 * like): "center must lie in the set",
    TooNarrow: "diameter must be the largest distance",
    mistaken("Anything", violation=lambda x: 0.0 * SIMPLEX.violation(x)): "violation must be more than 0",
}


def problem():
    def M(theta, A):
        xp = xv.array_namespace(theta)
        return xp.stack([A @ theta, xp.ones_like(A[:, 0])], axis=1)

    return xv.separable(M, Y, data=A, lam=1e-3, solver=xv.lower.SVD())


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("C", [Probabilities(), Inexact(), Orthant()])
def test_a_set_that_is_right_passes(C, name):
    xv.sets.check(C, (6,), name)


@pytest.mark.parametrize(
    ("C", "match"),
    [(Reflected(), "project.* must be the nearest"), (Everywhere(), r"project\(x\) must lie in the set")],
)
def test_projections_onto_sets_without_bounds_are_checked(C, match):
    with pytest.raises(ProblemError, match=match):
        xv.sets.check(C, (6,))


def test_shapes_that_a_set_does_not_take_are_refused():
    with pytest.raises(ProblemError, match="Spectraplex constrains a square matrix"):
        xv.sets.check(xv.sets.Spectraplex(), (3, 2))
    for shape in (START, 6):
        with pytest.raises(ProblemError, match=r"shape must be a tuple of integers.* theta0\.shape"):
            xv.sets.check(SIMPLEX, shape)


@in_turn("kind", MISTAKES)
def test_the_first_promise_that_is_broken_is_named(kind):
    with pytest.raises(ProblemError, match=f"{kind.__name__}: {MISTAKES[kind]}"):
        xv.sets.check(kind(), (6,))
    with pytest.raises(ProblemError, match=f"{kind.__name__}: {MISTAKES[kind]}"):
        xv.solve(problem(), START, over=kind(), debug=True)


class ByNumPy(Probabilities):
    project = xv.sets.Set.project

    def lmo(self, g):
        return np.eye(len(g))[np.argmin(np.asarray(g))]


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_what_a_set_returns_is_looked_at_before_the_first_step(name):
    with pytest.raises(ProblemError, match=r"WrongShape\.lmo must return an array of g's shape \(6,\); got \(2,\)"):
        xv.solve(problem(), START, over=WrongShape(), backend=name)
    with pytest.raises(ModelError, match=r"WrongDtype\.project must return float64, theta's dtype; got float32"):
        xv.solve(problem(), START, over=WrongDtype(), backend=name)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_an_oracle_by_numpy_is_given_the_line_to_write(name):
    with pytest.raises(ModelError, match=r"ByNumPy\.lmo .* with xp = xv\.array_namespace\("):
        xv.solve(problem(), START, over=ByNumPy(), backend=name)


def test_a_set_in_another_and_a_function_are_checked_too():
    rows = xv.sets.Rows(ToTheCentre())
    with pytest.raises(ProblemError, match=r"project.* must be the nearest"):
        xv.solve(xv.separable(lambda th, A: A @ th.T, Y, data=A, lam=1.0), START[None, :], over=rows, debug=True)
    parts = xv.sets.Product((xv.sets.Box(0.0, 1.0), TooNarrow()), (2, 4))
    with pytest.raises(ProblemError, match=r"Product: diameter must be the largest"):
        xv.solve(problem(), np.repeat([0.5, 0.25], [2, 4]), over=parts, debug=True)
    narrow = xv.sets.Oracle(SIMPLEX.lmo, width=1.0, outside=SIMPLEX.violation)
    with pytest.raises(ProblemError, match=r"Oracle: diameter must be the largest"):
        xv.solve(problem(), START, over=narrow, debug=True)
    function = xv.sets.Oracle(lambda g: SIMPLEX.lmo(-g), width=2.0, outside=SIMPLEX.violation)
    with pytest.raises(ProblemError, match=r"Oracle: lmo.* must minimise"):
        xv.solve(problem(), START, over=function, debug=True)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_a_gap_below_zero_is_no_success(name):
    methods = (None, xv.algorithms.FrankWolfe(xv.steps.OpenLoop()))
    for method in methods[name == "jax" :]:  # which compiles each
        with pytest.raises(ProblemError, match=r"WrongSign: lmo.* must minimise"):
            xv.solve(problem(), START, over=WrongSign(), algorithm=method, backend=name, max_iter=200)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_an_oracle_that_leaves_the_set_is_no_success(name):
    method = xv.algorithms.FrankWolfe(xv.steps.OpenLoop())
    with pytest.raises(ProblemError, match=r"Outside: what a solve ends at must lie in the set"):
        xv.solve(problem(), START, over=Outside(), algorithm=method, backend=name, max_iter=5)


class OfSix(Probabilities):
    def lmo(self, g):
        assert g.shape == (6,)
        return super().lmo(g)


@pytest.mark.parametrize("debug", [False, True])
def test_the_set_of_any_leaf_is_looked_at(debug):
    def M(theta, A):
        xp = xv.array_namespace(theta["p"])
        return xp.stack([A @ theta["p"], xp.exp(A[:, :2] @ theta["free"])], axis=1)

    theta = {"free": np.array([0.1, 0.2]), "p": START}
    with pytest.raises(ProblemError, match=r"WrongSign: lmo.* must minimise"):
        xv.solve(xv.separable(M, Y, data=A, lam=1e-3), theta, over={"p": WrongSign()}, debug=debug, max_iter=200)
    assert xv.solve(xv.separable(M, Y, data=A, lam=1e-3), theta, over={"p": OfSix()}, debug=debug, max_iter=3).n_iter


def test_a_projection_that_leads_nowhere_is_no_success():
    with pytest.raises(ProblemError, match=r"ToTheCentre: project.* must be the nearest"):
        xv.solve(problem(), START, over=ToTheCentre())


@pytest.mark.parametrize("method", [None, xv.algorithms.SpectralProjectedGradient()])
def test_a_set_that_is_right_is_solved_with_debug(method):
    fit = xv.solve(problem(), START, over=Probabilities(), algorithm=method, debug=True, max_iter=2000)
    assert fit.value <= xv.solve(problem(), START, over=SIMPLEX, max_iter=2000).value * 1.01


def test_a_class_that_is_no_dataclass_is_told_so():
    class Plain(xv.sets.Set):
        lmo = Probabilities.lmo
        diameter = Probabilities.diameter
        violation = Probabilities.violation

    with pytest.raises(ProblemError, match=r"Plain must be a frozen dataclass.*@dataclass\(frozen=True\)"):
        xv.solve(problem(), START, over=Plain())
