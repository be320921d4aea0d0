"""Signals that begin and fade: exponentials, also behind an instrument response, and damped oscillations."""

from __future__ import annotations

import math
from typing import Any

from xvarpro import special
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.models._arguments import aligned, design


def exponentials(t: Array, rates: Array | float) -> Array:
    """Exponential decays ``exp(-k t)``.

    Parameters
    ----------
    t : array, shape (m,)
        Samples, usually from `data`; whole numbers take the dtype of the parameters. Of shape (b, m) where each of b
        problems has its own.
    rates : number or array, shape (n,)
        Rates k, in the units of ``1 / t``: lmfit's ``decay`` is ``1 / k``. Numbers, 0-d arrays or vectors; of shape
        (b, n) in a batch, where b problems are solved together.

    Returns
    -------
    array, shape (m, n)
        One column for each rate, of shape (b, m, n) in a batch. A weight is the value at t = 0, lmfit's ``amplitude``.

    Raises
    ------
    ProblemError
        `t` is no array of numbers, or `rates` are neither a number nor one.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> np.round(xv.models.exponentials(np.array([0.0, 1.0]), np.array([0.0, 1.0])), 4)
    array([[1.    , 1.    ],
           [1.    , 0.3679]])
    """
    return design(_exponential(*aligned(t=t, rates=rates)))


def decays(t: Array, rates: Array | float, centre: Array | float, width: Array | float) -> Array:
    """Decays ``exp(-k t)`` from t = 0 on, convolved with a Gaussian response of unit area.

    Parameters
    ----------
    t : array, shape (m,)
        As for `exponentials`.
    rates : number or array, shape (n,)
        Rates k, in the units of ``1 / t``; 0 is the step. A negative one grows.
    centre : number or array, shape (n,)
        Where the response has its maximum, in the units of `t`. A vector of length 1 is shared by all columns, as a
        number or a 0-d array is; that of length n gives each column its own.
    width : number or array, shape (n,)
        Standard deviation s > 0 of the response, in the units of `t`: its full width at half maximum over 2.3548.

    Returns
    -------
    array, shape (m, n)
        One column for each rate; none overflows for k >= 0. A weight is the value that the decay itself has where it
        begins. A weight over its k is the ``amplitude`` of lmfit's ``ExponentialGaussianModel``.

    Raises
    ------
    ProblemError
        As `exponentials`; vectors have different lengths.
    BackendNotInstalledError
        On NumPy without SciPy: ``pip install 'xvarpro[scipy]'``.

    Notes
    -----
    With ``u = (t - centre) / s`` and ``z = (k s - u) / sqrt(2)`` a column is ``1/2 exp(-u^2 / 2) erfcx(z)``. For z < 0,
    where that is 0 times infinity, ``erfcx(z) = 2 exp(z^2) - erfcx(-z)`` makes it
    ``exp(k (k s^2 / 2 - t + centre)) - 1/2 exp(-u^2 / 2) erfcx(-z)``. I. H. M. van Stokkum, D. S. Larsen,
    R. van Grondelle, Global and target analysis of time-resolved spectra, Biochimica et Biophysica Acta 1657 (2004).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> t = np.array([-100.0, 0.0, 10.0])
    >>> np.round(xv.models.decays(t, np.array([0.0, 0.1]), 0.0, 0.5), 4)
    array([[0.    , 0.    ],
           [0.5   , 0.4807],
           [1.    , 0.3683]])
    """
    t, rates, centre, width = aligned(t=t, rates=rates, centre=centre, width=width)
    t = t - centre
    u, spread = t / width, rates * width
    z = (spread - u) / math.sqrt(2.0)
    xp, after = namespace_of(z), z < 0
    front = 0.5 * xp.exp(-0.5 * u * u) * special.erfcx(xp.where(after, -z, z))
    # the exponent is 0 where the other form is chosen, for NaN in its derivative would spread; it has t in the place of
    # s u, for slopes with respect to s would cancel
    tail = xp.exp(rates * xp.where(after, 0.5 * spread * width - t, 0.0))
    return design(xp.where(after, tail - front, front))


def oscillations(t: Array, frequencies: Array | float, rates: Array | float = 0.0) -> Array:
    """Damped oscillations ``exp(-k t) cos(2 pi f t)`` and ``exp(-k t) sin(2 pi f t)``.

    Parameters
    ----------
    t : array, shape (m,)
        As for `exponentials`.
    frequencies : number or array, shape (n,)
        Frequencies f, in the units of ``1 / t``: cycles, not radians.
    rates : number or array, shape (n,)
        Rates k of the damping, in the units of ``1 / t``; in NMR ``1 / T2``. A vector of length 1 is shared.

    Returns
    -------
    array, shape (m, 2 n)
        The n cosines, then the n sines. Weights a and b of a pair are the oscillation ``A exp(-k t) cos(2 pi f t + p)``
        with ``A = hypot(a, b)`` and ``p = atan2(-b, a)``.

    Raises
    ------
    ProblemError
        As `exponentials`; vectors have different lengths.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> np.round(xv.models.oscillations(np.array([0.0, 1.0]), 0.25, 1.0), 4)
    array([[1.    , 0.    ],
           [0.    , 0.3679]])
    """
    t, frequencies, rates = aligned(t=t, frequencies=frequencies, rates=rates)
    envelope, angle = _exponential(t, rates), 2.0 * math.pi * frequencies * t
    xp = namespace_of(angle)
    return design(xp.concat([xp.cos(angle) * envelope, xp.sin(angle) * envelope], axis=-2))


def _exponential(t: Array, k: Any) -> Array:
    exponent = -k * t
    return namespace_of(exponent).exp(exponent)
