"""Results as files: what is written of them, and how it is checked when it is read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from os import PathLike
from typing import Any, TypeVar, get_type_hints

import numpy as np

from xvarpro.algorithms.interface import Algorithm
from xvarpro.backends import exchange, modules, registry, to_numpy
from xvarpro.core import trees
from xvarpro.core.checks import described
from xvarpro.core.namespace import device as device_of
from xvarpro.core.namespace import dtype_name
from xvarpro.core.status import Status
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError, warn_caller
from xvarpro.fit.serialization import checked, decode, encode, opaque
from xvarpro.losses.interface import Loss
from xvarpro.problem.loading import relocated, split_name
from xvarpro.results.files import NUMBERS, ArrayFile, reading, write_atomically
from xvarpro.results.outcome import Counts, Outcome, Trace, Verified, lost_digits
from xvarpro.results.recipe import Opaque, Recipe

FORMAT = 6
Kind = TypeVar("Kind", bound=Outcome)

_PLAIN = {
    "value": float, "gap_A": float, "gap_B": float, "n_iter": int, "algorithm": str, "provenance": dict,
    "seconds": float, "setup_seconds": float,
}  # fmt: skip
_TRACE = tuple(f.name for f in fields(Trace))
_RECIPE = {
    "theta0": object, "over": object, "algorithm": object, "tol": float, "max_iter": int, "scale": float,
    "fingerprints": dict, "problem": str | None,
}  # fmt: skip
_TREES = ("theta0", "over", "algorithm")


def save(fit: Outcome, path: str | PathLike[str], problem: str | None = None) -> None:
    """Write the result and the arguments of the solve to one ``.npz`` file, without pickle.

    The file is written whole or not at all: where writing fails or the process is killed, an older file stays. Of a
    module it holds the parameters, as a dict by dotted name, buffers and what else is frozen; `load` with
    ``like=net`` makes it a module again.

    Parameters
    ----------
    path : path
    problem : str, optional
        Name of a function without arguments that returns ``(problem, theta0)`` or ``(problem, theta0, over)``:
        ``package.module:function`` or ``file.py:function``. A file cannot store functions; `verify` calls this one
        if it is trusted. A relative path to a ``.py`` file that exists is stored as seen from the folder of `path`.

    Raises
    ------
    ProblemError
        theta holds something other than arrays in dicts with string keys, lists and tuples; `problem` is no name.
    OSError
        The file cannot be written.

    Examples
    --------
    >>> import os, tempfile, numpy as np, xvarpro as xv
    >>> t = np.linspace(0.0, 1.0, 9)[:, None]
    >>> fit = xv.solve(xv.separable(lambda theta, t: t**theta, t[:, 0], data=t), np.array([2.0]))
    >>> path = os.path.join(tempfile.mkdtemp(), "fit.npz")
    >>> fit.save(path, problem="mine.py:powers")
    >>> xv.Result.load(path).recipe.problem
    'mine.py:powers'
    """
    if not isinstance(path, str | bytes | PathLike):
        raise ProblemError(f"Result.save writes to a path; got {type(path).__name__}")
    if said := lost_digits(fit):
        raise ProblemError(f"Result.save needs the digits that were computed; got {said}")
    arrays = {f"trace_{name}": getattr(fit.trace, name) for name in _TRACE}
    tree, recipe = encode(modules.by_name(fit.theta), "theta", arrays), fit.recipe
    if lost := opaque(decode(tree, "theta", arrays)):
        raise ProblemError(
            "Result.save needs theta as arrays in dicts with string keys, lists and tuples; it holds "
            f"{lost.what}: save its leaves yourself"
        )
    folder = os.path.dirname(os.fsdecode(path))
    named, begins = (recipe.problem, recipe.folder) if problem is None else (problem, "")
    if named is not None:
        named = relocated(named, begins, folder)
    arrays |= _numbers_held(fit)
    meta = {
        "format": FORMAT,
        "theta": tree,
        "recipe": _encoded(replace(recipe, problem=named), arrays),
        "loss": encode(fit.loss, "loss", arrays),
        "status": fit.status.name,
        "counts": asdict(fit.counts),
        "verified": asdict(fit.verified),
        **{k: getattr(fit, k) for k in _PLAIN},
    }
    arrays["w"] = to_numpy(fit.w)
    text = np.array(json.dumps(meta))
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, meta=text, **arrays))


def read(kind: type[Kind], path: str | PathLike[str]) -> Kind:
    """See `Result.load`."""
    name = os.fsdecode(path)
    with reading(path, "Result.save") as file:
        meta = json.loads(file.text("meta"), parse_int=_whole)
        written = meta["format"]
        found = kind(**_parsed(meta, file, os.path.dirname(name))) if written == FORMAT else None
    if "kinds" in meta:
        raise ProblemError(
            f"Result.load reads files of Result.save; {name} is a checkpoint of a solve. Go on with it, with "
            f"xv.solve(problem, theta0, ..., resume={name!r})"
        )
    if found is None:
        raise ProblemError(
            f"Result.load reads format {FORMAT}; {name} has format {str(written)[:80]}: use the version of xvarpro "
            "that wrote it"
        )
    return found


def like(fit: Kind, like: Tree) -> Kind:
    """The result with theta in the containers of `like`, theta and w as arrays of its framework: see `load`."""
    like = modules.taken(like)
    own, want, got = _numbers_held(fit), _shapes(fit.theta), _shapes(like)
    held = own if modules.architectures(like) else {}  # dicts and arrays have no place for them
    if got != want:
        more = ", ".join(name for name in got if name not in want)
        frozen = f". If the module of the solve had {more} frozen, freeze that in like, by .requires_grad_(False)"
        raise ProblemError(f"like must hold arrays of the shapes {want}; got {got}{frozen if held and more else ''}")
    leaves, treedef = trees.flatten(like)

    def moved(x: Array, other: Array) -> Array:
        return exchange.move(x, registry.owner(other), dtype=dtype_name(x), device=device_of(other))

    def ordered(tree: Tree) -> list[Array]:
        # by name: the order of leaves is that of keys in a dict, that of insertion in an OrderedDict
        named = dict(zip(trees.paths(tree), trees.leaves(tree), strict=True))
        return [named[name] for name in trees.paths(like)]

    found = [moved(x, other) for x, other in zip(ordered(fit.theta), leaves, strict=True)]
    theta = modules.own(modules.holding(trees.unflatten(treedef, found), held))
    treedef = trees.flatten(theta)[1]
    if lacking := modules.held(like).keys() - held.keys():
        warn_caller(
            f"of what the module holds besides its parameters, such as statistics of BatchNorm, {len(lacking)} of "
            f"{len(modules.held(like))} arrays are not in the file: those of like are taken, which must be those "
            "of the solve",
            UserWarning,
        )
    return replace(
        fit,
        theta=theta,
        _w=moved(fit.w, leaves[0]),
        _held=own,
        recipe=replace(fit.recipe, theta0=trees.unflatten(treedef, ordered(fit.recipe.theta0))),
    )


def _numbers_held(fit: Outcome) -> dict[str, np.ndarray]:
    """Buffers and frozen parameters of theta's modules, but for what a file cannot store."""
    found: dict[str, np.ndarray] = {}
    for name, x in (modules.held(fit.theta) or fit._held or {}).items():
        try:
            host = to_numpy(x)
        except TypeError:  # a sparse tensor, or a dtype that NumPy does not have
            continue
        if host.dtype.kind in NUMBERS:
            found[name] = host
    return found


