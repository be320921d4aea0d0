"""Names of the entries of theta and of w."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xvarpro.core import trees
from xvarpro.core.struct import Tree
from xvarpro.errors import ProblemError
from xvarpro.problem.parameters import Parameters

OTHERS = "w", "value", "status"  # of what stands in tables next to entries of theta


def entry_names(theta: Tree) -> list[str]:
    """A name for each entry of theta, in the order of its leaves: ``rates[0]``, ``rates[1]``, ``shift``.

    One that is called as another column of tables is, such as w, is ``theta.w``.
    """
    return list(each_name(theta))


def each_name(theta: Tree) -> Iterator[str]:
    """The same one by one, for theta of very many entries."""
    leaves, treedef = trees.flatten(theta)
    for place, x in zip(treedef.accessors(), leaves, strict=True):
        keys = [str(step.entry) for step in place]
        keys = ["theta", *keys] if keys[:1] and keys[0] in OTHERS else keys
        yield from each_of(".".join(keys) or "theta", getattr(x, "shape", ()))


def given_names(
    theta: Tree,
    shape: tuple[int, ...],
    names: Sequence[str] | Mapping[Any, Any] | Parameters | None = None,
    amplitudes: Sequence[str] | None = None,
) -> tuple[list[str], list[str]]:
    """A name for each entry of theta and of w, which has this shape: those given by a user, or those by place."""
    of_theta = _names_of(theta, names)
    if amplitudes is not None and not isinstance(amplitudes, str) and len(amplitudes) == math.prod(shape) != shape[0]:
        return of_theta, [str(name) for name in amplitudes]
    rows = _named("amplitudes", amplitudes, indexed("w", shape[:1]), "row of w")
    of_w = [x for name in rows for x in indexed(name, shape[1:])]
    return of_theta, of_w if amplitudes else indexed("w", shape)


def _names_of(theta: Tree, names: Sequence[str] | Mapping[Any, Any] | Parameters | None) -> list[str]:
    if isinstance(names, Parameters):
        if isinstance(theta, Mapping) and theta.keys() != names.theta0.keys():
            raise ProblemError(
                f"names must be the Parameters of this fit, of which {', '.join(theta)} vary; got some of which "
                f"{', '.join(names.theta0) or 'none'} do"
            )
        return _named("names", names.names, entry_names(theta), "entry of theta")
    if names is None or not isinstance(theta, dict):
        return _named("names", names, entry_names(theta), "entry of theta")
    leaves, treedef = trees.flatten(theta)
    if isinstance(names, Mapping):
        given, same = trees.flatten(dict(names))
        if same != treedef:
            raise ProblemError(f"names must have the keys of theta, {list(theta)}; got {names!s:.80}")
        pairs = zip(given, leaves, strict=True)
        return [x for name, leaf in pairs for x in each_of(str(name), getattr(leaf, "shape", ()))]
    written = [i for x in _as_written(trees.unflatten(treedef, list(range(len(leaves))))) for i in trees.leaves(x)]
    if written != sorted(written):
        raise ProblemError(
            "names of a theta whose keys are not in alphabetical order must be a dict with the same keys, such as "
            f"{dict.fromkeys(theta, 'a name')}; got a list, which may be in the order of either"
        )
    return _named("names", names, entry_names(theta), "entry of theta")


def _as_written(tree: Tree) -> Iterator[Tree]:
    """What is in the dicts of a tree, in the order in which they were written: leaves have their keys sorted."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from _as_written(value)
    else:
        yield tree


def _named(what: str, given: Sequence[str] | Mapping[Any, Any] | None, default: list[str], each: str) -> list[str]:
    if given is None:
        return default
    if isinstance(given, str) or len(given) != len(default):
        got = repr(given) if isinstance(given, str) else f"{len(given)}"
        raise ProblemError(f"{what} must hold {len(default)} names, one per {each}; got {got:.80}")
    return [str(name) for name in given]


def indexed(name: str, shape: tuple[int, ...]) -> list[str]:
    """``name[i, j]`` for each entry of an array, the name alone for a scalar."""
    return list(each_of(name, shape))


def each_of(name: str, shape: tuple[int, ...]) -> Iterator[str]:
    """The same one by one."""
    return (f"{name}{list(at) if at else ''}" for at in itertools.product(*map(range, shape)))
