"""The tape: a namespace that records, and its transpose.

A `Tape` is the namespace the model sees. It stands on a raw namespace (`Ground`) or on another tape, which is how
a backward pass is differentiated: the rules then call the functions of the lower tape.

Nothing a tape refers to refers back to it: traced arrays point at their tape, nodes hold values only. So the
recorded arrays go with the last reference to the pull-back, without waiting for the cycle collector; a cycle here
once cost a factor of two in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any


from xvarpro.backends.tape.array import TracedArray
from xvarpro.backends.tape.errors import NoRuleError
from xvarpro.backends.tape.namespace import PASSED_ON, install
from xvarpro.backends.tape.rules.table import FORWARD, Array, Like, Namespace, is_inexact

_SCALARS = (float, int, complex, bool)
_EXTENSIONS = ("linalg_", "fft_")


class Ground:
    """A raw namespace, each function looked up once, and the transposes of indexing that the standard lacks."""

    level = 0

    def __init__(self, xp: Namespace, index_add: Callable[..., Array]) -> None:
        self.xp = xp
        self.index_add = index_add
        self.__name__ = xp.__name__

    def __getattr__(self, name: str) -> Any:
        found = self._find(name)
        self.__dict__[name] = found
        return found

    def _find(self, name: str) -> Any:
        if name in FORWARD:
            return partial(FORWARD[name], self.xp)
        for prefix in _EXTENSIONS:
            if name.startswith(prefix):
                return getattr(getattr(self.xp, prefix[:-1]), name[len(prefix) :])
        return getattr(self.xp, name)

    def _scatter(self, v: Array, positions: Array, shape: tuple[int, ...]) -> Array:
        """Zeros of a shape with the entries of `v` added at flat positions, which may repeat."""
        xp = self.xp
        size = 1
        for n in shape:
            size *= n
        zeros = xp.zeros((size,), dtype=v.dtype, device=v.device)
        return xp.reshape(self.index_add(zeros, positions, v), shape)

    def _add_rows(self, v: Array, indices: Array, rows: int, axis: int) -> Array:
        """Zeros with `rows` places along an axis and the slices of `v` added at `indices`, which may repeat."""
        xp = self.xp
        v = xp.moveaxis(v, axis, 0)
        zeros = xp.zeros((rows, *v.shape[1:]), dtype=v.dtype, device=v.device)
        return xp.moveaxis(self.index_add(zeros, indices, v), 0, axis)


@lru_cache(maxsize=64)
def _ground(xp: Namespace, index_add: Callable[..., Array]) -> Ground:
    return Ground(xp, index_add)


class Extension:
    """The `linalg` or `fft` namespace of a tape."""

    __slots__ = ("_prefix", "_tape")

    def __init__(self, tape: Tape, prefix: str) -> None:
        self._tape = tape
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, self._prefix + name)


class Tape:
    """The traced namespace; its functions are installed on the class, from the tables."""

    __slots__ = ("__weakref__", "below", "level", "nodes")

    def __init__(self, below: Ground | Tape) -> None:
        self.below = below
        self.level = below.level + 1
        self.nodes: list[Any] = []

    # array_api_compat.array_namespace compares namespaces by name: with the raw one's, a call that mixes raw and
    # traced arrays would silently get the raw namespace
    @property
    def __name__(self) -> str:
        return f"xvarpro.tape{self.level}[{self.below.__name__}]"

    def __repr__(self) -> str:
        return f"<traced namespace {self.__name__}>"

    @property
    def linalg(self) -> Extension:
        return Extension(self, "linalg_")

    @property
    def fft(self) -> Extension:
        return Extension(self, "fft_")

    def __getattr__(self, name: str) -> Any:
        if name in PASSED_ON:
            return getattr(self.below, name)
        for prefix in _EXTENSIONS:
            if name.startswith(prefix):
                name = f"{prefix[:-1]}.{name[len(prefix) :]}"
        raise NoRuleError(name)

    # -------------------------------------------------------------------------------------- values in and out

    def _lift(self, x: Any) -> TracedArray:
        """`x` as an array of this tape; one from elsewhere is a constant here."""
        if type(x) is TracedArray:
            if x.tape is self:
                return x
            if x.tape.level >= self.level:
                raise TypeError(
                    "an array of one trace met the namespace of another: inside vjp use only the function's own "
                    "arguments and what they were made of, and pass everything else as constants"
                )
        elif not hasattr(x, "dtype"):
            raise TypeError(f"expected an array, got {type(x).__name__}: convert it with xp.asarray")
        return TracedArray(x, self, None)

    def _operand(self, x: Any) -> Any:
        """The value of an operand that is not an array of this tape: a Python number stays one."""
        return x if type(x) in _SCALARS else self._lift(x).value

    def _value(self, x: Any) -> Any:
        return self._lift(x).value if type(x) is TracedArray else x

    def _constant(self, y: Any) -> Any:
        if isinstance(y, (tuple, list)):
            return tuple(TracedArray(v, self, None) for v in y)
        return TracedArray(y, self, None)

    def _input(self, x: Array) -> TracedArray:
        """A leaf: an array that gradients are asked for."""
        value = self._lift(x).value
        if not is_inexact(value.dtype):
            raise TypeError(f"gradients need floating-point arrays, got dtype {value.dtype}: pass it as a constant")
        self.nodes.append(None)
        return TracedArray(value, self, len(self.nodes) - 1)

    def _record(self, pull: Any, parents: Any, y: Any, kept: Any, operands: Any, extra: Any) -> Any:
        nodes = self.nodes
        if not isinstance(y, (tuple, list)):
            nodes.append((pull, parents, kept, operands, extra, 1))
            return TracedArray(y, self, len(nodes) - 1)
        # several results: the node stands at the last, where all of their gradients are known
        first = len(nodes)
        nodes.extend([None] * (len(y) - 1))
        nodes.append((pull, parents, kept, operands, extra, len(y)))
        return tuple(TracedArray(v, self, first + i) for i, v in enumerate(y))

    # -------------------------------------------------------------------------------------------- the transpose

    def _pull(self, seeds: list[tuple[int, Array]], xp: Ground | Tape) -> list[Array | None]:
        """Gradients at the leaves from gradients at recorded arrays, computed with the functions of `xp`."""
        nodes = self.nodes
        traced = isinstance(xp, Tape)
        gradients: list[Any] = [None] * len(nodes)
        for i, g in seeds:
            _add(gradients, i, xp._lift(g) if traced else g)
        for i in range(len(nodes) - 1, -1, -1):
            node = nodes[i]
            if node is None:
                continue
            pull, parents, y, operands, extra, results = node
            g = gradients[i] if results == 1 else tuple(gradients[i + 1 - results : i + 1])
            if g is None or (results > 1 and all(v is None for v in g)):
                continue
            gradients[i] = None
            if traced:
                y, operands = _lift_kept(xp, y), _lift_kept(xp, operands)
            for parent, d in zip(parents, pull(xp, g, y, operands, extra), strict=True):
                _add(gradients, parent, d)
        return gradients


def _add(gradients: list[Any], i: int, d: Array) -> None:
    before = gradients[i]
    gradients[i] = d if before is None else before + d


def _lift_kept(xp: Tape, kept: Any) -> Any:
    """What a node holds, as constants of the tape that the backward pass is recorded on."""
    if isinstance(kept, tuple):
        return tuple(_lift_kept(xp, v) for v in kept)
    return kept if kept is None or type(kept) is Like or type(kept) in _SCALARS else xp._lift(kept)


install(Tape)


def _base(xp: Namespace, index_add: Callable[..., Array]) -> Ground | Tape:
    return xp if isinstance(xp, Tape) else _ground(xp, index_add)


def vjp(
    fun: Callable[..., Any],
    primals: Sequence[Array],
    constants: Sequence[Array] = (),
    *,
    xp: Namespace,
    index_add: Callable[..., Array],
) -> tuple[Any, Callable[[Any], tuple[Array, ...]]]:
    """Evaluate `fun` and record how gradients go back through it.

    Parameters
    ----------
    fun : callable
        ``fun(*primals, *constants)``, written with ``xp = primals[0].__array_namespace__()``, gives one array or a
        tuple or list of arrays.
    primals : sequence of arrays
        Real or complex floating arrays, of any shapes.
    constants : sequence of arrays
        Arrays that no gradient is asked for. They become arrays of the same namespace as the primals, so that the
        function never mixes two. What is not an array is handed over as it is.
    xp : namespace
        The raw array API namespace, or a traced one inside another `vjp`.
    index_add : callable
        ``index_add(x, key, v)``: `x` with `v` added at a one-dimensional integer key of the first axis, where
        repeated indices accumulate. `x` must not be changed.

    Returns
    -------
    outputs : array, tuple or list of arrays
        Values, as `fun` returned them.
    pullback : callable
        ``pullback(cotangents)``, with the structure of `outputs`, gives one gradient for each primal, in its shape
        and dtype, and may be called again. Gradients may share memory with each other and with the cotangents: do
        not write to them. With complex numbers the gradient of a real L is dL/dRe + i dL/dIm.

    Raises
    ------
    NoRuleError
        If `fun` uses a function that the tape cannot differentiate; the message names it.
    TypeError, ValueError
        If `fun` leaves the traced namespace, or cotangents do not fit the outputs.

    Examples
    --------
    >>> import array_api_compat.numpy as np
    >>> def add(x, key, v):
    ...     x = x.copy()
    ...     np.add.at(x, key, v)
    ...     return x
    >>> def f(x, t):
    ...     xp = x.__array_namespace__()
    ...     return xp.sum(t * xp.square(x))
    >>> x, t = np.asarray([1.0, 2.0, 3.0]), np.asarray([1.0, 0.0, 1.0])
    >>> y, pullback = vjp(f, (x,), (t,), xp=np, index_add=add)
    >>> float(y)
    10.0
    >>> pullback(np.asarray(1.0))
    (array([2., 0., 6.]),)
    """
    tape = Tape(_base(xp, index_add))
    leaves = [tape._input(x) for x in primals]
    held = [tape._lift(c) if hasattr(c, "dtype") else c for c in constants]
    returned = fun(*leaves, *held)
    single = not isinstance(returned, (tuple, list))
    outputs = [tape._lift(y) for y in ((returned,) if single else returned)]
    return _values(outputs, returned), _pullback(tape, outputs, [x.value for x in leaves], single)


def _values(outputs: list[TracedArray], returned: Any) -> Any:
    values = [y.value for y in outputs]
    if not isinstance(returned, (tuple, list)):
        return values[0]
    return values if isinstance(returned, list) else tuple(values)


def _pullback(
    tape: Tape, outputs: list[TracedArray], primals: list[Array], single: bool
) -> Callable[[Any], tuple[Array, ...]]:
    # places and shapes only: holding the outputs would keep their arrays as long as the pull-back
    places = [(y.index, tuple(y.shape), y.dtype) for y in outputs]

    def pullback(cotangents: Any) -> tuple[Array, ...]:
        cotangents = (cotangents,) if single else tuple(cotangents)
        _check(cotangents, [place[1:] for place in places], "cotangent", "output")
        traces = [g.tape for g in cotangents if type(g) is TracedArray]
        xp = max((tape.below, *traces), key=lambda ns: ns.level)
        seeds = [(i, g) for (i, _, _), g in zip(places, cotangents, strict=True) if i is not None]
        gradients = tape._pull(seeds, xp)
        # the leaves are the first nodes
        return tuple(
            xp.zeros_like(x) if g is None else g if type(g) is type(x) or type(g) is TracedArray else xp.asarray(g)
            for x, g in zip(primals, gradients, strict=False)
        )

    return pullback


def _check(given: tuple[Array, ...], wanted: list[tuple[tuple[int, ...], Any]], what: str, of: str) -> None:
    if len(given) != len(wanted):
        raise ValueError(f"one {what} for each {of}: {len(wanted)} {of}s, got {len(given)}")
    for g, (shape, dtype) in zip(given, wanted, strict=True):
        if not hasattr(g, "dtype"):
            raise TypeError(f"a {what} must be an array, got {type(g).__name__}: use xp.ones_like({of})")
        if tuple(g.shape) != shape:
            raise ValueError(f"a {what} must have the shape of its {of}, {shape}, got {tuple(g.shape)}")
        if g.dtype != dtype:
            raise TypeError(f"a {what} must have the dtype of its {of}, {dtype}, got {g.dtype}")


def jvp(
    fun: Callable[..., Any],
    primals: Sequence[Array],
    tangents: Sequence[Array],
    constants: Sequence[Array] = (),
    *,
    xp: Namespace,
    index_add: Callable[..., Array],
) -> tuple[Any, Any]:
    """Evaluate `fun` and its derivative along `tangents`: the transpose of the pull-back, which is linear.

    Parameters
    ----------
    fun, primals, constants, xp, index_add
        As for `vjp`.
    tangents : sequence of arrays
        One for each primal, in its shape and dtype.

    Returns
    -------
    outputs, tangent outputs : array, tuple or list of arrays
        Both as `fun` returned them.

    Examples
    --------
    >>> import array_api_compat.numpy as np
    >>> x, v = np.asarray([3.0, 4.0]), np.asarray([1.0, 0.0])
    >>> y, dy = jvp(lambda x: x * x, (x,), (v,), xp=np, index_add=None)
    >>> dy
    array([6., 0.])
    """
    tangents = tuple(tangents)
    _check(tangents, [(tuple(x.shape), x.dtype) for x in primals], "tangent", "primal")
    outputs, pullback = vjp(fun, primals, constants, xp=xp, index_add=index_add)
    single = not isinstance(outputs, (tuple, list))
    base = _base(xp, index_add)
    zeros = [base.zeros_like(y) for y in ((outputs,) if single else outputs)]
    _, push = vjp(lambda *u: pullback(u[0] if single else u), zeros, xp=xp, index_add=index_add)
    moved = push(tangents)
    return outputs, moved[0] if single else type(outputs)(moved)
