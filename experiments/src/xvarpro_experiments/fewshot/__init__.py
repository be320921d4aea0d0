"""Few-shot learning, the paper's Example 4: see `problem`, `pooled` and `experiment`; a module of Torch in `resnet`."""

from xvarpro_experiments.fewshot.accuracy import ACCURACY, REFIT, accuracies, notes, paired
from xvarpro_experiments.fewshot.comparison import balls, evaluate, experiment
from xvarpro_experiments.fewshot.data import Backbone, Episode, digits_backbone, episode
from xvarpro_experiments.fewshot.problem import Features, Split, adapter, head, layer, pooled, problem, start, targets

__all__ = [
    "ACCURACY", "REFIT", "Backbone", "Episode", "Features", "Split", "accuracies", "adapter", "balls",
    "digits_backbone", "episode", "evaluate", "experiment", "head", "layer", "notes", "paired", "pooled", "problem",
    "start", "targets",
]  # fmt: skip
