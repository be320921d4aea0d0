"""What is checked of a model on PyTorch: that its gradient is not cut, and that it writes to nothing."""

from __future__ import annotations

from typing import Any

import torch
from optree import tree_leaves
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from xvarpro.backends.interface import Function
from xvarpro.errors import ModelError


def check_reached(
    fun: Function, arrays: tuple[Tensor, ...], outputs: Any, primals: tuple[Tensor, ...], constants: tuple[Tensor, ...]
) -> None:
    """Check that no array without a path of derivatives to `outputs`, computed from `arrays`, moves their values."""
    reached = _leaves_of(outputs)
    given = arrays[: len(primals)]
    cut = [i for i, x in enumerate(given) if x.is_leaf and id(x) not in reached and x.numel()]
    if not cut:
        return

    def moved(i: int, p: Tensor) -> Tensor:
        # along no direction that a sum or a quotient is likely to hide, and too short for a curvature to show
        way = torch.arange(1, p.numel() + 1, dtype=p.dtype, device=p.device).cos().reshape(p.shape)
        return p + torch.finfo(p.dtype).eps ** 0.5 * p.abs().max().clamp(min=1.0) * way if i in cut else p

    with torch.no_grad():
        others = fun(*(moved(i, p) for i, p in enumerate(primals)), *constants)
        for x, y in zip(outputs, others, strict=True):
            if x.shape == y.shape and x.numel() and (x.is_floating_point() or x.is_complex()):
                rounding = 100 * torch.finfo(x.dtype).eps * x.abs().max()
                if (off := (x - y).abs().max()) > rounding:
                    which = "" if len(cut) == len(primals) else f" of shape {tuple(primals[cut[0]].shape)}"
                    raise ModelError(
                        f"what a model returns must be differentiable by PyTorch; got values that move with a "
                        f"parameter{which}, by {float(off):.2g} for a small step, and no gradient with respect to it: "
                        "the gradient is cut. Take .detach(), .item(), float(), torch.tensor(), torch.no_grad() and "
                        "NumPy's functions out of the model; what shall stay constant belongs in data, or in "
                        "parameters with .requires_grad_(False)"
                    )


def _leaves_of(outputs: Any) -> set[int]:
    """The ids of the leaves in the graph of what was computed."""
    found = {id(y) for y in outputs if y.is_leaf}
    left = [y.grad_fn for y in outputs if y.grad_fn is not None]
    seen = set(left)
    while left:
        node = left.pop()
        found.add(id(getattr(node, "variable", None)))
        new = {parent for parent, _ in node.next_functions if parent is not None} - seen
        seen |= new
        left.extend(new)
    return found


class Watch(TorchFunctionMode):
    """The tensors that functions of PyTorch are given and have not made, with how often these were written to.

    `trained` are the parameters of modules of which they have made something that has a gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[int, tuple[Tensor, int]] = {}
        self.made: dict[int, Tensor] = {}
        self.trained: dict[int, Tensor] = {}

    def __torch_function__(self, fun: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _tensors((args, kwargs))
        for x in given:
            if id(x) not in self.made:
                self.given.setdefault(id(x), (x, x._version))
        found = fun(*args, **(kwargs or {}))
        made = _tensors(found)
        if any(x.requires_grad for x in made):
            self.trained |= {id(x): x for x in given if isinstance(x, Parameter) and x.requires_grad}
        self.made |= {id(x): x for x in made if id(x) not in self.given}
        return found

    @property
    def written(self) -> str:
        """Which of them have changed, in words."""
        shapes = [tuple(x.shape) for x, version in self.given.values() if x._version != version]
        if not shapes:
            return ""
        return (
            f"it writes to a tensor of shape {shapes[0]} that is not its own, as BatchNorm in training mode, "
            "x.clamp_() of data, and a module that is made inside do"
        )


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor) and not x.is_inference()]
