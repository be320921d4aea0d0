"""Dead units brought back: when, from what, at what price, and that what is alive stays feasible."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from xvarpro_experiments import datasets

import xvarpro as xv
from xvarpro.algorithms import AcceleratedProjectedGradient, FrankWolfe, Reseeded, cr_varpro
from xvarpro.algorithms.reseed import _placed, _principal_directions
from xvarpro.driver.prepare import prepare
from xvarpro.errors import ProblemError
from xvarpro.objective.reduced import Reduced
from xvarpro.sets import Box, Columns, L1Ball, L2Ball, Simplex
from xvarpro.sets.region import resolve

from .support import (
    decay_problem,
    dictionary_problem,
    dictionary_start,
    error,
    product,
    rng,
    vector,
)

EPS = np.finfo(np.float64).eps
pytestmark = pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")

LAM = 5e-4
L1 = L1Ball()


@cache
def digits():
    return datasets.digits(200).X


def digits_fit(algorithm, max_iter, atoms=16, lam=LAM, over=L1, **options):
    X = digits()
    start = rng(0).normal(size=(X.shape[0], atoms))
    start /= np.abs(start).sum()
    problem = xv.separable(product, X, lam=lam, compress=options.pop("compress", True))
    return xv.solve(problem, start, over=over, algorithm=algorithm, max_iter=max_iter, tol=0.0, **options)


def alive(theta):
    return int(np.sum(np.any(np.asarray(theta) != 0, axis=0)))


# -- what it is for ----------------------------------------------------------------------------------------------------


def test_atoms_that_a_full_step_killed_come_back():
    """The paper's method steps to a vertex: one atom of 16 is left, for good. Re-seeded, it ends lower."""
    plain, fit = digits_fit(cr_varpro(), 30), digits_fit(Reseeded(cr_varpro()), 30)
    assert plain.verified.dead_units == 15
    assert alive(fit.theta) == 16 - fit.verified.dead_units > alive(plain.theta)
    assert fit.value < 0.95 * plain.value
    assert fit.verified.violation <= 10 * EPS
    assert np.abs(fit.theta).sum() <= 1 + 10 * EPS
    assert (np.diff(fit.trace.value) <= 0).all()


def test_principal_directions_do_not_depend_on_compression():
    algorithm = Reseeded(cr_varpro())
    fits = [digits_fit(algorithm, 25, compress=compress) for compress in (True, False)]
    assert [fit.provenance["compressed"] for fit in fits] == [True, False]
    assert fits[0].verified.dead_units == fits[1].verified.dead_units < 15
    assert error(fits[1].theta, fits[0].theta) <= 1e-8


# -- when it is left alone ---------------------------------------------------------------------------------------------


def test_units_that_no_trial_can_use_stay_dead():
    """With a strong ridge one atom is the minimiser: the iterates are those of the inner method, bit for bit."""
    plain, fit = (digits_fit(a, 100, lam=0.1) for a in (cr_varpro(), Reseeded(cr_varpro())))
    assert plain.verified.dead_units == fit.verified.dead_units == 15
    assert (plain.trace.value == fit.trace.value).all()
    assert (plain.theta == fit.theta).all()
    # looks after 10, 30 and 70 iterations, as refusals double the wait: the point, and 15, 7, 3 and 1 revived
    assert fit.counts.values - plain.counts.values == 3 * (1 + 4)
    assert np.flatnonzero(np.diff(fit.trace.values) != np.diff(plain.trace.values)).tolist() == [9, 29, 69]
    assert fit.counts.gradients == plain.counts.gradients


def test_a_seed_is_placed_where_another_leaf_is_off_its_set_by_rounding():
    """What the start violates already is allowed, and no more."""
    D, shares = np.zeros((3, 2)), np.array([0.5, 0.5 + 1e-9])
    region, Z = resolve((Columns(L1), Simplex()), (D, shares)), np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    placed, _ = _placed(xv.backends.get("numpy"), region, (D, shares), 0, Z, np.asarray(0.5), np.asarray(0.1))
    assert (placed[0] == 0.5 * Z).all()


def test_a_seed_that_its_set_does_not_reach_is_the_vertex_ahead():
    D, Z = np.full((3, 2), 1 / 3), np.array([[0.1, 0.0], [0.9, 0.0], [0.3, 0.0]])
    region = resolve(Columns(Simplex()), D)
    placed, _ = _placed(xv.backends.get("numpy"), region, (D,), 0, Z, np.asarray(0.5), np.asarray(1.0))
    assert np.abs(placed[0][:, 0] - [0.0, 1.0, 0.0]).max() <= 1e-15


def test_nothing_dead_nothing_done():
    plain, fit = (digits_fit(a, 30) for a in (FrankWolfe(cap=0.1), Reseeded(FrankWolfe(cap=0.1), every=1)))
    assert plain.verified.dead_units == 0
    assert plain.counts == fit.counts
    assert (plain.theta == fit.theta).all()


# -- where the mass comes from -----------------------------------------------------------------------------------------


