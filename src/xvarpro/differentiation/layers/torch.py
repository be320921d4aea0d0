"""A solve as a `torch.nn.Module`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

from optree import PyTreeSpec

from xvarpro import backends
from xvarpro.algorithms.choice import FEW
from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import exchange, modules
from xvarpro.batch.lift import lifted
from xvarpro.core import trees
from xvarpro.core.status import Status
from xvarpro.core.struct import Tree
from xvarpro.differentiation import implicit
from xvarpro.differentiation.layers import Solution, no_third_derivative
from xvarpro.errors import needs
from xvarpro.fit.many import solve_many
from xvarpro.fit.solve import solve
from xvarpro.problem.problem import Problem
from xvarpro.sets.each import Each

with needs("xv.layers.torch", "torch"):
    import torch

__all__ = ["Solve"]

Tensors: TypeAlias = tuple[torch.Tensor, ...]


class Solve(torch.nn.Module):
    """The map ``data -> (theta, w, value, status)`` of ``xv.solve``, differentiable by the tensors in `data`.

    Gradients are the implicit ones (`xvarpro.implicit`). They cost a few products with the Hessian of the reduced
    objective and record no iteration. Second derivatives, as with ``create_graph=True``, cost another linear system and
    two gradients; see docs/layers.md for their accuracy. There is no third derivative and no forward mode;
    `torch.func.vmap`, `grad`, `vjp` and `jacrev` may be taken of it. Under `vmap` a batch of problems is solved
    together, by `xv.solve_many` where they have at most 16 parameters each and no algorithm is given.

    Parameters
    ----------
    problem : Problem
        What needs a gradient is a function of `data`: ``y=lambda theta, data: data["y"]``. Its own `data` is replaced.
    theta0 : pytree of tensors, or a module
        Start of every solve, stored as buffers: ``.to(...)`` moves them, and the solve runs on their device.
    over, algorithm, max_iter, backend
        As for `solve`; every set needs a projection or has to be a polytope with faces.
    tol : float
        As for `solve`; an error of the solution becomes one of the gradient.

    Raises
    ------
    ProblemError, ModelError, ExchangeError
        As `solve`, at a call; at a third derivative.

    Warns
    -----
    DifferentiabilityWarning
        In the backward pass: the solution has no derivative, or more than one; see `implicit.Sensitivity`. In that of a
        second derivative also where other constraints become active within the step of its differences.

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

    A batch of signals:

    >>> signals = torch.exp(-torch.tensor([[2.0], [5.0]]) * t)
    >>> torch.func.vmap(lambda y: layer({"t": t, "y": y}).theta)(signals).round(decimals=6)
    tensor([[2.],
            [5.]], dtype=torch.float64)
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
        start, treedef = trees.flatten(self.theta0 if theta0 is None else theta0)
        leaves, structure = trees.flatten(exchange.arrays(data, "data"))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        others = tuple(None if isinstance(x, torch.Tensor) else x for x in leaves)
        call = _Call(self, treedef, structure, others, len(tensors))
        *theta, w, value, code = _Solved.apply(call, *tensors, *start)
        return Solution(trees.unflatten(treedef, theta), w, value, _status(code))


def _status(code: torch.Tensor) -> Any:
    try:
        return Status.of(int(code))
    except RuntimeError:  # under vmap there is one for each problem
        return code


