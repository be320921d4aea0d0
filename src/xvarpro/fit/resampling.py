"""Many fits like one: starts repeated, the problem as a batch takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from xvarpro.backends import registry
from xvarpro.core import trees
from xvarpro.core.namespace import device
from xvarpro.core.struct import REQUIRED, Struct, Tree
from xvarpro.errors import ProblemError
from xvarpro.operators.interface import Operator
from xvarpro.problem.problem import Level, Problem
from xvarpro.results.outcome import Outcome
from xvarpro.statistics.frames import on_host, vector
from xvarpro.statistics.intervals import complex_w
from xvarpro.statistics.prediction import fitted


def to_solve_again(fit: Outcome) -> Problem:
    """The problem of a fit, with the solver that a batch has for all levels."""
    if fit.loss is not None:
        raise ProblemError(
            "bootstraps must be of least squares, and profiles of least squares or of a log likelihood; got a fit by "
            f"{fit.loss!r}. Use the method 'linear', or 'profile' of a likelihood"
        )
    if fit.stated.in_rows or fit.in_columns:
        which = "rows" if fit.stated.in_rows else "right-hand sides"
        raise ProblemError(
            f"profiles and bootstraps solve in batches, with all {which} of the target in memory; got them in chunks. "
            "Use the method 'linear', or pass y as one array"
        )
    if complex_w(fit):
        raise ProblemError(
            "profiles and bootstraps solve for a real w; got a complex one. fit.statistics() has errors of both of "
            "its parts"
        )
    level, model = replace(fit.stated.lower, solver=None), fitted(fit.stated, fit.theta, fit.w)
    return replace(
        fit.stated,
        lower=_in_real_numbers(level) if np.iscomplexobj(on_host(model)) else level,
    )


def in_real_numbers(x: Any) -> Any:
    """Real parts of the rows of an array above imaginary ones."""
    xp = trees.array_namespace(x)
    return xp.concat([xp.real(x), xp.imag(x)] if trees.is_complex(x) else [x, xp.zeros_like(x)])


def _in_real_numbers(level: Level) -> Level:
    """A level with a real w: its residuals are as long."""
    weights: Any = level.weights
    C: Any = level.covariance
    return replace(
        level,
        M=InRealNumbers(level.M),
        y=InRealNumbers(level.y) if callable(level.y) else in_real_numbers(level.y),
        weights=weights if weights is None else trees.array_namespace(weights).concat([weights, weights]),
        covariance=C if C is None else np.kron(np.eye(2), registry.to_numpy(C)),
    )


@final
@dataclass(frozen=True)
class InRealNumbers(Struct):
    """A complex design, or target, as `in_real_numbers` has it."""

    of: Callable[..., Any] = REQUIRED

    def __call__(self, *args: Tree) -> Any:
        found = self.of(*args)
        return in_real_numbers(found.dense() if isinstance(found, Operator) else found)


def repeated(theta: Tree, b: int) -> Tree:
    """A theta for each of b problems, in its own framework."""
    return like_theta(theta, np.broadcast_to(vector(theta), (b, vector(theta).size)))


def like_theta(theta: Tree, rows: np.ndarray) -> Tree:
    """Vectors, (p,) or (b, p) with leaves (b, ...), as thetas of theta's framework, dtype and device."""
    leaves, treedef = trees.flatten(theta)
    parts: Any = trees.unraveled(rows, tuple(on_host(x) for x in leaves))
    return trees.unflatten(treedef, [sent(part, x) for part, x in zip(parts, leaves, strict=True)])


def sent(x: np.ndarray, like: Any) -> Any:
    """Numbers as an array of the framework, dtype and device of another; as they are where that is a number."""
    if not trees.is_array(like):
        return x
    owner = registry.owner(like)
    host = np.array(x, dtype=on_host(like).dtype)
    with owner.scope(host.dtype.name):
        return owner.asarray(host, device=device(like))
