"""A solve as a JAX function, for `jax.jit`, `jax.grad` and `jax.vmap`, and for modules of Equinox or Flax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import exchange, modules
from xvarpro.core import trees
from xvarpro.core.namespace import dtype_name
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.differentiation import implicit
from xvarpro.differentiation.layers import Solution, no_third_derivative
from xvarpro.driver.iteration import Program
from xvarpro.driver.prepare import Prepared
from xvarpro.driver.transfer import FLOATS
from xvarpro.errors import ProblemError, needs
from xvarpro.fit.solve import chosen
from xvarpro.problem.problem import Problem

with needs("xv.layers.jax", "jax"):
    import jax

__all__ = ["solve"]


def solve(
    problem: Problem,
    theta0: Tree,
    *,
    over: Tree = None,
    algorithm: Algorithm | None = None,
    tol: float = 1e-9,
    max_iter: int = 1000,
) -> Callable[..., Solution]:
    """Make ``data -> (theta, w, value, status)`` of ``xv.solve`` a function that JAX compiles, maps and differentiates.

    The whole solve is one XLA loop. Its reverse-mode derivative is the implicit one (`xvarpro.implicit`), which records
    no iteration. Second derivatives, as ``jax.grad`` of ``jax.grad``, cost another linear system and two gradients; see
    docs/layers.md for their accuracy. There is no forward mode and no third derivative. Under `jax.vmap` one loop
    solves a batch of problems, until the last of them has ended.

    Parameters
    ----------
    problem : Problem
        What needs a gradient is a function of `data`: ``y=lambda theta, data: data["y"]``. Its own `data` is replaced.
    theta0 : pytree of arrays
        Feasible start of every solve; its dtype is that of the solve and of the data.
    over, algorithm, max_iter
        As for `solve`; every set needs a projection or has to be a polytope with faces.
    tol : float
        As for `solve`; an error of the solution becomes one of the gradient.

    Returns
    -------
    callable
        ``layer(data, theta0=None)``. Another start has to be feasible, which is not checked, and has no gradient.
        The values of `data` are not checked either: NaN shows in the status.

    Raises
    ------
    ProblemError, ModelError, ExchangeError
        As `xvarpro.solve`, for shapes and dtypes, at the first call with data of these shapes; at a third derivative.

    Warns
    -----
    DifferentiabilityWarning
        After the backward pass: the solution has no derivative, or more than one; see `implicit.Sensitivity`. After
        that of a second derivative also where other constraints become active within the step of its differences.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, xvarpro as xv
    >>> def M(theta, data):
    ...     return jnp.exp(-data["t"][:, None] * theta)
    >>> problem = xv.separable(M, lambda theta, data: data["y"])
    >>> method = xv.algorithms.SpectralProjectedGradient()
    >>> layer = xv.layers.jax.solve(problem, jnp.array([2.0]), algorithm=method, tol=1e-5)
    >>> t = jnp.linspace(0.0, 1.0, 20)
    >>> weight = lambda y: layer({"t": t, "y": y}).w[0]
    >>> slope = jax.jit(jax.grad(weight))(jnp.exp(-3.0 * t))
    >>> round(float(slope @ jnp.exp(-3.0 * t)), 3)
    1.0
    """
    own: Any = backends.get("jax")
    initial = trees.map_arrays(lambda x: exchange.move(x, own), modules.taken(theta0))
    kind = dtype_name(trees.leaves(initial)[0])
    built: dict[Any, _Layer] = {}

    def layer(data: Tree, theta0: Tree = None) -> Solution:
        arrays, held = trees.partition(exchange.arrays(data, "data"))
        arrays = tuple(_strong(exchange.move(x, own)) for x in arrays)
        _check(held.fill(arrays), kind, own)
        with jax.ensure_compile_time_eval():
            # zeros in place of traced data: preparation checks values. Numbers outside of the model may have changed
            blank = held.fill(np.zeros(x.shape, x.dtype) for x in arrays)
            prepared = implicit.ready(replace(problem, data=blank), initial, over=over)
        key = held, tuple((x.shape, x.dtype) for x in arrays), prepared.structure.program
        if key not in built:
            objective: Any = prepared.assemble(prepared.problem)
            with jax.ensure_compile_time_eval():
                own.program(objective.outputs, prepared.theta)
            inner = own.embedded()
            method = chosen(prepared, algorithm)
            built[key] = _Layer(replace(prepared, backend=inner, compiler=inner), held, method, tol, max_iter)
        return built[key](arrays, theta0)

    return layer


class _Layer:
    """The layer for data of one structure: a `jax.custom_vjp` of the whole solve and its implicit gradient."""

    def __init__(
        self, prepared: Prepared, held: trees.Skeleton, algorithm: Algorithm, tol: float, max_iter: int
    ) -> None:
        self.prepared, self.held, self.algorithm, self.max_iter = prepared, held, algorithm, max_iter
        self.tol = np.asarray(tol, prepared.dtype)
        run: Any = jax.custom_vjp(self._solved)
        run.defvjp(self._forward, self._backward)
        self._run = run
        pull: Any = jax.custom_vjp(self._pulled)
        pull.defvjp(lambda *args: (pull(*args), args), self._pulled_back)
        twice: Any = jax.custom_vjp(self._pulled_twice)
        twice.defvjp(lambda *args: (twice(*args), None), no_third_derivative)
        self._pull, self._pull_twice = pull, twice

    def __call__(self, arrays: Leaves, theta0: Tree) -> Solution:
        prepared = self.prepared
        start = prepared.theta if theta0 is None else tuple(trees.flatten(theta0)[0])
        if [(x.shape, x.dtype) for x in start] != [(x.shape, x.dtype) for x in prepared.theta]:
            want, got = ([f"{tuple(x.shape)} {x.dtype}" for x in leaves] for leaves in (prepared.theta, start))
            raise ProblemError(f"theta0 must have the shapes and dtype of the layer's theta0, {want}; got {got}")
        theta, w, value, status = self._run(arrays, start)
        theta = trees.unflatten(prepared.layout.treedef, theta)
        return Solution(theta, w[:, 0] if prepared.vector else w, value, status)

    def _with(self, arrays: Leaves) -> Prepared:
        return replace(self.prepared, problem=trees.changed(self.prepared.problem, data=self.held.fill(arrays)))

    def _solved(self, arrays: Leaves, start: Leaves) -> tuple[Leaves, Array, Array, Array]:
        backend, treedef = self.prepared.backend, self.prepared.layout.treedef
        program, rest = Program.of(self._with(arrays), self.algorithm)

        def make(operands: Leaves) -> Callable[[Leaves], Any]:
            return lambda theta: program.whole(backend, operands[0], operands[1:], theta, self.max_iter)

        with backend.scope(self.prepared.dtype):
            run = backend.call(make, ("whole", program.skeleton, treedef, self.prepared.structure, self.max_iter))
            iterate, w = run((self.tol, *rest), start)
        return iterate.theta, w, iterate.value, iterate.status

    def _forward(self, arrays: Leaves, start: Leaves) -> tuple[Any, tuple[Leaves, Leaves]]:
        found = self._run(arrays, start)
        # `_pull` is a function of the data alone: its derivative counts that theta moves with them
        return found, (arrays, jax.lax.stop_gradient(found[0]))

    def _backward(self, saved: tuple[Leaves, Leaves], bars: tuple[Any, ...]) -> tuple[Leaves, Leaves]:
        arrays, theta = saved
        # a status has no cotangent
        gradients = self._pull(arrays, theta, (*bars[0], *bars[1:3]))
        return _spread(gradients, arrays), tuple(jax.numpy.zeros_like(x) for x in theta)

    def _pulled(self, arrays: Leaves, theta: Leaves, cotangents: Leaves) -> Leaves:
        """Gradients with respect to the arrays of floating-point numbers."""
        by_data, *flags, _ = implicit.pull(self._with(arrays), theta, _bars(cotangents))
        report(*flags)
        return tuple(map(jax.numpy.conj, by_data))

    def _pulled_back(self, saved: tuple[Leaves, Leaves, Leaves], along: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        by_data, change = self._pull_twice(*saved, along)
        return _spread(by_data, saved[0]), tuple(jax.numpy.zeros_like(x) for x in saved[1]), change

    def _pulled_twice(self, arrays: Leaves, theta: Leaves, cotangents: Leaves, along: Leaves) -> tuple[Leaves, Leaves]:
        """Gradients of ``<along, pulled>`` with respect to the floating-point arrays and to the cotangents."""
        # both sides of this product are conjugates of this package's, so `along` is a direction as it is
        way = tuple(map(_strong, along))
        by_data, change, flags = implicit.pull_twice(self._with(arrays), theta, _bars(cotangents), way)
        report(*flags)
        return tuple(map(jax.numpy.conj, by_data)), change


def _bars(cotangents: Leaves) -> implicit.Bars:
    """JAX's complex cotangents are the conjugates of this package's."""
    *theta_bar, w_bar, value_bar = map(_strong, cotangents)
    return tuple(theta_bar), jax.numpy.conj(w_bar), value_bar


def _spread(gradients: Leaves, arrays: Leaves) -> Leaves:
    """Gradients of the floating-point arrays among all, with JAX's zeros for the others."""
    supply = iter(gradients)
    return tuple(next(supply) if trees.is_inexact(x) else np.zeros(x.shape, jax.dtypes.float0) for x in arrays)


def report(*flags: Array) -> None:
    """Warn on the host, once a compiled gradient has been computed."""
    jax.debug.callback(lambda *x: implicit.warn(*map(float, x)), *flags)


def _strong(x: Array) -> Array:
    """Not weakly typed, as arrays made from Python numbers are: those would compile the function again."""
    return jax.numpy.asarray(x, dtype=x.dtype)


def _check(data: Tree, kind: str, own: backends.Backend) -> None:
    for x, name in zip(trees.leaves(data), trees.paths(data, "data"), strict=True):
        if trees.is_array(x) and trees.is_inexact(x):
            found = dtype_name(x)
            if found not in (kind, FLOATS[kind]):
                raise ProblemError(f"data must have theta0's dtype {kind}; got {found} for {name}: cast one of them")
