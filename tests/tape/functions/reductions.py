"""Reductions and cumulative ones."""

from typing import Any

import numpy as np

from tests.tape.functions._table import COMPLEX, CUBE, SIGNED, TIES, ZEROS, case, each, normal

AXES: list[dict[str, Any]] = [
    {},
    {"axis": 0},
    {"axis": -1, "keepdims": True},
    {"axis": (0, 2)},
    {"axis": (-1, 0), "keepdims": True},
    {"keepdims": True},
]
for _name in ("sum", "mean", "max", "min", "prod", "var", "std"):
    for _options in AXES:
        _oracle = None
        if _name == "prod" and isinstance(_options.get("axis"), tuple):
            _oracle = lambda xp, x, o=_options: x.prod(2, keepdim=o.get("keepdims", False)).prod(  # noqa: E731
                0, keepdim=o.get("keepdims", False)
            )
        each(_name, [_options], CUBE, oracle=_oracle)
    each(_name, [{}], np.asarray(0.7) if _name not in ("var", "std") else normal(2))
for _name in ("var", "std"):
    each(_name, [{"axis": 1, "correction": 1}, {"correction": 1.0, "keepdims": True}], SIGNED)
case("std", lambda xp, x: xp.std(x, axis=1), TIES, smooth=False)
for _name in ("sum", "mean", "prod"):
    each(_name, [{}, {"axis": 0}], COMPLEX)
for _name in ("max", "min"):
    each(_name, [{}, {"axis": 1}, {"axis": (0, 1)}], TIES, smooth=False)
each("prod", [{}, {"axis": 0}, {"axis": 1}, {"axis": 1, "keepdims": True}], ZEROS)
case("prod", lambda xp, x: xp.prod(x, axis=()), SIGNED, oracle=lambda xp, x: x * 1.0)
case("sum", lambda xp, x: xp.sum(x, axis=()), SIGNED, oracle=lambda xp, x: x * 1.0)
SINGLE = SIGNED.astype(np.float32)
for _name in ("sum", "prod", "cumulative_sum", "cumulative_prod"):
    each(_name, [{"axis": 0}], SINGLE, smooth=False)
case("sum", lambda xp, x: xp.sum(x, axis=0, dtype=xp.float64), SINGLE, smooth=False)
case("prod", lambda xp, x: xp.prod(x, axis=0, dtype=xp.float64), SINGLE, smooth=False)
case("cumulative_sum", lambda xp, x: xp.cumulative_sum(x, axis=0, dtype=xp.float64), SINGLE, smooth=False)
case("cumulative_prod", lambda xp, x: xp.cumulative_prod(x, axis=0, dtype=xp.float64), SINGLE, smooth=False)
case("multiply", lambda xp, x, y: x * y, SINGLE, SIGNED, smooth=False)
case(
    "prod",
    lambda xp, x: xp.prod(x, axis=0, dtype=xp.complex128),
    SIGNED,
    strict=False,
    oracle=lambda xp, x: x.to(xp.complex128).prod(0),
)

for _name in ("cumulative_sum", "cumulative_prod"):
    each(_name, [{"axis": 0}, {"axis": 1}, {"axis": -1}], SIGNED)
    each(_name, [{}], normal(5))
    each(_name, [{"axis": 1, "include_initial": True}], SIGNED)
    each(_name, [{"axis": 0}], COMPLEX)
    each(_name, [{"axis": 1}, {"axis": 0}], ZEROS)
    each(_name, [{"axis": 0, "dtype": None}], normal(1, 2))
