"""What every set, rule, method and solver is without arguments: a default that changes, changes results."""

import inspect
from dataclasses import fields, is_dataclass

import xvarpro as xv
from xvarpro.errors import ProblemError

DEFAULTS = """
AcceleratedProjectedGradient(shrink=0.8, grow=2.0, limit=60)
ActiveSetFrankWolfe(correction=BlendedPairwise, step=ShortStep, blocks=Separate, capacity=128)
Adam(rate=0.001, beta1=0.9, beta2=0.999, eps=1e-08)
FrankWolfe(step=ShortStep, blocks=Together, cap=1.0)
InFaceFrankWolfe(correction=InFaceGradient, step=ShortStep, blocks=Separate)
InFaceQuasiNewton(memory=10, settle=20, trust=0.5, gamma=0.0001, limit=40, momentum=False)
LevenbergMarquardt(damping=0.001)
Optax(transformation=None)
ProjectedQuasiNewton(memory=10, settle=20, trust=0.5, gamma=0.0001, limit=40, base=SpectralProjectedGradient)
Reseeded(inner=FrankWolfe, every=10, leaf=None, axis=1)
SGD(rate=0.01, momentum=0.9, nesterov=False)
SpectralProjectedGradient(memory=10, gamma=0.0001, limit=40)
StochasticFrankWolfe(batch=64, lower=None, certify=10, seed=0, period=1024, estimator=VarianceReduced, cap=1.0)
StochasticProjectedGradient(batch=64, lower=None, certify=None, seed=0, period=1024, update=Adam)
VarianceReduced(recursive=True)
Armijo(delta=0.5, gamma=0.0001, warm=False, limit=60)
Constant(alpha=0.1)
ExactStep(quadratic=False, tol=0.0001, limit=60)
OpenLoop(l=2.0)
ShortStep(L=None, shrink=0.9, grow=2.0, limit=60)
Box(lower=0.0, upper=1.0, bounded=True)
CappedSimplex(radius=1.0)
Columns(inner=L2Ball)
ContinuousKnapsack(weights=1.0, bound=1.0)
ConvexHull(atoms=array([[0.], [1.]]))
Ellipsoid(matrix=1.0, offset=0.0, radius=1.0, axes=None, lengths=1.0)
Fantope(k=1)
Flattened(inner=SpectralBall, axes=4, rows=1)
Free(norm=L2, radius=1.0)
GroupL12Ball(groups=2, radius=1.0)
GroupL1InfBall(groups=2, radius=1.0)
Groups(inner=L2Ball, groups=2)
HullOfUnion(sets=(L1Ball(radius=1.0), L2Ball(radius=0.75, offset=0.0)))
Hypersimplex(k=1, radius=1.0)
KNormBall(k=1, radius=1.0)
KSparsePolytope(k=1, radius=1.0)
L1Ball(radius=1.0)
L2Ball(radius=1.0, offset=0.0)
Lanczos(width=4, depth=6, restarts=30, tol=1e-06)
LinearImage(inner=Simplex, matrix=None, shift=0.0)
LinfBall(radius=1.0)
LpBall(p=2.0, radius=1.0)
MinkowskiSum(sets=(L1Ball(radius=1.0), L2Ball(radius=1.0, offset=0.0)))
NonnegativeL2Ball(radius=1.0)
NuclearBall(radius=1.0, solver=None)
OWLBall(weights=1.0, radius=1.0)
OrderedBox(lower=0.0, upper=1.0)
Permutahedron(weights=None)
Product(sets=(Simplex(radius=1.0),), sizes=None)
Rows(inner=L2Ball)
SchattenBall(p=2.0, radius=1.0)
ShiftScale(inner=L2Ball, scale=1.0, shift=0.0)
Simplex(radius=1.0)
SpectralBall(radius=1.0)
Spectraplex(radius=1.0, solver=None)
TotalVariationBall(radius=1.0)
Transport(a=None, b=None)
UnitHypersimplex(k=1, radius=1.0)
UnitSpectrahedron(radius=1.0, solver=None)
WeightedL1Ball(widths=1.0, offset=0.0)
WeightedSimplex(weights=1.0, lower=0.0, bound=1.0)
Bounded(lower=0.0, upper=1.0)
Given(fun=None, parameters=None)
Jacobi(probes=16)
L1(alpha=1.0, nonnegative=False)
LSMR(tol=1e-10, limit=1000, preconditioner=Given, loosest=0.01, share=0.1, value_tol=None)
SVD(rtol=None)
Simplex(total=1.0)
"""


def shown(x):
    """Fields in order; of what is a set, a rule or a method itself the name, for it has a line of its own."""
    given = {f.name: getattr(x, f.name) for f in fields(x)}
    names = [f"{name}={type(v).__name__ if is_dataclass(v) else repr(v)}" for name, v in given.items()]
    return " ".join(f"{type(x).__name__}({', '.join(names)})".split())


def defaults():
    for module in (xv.algorithms, xv.steps, xv.sets, xv.lower):
        for name in sorted(module.__all__):
            kind = getattr(module, name)
            if inspect.isclass(kind) and is_dataclass(kind) and fields(kind) and not inspect.isabstract(kind):
                try:
                    yield shown(kind())
                except (TypeError, ProblemError):  # it has no default
                    continue


def test_defaults_are_the_documented_ones():
    """A newcomer is found by its export, and entered above."""
    assert list(defaults()) == DEFAULTS.strip().splitlines()
