"""What several test modules share: arrays to and fro, relative errors, small problems, sources that are watched."""

import os
import sys
import time
import weakref
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from itertools import count
from itertools import product as combinations_of
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import pytest

import xvarpro as xv
from xvarpro.algorithms.steps.interface import Search
from xvarpro.backends.exchange import find_device
from xvarpro.core import trees
from xvarpro.lower.interface import Ridge, System
from xvarpro.objective.interface import Objective
from xvarpro.operators import Dense

BACKENDS = ("numpy", "array-api-strict", "torch", "jax", "cupy")
HOST_BACKENDS = BACKENDS[:4]
posix = pytest.mark.skipif(os.name != "posix", reason="signals, links and forks are those of POSIX")
linux = pytest.mark.skipif(sys.platform != "linux", reason="/dev/full and forks that are safe are Linux's")


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
    """A NumPy array on `backend`, in its own dtype or `dtype`; on the second device of array-api-strict.

    What is made on the default device there meets an error in the next operation.
    """
    x = np.array(x)
    second = find_device(backend, "device1") if backend.name == "array-api-strict" else None
    return backend.asarray(x, dtype=dtype or x.dtype.name, device=second)


def interpreted(backend):
    """The backend without compilation: what a test calls once would be compiled for that call."""
    return type(backend)(compiled=False) if backend.compiled else backend


def inner(a, b):
    """The real inner product of two arrays."""
    return float(np.sum(np.real(np.conj(a) * b), dtype=np.float64))


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


def gradients(count, shape, seed=0):
    """Random gradients, a third of them rounded, so that ties and zeros are common."""
    g = 2 * rng(seed).normal(size=(count, *shape))
    g[::3] = np.round(g[::3])
    return g


def decays(theta, data):
    """Exponential decays sampled at the times `data`, or ``data["t"]``: shape (m, n)."""
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(data["t"] if isinstance(data, dict) else data, axis=1) * theta)


T = np.linspace(0.0, 2.0, 40)
RATES = np.array([1.0, 4.0])
SIGNAL = np.exp(-np.outer(T, RATES)) @ np.array([2.0, 1.0])


def decay_problem(noise=0.0, **keywords):
    """Two decays, found by their rates: small, smooth, solvable to rounding where there is no noise."""
    y = SIGNAL + noise * rng(1).normal(size=T.size)
    return xv.separable(decays, y, data={"t": T}, **keywords)


def together(theta, data):
    """Decays of a batch, shape (b, m, n), by rates (b, n) at times (m,) or (b, m), or at ``data["t"]``."""
    xp = xv.array_namespace(theta)
    t = data["t"] if isinstance(data, dict) else data
    return xp.exp(-xp.expand_dims(theta, axis=-2) * xp.expand_dims(t, axis=-1))


def with_offset(theta, t):
    """Decays and a constant."""
    return xv.models.columns(xv.models.exponentials(t, theta), xv.models.polynomials(t, 0))


def waves(theta, t):
    """Oscillations: an objective with many minima, where a nonmonotone search climbs."""
    xp = xv.array_namespace(theta)
    return xp.cos(xp.expand_dims(t, axis=1) * theta)


def product(theta, data):
    """A design that is the parameter itself: the dictionary problem."""
    return theta


def dictionary_problem(m=6, k=9, lam=0.1, seed=0, **keywords):
    return xv.separable(product, rng(seed).normal(size=(m, k)), lam=lam, **keywords)


def dictionary_start(m=6, n=4, seed=1):
    D = rng(seed).normal(size=(m, n))
    return D / np.abs(D).sum()


