"""The derivative of the projection onto a region, and whether the projection is differentiable.

J, the derivative at q of the projection P onto a convex set, is symmetric with ``0 <= J <= I`` (Fitzpatrick and Phelps,
Differentiability of the metric projection in Hilbert space, 1982). On a face of a polytope J is the projector onto the
directions of the face. On a curved boundary ``J^+ - I``, on the range of J, is the curvature that the boundary adds to
the Hessian, times the step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from xvarpro.backends import Backend
from xvarpro.backends.calculus import central_difference, directional_derivative, directional_error
from xvarpro.core import trees
from xvarpro.core.namespace import device, namespace_of, positive_or_one
from xvarpro.core.struct import Array, Leaves
from xvarpro.errors import ProblemError
from xvarpro.sets.interface import Set
from xvarpro.sets.region import Region, event
from xvarpro.sets.spectra import SpectralSet

UNKNOWN = 2.0**-26  # of theta's largest entry, what a solve in double precision does not know of a multiplier
ROUNDING = 256.0  # in eps, of a projection's largest entry
LINEAR = 0.02  # relative error of a linear model of P along a short step; at a kink it is of order 1


def jacobian(backend: Backend, region: Region, theta: Leaves, q: Leaves) -> Callable[[Leaves], Leaves]:
    """J at q, with ``theta = P(q)``: from the face of a polytope, of a spectrum's if it is one of matrices.

    Else the derivative of `project`.
    """
    parts: dict[int, Callable[[Array], Array]] = {}
    for i, C in region.constrained:
        if _by_faces(C):
            parts[i] = _face_projector(C, _point(C, q[i], theta[i]))
        elif isinstance(C, SpectralSet):
            parts[i] = C.slope(q[i])
        elif C.spectral:
            parts[i] = central_difference(partial(_project, C), q[i])
        elif C.has_projection:
            parts[i] = directional_derivative(backend, partial(_project, C), q[i])
        else:
            raise ProblemError(
                f"the derivative of a solution needs sets with a projection or with the faces of a polytope; {C!r} has "
                "neither: use another set for this leaf"
            )
    return lambda d: tuple(parts[i](x) if i in parts else x for i, x in enumerate(d))


def nearest(region: Region, theta: Leaves, q: Leaves) -> Leaves:
    """The projection of q, or theta itself for a set without one."""
    out = list(q)
    for i, C in region.constrained:
        out[i] = _point(C, q[i], theta[i])
    return tuple(out)


def matrix(region: Region, theta: Leaves, J: Callable[[Leaves], Leaves]) -> Array:
    """J as a matrix, (p, p): of faces from all unit vectors at once."""
    v = trees.raveled(theta)
    eye = namespace_of(v).eye(v.shape[0], dtype=v.dtype, device=device(v))
    if all(_by_faces(C) for _, C in region.constrained):
        return trees.raveled(J(trees.unraveled(eye, theta)), rows=1)
    columns = [trees.raveled(J(trees.unraveled(eye[j, :], theta))) for j in range(v.shape[0])]
    return namespace_of(v).stack(columns)


def range_projector(
    region: Region, theta: Leaves, q: Leaves, J: Callable[[Leaves], Leaves]
) -> Callable[[Leaves], Leaves]:
    """The projection onto the range of J for leaves in which J is a projector, off the normal at q for the others.

    P is constant along its normal ``q - P(q)``: it is orthogonal to the range, and J by differences would leave a rest.
    """
    flat = {i for i, C in region.constrained if _by_faces(C)}
    normals = {i: q[i] - _point(C, q[i], theta[i]) for i, C in region.constrained if i not in flat}

    def off(i: int, d: Array) -> Array:
        n, xp = normals[i], namespace_of(d)
        # inside, where a projection by a decomposition gives q back to rounding, there is no normal
        n = xp.where(xp.max(xp.abs(n)) > ROUNDING * xp.finfo(n.dtype).eps * xp.max(xp.abs(q[i])), n, 0 * n)
        return d - (trees.inner(n, d) / positive_or_one(trees.inner(n, n))) * n

    def project(d: Leaves) -> Leaves:
        pairs = zip(J(d) if flat else d, d, strict=True)
        return tuple(x if i in flat else off(i, y) if i in normals else y for i, (x, y) in enumerate(pairs))

    return project if flat or normals else lambda d: d


def jacobian_error(backend: Backend, region: Region, eps: float) -> float:
    """Relative error of products with J."""
    sets = [C.spectrum if isinstance(C, SpectralSet) else C for _, C in region.constrained]
    if any(C.spectral for C in sets):
        return eps ** (2 / 3)
    return eps if all(map(_by_faces, sets)) else directional_error(backend, eps)


def degenerate(region: Region, theta: Leaves, q: Leaves, J: Callable[[Leaves], Leaves]) -> Array:
    """Whether P has different one-sided derivatives at q, since a multiplier is 0; 0-d bool.

    For a polytope: the oracle at the gradient ``theta - q``, perturbed, returns a vertex outside of theta's face. For
    any other set: P at a short step to either side of q differs from its linear model.
    """
    xp = namespace_of(theta[0])
    found = xp.zeros((), dtype=xp.bool, device=device(theta[0]))
    probe = trees.signs(theta)
    along = probe if all(_by_faces(C) for _, C in region.constrained) else J(probe)
    for i, C in region.constrained:
        z, faces = probe[i], _by_faces(C)
        eps = xp.finfo(z.dtype).eps
        x = _point(C, q[i], theta[i]) if faces else theta[i]
        for sign in (1.0, -1.0):
            if faces:
                # a multiplier below this size, in units of theta, counts as 0: in double precision a solve may leave
                # as much of one, in single precision the root of eps would be more than many multipliers are
                g = x - q[i] + (sign * max(UNKNOWN, 16 * eps) * xp.max(xp.abs(q[i]))) * z
                way = _way(C, g, x)
                face = xp.reshape(C.tangent(event(C, way), event(C, x)), x.shape)
                found = found | (xp.max(xp.abs(way - face)) > eps**0.5 * xp.max(xp.abs(way)))
            else:
                step = sign * eps ** (1 / 3) * (trees.inner(q[i], q[i]) / trees.inner(z, z)) ** 0.5
                miss = _project(C, q[i] + step * z) - _project(C, q[i]) - step * along[i]
                found = found | (trees.inner(miss, miss) > LINEAR**2 * step * step * trees.inner(z, z))
    return found


def crossed(region: Region, theta: Leaves, J: Callable[[Leaves], Leaves], K: Callable[[Leaves], Leaves]) -> Array:
    """Whether J and K, derivatives of P at two points nearby, belong to different faces; 0-d bool.

    On a face of a polytope J is constant; on a curved boundary it changes by as much as the points.
    """
    xp = namespace_of(theta[0])
    found = xp.zeros((), dtype=xp.bool, device=device(theta[0]))
    probe = trees.signs(theta)
    ends = J(probe), K(probe)
    for i, C in region.constrained:
        x, y = (end[i] for end in ends)
        eps = xp.finfo(x.dtype).eps
        found = found | (xp.max(xp.abs(x - y)) > (eps**0.5 if _by_faces(C) else 10 * eps ** (1 / 3)))
    return found


def _by_faces(C: Set) -> bool:
    """Whether J comes from the faces of C, which is then a polytope, or has infinite bounds instead of some."""
    return C.has_faces and (C.polytope or not C.bounded)


def _way(C: Set, g: Array, x: Array) -> Array:
    """The way from x down the slope g, to a vertex or beyond."""
    if C.bounded:
        return namespace_of(x).reshape(C.lmo(event(C, g)), x.shape) - x
    way, rest = C.ahead(g, x)
    return way - rest


def _face_projector(C: Set, x: Array) -> Callable[[Array], Array]:
    """Of directions at x, which may have leading axes: one direction each."""
    face = Region(((0, C),), shapes=(x.shape,))
    return lambda d: face.tangent((d,), (x,))[0]


def _point(C: Set, q: Array, theta: Array) -> Array:
    """The projection of q, or theta itself, which is the same up to rounding, for a set without one."""
    return _project(C, q) if C.has_projection else theta


def _project(C: Set, q: Array) -> Array:
    return namespace_of(q).reshape(C.project(event(C, q)), q.shape)
