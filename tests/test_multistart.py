"""Many starts of one problem: minima that brute force finds, counts that add up, starts that lie in their sets."""

import sys

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.core import trees
from xvarpro.fit.multistart import labelled

from .support import decays, host, host_tree, rng, send_tree
from .test_many import T

RATES = xv.sets.Box(0.1, 20.0)


def waves(theta, t):
    """Sine and cosine of one frequency: the objective has a minimum for every lobe of the spectrum."""
    xp = xv.array_namespace(theta)
    phase = theta * xp.expand_dims(t, axis=1)
    return xp.concat([xp.sin(phase), xp.cos(phase)], axis=1)


TIMES = np.linspace(0.0, 1.0, 60)
SIGNAL = np.sin(23.0 * TIMES) + 0.7 * np.cos(41.0 * TIMES + 0.3) + 0.05 * rng(1).normal(size=60)
LOW, HIGH = 12.0, 60.0


def scanned():
    """Minima inside the bounds, by brute force: frequencies and objectives."""
    grid = np.linspace(LOW, HIGH, 20_001)
    phases = grid[:, None] * TIMES
    Q, _ = np.linalg.qr(np.stack([np.sin(phases), np.cos(phases)], axis=2))
    values = 0.5 * (SIGNAL @ SIGNAL - np.sum((Q.mT @ SIGNAL) ** 2, axis=1))
    at = np.flatnonzero((values[1:-1] < values[:-2]) & (values[1:-1] < values[2:])) + 1
    return grid[at], values[at]


def of_waves(units=1.0, starts=64, **keywords):
    problem = xv.separable(lambda theta, t: waves(theta * units, t), SIGNAL, data=TIMES)
    over = xv.sets.Box(LOW / units, HIGH / units)
    return xv.multistart(problem, np.array([30.0]) / units, over, starts=starts, tol=1e-8, **keywords)


def total(found):
    return sum(m.count for m in found.minima) + sum(found.lost.values())


def test_every_minimum_is_found_and_counted(backend):
    found = of_waves(starts=32, backend=backend)
    frequencies, values = scanned()
    assert len(frequencies) >= 6
    theta = np.array([m.theta[0] for m in found.minima])
    inside = (theta > LOW) & (theta < HIGH)
    order = np.argsort(theta[inside])
    np.testing.assert_allclose(theta[inside][order], frequencies, atol=(HIGH - LOW) / 20_000)
    np.testing.assert_allclose(np.array([m.value for m in found.minima])[inside][order], values, rtol=1e-5)
    assert total(found) == 32
    assert np.array_equal(np.sort(np.concatenate([m.reached for m in found.minima])), np.arange(32))
    assert found.best.value == pytest.approx(values.min(), rel=1e-5)
    assert found.best.success
    assert len(found.best.trace.value) >= 1
    np.testing.assert_allclose(found.best.w, found.minima[0].w, rtol=1e-5)


def test_units_of_theta_and_repetition_do_not_count():
    want = of_waves(starts=24)
    for units in (1e-6, 1e9):
        got = of_waves(units, starts=24)
        assert [m.count for m in got.minima] == [m.count for m in want.minima]
    again = of_waves(starts=24)
    np.testing.assert_array_equal(again.starts, want.starts)
    assert [m.reached.tolist() for m in again.minima] == [m.reached.tolist() for m in want.minima]
    other = of_waves(starts=24, seed=1)
    assert other.starts[0] == want.starts[0] == 30.0
    assert not np.isclose(other.starts[1:], want.starts[1:]).any()


def test_permutations_count_as_one_minimum_only_if_they_are_asked_for():
    y = decays(np.array([1.0, 5.0]), {"t": T}) @ np.array([2.0, 1.0])
    problem = xv.separable(decays, y, data={"t": T})
    given = {"theta0": np.array([2.0, 3.0]), "over": RATES, "starts": 32, "log": True}
    two, one = xv.multistart(problem, **given), xv.multistart(problem, **given, canonical=np.sort)
    assert sorted(m.theta.round(6).tolist() for m in two.minima) == [[1.0, 5.0], [5.0, 1.0]]
    assert len(one.minima) == 1
    assert total(one) == total(two) == 32
    assert one.minima[0].count == sum(m.count for m in two.minima)


