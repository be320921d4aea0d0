"""Models for the command `xvarpro fit`: see docs/command_line.md."""

import xvarpro as xv


def decay(t, slow=1.0, fast=5.0):
    xp = xv.array_namespace(slow)
    return {"slow part": xp.exp(-slow * t), "fast part": xp.exp(-fast * t)}


def cascade(t, first, second):
    xp = xv.array_namespace(first)
    return [xp.exp(-first * t), (xp.exp(-first * t) - xp.exp(-second * t)) / (second - first)]
