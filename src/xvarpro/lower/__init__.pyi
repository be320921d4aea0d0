from xvarpro.lower.choice import choose
from xvarpro.lower.dual import DualQR
from xvarpro.lower.fourier import FourierDivision
from xvarpro.lower.interface import LowerSolver
from xvarpro.lower.krylov import LSMR
from xvarpro.lower.preconditioners import Given, Jacobi
from xvarpro.lower.qr import QR, Cholesky
from xvarpro.lower.svd import SVD
from xvarpro.lower.weight_sets.affine import Affine, Equality, Fixed, Shared
from xvarpro.lower.weight_sets.bounds import Bounded, Nonnegative
from xvarpro.lower.weight_sets.l1 import L1
from xvarpro.lower.weight_sets.simplex import Simplex

__all__ = [
    "L1",
    "LSMR",
    "QR",
    "SVD",
    "Affine",
    "Bounded",
    "Cholesky",
    "DualQR",
    "Equality",
    "Fixed",
    "FourierDivision",
    "Given",
    "Jacobi",
    "LowerSolver",
    "Nonnegative",
    "Shared",
    "Simplex",
    "choose",
]
