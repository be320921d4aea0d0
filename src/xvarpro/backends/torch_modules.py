"""Modules of PyTorch: copies around other tensors, and what makes a forward depend on more than its input."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import Parameter, is_lazy

from xvarpro.backends.modules import Architecture
from xvarpro.core.namespace import device
from xvarpro.core.struct import Leaves
from xvarpro.errors import ProblemError


class TorchArchitecture(Architecture):
    """A `torch.nn.Module` without its parameters that require gradients."""

    framework = "torch"

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        named = dict(module.named_parameters())
        # of a module that was filled, parameters are plain tensors
        free = {name: p for name, p in named.items() if p.requires_grad or not isinstance(p, Parameter)}
        self.names, self.arrays = tuple(free), tuple(free.values())
        self.held = (*(p for name, p in named.items() if name not in free), *module.buffers())
        self._moved: dict[Any, TorchArchitecture] = {}

    @property
    def form(self) -> str:
        return str(self.module)

    def takes(self, x: object) -> bool:
        return isinstance(x, Tensor)

    def filled(self, arrays: Leaves) -> nn.Module:
        here = self._beside(arrays)
        return _filled(here.module, dict(zip(map(id, here.arrays), arrays, strict=True)))

    def returned(self, arrays: Leaves) -> nn.Module:
        here = self._beside(arrays)
        tensors: Any = arrays
        new = [Parameter(x.detach()) for x in tensors]
        kept: nn.Module = copy.deepcopy(here.module, dict(zip(map(id, here.arrays), new, strict=True)))
        return kept

    def holding(self, held: Sequence[Any]) -> nn.Module:
        new: dict[int, Any] = {}
        for x, old in zip(held, self.held, strict=True):
            y = x.clone() if isinstance(x, Tensor) else torch.tensor(x, dtype=old.dtype, device=device(old))
            new[id(old)] = Parameter(y, requires_grad=False) if isinstance(old, Parameter) else y
        kept: nn.Module = copy.deepcopy(self.module, new)
        return kept

    def check(self) -> None:
        if any(map(is_lazy, self.module.parameters())):
            raise ProblemError(
                "a module must have its parameters; got one whose shapes depend on its first input. Call it once before"
            )
        for name, part in self.module.named_modules():
            path = f"net.{name}" if name else "net"
            if isinstance(part, torch.jit.ScriptModule) or isinstance(vars(part).get("forward"), types.FunctionType):
                raise ProblemError(
                    f"a module must be one whose parameters can be replaced; got {path}, a {type(part).__name__}, "
                    "which is compiled around its own. Pass the module that was compiled"
                )
            derived = [name for name, x in vars(part).items() if isinstance(x, Tensor) and not x.is_leaf]
            if derived:
                raise ProblemError(
                    f"a module must compute what follows from its parameters in forward; got {path} with {derived[0]} "
                    "from before, as by torch.nn.utils.weight_norm. Use torch.nn.utils.parametrizations"
                )
            kind: Any = type(part)
            if part.training and _reads_training(kind) and not _is_idle(part):
                raise ProblemError(
                    "a module must be a pure function of its parameters and its input; got one in training mode with "
                    f"{path}, a {type(part).__name__}, whose forward depends on it. Call net.eval() before"
                )

    def kernels(self) -> list[int]:
        found = {id(part._parameters.get("weight")) for part in self.module.modules() if isinstance(part, _ConvNd)}
        return [int(id(p) in found) for p in self.arrays]

    def _beside(self, arrays: Leaves) -> TorchArchitecture:
        """Itself, or with buffers and frozen parameters on the device and in the dtype of other parameters."""
        if not arrays:
            return self
        x, own = arrays[0], self.arrays[0]
        place = device(x), x.dtype
        if place == (device(own), own.dtype):
            return self
        if place not in self._moved:
            self._moved[place] = TorchArchitecture(self.returned(self.arrays).to(*place))
        return self._moved[place]


def _filled(module: nn.Module, new: dict[int, Any]) -> nn.Module:
    """A module of modules that share all but their parameters with those that they are made of.

    PyTorch makes replicas for several devices in the same way. `torch.func.functional_call` would write to the module
    for as long as it runs, and methods of the module that are called by other names would not see the parameters.
    """
    made: dict[nn.Module, nn.Module] = {}
    for part in module.modules():
        kind: Any = type(part)
        made[part] = other = kind.__new__(kind)
        vars(other).update(vars(part))
    for part, other in made.items():
        fields = vars(other)
        fields["_parameters"] = {name: new.get(id(p), p) for name, p in part._parameters.items()}
        fields["_buffers"] = dict(part._buffers)
        fields["_modules"] = {name: None if m is None else made[m] for name, m in part._modules.items()}
        for name, x in vars(part).items():
            if isinstance(x, types.MethodType) and x.__self__ in made:
                fields[name] = types.MethodType(x.__func__, made[x.__self__])
    return made[module]


@cache
def _reads_training(cls: Any) -> bool:
    """Whether a method of the class, but for those of all modules, looks at whether the module is trained."""
    own = cls.__mro__[: cls.__mro__.index(nn.Module)]
    methods = (x for base in own for x in vars(base).values() if isinstance(x, types.FunctionType))
    return any("training" in code.co_names for f in methods for code in _codes(f.__code__))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A piece of code with those of the functions inside of it."""
    yield code
    for x in code.co_consts:
        if isinstance(x, types.CodeType):
            yield from _codes(x)


def _is_idle(part: nn.Module) -> bool:
    """Whether what training mode switches on does nothing: a rate of 0, or statistics that are not kept."""
    rates = [x for name in ("p", "dropout") if isinstance(x := getattr(part, name, None), int | float)]
    return getattr(part, "track_running_stats", None) is False or (bool(rates) and not any(rates))
