"""Every design that `xvarpro.operators` exports, against its matrix written out entry by entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from xvarpro import operators
from xvarpro.core import trees
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.operators.interface import Operator
from xvarpro_conformance.problems import held, normal
from xvarpro_conformance.references import designs
from xvarpro_conformance.suite import Measured, Target, Typed, check, exported

SHAPES = (8, 4), (6, 6), (4, 8)
ROUNDING = 50.0  # in eps: products of short vectors, or a transform and its inverse


@dataclass(frozen=True, eq=False)
class Case:
    """An example around NumPy arrays, real or complex, and something real or complex to multiply it with."""

    M: Operator
    turn: tuple[str, ...]  # the precisions in which it represents its class where designs are compiled
    complex: bool = False
    first: bool = True  # of the first shape that its class has

    @property
    def k(self) -> int:
        return self.M.columns or 2

    def numbers(self, rows: int, seed: int) -> np.ndarray:
        return held(normal((rows, self.k), self.complex, seed))

    @property
    def w(self) -> np.ndarray:
        return self.numbers(self.M.shape[1], 1)

    @property
    def r(self) -> np.ndarray:
        return self.numbers(self.M.shape[0], 3)

    @property
    def y(self) -> np.ndarray:
        return self.numbers(self.M.shape[0], 4)

    @cached_property
    def A(self) -> np.ndarray:
        """The matrix, or one for each right-hand side."""
        return designs.dense(self.M)

    @cached_property
    def gradient(self) -> list[np.ndarray]:
        """Of ``Re <r, M w>`` by every array of M."""
        return designs.gradient(self.M, self.r, self.w)


@cache
def cases() -> dict[str, Case]:
    """Every example of every class in each shape that it has: real, complex, and real where complex numbers meet it."""
    found: dict[str, Case] = {}
    for kind in exported(operators, Operator):
        made = [(shape, M) for shape in SHAPES for M in kind.examples(shape)]
        for i, (shape, example) in enumerate(made):
            M, name, first = trees.map_arrays(held, example), f"{kind.__name__} {i}", shape == made[0][0]
            found[f"{name}, real"] = Case(M, ("float64",) * (i == 0), False, first)
            found[f"{name}, complex"] = Case(trees.map_arrays(_turned, M), ("float32",) * (i == 0), True, first)
            # these are all real or all complex, and the functions of MatrixFree its own
            if not isinstance(M, operators.LowRankPlusDiagonal | operators.MatrixFree):
                found[f"{name}, complex w"] = Case(M, (), True, False)
    return found


def _turned(x: np.ndarray) -> np.ndarray:
    return x + 0.5j * held(normal(x.shape, True, 0).imag) if x.dtype.kind == "f" else x


def _products(M: Operator, w: Array, r: Array, y: Array) -> tuple[Array, ...]:
    return M.matvec(w), M.rmatvec(r), M.residual(w, y), M.dense(), *moving(M.outer(r, w))


def moving(M: Operator) -> list[Array]:
    """Its arrays that have derivatives."""
    arrays = trees.partition(M)[0]
    return [x for x in arrays if namespace_of(x).isdtype(x.dtype, ("real floating", "complex floating"))]


def products(target: Target, case: Case) -> Typed:
    """``M w``, ``M^H r``, ``M w - y``, M, and the gradient's arrays."""
    target.represent(case.turn)
    return target.typed(_products, case.M, case.w, case.r, case.y)


@check("operators", cases)
def products_with_the_dense_form(target: Target, case: Case) -> Iterator[Measured]:
    """Products with the design, its conjugate transpose and the residual equal those of its matrix, written out.

    They have the target's precision, real or complex as the design is.
    """
    (Mw, Mr, e, A, *_), kinds = target.once(products, case)
    dense, tolerance, floats = case.A, ROUNDING * target.eps, {False: target.dtype, True: target.complex_dtype}
    yield Measured("dtypes", kinds[:4], (floats[case.complex],) * 3 + (floats[np.iscomplexobj(dense)],))
    yield Measured("dense", A, dense, tolerance)
    yield Measured("matvec", Mw, designs.times(dense, case.w), tolerance)
    yield Measured("rmatvec", Mr, designs.times(designs.adjoint(dense), case.r), tolerance)
    size = float(np.linalg.norm(case.y) + np.linalg.norm(Mw))
    yield Measured("residual", e, designs.times(dense, case.w) - case.y, tolerance, size)


@check("operators", cases)
def gradient_of_the_design(target: Target, case: Case) -> Iterator[Measured]:
    """`outer` is the gradient of ``Re <r, M w>`` by every array of the design, entry by entry, in its precision."""
    found = target.once(products, case)
    floats = {"f": target.dtype, "c": target.complex_dtype}
    kinds = [floats[x.dtype.kind] for x in trees.partition(case.M)[0] if x.dtype.kind in "fc"]
    yield Measured("dtypes", list(found.dtypes[4:]), kinds)
    for i, (one, other) in enumerate(zip(found.values[4:], case.gradient, strict=True)):
        yield Measured(f"array {i}", one, other, ROUNDING * target.eps)
