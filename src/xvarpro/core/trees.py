"""Trees of arrays: taken apart once at the boundary, flat tuples inside."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from numbers import Complex
from operator import add
from typing import Any

import numpy as np
import optree

from xvarpro.core import namespace as _namespace
from xvarpro.core.struct import NAMESPACE, Array, Leaves, Tree
from xvarpro.errors import ModelError, ProblemError

is_array, is_complex, adjoint = _namespace.is_array, _namespace.is_complex, _namespace.adjoint
PLAIN = type(None), bool, int, float, str  # most of what is no array
MANY, BLOCK = 2**15, 2**12  # rows from which a sum in single precision is one of blocks, and rows of a block
is_inexact, complexified = _namespace.is_inexact, _namespace.complexified


def array_namespace(*trees: Tree) -> Any:
    """Array-API namespace of the arrays in `trees`: what a model function computes with.

    Parameters
    ----------
    *trees : arrays or pytrees of arrays
        Usually the `theta` that the model function was given. Python scalars are passed over.

    Returns
    -------
    namespace
        With the functions of the array API standard, those of its ``linalg`` and ``fft`` extensions included. While a
        derivative is taken on NumPy or CuPy this is the namespace of the tape.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> xp = xv.array_namespace({"rate": np.ones(2)})
    >>> xp.exp(np.zeros(2))
    array([1., 1.])
    """
    first = trees[0] if trees else None
    if len(trees) == 1 and is_array(first):
        return _namespace.namespace_of(first)
    arrays = [x for tree in trees for x in leaves(tree) if is_array(x)]
    if not arrays:
        found = ", ".join(type(t).__name__ for t in trees) or "nothing"
        raise ModelError(f"array_namespace must be given at least one array; got {found}. Pass theta")
    return _namespace.namespace_of(*arrays)


def leaves(tree: Tree) -> list[Any]:
    """Leaves in optree's order: dicts by sorted key."""
    return optree.tree_leaves(tree, namespace=NAMESPACE)


def flatten(tree: Tree) -> tuple[list[Any], Any]:
    """Leaves and the structure that `unflatten` needs."""
    return optree.tree_flatten(tree, namespace=NAMESPACE)


def unflatten(treedef: Any, leaves: Iterable[Any]) -> Tree:
    """Inverse of `flatten`."""
    return optree.tree_unflatten(treedef, leaves)


def paths(tree: Tree, root: str = "theta") -> list[str]:
    """How a user would write each leaf: ``theta['s']``, ``theta[0]``."""
    return _written(optree.tree_structure(tree, namespace=NAMESPACE), root)


def _written(treedef: Any, root: str) -> list[str]:
    return list((_paths if hashes(treedef) else _paths.__wrapped__)(treedef, root))


@lru_cache
def _paths(treedef: Any, root: str) -> tuple[str, ...]:
    return tuple(place.codify(root) for place in treedef.accessors())


def types(tree: Tree) -> frozenset[type]:
    """Classes of what a tree is made of, those of its leaves left out."""
    treedef = optree.tree_structure(tree, namespace=NAMESPACE)
    return (_types if hashes(treedef) else _types.__wrapped__)(treedef)


@lru_cache
def _types(treedef: Any) -> frozenset[type]:
    return frozenset(step.type for place in treedef.accessors() for step in place)


def named(tree: Tree, root: str = "theta", whole: tuple[type, ...] = ()) -> tuple[list[Any], list[str], Any]:
    """Leaves of a tree of the user's, how they would write each, and the structure.

    Sequences of the types `whole` that hold numbers, or such sequences, are leaves: ``[0.5, 8.0]`` is one.

    Raises
    ------
    ProblemError
        The tree has no end.
    """

    def of_numbers(x: Any) -> bool:
        return type(x) in whole and bool(x) and all(isinstance(e, Complex | np.bool_) or of_numbers(e) for e in x)

    try:
        found, treedef = optree.tree_flatten(tree, is_leaf=of_numbers if whole else None, namespace=NAMESPACE)
        return found, _written(treedef, root), treedef
    except RecursionError:
        raise ProblemError(
            f"{root} must be a tree of arrays; got a {type(tree).__name__} that contains itself or is too deep"
        ) from None


