"""JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as xp
import numpy as np
from jax import Array

from xvarpro_conformance.frameworks import NUMBERS, Fixture, Hooks

_WAYS = ("", "_host_to_device", "_device_to_device", "_device_to_host")  # of transfers that JAX can refuse


class JaxHooks(Hooks):
    """Of JAX."""

    def array_fixtures(self) -> dict[str, Fixture]:
        x = NUMBERS

        def made(values: np.ndarray, dtype: str, x64: bool = False) -> Array:
            with jax.enable_x64(x64):
                return xp.asarray(values, dtype=dtype)

        def rounded(dtype: str) -> tuple[Array, np.ndarray]:
            y = made(x, dtype)
            return y, np.asarray(y.astype("float32") if dtype == "bfloat16" else y)

        short = ("float32", "float16", "bfloat16", "complex64", "int32", "uint8", "bool")
        return {
            "float64": lambda: (made(x, "float64", x64=True), x),
            "int64": lambda: (made(x, "int64", x64=True), x.astype(int)),
            "transposed": lambda: (made(x.T, "float32").T, x.astype("float32")),
            "0-d": lambda: (made(np.array(1.5), "float32"), np.array(1.5)),
            "empty": lambda: (made(np.zeros((0, 3)), "float32"), np.zeros((0, 3))),
            **{name: partial(rounded, name) for name in short},
        }

    def settings(self) -> dict[str, object]:
        return {
            "x64": bool(jax.config.jax_enable_x64),
            "matmul precision": jax.config.jax_default_matmul_precision,
            "default device": str(jax.config.jax_default_device),
            "dtype promotion": str(jax.config.jax_numpy_dtype_promotion),
            "nan checks": bool(jax.config.jax_debug_nans),
            "inf checks": bool(jax.config.jax_debug_infs),
            "rank promotion": jax.config.jax_numpy_rank_promotion,
            "transfers": [getattr(jax.config, f"jax_transfer_guard{way}") for way in _WAYS],
        }

    def modes(self) -> dict[str, Any]:
        return {
            "x64": partial(jax.enable_x64, True),
            "nan checks": partial(jax.debug_nans, True),
            "short products": partial(jax.default_matmul_precision, "bfloat16"),
            "rank promotion": partial(jax.numpy_rank_promotion, "raise"),
            "inf checks": partial(jax.debug_infs, True),
            "transfers": partial(jax.transfer_guard_host_to_device, "disallow"),
        }

    def transformed(self, fun: Callable[[Array], Array], x: Array, d: Array) -> tuple[Array, Array, Array]:
        def one(x: Array, d: Array) -> tuple[Array, Array, Array]:
            return *jax.jvp(fun, (x,), (d,)), jax.grad(lambda x: xp.sum(d * fun(x)))(x)

        found: tuple[Array, Array, Array] = jax.jit(jax.vmap(one))(x, d)
        return found

    def hollow(self) -> dict[str, Array]:
        x = xp.ones(3)
        x.delete()
        return {"deleted": x}

    def survives_fork(self) -> bool:
        return False
