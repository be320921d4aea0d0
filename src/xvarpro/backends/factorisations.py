"""Factorisations of batches by frameworks that raise where a matrix is singular, as `Backend` promises them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from xvarpro.core.namespace import namespace_of

T = TypeVar("T", bound=Any)  # an array of one framework


def linalg_errors() -> tuple[type[Exception], ...]:
    """What the linear algebra of the frameworks in use raises on a singular or indefinite matrix."""
    torch = sys.modules.get("torch")
    return (np.linalg.LinAlgError,) if torch is None else (np.linalg.LinAlgError, torch.linalg.LinAlgError)


def each_matrix(fun: Callable[..., tuple[T, ...]], fail: Callable[..., tuple[T, ...]], *stacks: T) -> tuple[T, ...]:
    """``fun(*stacks)`` of stacks of matrices; where that raises, one by one, with ``fail`` for those that raise."""
    try:
        return tuple(fun(*stacks))
    except linalg_errors():
        if stacks[0].ndim == 2:
            return fail(*stacks)
    xp, lead = namespace_of(*stacks), stacks[0].shape[:-2]
    flat = [xp.reshape(x, (-1, *x.shape[-2:])) for x in stacks]
    found = [each_matrix(fun, fail, *(x[i, ...] for x in flat)) for i in range(flat[0].shape[0])]
    return tuple(xp.reshape(xp.stack(x), (*lead, *x[0].shape)) for x in zip(*found, strict=True))


def nan_if_not_finite(A: T) -> T:
    """NaN in place of every matrix with an entry that is not finite: LAPACK's SVD may never return from an inf."""
    xp = namespace_of(A)
    bad = ~xp.all(xp.isfinite(A), axis=(-2, -1), keepdims=True)
    return xp.where(bad, xp.full_like(A, xp.nan), A) if bool(xp.any(bad)) else A
