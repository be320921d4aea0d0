"""Photographs without their blur: Example 3 in two dimensions, from a structured design to decibels."""

from xvarpro_deblurring.blur import RIDGE, Blur, Correlation, differences, gram, problem, start
from xvarpro_deblurring.data import Photograph, find_photographs, photographs, scene
from xvarpro_deblurring.estimate import estimate, scales
from xvarpro_deblurring.experiment import experiment, scenes
from xvarpro_deblurring.restore import Deblurred, Restoration, deblur, kernel_match, psnr, restore, sharpen

__all__ = [
    "RIDGE", "Blur", "Correlation", "Deblurred", "Photograph", "Restoration",
    "deblur", "differences", "estimate", "experiment", "find_photographs", "gram", "kernel_match", "photographs",
    "problem", "psnr", "restore", "scales", "scene", "scenes", "sharpen", "start",
]  # fmt: skip
