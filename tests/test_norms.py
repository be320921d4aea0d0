"""Norms of the free block beyond the suite, which asks direction and dual norm: extremes, ties, zeros, precision."""

import inspect

import numpy as np
import pytest

from xvarpro.sets import norms

from .support import host, in_turn, rng, send

KINDS = [x for x in vars(norms).values() if inspect.isclass(x) and issubclass(x, norms.Norm) and x is not norms.Norm]
SHAPES = [(4, 3), (5,), (), (2, 3, 4)]


each = in_turn("norm", [kind() for kind in KINDS], ids=lambda norm: type(norm).__name__)


def dual(backend, norm, g):
    u, size = norm.dual(tuple(send(backend, np.asarray(x)) for x in g))
    assert [x.shape for x in u] == [x.shape for x in g]
    assert size.shape == ()
    return [host(x) for x in u], float(size)


@each
def test_no_gradient_gives_no_step(norm, backend):
    u, size = dual(backend, norm, tuple(np.zeros(s) for s in SHAPES))
    assert size == 0
    assert not any(x.any() for x in u)


@in_turn("scale", [1e-300, 1e-160, 1e160, 1e300])
@each
def test_neither_overflow_nor_underflow(norm, scale, backend):
    for shape in SHAPES:
        g = np.sign(rng(1).normal(size=shape)) * rng(2).uniform(0.5, 1.0, size=shape)
        u, size = dual(backend, norm, (scale * g,))
        want, reference = dual(backend, norm, (g,))
        assert size == pytest.approx(scale * reference, rel=1e-12)
        assert np.abs(u[0] - want[0]).max() <= 1e-12


@each
def test_nan_reaches_the_gap(norm, backend):
    with backend.scope("float64"):
        g = [np.ones(s) for s in SHAPES]
        g[0][1, 1] = np.nan
        _, size = dual(backend, norm, tuple(g))
    assert np.isnan(size)


def test_l1_moves_the_first_of_the_steepest_entries(backend):
    """One entry of the whole group, whichever array it is in."""
    g = (np.array([[1.0, -3.0], [3.0, 0.0]]), np.array([3.0, -3.0]))
    u, size = dual(backend, norms.L1(), g)
    assert size == 3
    assert u[0].tolist() == [[0, -1], [0, 0]]
    assert not u[1].any()


@in_turn(("kind", "axis"), [(norms.ColumnNorm, -2), (norms.RowNorm, -1)])
def test_columns_and_rows_have_length_one(kind, axis, backend):
    G = rng(4).normal(size=(2, 4, 3))
    G[0, :, 1] = 0.0
    (u,), size = dual(backend, kind(), (G,))
    lengths = np.linalg.norm(G, axis=axis)
    assert size == pytest.approx(lengths.sum(), rel=1e-14)
    assert np.linalg.norm(u, axis=axis) == pytest.approx(np.where(lengths > 0, 1.0, 0.0), rel=1e-14)
