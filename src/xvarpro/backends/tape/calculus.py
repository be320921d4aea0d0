"""`vjp`: what the tape is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xvarpro.backends.tape.array import TracedArray
from xvarpro.backends.tape.engine import Tape, base
from xvarpro.backends.tape.rules.table import Namespace
from xvarpro.core.struct import Array


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
        Arrays without a gradient. They become arrays of the same namespace as the primals, so that the
        function never mixes two. What is not an array is handed over as it is.
    xp : namespace
        The raw array API namespace. Inside another `vjp`, the namespace of its traced arrays is taken.
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
    arrays: tuple[Any, ...] = (*primals, *constants)
    traces = [x.tape for x in arrays if type(x) is TracedArray]
    tape = Tape(max((base(xp, index_add), *traces), key=lambda below: below.level))
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
        _check(cotangents, [place[1:] for place in places])
        traces = [g.tape for g in cotangents if isinstance(g, TracedArray)]
        xp = max((tape.below, *traces), key=lambda ns: ns.level)
        seeds = [(i, g) for (i, _, _), g in zip(places, cotangents, strict=True) if i is not None]
        gradients = tape._pull(seeds, xp)
        # the leaves are the first nodes
        return tuple(
            xp.zeros_like(x) if g is None else g if type(g) is type(x) or isinstance(g, TracedArray) else xp.asarray(g)
            for x, g in zip(primals, gradients, strict=False)
        )

    return pullback


def _check(cotangents: tuple[Array, ...], outputs: list[tuple[tuple[int, ...], Any]]) -> None:
    if len(cotangents) != len(outputs):
        raise ValueError(f"one cotangent for each output: {len(outputs)} outputs, got {len(cotangents)}")
    for g, (shape, dtype) in zip(cotangents, outputs, strict=True):
        if not hasattr(g, "dtype"):
            raise TypeError(f"a cotangent must be an array, got {type(g).__name__}: use xp.ones_like(output)")
        if tuple(g.shape) != shape:
            raise ValueError(f"a cotangent must have the shape of its output, {shape}, got {tuple(g.shape)}")
        if g.dtype != dtype:
            raise TypeError(f"a cotangent must have the dtype of its output, {dtype}, got {g.dtype}")
