"""Settings that PyTorch has for a process or a thread, held while something is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from xvarpro.errors import ModelError, ProblemError

_KINDS = ("cpu", "cuda")  # of devices


class Switch:
    """A setting that PyTorch has once for all threads, held by every solve that wants it on.

    The first to hold it turns it on, the last to let go restores what `read` gave before the first.

    Had each put back what it found itself, two solves that overlap in two threads would leave it on.
    """

    def __init__(self, read: Callable[[], Any], turn_on: Callable[[], None], restore: Callable[[Any], None]) -> None:
        self._read, self._turn_on, self._restore = read, turn_on, restore
        self._lock, self._holders, self._before = threading.Lock(), 0, None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._holders:
                self._before = self._read()
                self._turn_on()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    self._restore(self._before)


# what `torch.use_deterministic_algorithms` switches, without Inductor, whose import takes seconds
_algorithms = Switch(
    torch.get_deterministic_debug_mode,
    lambda: torch.set_deterministic_debug_mode("error"),
    torch.set_deterministic_debug_mode,
)
# once a program sets the switch of PyTorch 2.9, the older one cannot be read
if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
    _products = Switch(
        partial(getattr, torch.backends.cuda.matmul, "fp32_precision"),
        partial(setattr, torch.backends.cuda.matmul, "fp32_precision", "ieee"),
        partial(setattr, torch.backends.cuda.matmul, "fp32_precision"),
    )
else:
    _products = Switch(
        torch.get_float32_matmul_precision,
        partial(torch.set_float32_matmul_precision, "highest"),
        torch.set_float32_matmul_precision,
    )


def full_precision() -> AbstractContextManager[None]:
    """No TF32 in matrix products of CUDA."""
    return _products() if torch.cuda.is_available() else nullcontext()


@contextmanager
def no_autocast() -> Iterator[None]:
    """No products in half precision, whatever a training loop around the solve has switched on."""
    with ExitStack() as off:
        for kind in _KINDS:
            if torch.is_autocast_enabled(kind):
                off.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def deterministic() -> Iterator[None]:
    """Deterministic algorithms while inside; an operation without one is an error that names it."""
    try:
        with _algorithms():
            yield
    except (RuntimeError, ModelError) as error:
        reason = str(error if isinstance(error, RuntimeError) else error.__cause__)
        if "deterministic" not in reason:
            raise
        reason = reason.partition(". You can turn off")[0]
        raise ProblemError(
            f"deterministic=True needs deterministic algorithms of PyTorch: {reason}. Leave it out, or change the model"
        ) from error
