"""PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from xvarpro_conformance.frameworks import NUMBERS, Fixture, Hooks, usual


class TorchHooks(Hooks):
    """Of PyTorch."""

    def array_fixtures(self) -> dict[str, Fixture]:
        x = NUMBERS

        def plain(dtype: torch.dtype = torch.float64) -> torch.Tensor:
            return torch.tensor(x, dtype=dtype)

        def inferred() -> torch.Tensor:
            with torch.inference_mode():
                return plain() + 0

        return {
            **usual(torch.tensor, ("float32", "float16", "complex64", "int64", "int32", "uint8", "bool")),
            "bfloat16": lambda: (plain(torch.bfloat16), plain(torch.bfloat16).float().numpy()),
            "requires_grad": lambda: (plain().requires_grad_(), x),
            "part of a graph": lambda: (1.0 * plain().requires_grad_(), x),
            "parameter": lambda: (torch.nn.Parameter(plain()), x),
            "conjugate bit": lambda: ((1j * plain()).conj(), -1j * x),
            "negative bit": lambda: ((1j * plain()).conj().imag, -x),
            "transposed": lambda: (torch.tensor(x.T).mT, x),
            "zero strides": lambda: (plain()[1].expand(2, 3), x[[1, 1]]),
            "of inference mode": lambda: (inferred(), x),
        }

    def settings(self) -> dict[str, object]:
        return {
            "default dtype": str(torch.get_default_dtype()),
            "default device": str(torch.get_default_device()),
            "grad mode": torch.is_grad_enabled(),
            "inference mode": torch.is_inference_mode_enabled(),
            "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
            "float32 matmul precision": _product_precision(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "threads": torch.get_num_threads(),
            "random": hash(torch.get_rng_state().numpy().tobytes()),
        }

    def modes(self) -> dict[str, Any]:
        @contextmanager
        def short() -> Iterator[None]:
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.float16)
            try:
                yield
            finally:
                torch.set_default_dtype(before)

        @contextmanager
        def threads(n: int) -> Iterator[None]:
            before = torch.get_num_threads()
            torch.set_num_threads(n)
            try:
                yield
            finally:
                torch.set_num_threads(before)

        return {
            "inference mode": torch.inference_mode,
            "no_grad": torch.no_grad,
            "autocast": partial(torch.autocast, "cpu", torch.bfloat16),
            "default dtype": short,
            "default device": partial(torch.device, "meta"),
            "one thread": partial(threads, 1),
            "two threads": partial(threads, 2),
        }

    def transformed(self, fun: Callable[[Tensor], Tensor], x: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def one(x: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return *torch.func.jvp(fun, (x,), (d,)), torch.func.grad(lambda x: (d * fun(x)).sum())(x)

        found: tuple[Tensor, Tensor, Tensor] = torch.func.vmap(one)(x, d)
        return found

    def hollow(self) -> dict[str, Tensor]:
        return {"meta": torch.empty(3, device="meta"), "sparse": torch.eye(2).to_sparse()}

    def survives_fork(self) -> bool:
        return torch.get_num_threads() == 1


def _product_precision() -> str:
    """Once a program has set the switch of PyTorch 2.9, the older one cannot be read."""
    switch = torch.backends.cuda.matmul
    return switch.fp32_precision if hasattr(switch, "fp32_precision") else torch.get_float32_matmul_precision()
