"""Checks of numbers that several experiments take."""

from __future__ import annotations

import math

import numpy as np

from xvarpro.errors import ProblemError


def positive(**numbers: float) -> None:
    """Refuse what is not a finite number > 0."""
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ProblemError(f"{name} must be a finite number > 0, got {value}")


def whole(**numbers: int | None) -> None:
    """Refuse what is neither a whole number >= 1 nor None."""
    for name, value in numbers.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ProblemError(f"{name} must be a whole number >= 1, got {value!r}")


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is not known."""
    if value not in known:
        raise ProblemError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def generator(seed: int, *stream: int) -> np.random.Generator:
    """NumPy's generator for a seed >= 0: every backend starts from the same bits."""
    if seed < 0:
        raise ProblemError(f"seed must be >= 0, got {seed}")
    return np.random.default_rng([seed, *stream] if stream else seed)
