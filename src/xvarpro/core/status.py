"""What a solve says: its outcome, and a progress bar on a terminal, silence in a pipe."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any


class Status(int, Enum):
    """Outcome of a solve. Success is never the default. It equals its code, also in arrays of codes.

    Attributes
    ----------
    code : int
        For compiled loops.
    sentence : str
        For a reader.
    advice : str
        What to do next.
    """

    code: int
    sentence: str
    advice: str

    RUNNING = 0, "The solve has not ended.", "Wait for its result."
    CONVERGED = (
        1,
        "What the objective can still lose is below the tolerance, relative to the objective, or at rounding.",
        "A smaller tol gives more digits of theta.",
    )
    MAX_ITER = (
        2,
        "The iteration limit was reached before the tolerance.",
        "Raise max_iter; in the same process xv.solve(problem, result, max_iter=...) goes on, to so many in all.",
    )
    TIME_LIMIT = (
        3,
        "The time limit was reached before the tolerance.",
        "Raise time_limit; in the same process xv.solve(problem, result) goes on from where it was.",
    )
    NO_DESCENT = (
        4,
        (
            "No step along the search direction lowers the objective, although a model of it promises more than "
            "rounding: the gradient does not belong to the objective, its values are less exact than its precision, or "
            "the model is wrong there."
        ),
        (
            "Compare xv.value_and_gradient with differences of values, compute in float64, or solve again by another "
            "algorithm from the theta of the result."
        ),
    )
    NON_FINITE = (
        5,
        "The objective or its gradient is not finite at the last iterate.",
        "Bound theta to where the model has values, start elsewhere, or compute in float64.",
    )
    RANK_DEFICIENT = (
        6,
        (
            "The lower level has no unique solution: the columns of M(theta) are linearly dependent to the precision "
            "of its solver, or one is zero."
        ),
        (
            "Start where columns differ and none is zero: peaks within the data, no two rates equal, and a rate times "
            "the range of its variable near 1, so in the units of the data. Or add a ridge (lam > 0) or a larger one; "
            "solver=xv.lower.SVD() gives the solution of minimum norm, and of rows in chunks Cholesky() has half of "
            "the digits of QR()."
        ),
    )
    STOPPED = 7, "The callback stopped the solve.", "xv.solve(problem, result) goes on."
    KINK = (
        8,
        (
            "No step along the search direction lowers the objective, and a weight is at its bound with a multiplier "
            "of zero: the objective has a kink there, where the gradient is one-sided."
        ),
        "Solve again from points nearby, add a ridge, or leave out the set W of the weights.",
    )
    LOWER_LEVEL = (
        9,
        (
            "The iterative solver of the lower level did not reach the tolerance that the gap needs: the gradient's "
            "error is as large as the gap."
        ),
        "Raise its limit, or add a preconditioner, a ridge or more digits.",
    )
    ROUNDING = (
        10,
        (
            "No step lowers the objective, and what a model of it promises is less than its rounding: the iterate is "
            "as good as values of this precision can show."
        ),
        "A larger tol ends earlier; more digits take dtype='float64', where this was float32.",
    )
    NEGATIVE_RIDGE = (
        11,
        (
            "The ridge lam(theta) is negative at the last iterate, or where the slope leads from there: the lower "
            "level has no minimum where it is."
        ),
        "Return the exponential of a parameter, or bound theta.",
    )
    STALLED = (
        12,
        "Iterations no longer lead to a lower objective or a smaller gap than the best iterate has, which is returned.",
        (
            "Solve again from the theta of the result by another method (docs/algorithms.md has what each takes), or "
            "with a larger tol if this is good enough."
        ),
    )

    INTERRUPTED = (
        13,
        "The program was interrupted, by Ctrl-C or a signal.",
        "Go on from the checkpoint, xv.solve(..., resume=path), or from this result, xv.solve(problem, result).",
    )
    NO_DATA = (
        14,
        "This problem of a batch has nothing to fit: its data hold NaN or inf, or none of them has a weight.",
        "Give weight 0 to single entries without a number; the answers of a problem without any are NaN.",
    )

    def __new__(cls, code: int, sentence: str, advice: str) -> Status:
        self = int.__new__(cls, code)
        self.code = self._value_ = code
        self.sentence = sentence
        self.advice = advice
        return self

    def __str__(self) -> str:
        return f"Status.{self.name}"

    __repr__ = __str__

    @property
    def success(self) -> bool:
        """Whether the tolerance was met, or as much of it as the precision allows."""
        return self in (Status.CONVERGED, Status.ROUNDING)

    @classmethod
    def of(cls, code: float) -> Status:
        """The status with that code."""
        return _BY_CODE[int(code)]


_BY_CODE = {status.code: status for status in Status}


class Bar:
    """A progress bar that disappears at the end; the context manager draws nothing unless `show` says so.

    Parameters
    ----------
    total : int or None
        Number of units at most, if it is known.
    show : bool or None
        None shows the bar if standard error is a terminal.
    unit : str
        What is counted.
    name : str, optional
        Text before the bar.
    delay : float
        Seconds until the bar is drawn.
    """

    def __init__(
        self, total: int | None, show: bool | None, unit: str = "it", name: str | None = None, delay: float = 0.0
    ) -> None:
        self._options = {"total": total, "unit": unit, "desc": name, "delay": delay}
        self._show = sys.stderr.isatty() if show is None else show
        self._bar: Any = None

    def __enter__(self) -> Bar:
        if self._show:
            from tqdm import tqdm  # only where a bar is drawn

            self._bar = tqdm(leave=False, file=sys.stderr, **self._options)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def skip(self, n: int) -> None:
        """Advance by `n` units that were done before: the rate, and with it the time left, does not count them."""
        if self._bar is not None:
            for name in ("n", "initial", "last_print_n"):
                setattr(self._bar, name, getattr(self._bar, name) + n)
            self._bar.update(0)

    def update(self, n: int = 1, value: float | None = None, gap: float | None = None) -> None:
        """Advance by `n` units, and show the objective and the gap."""
        if self._bar is not None:
            if value is not None and gap is not None:
                self._bar.set_postfix_str(f"f={value:.6g} gap={gap:.2g}", refresh=False)
            self._bar.update(n)
