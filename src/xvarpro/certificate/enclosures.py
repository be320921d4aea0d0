"""What a design can be over a box of theta: intervals for its entries and their first two derivatives.

A model runs once on `Enclosure` arrays, which hold those intervals for every box of a batch, through the mapped
namespace of the tape. Functions of the data alone are evaluated by NumPy as they are: they count as data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from xvarpro.backends.tape.batching import vmap
from xvarpro.backends.tape.engine import Ground
from xvarpro.backends.tape.errors import NoBatchError
from xvarpro.certificate import intervals as iv
from xvarpro.certificate.intervals import EPS, Pair
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError

raw = namespace_of(np.empty(0))


class Enclosure:
    """Intervals of an array over each box: `lo` and `hi` have an axis in front, of the value and its derivatives.

    These are the value alone where it is constant, or also p entries of the gradient and the upper triangle of the
    Hessian, in units of half the box: theta is its centre and s in [-1, 1]^p. The first half of the boxes are the
    centres of the others. `made` is what it was made of: the numerator and the denominator, or the exponent.
    """

    __slots__ = ("dtype", "hi", "lo", "made", "shape")
    __array_ufunc__ = None
    device = "cpu"

    def __init__(self, lo: np.ndarray, hi: np.ndarray, made: Any = ()) -> None:
        self.lo, self.hi, self.made = lo, hi, made
        self.shape, self.dtype = lo.shape[1:], lo.dtype

    @property
    def ndim(self) -> int:
        """Number of axes, with that of the boxes."""
        return len(self.shape)

    def __getitem__(self, key: Any) -> Enclosure:
        key = (slice(None), *(key if isinstance(key, tuple) else (key,)))
        return Enclosure(self.lo[key], self.hi[key])

    def part(self, key: Any) -> Pair:
        """Some of the value and its derivatives."""
        return (self.lo[key],) * 2 if self.lo is self.hi else (self.lo[key], self.hi[key])


VALUE = slice(0, 1)


def extended(x: np.ndarray, count: int) -> np.ndarray:
    """With derivatives that are 0."""
    return x if len(x) == count else np.concatenate([x, np.zeros((count - len(x), *x.shape[1:]))])


def _lifted(x: Any) -> Enclosure:
    """A constant as an enclosure."""
    if isinstance(x, Enclosure):
        return x
    if np.iscomplexobj(x):
        raise NoBatchError("complex numbers")
    return Enclosure(*(np.asarray(x, dtype=np.float64)[None],) * 2)


def _together(*operands: Any, extend: bool = True) -> list[Enclosure]:
    """Arrays as enclosures that broadcast, with as many derivatives as any of them has."""
    found = list(map(_lifted, operands))
    rank, count = max(x.ndim for x in found), max(len(x.lo) for x in found)
    for k, x in enumerate(found):
        lo = x.lo.reshape(len(x.lo), *(1,) * (rank - x.ndim), *x.shape)
        hi = lo if x.lo is x.hi else x.hi.reshape(lo.shape)
        found[k] = Enclosure(extended(lo, count), extended(hi, count)) if extend else Enclosure(lo, hi)
    return found


def _stacked(*parts: Pair) -> Enclosure:
    shape = np.broadcast_shapes(*(x[0].shape[1:] for x in parts))
    return Enclosure(*(np.concatenate([np.broadcast_to(x[k], (len(x[k]), *shape)) for x in parts]) for k in (0, 1)))


def _kinds(x: Enclosure) -> tuple[slice, slice, np.ndarray, np.ndarray]:
    """Where the gradient and the Hessian are, and the entries of theta of the latter."""
    p = (math.isqrt(8 * len(x.lo) + 1) - 3) // 2
    return slice(1, p + 1), slice(p + 1, None), *np.triu_indices(p)


def _narrowed(x: Enclosure) -> Enclosure:
    """With values and gradients over boxes that are no further from those at the centres than derivatives allow."""
    first, second, i, j = _kinds(x)
    p, b = len(x.lo) - len(i) - 1, x.shape[0] // 2
    lo, hi = x.lo.copy(), x.hi.copy()
    size = np.maximum(np.abs(lo[:, b:]), np.abs(hi[:, b:]))
    for k in range(p, -1, -1):
        reach = size[first] if k == 0 else size[second][(i == k - 1) | (j == k - 1)]
        reach = np.sum(reach, axis=0) * (1 + p * EPS)
        low, high = iv.rounded(lo[k, :b] - reach, hi[k, :b] + reach)
        np.copyto(lo[k, b:], low, where=low > lo[k, b:])
        np.copyto(hi[k, b:], high, where=high < hi[k, b:])
        size[k] = np.maximum(np.abs(lo[k, b:]), np.abs(hi[k, b:]))
    return Enclosure(lo, hi)


def _of_one(value: Callable[[Pair], Pair], df: Callable[..., Pair], ddf: Callable[..., Pair]) -> Callable[..., Any]:
    """A function of each entry: its value over an interval x, and its derivatives from x and the value."""

    def fun(x: Enclosure) -> Enclosure:
        x = _narrowed(x) if len(x.lo) > 1 else x
        at = x.part(VALUE)
        f = value(at)
        first, second, i, j = _kinds(x)
        slope, gradient = df(at, f), x.part(first)
        products = iv.mul(*((gradient[0][k], gradient[1][k]) for k in (i, j)))
        same = i == j
        for end, square in zip(products, iv.power(gradient, 2.0), strict=True):
            end[same] = square
        hessian = iv.add(iv.mul(ddf(at, f), products), iv.mul(slope, x.part(second)))
        return _stacked(f, iv.mul(slope, gradient), hessian)

    return fun


def _add(a: Any, b: Any) -> Enclosure:
    a, b = _together(a, b)
    return Enclosure(*iv.add((a.lo, a.hi), (b.lo, b.hi)))


def _negative(a: Any) -> Any:
    return Enclosure(-a.hi, -a.lo) if isinstance(a, Enclosure) else -a


def _multiply(a: Any, b: Any) -> Enclosure:
    a, b = _together(a, b, extend=False)
    if min(len(a.lo), len(b.lo)) == 1:
        return Enclosure(*iv.mul((a.lo, a.hi), (b.lo, b.hi)))
    first, second, i, j = _kinds(a)
    gradient, hessian = (
        iv.add(iv.mul(a.part(k), b.part(VALUE)), iv.mul(a.part(VALUE), b.part(k))) for k in (first, second)
    )
    for k, m in ((i, j), (j, i)):
        hessian = iv.add(hessian, iv.mul(a.part(1 + k), b.part(1 + m)))
    return _stacked(iv.mul(a.part(VALUE), b.part(VALUE)), gradient, hessian)


def _divide(a: Any, b: Any) -> Enclosure:
    if isinstance(b, Enclosure):
        found = _multiply(a, _power(b, -1.0))
        return Enclosure(found.lo, found.hi, (a, b))
    a, b = _together(a, b, extend=False)
    return Enclosure(*iv.mul((a.lo, a.hi), iv.reciprocal((b.lo, b.hi))))


def _exp(x: Any) -> Any:
    if not isinstance(x, Enclosure):
        return np.exp(x)
    found = _EXP(x)
    return Enclosure(found.lo, found.hi, (x,))


def _power(a: Any, b: Any) -> Any:
    exponents = [] if isinstance(b, Enclosure) else np.unique(np.asarray(b, dtype=np.float64)).tolist()
    if len(exponents) != 1:  # of a positive base
        log = _LOG(a) if isinstance(a, Enclosure) else Enclosure(*iv.rising(np.log)(_lifted(a).part(VALUE)))
        return _exp(_multiply(b, log))
    (c,) = exponents
    if c in (0.0, 1.0):
        return a if c else raw.ones(a.shape)

    def slope(c: float, k: int) -> Callable[..., Pair]:
        factor = iv.number(c if k == 1 else c * (c - 1))
        return lambda x, _f: iv.mul(iv.power(x, c - k), factor) if c != k else factor

    return _of_one(lambda x: iv.power(x, c), slope(c, 1), slope(c, 2))(a)


def _hyperbolic(x: Enclosure, sign: int) -> Enclosure:
    return _multiply(0.5, _add(_EXP(x), _multiply(float(sign), _EXP(_negative(x)))))


def _bell(x: Pair) -> Pair:
    return iv.reciprocal(iv.add(iv.number(1.0), iv.power(x, 2.0)))


def _behind(axis: Any, ndim: int) -> Any:
    """Axes of an enclosure, counted with the one in front."""
    if isinstance(axis, int):
        return axis % ndim + 1
    return tuple(i % ndim + 1 for i in (range(ndim) if axis is None else axis))


def _sum(x: Enclosure, *, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Enclosure:
    return Enclosure(*iv.total((x.lo, x.hi), _behind(axis, x.ndim), keepdims))


def _matmul(a: Any, b: Any) -> Enclosure:
    if b.ndim == 1:
        return _sum(_multiply(a, b), axis=-1)
    return (
        _matmul(a[None, :], b)[..., 0, :] if a.ndim == 1 else _sum(_multiply(a[..., None], b[..., None, :, :]), axis=-2)
    )


def _shaped(fun: Callable[..., np.ndarray]) -> Callable[..., Enclosure]:
    """A function that moves entries: of both ends, whose axes `fun` counts with the one in front."""
    return lambda x, *rest, **options: Enclosure(fun(x.lo, *rest, **options), fun(x.hi, *rest, **options))


def _joined(name: str, arrays: list[Any], *, axis: int) -> Enclosure:
    lifted = _together(*arrays)
    at, b = _behind(axis, lifted[0].ndim + (name == "stack")), max(x.shape[0] for x in lifted)
    ends = (
        [np.broadcast_to(v, (len(v), b, *v.shape[2:])) for v in x]
        for x in zip(*((y.lo, y.hi) for y in lifted), strict=True)
    )
    return Enclosure(*(getattr(raw, name)(list(x), axis=at) for x in ends))


_EXP = _of_one(iv.rising(np.exp), lambda _x, f: f, lambda _x, f: f)
_LOG = _of_one(
    lambda x: iv.rising(np.log)((np.where(x[0] > 0, x[0], np.nan), x[1])),
    lambda x, _f: iv.reciprocal(x),
    lambda x, _f: iv.neg(iv.power(x, -2.0)),
)


def _sigmoid(x: Pair) -> Pair:
    return iv.reciprocal(iv.add(iv.number(1.0), iv.rising(np.exp)(iv.neg(x))))


_SOFTPLUS = _of_one(
    lambda x: iv.rounded(np.logaddexp(0.0, x[0]), np.logaddexp(0.0, x[1]), 2 * iv.LIBRARY),
    lambda x, _f: _sigmoid(x),
    lambda x, _f: iv.add(iv.number(0.25), iv.neg(iv.power(iv.add(_sigmoid(x), iv.number(-0.5)), 2.0))),
)
_QUARTER = iv.rounded(np.asarray([math.pi / 2]), np.asarray([math.pi / 2]))
_COS = _of_one(iv.cosine, lambda x, _f: iv.cosine(iv.add(x, _QUARTER)), lambda _x, f: iv.neg(f))
_BACK = Enclosure(*iv.neg(_QUARTER))

RULES: dict[str, Callable[..., Any]] = {
    "add": _add,
    "subtract": lambda a, b: _add(a, _negative(b)),
    "multiply": _multiply,
    "divide": _divide,
    "negative": _negative,
    "positive": lambda x: x,
    "pow": _power,
    "square": lambda x: _power(x, 2.0),
    "sqrt": lambda x: _power(x, 0.5),
    "reciprocal": lambda x: _power(x, -1.0),
    "exp": _exp,
    "logaddexp": lambda a, b: _add(b, _SOFTPLUS(_add(a, _negative(b)))),
    "expm1": lambda x: _add(_EXP(x), -1.0),
    "log": _LOG,
    "log1p": lambda x: _LOG(_add(x, 1.0)),
    "cos": _COS,
    "sin": lambda x: _COS(_add(x, _BACK)),
    "sinh": lambda x: _hyperbolic(x, -1),
    "cosh": lambda x: _hyperbolic(x, 1),
    "tanh": lambda x: _add(1.0, _multiply(-2.0, _power(_add(_EXP(_multiply(2.0, x)), 1.0), -1.0))),
    "atan": _of_one(
        iv.rising(np.arctan),
        lambda x, _f: _bell(x),
        lambda x, _f: iv.mul(iv.mul(iv.number(-2.0), x), iv.power(_bell(x), 2.0)),
    ),
    "sum": _sum,
    "vecdot": lambda a, b, *, axis=-1: _sum(_multiply(a, b), axis=axis),
    "matmul": _matmul,
    "reshape": lambda x, shape, **_: _shaped(lambda v: v.reshape(len(v), *shape))(x),
    "broadcast_to": lambda x, shape: _shaped(lambda v: np.broadcast_to(v, (len(v), *shape)))(*_together(x)),
    "matrix_transpose": _shaped(lambda v: np.swapaxes(v, -1, -2)),
    "expand_dims": lambda x, *, axis=0: _shaped(partial(np.expand_dims, axis=_behind(axis, x.ndim + 1)))(x),
    "take": lambda x, indices, *, axis: _shaped(partial(np.take, indices=indices, axis=_behind(axis, x.ndim)))(x),
    "concat": partial(_joined, "concat"),
    "stack": partial(_joined, "stack"),
    "ones_like": lambda x, **_: np.ones(x.shape),
    "zeros_like": lambda x, **_: np.zeros(x.shape),
    "result_type": lambda *xs: raw.result_type(*(x.dtype if isinstance(x, Enclosure) else x for x in xs)),
}


class _Namespace:
    """The functions of arrays of which some are enclosures; NumPy's of all others."""

    __name__ = "enclosures"

    def __getattr__(self, name: str) -> Any:
        plain = getattr(raw, name)

        def fun(*args: Any, **options: Any) -> Any:
            if not any(isinstance(x, Enclosure) for x in (args[0] if args and isinstance(args[0], list) else args)):
                return plain(*args, **options)
            if name not in RULES:
                raise NoBatchError(f"xp.{name}")
            return RULES[name](*args, **options)

        return fun if callable(plain) and not isinstance(plain, type) else plain


