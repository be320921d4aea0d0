"""Modules of Flax NNX, and Equinox modules or any other tree that JAX knows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from xvarpro.backends.modules import Architecture
from xvarpro.core import trees
from xvarpro.core.struct import Leaves
from xvarpro.errors import ProblemError

_RATES = ("p", "rate", "dropout_rate")


def architecture(x: object) -> Architecture | None:
    """The architecture of a module, None where `x` is none."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(x, nnx.Module):
        return NnxArchitecture(x)
    return None if jax.tree_util.all_leaves((x,)) else TreeArchitecture(x)


class TreeArchitecture(Architecture):
    """A tree of JAX's without its arrays of floating-point numbers, which Equinox trains."""

    framework = "jax"

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        places, self._structure = jax.tree_util.tree_flatten_with_path(module)
        self._leaves = [x for _, x in places]
        self._at = [i for i, x in enumerate(self._leaves) if _is_parameter(x)]
        self._held_at = [i for i, x in enumerate(self._leaves) if _is_array(x) and not _is_parameter(x)]
        name: Any = jax.tree_util.keystr
        self.names = tuple(name(places[i][0], simple=True, separator=".") for i in self._at)
        self.arrays = tuple(self._leaves[i] for i in self._at)
        self.held = tuple(_bits(self._leaves[i]) for i in self._held_at)
        self._others = [x for x in self._leaves if not _is_array(x)]

    @property
    def form(self) -> tuple[Any, list[Any]]:
        return self._structure, self._others

    def takes(self, x: object) -> bool:
        return trees.is_array(x)  # of any framework: the tree may be part of the data of a problem on NumPy

    def filled(self, arrays: Leaves) -> Any:
        return self._with(self._at, arrays)

    def holding(self, held: Sequence[Any]) -> Any:
        return self._with(
            self._held_at, [_numbers(x, self._leaves[i]) for i, x in zip(self._held_at, held, strict=True)]
        )

    def _with(self, places: Sequence[int], arrays: Sequence[Any]) -> Any:
        leaves = list(self._leaves)
        for i, x in zip(places, arrays, strict=True):
            leaves[i] = x
        unflatten: Any = jax.tree_util.tree_unflatten
        return unflatten(self._structure, leaves)

    def check(self) -> None:
        leaves: Any = jax.tree_util.tree_leaves
        for x in leaves(self.module, is_leaf=_has_mode):
            if _has_mode(x) and not x.inference and not _is_idle(x):
                raise _trained(type(x).__name__, "net = eqx.nn.inference_mode(net)")

    def kernels(self) -> list[int]:
        eqx: Any = sys.modules.get("equinox")

        def is_convolution(x: Any) -> bool:
            return eqx is not None and isinstance(x, eqx.nn.Conv | eqx.nn.ConvTranspose)

        leaves: Any = jax.tree_util.tree_leaves
        found = {id(x.weight) for x in leaves(self.module, is_leaf=is_convolution) if is_convolution(x)}
        return [int(id(x) in found) for x in self.arrays]


class NnxArchitecture(Architecture):
    """A module of Flax NNX without its variables of type `nnx.Param`."""

    framework = "jax"

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        nnx = sys.modules["flax.nnx"]
        if not hasattr(nnx.Variable, "get_value"):
            raise ProblemError("modules of Flax NNX in the place of theta need Flax 0.12 or newer; got an older one")

        def is_parameter(path: Any, x: Any) -> bool:
            return isinstance(x, nnx.Param) and _is_parameter(x.get_value())

        self._graph, parameters, self._rest = nnx.split(module, is_parameter, ...)
        self._places = list(nnx.to_flat_state(parameters))
        self.names = tuple(".".join(map(str, path)) for path, _ in self._places)
        self.arrays = tuple(x.get_value() for _, x in self._places)
        self.held = tuple(map(_bits, jax.tree_util.tree_leaves(self._rest)))

    @property
    def form(self) -> object:
        return self._graph

    def takes(self, x: object) -> bool:
        return isinstance(x, Array)

    def filled(self, arrays: Leaves) -> Any:
        nnx = sys.modules["flax.nnx"]
        new = [(path, v.replace(x)) for (path, v), x in zip(self._places, arrays, strict=True)]
        # copies: variables of the caller's would be written to
        return nnx.merge(self._graph, nnx.from_flat_state(new), self._rest, copy=True)

    def holding(self, held: Sequence[Any]) -> Any:
        nnx = sys.modules["flax.nnx"]
        leaves, structure = jax.tree_util.tree_flatten(self._rest)
        rest = jax.tree_util.tree_unflatten(structure, [_numbers(x, y) for x, y in zip(held, leaves, strict=True)])
        return nnx.merge(self._graph, nnx.from_flat_state(self._places), rest, copy=True)

    def check(self) -> None:
        for _, x in sys.modules["flax.nnx"].iter_graph(self.module):
            modes = [getattr(x, name, None) is False for name in ("deterministic", "use_running_average")]
            if any(modes) and not _is_idle(x):
                raise _trained(type(x).__name__, "net.eval()")

    def kernels(self) -> list[int]:
        nnx = sys.modules["flax.nnx"]
        layers = (x for _, x in nnx.iter_graph(self.module) if isinstance(x, nnx.Conv | nnx.ConvTranspose))
        found = {id(x.kernel.get_value()) for x in layers}
        return [x.ndim - 1 if id(x) in found else 0 for x in self.arrays]


def _has_mode(x: object) -> bool:
    return isinstance(getattr(x, "inference", None), bool)


def _is_array(x: object) -> bool:
    return isinstance(x, Array | np.ndarray)


def _is_parameter(x: Any) -> bool:
    return _is_array(x) and bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _bits(x: Any) -> Any:
    """An array as one of numbers: keys of random numbers have a type of their own."""
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def _numbers(x: Any, like: Any) -> Any:
    """What `_bits` returned as an array of the type, the dtype and on the device of another."""
    if isinstance(like, np.ndarray):
        return np.array(x, dtype=like.dtype)
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(x), impl=jax.random.key_impl(like))
    return jax.device_put(jnp.array(x, dtype=like.dtype), like.sharding)


def _is_idle(x: object) -> bool:
    """Whether what it leaves out has a probability of 0."""
    rates = [rate for name in _RATES if isinstance(rate := getattr(x, name, None), int | float)]
    return bool(rates) and not any(rates)


def _trained(name: str, remedy: str) -> ProblemError:
    return ProblemError(
        "a module must be a pure function of its parameters and its input; got one in training mode with a "
        f"{name}, whose result depends on it. Call {remedy} before"
    )
