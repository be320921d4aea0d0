"""Parameters that a set, a rule, an algorithm, a design or a solver refuses, each with what it says."""

from dataclasses import fields, is_dataclass, replace
from inspect import isabstract

import numpy as np
import pytest
import scipy.optimize

import xvarpro as xv
from xvarpro import algorithms, lower, operators, sets, steps
from xvarpro.core.struct import REQUIRED
from xvarpro.errors import ProblemError

A23, I3, Y = np.ones((2, 3)), np.eye(3), np.ones(15)


def model(theta, data):
    """A model that is never called."""


def identity(theta, data):
    return theta * xv.array_namespace(theta).eye(2)


class WithSolver(operators.Dense):
    """A design that names its solver, and not by an object."""

    def __init__(self, A, own):
        super().__init__(A)
        object.__setattr__(self, "own", own)

    def solver(self, lam, Omega):
        return self.own


WRONG = [
    # sets
    (lambda: sets.Box(2.0, 1.0), "lower <= upper, got lower=2.0, upper=1.0"),
    (lambda: sets.Box(np.nan, 1.0), "and lower <= upper, got lower=nan"),
    (lambda: sets.Box(np.array([0.0, np.inf]), np.inf), "Box: bounds must be lower < inf"),
    (lambda: sets.Box(-np.inf, np.array([0.0, -np.inf])), "Box: bounds must be lower < inf, upper > -inf"),
    (lambda: sets.Box(np.array([0.0, -np.inf]), 1.0).lmo(np.ones(2)), "has a minimum between finite bounds only"),
    (lambda: sets.Columns(sets.Box(0.0, np.inf)), "Columns: inner must be bounded"),
    (lambda: sets.Product((sets.Box(0.0, np.inf), sets.Simplex())), "Product: sets must be bounded"),
    (lambda: sets.LpBall(1.0), "LpBall: p must be a finite number > 1, got 1.0"),
    (lambda: sets.L2Ball(1.0, np.array([np.nan])), "L2Ball: offset must be finite, a number or a vector"),
    (lambda: sets.L2Ball(1.0, np.ones((2, 2))), "L2Ball: offset must be"),
    (lambda: sets.WeightedSimplex(0.0), "WeightedSimplex: weights must be finite and > 0"),
    (lambda: sets.WeightedSimplex(np.ones(2), 1.0, 1.0), "<weights, lower> must be <= bound, got 2 > 1"),
    (lambda: sets.WeightedSimplex(1.0, np.array([0.0, np.nan])), "WeightedSimplex: lower must be finite"),
    (lambda: sets.WeightedSimplex(np.ones(2), np.ones(3)), "of one length, got 2 and 3"),
    (lambda: sets.WeightedSimplex(bound=np.inf), "WeightedSimplex: bound"),
    (lambda: sets.WeightedL1Ball(np.array([1.0, -1.0])), "WeightedL1Ball: widths must be finite and >= 0"),
    (lambda: sets.WeightedL1Ball(1.0, np.array([np.inf, 0.0])), "WeightedL1Ball: offset must be finite"),
    (lambda: sets.ContinuousKnapsack(np.array([1.0, 0.0])), "ContinuousKnapsack: weights must be finite and > 0"),
    (lambda: sets.ContinuousKnapsack(1.0, -1.0), "ContinuousKnapsack: bound"),
    (lambda: sets.KSparsePolytope(0), "KSparsePolytope: k must be a whole number >= 1, got 0"),
    (lambda: sets.OWLBall(np.array([1.0, np.inf])), "OWLBall: weights must be finite and >= 0, one > 0"),
    (lambda: sets.OWLBall(np.array([1.0, -1.0])), "OWLBall: weights"),
    (lambda: sets.OWLBall(np.array([0.0, 0.0])), "OWLBall: weights"),
    (lambda: sets.Permutahedron(np.array([1.0, np.inf])), "Permutahedron: weights must be finite"),
    (lambda: sets.OrderedBox(1.0, 0.0), "OrderedBox: lower must be <= upper"),
    (lambda: sets.OrderedBox(-np.inf, 0.0), "OrderedBox: lower"),
    (lambda: sets.ConvexHull(np.ones(3)), "ConvexHull: atoms must be a finite matrix"),
    (lambda: sets.ConvexHull(np.array([[np.nan]])), "ConvexHull: atoms"),
    (lambda: sets.Ellipsoid(np.ones((2, 3))), "Ellipsoid: matrix must be finite and square"),
    (lambda: sets.Ellipsoid(np.array([[1.0, 2.0], [0.0, 1.0]])), "Ellipsoid: matrix must be symmetric"),
    (lambda: sets.Ellipsoid(np.array([[1.0, 2.0], [2.0, 1.0]])), "positive definite, its eigenvalues are -1 to 3"),
    (lambda: sets.Ellipsoid(np.array([[1.0, 0.0], [0.0, np.inf]])), "Ellipsoid: matrix must be finite and square"),
    (lambda: sets.Ellipsoid(np.array([1.0, 0.0])), "Ellipsoid: matrix must be finite and > 0"),
    (lambda: sets.Ellipsoid(1.0, np.nan), "Ellipsoid: offset must be finite"),
    (lambda: sets.Groups(sets.Box()), "Groups: inner must be a set of vectors"),
    (lambda: sets.Rows(sets.Rows()), "Rows: inner must be a set of vectors"),
    (lambda: sets.Groups(1.0), "Groups: inner must be a set such as"),
    (lambda: sets.Groups(groups=True), "groups must be a number >= 1"),
    (lambda: sets.Groups(groups=()), "groups must not be empty"),
    (lambda: sets.Groups(groups=((1,), (2,))), "hold each of 0, 1, .. once"),
    (lambda: sets.GroupL1InfBall(((0, 1), ())), "GroupL1InfBall: groups"),
    (lambda: sets.GroupL1InfBall(2.5), "GroupL1InfBall: groups"),
    (lambda: sets.GroupL12Ball(((0, 1), (2,))).lmo(np.ones(4)), "hold each of 4 entries once, got groups of 3"),
    (lambda: sets.Spectraplex(1.0, 3), "solver must be None or Lanczos"),
    (lambda: sets.SchattenBall(1.0), "p must be a finite number > 1"),
    (lambda: sets.Fantope(0), "k must be a whole number >= 1"),
    (lambda: sets.Lanczos(tol=1.0), "tol must be in (0, 1), got 1.0"),
    (lambda: sets.Lanczos(restarts=0), "restarts must be a whole number >= 1"),
    (lambda: sets.Transport(np.array([1.0, -1.0]), np.array([0.0])), "a must be a vector of finite numbers >= 0"),
    (lambda: sets.Transport(np.array([1.0]), np.array([2.0])), "equal totals"),
    (lambda: sets.Transport(np.ones((2, 2))), "a must be a vector"),
    (lambda: sets.Transport(np.zeros(2)), "not all 0"),
    (lambda: sets.Transport(None, np.array([1.0, np.nan])), "b must be a vector of finite numbers >= 0"),
    (lambda: sets.Fantope(3).check((2, 2)), "k must be at most the size of the matrix, got k=3"),
    (lambda: sets.Spectraplex().check((2, 3)), "constrains a square matrix"),
    (lambda: sets.Birkhoff().check((4,)), "constrains a square matrix"),
    (lambda: sets.NuclearBall().check((4,)), "constrains a matrix"),
    (lambda: sets.Transport(np.ones(2), np.ones(2)).check((2, 3)), "b has shape"),
    (lambda: sets.bounds(1.0, 0.0), "lower <= upper"),
    (lambda: sets.bounds([(0.0, 1.0), 2.0]), "must be pairs"),
    (lambda: sets.bounds({"a": 0.0}, 1.0), "upper must have the keys ['a'], got 1.0"),
    (lambda: sets.bounds(0.0, "b"), "bounds must be numbers"),
    (lambda: sets.bounds(scipy.optimize.LinearConstraint(np.eye(2))), "bounds must be numbers"),
    (lambda: sets.bounds({"a": 0.0}, {"b": 1.0}), "must have the keys"),
    (lambda: sets.Product((sets.Simplex(),), (1, 2)), "sizes must be 1 whole numbers"),
    (lambda: sets.Product((sets.Simplex(),), 3), "sizes must be 1 whole numbers >= 1, one per set, got 3"),
    (lambda: sets.Product(sets.Simplex()), "sets must be a tuple of sets"),
    (lambda: sets.Product((sets.Simplex(), 1.0)), "sets must be a set such as"),
    (lambda: sets.Product((sets.NuclearBall(),)), "must be sets of vectors"),
    (lambda: sets.Product((sets.Simplex(), sets.L1Ball())).check((5,)), "add up to the axis of length 5"),
    (lambda: sets.ShiftScale(sets.Simplex(), 0.0), "scale must be a finite number > 0"),
    (lambda: sets.ShiftScale(sets.Simplex(), 1.0, np.array([np.nan])), "shift must be finite"),
    (lambda: sets.ShiftScale(sets.Simplex(), 1.0, np.ones(3)).check((4,)), "must broadcast"),
    (lambda: sets.LinearImage(1.0), "LinearImage: inner must be a set such as"),
    (lambda: sets.LinearImage(sets.Simplex(), np.ones((0, 2))), "LinearImage: matrix must have two axes"),
    (lambda: sets.LinearImage(sets.Simplex(), np.array([[np.inf]])), "LinearImage: matrix must be finite numbers"),
    (lambda: sets.LinearImage(sets.Simplex(), None, np.nan), "LinearImage: shift must be finite numbers"),
    (lambda: sets.LinearImage(sets.Box(0.0, np.inf)), "LinearImage: inner must be bounded"),
    (lambda: sets.LinearImage(sets.NuclearBall()), "inner must be a set of vectors"),
    (lambda: sets.LinearImage(sets.Simplex(), np.ones(3)), "matrix must have two axes"),
    (lambda: sets.LinearImage(sets.Simplex(), np.ones((4, 3))).check((3,)), "matrix must have 3 rows"),
    (lambda: sets.MinkowskiSum(()), "MinkowskiSum: sets must be a tuple of sets"),
    (lambda: sets.HullOfUnion((sets.Box(), sets.Columns(), sets.Simplex())), "not both"),
    (lambda: sets.HullOfUnion([1.0]), "must be a set such as"),
    (lambda: sets.Oracle(None), "fun must be a function"),
    (lambda: sets.Oracle(abs, -1.0), "width must be a finite number >= 0"),
    (lambda: sets.Oracle(abs, projection=3), "projection must be a function"),
    (lambda: sets.Oracle(abs, ndim=3), "ndim must be 1 for vectors"),
    (lambda: sets.Oracle(lambda g: g[1:]).lmo(np.ones(3)), "the shape and dtype of its argument, (3,) and float64"),
    (lambda: sets.Oracle(lambda g: g.astype(np.float32)).lmo(np.ones(3)), "of dtype float32"),
    (lambda: sets.Oracle(lambda g: 1.0).lmo(np.ones(3)), "fun must return an array"),
    (lambda: sets.Oracle(abs, compiled=1), "compiled must be True or False"),
    (lambda: sets.Free(radius=0.0), "radius"),
    (lambda: sets.Flattened(sets.L1Ball()), "inner must be a set of matrices"),
    (lambda: sets.Flattened(axes=4, rows=4), "rows must be < axes"),
    (lambda: sets.Flattened(rows=0), "rows must be a whole number >= 1"),
    (lambda: sets.Flattened().check((3, 4)), "as many axes as axes=4 says"),
    (lambda: sets.Flattened(sets.Birkhoff()).check((2, 3, 1, 1)), "square"),
    (lambda: sets.Rows().check((3,)), "Rows constrains a matrix"),
    (lambda: sets.Columns().check((3,)), "Columns constrains a matrix"),
    (lambda: sets.Transport().check((3,)), "Transport constrains a matrix"),
    (lambda: sets.Fantope().check((4, 4, 3)), "Fantope constrains a square matrix"),
    # steps
    (lambda: steps.Armijo(delta=1.0), "delta must be in (0, 1), got 1.0"),
    (lambda: steps.Armijo(delta=0.0), "delta must be in"),
    (lambda: steps.Armijo(gamma=0.5), "gamma must be in (0, 0.5), got 0.5"),
    (lambda: steps.ShortStep(L=0.0), "L must be > 0 or None; got 0.0"),
    (lambda: steps.ShortStep(grow=1.0), "grow must be a finite number > 1, got 1.0"),
    (lambda: steps.ShortStep(shrink=0.0), "0 < shrink <= 1, got 0.0"),
    (lambda: steps.ShortStep(L=(1.0, 0.0)), "L must be > 0 or None; got 0.0"),
    (lambda: steps.ShortStep(L=(1.0, 2.0, 3.0)), "a pair"),
    (lambda: steps.ShortStep(L={"A": 1.0}), "must have the keys 'A' and 'B'; got"),
    (lambda: steps.OpenLoop(0.5), 'l must be >= 1, or "log"; got 0.5'),
    (lambda: steps.OpenLoop("logarithm"), "got 'logarithm'"),
    (lambda: steps.Constant(0.0), "0 < alpha <= 1, got 0.0"),
    (lambda: steps.ExactStep(tol=0.0), "0 < tol <= 0.1"),
    (lambda: steps.ExactStep(limit=4), "limit must be a whole number >= 5, got 4"),
    (lambda: steps.Armijo(limit=0), "limit"),
    (lambda: steps.ShortStep(limit=-1), "limit"),
    # algorithms
    (lambda: algorithms.FrankWolfe(cap=0.0), "0 < cap <= 1, got 0.0"),
    (lambda: algorithms.FrankWolfe(step="armijo"), "step must be one of xvarpro.steps"),
    (lambda: algorithms.LevenbergMarquardt(damping=0.0), "damping must be > 0, since it grows by factors; got 0"),
    (lambda: algorithms.SpectralProjectedGradient(memory=0), "memory must be a whole number >= 1, got 0"),
    (lambda: algorithms.ProjectedQuasiNewton(memory=0), "memory must be a whole number >= 1, got 0"),
    (lambda: algorithms.ProjectedQuasiNewton(settle=-1), "settle must be a whole number >= 0, got -1"),
    (lambda: algorithms.ProjectedQuasiNewton(trust=1.0), "trust must be in (0, 1), got 1.0"),
    (lambda: algorithms.InFaceQuasiNewton(gamma=0.5), "gamma must be in (0, 0.5), got 0.5"),
    (lambda: algorithms.ProjectedQuasiNewton(base=algorithms.FrankWolfe()), "base must be SpectralProjectedGradient"),
    (lambda: algorithms.SpectralProjectedGradient(gamma=0.6), "gamma must be in (0, 0.5), got 0.6"),
    (lambda: algorithms.AcceleratedProjectedGradient(limit=0), "limit must be a whole number >= 1, got 0"),
    (lambda: algorithms.AcceleratedProjectedGradient(grow=1.0), "grow must be a finite number > 1, got 1.0"),
    (lambda: algorithms.ProjectedQuasiNewton(limit=0), "limit must be a whole number >= 1, got 0"),
    (lambda: algorithms.AcceleratedProjectedGradient(shrink=2.0), "0 < shrink <= 1, got 2.0"),
    (lambda: algorithms.cr_varpro(delta=2.0), "delta must be in"),
    (lambda: algorithms.FrankWolfe(steps.ShortStep(L=(1.0, 2.0))), "takes one step for both blocks"),
    (lambda: algorithms.FrankWolfe(blocks=algorithms.Separate), "blocks must be Together"),
    (lambda: algorithms.ActiveSetFrankWolfe(capacity=1), "capacity must be a whole number >= 2, got 1"),
    (lambda: algorithms.ActiveSetFrankWolfe("away"), "correction must be one such as"),
    (lambda: algorithms.ActiveSetFrankWolfe(algorithms.InFaceGradient()), "Use InFaceFrankWolfe"),
    (lambda: algorithms.ActiveSetFrankWolfe(step="armijo"), "step must be one of"),
    (lambda: algorithms.ActiveSetFrankWolfe(blocks="together"), "blocks must be"),
    (lambda: algorithms.InFaceFrankWolfe("away"), "correction must be one such as"),
    (lambda: algorithms.InFaceFrankWolfe(step="armijo"), "step must be one of"),
    (lambda: algorithms.InFaceFrankWolfe(blocks=None), "blocks must be"),
    (lambda: algorithms.Reseeded("FrankWolfe"), "an algorithm such as FrankWolfe"),
    (lambda: algorithms.Reseeded(algorithms.Reseeded()), "an algorithm such as FrankWolfe"),
    (lambda: algorithms.Reseeded(every=0), "every must be a whole number >= 1, got 0"),
    (lambda: algorithms.Reseeded(leaf="D"), "position of a leaf or None, got 'D'"),
    (lambda: algorithms.Reseeded(axis=2), "units are columns"),
    (lambda: algorithms.StochasticFrankWolfe(batch=0), "batch must be a whole number >= 1, got 0"),
    (lambda: algorithms.StochasticFrankWolfe(batch=2.5), "batch must be a whole number >= 1, got 2.5"),
    (lambda: algorithms.StochasticFrankWolfe(certify=0), "certify must be a whole number >= 1, got 0"),
    (lambda: algorithms.StochasticFrankWolfe(seed=-1), "seed must be a whole number >= 0, got -1"),
    (lambda: algorithms.StochasticFrankWolfe(period=True), "period must be a whole number >= 1, got True"),
    (lambda: algorithms.StochasticFrankWolfe(cap=0.0), "0 < cap <= 1, got 0.0"),
    (lambda: algorithms.StochasticFrankWolfe(cap="all"), "0 < cap <= 1, got 'all'"),
    (lambda: algorithms.StochasticFrankWolfe(estimator="momentum"), "estimator must be Momentum"),
    (lambda: algorithms.StochasticProjectedGradient(update="adam"), "update must be SGD"),
    (lambda: algorithms.StochasticProjectedGradient(lower="same"), "lower must be SameBatch"),
    (lambda: algorithms.SGD(rate=0.0), "rate"),
    (lambda: algorithms.SGD(momentum=1.0), "0 <= momentum < 1, got 1.0"),
    (lambda: algorithms.SGD(nesterov="no"), "nesterov must be True or False"),
    (lambda: algorithms.Adam(beta1=1.0), "beta1"),
    (lambda: algorithms.Adam(eps=0.0), "eps"),
    (lambda: algorithms.Optax("adam"), "must have init"),
    # operators
    (lambda: operators.Kronecker(np.ones(3)), "matrices, got A of shape (3,)"),
    (lambda: operators.Kronecker(A23, size=0), "size must be a whole number >= 1, got 0"),
    (lambda: operators.Kronecker(A23, I3, 2), "B or the size"),
    (lambda: operators.BlockDiagonal(A23), "sequence of arrays or operators, got ndarray"),
    (lambda: operators.BlockDiagonal([A23, 1.0]), "part 1 must be a matrix or an operator, got float"),
    (lambda: operators.BlockDiagonal([A23, np.ones(3)]), "shape (3,)"),
    (lambda: operators.Stacked([A23, np.eye(2)]), "blocks of one width"),
    (lambda: operators.Stacked([np.ones((2, 4, 3)), np.ones((5, 4, 3))]), "made for ['2', '5']"),
    (lambda: operators.Composition(A23, A23), "as the next is high: got [(2, 3), (2, 3)]"),
    (lambda: operators.Sum(A23, I3), "terms of one shape"),
    (lambda: operators.Diagonal(np.ones((2, 2, 2))), "(n,) or (n, k)"),
    (lambda: operators.LowRankPlusDiagonal(A23, np.ones(3), A23), "U (n, r)"),
    (lambda: operators.LowRankPlusDiagonal(I3, np.ones(3), 1j * I3), "all real or all complex"),
    (lambda: operators.Weighted(A23, np.ones(2)), "shape (2, 1) or (2, k), got"),
    (lambda: operators.Weighted(np.ones((4, 2, 3)), np.ones((2, 3))), "made for 4 right-hand sides"),
    (lambda: operators.Sparse(np.ones(2), np.zeros(2, int), np.zeros(3, int), (2, 2)), "one shape"),
    (lambda: operators.Sparse(np.ones(2), np.zeros(2), np.zeros(2, int), (2, 2)), "whole numbers for row_indices"),
    (lambda: operators.MatrixFree(1, None, (2, 2)), "function forward(p, x), got int"),
    (lambda: operators.MatrixFree(lambda p, w: w, None, (2, 2)).dense(), "needs a floating-point array in p"),
    (lambda: operators.Circulant(3.0), "an array of shape grid, got float"),
    (lambda: operators.Circulant(np.arange(3)), "floating-point numbers, got int"),
    (lambda: operators.StackedCirculant(np.zeros(3)), "shape (N, *grid)"),
    (lambda: operators.CirculantPerColumn(np.zeros((0, 3))), "no axis of length 0"),
    (lambda: operators.Convolution(np.ones(2), (3, 3)), "of 1 lengths"),
    (lambda: operators.Convolution(np.ones(2), 3), "a tuple of 1 lengths >= 1"),
    (lambda: operators.Convolution(np.ones(2), (3,), "same"), 'mode must be "full" or "valid"'),
    (lambda: operators.Toeplitz(np.ones(3), 4), "diagonals"),
    (lambda: operators.Toeplitz(np.ones(3), 0), "lengths >= 1"),
    # lower
    (lambda: lower.Affine(None, np.ones((3, 2))), "linearly independent, got rank 1"),
    (lambda: lower.Affine(np.ones(2), np.ones((3, 1))), "w0 must have 3 rows, as B has; got 2"),
    (lambda: lower.Affine(None, np.ones(3)), "B must be a matrix of finite numbers, got shape (3,)"),
    (lambda: lower.Fixed(np.array([0]), n=0), "a whole number >= 1: pass n, got 0"),
    (lambda: lower.Equality(np.full((1, 2), np.nan)), "C must be a matrix of finite numbers"),
    (lambda: lower.Equality(np.ones((2, 3)), np.array([1.0, 2.0])), "contradict each other"),
    (lambda: lower.Equality(np.ones((2, 3)), 1.0), "linearly dependent (rank 1)"),
    (lambda: lower.Equality(np.ones((1, 3)), np.ones(2)), "d must have 1 rows"),
    (lambda: lower.Fixed(np.array([1])), "pass n, got None"),
    (lambda: lower.Fixed(np.array([[1]]), 0.0, 3), "indices, got an array of shape (1, 1): ravel it"),
    (lambda: lower.Fixed(np.array([1, 5]), 0.0, 3), "from 0 to 2, got [1, 5]"),
    (lambda: lower.Fixed(np.array([1, 1]), 0.0, 3), "must be different"),
    (lambda: lower.Fixed(np.array([True, False]), np.ones(3)), "values must have 1 rows"),
    (lambda: lower.Shared(np.ones(3)), "whole numbers"),
    (lambda: lower.Bounded(np.array([0.0, 2.0]), 1.0), "lower up to 2 and upper down to 1"),
    (lambda: lower.Bounded(np.nan, 0.0), "none of them NaN"),
    (lambda: lower.Equality(np.array([[np.inf, 1.0]])), "Equality: C must be a matrix of finite numbers"),
    (lambda: lower.Bounded(np.zeros(2), np.ones(3)), "lower has shape (2,) and upper has shape (3,)"),
    (lambda: xv.Level(model, Y, solver=lower.QR(), W=lower.Bounded(0.0, 1.0)), "Bounded needs a level without solver="),
    (lambda: xv.Level(model, Y, W=xv.sets.Box(0.0, 1.0)), "W must be a set of xvarpro.lower"),
    (
        lambda: xv.bilevel(lower=xv.Level(model, Y), upper=xv.Level(model, Y, W=lower.Nonnegative())),
        "W of the upper level must be None",
    ),
    (
        lambda: xv.separable(model, xv.ColumnChunks(lambda: [Y[:, None]]), W=lower.Bounded(np.zeros((2, 3)), 1.0)),
        "W must be the same for all columns",
    ),
    (lambda: lower.Bounded(np.array([1j, 0.0])), "Bounded: lower must be real, got complex128"),
    (
        lambda: lower.Bounded(xv.Each(np.zeros((50, 1)))),
        "got Each. Bounds of each problem, xv.Each, are for theta alone",
    ),
    (lambda: lower.Bounded(object()), "Bounded: lower must be a number or a vector or a matrix of numbers"),
    (lambda: lower.Given(1), "Given needs a function fun(M, parameters, x) -> P x, got int"),
    (lambda: lower.choose(WithSolver(A23, "QR")), "WithSolver.solver must return a solver of xvarpro.lower"),
    (lambda: lower.LSMR(tol=-1.0), "LSMR"),
    (lambda: lower.LSMR(tol=0.5), "LSMR"),
    (lambda: lower.LSMR(limit=0), "LSMR"),
    (lambda: lower.LSMR(share=1.0), "LSMR"),
    (lambda: lower.LSMR(preconditioner=None), "LSMR"),
    (lambda: lower.Simplex(0.0), "total must be a finite number > 0"),
    (lambda: lower.Simplex(np.nan), "total must be a finite number > 0"),
    (lambda: lower.L1(-1.0), "alpha must be a finite number > 0"),
    (lambda: lower.L1(1.0, nonnegative=1), "nonnegative"),
    (lambda: lower.Equality(np.array([[1.0] * 3, [0.0] * 3]), np.array([1.0, 0.0])), "follow from others"),
    (lambda: lower.Equality(np.array([[1.0] * 3, [0.0] * 3]), np.array([1.0, 1.0])), "contradict"),
    # levels
    (lambda: xv.Level(model, Y, W=lower.L1(), solver=lower.QR()), "has its own"),
    (lambda: xv.Level(model, Y, loss="logistic", lam=0.1, covariance=np.eye(15)), "got covariance"),
    (lambda: xv.Level(model, Y, loss="logistic", lam=0.1, W=lower.L1(0.1)), "got W=L1"),
    (lambda: xv.Level(model, xv.ColumnChunks([Y]), loss="logistic", lam=0.1), "got y as ColumnChunks"),
    (lambda: xv.Level(model, xv.RowChunks([(A23, Y[:2])]), loss="huber", lam=0.1), "got y as RowChunks, and no scale"),
    (lambda: xv.Level(model, Y, weights=len), "or be a function weights(data) of chunks"),
    (lambda: xv.Level(model, Y, loss="softmax", lam=0.1, W=lower.Simplex()), "for all classes; got W=Simplex"),
    (lambda: xv.Level(model, Y, loss="logistic", solver=lower.LSMR(), W=lower.Nonnegative()), "got solver=LSMR"),
    (lambda: xv.separable(model, [A23, A23[:, :1]]), "arrays with the same number of columns"),
    (lambda: xv.Samples(Y, axis=1), "must mark an array that has the axis 1"),
    (lambda: xv.Samples(1.0), "must mark an array"),
]