def prepared(over, dead=(1, 3), lam=1e-4, m=6, n=4, start=None):
    D = np.abs(dictionary_start(m, n)) if start is None else start.copy()
    D[:, list(dead)] = 0.0
    y = np.abs(rng(5).normal(size=(m, 20)))
    return prepare(xv.separable(product, y, lam=lam), D, over=over)


class Counted:
    """A reduced objective and a region that count their calls."""

    def __init__(self, ready):
        counter = self.counts = dict.fromkeys(("values", "gradients", "lmos", "projections", "batches"), 0)

        class Objective(Reduced):
            def point_of(self, *args):
                counter["values"] += 1
                return super().point_of(*args)

            def cotangents(self, *args):
                counter["gradients"] += 1
                return super().cotangents(*args)

        class Sets(type(ready.region)):
            def blmo(self, *args):
                counter["lmos"] += 1
                return super().blmo(*args)

            def project(self, *args):
                counter["projections"] += 1
                return super().project(*args)

        self.f = Objective(ready.problem, ready.backend, ready.layout.treedef, ready.structure)
        self.region = Sets(**vars(ready.region))


class WithoutProjection(Simplex):
    project = xv.sets.Set.project


OVER = {
    "room in each column": Columns(L2Ball()),
    "room in a box": Box(-1.0, 1.0),
    "free": None,
    "a budget": L1Ball(),
    "a budget with room": L1Ball(5.0),
    "no multiple": Simplex(),
    "no projection": WithoutProjection(),
}


def on(over):
    """The start of `prepared`, on the boundary of the set where the set is a budget."""
    D = np.abs(dictionary_start())
    D[:, [1, 3]] = 0.0
    return D / D.sum() if isinstance(over, L1Ball | Simplex) and over.radius == 1.0 else D


@pytest.mark.parametrize("name", OVER)
@pytest.mark.parametrize("inner", [cr_varpro(), FrankWolfe(), AcceleratedProjectedGradient()], ids=repr)
def test_every_set_revives_within_itself_and_counts_its_work(name, inner):
    over = OVER[name]
    if inner.needs_projection and isinstance(over, WithoutProjection):
        pytest.skip("the inner method projects")
    if isinstance(over, Box) and not inner.needs_projection:
        pytest.skip("every vertex of a box is alive in all its entries")
    ready = prepared(over, start=on(over))
    counted = Counted(ready)
    algorithm = Reseeded(inner, every=1)
    state, values = algorithm.init(counted.f, counted.region, ready.theta), []
    revived = False
    for _ in range(8):
        before = alive(state.iterate.theta[0])
        state = algorithm.advance(counted.f, counted.region, state)
        values.append(float(state.iterate.value))
        revived |= alive(state.iterate.theta[0]) > before
        assert float(ready.region.violation(state.iterate.theta)) <= 100 * EPS
        assert {k: int(n) for k, n in state.iterate.counts._asdict().items()} == counted.counts
        point = ready.assemble(ready.problem).point(state.iterate.theta)
        assert float(state.iterate.value) == pytest.approx(float(point.value), rel=1e-12)
    assert revived
    assert (counted.counts["projections"] > 0) == inner.needs_projection
    assert (np.diff(values) <= 1e-12 * np.abs(values[:-1])).all()


def test_all_units_dead():
    """At zero the gradient is zero and a method stops: its units are looked at once more, long before their turn."""
    ready = prepared(L1Ball(), dead=(0, 1, 2, 3))
    f, inner = ready.assemble(ready.problem), AcceleratedProjectedGradient()
    alone = inner.advance(f, ready.region, inner.init(f, ready.region, ready.theta)).iterate
    assert int(alone.status) == xv.Status.NO_DESCENT.code
    assert not alone.theta[0].any()
    algorithm = Reseeded(inner, every=1000)
    state = algorithm.advance(f, ready.region, algorithm.init(f, ready.region, ready.theta)).iterate
    assert alive(state.theta[0]) >= 1
    assert float(state.value) < 0.9 * float(alone.value)
    assert int(state.status) == 0
    assert float(state.gap_A) > 0


def test_rows_are_units_of_a_transposed_dictionary():
    def transposed(theta, data):
        return xv.array_namespace(theta).matrix_transpose(theta)

    def ended(model, start, axis):
        problem = xv.separable(model, rng(5).normal(size=(6, 20)), lam=0.01)
        method = Reseeded(cr_varpro(), every=2, axis=axis)
        return xv.solve(problem, start, over=L1Ball(), algorithm=method, max_iter=6, tol=0.0).theta

    columns, rows = ended(product, on(L1Ball()), 1), ended(transposed, on(L1Ball()).T, 0)
    assert alive(columns) > 1
    assert error(rows.T, columns) <= 1e-9


# -- seeds -------------------------------------------------------------------------------------------------------------


