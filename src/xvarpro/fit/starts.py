"""Where a multi-start begins: points of a scrambled Sobol sequence, laid into the sets of theta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import optree

from xvarpro import backends
from xvarpro.core import trees
from xvarpro.core.checks import shown
from xvarpro.core.struct import NAMESPACE, Tree
from xvarpro.errors import ProblemError, needs
from xvarpro.sets import Box
from xvarpro.sets.interface import Set
from xvarpro.sets.region import event, resolve


def draw(theta0: Tree, names: list[str], over: Tree, n: int, *, log: Tree, scale: Tree, seed: int) -> list[np.ndarray]:
    """Leaves (n, ...) of starts, of which theta0 is the first; see `multistart`. `theta0` is a tree of NumPy arrays."""
    leaves, _ = trees.flatten(theta0)
    region = trees.map_arrays(backends.to_numpy, resolve(over, theta0))
    sets = dict(region.constrained)
    logs, scales = per_leaf(log, theta0, "log", False), per_leaf(scale, theta0, "scale", None)
    cube, at, out = _sobol(n - 1, sum(x.size for x in leaves), seed), 0, []
    for i, (x, name) in enumerate(zip(leaves, names, strict=True)):
        u = cube[:, at : at + x.size].reshape(n - 1, *x.shape)
        at += x.size
        out.append(np.concatenate([x[None, ...], _laid(u, x, sets.get(i), logs[i], scales[i], name, seed)]))
    return out


def per_leaf(given: Tree, theta: Tree, name: str, default: Any) -> list[Any]:
    """What is said of each leaf of theta: one value for all, or a tree of values, in which keys may be left out."""
    if isinstance(given, Mapping) and isinstance(theta, Mapping):
        if unknown := [key for key in given if key not in theta]:
            raise ProblemError(f"{name} must have keys of theta, {sorted(map(str, theta))}; got {unknown[0]!r}")
        given = {key: given.get(key, default) for key in theta}
    one = True if default is False else 1.0
    wrong = ProblemError(
        f"{name} must be one value for all leaves of theta, or a tree like it, such as {name}={{'rates': {one}}}; got "
        f"{shown(given)}"
    )
    if isinstance(given, str):
        raise wrong
    try:
        return optree.broadcast_prefix(given, theta, none_is_leaf=True, namespace=NAMESPACE)
    except ValueError as error:
        raise wrong from error


def _sobol(n: int, d: int, seed: int) -> np.ndarray:
    """The first `n` points of a scrambled Sobol sequence in [0, 1)^d."""
    with needs("a draw of starts, as of xv.multistart and xv.certify,", "scipy"):
        from scipy.stats import qmc
    # whole powers of two have the balance that the sequence is for; a part of one comes without a warning
    return qmc.Sobol(d, scramble=True, seed=seed).random_base2(max(n - 1, 0).bit_length())[:n]


def _laid(u: np.ndarray, x: np.ndarray, C: Set | None, log: Any, scale: Any, name: str, seed: int) -> np.ndarray:
    """Points u in [0, 1)^d as points of a leaf, whose start is x."""
    if isinstance(C, Box):
        return _between(u, x, C, log, scale, name)
    if log:
        raise ProblemError(f"log needs a Box with bounds > 0 for {name}; got {C!r}. Let theta be the logarithm")
    if C is None:
        return _around(u, x, scale, name)
    if not C.bounded:
        return np.asarray(C.project(_around(u, x, scale, name)))
    one: Any = event(C, x)
    if C.has_projection:
        cube = np.reshape(u - 0.5, (len(u), *one.shape))
        points: Any = C.project(C.center(one) + C.diameter(one) * cube)
    else:
        points = np.asarray([C.random_point(one, seed=seed + i) for i in range(len(u))])
    return np.reshape(points, u.shape)


def _between(u: np.ndarray, x: np.ndarray, C: Box, log: Any, scale: Any, name: str) -> np.ndarray:
    """Between the bounds of every entry that has two, else around x on the side of the bound that it has."""
    lower, upper = (np.broadcast_to(backends.to_numpy(b).astype(np.float64), x.shape) for b in (C.lower, C.upper))
    both = np.isfinite(lower) & np.isfinite(upper)
    if log and not (both & (lower > 0)).all():
        raise ProblemError(f"log needs bounds 0 < lower <= upper < inf for {name}; got {C!r}")
    low, high = np.log((lower, upper)) if log else (np.where(both, lower, 0.0), np.where(both, upper, 0.0))
    points = low + u * (high - low)
    points = np.exp(points) if log else np.where(both, points, points if both.all() else _around(u, x, scale, name))
    return np.clip(points, lower, upper)


def _around(u: np.ndarray, x: np.ndarray, scale: Any, name: str) -> np.ndarray:
    size = np.asarray(scale if scale is None else backends.to_numpy(scale))
    fits = size.dtype.kind in "iuf" and (size.ndim == 0 or size.shape == x.shape)
    if not (fits and (np.isfinite(size) & (size >= 0)).all()):
        raise ProblemError(
            f"scale must say how far from theta0 to draw {name}, which has no bounds: numbers >= 0, one or an array of "
            f"shape {x.shape}; got {shown(scale)}"
        )
    return x + size * (2 * u - 1)