def test_the_table_is_printed(many):
    text, lines = str(many), str(many).splitlines()
    assert lines[0] == f"64 starts led to {len(many.minima)} minima"
    for line, minimum in zip(lines[2:], many.minima[:12], strict=False):
        value, count, theta, n, status = line.split()
        assert float(value) == pytest.approx(minimum.value, rel=1e-7)
        assert int(count) == int(n) == minimum.count == sum(minimum.statuses.values())
        assert float(theta) == pytest.approx(minimum.theta[0], rel=1e-4)
        assert status == "CONVERGED"
    assert "best: CONVERGED" in text
    assert text.endswith(str(many.best))
    assert repr(many).startswith(f"Multistart(64 starts: {len(many.minima)} minima, best ")
    table, frame = many._repr_html_(), many.to_frame()
    assert table.startswith(f"<table><caption>{lines[0]}</caption>")
    assert table.endswith(many.best._repr_html_())
    assert list(frame.columns) == ["objective", "reached", "theta[0]", "ended"]
    assert frame["theta[0]"].tolist() == [float(m.theta[0]) for m in many.minima]
    assert frame["reached"].tolist() == [m.count for m in many.minima]


def test_what_ends_in_no_minimum_is_counted_too():
    """A model without values on one side: starts there end where they are; one without any has no minimum."""
    problem = xv.separable(lambda theta, t: waves(xv.array_namespace(theta).sqrt(theta), t), SIGNAL, data=TIMES)
    found = xv.multistart(problem, np.array([900.0]), xv.sets.Box(-3000.0, 3000.0), starts=32)
    below = int(np.sum(host(found.starts) <= 0))
    assert found.lost[xv.Status.NON_FINITE] == below > 0
    assert total(found) == 32
    assert "none of these" in str(found)
    assert f"{below} NON_FINITE" in str(found)
    problem = xv.separable(lambda theta, t: waves(theta, t) * np.nan, SIGNAL, data=TIMES)
    found = xv.multistart(problem, np.array([1.0]), scale=1.0, starts=4)
    assert (found.minima, found.lost, found.best.success) == ((), {xv.Status.NON_FINITE: 4}, False)


def drawn(theta0, over=None, n=256, **keywords):
    """Starts of a problem whose objective does not depend on them."""

    def M(theta, t):
        xp = xv.array_namespace(theta)
        zero = sum(0.0 * xp.sum(x) for x in trees.leaves(theta))
        return xp.expand_dims(t, axis=1) + zero

    kind = host(trees.leaves(theta0)[0]).dtype
    problem = xv.separable(M, SIGNAL.astype(kind), data=TIMES.astype(kind))
    return xv.multistart(problem, theta0, over, starts=n, max_iter=0, **keywords).starts


SETS = {
    "Simplex": xv.sets.Simplex(2.0),
    "L2Ball": xv.sets.L2Ball(3.0),
    "L1Ball": xv.sets.L1Ball(0.5),
    "LinfBall": xv.sets.LinfBall(2.0),
    "Nuclear": xv.sets.NuclearBall(1.5),
    "Oracle": xv.sets.Oracle(xv.sets.Simplex(2.0).lmo, width=4.0),
}


@pytest.mark.parametrize("name", SETS)
def test_starts_lie_in_their_sets_and_are_not_all_alike(name):
    C, like = SETS[name], np.zeros((3, 2)) if name == "Nuclear" else np.zeros(3)
    theta0 = C.center(like) if C.has_projection else np.full(3, 2.0 / 3)
    starts = drawn(theta0, C, n=64)
    inside = C if C.has_projection else xv.sets.Simplex(2.0)
    assert float(np.max(inside.violation(starts))) <= 1e-9
    np.testing.assert_array_equal(starts[0], theta0)
    assert len(np.unique(starts.round(9), axis=0)) >= 32
    assert np.all(np.ptp(starts, axis=0) > 0.3 * C.diameter(like) / 3)


def test_starts_between_bounds_around_theta0_and_by_logarithm():
    theta0 = {"rate": np.array([1.0, 10.0]), "shift": np.array([[5.0]]), "half": np.array([1.0, 2.0])}
    over = {"rate": xv.sets.Box(1e-3, 1e3), "half": xv.sets.Box(np.array([0.0, 0.0]), np.array([np.inf, 4.0]))}
    scale = {"shift": np.array([[0.5]]), "half": 3.0}
    starts = drawn(theta0, over, n=512, log={"rate": True}, scale=scale)
    even = np.sort(np.log10(starts["rate"]), axis=0)
    np.testing.assert_allclose(even, np.linspace(-3, 3, 512)[:, None] * np.ones(2), atol=0.05)
    assert np.ptp(starts["shift"]) == pytest.approx(1.0, rel=0.01)
    assert np.median(starts["shift"]) == pytest.approx(5.0, abs=0.01)
    half = starts["half"]
    assert half.min() == 0.0
    assert half[:, 0].max() == pytest.approx(4.0, rel=0.01)  # 1 + 3, and as far below as the bound lets it
    np.testing.assert_allclose(np.sort(half[:, 1]), np.linspace(0, 4, 512), atol=0.05)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_starts_are_those_of_theta0_s_framework_and_the_same_everywhere(backend, dtype):
    theta0 = {"rate": np.array([1.0, 4.0]), "s": np.full(3, 1 / 3)}
    over = {"rate": RATES, "s": xv.sets.Simplex()}
    want = drawn(theta0, over, n=16, log={"rate": True})
    got = drawn(send_tree(backend, theta0, dtype), over, n=16, log={"rate": True})
    assert xv.backends.of(got["s"]) is backend
    for name, x in host_tree(got).items():
        assert x.dtype == dtype
        np.testing.assert_allclose(x, want[name], rtol=10 * np.finfo(dtype).eps)