class Solved:
    """A lower level of NumPy arrays, factored on a backend by a solver, whose methods take NumPy arrays."""

    def __init__(self, backend, solver, A, lam=0.0, Omega=None, dtype="float64"):
        self.backend, self.dtype = interpreted(backend), dtype
        self.solver = trees.map_arrays(self.send, solver)
        self.system = System(Dense(self.send(A)), Ridge(lam, None if Omega is None else self.send(Omega)))
        with backend.scope(dtype):
            self.factor = self.solver.factor(self.backend, self.system)

    def send(self, x):
        x = host(x)
        kind = {"float32": "complex64", "float64": "complex128"}[self.dtype] if x.dtype.kind == "c" else self.dtype
        return send(self.backend, x, kind)

    def __getattr__(self, name):
        def ask(*args):
            with self.backend.scope(self.dtype):
                return getattr(self.solver, name)(self.backend, self.system, self.factor, *map(self.send, args))

        return ask

    def said(self, what):
        """A field of the diagnosis."""
        found = self.diagnose(np.ones((self.system.M.shape[0], 1)))
        with self.backend.scope(self.dtype):
            return float(getattr(found, what))

    def refined(self, y):
        """Weights and residual."""
        w = self.argmin(y)
        with self.backend.scope(self.dtype):
            r = self.system.M.residual(w, self.send(y))
        return self.refine(y, w, r)

    def pulled(self, c, y):
        """The adjoint at the refined weights."""
        return self.adjoint(c, y, *self.refined(y))


class Watched:
    """A source of chunks of arrays, cut along their last axis: counts what is asked for, and which chunks live on."""

    def __init__(self, *arrays, size, wait=0.0, fail=None):
        self.arrays, self.size, self.wait, self.fail = arrays, size, wait, fail
        self.passes = self.asked = self.most = self.ended = 0
        self.given = []

    def __call__(self):
        self.passes += 1
        try:
            for i, a in enumerate(range(0, self.arrays[0].shape[-1], self.size)):
                self.given = [ref for ref in self.given if ref() is not None]
                self.most, self.asked = max(self.most, len(self.given)), self.asked + 1
                time.sleep(self.wait)
                if self.fail is not None:
                    self.fail(i)
                chunk = tuple(x[..., a : a + self.size].copy() for x in self.arrays)
                self.given += map(weakref.ref, chunk)
                yield chunk if len(chunk) > 1 else chunk[0]
                del chunk
        finally:
            self.ended += 1


def invoke(*args, columns=200):
    """What the command `xvarpro` does with these arguments, in a terminal of so many columns."""
    from typer.testing import CliRunner

    from xvarpro.cli import app

    return CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": str(columns)})


# a file of a user's, which states a problem
CODE = """
import numpy as np, xvarpro as xv

def M(theta, t):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.expand_dims(t, axis=1) * theta)

def decays():
    t = np.linspace(0.0, 2.0, 50)
    y = np.exp(-t) + np.exp(-5.0 * t)
    return xv.separable(M, y, data=t, lam=1e-6), np.array([0.5, 8.0]), xv.sets.Box(0.0, 10.0)
"""


# -- algorithms on a function that is known ----------------------------------------------------------------------------


class Point(NamedTuple):
    theta: Any
    value: Any


class Quadratic:
    """``1/2 <x, H x> - <b, x> + offset`` in the place of a reduced objective, on any framework; calls are counted."""

    exact, samples, chunks, rows, target_shape = True, 1, None, 1, (1, 1)

    def __init__(self, H, b, offset=0.0, backend=None):
        self.backend = backend or xv.backends.get("numpy")
        self.H, self.b, self.offset = (self.backend.asarray(np.asarray(x, dtype=np.float64)) for x in (H, b, offset))
        self.values = self.gradients = 0

    @property
    def L(self):
        return np.abs(np.linalg.eigvalsh(self.H)).max()

    def rounding(self, value):
        return 4 * np.finfo(np.float64).eps * abs(value)

    def flat(self, theta):
        return self.backend.xp.concat([self.backend.xp.reshape(x, (-1,)) for x in theta])

    def point(self, theta, ahead=False):
        self.values += 1
        x = self.flat(theta)
        return Point(theta, 0.5 * (x @ (self.H @ x)) - self.b @ x + self.offset)

    probed = Objective.probed

    def gradient(self, point):
        self.gradients += 1
        g, out, at = self.H @ self.flat(point.theta) - self.b, [], 0
        for x in point.theta:
            n = int(np.prod(x.shape))
            out.append(self.backend.xp.reshape(g[at : at + n], x.shape))
            at += n
        return tuple(out)

    def value_and_gradient(self, theta):
        point = self.point(theta)
        return point, self.gradient(point)

    def check(self, theta):
        pass

    def scaled(self, c):
        return Quadratic(c * self.H, c * self.b, c * self.offset)


