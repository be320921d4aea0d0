"""Functions that move entries and change shapes."""

import numpy as np

from tests.tape.functions._table import CUBE, SIGNED, case, cnormal, each, normal

case("reshape", lambda xp, x: xp.reshape(x, (4, -1)), CUBE)
case("reshape", lambda xp, x: xp.reshape(x, shape=(24,), copy=True), CUBE)
case("permute_dims", lambda xp, x: xp.permute_dims(x, (2, 0, 1)), CUBE)
case("permute_dims", lambda xp, x: xp.permute_dims(x, axes=(-1, 1, 0)), CUBE)
case("matrix_transpose", lambda xp, x: xp.matrix_transpose(x) * 1.0, CUBE)
case("matrix_transpose", lambda xp, x: x.mT + x[:, :3].T[..., :1], SIGNED[:, :3])
for _axis in (0, 1, -1, (0, 2)):
    case(
        "expand_dims",
        lambda xp, x, a=_axis: xp.expand_dims(x, axis=a),
        CUBE,
        oracle=None if isinstance(_axis, int) else lambda xp, x: x[None, :, None],
    )
case("squeeze", lambda xp, x: xp.squeeze(x, axis=1), normal(3, 1, 2, 1))
case("squeeze", lambda xp, x: xp.squeeze(x, axis=(1, -1)), normal(3, 1, 2, 1))
each("flip", [{}, {"axis": 0}, {"axis": (0, -1)}], CUBE)
case("roll", lambda xp, x: xp.roll(x, 2), SIGNED)
case("roll", lambda xp, x: xp.roll(x, -1, axis=1), SIGNED)
case("roll", lambda xp, x: xp.roll(x, shift=(1, 2), axis=(0, 1)), SIGNED)
for _k in (0, 1, -1):
    case("tril", lambda xp, x, k=_k: xp.tril(x, k=k), CUBE)
    case("triu", lambda xp, x, k=_k: xp.triu(x, k=k), CUBE)
case("broadcast_to", lambda xp, x: xp.broadcast_to(x, (5, 3, 4)), SIGNED)
case("broadcast_to", lambda xp, x: xp.broadcast_to(x, (2, 3, 4)), normal(3, 1))
case("broadcast_to", lambda xp, x: xp.broadcast_to(x, (2, 3)), np.asarray(0.3))
case("broadcast_arrays", lambda xp, x, y: tuple(xp.broadcast_arrays(x, y)), normal(3, 1), normal(2, 1, 4))
case("meshgrid", lambda xp, x, y: tuple(xp.meshgrid(x, y, indexing="ij")), normal(3), normal(2))
case("meshgrid", lambda xp, x, y, z: tuple(xp.meshgrid(x, y, z, indexing="xy")), normal(3), normal(2), normal(4))
case("meshgrid", lambda xp, x: tuple(xp.meshgrid(x)), normal(3), oracle=lambda xp, x: (x * 1.0,))
case("concat", lambda xp, x, y: xp.concat([x, 2 * y, x], axis=1), SIGNED, normal(3, 2))
case("concat", lambda xp, x, y: xp.concat((x, y)), SIGNED, normal(1, 4))
case("concat", lambda xp, x, y: xp.concat([x, y], axis=None), SIGNED, normal(2))
case("concat", lambda xp, x: xp.concat([xp.zeros((2, 4), dtype=x.dtype), x], axis=-2), SIGNED)
case("concat", lambda xp, x, y: xp.concat([x, y], axis=0), SIGNED, cnormal(2, 4))
case("stack", lambda xp, x, y: xp.stack([x, y, x * x], axis=1), SIGNED, normal(3, 4))
case("stack", lambda xp, x: xp.stack((x, x * x), axis=-1), SIGNED)
case("stack", lambda xp, x: xp.stack([x[0], x[1] * x[2]]), normal(3))
case(
    "unstack",
    lambda xp, x: xp.unstack(x, axis=1)[1] * xp.unstack(x)[0][0],
    SIGNED[:2],
    oracle=lambda xp, x: x[:, 1] * x[0, 0],
)
case("unstack", lambda xp, x: tuple(row * row for row in x), SIGNED, strict=False)
case("unstack", lambda xp, x: xp.unstack(x, axis=-1), SIGNED)
case("unstack", lambda xp, x: xp.unstack(x[:, :1], axis=1)[0] ** 2, SIGNED)
case("moveaxis", lambda xp, x: xp.moveaxis(x, 0, 2), CUBE)
case("moveaxis", lambda xp, x: xp.moveaxis(x, (0, -1), (1, 0)), CUBE)
case("tile", lambda xp, x: xp.tile(x, (2, 3)), SIGNED)
case("tile", lambda xp, x: xp.tile(x, (2, 1, 3)), SIGNED)
case("tile", lambda xp, x: xp.tile(x, (2,)), SIGNED)
each("diff", [{}, {"axis": 0}, {"n": 2}, {"n": 0}], SIGNED)
case("diff", lambda xp, x, y: xp.diff(x, axis=0, prepend=y, append=2 * y), SIGNED, normal(1, 4))
