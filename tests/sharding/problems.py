"""Problems whose arrays may be sharded over a mesh, for the programs beside."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import xvarpro as xv

M_ROWS, K = 64, 24
rng = np.random.default_rng(0)
t = np.linspace(0.0, 2.0, M_ROWS)
E = np.exp(-t[:, None] * np.array([1.0, 5.0]))
y = E @ np.array([2.0, 1.0]) + 0.01 * rng.normal(size=M_ROWS)
Y = E @ rng.normal(size=(2, K)) + 0.01 * rng.normal(size=(M_ROWS, K))
start, box = np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0)


def M(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)


def on(mesh, x, *spec):
    if mesh is None:
        return x
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, P(*spec)), lambda i: x[i])


def rows(mesh, **given):
    return xv.separable(M, on(mesh, y, "i"), data={"t": on(mesh, t, "i")}, **given)


def columns(mesh, copies=1, **given):
    return xv.separable(M, on(mesh, np.tile(Y, (1, copies)), None, "i"), data={"t": t}, **given)


def both(mesh):
    return xv.separable(M, on(mesh, Y, "i", "j"), data={"t": on(mesh, t, "i")}, compress=False, lam=1e-3)


def bilevel(mesh):
    level = xv.Level(M, on(mesh, y, "i"), lam=1e-2)
    return xv.bilevel(lower=level, upper=xv.Level(M, on(mesh, 1.01 * y, "i")), data={"t": on(mesh, t, "i")})


def close(found, want, tolerance=1e-10):
    found, want = np.asarray(found), np.asarray(want)
    assert found.shape == want.shape
    assert np.abs(found - want).max() <= tolerance * np.abs(want).max(), (found, want)


def refused(message):
    return pytest.raises(xv.errors.ProblemError, match=re.escape(message))
