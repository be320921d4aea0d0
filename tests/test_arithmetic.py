"""Arithmetic that sets share, on vectors long enough to be searched in pieces and of sizes that leave the range."""

from __future__ import annotations

import numpy as np
import pytest

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
