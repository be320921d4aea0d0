"""A solve as a `torch.nn.Module`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from optree import PyTreeSpec

from xvarpro import backends
from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import exchange, modules
from xvarpro.core import trees
from xvarpro.core.struct import Leaves, Tree
from xvarpro.differentiation import implicit
from xvarpro.differentiation.layers import Solution
from xvarpro.driver.solve import solve
from xvarpro.problem.problem import Problem


class Solve(torch.nn.Module):
    """The map ``data -> (theta, w, value, status)`` of ``xv.solve``, differentiable by the tensors in `data`.

    Gradients are the implicit ones (`xvarpro.implicit`). They cost a few products with the Hessian of the reduced
    objective and record no iteration. There is no second derivative.

    Parameters
    ----------
    problem : Problem
        What needs a gradient is a function of `data`: ``y=lambda theta, data: data["y"]``. Its own `data` is replaced.
    theta0 : pytree of tensors
        Start of every solve, stored as buffers: ``.to(...)`` moves them, and the solve runs on their device.
    over, algorithm, max_iter, backend
        As for `solve`; every set needs a projection or has to be a polytope with faces.
    tol : float
        As for `solve`; an error of the solution becomes one of the gradient.

    Raises
    ------
    ProblemError, ModelError, ExchangeError
        As `solve`, at a call.

    Warns
    -----
    DifferentiabilityWarning
        In the backward pass: the solution has no derivative, or more than one; see `implicit.Sensitivity`.

    Examples
    --------
    >>> import torch, xvarpro as xv
    >>> def M(theta, data):
    ...     return torch.exp(-data["t"][:, None] * theta)
    >>> problem = xv.separable(M, lambda theta, data: data["y"])
    >>> layer = xv.layers.torch.Solve(problem, torch.tensor([2.0], dtype=torch.float64))
    >>> t = torch.linspace(0.0, 1.0, 20, dtype=torch.float64)
    >>> y = torch.exp(-3.0 * t).requires_grad_()
    >>> found = layer({"t": t, "y": y})
    >>> found.w.sum().backward()
    >>> round(found.theta.item(), 6), round((y.grad @ torch.exp(-3.0 * t)).item(), 6)
    (3.0, 1.0)
    """

    def __init__(
        self,
        problem: Problem,
        theta0: Tree,
        *,
        over: Tree = None,
        algorithm: Algorithm | None = None,
        tol: float = 1e-9,
        max_iter: int = 1000,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        own = backends.get("torch")
        leaves, self._treedef = trees.flatten(modules.taken(theta0))
        self._names = [f"theta0_{i}" for i in range(len(leaves))]
        for name, x in zip(self._names, leaves, strict=True):
            self.register_buffer(name, torch.clone(exchange.move(x, own)), persistent=False)
        self.problem, self.over, self.backend = problem, over, backend
        self._options: dict[str, Any] = {"algorithm": algorithm, "tol": tol, "max_iter": max_iter}

    @property
    def theta0(self) -> Tree:
        """The start."""
        return trees.unflatten(self._treedef, [getattr(self, name) for name in self._names])

    def forward(self, data: Tree, theta0: Tree = None) -> Solution:
        """Solve for `data`.

        Parameters
        ----------
        data : pytree
            As the problem's; its floating-point tensors have gradients.
        theta0 : pytree of tensors, optional
            Another feasible start, without a gradient.
        """
        problem = replace(self.problem, data=data)
        start = self.theta0 if theta0 is None else theta0
        fit = solve(problem, start, over=self.over, backend=self.backend, progress=False, **self._options)
        leaves, treedef = trees.flatten(fit.theta)
        value = torch.as_tensor(fit.value, dtype=leaves[0].dtype, device=leaves[0].device)
        tensors = [x for x in trees.leaves(data) if isinstance(x, torch.Tensor)]
        *theta, w, value = _Solved.apply(self, problem, treedef, (*leaves, fit.w, value), *tensors)
        return Solution(trees.unflatten(treedef, theta), w, value, fit.status)


class _Solved(torch.autograd.Function):
    """The solution, as a function of the tensors of the data."""

    @staticmethod
    def forward(
        ctx: Any, layer: Solve, problem: Problem, treedef: PyTreeSpec, found: Leaves, *tensors: torch.Tensor
    ) -> Leaves:
        ctx.layer, ctx.treedef, ctx.problem = layer, treedef, replace(problem, data=None)
        leaves, ctx.structure = trees.flatten(problem.data)
        ctx.others = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        ctx.save_for_backward(*tensors, *found[: treedef.num_leaves])
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *bars: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        count = len(saved) - ctx.treedef.num_leaves
        supply = iter(saved[:count])
        leaves = [next(supply) if x is None else x for x in ctx.others]
        data = trees.unflatten(ctx.structure, leaves)
        *theta_bar, w_bar, value_bar = bars
        found = implicit.gradient(
            replace(ctx.problem, data=data),
            trees.unflatten(ctx.treedef, saved[count:]),
            implicit.Cotangent(trees.unflatten(ctx.treedef, theta_bar), w_bar, value_bar),
            over=ctx.layer.over,
            backend=ctx.layer.backend,
        )
        implicit.warn(found.degenerate, found.singular, found.residual)
        by_leaf = dict(zip(implicit.differentiable(data), trees.leaves(found.data), strict=True))
        gradients = [
            by_leaf[i].to(x) if i in by_leaf else None for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)
        ]
        return None, None, None, None, *gradients
