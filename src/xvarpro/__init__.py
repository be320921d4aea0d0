"""Constrained variable projection, written once for NumPy, CuPy, PyTorch and JAX."""

from xvarpro import algorithms, backends, errors, implicit, layers, lower, many, operators, sets, steps
from xvarpro._version import __version__
from xvarpro.comparison import Comparison, compare
from xvarpro.evaluate import project, value_and_gradient
from xvarpro.many import Each, ManyResult, solve_many
from xvarpro.moving import PrecisionWarning
from xvarpro.problem import Level, Problem, bilevel, separable
from xvarpro.result import Result, Trace
from xvarpro.rows import Rows
from xvarpro.run import DeadUnitsWarning, Moment
from xvarpro.solve import solve
from xvarpro.status import Status
from xvarpro.targets import Chunks, compress
from xvarpro.trees import array_namespace
from xvarpro.verification import Verification, verify

__all__ = [
    "Chunks",
    "Comparison",
    "DeadUnitsWarning",
    "Each",
    "Level",
    "ManyResult",
    "Moment",
    "PrecisionWarning",
    "Problem",
    "Result",
    "Rows",
    "Status",
    "Trace",
    "Verification",
    "__version__",
    "algorithms",
    "array_namespace",
    "backends",
    "bilevel",
    "compare",
    "compress",
    "errors",
    "implicit",
    "layers",
    "lower",
    "many",
    "operators",
    "project",
    "separable",
    "sets",
    "solve",
    "solve_many",
    "steps",
    "value_and_gradient",
    "verify",
]
