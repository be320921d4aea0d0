"""What a user's functions return, looked at once before a solve and compared with what the rest expects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from xvarpro.core import trees
from xvarpro.core.struct import Array, Leaves, Tree
from xvarpro.driver.transfer import FLOATS
from xvarpro.errors import ModelError, ProblemError
from xvarpro.lower import QR
from xvarpro.objective.least_squares import EvaluatedLevel, LevelOutputs, as_matrix, is_complex_design
from xvarpro.objective.reduced import ModelStructure, Parts, Reduced
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.problem import Level, Problem
from xvarpro.problem.row_chunks import RowChunks


def check_model(reduced: Reduced, stated: Problem, theta: Leaves, dtype: str) -> ModelStructure:
    """Call the user's functions once, as the gradient will, and compare what they return with what the rest expects."""
    backend = reduced.backend
    constants = reduced.constants
    skeleton: Any = None
    y_ndim, columns, w_shape, complex_w, exact = 2, None, (0, 0), False, True

    def probe(*arrays: Array) -> Leaves:
        nonlocal skeleton, y_ndim, columns, w_shape, complex_w, exact
        parts = reduced.evaluate(arrays[: len(theta)], arrays[len(theta) :])
        _check_parts(parts, stated, arrays[0], dtype)
        own, lam = reduced.problem.lower, parts.lower.lam
        exact = reduced.solver(
            EvaluatedLevel(parts.lower.M, theta[0], own.lam if lam is None else lam, own.Omega)
        ).exact
        y_ndim = 2 if parts.lower.y is None else parts.lower.y.ndim
        columns = next((k for k in (s.M.columns for s in outputs_of(parts)) if k is not None), None)
        y = reduced.problem.lower.y if parts.lower.y is None else parts.lower.y
        if trees.is_array(y):
            w_shape = (parts.lower.M.shape[1], as_matrix(y).shape[1])
            complex_w = trees.is_complex(y) or is_complex_design(parts.lower.M)
        outputs, skeleton = trees.partition(parts)
        return outputs

    try:
        outputs = backend.trace(lambda *theta: backend.vjp(probe, theta, constants)[0], *theta)
    except (ProblemError, ModelError):
        raise
    except Exception as error:
        raise ModelError(
            f"a model function failed on the {backend.name} backend: {type(error).__name__}: {error}. "
            "Inside it, compute with xp = xv.array_namespace(theta) and take arrays from `data` only"
        ) from error
    shapes = tuple((tuple(x.shape), x.dtype) for x in outputs)
    return ModelStructure(skeleton, shapes, y_ndim, columns, w_shape, complex_w, exact)


def first_rows(problem: Problem) -> Problem:
    """The first chunk of a level in place of all of its rows, for a look at what the user's functions return."""
    levels, data = [], []
    for i, level in enumerate(problem.levels):
        if isinstance(level.y, RowChunks):
            source: Any = level.y.source
            data.append(tuple(source.first()))
            # one chunk may have fewer rows than there are unknowns, whatever all of them have
            level = replace(level, y=level.y.y or _given, solver=QR())
        else:
            data.append((problem.data, None))
        y = partial(_of_level, level.y, i) if callable(level.y) else level.y
        levels.append(replace(level, M=partial(_of_level, level.M, i), y=y))
    return replace(problem, lower=levels[0], upper=levels[1] if levels[1:] else None, data=tuple(data))


def _of_level(fun: Callable[..., Any], i: int, theta: Tree, data: Any) -> Any:
    return data[i][1] if fun is _given else fun(theta, data[i][0])


def _given() -> None:
    """Stands for a target that comes with its data."""


def outputs_of(parts: Parts) -> list[LevelOutputs]:
    """What each level's functions returned."""
    return [parts.lower] + ([] if parts.upper is None else [parts.upper])


