"""The method of a solve for which none is given."""

from __future__ import annotations

from collections.abc import Sequence

from xvarpro import algorithms
from xvarpro.algorithms.interface import Algorithm
from xvarpro.sets.interface import Set

# entries of theta: up to which a Jacobian pays, up to which spectral steps are the faster ones, and from which on a
# face does not settle in time
FEW, SMALL, LARGE = 16, 1_000, 10_000


def choose(
    sets: Sequence[Set], size: int, free: bool = False, jacobian: bool = False, two_levels: bool = False
) -> Algorithm:
    """The default, by what the sets offer and by the number of entries of theta.

    Levenberg-Marquardt for at most 16 parameters whose Jacobian can be had, where every set projects and describes its
    faces; not for more than one on two levels with sets, where its matrix leaves out how the weights bend, and it ends
    in worse minima. Where every set projects, projected gradient steps, and `ProjectedQuasiNewton` to end with:
    spectral ones for few parameters under sets, and for singular values; accelerated ones for more, on two levels, or
    with free leaves, where they end in better minima; those alone for very many, or for more than a few under sets that
    do not describe their faces. Spectral ones alone in strictly convex sets, whose faces are points. Quasi-Newton from
    the start where all is free, and for very many parameters with free ones among them, as in a network. Where some set
    does not project, or only by many iterations, what its faces or its vertices allow. Measurements behind the rule are
    those of ``default.py``, ``algorithms.py`` and ``two_levels.py`` in ``benchmarks`` of commit 93c03ed.

    Parameters
    ----------
    sets : sequence of Set
        Those of the constrained leaves.
    size : int
        Entries of theta.
    free : bool
        Whether some leaves are free.
    jacobian : bool
        Whether the problem has a Gauss-Newton model: see `objective.gauss_newton.has_jacobian`.
    two_levels : bool
        Whether the objective measures another level than the one that w minimises.

    Examples
    --------
    >>> import xvarpro as xv
    >>> xv.algorithms.choose([xv.sets.Box(0.0, 10.0)], size=3).base
    SpectralProjectedGradient(memory=10, gamma=0.0001, limit=40)
    >>> xv.algorithms.choose([xv.sets.L1Ball()], size=100_000)
    AcceleratedProjectedGradient(shrink=0.8, grow=2.0, limit=60)
    """
    faces = all(C.has_faces for C in sets)
    two_levels = two_levels and bool(sets) and size > 1  # measured under sets alone
    if jacobian and not two_levels and size <= FEW and faces and all(C.projects_quickly for C in sets):
        return algorithms.LevenbergMarquardt()
    if not all(C.projects_quickly for C in sets):
        if faces:
            return algorithms.InFaceQuasiNewton(momentum=free)
        if all(C.polytope for C in sets):
            return algorithms.ActiveSetFrankWolfe()
        return algorithms.FrankWolfe(blocks=algorithms.Separate())
    if not sets or (free and faces and size > LARGE):
        return algorithms.ProjectedQuasiNewton(memory=5, settle=0, base=algorithms.SpectralProjectedGradient())
    if not free and all(C.strictly_convex for C in sets):
        return algorithms.SpectralProjectedGradient()
    few = size <= SMALL and not (two_levels and faces)
    if not free and (few or all(C.spectral for C in sets)):
        return algorithms.ProjectedQuasiNewton(base=algorithms.SpectralProjectedGradient())
    accelerated = algorithms.AcceleratedProjectedGradient()
    return algorithms.ProjectedQuasiNewton(base=accelerated) if faces and size <= LARGE else accelerated
