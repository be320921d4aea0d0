"""Sets matched with the leaves of theta, and Algorithm 2 over all of them."""

import numpy as np
import pytest
import scipy.optimize

import xvarpro as xv
from xvarpro.core import trees
from xvarpro.errors import ProblemError
from xvarpro.sets import Box, CappedSimplex, Columns, Free, L1Ball, L2Ball, NuclearBall, Simplex, norms
from xvarpro.sets.region import event, resolve

from .support import compiles_for_long, host, in_turn, rng, send_tree

THETA = {"s": np.full(3, 0.1), "net": [np.ones((2, 3)), np.zeros(3)], "D": np.full((4, 2), 0.01)}
GRAD = {"s": np.array([1.0, -2.0, 3.0]), "net": [rng(0).normal(size=(2, 3)), rng(1).normal(size=3)],
        "D": rng(2).normal(size=(4, 2))}  # fmt: skip
NAMES = trees.paths(THETA)


def leaves(tree):
    return tuple(trees.leaves(tree))


def named(region):
    """Constrained leaves and free groups, by name."""
    constrained = {NAMES[i]: C for i, C in region.constrained}
    return constrained, [([NAMES[i] for i in group], ball) for group, ball in region.free]


SPECTRAL, SIGN = Free(norms.Spectral(), radius=0.5), Free(norms.Sign())
MATCHED = {
    "what is not named is free in one ball": (
        {"s": CappedSimplex()},
        {"theta['s']": CappedSimplex()},
        [(["theta['D']", "theta['net'][0]", "theta['net'][1]"], Free())],
    ),
    "None marks a free leaf": (
        {"net": [L1Ball(), None], "s": None, "D": Box()},
        {"theta['D']": Box(), "theta['net'][0]": L1Ball()},
        [(["theta['net'][1]", "theta['s']"], Free())],
    ),
    "free groups have their own balls": (
        {"net": SPECTRAL, "D": SIGN},
        {},
        [(["theta['net'][0]", "theta['net'][1]"], SPECTRAL), (["theta['D']"], SIGN), (["theta['s']"], Free())],
    ),
    "no sets at all": (None, {}, [(NAMES, Free())]),
}


@pytest.mark.parametrize("what", MATCHED)
def test_sets_are_matched_with_leaves(what):
    over, constrained, free = MATCHED[what]
    found = named(resolve(over, THETA))
    assert (found[0], sorted(found[1], key=str)) == (constrained, sorted(free, key=str))


def test_one_set_for_one_array():
    region = resolve(Simplex(), np.ones(3))
    assert region.constrained == ((0, Simplex()),)
    assert region.free == ()


def test_a_pair_of_bounds_is_a_box():
    low, high = np.zeros(3), np.arange(1.0, 4.0)
    constrained, free = named(resolve({"s": (low, high), "net": [(None, 2), [0.0, 1.0]], "D": (-1.0, None)}, THETA))
    assert constrained["theta['s']"].lower is low
    assert constrained["theta['s']"].upper is high
    assert constrained["theta['net'][0]"] == Box(-np.inf, 2)
    assert constrained["theta['net'][1]"] == Box(0.0, 1.0)
    assert constrained["theta['D']"] == Box(-1.0, np.inf)
    assert free == []
    assert resolve((0.0, 1.0), np.ones(3)).constrained == ((0, Box(0.0, 1.0)),)
    constrained, _ = named(resolve({"s": scipy.optimize.Bounds(low, high), "D": scipy.optimize.Bounds()}, THETA))
    assert list(constrained) == ["theta['s']"]
    assert constrained["theta['s']"].upper.tolist() == high.tolist()


def test_tuples_match_tuples():
    region = resolve((Box(), None), (np.ones(2), np.ones(3)))
    assert region.constrained == ((0, Box()),)
    assert region.free == (((1,), Free()),)


@in_turn(
    ("over", "message"),
    [
        ({"t": Box()}, r"over must have keys of theta, \['D', 'net', 's'\], got 't'"),
        ({"net": Box()}, r"set per array; got Box\(.*\) for theta\['net'\], which is a list of 2"),
        ({"net": [Box()]}, r"over must have 2 entries for theta\['net'\], got 1: None marks a free one"),
        ({"s": scipy.optimize.LinearConstraint(np.eye(3), 0.0, 1.0)}, r"must hold sets such as .*LinearConstraint"),
        ({"net": {"a": Box()}}, r"got {'a': Box.* for theta\['net'\], which is a list of 2"),
        ([Box()], r"got \[Box.* for theta, which is several by name: 's', 'net', 'D'"),
        ({"s": [Box()]}, r"over must hold a set or one pair .* for theta\['s'\], which is one array, got \[Box"),
        ({"s": [(0, 1), (0, 2)]}, r"bounds of each entry write Box\(lower, upper\) .* or bounds\(\[\(low, high\)"),
        ({"s": (0.0,)}, r"one pair of bounds \(lower, upper\) for theta\['s'\]"),
        ({"s": ("0", "1")}, r"one pair of bounds"),
        ({"s": (2.0, 1.0)}, "Box: bounds must be .* lower <= upper"),
        ({"net": (0.0, 1.0)}, r"over must hold sets such as .* or bounds .*, got 0.0 for theta\['net'\]\[0\]"),
        ({"s": 1.0}, r"over must hold sets such as .*, got 1.0 for theta\['s'\]"),
        ({"s": Box}, r"over must hold sets such as .* for theta\['s'\]"),
        ("box", r"over must hold sets such as .*, got 'box' for theta"),
        ({"s": Box(np.zeros(4), np.ones(4))}, r"must broadcast to a point of shape \(3,\), got shape \(4,\)"),
        ({"s": Columns()}, r"Columns constrains a matrix: .* got shape \(3,\)"),
        (Simplex(), r"got Simplex\(radius=1.0\) for theta, which .*: 's', 'net', 'D'\. Write a dict such as {'s': "),
    ],
)
def test_sets_that_do_not_match_theta(over, message):
    with pytest.raises(ProblemError, match=message):
        resolve(over, THETA)