def _whole(digits: str) -> int:
    if len(digits) > 19:
        raise ProblemError(f"it holds {digits[:19]}..., a whole number of more than 64 bits")
    return int(digits)


def _shapes(tree: Tree) -> dict[str, tuple[int, ...]]:
    named = zip(trees.paths(tree), trees.leaves(tree), strict=True)
    return {name: tuple(getattr(x, "shape", ())) for name, x in named}


def _check_provenance(stored: Mapping[str, Any]) -> None:
    """Refuse a provenance from a file that lacks what a verification reads."""
    match stored:
        case {
            "backend": str(),
            "device": str(),
            "dtype": "float32" | "float64",
            "determinism": {"held": bool(), "unpromised": list()},
        }:
            return
    raise ProblemError("its provenance must have a backend, a device, a dtype and whether the solve was deterministic")


def _parsed(meta: Any, file: ArrayFile, folder: str) -> dict[str, Any]:
    """The fields of a result from a file, or a ProblemError that says what in the file is none of a result."""
    parts = {"theta": object, "recipe": dict, "loss": object, "status": str, "counts": dict, "verified": dict}
    meta = checked(meta, {"format": int, **parts, **_PLAIN}, "result")
    _check_provenance(meta["provenance"])
    dtype = meta["provenance"]["dtype"]
    recipe = _recipe(meta["recipe"], file, dtype, folder)
    theta, loss = decode(meta["theta"], "theta", file), decode(meta["loss"], "loss", file)
    if not (loss is None or isinstance(loss, Loss | Opaque)):
        raise ProblemError(f"its loss is {loss!r:.80}")
    _check_finite(theta, "theta", dtype)
    if _shapes(theta) != _shapes(recipe.theta0):
        raise ProblemError(f"theta has the shapes {_shapes(theta)}, and its start {_shapes(recipe.theta0)}")
    if meta["status"] not in Status.__members__:
        raise ProblemError(f"there is no status {meta['status'][:80]}")
    status = Status[meta["status"]]
    if status.success and not all(math.isfinite(meta[name]) for name in ("value", "gap_A", "gap_B")):
        raise ProblemError(f"value and gap of a result that {status.name} must be finite")
    first, *rest = _TRACE
    trace = {first: file.array(f"trace_{first}", "fiu", (None,))}
    length = len(trace[first])
    if not 1 <= length <= meta["n_iter"] + 1:
        raise ProblemError(f"its trace has {length} entries after {meta['n_iter']} iterations")
    trace |= {name: file.array(f"trace_{name}", "fiu", (length,)) for name in rest}
    w = file.array("w", "fc")
    if w.ndim not in (1, 2) or w.real.dtype != dtype:
        raise ProblemError(f"w has shape {w.shape} and dtype {w.dtype} after a solve in {dtype}")
    return {
        **{name: meta[name] for name in _PLAIN},
        "theta": theta,
        "status": status,
        "counts": Counts(**checked(meta["counts"], get_type_hints(Counts), "counts")),
        "verified": Verified(**checked(meta["verified"], get_type_hints(Verified), "verified")),
        "trace": Trace(**trace),
        "_w": w,
        "_held": file.named("held_"),
        "recipe": recipe,
        "loss": None if isinstance(loss, Opaque) else loss,  # which the problem has
    }


