"""The batch form of a problem that is stated for one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

from xvarpro.backends import registry
from xvarpro.batch.prepare import by_problem, ridges
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import REQUIRED, Array, Leaves, Struct, Tree
from xvarpro.errors import ModelError, ProblemError
from xvarpro.operators.interface import Operator
from xvarpro.problem.problem import Level, Problem, by_level
from xvarpro.problem.stored import part
from xvarpro.sets import Box, each
from xvarpro.sets.each import Each


def lifted(problem: Problem) -> Problem:
    """The batch form of a problem that is stated for one: what `solve_many` takes.

    Functions are those of a single problem, ``M(theta, data)`` -> (m, n). They are mapped over the batch, on JAX and
    PyTorch by the framework's own `vmap`, elsewhere by arrays that hide the axis of the batch: a function that does
    what there is no rule for is called for one problem after the other, and `fit.method` says so. What is marked by
    `Each`, in `data` or as `y`, `lam` or `weights`, has one entry per problem; all else is shared, and held once.
    Structured designs become dense ones.

    Parameters
    ----------
    problem : Problem
        From `separable` or `bilevel`, in the form that `solve` takes but for what is marked.

    Returns
    -------
    Problem
        In batch form: targets are (b, m) or (b, m, k), with b = 1 for a shared one.

    Raises
    ------
    ProblemError
        `problem` is none.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, data):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)
    >>> t, rates = np.linspace(0.0, 2.0, 64), np.array([[1.0, 5.0], [0.5, 3.0], [2.0, 9.0]])
    >>> y = np.exp(-rates[:, None, :] * t[:, None]) @ np.array([2.0, 1.0])
    >>> problem = xv.many.lifted(xv.separable(M, xv.Each(y), data={"t": t}))
    >>> fit = xv.solve_many(problem, np.tile([0.7, 4.0], (3, 1)), over=xv.sets.Box(0.0, 20.0))
    >>> np.round(fit.theta, 3)
    array([[1. , 5. ],
           [0.5, 3. ],
           [2. , 9. ]])
    """
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must come from xv.separable or xv.bilevel; got {type(problem).__name__}")
    marked = tuple(map(each.is_each, each.leaves(problem.data)))

    def level(level: Level) -> Level:
        y: Any = level.y
        if trees.is_array(y) and y.ndim > 2:
            raise ProblemError(
                f"y of all problems must have shape (m,) or (m, k); got {tuple(y.shape)}. Mark one per "
                "problem, xv.Each(y)"
            )
        weights: Any = level.weights
        if trees.is_array(weights) and weights.ndim == 2:
            weights = weights[None, ...]
        y = y[None, ...] if trees.is_array(y) else Lifted(y, marked) if callable(y) else y
        return replace(level, M=Lifted(level.M, marked), y=y, weights=weights)

    R = None if problem.R is None else Lifted(problem.R)
    return by_level(problem, level, R=R)


@final
@dataclass(frozen=True)
class Lifted(Struct):
    """A function of theta, and data, of one problem, mapped over a batch."""

    fun: Callable[..., Any] = REQUIRED
    marked: tuple[bool, ...] = ()  # which leaves of data have an entry per problem; those of theta have

    def __call__(self, theta: Tree, *data: Tree) -> Array:
        found, treedef = trees.flatten((theta, *data))
        if not found[0].shape[0]:
            raise ProblemError("theta0 of a lifted problem must have entries for one problem or more; got none")
        along = [True] * (len(found) - len(self.marked)) + list(self.marked)
        mapped, shared = (tuple(x for x, m in zip(found, along, strict=True) if m is own) for own in (True, False))

        def one(*arrays: Any) -> Leaves:
            own, others = iter(arrays[: len(mapped)]), iter(arrays[len(mapped) :])
            out = self.fun(*trees.unflatten(treedef, [next(own if m else others) for m in along]))
            if out is None:
                raise ModelError("the model function must return an array or an operator; got NoneType")
            return (out.dense() if isinstance(out, Operator) else out,)

        return registry.vmap(one, mapped, shared)[0]


def members(problem: Any, picked: slice) -> Any:
    """The problem of some members of a batch, as it is stated, in memory, or their sets."""

    def own(x: Any) -> Any:
        return Each(part(x.array, picked if x.array.shape[0] > 1 else slice(1))) if each.is_each(x) else x

    if not isinstance(problem, Problem):
        return each.mapped(own, problem)

    def level(level: Level) -> Level:
        marked = {name: own(getattr(level, name)) for name in ("y", "lam", "weights")}
        level = replace(level, **marked)  # what is marked is cut before it is shaped: it may not be in memory
        weights = None if level.weights is None else by_problem(level, each.unmarked(level.weights))
        given = {"y": each.unmarked(level.y), "lam": ridges(level), "weights": weights}
        rest = [name for name, x in given.items() if trees.is_array(x) and not each.is_each(marked[name])]
        return replace(level, **given | {name: part(given[name], picked) for name in rest if given[name].shape[0] > 1})

    return by_level(problem, level, data=each.mapped(own, problem.data))


def single(problem: Any, i: int) -> Any:
    """The problem of one member of a batch, as `xvarpro.solve` takes it: for profiles, bootstraps, another method.

    Parameters
    ----------
    problem : Problem, or sets
        As for `solve_many`: the problem, or its `over`, of which a `Box` may have bounds of each problem.
    i : int
        Which member, from 0.

    Returns
    -------
    Problem, or sets

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(theta, axis=1) * t[None, :, None])
    >>> t, rates = np.linspace(0.0, 2.0, 64), np.array([[1.0], [3.0]])
    >>> problem = xv.separable(M, np.exp(-rates * t), data=t)
    >>> np.round(xv.solve(xv.many.single(problem, 1), np.array([2.0])).theta, 6)
    array([3.])
    """
    if not isinstance(problem, Problem):
        return each.mapped(lambda x: _entry(x, i), problem, Box)
    one = members(problem, slice(i, i + 1))

    def level(level: Level) -> Level:
        y: Any = level.y
        lam, weights = level.lam, level.weights
        own: dict[str, Any] = {"M": Unlifted(level.M), "y": Unlifted(y) if callable(y) else y[0, ...]}
        if trees.is_array(lam):
            own["lam"] = lam[0, ...] if math.prod(lam.shape) > 1 else float(lam[0, 0, 0])
        if trees.is_array(weights):
            own["weights"] = weights[0, ...] if weights.shape[2] > 1 else weights[0, :, 0]
        return replace(level, **own)

    R = None if one.R is None else Unlifted(one.R)
    return by_level(one, level, data=each.plain(one.data), R=R)


def _entry(x: Any, i: int) -> Any:
    """Of what is marked, and of a box with such bounds, that of one problem."""
    if isinstance(x, Box):
        return Box(_entry(x.lower, i), _entry(x.upper, i))
    return x.array[i, ...] if each.is_each(x) else x


@final
@dataclass(frozen=True)
class Unlifted(Struct):
    """A function of a batch, for one problem: theta gets the axis of the batch, and the result loses it."""

    fun: Callable[..., Any] = REQUIRED

    def __call__(self, theta: Tree, *data: Tree) -> Array:
        one = trees.map_leaves(lambda x: namespace_of(x).expand_dims(x, axis=0), theta)
        return self.fun(one, *data)[0, ...]
