from xvarpro.batch.lift import lifted, single
from xvarpro.fit.multistart import Minimum
from xvarpro.statistics.many import BatchStatistics

__all__ = [
    "BatchStatistics",
    "Minimum",
    "lifted",
    "single",
]