@dataclass(frozen=True)
class _Call:
    """A call of the layer: everything but its tensors, which are those of the data and of the start.

    `along` says which of them have a first axis for the problems of a batch, for `count` problems; none of one problem.
    """

    layer: Solve
    treedef: PyTreeSpec
    structure: PyTreeSpec
    others: tuple[Any, ...]  # leaves of the data, None in the places of tensors
    data: int  # tensors of the data
    along: tuple[bool, ...] = ()
    count: int = 0

    def problem(self, tensors: Sequence[Any]) -> Problem:
        """That of the data."""
        supply = iter(tensors)
        leaves = [next(supply) if x is None else x for x in self.others]
        return replace(self.layer.problem, data=trees.unflatten(self.structure, leaves))

    def one(self, i: int, tensors: Sequence[torch.Tensor]) -> Tensors:
        """The tensors of problem i."""
        return tuple(x[i] if m else x for x, m in zip(tensors, self.along, strict=True))

    @property
    def single(self) -> _Call:
        """The call for one problem of the batch."""
        return replace(self, along=(), count=0)

    def solved(self, tensors: Tensors) -> Tensors:
        """Leaves of theta, w, the value and the code of the status."""
        if self.along:
            return self._many(tensors)
        problem, start = self.problem(tensors[: self.data]), trees.unflatten(self.treedef, tensors[self.data :])
        layer = self.layer
        fit = solve(problem, start, over=layer.over, backend=layer.backend, progress=False, **layer._options)
        return self._outputs(fit.theta, fit.w, fit.value, fit.status.code)

    def _many(self, tensors: Tensors) -> Tensors:
        start = tensors[self.data :]
        begun = [
            x if m else x.expand(self.count, *x.shape) for x, m in zip(start, self.along[self.data :], strict=True)
        ]
        options = self.layer._options
        few = sum(x[0].numel() for x in begun) <= FEW
        levels, level = self.layer.problem.levels, self.layer.problem.lower
        squares = all(level.loss is None for level in levels)
        together = squares and level.solver is None and not callable(level.lam)
        if not (few and options["algorithm"] is None and together):
            entries = [self.single.solved(self.one(i, tensors)) for i in range(self.count)]
            return tuple(map(torch.stack, zip(*entries, strict=True)))
        marked = [Each(x) if m else x for x, m in zip(tensors, self.along[: self.data], strict=False)]
        fit = solve_many(
            lifted(self.problem(marked)),
            trees.unflatten(self.treedef, begun),
            over=self.layer.over,
            backend=self.layer.backend,
            progress=False,
            tol=options["tol"],
            max_iter=options["max_iter"],
        )
        return self._outputs(fit.theta, fit.w, fit.value, fit.status)

    @staticmethod
    def _outputs(theta: Tree, w: Any, value: Any, code: Any) -> Tensors:
        leaves = [x.detach() for x in trees.leaves(theta)]
        place = {"device": leaves[0].device}
        return (*leaves, w, torch.as_tensor(value, dtype=leaves[0].dtype, **place), torch.as_tensor(code, **place))

    def pulled(self, theta: Tensors, tensors: Tensors, bars: Tensors, along: Tensors = ()) -> Tensors:
        """Gradients with respect to the floating-point tensors of the data, of one problem.

        With `along`, cotangents of these gradients: those of ``<along, gradients>``, followed by those by `bars`.
        """
        problem, layer = self.problem(tensors), self.layer
        *theta_bar, w_bar, value_bar = bars
        cotangent = implicit.Cotangent(trees.unflatten(self.treedef, theta_bar), w_bar, value_bar)
        at = trees.unflatten(self.treedef, theta)
        prepared = implicit.ready(problem, at, over=layer.over, backend=layer.backend)
        leaves, places = trees.leaves(problem.data), implicit.differentiable(problem.data)
        # arrays of other frameworks have no gradient here
        mine = [i for i in places if isinstance(leaves[i], torch.Tensor)]
        change: tuple[Any, ...] = ()
        with prepared.backend.scope(prepared.dtype):
            moved = implicit.move(prepared, cotangent)
            if along:
                here, given = trees.leaves(prepared.problem.data), dict(zip(mine, along, strict=True))
                way = tuple(prepared.to_backend(given[i]) if i in given else 0 * here[i] for i in places)
                by_data, change, flags = implicit.pull_twice(prepared, prepared.theta, moved, way)
            else:
                by_data, degenerate, singular, residual, _ = implicit.pull(prepared, prepared.theta, moved)
                flags = degenerate, singular, residual
            implicit.warn(*implicit.numbers(prepared, flags))
            by_leaf = dict(zip(places, by_data, strict=True))
            found = [prepared.layout.array(x, prepared.backend) for x in (*(by_leaf[i] for i in mine), *change)]
        like = [leaves[i] for i in mine] + list(bars)
        return tuple(torch.reshape(x, y.shape).to(y) for x, y in zip(found, like, strict=False))


