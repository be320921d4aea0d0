"""One problem from many starts, all together: the best fit and the minima that there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from xvarpro import backends
from xvarpro.algorithms.levenberg_marquardt import LevenbergMarquardt
from xvarpro.backends import Backend
from xvarpro.batch.driver import solve_many
from xvarpro.batch.lift import lifted
from xvarpro.batch.result import ManyResult
from xvarpro.core import trees
from xvarpro.core.checks import number
from xvarpro.core.struct import Tree
from xvarpro.driver.destination import destination
from xvarpro.errors import ProblemError
from xvarpro.fit.minima import Minimum, Multistart, counted, labelled
from xvarpro.fit.solve import solve
from xvarpro.fit.starts import draw, per_leaf
from xvarpro.problem import each
from xvarpro.problem.problem import Problem


def multistart(
    problem: Problem,
    theta0: Tree,
    over: Tree = None,
    *,
    starts: int = 64,
    log: Tree = False,
    scale: Tree = None,
    seed: int = 0,
    canonical: Callable[[Tree], Tree] | None = None,
    same: float = 1e-3,
    method: LevenbergMarquardt | None = None,
    tol: float = 1e-6,
    max_iter: int = 200,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
    progress: bool | None = None,
) -> Multistart:
    """Solve one problem from many starts, in one batch, and list the minima that they lead to.

    Starts are theta0 and the points of a scrambled Sobol sequence (Owen 1998), which cover sets more evenly than random
    ones: between the bounds of a `Box`, around theta0 where there are none, and of any other bounded set projections of
    a cube around its centre, or random mixtures of its vertices where it has no projection. The same seed gives the
    same starts on every backend.

    Parameters
    ----------
    problem : Problem
        From `separable` or `bilevel`, as `solve` takes it, of the kinds that `solve_many` takes.
    theta0 : array or pytree of arrays
        A feasible start, float32 or float64: the first of all.
    over : Set, Free or a tree of them, optional
        Sets for the leaves of theta; leaves without one are free.
    starts : int
        How many there are, >= 1; powers of two cover best.
    log : bool or tree of bool
        Leaves that are drawn uniformly in their logarithm, between bounds > 0; in a dict, keys may be left out.
    scale : number, array or tree of them, optional
        How far from theta0, on either side, to draw entries without two bounds, in their own units; needed for these.
    seed : int
        Of the starts, >= 0.
    canonical : callable, optional
        Maps theta, as NumPy's arrays, to the same for all theta that count as one: ``np.sort`` where entries may change
        places. Without it ends that differ by a permutation are two minima.
    same : float
        Two ends are one minimum if no entry differs by more than this share of its size, or of the range of the starts
        where that is smaller. Entries near 0, of leaves that are not drawn by their logarithm, count as of `same` times
        that range in size.
    method, tol, max_iter, backend, device, dtype, progress : optional
        As in `solve_many`.

    Returns
    -------
    Multistart
        The best fit as a result of `solve`, which starts from the lowest end; the minima with how often each was
        reached; starts and ends.

    Raises
    ------
    ProblemError
        As from `solve_many` and `solve`; no scale for entries without bounds; no positive bounds for `log`.
    BackendNotInstalledError
        SciPy is not installed: ``pip install 'xvarpro[scipy]'``.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def M(theta, t):
    ...     xp = xv.array_namespace(theta)
    ...     return xp.exp(-xp.expand_dims(t, axis=1) * theta)
    >>> t = np.linspace(0.0, 4.0, 60)
    >>> problem = xv.separable(M, 2 * np.exp(-t) + np.exp(-4.0 * t), data=t)
    >>> found = xv.multistart(
    ...     problem, np.array([1.0, 2.0]), xv.sets.Box(0.1, 20.0), starts=16, log=True, canonical=np.sort
    ... )
    >>> len(found.minima), found.minima[0].count
    (1, 16)
    >>> np.round(np.sort(found.best.theta), 4)
    array([1., 4.])
    """
    _check(problem, starts, seed, same, canonical)
    to = destination(theta0, backend, device, dtype)
    treedef = to.layout.treedef
    one = trees.unflatten(treedef, [np.asarray(backends.to_numpy(x), dtype=np.float64) for x in to.leaves])
    drawn = draw(one, to.names, over, int(starts), log=log, scale=scale, seed=int(seed))
    home = to.layout.backend
    with home.scope(to.dtype):
        places = zip(drawn, to.layout.devices, strict=True)
        first = trees.unflatten(treedef, [home.asarray(x.astype(to.dtype), device=place) for x, place in places])
    options: dict[str, Any] = {"tol": tol, "backend": backend, "device": device, "dtype": dtype, "progress": progress}
    ends = solve_many(lifted(problem), first, over, method=method, max_iter=max_iter, **options)
    values = backends.to_numpy(ends.value)
    lowest = int(np.argmin(np.where(np.isfinite(values), values, np.inf)))
    best = solve(problem, _entry(ends.theta, lowest), over, **options)
    minima, lost = _minima(ends, first, per_leaf(log, one, "log", False), canonical, same)
    return Multistart(best, minima, lost, first, ends)


def _minima(
    ends: ManyResult, starts: Tree, logs: list[Any], canonical: Callable[[Tree], Tree] | None, same: float
) -> tuple[tuple[Minimum, ...], dict[Any, int]]:
    values, success = backends.to_numpy(ends.value), ends.success
    order = np.lexsort((values, ~success))
    theta, begun = (_vectors(tree, canonical) for tree in (ends.theta, starts))
    spread = np.ptp(begun, axis=0)
    sizes = [math.prod(x.shape[1:]) for x in trees.leaves(starts)]
    by_log = np.repeat([bool(y) for y in logs], sizes)
    labels = labelled(theta, order, success, spread, np.where(by_log, 0.0, same * spread), same)
    minima = []
    for label in range(labels.max(initial=-1) + 1):
        reached = np.flatnonzero(labels == label)
        at = next(int(i) for i in order if labels[i] == label)
        where = _entry(ends.theta, at), ends.w[at, ...], float(values[at])
        minima.append(Minimum(*where, reached, counted(ends.status[reached])))
    return tuple(minima), counted(ends.status[labels < 0])


def _entry(tree: Tree, i: int) -> Tree:
    return trees.map_leaves(lambda x: x[i, ...], tree)


def _vectors(tree: Tree, canonical: Callable[[Tree], Tree] | None) -> np.ndarray:
    """Every theta of a batch as a vector, (b, p), in its canonical form."""
    host = trees.map_leaves(lambda x: np.asarray(backends.to_numpy(x), dtype=np.float64), tree)
    plain: Any = trees.raveled(tuple(trees.leaves(host)), rows=1)
    if canonical is None:
        return plain
    rows = []
    for i, before in enumerate(plain):
        found = [np.ravel(x) for x in trees.leaves(canonical(_entry(host, i)))]
        row = np.concatenate(found or [np.zeros(0)])
        if row.shape != before.shape:
            raise ProblemError(
                f"canonical must return theta with as many entries as it is given, {before.size}; got {row.size}"
            )
        rows.append(row)
    return np.stack(rows)


def _check(problem: Any, starts: Any, seed: Any, same: Any, canonical: Any) -> None:
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must come from xv.separable or xv.bilevel; got {type(problem).__name__}")
    if any(map(each.is_each, each.leaves(problem))):
        raise ProblemError(
            "a multi-start is of a single problem, without xv.Each; got a mark. Use xv.solve_many for a batch"
        )
    for name, value, least in (("starts", starts, 1), ("seed", seed, 0)):
        if not (isinstance(value, int | np.integer) and number(value) >= least):
            raise ProblemError(f"{name} must be a whole number >= {least}; got {value!r}")
    if not 0 < number(same) < 1:
        raise ProblemError(f"same must be a number in (0, 1); got {same!r}")
    if not (canonical is None or callable(canonical)):
        raise ProblemError(f"canonical must be a function of theta, such as np.sort, or None; got {canonical!r}")
