"""Functions of one problem, mapped over many at once: arrays with a hidden leading axis, and a rule for each kind.

A rule calls the function of the namespace below, raw or a tape, with the axis in sight. So mapping is inside of
differentiation, and needs no derivatives of its own. What has no rule here, or a value for each problem where Python
asks for one, raises `NoBatchError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xvarpro.backends.tape.engine import Ground, Tape, TracedArray, several
from xvarpro.backends.tape.errors import NoBatchError
from xvarpro.backends.tape.namespace import LIKE
from xvarpro.backends.tape.rules.indexing import SLOT
from xvarpro.backends.tape.rules.table import CONSTANT, PRIMITIVES, SIMPLE
from xvarpro.core.namespace import TRACED, device
from xvarpro.core.struct import Array


class MappedArray(TracedArray):
    """An array of each problem, by its index 0, which is the place of the hidden axis; or None: one of all problems."""

    __slots__ = ()

    def __init__(self, value: Any, tape: Any, index: int | None) -> None:
        super().__init__(value, tape, index)
        if index is not None:
            self.shape = value.shape[1:]


TRACED.add(MappedArray)


class Mapped(Tape):
    """The namespace of mapped arrays: what is composed of other functions is inherited, all else is from `RULES`."""

    __slots__ = ("size",)

    def __init__(self, below: Ground | Tape, size: int) -> None:
        super().__init__(below)
        self.size = size

    def _lift(self, x: Any) -> TracedArray:
        return x if type(x) is MappedArray and x.tape is self else MappedArray(x, self, None)

    def _value(self, x: Any) -> Any:
        return x.value if type(x) is MappedArray else x

    def _untraced(self, x: TracedArray) -> Any:
        raise NoBatchError("a function of NumPy arrays, which knows of one problem")

    def _constant(self, y: Any) -> Any:
        return self._wrapped(y, None)

    def _wrapped(self, y: Any, index: int | None) -> Any:
        if isinstance(y, (tuple, list)):
            return several(y, [MappedArray(v, self, index) for v in y])
        return MappedArray(y, self, index)

    def _shared(self, x: Any) -> Any:
        """The value of what must be the same for all problems."""
        if type(x) is MappedArray and x.index is not None:
            raise NoBatchError("an index, an axis or an option of each problem")
        return self._value(x)

    def _whole(self, x: Any) -> Array:
        """The value with its leading axis."""
        return x.value if x.index == 0 else self.below.broadcast_to(x.value, (self.size, *x.shape))

    def _raised(self, x: Any, rank: int) -> Any:
        """The value of an operand, which broadcasts against those of so many axes and the hidden one."""
        if type(x) is not MappedArray or x.index is None or x.ndim >= rank:
            return self._value(x)
        return self.below.reshape(x.value, (self.size, *(1,) * (rank - x.ndim), *x.shape))


def vmap(below: Ground | Tape, fun: Callable[..., Any], mapped: Sequence[Any], shared: Sequence[Any] = ()) -> Any:
    """What ``fun(*entries, *shared)`` returns for the entries of `mapped` along the first axis, stacked.

    Raises
    ------
    NoBatchError
        Something in it is for one problem alone.
    """
    for x in (*mapped, *shared):
        if isinstance(x, TracedArray) and x.tape.level > below.level:
            below = x.tape
    tape = Mapped(below, mapped[0].shape[0])
    try:
        returned = fun(*(MappedArray(x, tape, 0) for x in mapped), *map(tape._held, shared))
        return tuple(tape._whole(tape._lift(y)) for y in returned)
    except Exception as error:  # of whatever kind: one problem after the other, it comes again or was no error
        raise NoBatchError(str(error).partition(": ")[0]) from error


# ------------------------------------------------------------------------------------------------------- rules

Rule = Callable[..., Any]  # rule(tape, fun of the namespace below, *operands, *rest, **options) -> value, or an array
RULES: dict[str, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    """Enter the rule of some functions, of which an operand or more is mapped; it finds no mapped array elsewhere."""

    def enter(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), rule))
        return rule

    return enter


def _behind(axis: Any, ndim: int) -> Any:
    """The axes of an `axis` argument, None for all of them, with the hidden axis in front."""
    if not isinstance(axis, int):
        return tuple(_behind(i, ndim) for i in (range(ndim) if axis is None else axis))
    if not -ndim <= axis < ndim:
        raise NoBatchError(f"axis {axis} of an array with {ndim}")
    return axis % ndim + 1


def _check(axes: int, *arrays: Any) -> None:
    """Check that the hidden axis is not taken for one of those that a function needs."""
    if min(x.ndim for x in arrays) < axes:
        raise NoBatchError(f"an array with fewer than {axes} axes")


# what a newcomer in these tables is until it has another rule
@rule(" ".join((*SIMPLE, *CONSTANT, *LIKE, "real imag where _clip _cast _smooth")))
def _elementwise(tape: Mapped, fun: Rule, *operands: Any, **options: Any) -> Array:
    rank = max(x.ndim for x in operands if type(x) is MappedArray)
    return fun(*(tape._raised(x, rank) for x in operands), **options)


def _over(default: Any, name: str = "axis") -> Rule:
    """A function along axes, all of them for None."""

    def along(tape: Mapped, fun: Rule, x: Any, *rest: Any, **options: Any) -> Any:
        axis = _behind(options.pop(name, default), x.ndim)
        return fun(x.value, *rest, **{name: axis}, **options)

    return along


rule("sum mean var std max min all any count_nonzero flip _norm2 _norm")(_over(None))
rule("fft_fftn fft_ifftn fft_rfftn fft_irfftn fft_fftshift fft_ifftshift")(_over(None, "axes"))
rule("argsort")(_over(-1))
rule("unstack")(_over(0))


@rule("argmax argmin roll cumulative_sum cumulative_prod")
def _line(tape: Mapped, fun: Rule, x: Any, *rest: Any, axis: Any = None, **options: Any) -> Array:
    if axis is None and x.ndim != 1:
        raise NoBatchError("all entries of an array in one line")
    return fun(x.value, *rest, axis=_behind(0 if axis is None else axis, x.ndim), **options)


@rule("_prod _add_rows")
def _last(tape: Mapped, fun: Rule, x: Any, *rest: Any) -> Array:
    *others, axis = map(tape._shared, rest)
    return fun(x.value, *others, _behind(axis, x.ndim))


@rule("vecdot linalg_cross")
def _pair(tape: Mapped, fun: Rule, a: Any, b: Any, *, axis: int = -1) -> Array:
    if not -min(a.ndim, b.ndim) <= axis < 0:
        raise NoBatchError(f"axis {axis} of two arrays")
    return _elementwise(tape, fun, a, b, axis=axis)


@rule("_concat take_along_axis")
def _joined(tape: Mapped, fun: Rule, *arrays: Any, axis: int = -1) -> Array:
    return fun(*map(tape._whole, arrays), axis=_behind(axis, arrays[0].ndim))


@rule("_stack")
def _stack(tape: Mapped, fun: Rule, *arrays: Any, axis: int) -> Array:
    return fun(*map(tape._whole, arrays), axis=_behind(axis, arrays[0].ndim + 1))


@rule("reshape")
def _reshape(tape: Mapped, fun: Rule, x: Any, shape: Any, **options: Any) -> Array:
    return fun(x.value, (tape.size, *((shape,) if isinstance(shape, int) else shape)), **options)


@rule("broadcast_to")
def _broadcast_to(tape: Mapped, fun: Rule, x: Any, shape: Any) -> Array:
    return fun(tape._raised(x, len(shape)), (tape.size, *shape))


@rule("expand_dims")
def _expand_dims(tape: Mapped, fun: Rule, x: Any, axis: Any = 0) -> Array:
    return fun(x.value, axis=_behind(axis, x.ndim + (1 if isinstance(axis, int) else len(axis))))


@rule("squeeze")
def _squeeze(tape: Mapped, fun: Rule, x: Any, axis: Any) -> Array:
    return fun(x.value, axis=_behind(axis, x.ndim))


@rule("permute_dims")
def _permute_dims(tape: Mapped, fun: Rule, x: Any, axes: Any) -> Array:
    return fun(x.value, (0, *_behind(axes, x.ndim)))


@rule(
    "matrix_transpose tril triu linalg_diagonal linalg_inv linalg_det linalg_slogdet linalg_pinv linalg_cholesky "
    "linalg_eigh linalg_matrix_rank _qr _svd"
)
def _matrices(tape: Mapped, fun: Rule, x: Any, *rest: Any, **options: Any) -> Any:
    _check(2, x)
    return fun(x.value, *rest, **options)


@rule("matmul")
def _matmul(tape: Mapped, fun: Rule, a: Any, b: Any) -> Any:
    _check(1, a, b)
    # a vector of each problem and a matrix of all: one product
    if a.ndim == 1 and b.index is None and b.ndim == 2:
        return fun(a.value, b.value)
    if b.ndim == 1 and a.index is None and a.ndim == 2:
        return fun(b.value, tape.below.matrix_transpose(a.value))
    if b.ndim == 1:
        return tape.matmul(a, tape.expand_dims(b, axis=1))[..., 0]
    return tape.matmul(tape.expand_dims(a, axis=0), b)[..., 0, :] if a.ndim == 1 else _elementwise(tape, fun, a, b)


@rule("linalg_solve")
def _solve(tape: Mapped, fun: Rule, A: Any, b: Any) -> Any:
    _check(2, A)
    return tape.linalg_solve(A, b[:, None])[..., 0] if b.ndim == 1 else _elementwise(tape, fun, A, b)


@rule("_slice")
def _slice(tape: Mapped, fun: Rule, x: Any, key: Any) -> Array:
    return fun(x.value, (slice(None), *key))


@rule("_gather")
def _gather(tape: Mapped, fun: Rule, x: Any, *keys: Any, layout: Any) -> Array:
    """With keys that come first, one more in front for the problems; others, which must be shared, behind a slice."""
    at = [i for i, k in enumerate(layout) if k is SLOT or isinstance(k, int)]
    if at[-1] - at[0] != len(at) - 1:
        raise NoBatchError("a key with arrays apart")  # their axes would come before the hidden one
    if at[0] or any(tape.isdtype(k.dtype, "bool") for k in keys):
        return fun(tape._whole(x), *map(tape._shared, keys), layout=(slice(None), *layout))
    rank = max(k.ndim for k in keys)
    values = [tape._raised(k, rank) for k in keys]
    if x.index is None:
        return fun(x.value, *values, layout=layout)
    problems = tape.below.arange(tape.size, device=device(x.value))
    return fun(x.value, tape.below.reshape(problems, (-1, *(1,) * rank)), *values, layout=(SLOT, *layout))


@rule("_rows")
def _rows(tape: Mapped, fun: Rule, x: Any, indices: Any, axis: int) -> Any:
    if indices.index is None:
        return _last(tape, fun, x, indices, axis)
    return tape.moveaxis(tape.moveaxis(x, axis, 0)[indices], 0, axis)


@rule("searchsorted")
def _searchsorted(tape: Mapped, fun: Rule, x: Any, v: Any, **options: Any) -> Array:
    return fun(tape._shared(x), v.value, **options)


@rule("nonzero isin _repeat_index _place _scatter")
def _none(tape: Mapped, fun: Rule, *args: Any, **options: Any) -> Any:
    raise NoBatchError("nonzero, isin, or as many copies as each problem says")


OPERANDS = {
    **{name: len(slopes) for name, slopes in SIMPLE.items()},
    **{name: entry.operands for name, entry in PRIMITIVES.items()},
    **dict.fromkeys((*LIKE, "_cast_to_steps"), 1),
}


def _method(name: str, rule: Rule) -> Callable[..., Any]:
    operands = OPERANDS.get(name)

    def method(self: Mapped, *args: Any, **options: Any) -> Any:
        count = len(args) if operands is None else operands
        arrays, fun = list(map(self._held, args[:count])), getattr(self.below, name)
        rest, options = list(map(self._shared, args[count:])), {k: self._shared(x) for k, x in options.items()}
        if all(type(x) is not MappedArray or x.index is None for x in arrays):
            return self._constant(fun(*map(self._value, arrays), *rest, **options))
        y = rule(self, fun, *arrays, *rest, **options)
        return y if type(y) is MappedArray else self._wrapped(y, 0)

    return method


for _name, _rule in RULES.items():
    setattr(Mapped, _name, _method(_name, _rule))
