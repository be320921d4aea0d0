from xvarpro.lower.choice import choose
from xvarpro.lower.dual import DualQR
from xvarpro.lower.fourier import FourierDivision
from xvarpro.lower.interface import Adjoint, Diagnosis, LowerSolver, Ridge, System
from xvarpro.lower.krylov import LSMR
from xvarpro.lower.preconditioners import Given, Jacobi, Preconditioner
from xvarpro.lower.qr import QR, Cholesky
from xvarpro.lower.svd import SVD
from xvarpro.lower.weight_sets.affine import Affine, Equality, Fixed, Shared
from xvarpro.lower.weight_sets.bounds import Bounded, Nonnegative
from xvarpro.lower.weight_sets.interface import WeightSet
from xvarpro.lower.weight_sets.l1 import L1
from xvarpro.lower.weight_sets.simplex import Simplex

__all__ = [
    "L1",
    "LSMR",
    "QR",
    "SVD",
    "Adjoint",
    "Affine",
    "Bounded",
    "Cholesky",
    "Diagnosis",
    "DualQR",
    "Equality",
    "Fixed",
    "FourierDivision",
    "Given",
    "Jacobi",
    "LowerSolver",
    "Nonnegative",
    "Preconditioner",
    "Ridge",
    "Shared",
    "Simplex",
    "System",
    "WeightSet",
    "choose",
]
