"""Figures of the few-shot experiment: accuracy against time, and differences episode by episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xvarpro.experiments.fewshot import ACCURACY, accuracies, paired
from xvarpro.plotting import Figure

if TYPE_CHECKING:
    from xvarpro.experiments.race import Race
