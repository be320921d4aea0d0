"""The linear algebra of the standard, by NumPy's LAPACK: MLX's knows no complex matrices and always makes a full U."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp

from xvarpro_mlx.host import through_numpy


def __getattr__(name: str) -> Any:
    return through_numpy(getattr(xp.linalg, name))
