"""Outcomes of a solve."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """Outcome of a solve. Success is never the default.

    Attributes
    ----------
    code : int
        For compiled loops.
    sentence : str
        For a reader.
    """

    RUNNING = 0, "The solve has not ended."
    CONVERGED = (
        1,
        "What the objective can still lose is below the tolerance, relative to the objective, or at rounding.",
    )
    MAX_ITER = 2, "The iteration limit was reached before the tolerance."
    TIME_LIMIT = 3, "The time limit was reached before the tolerance."
    NO_DESCENT = (
        4,
        (
            "No step along the search direction lowers the objective: the gap is at the level of rounding, or the "
            "gradient does not belong to the objective."
        ),
    )
    NON_FINITE = 5, "The objective or its gradient is not finite at the iterate."
    RANK_DEFICIENT = (
        6,
        (
            "The lower level has no unique solution: the columns of M(theta) are linearly dependent to the precision "
            "of its solver. Add a ridge (lam > 0) or a larger one, use solver=xv.lower.QR() instead of Cholesky(), "
            "which has half of the digits, or solver=xv.lower.SVD() for the solution of minimum norm."
        ),
    )
    STOPPED = 7, "The callback stopped the solve."
    KINK = (
        8,
        (
            "No step along the search direction lowers the objective, and a weight is at its bound with a multiplier "
            "of zero: the objective has a kink there, where the gradient is one-sided."
        ),
    )
    LOWER_LEVEL = (
        9,
        (
            "The iterative solver of the lower level did not reach the tolerance that the gap needs: the gradient's "
            "error is as large as the gap. Raise its limit, or add a preconditioner, a ridge or more digits."
        ),
    )
    ROUNDING = (
        10,
        (
            "No step lowers the objective, and what a model of it promises is less than its rounding: the iterate is "
            "as good as values of this precision can show. More digits take dtype='float64'."
        ),
    )

    def __init__(self, code: int, sentence: str) -> None:
        self.code = code
        self.sentence = sentence

    @property
    def success(self) -> bool:
        """Whether the tolerance was met, or as much of it as the precision allows."""
        return self in (Status.CONVERGED, Status.ROUNDING)

    @classmethod
    def of(cls, code: float) -> Status:
        """The status with that code."""
        return next(s for s in cls if s.code == int(code))
