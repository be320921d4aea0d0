"""Numbers of a hundred digits: NumPy's arrays of mpmath's numbers, on which a user's functions run as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from xvarpro_conformance.suite import Inapplicable


@cache
def numbers() -> Any:
    """A context of mpmath's of its own: the precision of others stays."""
    try:
        from mpmath import MPContext
    except ImportError as error:
        raise Inapplicable("compared with mpmath, which is not installed: pip install 'xvarpro[cli]'") from error
    context = MPContext()
    context.dps = 100
    return context


def rounded(x: Any) -> np.ndarray:
    """The nearest numbers in double precision."""
    flat = [complex(v) for v in np.asarray(x, object).ravel()]
    is_complex = any(isinstance(v, numbers().mpc | complex) for v in np.asarray(x, object).ravel())
    return np.array(flat if is_complex else [v.real for v in flat]).reshape(np.shape(x))


class Digits(np.ndarray):
    """An array of mpmath's numbers, on which NumPy's functions are those of mpmath; an entry is an array of no axis."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        plain = [np.asarray(x, dtype=object) for x in inputs]
        if method == "__call__" and ufunc.__name__ in _FUNCTIONS:
            found: Any = np.frompyfunc(getattr(numbers(), _FUNCTIONS[ufunc.__name__]), 1, 1)(*plain)
        else:
            found = getattr(ufunc, method)(*plain, **keywords)
        return found if np.asarray(found).dtype == bool else _digits(found)

    def __array_function__(self, fun: Callable[..., Any], types: Any, args: Any, keywords: Any) -> Any:
        if fun in _DECOMPOSITIONS:
            return _DECOMPOSITIONS[fun](*args)
        return super().__array_function__(fun, types, args, keywords)

    def __getitem__(self, key: Any) -> Any:
        return _digits(super().__getitem__(key))


_FUNCTIONS = {name: name for name in ("exp", "log", "sin", "cos", "tanh", "sqrt")}


def _digits(x: Any) -> Digits:
    return np.asarray(x, dtype=object).view(Digits)


def digits(x: np.ndarray) -> Any:
    """The numbers of an array as they are; what is no float stays."""
    x = np.asarray(x)
    number = {"f": numbers().mpf, "c": numbers().mpc}.get(x.dtype.kind)
    return x if number is None else _digits(np.frompyfunc(number, 1, 1)(x.astype(object)))


def real(x: Any) -> Any:
    """Real parts."""
    return _digits(np.frompyfunc(numbers().re, 1, 1)(np.asarray(x, dtype=object)))


def solution(H: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``H^-1 b`` for a positive definite H, which needs no pivots; b of shape (n,) or (n, k)."""
    n = len(H)
    T = np.concatenate([H, b.reshape(n, -1)], axis=1)
    for i in range(n):
        T[i, i + 1 :] = T[i, i + 1 :] / T[i : i + 1, i]
        others = np.arange(n) != i  # what is left of the next column is never read
        T[others, i + 1 :] = T[others, i + 1 :] - T[others, i : i + 1] * T[i : i + 1, i + 1 :]
    return T[:, n:].reshape(b.shape)


# -- decompositions, of which a model may be a function ----------------------------------------------------------------


def _matrix(A: Any) -> Any:
    return numbers().matrix(np.asarray(A).tolist())


def _back(A: Any) -> Digits:
    return _digits([[A[i, j] for j in range(A.cols)] for i in range(A.rows)])


def _qr(A: Any, mode: str = "reduced") -> tuple[Digits, Digits]:
    Q, R = numbers().qr(_matrix(A), mode="skinny")
    return _back(Q), _back(R)


def _svd(A: Any, full_matrices: bool = True) -> tuple[Digits, Digits, Digits]:
    U, s, V = numbers().svd(_matrix(A))
    return _back(U), _digits(list(s)), _back(V)


_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {np.linalg.qr: _qr, np.linalg.svd: _svd}
