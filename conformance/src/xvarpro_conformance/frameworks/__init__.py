"""What the suite asks of a framework beyond its backend, a file for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, TypeAlias

import numpy as np

from xvarpro.backends import Backend
from xvarpro.core.struct import Array

Fixture: TypeAlias = Callable[[], tuple[Array, np.ndarray]]
NUMBERS = np.arange(6.0).reshape(2, 3) / 3  # digits that no shorter format holds


@dataclass(frozen=True)
class Exemption:
    """A tolerance that is wider for one backend.

    Attributes
    ----------
    address : str
        Pattern of the checks and cases, as in ``"derivatives/functions/by svd"``.
    dtype : str
        The precision, or ``"*"``.
    factor : float
        How many times as wide.
    reason : str
        What in the framework is less exact, with a source.
    """

    address: str
    dtype: str
    factor: float
    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError(f"an exemption must have a reason; got {self.reason!r} for {self.address}; state one")

    def covers(self, address: str, dtype: str) -> bool:
        return fnmatchcase(dtype, self.dtype) and fnmatchcase(address, self.address)


def usual(make: Callable[[np.ndarray], Array], dtypes: Iterable[str]) -> dict[str, Fixture]:
    """Arrays that every framework has, made of NumPy's: plain, with gaps, without axes, without entries, converted."""

    def made(values: np.ndarray) -> tuple[Array, np.ndarray]:
        return make(values.copy()), values

    return {
        "plain": lambda: made(NUMBERS),
        "every other entry": lambda: (make(np.repeat(NUMBERS, 2, axis=1))[:, ::2], NUMBERS),
        "0-d": lambda: made(np.array(1.5)),
        "empty": lambda: made(np.zeros((0, 3))),
        **{name: partial(made, NUMBERS.astype(name)) for name in dtypes},
    }


class Hooks:
    """What the suite asks of a framework beyond its backend; every member has a default.

    A backend of another package hands its own to the suite by a method ``suite_hooks()``, which imports them.

    Attributes
    ----------
    exemptions : tuple of Exemption
        Where the framework is less exact than the suite requires, and why.
    suite_devices : tuple of str
        Devices that the suite runs on by default, the first of them in both precisions and the others in
        one; where there are none, the first of `devices`.
    """

    exemptions: ClassVar[tuple[Exemption, ...]] = ()
    suite_devices: ClassVar[tuple[str, ...]] = ()

    def array_fixtures(self) -> dict[str, Fixture]:
        """Arrays that users of the framework have and that are not plain: views, rare dtypes, parts of a graph.

        Each name has a function that makes the array and its values. The suite moves them to every backend and back.
        """
        return {}

    def settings(self) -> dict[str, object]:
        """Settings of the framework that belong to the caller: nothing that the package does may change them."""
        return {}

    def modes(self) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """What a caller may have switched on around a solve, by name, as functions that make context managers.

        The suite solves inside each of them: the answer does not depend on them, and they are on afterwards.
        """
        return {}

    def transformed(self, fun: Callable[[Array], Array], x: Array, d: Array) -> tuple[Array, Array, Array] | None:
        """By the framework's own transformations, for each entry of x and d: three arrays; None where it has no such.

        They are ``fun(x)``, its derivative along d, and the gradient of ``<d, fun(x)>`` in reverse.
        """
        return None

    def hollow(self) -> dict[str, Array]:
        """Arrays that have no numbers in memory to compute with."""
        return {}

    def survives_fork(self) -> bool:
        """Whether a process that is forked now can compute; where it cannot, `scope` refuses to."""
        return True


BUILT_IN = {
    "numpy": "numpy:NumPyHooks",
    "torch": "torch:TorchHooks",
    "jax": "jax:JaxHooks",
    "cupy": "cupy:CuPyHooks",
    "array-api-strict": "strict:StrictHooks",
}


def hooks(backend: Backend) -> Hooks:
    """What the suite asks of a backend's framework: the backend's own, those of its name, or the defaults."""
    if (own := getattr(backend, "suite_hooks", None)) is not None:
        found: Hooks = own()
        return found
    if backend.name not in BUILT_IN:
        return Hooks()
    module, _, name = BUILT_IN[backend.name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), name)()
