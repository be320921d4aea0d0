"""Milliseconds of `xvarpro.ridge` and its three gradients for 100 problems, and those of normal equations."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import xvarpro as xv

SHAPES = (5, 64), (200, 20)
LAM = 1e-3


def closed(xp: Any, A: Any, y: Any, lam: Any) -> Any:
    m, n = A.shape[-2:]
    if n > m:
        return (A.mT @ xp.linalg.solve(A @ A.mT + lam * xp.eye(m, dtype=A.dtype), y[..., None]))[..., 0]
    return xp.linalg.solve(A.mT @ A + lam * xp.eye(n, dtype=A.dtype), A.mT @ y[..., None])[..., 0]


def milliseconds(call: Callable[[], Any]) -> float:
    took = []
    for _ in range(40):
        start = time.perf_counter()
        call()
        took.append(1e3 * (time.perf_counter() - start))
    return min(took)


def on_jax(fun: Callable[..., Any], A: np.ndarray, y: np.ndarray) -> float:
    loss = jax.value_and_grad(lambda *x: jnp.sum(fun(*x) ** 2), argnums=(0, 1, 2))
    run = jax.jit(jax.vmap(loss, in_axes=(0, 0, None)))
    args = jnp.asarray(A), jnp.asarray(y), jnp.asarray(LAM)
    return milliseconds(lambda: jax.block_until_ready(run(*args)))


def on_torch(fun: Callable[..., Any], A: np.ndarray, y: np.ndarray) -> float:
    args = [torch.tensor(x, requires_grad=True) for x in (A, y, np.float64(LAM))]
    return milliseconds(lambda: torch.autograd.grad((fun(*args) ** 2).sum(), args))


def main() -> None:
    torch.set_num_threads(1)
    jax.config.update("jax_enable_x64", True)
    draw = np.random.default_rng(0)
    for m, n in SHAPES:
        A, y = draw.normal(size=(100, m, n)), draw.normal(size=(100, m))
        for name, xp, run in ("jax", jnp, on_jax), ("torch", torch, on_torch):
            ours, theirs = run(xv.ridge, A, y), run(lambda *x, xp=xp: closed(xp, *x), A, y)
            print(f"{name:6} {m:3} x {n:2}: {ours:6.2f} and {theirs:6.2f} ms, {ours / theirs:.1f} times")


if __name__ == "__main__":
    main()