def test_one_start_is_theta0():
    problem = xv.separable(waves, SIGNAL, data=TIMES)
    found = xv.multistart(problem, np.array([30.0]), xv.sets.Box(LOW, HIGH), starts=1)
    assert found.starts.tolist() == [[30.0]]
    assert [m.count for m in found.minima] == [1]
    assert str(found).startswith("1 start led to 1 minimum\n")
    want = xv.solve(problem, np.array([30.0]), xv.sets.Box(LOW, HIGH))
    assert found.best.value == pytest.approx(want.value, rel=1e-9)


def test_the_lowest_end_may_be_where_a_unit_is_saturated():
    t = np.linspace(-1.0, 1.0, 30)
    step = xv.separable(
        lambda theta, t: xv.array_namespace(theta).tanh(t[:, None] * theta), np.sign(t), data=t, lam=0.1
    )
    with pytest.warns(UserWarning, match="is saturated"):
        found = xv.multistart(step, np.ones(1), xv.sets.Box(-1e3, 1e3), starts=4)
    assert found.best.value == pytest.approx(found.minima[0].value, rel=1e-12)


def test_ends_are_distinguished_by_size_and_by_the_range_of_starts():
    """1 and 1.0005 are one of size 1; positions that differ by a third of their range are two, however far from 0."""

    def labels(ends, success=True, spread=1.0, least=0.0):
        ends = np.array(ends)
        n, p = ends.shape
        given = {"order": np.arange(n), "success": np.broadcast_to(success, n), "same": 1e-3}
        return labelled(ends, **given, spread=np.broadcast_to(spread, p), least=np.full(p, least)).tolist()

    ends = [[1.0, 1000.1], [1.0005, 1000.1], [1.0, 1000.4], [1.2, 1000.1], [9.0, 9.0]]
    assert labels(ends, [True, True, True, True, False], [100.0, 1.0]) == [0, 0, 1, 2, -1]
    twice = [[1.0, 2.0], [5.0, 6.0], [3.0, 4.0], [5.0, 6.0005]]
    assert labels(twice, [True, False, False, False]) == [0, 1, -1, 1]
    near_zero = [[1e-9], [-3e-9], [2e-4]]
    assert labels(near_zero, least=1e-3) == [0, 0, 1]
    assert labels(near_zero) == [0, 1, 2]


BAD = {
    "starts must be a whole number": {"starts": 2.5},
    "seed must be": {"seed": -1},
    "same must be": {"same": 1.0},
    "canonical must be": {"canonical": "sort"},
    "canonical must return": {"canonical": lambda theta: theta[:0]},
    "canonical must return theta": {"canonical": lambda theta: None},
    "scale must say": {"over": None},
    r"of shape \(1,\); got an array of shape \(3,\)": {"over": None, "scale": np.ones(3)},
    "log needs bounds": {"over": xv.sets.Box(-1.0, 60.0), "log": True},
    "log needs a Box": {"over": None, "log": True},
    "log must have keys": {"theta0": {"f": np.array([30.0])}, "over": None, "log": {"g": True}},
    "must be one value for all": {"log": [True, False]},
    "such as log={'rates': True}; got 'f'": {"log": "f"},
    "without xv.Each": {"problem": xv.separable(waves, SIGNAL, data={"t": xv.Each(TIMES)})},
    "must come from": {"problem": None},
    "theta0 of problem 0 must be feasible": {"theta0": np.array([1.0])},
}


def test_what_does_not_fit_is_refused(subtests):
    problem = xv.separable(waves, SIGNAL, data=TIMES)
    given = {"problem": problem, "theta0": np.array([30.0]), "over": xv.sets.Box(LOW, HIGH), "starts": 4}
    for match, wrong in BAD.items():
        with subtests.test(match), pytest.raises(xv.errors.ProblemError, match=match):
            xv.multistart(**given | wrong)


def test_scipy_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(xv.errors.BackendNotInstalledError, match=r"pip install 'xvarpro\[scipy\]'"):
        of_waves()


@pytest.fixture(scope="module")
def many():
    return of_waves()
