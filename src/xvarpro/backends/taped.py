"""Derivatives for frameworks that have none: the package's own tape over their array-API namespace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from xvarpro.backends import tape
from xvarpro.backends.eager import EagerBackend
from xvarpro.backends.protocol import Array, Pullback


class TapedBackend(EagerBackend):
    """NumPy, CuPy and array-api-strict."""

    autodiff = "tape"

    @abstractmethod
    def index_add(self, x: Array, key: Any, v: Array) -> Array:
        """`x` with `v` added at an integer-array key; repeated indices accumulate; `x` itself is not changed."""

    def vjp(
        self, fun: Callable[..., tuple[Array, ...]], primals: tuple[Array, ...], constants: tuple[Array, ...] = ()
    ) -> tuple[tuple[Array, ...], Pullback]:
        return tape.vjp(fun, primals, constants, xp=self.xp, index_add=self.index_add)

    def jvp(
        self,
        fun: Callable[..., tuple[Array, ...]],
        primals: tuple[Array, ...],
        tangents: tuple[Array, ...],
        constants: tuple[Array, ...] = (),
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        return tape.jvp(fun, primals, tangents, constants, xp=self.xp, index_add=self.index_add)
