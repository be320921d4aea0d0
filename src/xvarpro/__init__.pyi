from xvarpro import (
    algorithms,
    backends,
    distributed,
    errors,
    losses,
    lower,
    models,
    operators,
    sets,
    special,
    statistics,
)
from xvarpro import batch as many
from xvarpro._version import __version__
from xvarpro.algorithms import steps
from xvarpro.bayes.coordinates import Unconstrained
from xvarpro.bayes.draws import Draws
from xvarpro.bayes.evidence import Laplace, ModelComparison, compare_models
from xvarpro.bayes.likelihood import Marginal, marginal
from xvarpro.certificate.outcome import Certificate
from xvarpro.certificate.search import certify
from xvarpro.components.find import find_components
from xvarpro.components.grid import DualCertificate
from xvarpro.components.result import Components, FoundComponents
from xvarpro.core.status import Status
from xvarpro.core.trees import array_namespace
from xvarpro.differentiation import implicit, layers
from xvarpro.differentiation.ridge import ridge
from xvarpro.driver.evaluate import LowerFit, project, solve_lower, value_and_gradient
from xvarpro.driver.outcome import DeadUnitsWarning
from xvarpro.driver.prepare import SlicesWarning
from xvarpro.driver.run import IterationInfo
from xvarpro.driver.transfer import PrecisionWarning
from xvarpro.fit.batch_result import ManyResult
from xvarpro.fit.comparison import Comparison, compare
from xvarpro.fit.many import solve_many
from xvarpro.fit.multistart import Multistart, multistart
from xvarpro.fit.nonlinear import least_squares
from xvarpro.fit.result import Result
from xvarpro.fit.robust import solve_robust
from xvarpro.fit.solve import solve
from xvarpro.fit.verification import Verification, verify
from xvarpro.problem.column_chunks import ColumnChunks, compress
from xvarpro.problem.noise import InverseGamma
from xvarpro.problem.parameters import Parameters
from xvarpro.problem.problem import Level, Problem, bilevel, separable
from xvarpro.problem.read_ahead import ReadAhead
from xvarpro.problem.row_chunks import RowChunks
from xvarpro.problem.samples import Samples
from xvarpro.results.outcome import Trace
from xvarpro.sets.each import Each

__all__ = [
    "Certificate",
    "ColumnChunks",
    "Comparison",
    "Components",
    "DeadUnitsWarning",
    "Draws",
    "DualCertificate",
    "Each",
    "FoundComponents",
    "InverseGamma",
    "IterationInfo",
    "Laplace",
    "Level",
    "LowerFit",
    "ManyResult",
    "Marginal",
    "ModelComparison",
    "Multistart",
    "Parameters",
    "PrecisionWarning",
    "Problem",
    "ReadAhead",
    "Result",
    "RowChunks",
    "Samples",
    "SlicesWarning",
    "Status",
    "Trace",
    "Unconstrained",
    "Verification",
    "__version__",
    "algorithms",
    "array_namespace",
    "backends",
    "bilevel",
    "certify",
    "compare",
    "compare_models",
    "compress",
    "distributed",
    "errors",
    "find_components",
    "implicit",
    "layers",
    "least_squares",
    "losses",
    "lower",
    "many",
    "marginal",
    "models",
    "multistart",
    "operators",
    "project",
    "ridge",
    "separable",
    "sets",
    "solve",
    "solve_lower",
    "solve_many",
    "solve_robust",
    "special",
    "statistics",
    "steps",
    "value_and_gradient",
    "verify",
]
