"""A design known through two functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

from xvarpro.backends import registry
from xvarpro.core import trees
from xvarpro.core.namespace import conj, device, namespace_of
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.errors import ProblemError
from xvarpro.operators.interface import Operator, drawn


@final
@dataclass(frozen=True)
class MatrixFree(Operator):
    """A design given by two functions, ``M w = forward(p, w)`` and ``M^H r = backward(p, r)``; theta enters through p.

    Write both with ``xp = xv.array_namespace(w)``, for w of shape (n, k) and r of shape (m, k), and certify them once
    with `dottest`. The gradient is a derivative of `forward`.

    Parameters
    ----------
    forward : callable
        ``forward(p, w)``, linear in w.
    backward : callable or None
        Its adjoint; None takes it from the derivative of `forward`, at the cost of one more evaluation.
    shape : tuple of int
        ``(m, n)``.
    p : pytree of arrays
        What theta made: floating-point arrays, and any arrays of integers besides. The functions may close over
        arrays of `data`, never over what theta made: derivatives know it through p alone.

    Notes
    -----
    `dense` applies `forward` to the identity: n products, and an array of m x n.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> def differences(p, w):
    ...     return p * (w[1:, :] - w[:-1, :])
    >>> M = xv.operators.MatrixFree(differences, None, (3, 4), np.array(2.0))
    >>> M.rmatvec(np.ones((3, 1)))[:, 0]
    array([-2.,  0.,  0.,  2.])
    """

    forward: Callable[[Tree, Array], Array] | None = None
    backward: Callable[[Tree, Array], Array] | None = None
    shape: tuple[int, int] = (0, 0)
    p: Tree = None

    def __post_init__(self) -> None:
        if self.forward is None:
            return
        for name, f in (("forward", self.forward), ("backward", self.backward)):
            if not (callable(f) or (f is None and name == "backward")):
                raise ProblemError(f"MatrixFree needs a function {name}(p, x), got {type(f).__name__}")
        if len(self.shape) != 2:
            raise ProblemError(f"MatrixFree needs a shape (m, n), got {self.shape!r}")

    def matvec(self, w: Array) -> Array:
        return self._applied(self.forward, w)

    def rmatvec(self, r: Array) -> Array:
        if self.backward is not None:
            return self._applied(self.backward, r)
        xp = namespace_of(r)
        zeros = xp.zeros((self.shape[1], r.shape[1]), dtype=r.dtype, device=device(r))
        arrays, skeleton = trees.partition(self.p)
        product = self.forward

        def applied(w: Array, *arrays: Array) -> tuple[Array]:
            return (product(skeleton.fill(arrays), w),)  # type: ignore[misc]

        _, pullback = registry.owner(r).vjp(applied, (zeros,), arrays)
        return pullback((r,))[0]

    def _applied(self, fun: Any, x: Array) -> Array:
        backend = registry.of(x)
        if backend is None:  # traced
            return fun(self.p, x)
        arrays, skeleton = trees.partition(self.p)
        # a trace, of nothing, takes in the constants of traces that have ended, which a function of a model may hold
        return backend.vjp(lambda x, *p: (fun(skeleton.fill(p), x),), (), (x, *arrays))[0][0]

    def outer(self, r: Array, w: Array) -> MatrixFree:
        arrays, skeleton = trees.partition(self)
        moving = tuple(filter(trees.is_inexact, arrays))
        # indices have no gradient, and are returned as they are
        held = tuple(x for x in arrays if not trees.is_inexact(x))

        def filled(moving: Iterable[Array], held: Iterable[Array]) -> MatrixFree:
            own, rest = iter(moving), iter(held)
            return skeleton.fill([next(own) if trees.is_inexact(x) else next(rest) for x in arrays])

        def applied(*given: Array) -> Leaves:
            return (filled(given, given[len(moving) :]).matvec(given[-1]),)

        if not moving:
            return self
        _, pullback = registry.owner(r).vjp(applied, moving, (*held, w))
        return filled(pullback((r,)), held)

    def dense(self) -> Array:
        arrays = [x for x in trees.leaves(self.p) if trees.is_array(x) and trees.is_inexact(x)]
        if not arrays:
            raise ProblemError("MatrixFree needs a floating-point array in p, for framework and dtype; got none")
        like = next((x for x in arrays if trees.is_complex(x)), arrays[0])
        xp = namespace_of(like)
        return self.matvec(xp.eye(self.shape[1], dtype=like.dtype, device=device(like)))

    @property
    def explicit(self) -> bool:
        return False

    @classmethod
    def examples(cls, shape: tuple[int, int]) -> tuple[Operator, ...]:
        p = {"A": drawn(*shape), "s": 2 + drawn(shape[0], 1)}
        return cls(_forward, _backward, shape, p), cls(_forward, None, shape, p)


def _forward(p: Tree, w: Array) -> Array:
    return p["s"] * p["s"] * (p["A"] @ w)


def _backward(p: Tree, r: Array) -> Array:
    s = conj(p["s"])
    return trees.adjoint(p["A"]) @ (s * s * r)
