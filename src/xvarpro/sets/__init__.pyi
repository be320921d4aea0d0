from xvarpro.sets import norms
from xvarpro.sets.balls import L1Ball, L2Ball, NonnegativeL2Ball
from xvarpro.sets.box import Box, LinfBall, bounds
from xvarpro.sets.combinators import HullOfUnion, LinearImage, MinkowskiSum, ShiftScale
from xvarpro.sets.ellipsoid import Ellipsoid
from xvarpro.sets.flattened import Flattened
from xvarpro.sets.free import Free
from xvarpro.sets.groups import GroupL1InfBall, GroupL12Ball
from xvarpro.sets.hull import ConvexHull
from xvarpro.sets.interface import Set
from xvarpro.sets.k_largest import Hypersimplex, KNormBall, KSparsePolytope, UnitHypersimplex
from xvarpro.sets.lanczos import Lanczos
from xvarpro.sets.lp import LpBall
from xvarpro.sets.oracle import Oracle
from xvarpro.sets.ordered_weighted import OWLBall, Permutahedron
from xvarpro.sets.products import Columns, Groups, Product, Rows
from xvarpro.sets.promises import check
from xvarpro.sets.semidefinite import Fantope, Spectraplex, UnitSpectrahedron
from xvarpro.sets.sequences import OrderedBox, TotalVariationBall
from xvarpro.sets.simplex import CappedSimplex, Simplex
from xvarpro.sets.singular_values import NuclearBall, SchattenBall, SpectralBall
from xvarpro.sets.transport import Birkhoff, Transport
from xvarpro.sets.weighted import ContinuousKnapsack, WeightedL1Ball, WeightedSimplex

__all__ = [
    "Birkhoff",
    "Box",
    "CappedSimplex",
    "Columns",
    "ContinuousKnapsack",
    "ConvexHull",
    "Ellipsoid",
    "Fantope",
    "Flattened",
    "Free",
    "GroupL1InfBall",
    "GroupL12Ball",
    "Groups",
    "HullOfUnion",
    "Hypersimplex",
    "KNormBall",
    "KSparsePolytope",
    "L1Ball",
    "L2Ball",
    "Lanczos",
    "LinearImage",
    "LinfBall",
    "LpBall",
    "MinkowskiSum",
    "NonnegativeL2Ball",
    "NuclearBall",
    "OWLBall",
    "Oracle",
    "OrderedBox",
    "Permutahedron",
    "Product",
    "Rows",
    "SchattenBall",
    "Set",
    "ShiftScale",
    "Simplex",
    "SpectralBall",
    "Spectraplex",
    "TotalVariationBall",
    "Transport",
    "UnitHypersimplex",
    "UnitSpectrahedron",
    "WeightedL1Ball",
    "WeightedSimplex",
    "bounds",
    "check",
    "norms",
]