def _encoded(recipe: Recipe, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """All of it but the folder as JSON; its arrays are added to `arrays`."""
    found = {name: getattr(recipe, name) for name in _RECIPE}
    found |= {"theta0": modules.by_name(recipe.theta0), "fingerprints": dict(recipe.fingerprints)}
    return found | {name: encode(found[name], name, arrays) for name in _TREES}


def _recipe(stored: Any, arrays: ArrayFile, dtype: str, folder: str) -> Recipe:
    """Inverse of `_encoded`, of a solve in a dtype; a ProblemError says what is none of a recipe."""
    read = checked(stored, _RECIPE, "recipe") | {name: decode(stored[name], name, arrays) for name in _TREES}
    if not isinstance(read["algorithm"], Algorithm | Opaque):
        raise ProblemError(f"the algorithm of its recipe is {read['algorithm']!r:.80}")
    if not all(isinstance(x, str) for x in read["fingerprints"].values()):
        raise ProblemError("fingerprints of its recipe must be strings")
    if read["problem"] is not None:
        split_name(read["problem"])
    if read["scale"] < 0:
        raise ProblemError(f"scale of its recipe must be >= 0; got {read['scale']}")
    _check_finite(read["theta0"], "theta0", dtype)
    return Recipe(**read, folder=folder)


def _check_finite(tree: Tree, name: str, dtype: str) -> None:
    """Refuse a tree from a file that holds anything but finite arrays of the dtype."""
    for x in trees.leaves(tree):
        if not (isinstance(x, np.ndarray) and x.dtype == dtype and np.isfinite(x).all()):
            kind = f"{described(x)} of {x.dtype}" if isinstance(x, np.ndarray) else described(x)
            raise ProblemError(f"{name} must hold finite arrays of {dtype}; got {kind}")