def test_new_units_are_principal_directions_of_the_residual():
    """Two atoms revived where each column has room: of the average length, the steepest directions, each once."""
    ready = prepared(Columns(L2Ball()), start=on(Columns(L2Ball())))
    f, algorithm = ready.assemble(ready.problem), Reseeded(FrankWolfe(cap=2.0**-60), every=1)
    D = ready.theta[0]
    point = f.point(ready.theta)
    after = algorithm.advance(f, ready.region, algorithm.init(f, ready.region, ready.theta)).iterate.theta[0]
    live = np.any(D != 0, axis=0)
    assert after[:, live] == pytest.approx(D[:, live], rel=1e-13)
    length = np.sqrt(np.sum(D * D) / live.sum())
    U = np.linalg.svd(point.r)[0][:, :2]
    assert np.abs(U.T @ after[:, ~live]) == pytest.approx(length * np.eye(2), rel=1e-10, abs=1e-10)
    peaks = after[np.argmax(np.abs(after), axis=0), range(4)][~live]
    assert (peaks > 0).all()


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (6, 200)])
def test_a_residual_has_as_many_directions_as_its_rank(shape):
    """Beyond it there is rounding, in any units: no unit is revived along that."""
    draw = rng(0)
    r = draw.normal(size=(shape[0], 2)) @ np.diag([3.0, 1.0]) @ draw.normal(size=(2, shape[1]))
    backend = xv.backends.get("numpy")
    for unit in (1e-9, 1.0, 1e9):
        found = _principal_directions(SimpleNamespace(backend=backend), unit * r)
        U = np.linalg.svd(r)[0][:, :2]
        assert np.abs(U.T @ found[:, :2]) == pytest.approx(np.eye(2), abs=1e-7)
        assert (found[:, 2:] == 0).all()


def test_a_trial_that_changes_nothing_is_refused():
    """Of a target that is fitted nothing is left to seed from: the wait doubles, and the method goes on as it was."""
    ready = prepare(xv.separable(product, np.zeros((6, 20)), lam=1e-4), on(L1Ball()), over=L1Ball())
    f, algorithm = ready.assemble(ready.problem), Reseeded(cr_varpro(), every=1)
    state = algorithm.advance(f, ready.region, algorithm.init(f, ready.region, ready.theta))
    assert (float(state.iterate.value), float(state.wait), float(state.next)) == (0.0, 2.0, 3.0)


def test_under_a_shared_budget_the_point_moves_to_a_multiple_of_the_directions():
    ready = prepared(L1Ball(), start=on(L1Ball()))
    f, algorithm = ready.assemble(ready.problem), Reseeded(FrankWolfe(cap=2.0**-60), every=1)
    D, r = ready.theta[0], f.point(ready.theta).r
    after = algorithm.advance(f, ready.region, algorithm.init(f, ready.region, ready.theta)).iterate.theta[0]
    live, revived = np.any(D != 0, axis=0), np.any(after != 0, axis=0)
    q = int((revived & ~live).sum())
    share = q / (live.sum() + q)
    assert q >= 1
    assert after[:, live] == pytest.approx((1 - share) * D[:, live], rel=1e-12)
    units = after[:, revived & ~live] / np.linalg.norm(after[:, revived & ~live], axis=0)
    assert np.abs(np.linalg.svd(r)[0][:, :q].T @ units) == pytest.approx(np.eye(q), abs=1e-10)
    assert np.abs(after).sum() == pytest.approx(1.0, rel=1e-12)


# -- wrong use ---------------------------------------------------------------------------------------------------------


def two(theta, data):
    return theta["a"] @ theta["b"]


def test_the_leaf_has_to_be_clear():
    start = {"a": np.eye(6, 4), "b": np.eye(4)}
    problem = xv.separable(two, rng(5).normal(size=(6, 20)), lam=0.1)
    with pytest.raises(ProblemError, match=r"theta has 2, at \[0, 1\]. Name it with leaf="):
        xv.solve(problem, start, algorithm=Reseeded(), max_iter=2)
    with pytest.raises(ProblemError, match="as the target has rows, 6; leaf 1 holds units of 4"):
        xv.solve(problem, start, algorithm=Reseeded(leaf=1), max_iter=2)
    with pytest.raises(ProblemError, match="a matrix among the 2 leaves of theta, got 2"):
        xv.solve(problem, start, algorithm=Reseeded(leaf=2), max_iter=2)
    fit = xv.solve(problem, start, algorithm=Reseeded(leaf=0), max_iter=2)
    assert fit.n_iter == 2


def test_a_theta_without_matrices_has_no_units():
    fits = [
        xv.solve(decay_problem(), np.array([0.5, 8.0]), algorithm=a, max_iter=25) for a in (FrankWolfe(), Reseeded())
    ]
    assert (vector(fits[0].theta) == vector(fits[1].theta)).all()
    assert fits[0].counts == fits[1].counts


def test_projection_is_the_inner_methods_need():
    assert Reseeded(AcceleratedProjectedGradient()).needs_projection
    assert not Reseeded(FrankWolfe()).needs_projection
    algorithm = Reseeded(AcceleratedProjectedGradient())
    with pytest.raises(ProblemError, match="projects onto every set; got WithoutProjection"):
        xv.solve(dictionary_problem(), on(Simplex()), over=WithoutProjection(), algorithm=algorithm)
