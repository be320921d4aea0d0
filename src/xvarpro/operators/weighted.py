"""A design whose rows are scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from xvarpro._namespace import array_namespace
from xvarpro.protocols import Array, Operator


@final
@dataclass(frozen=True)
class Weighted(Operator):
    """Placeholder: merged from the branch of operators."""

    M: Any = None
    s: Array = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.M.shape

    @property
    def columns(self) -> int | None:
        return self.s.shape[1] if self.s.shape[1] > 1 else self.M.columns

    def matvec(self, w: Array) -> Array:
        return self.s * self.M.matvec(w)

    def rmatvec(self, r: Array) -> Array:
        return self.M.rmatvec(self.s * r)

    def outer(self, r: Array, w: Array) -> Operator:
        raise NotImplementedError

    def dense(self) -> Array:
        xp = array_namespace(self.s)
        return xp.expand_dims(self.s.mT, axis=-1) * self.M.dense()
