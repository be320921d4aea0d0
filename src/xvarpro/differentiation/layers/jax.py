"""A solve as a function of JAX: under `jax.jit`, `jax.grad`, `jax.vmap`, in a module of Equinox or Flax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from xvarpro import backends
from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import exchange
from xvarpro.core import trees
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.differentiation import implicit
from xvarpro.differentiation.layers import Solution
from xvarpro.driver.iteration import Program
from xvarpro.driver.prepare import Prepared
from xvarpro.driver.solve import chosen
from xvarpro.errors import ProblemError
from xvarpro.problem.problem import Problem


def solve(
    problem: Problem,
    theta0: Tree,
    *,
    over: Tree = None,
    algorithm: Algorithm | None = None,
    tol: float = 1e-9,
    max_iter: int = 1000,
) -> Callable[..., Solution]:
    """``data -> (theta, w, value, status)`` of ``xv.solve``, as a function that JAX compiles, maps and differentiates.

    The whole solve is one loop of XLA. Its reverse-mode derivative is the implicit one (`xvarpro.implicit`): exact at
    the solution, however it was found; no iteration is recorded. There is no forward mode and no second derivative.

    Parameters
    ----------
    problem : Problem
        What is to have a gradient comes from `data`: ``y=lambda theta, data: data["y"]``. Its own `data` is replaced.
    theta0 : pytree of arrays
        Where every solve starts, feasible; its dtype is that of the solve and of the data.
    over, algorithm, max_iter
        As for `solve`; every set needs a projection or the faces of a polytope.
    tol : float
        As for `solve`; an error of the solution is one of the gradient.

    Returns
    -------
    callable
        ``layer(data, theta0=None)``; another start has to be feasible, which is not looked at, and gets no gradient.
        The values of `data` are not looked at either: NaN shows in the status.

    Raises
    ------
    ProblemError, ModelError, ExchangeError
        As `xvarpro.solve`, of what shapes and dtypes show; when the layer is called first with data of some shapes.

    Warns
    -----
    DifferentiabilityWarning
        When a gradient has been computed: the solution has no derivative, or more than one.

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
    own = backends.get("jax")
    initial = trees.map_arrays(lambda x: exchange.move(x, own), theta0)
    kind = own.dtype_name(trees.leaves(initial)[0])
    built: dict[Any, _Layer] = {}

    def layer(data: Tree, theta0: Tree = None) -> Solution:
        arrays, held = trees.partition(data)
        arrays = tuple(_strong(exchange.move(x, own)) for x in arrays)
        _check(held.fill(arrays), kind, own)
        key = held, tuple((x.shape, x.dtype) for x in arrays)
        if key not in built:
            with jax.ensure_compile_time_eval():
                # stands for data whose values are not known yet; a solve begins with checks of values
                blank = held.fill(np.zeros(x.shape, x.dtype) for x in arrays)
                prepared = implicit.ready(replace(problem, data=blank), initial, over=over)
            inner = prepared.backend.embedded()
            method = chosen(prepared, algorithm)
            built[key] = _Layer(replace(prepared, backend=inner, compiler=inner), held, method, tol, max_iter)
        return built[key](arrays, theta0)

    return layer


class _Layer:
    """The layer for data of one structure: `jax.custom_vjp` around the whole solve and around its implicit gradient."""

    def __init__(
        self, prepared: Prepared, held: trees.Skeleton, algorithm: Algorithm, tol: float, max_iter: int
    ) -> None:
        self.prepared, self.held, self.algorithm, self.max_iter = prepared, held, algorithm, max_iter
        self.tol = np.asarray(tol, prepared.dtype)
        run: Any = jax.custom_vjp(self._solved)
        run.defvjp(self._forward, self._backward)
        self._run = run

    def __call__(self, arrays: Leaves, theta0: Tree) -> Solution:
        prepared = self.prepared
        start = prepared.theta if theta0 is None else tuple(trees.flatten(theta0)[0])
        if [(x.shape, x.dtype) for x in start] != [(x.shape, x.dtype) for x in prepared.theta]:
            raise ProblemError("theta0 must have the structure, shapes and dtype of the layer's theta0")
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
            run = backend.call(make, ("whole", program.skeleton, treedef, self.max_iter))
            iterate, w = run((self.tol, *rest), start)
        return iterate.theta, w, iterate.value, iterate.status

    def _forward(self, arrays: Leaves, start: Leaves) -> Any:
        found = self._solved(arrays, start)
        return found, (arrays, found[0])

    def _backward(self, saved: Any, bars: Any) -> Any:
        arrays, theta = saved
        *theta_bar, w_bar, value_bar = map(_strong, (*bars[0], *bars[1:3]))
        # JAX conjugates complex gradients; this package does not
        bars = (tuple(theta_bar), jax.numpy.conj(w_bar), value_bar)
        found = implicit.pull(self._with(arrays), theta, bars, None)
        self.prepared.backend.report(implicit.warn, found.degenerate, found.singular, found.residual)
        supply = iter(found.data)
        gradients = tuple(
            jax.numpy.conj(next(supply)) if trees.is_inexact(x) else np.zeros(x.shape, jax.dtypes.float0)
            for x in arrays
        )
        return gradients, tuple(jax.numpy.zeros_like(x) for x in theta)


def _strong(x: Array) -> Array:
    """Not weakly typed, as what came of a Python number is: a compiled function would be compiled anew for that."""
    return jax.numpy.asarray(x, dtype=x.dtype)


def _check(data: Tree, kind: str, own: Any) -> None:
    for x, name in zip(trees.leaves(data), trees.paths(data, "data"), strict=True):
        if trees.is_array(x) and trees.is_inexact(x):
            found = own.dtype_name(x)
            if found not in (kind, {"float32": "complex64", "float64": "complex128"}[kind]):
                raise ProblemError(
                    f"{name} is {found} and theta0 is {kind}: the layer casts nothing, bring both to one"
                )
