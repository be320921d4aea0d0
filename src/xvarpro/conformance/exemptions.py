"""Exemptions: wider tolerances where a framework is known to be less exact, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Exemption:
    """A tolerance that is wider for one backend.

    Attributes
    ----------
    backend : str
    address : str
        Pattern of the checks and cases, as in ``"derivatives/functions/by svd"``.
    dtype : str
        The precision, or ``"*"``.
    factor : float
        How many times as wide.
    reason : str
        What in the framework is less exact, with a source.
    """

    backend: str
    address: str
    dtype: str
    factor: float
    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError(
                f"an exemption must have a reason; got {self.reason!r} for {self.backend} {self.address}; state one"
            )

    def covers(self, backend: str, address: str, dtype: str) -> bool:
        return self.backend == backend and fnmatchcase(dtype, self.dtype) and fnmatchcase(address, self.address)


BUILT_IN: tuple[Exemption, ...] = ()  # no framework that the package has an adapter for needs one
