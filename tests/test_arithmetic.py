"""Arithmetic that sets share, on vectors long enough to be searched in pieces and of sizes that leave the range."""

from __future__ import annotations

import numpy as np
import pytest

from xvarpro import sets
from xvarpro.core import trees
from xvarpro.core.powers import by_roots, power
from xvarpro.sets import vectors as arithmetic
from xvarpro.sets._sums import highest_sum

from .support import host, rng, send

SEARCHES = {
    "first_largest": lambda x: x,
    "first_smallest": lambda x: -x,
    "first_steepest": np.abs,
}


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("n", [1, 5, 4096, 8191, 8192, 8193, 20000])
def test_the_first_of_entries_that_tie(name, n, backend):
    find, height = getattr(arithmetic, name), SEARCHES[name]
    last = np.zeros((3, n))
    last[..., n - 1] = [1.0, -1.0, 0.0]
    for x in (rng(0).integers(-9, 10, size=(3, n)) * 1.0, rng(1).normal(size=(3, n)), last, -0.0 * last):
        got = host(find(send(backend, x)))
        assert got.tolist() == height(x).argmax(-1)[:, None].tolist()
        assert host(find(send(backend, x[1]))).tolist() == [got[1, 0]]
    assert host(find(send(backend, last[:0]))).shape == (0, 1)


