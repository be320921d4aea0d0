"""Modules of frameworks as trees: their parameters are the leaves, and everything else of them is the structure.

The class of a module becomes a node of optree when it is first met, so that all functions of `core.trees` take modules.
What is put into the structure in their place decides what comes out: arrays of the framework make a module again, and
anything else, such as NumPy arrays or numbers of leaves, a `ModuleParameters`, which maps names to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import optree

from xvarpro.backends.registry import get, loaded, to_numpy
from xvarpro.core import trees
from xvarpro.core.struct import NAMESPACE, Array, Leaves, Tree
from xvarpro.errors import ProblemError


class Architecture(ABC):
    """Everything of a module but its trainable parameters.

    Parameters
    ----------
    module : object
        It is kept, and never written to.

    Attributes
    ----------
    framework : str
        Name of the backend that its arrays belong to.
    names : tuple of str
        Dotted names of the parameters, in the framework's order; tied ones once.
    arrays : tuple of arrays
        The parameters of `module`.
    held : tuple of arrays
        Buffers, statistics and frozen parameters.
    """

    framework: ClassVar[str]
    names: tuple[str, ...]
    arrays: Leaves
    held: Leaves

    def __init__(self, module: Any) -> None:
        self.module = module

    @property
    @abstractmethod
    def form(self) -> object:
        """What has to be equal, besides `held`, for two modules to be the same function of their parameters."""

    @abstractmethod
    def takes(self, x: object) -> bool:
        """Whether a module can be made around `x`: an array of its framework, a traced one included."""

    @abstractmethod
    def filled(self, arrays: Leaves) -> Any:
        """A module around other parameters, for the functions of a problem: it may share all else with `module`."""

    def returned(self, arrays: Leaves) -> Any:
        """As `filled`, for the caller to keep: nothing that can be written to is shared with `module`."""
        return self.filled(arrays)

    @abstractmethod
    def holding(self, held: Sequence[Array]) -> Any:
        """A module like `module` with copies of these NumPy arrays, of the same shapes, in the places of `held`."""

    @abstractmethod
    def check(self) -> None:
        """Raise a `ProblemError` where the module is no pure function of its parameters and its input."""

    def kernels(self) -> list[int]:
        """Of each parameter how many leading axes are rows of its matrix if it is a kernel of a convolution, else 0."""
        return [0] * len(self.names)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.module,)

    def __hash__(self) -> int:
        return hash((type(self.module), self.names))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Architecture) or (type(self.module), self.names) != (type(other.module), other.names):
            return False
        if self.module is other.module:
            return True
        pairs = zip(self.held, other.held, strict=False)
        same = len(self.held) == len(other.held) and all(x is y or _same_bits(x, y) for x, y in pairs)
        return same and bool(self.form == other.form)


def _same_bits(x: Array, y: Array) -> bool:
    try:
        a, b = to_numpy(x), to_numpy(y)
    except TypeError:  # a sparse tensor, or a dtype that NumPy does not have: two of them are compiled for twice
        return False
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


class ModuleParameters(Mapping[str, Any]):
    """What stands in the places of a module's parameters, by name, where no module can be made around it."""

    def __init__(self, architecture: Architecture, values: Iterable[Any]) -> None:
        self.architecture = architecture
        self._values = dict(zip(architecture.names, values, strict=True))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


def _unflatten(architecture: Architecture, children: Iterable[Any]) -> Any:
    values = tuple(children)
    if all(map(architecture.takes, values)):
        return architecture.filled(values)
    return ModuleParameters(architecture, values)


def _flatten(module: Any) -> tuple[Leaves, Architecture, tuple[str, ...]]:
    found = _architecture(module)
    return found.arrays, found, found.names


def _entries(x: ModuleParameters) -> tuple[Leaves, Architecture, tuple[str, ...]]:
    return tuple(x.values()), x.architecture, x.architecture.names


def _register(cls: Any, flatten: Callable[[Any], Any]) -> None:
    register: Any = optree.register_pytree_node  # typed for collections, works for any class
    register(cls, flatten, _unflatten, path_entry_type=optree.MappingEntry, namespace=NAMESPACE)


_register(ModuleParameters, _entries)
_classes: dict[type, str] = {}  # of modules that have been met, and the backend that each belongs to
_adopting = Lock()