def test_a_wrong_parameter_is_named(subtests):
    for make, message in WRONG:
        with subtests.test(message):
            with pytest.raises(ProblemError) as caught:
                make()
            assert message in str(caught.value)


LISTS = {
    "Transport": (sets.Transport, [0.5, 0.5], [0.25, 0.75]),
    "Ellipsoid": (sets.Ellipsoid, [[2.0, 0.5], [0.5, 1.0]], [1.0, 2.0]),
    "ShiftScale": (lambda shift: sets.ShiftScale(sets.L1Ball(), 2.0, shift), [1.0, -1.0]),
    "LinearImage": (lambda A: sets.LinearImage(sets.Simplex(), A), [[1.0, 2.0], [0.0, 1.0]]),
    "bounds": (sets.bounds, [-1.0, 0.0], [1.0, 2.0]),
}


def test_a_list_is_as_good_as_an_array(subtests):
    g = np.array([[1.0, -2.0], [-0.5, 3.0]])
    for name, (kind, *parameters) in LISTS.items():
        with subtests.test(name):
            made = [kind(*given) for given in (parameters, [np.array(x) for x in parameters])]
            for C in made:
                C.check((2, 2) if C.event_ndim == 2 else (2,))
            one, other = (C.lmo(g if C.event_ndim == 2 else g[0]) for C in made)
            np.testing.assert_array_equal(one, other)


