"""Two methods that move inside faces once more, as those of `twins`: L-BFGS in the active face, and Frank-Wolfe.

A face is found from the inequalities of its set, whatever the set: those that hold with equality at a point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xvarpro_conformance.references.twins import (
    EPS,
    Course,
    Gradient,
    Matrix,
    Nearest,
    Objective,
    Set,
    Vector,
    adaptive_step,
    along,
    begin,
    first_curvature,
    projection,
)


class Bounds(NamedTuple):
    """The set ``{x : A x <= b, E x = const}``."""

    A: Matrix
    b: Vector
    E: Matrix


def bounds(C: Set, n: int) -> Bounds:
    """Those of a box, or of a simplex of sum 1 that is capped or not, found by asking the set."""
    eye, one = np.eye(n), np.ones((1, n))
    if C.bounds:
        lower, upper = C.bounds
        return Bounds(np.vstack([-eye, eye]), np.repeat([-lower, upper], n), np.zeros((0, n)))
    if C.violation(np.zeros(n)) > 0:
        return Bounds(-eye, np.zeros(n), one)
    return Bounds(np.vstack([-eye, one]), np.eye(n + 1)[n], np.zeros((0, n)))


def inside(C: Set, x: Vector) -> Matrix:
    """The orthogonal projection on the directions that keep what holds with equality at x."""
    held = bounds(C, x.size)
    room = held.b - held.A @ x
    K = np.vstack([held.A[room <= 100 * EPS * np.abs(x).max()], held.E])
    P: Matrix = np.eye(x.size) - np.linalg.pinv(K) @ K
    return np.round(P, 12)  # the same bits for the same face


def face(f: Objective, theta: Vector) -> Matrix:
    """`inside` for every set; free entries keep all directions."""
    P = np.eye(theta.size)
    for where, C in f.sets:
        P[where, where] = inside(C, theta[where])
    return P


def slide(f: Objective, d: Vector, theta: Vector) -> Vector:
    """Where a path along d ends that turns into each face it meets: the projection of its part inside the face."""
    return f.project(theta + face(f, theta) @ d)


def sliding(f: Objective, goal: Vector, theta: Vector) -> tuple[Vector, int]:
    """Conditional gradient sliding (Lan, Zhou 2016) toward the projection of a goal, by up to five vertices.

    Ends where the gap of ``1/2 |x - goal|^2`` is half of the squared step at most.
    """
    x, calls = theta, 0
    while True:
        calls += 1
        end = slide(f, goal - x, x)
        way, step = np.zeros_like(theta), np.zeros_like(theta)
        for where, C in f.sets:
            way[where] = C.lmo((end - goal)[where]) - end[where]
            step[where] = (end - theta)[where]
        gap = float((goal - end) @ way)
        if gap <= 0.5 * float(step @ step) or calls == 6:
            return end, calls
        x = end + min(1.0, gap / float(way @ way)) * way


def across(f: Objective, d: Vector, theta: Vector) -> Vector:
    """The projection of ``theta + d``."""
    return f.project(theta + d)


# -- quasi-Newton ------------------------------------------------------------------------------------------------------


def inverse_hessian(pairs: list[tuple[Vector, Vector]], first: float, n: int) -> Matrix:
    """BFGS pair by pair (Nocedal, Wright 2006, equation 6.17); the newest pair sets the scale."""
    good = [(s, y) for s, y in pairs if s @ y > 100 * EPS * np.linalg.norm(s) * np.linalg.norm(y)]
    if good:
        s, y = good[-1]
        first = float(s @ y) / float(y @ y)
    H = first * np.eye(n)
    for s, y in good:
        V = np.eye(n) - np.outer(y, s) / (s @ y)
        H = V.T @ H @ V + np.outer(s, s) / (s @ y)
    return H


def quasi_newton(
    kind: type[Gradient],
    f: Objective,
    theta: Vector,
    n: int,
    memory: int = 10,
    settle: int = 20,
    projects: bool = True,
    trust: float = 0.5,
    gamma: float = 1e-4,
) -> Course:
    """L-BFGS inside the face that has been the same for `settle` iterations, where the gradient step of `kind` does not
    promise more outside of it (Bertsekas 1982; Schmidt, Kim, Sra 2012); all other steps are those of `kind`.
    """
    nearest: Nearest = projection if projects else sliding
    toward: Callable[[Objective, Vector, Vector], Vector] = across if projects else slide
    method = kind(f, theta, nearest, "projections" if projects else "lmos")
    course, calm = method.course, 0
    pairs: list[tuple[Vector, Vector]] = []
    for _ in range(n):
        x, grad, P = method.x, method.grad, face(f, method.x)
        model, work = False, 0
        if calm >= settle:
            end, work = nearest(f, x - grad / method.L, x)
            H = inverse_hessian([(P @ s, P @ y) for s, y in pairs], 1 / method.L, x.size)
            a, b = toward(f, -H @ P @ grad, x) - x, end - x
            work += projects
            size = float(np.linalg.norm(grad) * np.linalg.norm(a))
            model = course.decide(-float(grad @ a) - math.sqrt(EPS) * size, size)
            model = model and course.decide(float(grad @ (trust * b - P @ b)), float(np.linalg.norm(grad)))
        if model:
            method.follow(a, gamma)
            course.events.add("model" if course.rows[-1]["alpha_A"] == 1 else "shorter model step")
        else:
            method.step()
            course.events.add("across" if calm >= settle else "unsettled")
        course.rows[-1][method.oracle] += work
        if calm + memory >= settle:
            pairs = [*pairs, (method.x - x, method.grad - grad)][-memory:]
        same = np.array_equal(P, face(f, method.x))
        course.events.add("same face" if same else "another face")
        calm = calm + 1 if same else 0
    return course


# -- Frank-Wolfe in faces ----------------------------------------------------------------------------------------------


def within(C: Set, g: Vector, x: Vector) -> Vector:
    """The vertex of the smallest face of x that minimises <g, v>."""
    moving = inside(C, x)
    steep = np.where(np.diag(moving) > 0, g, np.inf if C.bounds is None else g)
    v = C.lmo(steep)
    return v if C.bounds is None else np.where(np.diag(moving) > 0, v, x)


def longest(C: Set, d: Vector, x: Vector) -> float:
    """The largest step along d that stays in the set."""
    held = bounds(C, x.size)
    rise, room = held.A @ d, held.b - held.A @ x
    rising = rise > 1e-12 * np.abs(d).max()
    return float((room[rising] / rise[rising]).min()) if rising.any() else math.inf


def _promise(gap: float, dd: float, bend: float) -> float:
    """The largest decrease of a parabola with that slope and bend, within a step of 1."""
    alpha = min(1.0, gap / (bend * dd)) if bend * dd > 0 else 1.0
    return alpha * gap - 0.5 * alpha**2 * bend * dd


def in_face(f: Objective, x: Vector, n: int, correction: str = "gradient") -> Course:
    """Frank-Wolfe with steps inside the smallest face: a path down the gradient (Freund, Grigas, Mazumder 2017), with
    the bend that the last step has met, or the worst and the best vertex of the face (Garber, Meshi 2016).

    All of theta is in one set. The steps are adaptive short steps.
    """
    ((_, C),) = f.sets
    course, value, grad, d = begin(f, x)
    L, drop, bend = first_curvature(f, x, d, course), 0.0, 0.0
    for _ in range(n):
        cap = 1.0
        away, inner = x - within(C, -grad, x), within(C, grad, x) - x
        if correction == "gradient":
            way = slide(f, -grad / bend, x) - x if bend else np.zeros_like(x)
            promises = [_promise(float(-grad @ e), float(e @ e), bend) for e in (way, d)]
        elif correction == "pairwise":
            way, promises = d + away, [1.0, 0.0]
        elif correction == "away":
            way, promises = away, [float(-grad @ away), float(-grad @ d)]
        else:
            way, promises = away + inner, [float(-grad @ (away + inner)), float(-grad @ d)]
        ahead = not course.decide(promises[0] - promises[1], promises[1])
        if not ahead and correction != "gradient":
            cap = longest(C, way, x)
        # a face that is a point is left by the vertex, and one that ends at once
        if not ahead and not cap * float(np.linalg.norm(way)) > 2**12 * EPS * float(np.linalg.norm(x)):
            ahead = True
        way, cap = (d, 1.0) if ahead else (way, cap)
        found, L = adaptive_step(along(f, x, value, grad, way, cap), L, drop)
        alpha, drop = found.alpha, value - found.value
        course.events.add("vertex" if ahead else f"in the face{' to its end' * (alpha == cap)}")
        expected = -alpha * float(grad @ way)
        if drop > 0 and expected - drop > 2**-20 * expected:
            bend = max(2 * (expected - drop) / float(alpha**2 * way @ way), 0.5 * bend)
        x = x + alpha * way
        value, grad = f.value(x), f.gradient(x)
        d, *gaps = f.direction(x, grad)
        work = {"values": found.trials, "gradients": 1 + found.gradients, "lmos": 1}
        course.add(x, value, (gaps[0], gaps[1]), (alpha, 0.0), **work)
    return course