def adopt(leaves: Iterable[Any]) -> None:
    """Make modules that are leaves of a tree nodes of trees from now on, with their parameters for leaves."""
    for x in leaves:
        if trees.is_array(x) or isinstance(x, int | float | str):
            continue
        owner = next((backend for backend in loaded() if backend.architecture(x) is not None), None)
        with _adopting:
            if owner is not None and type(x) not in _classes:
                _register(type(x), _flatten)
                _classes[type(x)] = owner.name


def taken(theta: Tree) -> Tree:
    """A tree of the caller's with copies of its modules, which later changes of the caller's do not reach.

    Raises
    ------
    ProblemError
        The forward of a module depends on more than its parameters and its input.
    """
    adopt(trees.named(theta)[0])
    for architecture in architectures(theta):
        architecture.check()
    return own(theta)


def architectures(tree: Tree) -> list[Architecture]:
    """Those of the modules in a tree, or of what stands in their places."""
    found = optree.tree_leaves(tree, is_leaf=_is_module, namespace=NAMESPACE)
    return [_architecture(x) for x in found if _is_module(x)]


def kernel_rows(tree: Tree) -> list[int]:
    """For each leaf, how many leading axes are rows of the matrix if it is a kernel of a convolution, else 0.

    What a module says of its parameters counts; outside of modules every leaf of four axes is taken for one.
    """
    rows: list[int] = []
    for x in optree.tree_leaves(tree, is_leaf=_is_module, namespace=NAMESPACE):
        if _is_module(x):
            rows += _architecture(x).kernels()
        else:
            rows.append(1 if len(getattr(x, "shape", ())) == 4 else 0)
    return rows


def own(tree: Tree) -> Tree:
    """A tree whose modules are for the caller to keep: see `Architecture.returned`."""
    return _mapped(_returned, tree)


def held(tree: Tree) -> dict[str, Array]:
    """The arrays that modules of a tree hold besides their parameters, by ``held_0``, ``held_1`` and so on."""
    found = [x for architecture in architectures(tree) for x in architecture.held]
    return {f"held_{i}": x for i, x in enumerate(found)}


def holding(tree: Tree, new: Mapping[str, np.ndarray]) -> Tree:
    """A tree whose modules hold copies of the arrays of that name, and what they have where there is none.

    Raises
    ------
    ProblemError
        The modules hold arrays of other shapes.
    """
    old = held(tree)
    if any(name not in old or tuple(old[name].shape) != x.shape for name, x in new.items()):
        want, got = ([tuple(x.shape) for x in arrays.values()] for arrays in (new, old))
        raise ProblemError(
            f"like must hold buffers and frozen parameters of the shapes {want}; got {got}. Pass the module of the "
            "solve, or another one that was made like it"
        )
    supply = iter([new.get(name, x) for name, x in old.items()])

    def put(module: Any) -> Any:
        found = _architecture(module)
        return found.holding([next(supply) for _ in found.held])

    return _mapped(put, tree)


def measures(treedef: Any, values: Sequence[Any]) -> Tree:
    """A tree of what was found of each leaf, such as its error: no module, but a `ModuleParameters` in its place."""
    places = trees.unflatten(treedef, range(len(values)))

    def put(x: Any) -> Any:
        if isinstance(x, ModuleParameters):
            return ModuleParameters(x.architecture, [values[i] for i in x.values()])
        return values[x]

    return optree.tree_map(put, places, is_leaf=_is_module, namespace=NAMESPACE)


def by_name(tree: Tree) -> Tree:
    """A tree with dicts in the places of modules, with dotted names for keys."""
    return _mapped(lambda x: dict(zip(_architecture(x).names, trees.leaves(x), strict=True)), tree)


def _returned(module: Any) -> Any:
    if isinstance(module, ModuleParameters):
        return module
    found = _architecture(module)
    return found.returned(found.arrays)


def _is_module(x: object) -> bool:
    return type(x) in _classes or isinstance(x, ModuleParameters)


def _architecture(module: Any) -> Architecture:
    if isinstance(module, ModuleParameters):
        return module.architecture
    found: Any = get(_classes[type(module)]).architecture(module)
    return found


def _mapped(fun: Callable[[Any], Any], tree: Tree) -> Tree:
    def one(x: Any) -> Any:
        return fun(x) if _is_module(x) else x

    return optree.tree_map(one, tree, is_leaf=_is_module, namespace=NAMESPACE)
