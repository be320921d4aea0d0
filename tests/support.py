"""What several test modules share: arrays to and fro, relative errors, small problems."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import count

import numpy as np

import xvarpro as xv
from xvarpro.core import trees

BACKENDS = ("numpy", "array-api-strict", "torch", "jax", "cupy")
HOST_BACKENDS = BACKENDS[:4]


def no_cuda(framework):
    """Why tests on a device of `framework` cannot run here; empty where they can."""
    if find_spec(framework) is None:
        return f"{framework} is not installed"
    if framework == "torch":
        import torch

        return "" if torch.cuda.is_available() else "torch sees no CUDA device"
    import cupy

    try:
        return "" if cupy.cuda.runtime.getDeviceCount() else "there is no CUDA device"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"there is no CUDA device: {error}"


def host(x):
    """An array of any framework as NumPy's."""
    owner = xv.backends.of(x)
    return np.asarray(x) if owner is None else np.array(owner.to_numpy(x))


def host_tree(tree):
    leaves, treedef = trees.flatten(tree)
    return trees.unflatten(treedef, [host(x) for x in leaves])


def send(backend, x, dtype=None):
    """A NumPy array on `backend`, in its own dtype unless told otherwise."""
    x = np.array(x)
    return backend.asarray(x, dtype=dtype or x.dtype.name)


def send_tree(backend, tree, dtype=None):
    leaves, treedef = trees.flatten(tree)
    return trees.unflatten(treedef, [send(backend, x, dtype) for x in leaves])


def vector(tree):
    """All numbers of a tree in one NumPy vector."""
    return np.concatenate([host(x).astype(np.float64).ravel() for x in trees.leaves(tree)])


def error(got, want):
    """Relative error in the Euclidean norm over all leaves."""
    got, want = vector(got), vector(want)
    assert got.shape == want.shape
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def nudged(tree, direction, h):
    """``tree + h direction``, for a direction given as one vector."""
    leaves, treedef = trees.flatten(tree)
    start, out = count(), []
    for x in leaves:
        steps = np.array([direction[next(start)] for _ in range(x.size)]).reshape(x.shape)
        out.append(x + h * steps)
    return trees.unflatten(treedef, out)


def central_differences(f, tree, h=6e-6):
    """Gradient of a scalar function of a NumPy tree, as one vector."""
    eye = np.eye(vector(tree).size)
    return np.array([(f(nudged(tree, e, h)) - f(nudged(tree, e, -h))) / (2 * h) for e in eye])


# -- small problems ----------------------------------------------------------------------------------------------------


def rng(seed=0):
    return np.random.default_rng(seed)


def decays(theta, data):
    """Exponential decays sampled at ``data["t"]``: shape (m, n)."""
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)


T = np.linspace(0.0, 2.0, 40)
RATES = np.array([1.0, 4.0])
SIGNAL = np.exp(-np.outer(T, RATES)) @ np.array([2.0, 1.0])


def decay_problem(noise=0.0, **keywords):
    """Two decays, found by their rates: small, smooth, solvable to rounding where there is no noise."""
    y = SIGNAL + noise * rng(1).normal(size=T.size)
    return xv.separable(decays, y, data={"t": T}, **keywords)


def product(theta, data):
    """A design that is the parameter itself: the dictionary problem."""
    return theta


def dictionary_problem(m=6, k=9, lam=0.1, seed=0, **keywords):
    return xv.separable(product, rng(seed).normal(size=(m, k)), lam=lam, **keywords)


def dictionary_start(m=6, n=4, seed=1):
    D = rng(seed).normal(size=(m, n))
    return D / np.abs(D).sum()
