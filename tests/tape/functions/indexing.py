"""Indexing by integers, slices, masks and arrays; sorting."""

import numpy as np

from tests.tape.functions._table import COMPLEX, CUBE, SIGNED, case, each, normal

# the standard wants a key for every axis, or an ellipsis, and arrays of integers with integers alone
case("_getitem", lambda xp, x: x[1, ..., 0] * x[0, ..., 1], CUBE)
case("_getitem", lambda xp, x: x[1:, ::2, -3:-1] * 2.0, CUBE)
case("_getitem", lambda xp, x: x[:, 1:2, :] * x, CUBE)
case("_getitem", lambda xp, x: x[1] * x[0], CUBE, strict=False)
case("_getitem", lambda xp, x: x[1, 2] + x[0, 1], CUBE, strict=False)
case("_getitem", lambda xp, x: x[..., ::-1], CUBE, oracle=lambda xp, x: xp.flip(x, axis=-1))
case("_getitem", lambda xp, x: x[1, 2, 3], CUBE)
case("_getitem", lambda xp, x: x[...] * x[()], np.asarray(0.4))
case("_getitem", lambda xp, x: x[..., None, 1] * x[:, None, ..., 0], CUBE)
case("_getitem", lambda xp, x: (x[None, ..., None], x[:, None, :, None, :1, None]), CUBE)
case("_getitem", lambda xp, x: x[xp.newaxis], normal(3), strict=False)
case("_getitem", lambda xp, x: x[0, ...] * x[-1, ...], COMPLEX)
case("_getitem", lambda xp, x: x[xp.asarray([2, 0, 2, 2])] * xp.asarray([1.0, 2.0, 3.0, 4.0], dtype=x.dtype), normal(3))
case("_getitem", lambda xp, x: x[xp.asarray([0, 1, 0]), xp.asarray([3, 3, 3])], SIGNED)
case("_getitem", lambda xp, x: x[xp.asarray([[0, 1], [2, 0]]), 1], SIGNED)
case("_getitem", lambda xp, x: x[xp.asarray([0, 2, 0])], SIGNED, strict=False)
case("_getitem", lambda xp, x: x[:, xp.asarray([0, 2, 0])], SIGNED, strict=False)
# NumPy moves the axes of the array first, because the integer counts as an array; Torch takes the integer first
case(
    "_getitem",
    lambda xp, x: x[1, ..., xp.asarray([0, 2, 0])],
    CUBE,
    strict=False,
    oracle=lambda xp, x: x[1, ..., xp.asarray([0, 2, 0])].mT,
)
case("_getitem", lambda xp, x: x[:, None, xp.asarray([0, 2, 0]), 1:], CUBE, strict=False)
case("_getitem", lambda xp, x: x[xp.argmax(x)] * x, normal(5))
case("_getitem", lambda xp, x: x[x > 0] ** 2, SIGNED)
for _axis in (0, 1, -1):
    case("take", lambda xp, x, a=_axis: xp.take(x, xp.asarray([1, 0, 1, 1]), axis=a), CUBE)
case("take", lambda xp, x: xp.take(x, xp.asarray([2, 2, 0])), normal(3))
case("take", lambda xp, x: xp.take(x, xp.asarray([2, 2, 0]), axis=0), COMPLEX)
INDICES = np.argsort(normal(3, 4), axis=1)
case("take_along_axis", lambda xp, x: xp.take_along_axis(x, xp.asarray(INDICES.tolist()), axis=1), SIGNED)
case("take_along_axis", lambda xp, x: xp.take_along_axis(x, xp.asarray([[0, 2, 0, 1]] * 2), axis=0), SIGNED)
case("take_along_axis", lambda xp, x: xp.take_along_axis(x, xp.asarray([[0, 0], [3, 1], [2, 2]]), axis=-1), SIGNED)
each("sort", [{}, {"axis": 0}, {"descending": True}, {"axis": 0, "stable": False}], SIGNED)
case("repeat", lambda xp, x: xp.repeat(x, 3, axis=1), SIGNED)
case("repeat", lambda xp, x: xp.repeat(x, 2), SIGNED)
case("repeat", lambda xp, x: xp.repeat(x, xp.asarray([2, 0, 1]), axis=0), SIGNED)