def states(algorithm, f, region, theta, n):
    """Iterates 0 to n."""
    with f.backend.scope("float64"):
        state = algorithm.init(f, region, theta)
        yield state.iterate
        for _ in range(n):
            state = algorithm.advance(f, region, state)
            yield state.iterate


@dataclass(frozen=True)
class Quarter(xv.steps.StepRule):
    """A step of a quarter, whatever the objective."""

    def init(self, L):
        return L

    def search(self, line, memory):
        alpha = 0 * line.value + 0.25
        return Search(alpha, line.phi(alpha), memory, 0 * alpha + 1, 0 * alpha)


# -- tables ------------------------------------------------------------------------------------------------------------


def in_turn(names, rows, ids=None):
    """One test for a table, in place of ``parametrize``: for rows of milliseconds. A row that fails is a subtest.

    Several tables make all combinations on NumPy; another framework, of which the suite asks the same, takes 16 of
    them, JAX, which compiles each, two.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [_row(names, row, ids, i) for i, row in enumerate(rows)]

    def decorate(test):
        body, tables = getattr(test, "in_turn", (test, ()))
        tables = (table, *tables)

        def run(subtests, **fixtures):
            among = list(combinations_of(*tables))
            most = {"numpy": len(among), "jax": 2}.get(getattr(fixtures.get("backend"), "name", "numpy"), 16)
            if most < (n := len(among)):
                # no step of a common divisor, which would pass over rows of a table
                step = next(step for step in count(-(-n // most)) if gcd(step, n) == 1)
                among = [among[i * step % n] for i in range(most)]
            for combination in among:
                values = {name: value for _, row in combination for name, value in row.items()}
                try:
                    body(**fixtures, **values)
                except (Exception, pytest.fail.Exception, pytest.skip.Exception):
                    with subtests.test("-".join(label for label, _ in combination)):
                        raise

        taken = {name for table in tables for _, row in table for name in row}
        left = [x for x in signature(body).parameters.values() if x.name not in taken]
        run.__signature__ = Signature([*left, Parameter("subtests", Parameter.POSITIONAL_OR_KEYWORD)])
        run.__name__, run.__doc__, run.__module__ = body.__name__, body.__doc__, body.__module__
        run.pytestmark = getattr(test, "pytestmark", [])
        run.in_turn = body, tables
        return run

    return decorate


def _row(names, row, ids, i):
    """The name of a row and its values by their names."""
    values, label = (row.values, row.id) if hasattr(row, "marks") else (row if len(names) > 1 else (row,), None)
    if label is None:
        label = "-".join(_label(x, ids, f"{name}{i}") for name, x in zip(names, values, strict=True))
    return label, dict(zip(names, values, strict=True))


def _label(x, ids, otherwise):
    if ids is not None:
        return str(ids(x))
    if x is None or isinstance(x, str | bool | int | float | complex):
        return str(x)
    return getattr(x, "__name__", otherwise)


# of a test that JAX compiles for seconds where the suite, or another test, asks it the same
compiles_for_long = pytest.mark.parametrize(
    "backend", [pytest.param(x, marks=[pytest.mark.thorough] * (x == "jax")) for x in BACKENDS], indirect=True
)