# -- Algorithm 2 -------------------------------------------------------------------------------------------------------

OVER = {"s": CappedSimplex(), "D": L1Ball(), "net": None}


def blmo(backend, over, theta=THETA, grad=GRAD):
    """The direction as a tree of NumPy arrays, and both parts of the gap."""
    theta, grad = send_tree(backend, theta), send_tree(backend, grad)
    found = resolve(over, theta).blmo(leaves(theta), leaves(grad))
    treedef = trees.flatten(theta)[1]
    return trees.unflatten(treedef, [host(x) for x in found.d]), float(found.gap_A), float(found.gap_B)


def inner(a, b):
    return sum(float(np.sum(x * y)) for x, y in zip(trees.leaves(a), trees.leaves(b), strict=True))


@pytest.mark.parametrize("over", [L1Ball(), L2Ball(2.0), CappedSimplex(), Box(-1.0, 1.0)])
def test_a_vector_set_holds_a_whole_matrix(over, backend):
    """On a matrix leaf: the entrywise ball, the Frobenius ball, and not one ball per row."""
    theta, grad = np.zeros((3, 4)), rng(4).normal(size=(3, 4))
    d, gap, _ = blmo(backend, over, theta, grad)
    assert np.abs(d.ravel() - over.lmo(grad.ravel())).max() <= 1e-15
    assert gap == pytest.approx(-inner(grad, d), rel=1e-14)


@compiles_for_long
def test_projection_moves_constrained_leaves_only(backend):
    theta = trees.unflatten(trees.flatten(THETA)[1], [3 + x for x in trees.leaves(THETA)])
    got = xv.project(send_tree(backend, theta), OVER)
    assert np.abs(host(got["s"]) - CappedSimplex().project(theta["s"])).max() <= 1e-15
    assert np.abs(host(got["D"]).ravel() - L1Ball().project(theta["D"].ravel())).max() <= 1e-15
    assert all((host(a) == b).all() for a, b in zip(got["net"], theta["net"], strict=True))


def test_violation_is_the_worst_of_all_sets():
    region = resolve({"s": Simplex(), "D": L1Ball(0.01)}, THETA)
    parts = Simplex().violation(THETA["s"]), L1Ball(0.01).violation(THETA["D"].ravel())
    assert float(region.violation(leaves(THETA))) == max(parts)


def test_diameter_adds_squares():
    region = resolve({"s": Simplex(2.0), "D": L1Ball(3.0), "net": Free(radius=0.5)}, THETA)
    assert region.diameter(leaves(THETA)) == pytest.approx(np.sqrt(2 * 2.0**2 + 6.0**2 + 1.0**2))


def test_block_masks_the_other_block():
    region = resolve(OVER, THETA)
    A, B = region.block(leaves(THETA), free=False), region.block(leaves(THETA), free=True)
    for a, b, x in zip(A, B, leaves(THETA), strict=True):
        assert (a + b == x).all()
        assert not (a.any() and b.any())


def test_an_error_of_the_gradient_moves_the_gap_by_at_most_the_width_of_the_set():
    """The diameter; of half a line the way to its end and the ball of radius 1; of a free leaf the ball's radius."""
    theta = {"a": np.array([3.0, 4.0]), "b": np.full(4, 0.25), "c": np.zeros(3)}
    over = {"a": Box(0.0, np.inf), "b": Simplex(), "c": Free(radius=0.5)}
    region = resolve(over, theta).measured(leaves(theta))
    errors = (np.array([0.3, 0.4]), np.full(4, 0.5), np.array([2.0, 0.0, 0.0]))
    parts = 0.5 * (1 + 5.0), 1.0 * np.sqrt(2), 2.0 * 0.5
    for n in range(3):
        alone = tuple(e if i == n else 0 * e for i, e in enumerate(errors))
        assert float(region.hidden(leaves(theta), alone)) == pytest.approx(parts[n], rel=1e-14)
    assert float(region.hidden(leaves(theta), errors)) == pytest.approx(sum(parts), rel=1e-14)