GROUND = Ground(_Namespace(), lambda x, key, v: x)


def halved(lo: np.ndarray, hi: np.ndarray) -> Pair:
    """Centres of boxes, and how far from them they reach at most."""
    return 0.5 * (lo + hi), 0.5 * (hi - lo) + 4 * EPS * np.maximum(np.abs(lo), np.abs(hi))


def enclosed(
    fun: Callable[..., Any],
    lo: np.ndarray,
    hi: np.ndarray,
    data: Tree,
    shapes: Any,
    then: Callable[..., Any] | None = None,
) -> list[list[Enclosure]]:
    """The arrays that a function of (theta, data) returns, at the centres of boxes (b, p) and over the boxes.

    Or those that `then` makes of them.

    Raises
    ------
    ProblemError
        It has a function without a rule here.
    """
    b, p = lo.shape
    centre, half = halved(lo, hi)
    jets = [np.zeros((1 + p + p * (p + 1) // 2, 2 * b, p)) for _ in (lo, hi)]
    for jet, end in zip(jets, (lo, hi), strict=True):
        jet[0] = np.concatenate([centre, end])
        jet[1 + np.arange(p), :, np.arange(p)] = np.tile(half.T, 2)
    treedef, parts = shapes
    leaves = [Enclosure(*(x[..., at].reshape(*x.shape[:2], *shape) for x in jets)) for at, shape in parts]
    arrays, skeleton = trees.partition(data)

    def flat(*operands: Any) -> Any:
        return fun(trees.unflatten(treedef, operands[: len(leaves)]), skeleton.fill(operands[len(leaves) :]))

    try:
        with np.errstate(all="ignore"):
            found = list(map(_lifted, vmap(GROUND, flat, leaves, arrays)))
            found = found if then is None else then(*found)
            return [[y[at] for y in found] for at in (slice(0, b), slice(b, None))]
    except NoBatchError as error:
        raise ProblemError(
            "certify needs a model of functions whose enclosures it knows: arithmetic, powers, exp, log, trigonometric "
            f"and hyperbolic functions, sums, products and changes of shape; got {error}. Write it with these, or give "
            "bounds="
        ) from error


def in_units(M: Enclosure, y: Enclosure) -> list[Enclosure]:
    """Of a design that is an exponential: each column over a factor that keeps its norm near 1 in a box.

    The factor is the exponential of the mean exponent, by the squares of the entries at the centre.
    """
    if len(M.made) != 1 or M.ndim != 3:
        return [M, y]
    (exponent,), b = M.made, M.shape[0] // 2
    known = np.isfinite(exponent.lo + exponent.hi).all(0)
    size = np.where(known, 2 * exponent.lo[0], -np.inf)[:b]
    shares = np.exp(size - size.max(1, keepdims=True))
    shares = np.concatenate([shares / shares.sum(1, keepdims=True)] * 2)
    own = Enclosure(*(np.where(shares > 0, end, 0.0) for end in iv.mul(exponent.part(slice(None)), (shares, shares))))
    mean, size = _sum(own, axis=1, keepdims=True), np.abs(exponent.lo) + np.abs(exponent.hi)
    margin = 4 * EPS * ((shares * np.where(known, size, 0.0)).sum(2, keepdims=True) + size)
    others = Enclosure(mean.lo - own.lo - margin, mean.hi - own.hi + margin)
    return [_EXP(_add(_multiply(exponent, 1 - shares), _negative(others))), y]


def cleared(M: Enclosure, y: Enclosure) -> list[Enclosure]:
    """Of a design that is a quotient: the numerator, the target times the denominator, and the latter."""
    if len(M.made) != 2 or M.ndim != 3 or M.made[1].ndim != 3 or M.made[1].shape[2] > 1:
        return []
    above, below = M.made[0], M.made[1][..., 0]
    return [_add(above, np.zeros(M.shape)), _multiply(y, below), below]