@pytest.mark.parametrize("n", [5, 8193])
def test_the_first_complex_entry(n, backend):
    x = np.ones((2, n), dtype=complex)
    x[0, n // 2], x[0, n - 1], x[1, 1] = 3 - 4j, 4 + 3j, 1j
    assert host(arithmetic.first_steepest(send(backend, x))).tolist() == [[n // 2], [0]]


@pytest.mark.parametrize("n", [5, 8193, 300_001])
def test_peaks_and_sums_of_what_is_made_in_pieces(n, backend):
    x, scale = rng(0).integers(-9, 10, size=(2, n)) * 1.0, np.where(np.arange(n) % 3, 1.0, 2.0)
    there, beside = send(backend, x), send(backend, scale)
    got = host(arithmetic.first_peak(lambda x, scale: x * scale, there, beside))
    assert got.tolist() == (x * scale).argmax(-1)[:, None].tolist()
    sums = host(arithmetic.total(lambda x: x * x, there))
    assert sums.tolist() == (x * x).sum(-1, keepdims=True).tolist()  # of integers, without rounding


@pytest.mark.parametrize("size", [1.0, -2.5, 1e-3])
@pytest.mark.parametrize("n", [1, 7, 8193])
def test_lengths_do_not_depend_on_the_scale(n, size, backend):
    """Rows far beyond what can be squared, next to rows that can: each as if it were alone."""
    x = rng(0).normal(size=(5, n))
    want = size * x / np.linalg.norm(x, axis=-1, keepdims=True)
    scales = np.array([1.0, 1e300, 1e-250, 1e-150, 1e150])[:, None]
    got = host(arithmetic.of_length(send(backend, scales * x), size))
    assert np.abs(got - want).max() <= 1e-14 * np.abs(want).max()
    for row, alone in zip(got, scales * x, strict=True):
        assert np.abs(host(arithmetic.of_length(send(backend, alone), size)) - row).max() <= 1e-15 * abs(size)


def test_lengths_of_what_has_none(backend):
    x = np.array([[0.0, -0.0, 0.0], [3.0, 0.0, -4.0], [np.nan, 1.0, 2.0], [5e-324, 0.0, 0.0]])
    with backend.scope("float64"):
        got = host(arithmetic.of_length(send(backend, x), 5.0))
    assert not got[0].any()
    assert got[1].tolist() == [3.0, 0.0, -4.0]
    assert np.isnan(got[2]).any()
    assert got[3].tolist() in ([5.0, 0.0, 0.0], [0.0, 0.0, 0.0])  # flushed to zero by some frameworks
    assert not host(arithmetic.of_length(send(backend, x[1]), 0.0)).any()


@pytest.mark.parametrize(
    "C", [sets.LpBall(3.0), sets.NonnegativeL2Ball(), sets.L2Ball(), sets.Ellipsoid(2.0)], ids=repr
)
def test_torch_differentiates_oracles_of_round_sets(C):
    torch = pytest.importorskip("torch")
    g = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(C.lmo, (g,))


SUMS = {"highest": lambda s: s, "largest": np.abs}


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("n", [2, 7, 65_535, 65_536, 70_001, 300_000])
def test_the_first_of_the_highest_partial_sums(n, name, centred, backend):
    """Of integers, which partial sums do not round."""
    height = SUMS[name]
    g = rng(n).integers(-2, 3, size=(4, n)) * 1.0
    g[1], g[2], g[3, n // 2 :] = 0.0, 1.0, -2.0
    sums = np.cumsum(g, axis=-1)
    if centred:
        sums = (n * sums - np.arange(1, n + 1) * sums[:, -1:]) / n
    heights = height(sums[:, :-1] if centred else np.concatenate([np.zeros((4, 1)), sums], axis=-1))
    ours = {"highest": lambda s: s, "largest": lambda s: backend.xp.abs(s)}[name]
    with backend.scope("float64"):
        k, found = map(host, highest_sum(send(backend, g), ours, centred))
    if not centred:
        assert k[:, 0].tolist() == heights.argmax(-1).tolist()
    reached = np.take_along_axis(heights, k - int(centred), axis=-1), height(found)
    for x in reached:
        assert np.abs(x[:, 0] - heights.max(-1)).max() <= 1e-12 * np.abs(g).sum(-1).max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1000, 100_000])
def test_partial_sums_neither_overflow_nor_drown_in_their_mean(n, dtype, backend):
    """Rows that sum up to more than there is, next to rows that do not, and a mean of which a rounding adds up."""
    g = rng(n).integers(-2, 3, size=(3, n)) * 1.0
    g[:, : n // 2] += 2 * rng(n).integers(0, 2, size=(3, n // 2))
    shifted = (g + np.array([[0.0], [2.0**20], [0.0]])) * np.array(
        [[1.0], [1.0], [2.0 ** (1020 if dtype == "float64" else 124)]]
    )
    sums = np.cumsum(g - g.mean(-1, keepdims=True), axis=-1)
    ordered, varied = sets.OrderedBox(-1.0, 2.0), sets.TotalVariationBall(2.0)
    with backend.scope(dtype):
        step = host(varied.lmo(send(backend, shifted.astype(dtype))))
        raised = host(ordered.lmo(send(backend, (shifted[[0, 2]]).astype(dtype))))
    assert ((g * step).sum(-1) <= -2.0 * np.abs(sums).max(-1) * (1 - 1e-4)).all()
    prefix = np.concatenate([np.zeros((2, 1)), np.cumsum(g[[0, 2]], axis=-1)], axis=-1)
    assert (raised < 0).sum(-1).tolist() == prefix.argmax(-1).tolist()


@pytest.mark.parametrize("n", [1, 5, 8191, 8193, 20_000])
def test_steps(n, backend):
    k = np.array([[0], [1], [n // 2], [n - 1], [n]])
    want = np.where(np.arange(n) < k, -1.0, 2.0)
    like, there = send(backend, np.zeros((5, n))), backend.asarray(k)
    assert (host(arithmetic.stepped(like, there, -1.0, 2.0)) == want).all()
    low = send(backend, want[:, :1] * 3)
    assert (host(arithmetic.stepped(like, there, low, 7.0)) == np.where(want < 0, want[:, :1] * 3, 7.0)).all()
    assert (host(arithmetic.stepped(like[2, ...], there[2, ...], -1.0, 2.0)) == want[2]).all()


@pytest.mark.parametrize("odd", [0.0, np.inf, np.nan, 1e308])
def test_signs(odd, backend):
    x = np.array([[3.0, -0.5, 0.0, odd, -2.0, odd]])
    with backend.scope("float64"):
        got = host(backend.sign(send(backend, x)))
    np.testing.assert_array_equal(got, np.sign(x))


POWERS = [0.25, 0.5, 0.75, 1.0, 1.25, 2.0, 2.5, 3.0, 3.75, 4.0, 0.1, 1 / 3, 2 / 3, 1.1, 5.0]


@pytest.mark.parametrize("p", POWERS)
def test_powers(p, backend):
    """To a rounding or two for each factor, with the ends of the range where they belong."""
    x = np.array([0.0, 1e-30, 0.3, 1.0, 7.0, 1e20, np.inf, np.nan])
    with backend.scope("float64"):
        got = host(power(send(backend, x), p))
    assert np.allclose(got, x**p, rtol=2e-14, atol=0.0, equal_nan=True)
    assert by_roots(p) == (4 * p == round(4 * p) and p <= 4)
    if by_roots(p):
        assert np.allclose(got[1:6], x[1:6] ** p, rtol=2e-15, atol=0.0)


@pytest.mark.parametrize("n", [5, 9001, 1_200_001])  # at once, in units, in pieces that a cache holds
@pytest.mark.parametrize("p", [0.25, 0.5, 1 / 3, 2 / 3, 1.5, 2.0, 3.75, 1.2])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_powers_that_keep_their_sign(dtype, p, n, backend):
    x = rng(n).normal(size=(2, n)) + (1j * rng(1).normal(size=(2, n)) if dtype == "complex128" else 0.0)
    x[:, 1] = 0.0
    scale = np.array([[0.5], [3.0]])
    want = np.where(x == 0, 0.0, x / np.where(x == 0, 1.0, abs(x)) * abs(x) ** p)
    with backend.scope("float64"):
        there = send(backend, x)
        plain, spent = map(host, arithmetic.signed_power(there, p))
        scaled, less = map(host, arithmetic.signed_power(there, p, send(backend, scale)))
    assert (host(there) == x).all()
    assert np.abs(plain - want).max() <= 1e-14 * np.abs(want).max()
    assert np.abs(scaled - want / scale**p).max() <= 1e-14 * np.abs(want / scale**p).max()
    assert np.allclose(spent[:, 0], (abs(x) ** (p + 1)).sum(-1), rtol=1e-13)
    assert np.allclose(less, spent / scale ** (p + 1), rtol=1e-13)


@pytest.mark.parametrize("p", [1.25, 4 / 3, 1.5, 5 / 3, 2.0, 7 / 3, 3.0, 4.0, 5.0])
@pytest.mark.parametrize("n", [3, 9000])
def test_powers_do_not_depend_on_the_scale(n, p, backend):
    """As lengths: rows whose powers leave the range, next to rows whose powers do not."""
    g = rng(0).normal(size=(5, n))
    g[:, 1] = [0.0, 0.0, -0.0, 0.0, 0.0]
    scales = np.array([1.0, 1e300, 1e-300, 1e-160, 0.0])[:, None]
    want = -2.0 * np.sign(g) * np.abs(g) ** (1 / (p - 1))
    want /= (np.abs(want / 2.0) ** p).sum(-1, keepdims=True) ** (1 / p)
    want[4] = 0.0
    with backend.scope("float64"):
        got = host(sets.LpBall(p, 2.0).lmo(send(backend, scales * g)))
    assert np.abs(got - want).max() <= 1e-13 * np.abs(want).max()


LONG = 600_001  # more than two of the pieces that any backend works in, and a rest
LINEAR = {
    "k-norm": sets.KNormBall(3, 2.0),
    "k-norm of many": sets.KNormBall(LONG // 2, 2.0),
    "lp by logarithms": sets.LpBall(4.0, 2.0),
    "lp by roots": sets.LpBall(3.0, 2.0),
    "lp by roots of roots": sets.LpBall(5.0, 2.0),
    "lp by squares": sets.LpBall(1.5, 2.0),
    "lp by squares and roots": sets.LpBall(1.4, 2.0),
    "ordered": sets.OrderedBox(-1.0, 2.0),
    "total variation": sets.TotalVariationBall(2.0),
    "nonnegative": sets.NonnegativeL2Ball(2.0),
    "weighted l1": sets.WeightedL1Ball(np.where(np.arange(LONG) % 3, np.linspace(0.5, 2.0, LONG), 0.0), 0.25),
    "weighted simplex": sets.WeightedSimplex(np.linspace(0.5, 2.0, LONG), -np.linspace(1.0, 3.0, LONG), 2.0),
    "group l1,2": sets.GroupL12Ball(100, 2.0),
    "group l1,inf": sets.GroupL1InfBall(100, 2.0),
    "groups": sets.Groups(sets.L2Ball(2.0), 100),
}


@pytest.mark.parametrize("name", LINEAR)
def test_oracles_of_long_vectors(name, backend):
    """As good as the support function says, which makes no pieces; rows as if each were alone."""
    C = trees.map_arrays(lambda x: send(backend, x), LINEAR[name])
    g = rng(0).normal(size=(2, LONG)) * np.array([[1.0], [1e-200]])
    with backend.scope("float64"):
        there = send(backend, g)
        found, best = host(C.lmo(there)), -host(C.support(-there))
        alone = [host(C.lmo(send(backend, row))) for row in g]
        outside = host(C.violation(send(backend, found)))
    products = g * found
    assert (np.abs(products.sum(-1) - best) <= 1e-12 * np.abs(products).sum(-1)).all()
    assert (found == np.stack(alone)).all()
    assert outside.max() <= 1e-10
    if backend.name == "jax":
        import jax

        with backend.scope("float64"):
            compiled = host(jax.jit(C.lmo)(there))
        assert np.abs(compiled - found).max() <= 1e-14 * np.abs(found).max()
