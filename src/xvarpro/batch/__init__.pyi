from xvarpro.algorithms.levenberg_marquardt import LevenbergMarquardt
from xvarpro.batch.lift import lifted, single
from xvarpro.fit.batch_result import ManyResult
from xvarpro.fit.many import solve_many
from xvarpro.fit.multistart import Minimum, Multistart, multistart
from xvarpro.sets.each import Each
from xvarpro.statistics.many import BatchStatistics

__all__ = [
    "BatchStatistics",
    "Each",
    "LevenbergMarquardt",
    "ManyResult",
    "Minimum",
    "Multistart",
    "lifted",
    "multistart",
    "single",
    "solve_many",
]