class _Identity:
    """A key for something that cannot be hashed: equal only to itself, and kept alive while the key is."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.obj is self.obj

    def __hash__(self) -> int:
        return id(self.obj)


@dataclass(frozen=True)
class Skeleton:
    """Everything about an object but its arrays. Equal skeletons compile to the same program."""

    treedef: Any
    static: tuple[Any, ...]

    def fill(self, arrays: Iterable[Any]) -> Any:
        """The object again, around these arrays."""
        supply = iter(arrays)
        found = []
        for s in self.static:
            found.append(next(supply) if s is Skeleton else s.obj if type(s) is _Identity else s)
        return optree.tree_unflatten(self.treedef, found)


def partition(obj: Any) -> tuple[Leaves, Skeleton]:
    """Split anything made of `Struct` objects and containers into its arrays and a hashable rest."""
    found, treedef = optree.tree_flatten(obj, none_is_leaf=True, namespace=NAMESPACE)
    arrays: list[Array] = []
    static: list[Any] = []
    for x in found:
        if type(x) in PLAIN:
            static.append(x)
        elif is_array(x):
            arrays.append(x)
            static.append(Skeleton)
        else:
            static.append(x if hashes(x) else _Identity(x))
    return tuple(arrays), Skeleton(treedef, tuple(static))


def with_numbers(obj: Any, make: Callable[[float], Array]) -> Any:
    """`obj` with the positive numbers that classes count among their `Struct.numbers` made arrays."""
    found, treedef = optree.tree_flatten(obj, none_is_leaf=True, namespace=NAMESPACE)
    pairs = zip(found, _counted(treedef), strict=True)
    new = [make(x) if counted and isinstance(x, int | float) and x > 0 else x for x, counted in pairs]
    return optree.tree_unflatten(treedef, new)


@lru_cache
def _counted(treedef: Any) -> tuple[bool, ...]:
    """Whether each leaf is among the `Struct.numbers` of its class."""

    def counted(place: Any) -> bool:
        names = [getattr(step.type, "numbers", ()) for step in place]
        return bool(names) and None not in names and place[-1].entry in names[-1]

    return tuple(map(counted, treedef.accessors()))


def hashes(x: Any) -> bool:
    """Whether `x` can be hashed."""
    try:
        hash(x)
    except TypeError:
        return False
    return True


def changed(obj: Any, **fields: Any) -> Any:
    """A dataclass with other fields, which are not checked anew: they may be traced."""
    other = copy.copy(obj)
    for name, value in fields.items():
        object.__setattr__(other, name, value)
    return other


def map_arrays(fun: Callable[[Any], Array], obj: Any) -> Any:
    """`obj` with `fun` applied to every array in it."""
    arrays, skeleton = partition(obj)
    return skeleton.fill([fun(x) for x in arrays])


# -- arithmetic on flat tuples -----------------------------------------------------------------------------------------


def dot(a: Leaves, b: Leaves) -> Array:
    """``<a, b>``, 0-d."""
    return sum_(inner(x, y) for x, y in zip(a, b, strict=True))


def inner(x: Array, y: Array) -> Array:
    """``Re <x, y>`` of two arrays of one shape and dtype, without a temporary of their size where they are real."""
    xp = _namespace.namespace_of(x)
    if x.ndim != 1 and xp in _namespace.COMPILED:
        return xp.real(xp.tensordot(xp.conj(x), y, axes=x.ndim)) if is_complex(x) else xp.tensordot(x, y, axes=x.ndim)
    if x.ndim != 1:
        flat = xp.reshape(x, (-1,))  # may copy: once is enough for a square
        x, y = flat, flat if y is x else xp.reshape(y, (-1,))
    return xp.real(xp.conj(x) @ y) if _namespace.complex_dtype(x.dtype) else x @ y


def adjoint_product(A: Array, B: Array) -> Array:
    """``A^H B``; in single precision a sum over very many rows is one of sums over blocks of them.

    BLAS adds up the products one after the other: over 10^6 rows that leaves four digits.
    """
    m = A.shape[-2]
    if A.ndim != 2 or m <= MANY or (xp := _namespace.namespace_of(A)).finfo(A.dtype).eps < 1e-10:
        return adjoint(A) @ B
    if xp in _namespace.COMPILED:  # reshaped rows might leave their devices, and a fused sum stores no products
        few = A.shape[1] * B.shape[1] <= 64
        return xp.sum(xp.conj(A)[:, :, None] * B[:, None, :], axis=0) if few else adjoint(A) @ B
    whole = m - m % BLOCK
    left, right = (xp.reshape(x[:whole, :], (-1, BLOCK, x.shape[1])) for x in (A, B))
    return xp.sum(adjoint(left) @ right, axis=0) + adjoint(A[whole:, :]) @ B[whole:, :]


def gram(xp: Any, x: Array) -> Array:
    """Products of real arrays, stacked along the first axis, with each other, (p, p)."""
    if xp in _namespace.COMPILED:
        axes = tuple(range(1, x.ndim))
        return xp.tensordot(x, x, axes=(axes, axes))
    flat = xp.reshape(x, (x.shape[0], math.prod(x.shape[1:])))
    return flat @ flat.mT


def axpy(alpha: Any, d: Leaves, theta: Leaves) -> Leaves:
    """``theta + alpha d``."""
    return tuple(x + alpha * v for x, v in zip(theta, d, strict=True))


def sub(a: Leaves, b: Leaves) -> Leaves:
    """``a - b``."""
    return tuple(x - y for x, y in zip(a, b, strict=True))


def plus(a: Leaves, b: Leaves) -> Leaves:
    """``a + b``."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


