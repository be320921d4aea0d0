"""The errors of the tape."""

from __future__ import annotations


class NoRuleError(AttributeError):
    """The tape has no derivative rule for a function of the namespace.

    An AttributeError, so that `hasattr(xp, name)` answers what a portable model wants to know.
    """

    def __init__(self, function: str, detail: str = "") -> None:
        what = f"no derivative rule for {function!r}" + (f" {detail}" if detail else "")
        super().__init__(
            f"{what}. The NumPy and CuPy backends differentiate functions of the array API standard: "
            "write this one with functions that have a rule, compute it outside the model and pass it as data, "
            "or choose a backend with its own derivatives (torch, jax)"
        )


class NoBatchError(Exception):
    """A function cannot be called for all entries of a batch at once, for a reason that the message gives."""
