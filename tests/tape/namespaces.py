"""The raw namespaces the tape is tested over, each with its scatter-add and its road to NumPy; derivatives forward."""

from typing import Any, NamedTuple

import array_api_compat.numpy as xpn
import array_api_compat.torch as xpt
import array_api_strict as xps
import numpy as np
import torch

from xvarpro.backends.tape import vjp


class Raw(NamedTuple):
    xp: Any
    index_add: Any

    def array(self, a: np.ndarray) -> Any:
        return torch.from_numpy(np.array(a)) if self.xp is xpt else self.xp.asarray(a)

    @property
    def how(self) -> dict[str, Any]:
        return {"xp": self.xp, "index_add": self.index_add}


def host(x: Any) -> np.ndarray:
    if isinstance(x, torch.Tensor):
        return x.detach().resolve_conj().resolve_neg().numpy()
    return np.asarray(x) if isinstance(x, (np.ndarray, np.generic)) else np.from_dlpack(x)


def add_numpy(x, key, v):
    x = x.copy()
    np.add.at(x, key, v)
    return x


def add_strict(x, key, v):
    return xps.asarray(add_numpy(host(x), host(key), host(v)))


def add_torch(x, key, v):
    return x.index_put((key,), v, accumulate=True)


NUMPY = Raw(xpn, add_numpy)
STRICT = Raw(xps, add_strict)
TORCH = Raw(xpt, add_torch)
RAW = {"numpy": NUMPY, "array-api-strict": STRICT, "torch": TORCH}


def jvp(fun, primals, tangents, constants=(), **how):
    """`fun` and its derivative along `tangents`: the transpose of the pull-back, which the tape records too."""
    outputs, pullback = vjp(fun, primals, constants, **how)
    single = not isinstance(outputs, (tuple, list))
    moved = pullback.transposed((outputs,) if single else outputs)(tuple(tangents))
    return outputs, moved[0] if single else moved
