"""Photographs without their blur: Example 3 in two dimensions, from a structured design to decibels."""

from xvarpro_deblurring.blur import RIDGE, Blur, Correlation, StackedConvolution, differences, gram, problem, start
from xvarpro_deblurring.data import Photograph, find_photographs, photographs, scene
from xvarpro_deblurring.estimate import Estimate, estimate, scales
from xvarpro_deblurring.experiment import experiment, scenes
from xvarpro_deblurring.restore import Deblurred, Restoration, deblur, kernel_match, psnr, restore, sharpen

__all__ = [
    "RIDGE", "Blur", "Correlation", "Deblurred", "Estimate", "Photograph", "Restoration", "StackedConvolution",
    "deblur", "differences", "estimate", "experiment", "find_photographs", "gram", "kernel_match", "photographs",
    "problem", "psnr", "restore", "scales", "scene", "scenes", "sharpen", "start",
]  # fmt: skip
