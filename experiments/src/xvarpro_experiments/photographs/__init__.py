"""Photographs without their blur: Example 3 in two dimensions, from a structured design to decibels."""

from xvarpro_experiments.photographs.blur import (
    RIDGE,
    Blur,
    Correlation,
    StackedConvolution,
    differences,
    gram,
    problem,
    start,
)  # fmt: skip
from xvarpro_experiments.photographs.estimate import Estimate, estimate, scales
from xvarpro_experiments.photographs.experiment import experiment, scenes
from xvarpro_experiments.photographs.restore import (
    Deblurred,
    Restoration,
    deblur,
    kernel_match,
    psnr,
    restore,
    sharpen,
)  # fmt: skip

__all__ = [
    "RIDGE", "Blur", "Correlation", "Deblurred", "Estimate", "Restoration", "StackedConvolution", "deblur",
    "differences", "estimate", "experiment", "gram", "kernel_match", "problem", "psnr", "restore", "scales", "scenes",
    "sharpen", "start",
]  # fmt: skip
