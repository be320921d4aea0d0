"""The reduced objective of right-hand sides in chunks whose weights lie in a set, with one chunk in memory.

A set is not rotated with its weights, so that such a target cannot be compressed. But columns of w do not depend on
each other: value, gradient and Gauss-Newton matrix are sums over the chunks, each of which is a problem in memory. The
user's functions are evaluated and pulled back once for all chunks, and pushed forward once for each part of one. The
loop over them is Python's; what is done with a part is compiled where the framework compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from xvarpro.backends import Backend
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import corner, inner, partition, plus
from xvarpro.errors import ProblemError
from xvarpro.objective.gauss_newton import gauss_newton
from xvarpro.objective.in_memory import ModelOutputs, ModelStructure, Solved
from xvarpro.objective.interface import LowerReport
from xvarpro.objective.mini_batch import LowerRows
from xvarpro.objective.reduced import Point, Reduced
from xvarpro.problem.column_chunks import columns
from xvarpro.problem.problem import Problem

NARROW = 2**11  # columns at once: on NumPy more take longer


class ByChunk(Reduced):
    """The reduced objective of a prepared separable problem with `ColumnChunks` that are not compressed.

    Parameters
    ----------
    problem : Problem
        Its target has a `Passes` for a source.
    backend : Backend
        For everything around the chunks: one whose loops are not compiled.
    treedef : optree.PyTreeSpec
        Structure of theta.
    structure : ModelStructure
    compiler : Backend
        For what is done with one chunk.
    energy : array, 0-d
        As for `Reduced`.
    """

    structure: ModelStructure

    def __init__(
        self,
        problem: Problem,
        backend: Backend,
        treedef: Any,
        structure: ModelStructure,
        compiler: Backend,
        energy: Any = 0.0,
    ) -> None:
        super().__init__(problem, backend, treedef, structure, energy)
        self.compiler = compiler
        self._energy: Any = None  # of the last pass: a pass for it alone would read all chunks once more

    # -- chunks

    def over_chunks(self, fun: Callable[..., Leaves], *args: Array) -> Iterator[Leaves]:
        """What ``fun(part, *args)``, a function of this module, returns of the problem of some columns after another.

        A Jacobian is several times as large as they are: not all of a large chunk are taken at once.
        """
        chunks: Any = self.problem.lower.y
        kind = Reduced
        for block in chunks:
            for y in columns(block, NARROW):
                yield self._of(y, kind, fun, *args)
                kind = _Further if self.problem.mu else Reduced

    def summed_over(self, fun: Callable[..., Leaves], *args: Array) -> Leaves:
        """The sums of what `over_chunks` gives."""
        total: Leaves = ()
        for found in self.over_chunks(fun, *args):
            total = plus(total, found) if total else found
        return total

    def _of(self, y: Array, kind: type[Reduced], fun: Callable[..., Leaves], *args: Array) -> Leaves:
        piece = replace(self.problem, lower=replace(self.problem.lower, y=y))
        held, skeleton = partition(piece)
        compiler, treedef, structure = self.compiler, self.treedef, self.structure

        def make(arrays: Leaves) -> Callable[..., Leaves]:
            return partial(fun, kind(skeleton.fill(arrays), compiler, treedef, structure))

        found: Leaves = compiler.call(make, (fun, kind, skeleton, treedef, structure))(held, *args)
        # read here: a framework that computes asynchronously would let chunks pile up
        compiler.to_floats([corner(found[0])])
        return found

    # -- values and slopes

    def point_of(self, theta: Leaves, outputs: ModelOutputs, solved: Solved | None = None) -> Point:
        """The point with the derivatives by what the user's functions return, in the place of a factor."""
        value, self._energy, *slopes = self.summed_over(_slopes, *partition(outputs)[0])
        none: Any = ()
        return Point(theta, value, none, none, tuple(slopes))

    def slopes(self, point: Point, outputs: ModelOutputs) -> Any:
        return point.factor

    def model_of_chunks(self, theta: Leaves) -> tuple[Point, Array, Array]:
        value, self._energy, slopes, H = self.summed_over(_model, *theta)
        none: Any = ()
        return Point(theta, value, none, none, none), slopes, H

    def scale(self, theta: Leaves) -> Array:
        if self._energy is None:
            self.point(theta)
        energy: Array = self._energy
        return energy

    # -- w

    def solve_lower(self, theta: Leaves, *y: Array) -> Array:
        """``w`` of one chunk, or of all of them side by side."""
        if y:
            return self._of(y[0], Reduced, _weights, *theta)[0]
        parts = [w for (w,) in self.over_chunks(_weights, *theta)]
        return namespace_of(*parts).concat(parts, axis=1)

    def value_and_w(self, theta: Leaves) -> tuple[Array, Array]:
        return self.point(theta).value, self.solve_lower(theta)

    def diagnose(self, theta: Leaves) -> LowerReport:
        """The worst of all chunks; ``w`` has sums of rows, which are finite where all of w is."""
        a: Any = None
        for found in self.over_chunks(_diagnosis, *theta):
            b = LowerReport(*found)
            xp = namespace_of(b.w)
            a = b if a is None else LowerReport(
                a.deficient | b.deficient,
                a.finite & b.finite,
                xp.maximum(a.condition, b.condition),
                b.zero_columns,
                b.columns,
                a.kinks + b.kinks,
                a.w + b.w,
                xp.maximum(a.cancellation, b.cancellation),
            )  # fmt: skip
        report: LowerReport = a
        return report

    # -- sizes

    @property
    def target_shape(self) -> tuple[int, int]:
        return self.structure.rows[0], self.samples

    @property
    def samples(self) -> int:
        passes: Any = self.problem.lower.y
        columns: int = passes.source.columns  # a pass has counted them
        return columns

    @property
    def rows(self) -> int:
        return self.samples

    def restricted(self, indices: Array, lower: LowerRows | None = None) -> Reduced:
        raise ProblemError(
            "mini-batches need y as an array where w lies in a set; got ColumnChunks. Use another algorithm, which "
            "passes over all chunks"
        )

    def check(self, theta: Leaves) -> None:  # a batch of all columns
        self.restricted(theta[0])


class _Further(Reduced):
    """Columns after the first ones: the penalty on theta counts once."""

    @property
    def half_mu(self) -> Any:
        return 0.0


def _slopes(part: Reduced, *arrays: Array) -> Leaves:
    """Value, energy and derivatives by what the user's functions return."""
    structure: Any = part.structure
    outputs = structure.skeleton.fill(arrays)
    point = part.point_of((), outputs)
    return (point.value, _energy(part), *partition(part.slopes(point, outputs))[0])


def _model(part: Reduced, *theta: Array) -> Leaves:
    point, slopes, H = gauss_newton(part, theta)
    return point.value, _energy(part), slopes, H


def _energy(part: Reduced) -> Array:
    y: Any = part.problem.lower.y
    return 0.5 * inner(y, y)


def _weights(part: Reduced, *theta: Array) -> Leaves:
    return (part.solve_lower(theta),)


def _diagnosis(part: Reduced, *theta: Array) -> Leaves:
    report = part.diagnose(theta)
    return report._replace(w=namespace_of(report.w).sum(report.w, axis=1, keepdims=True))