def scaled(alpha: Any, d: Leaves) -> Leaves:
    """``alpha d``."""
    return tuple(alpha * x for x in d)


def raveled(tree: Leaves, rows: int = 0) -> Array:
    """Leaves as one vector; with `rows`, as many leading axes stay. A leaf that is one already is returned itself."""
    if len(tree) == 1 and tree[0].ndim == rows + 1:
        return tree[0]
    xp = _namespace.namespace_of(*tree)
    parts = [xp.reshape(x, (*x.shape[:rows], math.prod(x.shape[rows:]))) for x in tree]
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)


def unraveled(v: Array, like: Leaves) -> Leaves:
    """Inverse of `raveled`, over leading axes too."""
    return (v,) if len(like) == 1 and like[0].ndim == 1 else parts(v, [x.shape for x in like])


def parts(v: Array, shapes: Sequence[tuple[int, ...]]) -> Leaves:
    """The arrays of these shapes that make up a vector, over leading axes too."""
    if len(shapes) == 1 and len(shapes[0]) == 1:
        return (v,)
    xp, out, at = _namespace.namespace_of(v), [], 0
    for shape in shapes:
        n = math.prod(shape)
        out.append(xp.reshape(v[..., at : at + n], (*v.shape[:-1], *shape)))
        at += n
    return tuple(out)


def signs(like: Leaves) -> Leaves:
    """A fixed vector of random signs and sizes, in the shapes of `like`: it has no special direction."""
    rng = np.random.default_rng(0)
    drawn = [rng.uniform(0.5, 1.5, x.shape) * rng.choice([-1.0, 1.0], x.shape) for x in like]
    made = zip(drawn, like, strict=True)
    return tuple(_namespace.namespace_of(x).asarray(z, dtype=x.dtype, device=_namespace.device(x)) for z, x in made)


def corner(x: Array) -> Array:
    """The first entry of an array, 0-d: something to take dtype and device from."""
    return x[(0,) * x.ndim]


def sum_(terms: Iterable[Array]) -> Array:
    """Sum of one or more arrays; no Python zero at the start, which some frameworks would promote by."""
    return reduce(add, terms)


def map_leaves(fun: Callable[..., Any], *trees: Any) -> Any:
    """`fun` of the leaves at each place of trees of one structure, in that structure."""
    return optree.tree_map(fun, *trees, namespace=NAMESPACE)


def rounding(xp: Any, value: Array) -> Array:
    """What two computed objectives near `value` may differ by without meaning anything."""
    return (4 * xp.finfo(value.dtype).eps) * xp.abs(value)
