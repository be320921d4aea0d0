"""A design of several."""

from __future__ import annotations

from xvarpro.core.checks import described
from xvarpro.core.namespace import is_array, namespace_of
from xvarpro.core.struct import Array
from xvarpro.core.trees import sum_
from xvarpro.errors import ProblemError


def columns(*designs: Array) -> Array:
    """All columns of several designs, from left to right.

    Parameters
    ----------
    *designs : arrays, shape (m, n_i) or (m,)
        At least one; a vector is one column. In a batch of b problems (b, m, n_i), or (m, n_i) where all share it.

    Returns
    -------
    array, shape (m, sum of n_i)
        Weights w have the same order.

    Raises
    ------
    ProblemError
        There is no design, one of them is no array with rows, or they have different numbers of rows.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> t = np.array([0.0, 0.5, 1.0])
    >>> xv.models.columns(xv.models.oscillations(t, 0.5), xv.models.polynomials(t, 1), t**3).shape
    (3, 5)
    """
    matrices = [_matrix(i, x) for i, x in enumerate(designs)]
    if len({x.shape[-2] for x in matrices}) != 1:
        found = ", ".join(str(tuple(x.shape)) for x in designs) or "no design"
        raise ProblemError(f"columns needs designs with the same number of rows; got {found}")
    # the leading axes of all of them, and the namespace of traced ones among plain ones
    empty = sum_(x[..., :0] for x in matrices)
    xp, rows = namespace_of(empty), empty.shape[:-1]
    return xp.concat([xp.broadcast_to(x, (*rows, x.shape[-1])) for x in matrices], axis=-1)


def _matrix(i: int, x: Array) -> Array:
    if not is_array(x) or not x.ndim:
        raise ProblemError(f"design {i} of columns must be an array of shape (m, n) or (m,); got {described(x)}")
    return x if x.ndim > 1 else namespace_of(x).expand_dims(x, axis=1)
