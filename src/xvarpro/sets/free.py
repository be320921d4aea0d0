"""A block without constraints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from xvarpro.core import checks
from xvarpro.core.struct import Struct
from xvarpro.errors import ProblemError
from xvarpro.sets.norms import L2, Norm


@final
@dataclass(frozen=True)
class Free(Struct):
    """All of ``R^p``. Frank-Wolfe steps move inside a ball of `radius` around the iterate (Algorithm 2, block B).

    Parameters
    ----------
    norm : Norm
        Norm of the ball: `norms.L2` (the paper) or any other of `xv.sets.norms`.
    radius : float
        Radius of the ball, > 0. It sets how block B's part of the gap compares with block A's, and bounds a step.

    Notes
    -----
    Dual norm : that of `norm`
    Direction : ``-radius u``, u that of `norm`
    Cost : that of `norm`

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.sets.Free(norm=xv.sets.norms.Spectral())
    Free(norm=Spectral(), radius=1.0)
    """

    norm: Norm = field(default_factory=L2)
    radius: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.norm, Norm):
            raise ProblemError(f"Free: norm must be one of xv.sets.norms, such as norms.L2(), got {self.norm!r}")
        checks.above(self, "radius", 0)