def _check_parts(parts: Parts, problem: Problem, theta: Array, dtype: str) -> None:
    single = problem.is_separable
    levels = [problem.lower] if problem.upper is None else [problem.lower, problem.upper]
    unknowns, sides = {}, {}
    for level, stated, prefix in zip(levels, outputs_of(parts), ("" if single else "lower ", "upper "), strict=False):
        M = stated.M
        _check_design(prefix, M, theta, dtype)
        rows, sides[f"{prefix}y"], shape = _check_target(prefix, level, stated.y, theta, dtype)
        unknowns[f"{prefix}M(theta)"] = M.shape[1]
        if rows is not None and M.shape[0] != rows:
            raise ProblemError(
                f"{prefix}M(theta) has shape {tuple(M.shape)} and {prefix}y has shape {shape}: "
                "they need the same number of rows"
            )
        if M.columns not in (None, sides[f"{prefix}y"]):
            raise ProblemError(
                f"{prefix}M(theta) has a design for each of {M.columns} right-hand sides, "
                f"and {prefix}y has shape {shape}"
            )
        if level.Omega is not None and tuple(level.Omega.shape) != (M.shape[1], M.shape[1]):
            raise ProblemError(
                f"Omega has shape {tuple(level.Omega.shape)} and {prefix}M(theta) has shape {tuple(M.shape)}: "
                f"Omega must be {(M.shape[1], M.shape[1])}"
            )
        if stated.lam is not None:
            _check_scalar(stated.lam, f"the {prefix}ridge lam", theta, dtype)
    if len(set(unknowns.values())) > 1:
        raise ProblemError(f"the levels share w, but their designs have different numbers of columns: {unknowns}")
    if len({k for k in sides.values() if k is not None}) > 1:
        found = " and ".join(sorted(str(k) for k in sides.values()))
        raise ProblemError(f"the levels' targets have {found} columns: they share w, so they need the same number")
    m, n = parts.lower.M.shape
    if problem.lower.W is not None:
        problem.lower.W.check(n, max((k for k in sides.values() if k is not None), default=None))
        n = problem.lower.W.dimension(n)
    if n > m and not problem.lower.lam and problem.lower.solver is None:
        raise ProblemError(
            f"the lower level has more unknowns than rows ({n} > {m}) and no ridge, so w is not unique: "
            "pass lam > 0, or solver=xv.lower.SVD() for the w of minimum norm"
        )
    if parts.R is not None:
        _check_scalar(parts.R, "R", theta, dtype)


def _check_scalar(x: Any, what: str, theta: Array, dtype: str) -> None:
    check_array(x, what, theta, dtype)
    if x.ndim:
        raise ModelError(f"{what} must return a scalar, got shape {tuple(x.shape)}")


def _check_design(name: str, M: Any, theta: Array, dtype: str) -> None:
    arrays = trees.partition(M)[0]
    held = getattr(M, "array", arrays)
    if not arrays or isinstance(held, list | dict):
        raise ModelError(
            f"the {name}model function M must return an array or an operator, got {type(held).__name__}: "
            "stack its parts with xp.stack or xp.concat"
        )
    for array in arrays:
        if not trees.is_array(array) or "int" not in str(array.dtype):  # indices are part of a structure
            check_array(array, f"the {name}model function M", theta, dtype, takes_complex=True)
    if len(M.shape) != 2:
        raise ModelError(f"the {name}model function M must return a matrix (m, n), got shape {tuple(M.shape)}")


def _check_target(
    name: str, level: Level, y: Array | None, theta: Array, dtype: str
) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Rows, columns and shape of a target as its user knows it; None where only a pass over chunks would tell."""
    if isinstance(level.y, ColumnChunks):
        return None, None, ()
    if y is not None:
        check_array(y, f"the {name}model function y", theta, dtype, takes_complex=True)
    shape = tuple((level.y if y is None else y).shape)
    if len(shape) not in (1, 2):
        raise ModelError(f"the {name}model function y must return an array of shape (m,) or (m, k), got shape {shape}")
    return shape[0], 1 if len(shape) == 1 else shape[1], shape


def check_array(x: Any, what: str, theta: Array, dtype: str, takes_complex: bool = False) -> None:
    """Refuse what is no array of theta's framework and dtype, or of its complex kin."""
    if not trees.is_array(x):
        raise ModelError(f"{what} must return an array, got {type(x).__name__}")
    if trees.array_namespace(x) is not trees.array_namespace(theta):
        raise ModelError(
            f"{what} left the array namespace it was given: it returned {type(x).__module__}.{type(x).__name__} for "
            f"theta of {type(theta).__module__}.{type(theta).__name__}. Use xp = xv.array_namespace(theta)"
        )
    kind = str(x.dtype).rsplit(".", maxsplit=1)[-1]
    if takes_complex and kind == FLOATS[dtype]:
        return
    if kind != dtype:
        raise ModelError(f"{what} must return {dtype}, theta's dtype, got {kind}")
