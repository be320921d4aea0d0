"""Processes that PyTorch's `torch.distributed` connects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from xvarpro.backends import exchange, registry
from xvarpro.backends.group import Group
from xvarpro.core.namespace import device as device_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.errors import GroupError, ProblemError, needs

with needs("xv.distributed.TorchGroup", "torch"):
    import torch
    import torch.distributed as dist
    from torch import Tensor


class TorchGroup(Group):
    """The processes of a `torch.distributed` process group, as ``torchrun`` starts them.

    Arrays may be of any framework: those of others than PyTorch pass through the memory of the host.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        All processes by default.

    Raises
    ------
    ProblemError
        ``torch.distributed.init_process_group`` was not called.
    """

    def __init__(self, group: Any = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ProblemError(
                "TorchGroup needs a process group; got none. Call torch.distributed.init_process_group('gloo'), or "
                "'nccl' on GPUs, in every process, and start them by torchrun"
            )
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._own = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchGroup) and other.group is self.group

    def __hash__(self) -> int:
        return hash((TorchGroup, id(self.group)))

    def __repr__(self) -> str:
        return f"TorchGroup(rank={self.rank}, size={self.size})"

    def total(self, arrays: Leaves) -> Leaves:
        def summed(x: Tensor) -> Tensor:
            dist.all_reduce(x, group=self.group)
            return x

        return tuple(self._through(x, summed) for x in arrays)

    def gather(self, arrays: Leaves) -> list[Leaves]:
        def gathered(x: Tensor) -> Tensor:
            parts = [torch.empty_like(x) for _ in range(self.size)]
            dist.all_gather(parts, x, group=self.group)
            return torch.stack(parts)

        stacks = [self._through(x, gathered) for x in arrays]
        return [tuple(stack[i, ...] for stack in stacks) for i in range(self.size)]

    def first(self, arrays: Leaves) -> Leaves:
        def given(x: Tensor) -> Tensor:
            dist.broadcast(x, group=self.group, group_src=0)
            return x

        return tuple(self._through(x, given) for x in arrays)

    def texts(self, text: str) -> list[str]:
        found: list[Any] = [None] * self.size
        with _connected():
            dist.all_gather_object(found, text, group=self.group)
        return found

    def _through(self, x: Array, collective: Callable[[Tensor], Tensor]) -> Array:
        """What a collective makes of a copy of an array, in its own framework and on its device."""
        owner, here = registry.owner(x), registry.get("torch")
        moved: Any = exchange.move(x, here, device=self._own)
        moved = moved.detach().clone(memory_format=torch.contiguous_format)
        with _connected():
            found = collective(moved)
        return exchange.move(found, owner, device=device_of(x))


@contextmanager
def _connected() -> Iterator[None]:
    """Say of a lost connection whose message to look for."""
    try:
        yield
    except (RuntimeError, dist.DistBackendError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise GroupError(
            f"another process of the group ended or could not be reached ({reason}). Its own message says why"
        ) from error
