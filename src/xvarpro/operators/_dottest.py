"""Whether an operator's products, adjoint, gradient and dense form belong to one matrix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xvarpro.backends import registry
from xvarpro.core import trees
from xvarpro.core.namespace import device, dtype_name, namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import inner
from xvarpro.errors import ProblemError
from xvarpro.operators.interface import Dense, Operator

# entries up to which the dense form is compared, too
DENSE = 2**20
_REAL = {"complex64": "float32", "complex128": "float64"}


def dottest(M: Operator, like: Array | None = None, *, seed: int = 0) -> None:
    """Certify an operator: that its adjoint, its gradient and its dense form are those of its products.

    Of random vectors: ``Re <r, M w> = Re <M^H r, w>``, `outer` against differences of ``Re <r, M w>``, and, up to 2^20
    entries, ``M.dense() w`` against ``M w``.

    Parameters
    ----------
    M : Operator
        Of this package or your own, around arrays of any framework.
    like : array, optional
        Decides framework, device and dtype of the random vectors; M's own arrays by default.
    seed : int

    Raises
    ------
    ProblemError
        Naming the operator, and which of its methods does not fit.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xv.operators.dottest(xv.operators.Kronecker(np.eye(2), np.ones((2, 3))))
    >>> wrong = xv.operators.MatrixFree(lambda p, w: p * w, lambda p, r: -p * r, (2, 2), np.ones((2, 1)))
    >>> xv.operators.dottest(wrong)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    xvarpro.errors.ProblemError: MatrixFree: rmatvec is not the adjoint of matvec: ...
    """
    if not isinstance(M, Operator):
        raise ProblemError(f"dottest needs an operator, got {type(M).__name__}: xv.operators.Dense(array) is one")
    arrays = [x for x in trees.partition(M)[0] if trees.is_inexact(x)]
    if like is None:
        if not arrays:
            raise ProblemError(
                f"{type(M).__name__} holds no floating-point array: pass like=, an array of the framework"
            )
        like = next((x for x in arrays if trees.is_complex(x)), arrays[0])
    backend, name = registry.owner(like), type(M).__name__
    kind = dtype_name(like)
    with backend.scope(_REAL.get(kind, kind)):
        _certify(M, name, like, np.random.default_rng(seed))


def _certify(M: Operator, name: str, like: Array, rng: np.random.Generator) -> None:
    # several columns: a mistake shows where the two inner products are not small by chance
    (m, n), k = M.shape, M.columns or 8
    eps = float(namespace_of(like).finfo(like.dtype).eps)
    w = _random(rng, (n, k), like)
    if trees.is_complex(product := M.matvec(w)):  # though the arrays that M holds may be real
        like, w = product, _random(rng, (n, k), product)
    r = _random(rng, (m, k), like)
    Mw, Mr = _shaped(M.matvec(w), (m, k), f"{name}.matvec"), _shaped(M.rmatvec(r), (n, k), f"{name}.rmatvec")
    scale = _length(r) * _length(Mw) + _length(Mr) * _length(w)
    adjoint = _relative(inner(r, Mw) - inner(Mr, w), scale)
    if not adjoint <= 1e2 * eps:
        raise ProblemError(
            f"{name}: rmatvec is not the adjoint of matvec: Re<r, M w> and Re<M^H r, w> differ by {adjoint:.1e}, "
            "relative to their size. rmatvec must multiply by the conjugate transpose, and matvec must be linear"
        )
    gradient = _gradient(M, name, w, r, rng)
    if not gradient <= 1e2 * eps ** (2 / 3):
        raise ProblemError(
            f"{name}: outer is not the gradient of Re<r, M w> with respect to its arrays: along a random "
            f"direction it is off by {gradient:.1e}, relative to their size"
        )
    if m * n * k > DENSE:
        return
    A = _shaped(M.dense(), (m, n) if M.columns is None else (k, m, n), f"{name}.dense")
    dense = _relative(_length(Dense(A).residual(w, Mw)), _length(Mw))
    if not dense <= 1e3 * eps:
        raise ProblemError(f"{name}: dense() times w is off M w by {dense:.1e}, relative to its size")


def _gradient(M: Operator, name: str, w: Array, r: Array, rng: np.random.Generator) -> float:
    """Error of `outer` along a random direction, relative to the size of its entries along it."""
    arrays, skeleton = trees.partition(M)
    found = trees.partition(M.outer(r, w))[0]
    if [tuple(x.shape) for x in found] != [tuple(x.shape) for x in arrays]:
        raise ProblemError(f"{name}.outer must return a {name} with arrays of the shapes that it holds")
    moved, slope, scale = [], 0.0, 0.0
    h = float(namespace_of(w).finfo(w.dtype).eps) ** (1 / 3)
    for x, g in zip(arrays, found, strict=True):
        if not trees.is_inexact(x):
            moved.append((x, x))
            continue
        size = _length(x) / max(1, math.prod(x.shape)) ** 0.5
        d = _random(rng, tuple(x.shape), x) * size
        moved.append((x + h * d, x - h * d))
        slope += float(inner(g, d))
        scale += _length(g) * _length(d)
    if not scale:
        return 0.0
    ahead, behind = (inner(r, skeleton.fill(x).matvec(w)) for x in zip(*moved, strict=True))
    return _relative(float(ahead - behind) / (2 * h) - slope, scale + float(abs(ahead)))


def _random(rng: np.random.Generator, shape: tuple[int, ...], like: Array) -> Array:
    x: Any = rng.normal(size=shape)
    if trees.is_complex(like):
        x = x + 1j * rng.normal(size=shape)
    return namespace_of(like).asarray(x, dtype=like.dtype, device=device(like))


def _shaped(x: Array, shape: tuple[int, ...], what: str) -> Array:
    if tuple(x.shape) != shape:
        raise ProblemError(f"{what} must return an array of shape {shape}, got {tuple(x.shape)}")
    return x


def _length(x: Array) -> float:
    return float(inner(x, x)) ** 0.5


def _relative(error: Any, scale: float) -> float:
    return abs(float(error)) / scale if scale else abs(float(error))
