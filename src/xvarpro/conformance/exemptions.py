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
        Pattern of the checks and cases, as in ``"arithmetic/elementwise functions/log1p"``.
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


BUILT_IN: tuple[Exemption, ...] = (
    Exemption(
        "jax",
        "arithmetic/elementwise functions/log1p",
        "float64",
        20.0,
        "XLA's log1p on processors is off by up to 120 eps near 1 - sqrt(2), where it goes over to a series",
    ),
    Exemption(
        "jax",
        "arithmetic/elementwise functions/atanh",
        "float64",
        12.0,
        "XLA's atanh is made of its log1p, and off by up to 73 eps near sqrt(2) - 1",
    ),
    Exemption(
        "jax",
        "arithmetic/complex functions/log",
        "float64",
        4.0,
        "XLA's complex log takes the logarithm of the modulus by its log1p, and is off by up to 93 eps",
    ),
    Exemption(
        "jax",
        "arithmetic/what is not a number/extremes of 5000",
        "float*",
        1e16,
        "XLA's max and min on processors pass over NaN where they reduce 4,096 entries or more",
    ),
)
