"""Models that several files of tests fit."""

import xvarpro as xv


def together(theta, data):
    """Decays of a batch, shape (b, m, n), by rates (b, n) at times (m,) or (b, m), or at ``data["t"]``."""
    xp = xv.array_namespace(theta)
    t = data["t"] if isinstance(data, dict) else data
    return xp.exp(-xp.expand_dims(theta, axis=-2) * xp.expand_dims(t, axis=-1))


def with_offset(theta, t):
    """Decays and a constant."""
    return xv.models.columns(xv.models.exponentials(t, theta), xv.models.polynomials(t, 0))


def waves(theta, t):
    """Oscillations: an objective with many minima, where a nonmonotone search climbs."""
    xp = xv.array_namespace(theta)
    return xp.cos(xp.expand_dims(t, axis=1) * theta)
