"""Two values side by side: a comparison that failed, as JSON takes it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xvarpro.conformance.suite import Measured

ENTRIES = 6  # of an array that is off: those that differ most
LONGEST = 2000  # characters of anything else


def compared(m: Measured) -> dict[str, Any]:
    """A comparison as JSON takes it: of two arrays of one shape the entries that differ most."""
    out = {"what": m.what, "error": number(m.error), "tolerance": m.tolerance, "units": number(m.units)}
    if m.difference is None:
        return {**out, "got": _shortened(m.got), "want": _shortened(m.want)}
    got, want, apart = np.asarray(m.got), np.asarray(m.want), np.nan_to_num(m.difference, nan=np.inf)
    most = np.argsort(-apart, axis=None, kind="stable")[: min(ENTRIES, np.count_nonzero(apart))]
    places = [np.unravel_index(i, apart.shape) for i in most]
    return {
        **out,
        "shape": list(apart.shape),
        "differ": int(np.count_nonzero(apart)),
        "size": apart.size,
        "entries": [{"at": [int(i) for i in at], "got": str(got[at]), "want": str(want[at])} for at in places],
    }


def _shortened(x: Any) -> str:
    """An array or anything else in a few lines; shapes first, as they are what differs."""
    if isinstance(x, np.ndarray):
        return f"shape {x.shape}: " + np.array2string(x, threshold=ENTRIES, edgeitems=2, separator=", ")
    text = repr(x)
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def number(x: float) -> float | str | None:
    """A number as JSON takes it, and ``float`` takes back: null where there is none."""
    x = float(x)
    return x if math.isfinite(x) else None if math.isnan(x) else str(x)
