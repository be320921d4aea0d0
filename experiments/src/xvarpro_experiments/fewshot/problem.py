"""Few-shot learning, the paper's Example 4: features are theta, the linear head is eliminated, each has its own shots.

``min over theta of 1/2 |phi(X1; theta) w(theta) - Y1|^2`` with
``w(theta) = argmin 1/2 |phi(X2; theta) w - Y2|^2 + lam/2 |w|^2``.
Splits of a few images make the lower level wide, samples x features: it is solved in the dual, and needs the ridge that
the paper leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro import Problem
from xvarpro.errors import ProblemError
from xvarpro_experiments.checks import generator, positive
from xvarpro_experiments.trees import Array, Tree

Features = Callable[[Tree, Array], Array]  # (theta, X) -> (samples, features)


@dataclass(frozen=True)
class Split:
    """Examples with their targets."""

    X: Array  # (samples, ...), what the trained part of the network is given
    Y: Array  # (samples, classes), such as those of `targets`


@dataclass(frozen=True)
class _Design:
    """The design of a split. Equal for equal features, so that a compiled loop is used again."""

    features: Features
    split: str

    def __call__(self, theta: Tree, data: Any) -> Array:
        return self.features(theta, data[self.split])


def problem(features: Features, lower: Split, upper: Split, lam: float) -> Problem:
    """Two splits: the head is fitted on `lower`, the features are evaluated with it on `upper`.

    ``features(theta, X)`` returns an array of shape (samples, features). The ridge `lam` on the head is > 0 where a
    split has fewer examples than there are features.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro_experiments import fewshot
    >>> rng = np.random.default_rng(0)
    >>> one, two = (fewshot.Split(rng.normal(size=(3, 8)), fewshot.targets(np.arange(3), 3)) for _ in range(2))
    >>> theta0 = {"A": np.eye(8), "b": np.zeros(8)}
    >>> fit = xv.solve(fewshot.problem(fewshot.layer, one, two, lam=0.1), theta0, max_iter=20)
    >>> fit.w.shape, bool(fit.value < 0.5 * fit.trace.value[0])
    ((8, 3), True)
    """
    return xv.bilevel(
        lower=xv.Level(_Design(features, "lower"), lower.Y, lam=lam),
        upper=xv.Level(_Design(features, "upper"), upper.Y),
        data={"lower": lower.X, "upper": upper.X},
    )


def pooled(features: Features, splits: Sequence[Split], lam: float) -> Problem:
    """One split: head and features from all shots, classical variable projection.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro_experiments import fewshot
    >>> X, Y = np.eye(4), fewshot.targets(np.arange(4), 4)
    >>> problem = fewshot.pooled(fewshot.adapter, [fewshot.Split(X, Y)] * 2, lam=1.0)
    >>> theta0 = {"A": np.eye(4), "B": np.zeros((4, 4))}
    >>> round(xv.solve(problem, theta0, max_iter=0).value, 3)
    1.0
    """
    xp = xv.array_namespace(splits[0].X)
    X, Y = (xp.concat([getattr(s, part) for s in splits]) for part in ("X", "Y"))
    return xv.separable(_Design(features, "all"), Y, data={"all": X}, lam=lam)


def layer(theta: Tree, X: Array) -> Array:
    """``tanh(X A + b)``, the last layer of a network of tanh layers."""
    return xv.array_namespace(theta).tanh(X @ theta["A"] + theta["b"])


def adapter(theta: Tree, X: Array) -> Array:
    """``X + tanh(X A) B``, a residual layer on frozen features: the identity where B is 0."""
    return X + xv.array_namespace(theta).tanh(X @ theta["A"]) @ theta["B"]


def start(
    features: int, width: int, scale: float = 1.0, seed: int = 0, dtype: Any = np.float64
) -> dict[str, np.ndarray]:
    """Start of an `adapter` at the identity."""
    positive(features=features, width=width, scale=scale)
    A = generator(seed).normal(size=(features, width)) / (scale * features**0.5)
    return {"A": A.astype(dtype), "B": np.zeros((width, features), dtype)}


def targets(labels: np.ndarray, classes: int, dtype: Any = np.float64) -> np.ndarray:
    """One-hot rows less their mean, ``1 - 1/classes`` and ``-1/classes``.

    What all columns of a head have in common decides nothing: it is taken out of the objective.

    The labels are integers from 0 to ``classes - 1``, of shape (samples,); there are at least two classes.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro_experiments import fewshot
    >>> fewshot.targets(np.array([1, 0]), 2)
    array([[-0.5,  0.5],
           [ 0.5, -0.5]])
    """
    if classes < 2 or np.min(labels) < 0 or np.max(labels) >= classes:
        raise ProblemError(f"labels must lie in 0 to classes - 1 with classes >= 2, got {np.unique(labels)}, {classes}")
    return (np.eye(classes)[labels] - 1 / classes).astype(dtype)


def head(M: np.ndarray, Y: np.ndarray, lam: float) -> np.ndarray:
    """Ridge regression of Y on features M, in the dual: what `pooled` eliminates."""
    return M.T @ np.linalg.solve(M @ M.T + lam * np.eye(len(M), dtype=M.dtype), Y)
