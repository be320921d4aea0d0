"""Norms of vectors and matrices."""

import math
from typing import Any

import numpy as np

from tests.tape.functions._table import COMPLEX, SIGNED, each, normal

_ord: Any
for _x in (SIGNED, COMPLEX):
    for _ord in (2, 1, math.inf, -math.inf, 3, 1.5, -1, 0.5):
        for _options in ({}, {"axis": 1}, {"axis": 0, "keepdims": True}, {"axis": (0, 1)}):
            each("linalg_vector_norm", [{**_options, "ord": _ord}], _x)
    for _ord in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        each("linalg_matrix_norm", [{"ord": _ord}, {"ord": _ord, "keepdims": True}], np.stack([_x, 2 * _x[::-1]]))
each("linalg_matrix_norm", [{}], SIGNED)
each("linalg_vector_norm", [{}], normal(2, 3, 4))
each("linalg_vector_norm", [{"ord": 0}], np.array([0.0, 1.0, 2.0]), smooth=False)
ORIGIN = np.zeros((2, 3))
for _ord in (1, 2, math.inf, 3, 1.5):
    each("linalg_vector_norm", [{"axis": 1, "ord": _ord}, {"ord": _ord}], ORIGIN, smooth=False)
each("linalg_vector_norm", [{"axis": 1, "ord": 3}], np.array([[0.0, 1.0, -2.0], [0.0, 0.0, 0.0]]), smooth=False)
each("linalg_matrix_norm", [{"ord": "fro"}, {"ord": 1}, {"ord": math.inf}], ORIGIN, smooth=False)
