"""How a case is written down, and the arrays that many share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A signature of one function of the standard, and the arrays that it is called with.

    Attributes
    ----------
    fun : callable
        ``fun(xp, *args)``, written with the functions of the standard: one array, or a tuple or list of them.
    args : tuple of arrays
    strict : bool
        False where the standard does not ask for the signature, and array-api-strict refuses it.
    oracle : callable, optional
        The same for Torch, where `array_api_compat.torch` has no such function or a different one.
    smooth : bool
        False at a tie or a kink: a derivative does not exist there, and frameworks choose one each.
    """

    fun: Callable[..., Any]
    args: tuple[np.ndarray, ...]
    strict: bool = True
    oracle: Callable[..., Any] | None = None
    smooth: bool = True


CASES: dict[str, list[Case]] = {}
rng = np.random.default_rng(20241201)


def case(name: str, fun: Callable[..., Any], *args: Any, **how: Any) -> None:
    CASES.setdefault(name, []).append(Case(fun, tuple(np.asarray(a) for a in args), **how))


def find(xp: Any, name: str) -> Any:
    for prefix in ("linalg_", "fft_"):
        if name.startswith(prefix):
            return getattr(getattr(xp, prefix[:-1]), name[len(prefix) :])
    return getattr(xp, name)


def each(name: str, signatures: list[dict[str, Any]], *args: Any, **how: Any) -> None:
    """One case per set of keyword arguments."""
    for options in signatures:
        case(name, lambda xp, *xs, name=name, options=options: find(xp, name)(*xs, **options), *args, **how)


def normal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape)


def cnormal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def spd(*shape: int, make: Callable[..., np.ndarray] = normal) -> np.ndarray:
    A = make(*shape)
    return A @ np.conj(np.swapaxes(A, -1, -2)) + 3 * np.eye(shape[-1])


def hermitian(xp: Any, A: Any) -> Any:
    AH = xp.matrix_transpose(A)
    return 0.5 * (A + (xp.conj(AH) if xp.isdtype(A.dtype, "complex floating") else AH))


def real(xp: Any, *zs: Any) -> Any:
    """Real and imaginary parts as the outputs, so that both are seen."""
    return tuple(part(z) for z in zs for part in (xp.real, xp.imag))


UNIT = rng.uniform(0.2, 0.8, (3, 4))
SIGNED = normal(3, 4) + 0.1
COMPLEX = cnormal(3, 4)
TIES = np.array([[1.0, 2.0, 2.0], [3.0, 3.0, -1.0], [0.5, 0.5, 0.5]])
ZEROS = np.array([[0.0, 2.0, -3.0], [0.0, 0.0, 4.0], [1.5, 2.5, 0.5]])
CUBE = normal(2, 3, 4)
