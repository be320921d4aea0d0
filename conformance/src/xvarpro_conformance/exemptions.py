"""Exemptions: wider tolerances where a framework is known to be less exact, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Exemption:
    """A tolerance that is wider for one backend.

    Attributes
    ----------
    address : str
        Pattern of the checks and cases, as in ``"arithmetic/elementwise functions/log1p"``.
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
