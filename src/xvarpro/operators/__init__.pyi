from xvarpro.operators._dottest import dottest
from xvarpro.operators.blocks import BlockDiagonal, Stacked
from xvarpro.operators.circulant import Circulant, CirculantPerColumn, StackedCirculant
from xvarpro.operators.combined import Composition, Sum
from xvarpro.operators.convolution import Convolution, Toeplitz
from xvarpro.operators.diagonal import Diagonal, LowRankPlusDiagonal
from xvarpro.operators.interface import Dense, Operator
from xvarpro.operators.kronecker import Kronecker
from xvarpro.operators.matrix_free import MatrixFree
from xvarpro.operators.sparse import Sparse
from xvarpro.operators.weighted import Weighted

__all__ = [
    "BlockDiagonal",
    "Circulant",
    "CirculantPerColumn",
    "Composition",
    "Convolution",
    "Dense",
    "Diagonal",
    "Kronecker",
    "LowRankPlusDiagonal",
    "MatrixFree",
    "Operator",
    "Sparse",
    "Stacked",
    "StackedCirculant",
    "Sum",
    "Toeplitz",
    "Weighted",
    "dottest",
]
