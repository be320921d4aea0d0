from xvarpro.algorithms.levenberg_marquardt import LevenbergMarquardt
from xvarpro.batch.driver import solve_many
from xvarpro.batch.lift import lifted, single
from xvarpro.batch.result import ManyResult
from xvarpro.fit.multistart import Minimum, Multistart, multistart
from xvarpro.problem.each import Each

__all__ = ["Each", "LevenbergMarquardt", "ManyResult", "Minimum", "Multistart", "lifted", "multistart", "single", "solve_many"]
