"""Convex sets, each reached through its linear minimisation oracle."""

from xvarpro.protocols import Set
from xvarpro.sets import norms
from xvarpro.sets.balls import L1Ball, L2Ball
from xvarpro.sets.box import Box
from xvarpro.sets.columns import Columns
from xvarpro.sets.free import Free
from xvarpro.sets.simplex import CappedSimplex, Simplex

__all__ = ["Box", "CappedSimplex", "Columns", "Free", "L1Ball", "L2Ball", "Set", "Simplex", "norms"]
