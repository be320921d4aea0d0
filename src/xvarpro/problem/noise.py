"""What is known of the noise of a problem whose amplitudes are integrated out, and the density that follows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Struct
from xvarpro.errors import ProblemError


class InverseGamma(NamedTuple):
    """The density ``scale^shape / Gamma(shape) x^(-shape - 1) exp(-scale / x)`` of a variance x.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.InverseGamma(shape=3.0, scale=0.02)
    InverseGamma(shape=3.0, scale=0.02)
    """

    shape: float
    scale: float


@final
@dataclass(frozen=True)
class Noise(Struct):
    """What `marginal` states; and, of a prepared problem, what of the density does not depend on theta.

    With ``S = min over w of |M w - y|^2 + <Omega (w - mean), lam Omega (w - mean)>``, in numbers whose weights are 1,
    and V the logarithm of ``det R / det(sqrt(lam) Omega)``, summed over right-hand sides, minus the log density is
    ``constant + parts V + S / (2 sigma^2)``, or with ``(shape + freedom / 2) log(scale + S / 2)`` for its last term.
    """

    sigma: float | None = None  # known standard deviation of a number of the target, of weight 1
    shape: float = 0.0  # of the inverse gamma density of sigma^2; both 0: Jeffreys' 1 / sigma^2
    scale: float = 0.0
    mean: Any = None  # of the prior of w; None is 0
    constant: Any = 0.0
    freedom: Any = 0.0  # real numbers in the data, less those in amplitudes with a flat prior
    flat: float = 0.0  # real numbers in these amplitudes
    Omega: Any = 0.0  # the logarithm of |det Omega|
    columns: int = 1  # right-hand sides as stated
    parts: int = 1  # real numbers in one of the target: 2 of a complex one

    numbers = ("sigma", "shape", "scale")

    def density(self, half: Array, volume: Array) -> Array:
        """Minus the log density, from ``S / 2`` and V, 0-d."""
        if self.sigma is not None:
            rest = half / self.sigma / self.sigma
        else:
            rest = (self.shape + 0.5 * self.freedom) * namespace_of(half).log(self.scale + half)
        return self.constant + self.parts * volume + rest

    def precision(self, half: Array | None) -> Any:
        """The derivative of `density` by ``S / 2``: ``1 / sigma^2``, or of the noise as S says it."""
        if self.sigma is not None:
            return 1 / self.sigma / self.sigma
        assert half is not None
        return (self.shape + 0.5 * self.freedom) / (self.scale + half)

    def counted(self, data: float, flat: float, log_root: float) -> Noise:
        """With its constants: numbers in the target, flat amplitudes, and the sum of logarithms of roots of weights."""
        a, b, nu = self.shape, self.scale, self.parts * (data - flat)
        if self.sigma is not None:
            constant = 0.5 * nu * math.log(2 * math.pi) + nu * math.log(self.sigma)
        elif a + 0.5 * nu <= 0:
            raise ProblemError(
                f"a marginal likelihood with unknown noise needs more data than amplitudes with a flat prior; got "
                f"{data:.0f} numbers and {flat:.0f} amplitudes. Pass lam > 0, or noise= its standard deviation"
            )
        else:
            constant = 0.5 * nu * math.log(2 * math.pi) - math.lgamma(a + 0.5 * nu)
            constant += math.lgamma(a) - a * math.log(b) if a else 0.0
        return replace(self, constant=constant - self.parts * log_root, freedom=nu, flat=self.parts * flat)
