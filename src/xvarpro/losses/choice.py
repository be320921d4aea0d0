"""A loss from what a user passes for one."""

from __future__ import annotations

from typing import Any

from xvarpro.core.checks import described, instance
from xvarpro.errors import ProblemError
from xvarpro.losses import custom, likelihoods, margins, robust
from xvarpro.losses.interface import Loss, Squares

FILES = (custom, likelihoods, margins, robust)  # whose losses have names once they are imported


def named(loss: Any) -> Loss | None:
    """A loss from its name or its class; None for `Squares`, which a level has without one."""
    found: Loss | None = instance(loss, Loss)
    if found is None:
        raise ProblemError(
            "loss must be one of xvarpro.losses, such as xv.losses.Huber(1.0), or a name: huber, soft_l1, cauchy, "
            "quantile, poisson, log_poisson, logistic, softmax or squared_hinge; got "
            f"{described(loss)}. A function of prediction and target goes into xv.losses.Custom"
        )
    return None if isinstance(found, Squares) else found
