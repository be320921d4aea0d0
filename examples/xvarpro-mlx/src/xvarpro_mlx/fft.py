"""The Fourier transforms of the standard, by NumPy: MLX's take doubles and return singles."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp

from xvarpro_mlx.host import through_numpy


def __getattr__(name: str) -> Any:
    return through_numpy(getattr(xp.fft, name))
