from xvarpro.losses.custom import Custom
from xvarpro.losses.interface import Loss
from xvarpro.losses.likelihoods import Logistic, LogPoisson, Poisson, Softmax
from xvarpro.losses.margins import Quantile, SquaredHinge
from xvarpro.losses.robust import Cauchy, Huber, SoftL1

__all__ = [
    "Cauchy",
    "Custom",
    "Huber",
    "LogPoisson",
    "Logistic",
    "Loss",
    "Poisson",
    "Quantile",
    "SoftL1",
    "Softmax",
    "SquaredHinge",
]
