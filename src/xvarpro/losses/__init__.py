"""Losses of a level: what it pays for its prediction ``M(theta) w`` of a target."""

from typing import Any

from xvarpro.core.checks import described, instance
from xvarpro.core.lazy import attach
from xvarpro.errors import ProblemError

__getattr__, __dir__, __all__ = attach(__name__)


def named(loss: Any) -> Any:
    """A loss from its name or its class; None for `Squares`, which a level has without one."""
    from xvarpro.losses import custom, interface, likelihoods, margins, robust  # noqa: F401 - those that have names

    found = instance(loss, interface.Loss)
    if found is None:
        raise ProblemError(
            f"loss must be one of xvarpro.losses or its name, {', '.join(map(repr, sorted(__all__)))}; got "
            f"{described(loss)}. A function of the prediction and the target goes into xv.losses.Custom"
        )
    return None if isinstance(found, interface.Squares) else found