def test_weights_between_bounds_that_are_lists():
    given = ([0.0, 0.5], [1.0, 2.0]), (np.array([0.0, 0.5]), np.array([1.0, 2.0]))
    problems = [xv.separable(identity, np.array([2.0, 0.25]), W=lower.Bounded(*pair)) for pair in given]
    for problem in problems:
        assert xv.solve(problem, np.ones(1), over=sets.Box(1.0, 1.0)).w.tolist() == [1.0, 0.5]


SETS = [getattr(sets, name) for name in sets.__all__]
BALLS = [kind for kind in SETS if hasattr(kind, "radius") and hasattr(kind, "examples")]


def test_a_wrong_radius_is_named(subtests):
    for kind in BALLS:
        example = next(C for shape in ((4,), (4, 3), (4, 4)) for C in kind.examples(shape))
        for radius in (-1.0, np.nan, np.inf, "1", None):
            with (
                subtests.test(kind.__name__, radius=radius),
                pytest.raises(ProblemError, match=rf"{kind.__name__}.* radius"),
            ):
                replace(example, radius=radius)


EXPORTED = [getattr(room, name) for room in (algorithms, steps, lower, sets, operators) for name in room.__all__]
NUMBERS = [
    (kind, field.name)
    for kind in EXPORTED
    if is_dataclass(kind) and not isabstract(kind)
    for field in fields(kind)
    if field.init and type(field.default) in (int, float)
]
# of complex matrices, and of no entries where the leaf has none
SHIFTS = {(sets.ShiftScale, "shift"), (sets.LinearImage, "shift")}


def test_what_is_no_number_is_refused_everywhere():
    """Every field that is a number by default: a new class is found by its export."""
    asked = 0
    for kind, name in NUMBERS:
        if kind is sets.Oracle:  # takes a function first
            continue
        needs_more = any(field.default is REQUIRED for field in fields(kind))
        for bad in (np.nan, "1", True, 1j, []):
            if (kind, name) in SHIFTS and bad in (1j, []):
                continue
            with pytest.raises(ProblemError, match=kind.__name__ if needs_more else rf"{kind.__name__}.*\b{name}\b"):
                kind(**{name: bad})
            asked += 1
    assert asked > 400