# -- a batch of problems -----------------------------------------------------------------------------------------------

TOGETHER = {
    "bounds, a simplex, free": {"s": Box(np.array([-np.inf, 0.0, -1.0]), 0.5), "net": [Simplex(6.0), None], "D": None},
    "columns, a capped simplex, a box": {
        "s": CappedSimplex(0.5),
        "net": [Box(-1.0, 1.0), Box(0.0, 2.0)],
        "D": Columns(L1Ball()),
    },
    "matrices, two free balls": {
        "s": Free(radius=2.0),
        "net": [xv.sets.NuclearBall(2.0), Free(norms.Sign(), radius=0.5)],
        "D": Box(-0.25, 0.25),
    },
}
BATCH = 5


@pytest.mark.parametrize("name", TOGETHER)
def test_a_batch_of_problems_is_one_after_the_other(name):
    region, draw = resolve(TOGETHER[name], THETA), rng(3)
    one = leaves(THETA)
    start = tuple(draw.normal(size=(BATCH, *x.shape)) for x in one)
    x = list(start)
    for i, C in region.constrained:
        x[i] = np.stack([C.project(event(C, a)).reshape(a.shape) for a in start[i]])
    grad = tuple(draw.normal(size=(BATCH, *a.shape)) for a in one)
    theta, g, outside = region.join(tuple(x)), region.join(grad), region.join(start)
    assert theta.shape == (BATCH, sum(a.size for a in one))
    assert [a.tolist() for a in trees.parts(theta, region.shapes)] == [a.tolist() for a in x]
    (gap_A, gap_B), nearest, faces = region.gaps(theta, g), region.nearest(outside, g), region.tangents(theta)
    for n in range(BATCH):
        here, slope = tuple(a[n] for a in x), tuple(a[n] for a in grad)
        want = region.blmo(here, slope)
        assert gap_A[n] == pytest.approx(float(want.gap_A + want.slack), rel=1e-12)
        assert gap_B[n] == pytest.approx(float(want.gap_B), rel=1e-12)
        assert nearest[n] == pytest.approx(trees.raveled(region.project(tuple(a[n] for a in start))), abs=1e-12)
        inside = trees.raveled(region.tangent(slope, here))
        assert faces[n] @ g[n] == pytest.approx(inside, abs=1e-12)
    worst = max(float(region.violation(tuple(a[n] for a in start))) for n in range(BATCH))
    assert float(region.violation(start)) == pytest.approx(worst, rel=1e-12)
    assert float(region.violation(tuple(x))) <= 1e-14
    even = trees.parts(region.evened(np.abs(outside)), region.shapes)
    for i, a in enumerate(start):
        bounds = not dict(region.constrained).get(i, Box()).event_ndim
        size = np.abs(a).reshape(BATCH, -1)
        assert (even[i].reshape(BATCH, -1) == (size if bounds else size.max(axis=1, keepdims=True))).all()


def test_what_an_oracle_hides_is_part_of_the_gap():
    """Of one problem as slack; of a batch in the gap itself."""
    C = NuclearBall(2.0, xv.sets.Lanczos(width=2, depth=2, restarts=1, tol=0.5))
    x, g = np.zeros((2, 12, 13)), rng(5).normal(size=(2, 12, 13))
    region = resolve({"a": C, "b": C}, {"a": x[0], "b": x[1]})
    one = region.blmo(tuple(x), tuple(g))
    hidden = [float(C.certified(a)[1]) for a in g]
    assert min(hidden) > 0
    assert float(one.slack) == pytest.approx(sum(hidden), rel=1e-12)
    gap_A, _ = region.gaps(np.zeros((1, 312)), g.reshape(1, 312))
    assert gap_A[0] == pytest.approx(float(one.gap_A) + sum(hidden), rel=1e-12)
    exact = 2.0 * sum(np.linalg.norm(a, 2) for a in g)
    assert float(one.gap_A) < exact <= gap_A[0]


@pytest.mark.parametrize("name", list(TOGETHER)[:2])
def test_the_share_of_a_step_in_a_batch_is_the_largest_that_is_feasible(name):
    region, draw = resolve(TOGETHER[name], THETA), rng(4)
    x = region.nearest(draw.normal(size=(BATCH, 20)), np.zeros((BATCH, 20)))
    x = 0.5 * (x + region.nearest(np.zeros((BATCH, 20)), np.zeros((BATCH, 20))))
    d = (region.tangents(x) @ draw.normal(size=(BATCH, 20, 1)))[..., 0] * np.array([[1e-3], [0.1], [1], [10], [100]])
    share = region.reach(d, x)
    assert ((share > 0) & (share <= 1)).all()
    for n in range(BATCH):
        ahead = [x[n : n + 1] + c * share[n] * d[n : n + 1] for c in (1.0, 1.01)]
        assert float(region.violation(trees.parts(ahead[0], region.shapes))) <= 1e-14
        assert share[n] == 1 or float(region.violation(trees.parts(ahead[1], region.shapes))) > 1e-6
    assert (share == 1).any()
    assert (share < 1).any()
