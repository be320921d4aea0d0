"""The table of rules: how a rule is written down, and the helpers that rules share.

A rule says what a gradient becomes on its way back through one function. Rules use functions of the array
API standard only, so a backward pass can itself be traced. Names with an underscore are the tape's own: parts
of a function, or a transpose of indexing, which the standard lacks (see `indexing`).

An underscore before a parameter says that the rule does not read the entries of that array: the tape then
keeps the shape and the dtype of an operand and drops the array, or drops the result altogether. What it keeps is raw:
where the gradient is traced, write such an array right of an operator, or call a function of `xp`.

Complex numbers: the gradient of a real L is dL/dRe + i dL/dIm (PyTorch's convention; JAX's is its conjugate).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from xvarpro.core.namespace import complex_dtype
from xvarpro.core.struct import Array


class Namespace(Protocol):
    """An array-API namespace with its extensions' functions as ``linalg_qr``: a `Ground`, or a `Tape` on one."""

    def __getattr__(self, name: str, /) -> Any: ...
    def __hash__(self) -> int: ...


class Like(NamedTuple):
    """Shape and dtype of an operand whose entries no rule reads."""

    shape: tuple[int, ...]
    dtype: Any


class Primitive(NamedTuple):
    """A function the tape records, and its rule.

    With one operand the rule is `rule(xp, g, y, x, *rest, **options)` and returns the gradient of x. With
    several it is `rule(xp, need, g, y, *operands, *rest, **options)` and returns one gradient for each position
    in `need`. `y` is the result; for a function with several results `g` and `y` are tuples, and an entry of
    `g` is None where no gradient arrived.
    """

    rule: Callable[..., Any]
    operands: int | None  # the first so many positional arguments are arrays; None: all of them
    keeps_result: bool
    keeps: tuple[bool, ...]  # which operands the rule reads
    keeps_rest: bool  # whether it reads those after them (with `operands` None)


class Composite(NamedTuple):
    """A function written with other functions of the traced namespace, so that it needs no rule."""

    definition: Callable[..., Any]
    operands: int  # the first so many positional arguments are lifted into the trace


SIMPLE: dict[str, tuple[Any, ...]] = {}
PRIMITIVES: dict[str, Primitive] = {}
COMPOSITES: dict[str, Composite] = {}
CONSTANT: set[str] = set()
FORWARD: dict[str, Callable[..., Any]] = {}


def simple(name: str, *derivatives: Callable[..., Any] | None) -> None:
    """Enter a function without options, of one array or of two.

    The rule of one array is `d(xp, g, y, x)`; of two, `d(xp, g, y, a, b)` for each, where None marks an operand
    that the function depends on through steps only, and the tape undoes broadcasting. An operand with an underscore
    arrives as None.
    """
    SIMPLE[name] = derivatives


def primitive(
    name: str, *, operands: int | None = 1, forward: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a rule. `forward(xp, ...)` is given for functions that are not the standard's own."""

    def enter(rule: Callable[..., Any]) -> Callable[..., Any]:
        reads_result, *reads = reads_of(rule)[2 if operands == 1 else 3 :]
        keeps = tuple(reads[:-1] if operands is None else reads[:operands])
        PRIMITIVES[name] = Primitive(rule, operands, reads_result, keeps, operands is None and reads[-1])
        if forward is not None:
            FORWARD[name] = forward
        return rule

    return enter


def composite(name: str, *, operands: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function written with other functions of the namespace it gets as first argument."""

    def enter(definition: Callable[..., Any]) -> Callable[..., Any]:
        COMPOSITES[name] = Composite(definition, operands)
        return definition

    return enter


def constant(names: str) -> None:
    """Enter functions that are constant wherever they have a derivative: evaluated, never recorded."""
    CONSTANT.update(names.split())


def reads_of(rule: Callable[..., Any]) -> list[bool]:
    """Tell which positional parameters a rule reads, and last `*args`: those named without an underscore."""
    code = rule.__code__
    names = list(code.co_varnames[: code.co_argcount])
    if code.co_flags & 0x04:
        names.append(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
    return [not n.startswith("_") for n in names]


# ------------------------------------------------------------------------------------------------- helpers


def conj(xp: Namespace, x: Array) -> Array:
    """Conjugate; a real array, which the standard refuses, comes back as it is."""
    try:
        dtype = x.dtype
    except AttributeError:  # a Python number
        return x.conjugate()  # type: ignore[attr-defined]
    return xp.conj(x) if complex_dtype(dtype) else x


def transpose(xp: Namespace, A: Array) -> Array:
    """A^T on the last two axes."""
    return A.T if A.ndim == 2 else xp.matrix_transpose(A)


def adjoint(xp: Namespace, A: Array) -> Array:
    """A^H on the last two axes."""
    return conj(xp, transpose(xp, A))


def match(xp: Namespace, g: Array, like: Array) -> Array:
    """Bring `g` to the dtype of the operand: the transpose of the promotion that the function made."""
    if g.dtype == like.dtype:
        return g
    if complex_dtype(g.dtype) and not complex_dtype(like.dtype):
        g = xp.real(g)
    return g if g.dtype == like.dtype else xp.astype(g, like.dtype)


def unbroadcast(xp: Namespace, g: Array, like: Array) -> Array:
    """Transpose of broadcasting (a sum) and of promotion."""
    shape = like.shape
    if g.shape != shape:
        extra = len(g.shape) - len(shape)
        if extra:
            g = xp.sum(g, axis=tuple(range(extra)))
        stretched = tuple([i for i, (m, n) in enumerate(zip(g.shape, shape, strict=True)) if m != n])
        if stretched:
            g = xp.sum(g, axis=stretched, keepdims=True)
    return g if g.dtype == like.dtype else match(xp, g, like)


def axes_of(axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Return the axes meant by an `axis` argument, counted from the front."""
    if axis is None:
        return tuple(range(ndim))
    return (axis % ndim,) if isinstance(axis, int) else tuple([i % ndim for i in axis])


def spread(xp: Namespace, v: Array, like: Array, axis: Any, keepdims: bool) -> Array:
    """Give a reduced array its reduced axes back, with length 1."""
    if keepdims:
        return v
    shape = list(like.shape)
    for i in range(len(shape)) if axis is None else (axis,) if isinstance(axis, int) else axis:
        shape[i] = 1
    return xp.reshape(v, tuple(shape))


def nonzero_or_one(xp: Namespace, x: Array) -> Array:
    """Make a divisor safe at 0; the quotient must be 0 there by its numerator."""
    return xp.where(x == 0, xp.ones_like(x), x)


def along(ndim: int, axis: int, item: Any) -> tuple[Any, ...]:
    """Make the key that applies `item` to one axis and takes all of the others."""
    return (slice(None),) * (axis % ndim) + (item, ...)
