"""Arithmetic that sets share, on vectors long enough to be searched in pieces and of sizes that leave the range."""

from __future__ import annotations

import numpy as np
import pytest

from xvarpro import sets, trees
from xvarpro.sets import _arithmetic as arithmetic

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


LONG = 600_001  # more than two of the pieces that any backend works in, and a rest
LINEAR = {
    "k-norm": sets.KNormBall(3, 2.0),
    "k-norm of many": sets.KNormBall(LONG // 2, 2.0),
    "lp": sets.LpBall(2.5, 2.0),
    "lp by roots": sets.LpBall(3.0, 2.0),
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