class _Solved(torch.autograd.Function):
    """The solution, as a function of the tensors of the data and the start."""

    @staticmethod
    def forward(call: _Call, *tensors: torch.Tensor) -> Tensors:
        return call.solved(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors[: ctx.call.data], *output[:-3])
        ctx.mark_non_differentiable(output[-1])

    @staticmethod
    def backward(ctx: Any, *bars: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call, saved = ctx.call, ctx.saved_tensors
        tensors, theta = saved[: call.data], saved[call.data :]
        inexact = [trees.is_inexact(x) for x in tensors]
        if not any(inexact):
            return None, *[None] * (call.data + len(theta))
        if not call.along:
            found = iter(_Pulled.apply(call, *theta, *tensors, *bars[:-1]))
        else:
            parts = [
                _Pulled.apply(
                    call.single,
                    *(x[i] for x in theta),
                    *(x[i] if m else x for x, m in zip(tensors, call.along, strict=False)),
                    *(x[i] for x in bars[:-1]),
                )
                for i in range(call.count)
            ]
            along = [m for m, floats in zip(call.along, inexact, strict=False) if floats]
            whole = (torch.stack(x) for x in zip(*parts, strict=True))
            found = iter(x if m else x.sum(0) for x, m in zip(whole, along, strict=True))
        return None, *(next(found) if floats else None for floats in inexact), *[None] * len(theta)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], call: _Call, *tensors: torch.Tensor
    ) -> tuple[Tensors, tuple[int, ...]]:
        if call.along:  # a batch of batches
            return _one_by_one(_Solved.apply, info, in_dims, call, *tensors)
        along = tuple(at is not None for at in in_dims[1:])
        moved = [x.movedim(at, 0) if at is not None else x for x, at in zip(tensors, in_dims[1:], strict=True)]
        found = _Solved.apply(replace(call, along=along, count=info.batch_size), *moved)
        return found, (0,) * len(found)


class _Pulled(torch.autograd.Function):
    """The gradient of a loss with respect to the data, as a function of the solution, the data and the cotangents.

    With cotangents of that gradient as well, its own derivative.
    """

    @staticmethod
    def forward(call: _Call, *tensors: torch.Tensor) -> Tensors:
        supply, n = iter(tensors), call.treedef.num_leaves
        theta, data, bars = (tuple(islice(supply, count)) for count in (n, call.data, n + 2))
        return call.pulled(theta, data, bars, tuple(supply))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *along: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call, tensors = ctx.call, ctx.saved_tensors
        n = call.treedef.num_leaves
        if len(tensors) > 2 * n + call.data + 2:
            no_third_derivative()
        found = iter(_Pulled.apply(call, *tensors, *along))
        data = [next(found) if trees.is_inexact(x) else None for x in tensors[n : n + call.data]]
        return None, *[None] * n, *data, *found  # theta moves with the data, which counts it

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], call: _Call, *tensors: torch.Tensor
    ) -> tuple[Tensors, tuple[int, ...]]:
        return _one_by_one(_Pulled.apply, info, in_dims, call, *tensors)


def _one_by_one(
    fun: Callable[..., Tensors], info: Any, in_dims: tuple[Any, ...], call: _Call, *tensors: torch.Tensor
) -> tuple[Tensors, tuple[int, ...]]:
    """A function of tensors for one entry of a batch after the other."""
    entries = [
        fun(call, *(x if at is None else x.select(at, i) for x, at in zip(tensors, in_dims[1:], strict=True)))
        for i in range(info.batch_size)
    ]
    found = tuple(map(torch.stack, zip(*entries, strict=True)))
    return found, (0,) * len(found)
