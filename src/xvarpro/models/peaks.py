"""Peaks of unit area: their weights are areas, in spectra the amounts of what is seen."""

from __future__ import annotations

import math
from typing import Any

from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.models._arguments import aligned, design

FWHM = 2.0 * math.sqrt(2.0 * math.log(2.0))  # full width at half maximum of a Gaussian, in standard deviations


def gaussians(x: Array, centres: Array | float, widths: Array | float) -> Array:
    """Gaussians of unit area, ``exp(-u^2 / 2) / (s sqrt(2 pi))`` with ``u = (x - centre) / s``.

    Parameters
    ----------
    x : array, shape (m,)
        Samples, usually from `data`; whole numbers take the dtype of the parameters. Of shape (b, m) where each of b
        problems has its own.
    centres : number or array, shape (n,)
        In the units of `x`. All parameters are numbers, 0-d arrays, or vectors of one length or of length 1, which are
        shared by all columns; of shape (b, n) in a batch, where b problems are solved together.
    widths : number or array, shape (n,)
        Standard deviations s > 0, in the units of `x`: the full width at half maximum over 2.3548.

    Returns
    -------
    array, shape (m, n)
        One column for each Gaussian, in the units of ``1 / x``; of shape (b, m, n) in a batch. A weight w is the area,
        lmfit's ``amplitude``; the height is ``w / (s sqrt(2 pi))``.

    Raises
    ------
    ProblemError
        An argument is no array of numbers, or no number where it may be one; vectors have different lengths.

    Notes
    -----
    Also the instrument response itself, and the coherent artefact of a measurement with `decays`:
    ``gaussians(t, centre, width)``.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> x = np.array([0.0, 1.0])
    >>> np.round(xv.models.gaussians(x, np.array([0.0, 1.0]), 1.0), 4)
    array([[0.3989, 0.242 ],
           [0.242 , 0.3989]])
    """
    return design(_gaussian(*aligned(x=x, centres=centres, widths=widths)))


def lorentzians(x: Array, centres: Array | float, widths: Array | float) -> Array:
    """Lorentzians of unit area, ``1 / (pi g (1 + u^2))`` with ``u = (x - centre) / g``.

    Parameters
    ----------
    x : array, shape (m,)
        As for `gaussians`.
    centres : number or array, shape (n,)
        As for `gaussians`.
    widths : number or array, shape (n,)
        Half widths at half maximum g > 0, in the units of `x`.

    Returns
    -------
    array, shape (m, n)
        One column for each Lorentzian, in the units of ``1 / x``. A weight w is the area, lmfit's ``amplitude``; the
        height is ``w / (pi g)``.

    Raises
    ------
    ProblemError
        As `gaussians`.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> np.pi * xv.models.lorentzians(np.array([0.0, 1.0, 2.0]), 1.0, 1.0)[:, 0]
    array([0.5, 1. , 0.5])
    """
    return design(_lorentzian(*aligned(x=x, centres=centres, widths=widths)))


def pseudo_voigts(x: Array, centres: Array | float, widths: Array | float, fractions: Array | float) -> Array:
    """Sums ``f Lorentzian + (1 - f) Gaussian`` of unit area whose parts have one full width at half maximum.

    Parameters
    ----------
    x : array, shape (m,)
        As for `gaussians`.
    centres : number or array, shape (n,)
        As for `gaussians`.
    widths : number or array, shape (n,)
        Full widths at half maximum F > 0, in the units of `x`: the half width of the Lorentzian is ``F / 2``, the
        standard deviation of the Gaussian ``F / 2.3548``.
    fractions : number or array, shape (n,)
        The Lorentzian's part f of the area; within [0, 1] both parts are positive.

    Returns
    -------
    array, shape (m, n)
        One column for each peak, in the units of ``1 / x``. A weight w is the area, lmfit's ``amplitude``, whose
        ``sigma`` is ``F / 2``; the height is ``w (f + (1 - f) sqrt(pi log 2)) 2 / (pi F)``.

    Raises
    ------
    ProblemError
        As `gaussians`.

    Notes
    -----
    G. K. Wertheim, M. A. Butler, K. W. West, D. N. E. Buchanan, Determination of the Gaussian and Lorentzian content of
    experimental line shapes, Review of Scientific Instruments 45 (1974).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> peak = xv.models.pseudo_voigts(np.array([0.0, 1.0, 2.0]), 1.0, 2.0, 0.3)[:, 0]
    >>> np.round(peak / peak[1], 9)
    array([0.5, 1. , 0.5])
    """
    x, centres, widths, fractions = aligned(x=x, centres=centres, widths=widths, fractions=fractions)
    lorentzian, gaussian = _lorentzian(x, centres, widths / 2), _gaussian(x, centres, widths / FWHM)
    return design(fractions * lorentzian + (1 - fractions) * gaussian)


def _gaussian(x: Array, centre: Any, s: Any) -> Array:
    u = (x - centre) / s
    return namespace_of(u).exp(-0.5 * u * u) / (math.sqrt(2.0 * math.pi) * s)


def _lorentzian(x: Array, centre: Any, g: Any) -> Array:
    u = (x - centre) / g
    return 1.0 / (math.pi * g * (1.0 + u * u))
