"""What the free leaves of theta can still gain: a decrease of the objective, which has no units of theta."""

from __future__ import annotations

import math

from xvarpro.core import small
from xvarpro.core.namespace import device, namespace_of
from xvarpro.core.struct import Array, Leaves
from xvarpro.core.trees import axpy, dot, raveled, sub
from xvarpro.objective.gauss_newton import gauss_newton, has_jacobian
from xvarpro.objective.interface import Objective
from xvarpro.objective.reduced import Reduced
from xvarpro.sets.region import Region

MANY = 64  # entries of theta up to which a Jacobian is affordable


def free_decrease(f: Objective, region: Region, theta: Leaves, grad: Leaves) -> Array:
    """The decrease that a quadratic model of the objective promises where no bound stops it, the rest held; 0-d.

    For few parameters the model is that of Gauss and Newton, ``1/2 g^T (J J^T)^-1 g``: over the objective it is the
    square of the relative offset of Bates and Watts (1981). For many it is the parabola along the gradient, whose
    curvature a difference of gradients gives; inf where that bends down.
    """
    g = region.outward(grad, theta)
    xp = namespace_of(*g)
    few = sum(math.prod(x.shape) for x in theta) <= MANY
    if few and isinstance(f, Reduced) and f.structure is not None and has_jacobian(f.problem, f.structure):
        _, _, J = gauss_newton(f, theta)
        v = raveled(g)
        free = raveled(region.block(tuple(xp.ones_like(x) for x in theta), free=True))
        J = J * xp.expand_dims(xp.where(v != 0, xp.ones_like(v), free), axis=1)
        H = J @ J.T
        held = xp.linalg.diagonal(H)
        # what the residual does not depend on, and what is held, promises nothing
        eps = xp.finfo(H.dtype).eps
        H = H + xp.eye(H.shape[0], dtype=H.dtype, device=device(H)) * xp.where(held > 0, 10 * eps * held, 1 + 0 * held)
        return 0.5 * v @ small.solve(H[None, ...], v[None, :])[0, :]
    length, size = xp.sqrt(dot(g, g)), xp.sqrt(dot(theta, theta))
    one = xp.ones_like(length)
    h = xp.finfo(length.dtype).eps ** (1 / 3) * xp.where(size > 0, size, one) / xp.where(length > 0, length, one)
    _, other = f.value_and_gradient(axpy(-h, g, theta))
    bend = dot(sub(grad, other), g) / h
    found = 0.5 * length**4 / xp.where(bend > 0, bend, one)
    return xp.where(length > 0, xp.where(bend > 0, found, xp.full_like(found, xp.inf)), 0 * found)
