"""Five methods and their objectives once more: dense, slow, in plain NumPy, from the papers' pseudo-code.

theta is one vector. Nothing here comes from the rest of the package, which has to find what is found here. Two more
methods, which move inside faces, are in `faces`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

EPS = float(np.finfo(np.float64).eps)
Vector = np.ndarray
Matrix = np.ndarray

# -- sets: a linear minimisation oracle and a projection each ----------------------------------------------------------


class Set(NamedTuple):
    """``lmo(g)`` minimises <g, v>, ``project(x)`` is the nearest point, ``violation(x)`` how far x is outside."""

    lmo: Callable[[Vector], Vector]
    project: Callable[[Vector], Vector]
    violation: Callable[[Vector], float]
    bounds: tuple[float, float] | None = None  # of a box


def _unit(n: int, i: int, size: float) -> Vector:
    v = np.zeros(n)
    v[i] = size
    return v


def _onto_simplex(x: Vector, radius: float) -> Vector:
    """Entries above a threshold, less the threshold: leave out the negative ones until there are none (Michelot)."""
    kept = np.ones(x.size, bool)
    while True:
        threshold = (x[kept].sum() - radius) / kept.sum()
        below = kept & (x < threshold)
        if not below.any():
            return np.where(kept, x - threshold, 0.0)
        kept &= ~below


def simplex(radius: float = 1.0) -> Set:
    """``x >= 0, sum x = radius``."""
    return Set(
        lambda g: _unit(g.size, int(np.argmin(g)), radius),
        lambda x: _onto_simplex(x, radius),
        lambda x: max(float((-x).max()), abs(math.fsum(x) - radius), 0.0) / radius,
    )


def capped_simplex(radius: float = 1.0) -> Set:
    """``x >= 0, sum x <= radius``."""

    def project(x: Vector) -> Vector:
        inside = np.maximum(x, 0.0)
        return inside if inside.sum() <= radius else _onto_simplex(x, radius)

    return Set(
        lambda g: _unit(g.size, int(np.argmin(g)), radius if g.min() < 0 else 0.0),
        project,
        lambda x: max(float((-x).max()), math.fsum(x) - radius, 0.0) / radius,
    )


def l1_ball(radius: float = 1.0) -> Set:
    """``sum |x| <= radius``."""

    def lmo(g: Vector) -> Vector:
        i = int(np.argmax(np.abs(g)))
        return _unit(g.size, i, -radius * np.sign(g[i]))

    def project(x: Vector) -> Vector:
        size = np.abs(x)
        return x if size.sum() <= radius else np.sign(x) * _onto_simplex(size, radius)

    return Set(lmo, project, lambda x: max(math.fsum(np.abs(x)) - radius, 0.0) / radius)


def l2_ball(radius: float = 1.0) -> Set:
    """``|x| <= radius``."""

    def project(x: Vector) -> Vector:
        return x * min(1.0, radius / float(np.linalg.norm(x)))

    return Set(
        lambda g: -radius * g / np.linalg.norm(g),
        project,
        lambda x: max(math.sqrt(math.fsum(x * x)) - radius, 0.0) / radius,
    )


def box(lower: float, upper: float) -> Set:
    """``lower <= x <= upper``."""
    return Set(
        lambda g: np.where(g > 0, lower, upper),
        lambda x: np.minimum(np.maximum(x, lower), upper),
        lambda x: max(float((lower - x).max()), float((x - upper).max()), 0.0) / (upper - lower),
        (lower, upper),
    )


# -- reduced objectives ------------------------------------------------------------------------------------------------


class Model(NamedTuple):
    """A design and its derivative, written by hand."""

    matrix: Callable[[Vector], Matrix]
    pull: Callable[[Vector, Matrix], Vector]  # theta, G -> gradient of <G, M(theta)>


@dataclass(frozen=True)
class Objective:
    """``1/2 |M w - y|^2 + lam/2 |w|^2``, or with an upper level ``1/2 |M_U w - y_U|^2``, at the lower level's w.

    Attributes
    ----------
    lower, y, lam
        The lower level; y is a matrix of right-hand sides.
    upper, y_upper
        The upper level; None where there is one level.
    penalty, mu
        ``mu/2 penalty(theta)`` is added; the penalty returns its value and its gradient.
    sets
        ``(where theta is held, by which set)``.
    free
        Where theta is free.
    """

    lower: Model
    y: Matrix
    lam: float
    sets: tuple[tuple[slice, Set], ...]
    free: slice | None = None
    upper: Model | None = None
    y_upper: Matrix | None = None
    penalty: Callable[[Vector], tuple[float, Vector]] | None = None
    mu: float = 0.0

    def stacked(self, theta: Vector) -> Matrix:
        """``[M; sqrt(lam) I]``, what the lower level is solved with."""
        M = self.lower.matrix(theta)
        return np.vstack([M, math.sqrt(self.lam) * np.eye(M.shape[1])]) if self.lam else M

    def w(self, theta: Vector) -> Matrix:
        """The minimiser of the lower level."""
        K = self.stacked(theta)
        rest = np.zeros((K.shape[0] - self.y.shape[0], self.y.shape[1]))
        found: Matrix = np.linalg.lstsq(K, np.vstack([self.y, rest]), rcond=None)[0]
        return found

    def value(self, theta: Vector) -> float:
        w = self.w(theta)
        if self.upper is None:
            r = self.lower.matrix(theta) @ w - self.y
            value = 0.5 * np.sum(r * r) + 0.5 * self.lam * np.sum(w * w)
        else:
            r = self.upper.matrix(theta) @ w - self.y_upper
            value = 0.5 * np.sum(r * r)
        return float(value + (0.5 * self.mu * self.penalty(theta)[0] if self.penalty else 0.0))

    def gradient(self, theta: Vector) -> Vector:
        """Equation (3) of the paper, with dense matrices."""
        w, M = self.w(theta), self.lower.matrix(theta)
        r = M @ w - self.y
        if self.upper is None:
            grad = self.lower.pull(theta, r @ w.T)  # grad_w f = 0: no adjoint
        else:
            M_U = self.upper.matrix(theta)
            r_U = M_U @ w - self.y_upper
            v = np.linalg.solve(M.T @ M + self.lam * np.eye(M.shape[1]), M_U.T @ r_U)
            grad = self.upper.pull(theta, r_U @ w.T) - self.lower.pull(theta, M @ v @ w.T + r @ v.T)
        return grad + 0.5 * self.mu * self.penalty(theta)[1] if self.penalty else grad

    def floor(self, theta0: Vector) -> float:
        """What rounding of the objective is relative to: the larger of |f| at the start and 1/2 |y|^2."""
        y = self.y if self.y_upper is None else self.y_upper
        return max(abs(self.value(theta0)), 0.5 * float(np.sum(y * y)))

    def direction(self, theta: Vector, grad: Vector) -> tuple[Vector, float, float]:
        """Algorithm 2 (BLMO) less theta, and both parts of the gap ``-<grad, d>``."""
        d = np.zeros_like(theta)
        for where, C in self.sets:
            d[where] = C.lmo(grad[where]) - theta[where]
        held = d.copy()
        if self.free is not None:
            d[self.free] = -grad[self.free] / np.linalg.norm(grad[self.free])
        return d, float(-grad @ held), float(-grad @ (d - held))

    def project(self, theta: Vector) -> Vector:
        x = theta.copy()
        for where, C in self.sets:
            x[where] = C.project(theta[where])
        return x

    def violation(self, theta: Vector) -> float:
        return max((C.violation(theta[where]) for where, C in self.sets), default=0.0)


def condition(f: Objective, theta: Vector) -> float:
    """Of what a QR factors, with columns of length 1: ``[M; sqrt(lam) I]``, or of a wide M ``[M^T; sqrt(lam) I]``."""
    M = f.lower.matrix(theta)
    M = M.T if M.shape[0] < M.shape[1] and f.lam else M
    K = np.vstack([M, math.sqrt(f.lam) * np.eye(M.shape[1])])
    s = np.linalg.svd(K / np.linalg.norm(K, axis=0), compute_uv=False)
    return float(s[0] / s[-1])


# -- what a method leaves behind ---------------------------------------------------------------------------------------

COUNTS = ("values", "gradients", "lmos", "projections")
COLUMNS = ("value", "gap_A", "gap_B", "alpha_A", "alpha_B", *COUNTS)


@dataclass
class Course:
    """Every iterate, the start included: a row of `COLUMNS`, and theta."""

    rows: list[dict[str, float]] = field(default_factory=list)
    thetas: list[Vector] = field(default_factory=list)
    decreases: list[float] = field(default_factory=list)  # that a model promises, where the method has one
    margin: float = math.inf  # how near to the other side its nearest decision was, relative
    events: set[str] = field(default_factory=set)  # what happened on the way: the rules that this course tests

    def column(self, name: str) -> np.ndarray:
        return np.array([row[name] for row in self.rows])

    def add(
        self, theta: Vector, value: float, gaps: tuple[float, float], alphas: tuple[float, float], **work: int
    ) -> None:
        """The next iterate, and the work that it took."""
        before = self.rows[-1] if self.rows else dict.fromkeys(COUNTS, 0)
        counts = {name: before[name] + work.get(name, 0) for name in COUNTS}
        row = dict(zip(COLUMNS, (value, *gaps, *alphas), strict=False))
        self.rows.append({**row, **counts})
        self.thetas.append(theta)

    def decide(self, difference: float, scale: float) -> bool:
        """Whether a difference is >= 0; how clear that is, is kept."""
        self.margin = min(self.margin, abs(difference) / scale if scale else math.inf)
        return difference >= 0


def begin(f: Objective, theta: Vector) -> tuple[Course, float, Vector, Vector]:
    """The start, value and gradient there, and the direction of Algorithm 2."""
    course, value, grad = Course(), f.value(theta), f.gradient(theta)
    d, *gaps = f.direction(theta, grad)
    course.add(theta, value, (gaps[0], gaps[1]), (0.0, 0.0), values=1, gradients=1, lmos=1)
    return course, value, grad, d


def first_curvature(f: Objective, theta: Vector, d: Vector, course: Course) -> float:
    """``|H d| / |d|`` by a difference of gradients, as a power of 2^(1/4) times ``|<grad, d>| / |d|^2``."""
    grad, h = f.gradient(theta), 1e-5 / float(np.linalg.norm(d))
    change = f.gradient(theta + h * d) - f.gradient(theta - h * d)
    unit = abs(float(grad @ d)) / float(d @ d)
    quarters = 4 * math.log2(float(np.linalg.norm(change)) / (2 * h * float(np.linalg.norm(d))) / unit)
    # beyond half a quarter it is the next power: the package's difference is of 5 digits
    course.margin = min(course.margin, 1e-6 * (0.5 - abs(quarters - round(quarters))))
    course.rows[0]["values"] += 1
    course.rows[0]["gradients"] += 1
    return float(unit * 2.0 ** (round(quarters) / 4))


# -- step rules --------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """The objective along a direction d: ``phi(alpha)``, ``slope(alpha)``, ``gap = -slope(0)``, ``dd = |d|^2``."""

    phi: Callable[[float], float]
    slope: Callable[[float], float]
    value: float
    gap: float
    dd: float
    cap: float
    eps: float = EPS


class Step(NamedTuple):
    """What a rule decides. After too many trials the step is 0, which is a trial too."""

    alpha: float
    value: float
    trials: int
    gradients: int = 0


def tried(line: Line, alphas: Sequence[float], accept: Callable[[float, float], bool]) -> Step:
    """The first alpha whose value is finite and accepted."""
    for n, alpha in enumerate(alphas, 1):
        value = line.phi(alpha)
        if math.isfinite(value) and accept(alpha, value):
            return Step(alpha, value, n)
    return Step(0.0, line.value, len(alphas) + 1)


def armijo(line: Line, delta: float = 0.5, gamma: float = 1e-4, limit: int = 60, first: float | None = None) -> Step:
    """``alpha = first delta^j``, the least j with ``f - f(alpha) >= gamma alpha gap``; from the cap by default."""
    first = line.cap if first is None else first
    return tried(
        line,
        [first * delta**j for j in range(limit)],
        lambda alpha, value: line.value - value >= gamma * alpha * line.gap,
    )


def scheduled(line: Line, alpha: float, limit: int = 60) -> Step:
    """An open loop's step, halved while the objective is not finite."""
    first = min(line.cap, alpha)
    return tried(line, [first / 2**j for j in range(limit)], lambda alpha, value: True)


def by_slopes(
    line: Line, alphas: Sequence[float], accept: Callable[[int, float], bool], rise: float = 0.0, promised: float = 0.0
) -> Step:
    """As `tried`, but where two values differ by rounding alone the slope at the trial decides.

    A rise that a longer trial has seen has to be explained by these slopes: at half of it at least, the parabola with
    ``-alpha gap`` at 0 and the trial's slope passes above it.
    """
    tiny, gradients = 4 * line.eps * abs(line.value), 0
    for n, alpha in enumerate(alphas, 1):
        value = line.phi(alpha)
        promise, change = alpha * line.gap, value - line.value
        if abs(change) <= tiny and promise > 0:
            gradients += 1
            end, far = alpha * line.slope(alpha), promised / promise
            if end <= 0 and (rise == 0 or far * (0.5 * far * (end + promise) - promise) >= 0.5 * rise):
                return Step(alpha, value, n, gradients)
            continue
        if math.isfinite(value) and accept(n - 1, value):
            return Step(alpha, value, n, gradients)
        if math.isfinite(change) and change > tiny:
            rise, promised = change, promise
    return Step(0.0, line.value, len(alphas) + 1, gradients)


def _short(line: Line, L: float) -> float:
    return min(line.cap, max(line.gap, 0.0) / (L * line.dd)) if L * line.dd > 0 else line.cap


def short_step(line: Line, L: float, grow: float = 2.0, limit: int = 60) -> Step:
    """``min(cap, gap / (L |d|^2))`` with a given L, raised where the descent lemma fails beyond rounding."""
    bound = 4 * line.eps * abs(line.value)
    for n in range(limit):
        raised = L * grow**n
        alpha = _short(line, raised)
        value = line.phi(alpha)
        promise = alpha * line.gap - 0.5 * alpha**2 * raised * line.dd
        if math.isfinite(value) and line.value - value >= promise - (bound if n == 0 else 0.0):
            return Step(alpha, value, n + 1)
    return Step(0.0, line.value, limit + 1)


def adaptive_step(
    line: Line, L: float, drop: float, shrink: float = 0.9, grow: float = 2.0, limit: int = 60
) -> tuple[Step, float]:
    """Pedregosa et al. 2020, algorithm 2: the short step whose L is tried until the descent lemma holds; and that L.

    It begins at the L that would have explained the last drop, between `shrink` times the last L and the last L.
    """
    first = shrink * L
    if drop > 0 and line.dd > 0:
        first = max(first, min(L, line.gap**2 / (2 * drop * line.dd)))
    estimates = [first * grow**n for n in range(limit)]
    alphas = [_short(line, M) for M in estimates]

    def accept(n: int, value: float) -> bool:
        promise = alphas[n] * line.gap - 0.5 * alphas[n] ** 2 * estimates[n] * line.dd
        return line.value - value >= promise

    found = by_slopes(line, alphas, accept)
    return found, L if found.trials > limit else estimates[found.trials - 1]


def parabola_step(line: Line, limit: int = 60) -> Step:
    """The minimiser of the parabola through value, slope and one trial, halved while the objective does not fall."""
    right, n = line.cap, 1
    while not math.isfinite(line.phi(right)) and n < limit - 1:
        right, n = right / 2, n + 1
    excess = line.phi(right) - line.value + right * line.gap
    vertex = 0.5 * right**2 * line.gap / excess if excess > 0 else math.inf
    best = min(vertex, right) if line.gap > 0 else 0.0
    found = by_slopes(line, [best / 2**j for j in range(limit - n)], lambda _, value: value < line.value)
    return found._replace(trials=found.trials + n)


# -- the paper's method ------------------------------------------------------------------------------------------------

Search = Callable[[Line, Course], Step]


def conditional_gradient(
    f: Objective, theta: Vector, n: int, search: Search, blocks: Sequence[str] = ("AB",)
) -> Course:
    """Algorithm 1: the direction of Algorithm 2, and a step along it for both blocks, or for each in its turn."""
    course, value, grad, d = begin(f, theta)
    for _ in range(n):
        alphas, work = {"A": 0.0, "B": 0.0}, 0
        for moving in blocks:
            way = np.zeros_like(theta)
            places = [where for where, _ in f.sets] * ("A" in moving) + [f.free] * (
                "B" in moving and f.free is not None
            )
            for where in places:
                way[where] = d[where]
            found = search(along(f, theta, value, grad, way, 1.0), course)
            theta = theta + found.alpha * way
            value, grad = f.value(theta), f.gradient(theta)
            d, *gaps = f.direction(theta, grad)
            alphas.update(dict.fromkeys(moving, found.alpha))
            work += found.trials
        steps = len(blocks)
        course.add(
            theta, value, (gaps[0], gaps[1]), (alphas["A"], alphas["B"]), values=work, gradients=steps, lmos=steps
        )
    return course


def along(f: Objective, theta: Vector, value: float, grad: Vector, d: Vector, cap: float) -> Line:
    """The objective along a direction."""
    return Line(
        lambda alpha: f.value(theta + alpha * d),
        lambda alpha: float(f.gradient(theta + alpha * d) @ d),
        value,
        float(-grad @ d),
        float(d @ d),
        cap,
    )


def cr_varpro(f: Objective, theta: Vector, n: int, delta: float = 0.5, gamma: float = 1e-4) -> Course:
    """The paper: Armijo's rule from alpha = 1."""

    def search(line: Line, course: Course) -> Step:
        found = armijo(line, delta, gamma)
        for alpha in {found.alpha, min(1.0, found.alpha / delta)}:  # the last two trials are the nearest decisions
            course.decide(line.value - line.phi(alpha) - gamma * alpha * line.gap, line.value)
        course.events.add("full step" if found.alpha == 1 else "shorter step")
        return found

    return conditional_gradient(f, theta, n, search)


def warm_separate(f: Objective, theta: Vector, n: int, delta: float = 0.5) -> Course:
    """Each block in its turn, the free one first, each search from its own last step, once longer."""
    last, turn = [1.0, 1.0], itertools.cycle((0, 1))

    def search(line: Line, course: Course) -> Step:
        i = next(turn)
        found = armijo(line, delta, first=min(1.0, last[i] / delta))
        last[i] = found.alpha
        return found

    return conditional_gradient(f, theta, n, search, ("B", "A"))


def open_loop(f: Objective, theta: Vector, n: int) -> Course:
    """``alpha = 2 / (t + 2)`` (Jaggi 2013)."""
    return conditional_gradient(f, theta, n, lambda line, course: scheduled(line, 2 / (len(course.rows) + 1)))


def short_steps(f: Objective, theta: Vector, n: int) -> Course:
    """Frank-Wolfe with the adaptive short step."""
    course, *_, d = begin(f, theta)
    memory = first_curvature(f, theta, d, course), 0.0

    def search(line: Line, _: Course) -> Step:
        nonlocal memory
        found, L = adaptive_step(line, *memory)
        memory = L, line.value - found.value
        return found

    found = conditional_gradient(f, theta, n, search)
    for row in found.rows:
        row["values"] += 1
        row["gradients"] += 1
    found.margin = course.margin
    return found


# -- projected gradients -----------------------------------------------------------------------------------------------

Nearest = Callable[[Objective, Vector, Vector], tuple[Vector, int]]  # f, goal, x -> a feasible point, oracle calls


def projection(f: Objective, goal: Vector, x: Vector) -> tuple[Vector, int]:
    """The feasible point that is nearest to a goal."""
    return f.project(goal), 1


class Gradient:
    """What methods with gradient steps share: where they are, and how they come back to the set."""

    def __init__(self, f: Objective, x: Vector, nearest: Nearest = projection, oracle: str = "projections") -> None:
        self.f, self.x, self.nearest, self.oracle = f, x, nearest, oracle
        self.course, self.value, self.grad, d = begin(f, x)
        self.L = first_curvature(f, x, d, self.course)

    def step(self) -> None:
        """One iteration."""
        raise NotImplementedError

    def follow(self, d: Vector, gamma: float) -> None:
        """An iteration along a direction that another method has found, with a step that falls from 1."""
        raise NotImplementedError

    def searched(self, d: Vector, gamma: float, worst: float) -> tuple[float, int]:
        """Armijo's rule from 1, below `worst`: the next trial is a parabola's minimiser, at a tenth to a half."""
        slope, alpha, trials = float(self.grad @ d), 1.0, 1
        while not self.course.decide(worst + gamma * alpha * slope - self.f.value(self.x + alpha * d), abs(self.value)):
            rise = self.f.value(self.x + alpha * d) - self.value
            least = -slope * alpha**2 / (2 * (rise - alpha * slope))
            alpha, trials = min(max(least, 0.1 * alpha), 0.5 * alpha), trials + 1
            self.course.events.add("shorter step")
        return alpha, trials

    def arrive(self, size: float, values: int, gradients: int, calls: int) -> None:
        """The iterate, with its certificate; the step of both blocks was `size`."""
        _, *gaps = self.f.direction(self.x, self.grad)
        work = {"values": values, "gradients": gradients, "lmos": 1, "projections": 0}
        work[self.oracle] += calls
        self.course.add(self.x, self.value, (gaps[0], gaps[1]), (size, size), **work)


class Accelerated(Gradient):
    """MFISTA (Beck, Teboulle 2009) with backtracking; momentum restarts as O'Donoghue and Candes (2015) say.

    A step that raises the objective is dropped, and momentum with it.
    """

    shrink, grow = 0.8, 2.0

    def __init__(self, f: Objective, x: Vector, nearest: Nearest = projection, oracle: str = "projections") -> None:
        super().__init__(f, x, nearest, oracle)
        self.z, self.t = x, 1.0

    def step(self) -> None:
        f, course, z, t = self.f, self.course, self.z, self.t
        f_z, g_z, trials, calls = f.value(z), f.gradient(z), 0, 0
        self.L *= self.shrink
        while True:
            new, n = self.nearest(f, z - g_z / self.L, self.x)
            trials, calls = trials + 1, calls + n
            step = new - z
            f_new = f.value(new)
            if course.decide(f_z + g_z @ step + 0.5 * self.L * step @ step - f_new, abs(f_z)):
                break
            self.L *= self.grow
        g_new = f.gradient(new)
        step, lower = new - self.x, course.decide(self.value - f_new, abs(self.value))
        forward = lower and course.decide(-float(g_new @ step), float(np.linalg.norm(g_new) * np.linalg.norm(step)))
        course.events.add("forward" if forward else "restart by slope" if lower else "dropped")
        if lower:
            self.x, self.value, self.grad = new, f_new, g_new
        t_next = 0.5 * (1 + math.sqrt(1 + 4 * t * t))
        self.z = self.x + (t - 1) / t_next * step if forward else self.x
        self.t = t_next if forward else 1.0
        self.arrive(1 / self.L, trials + 1, 2, calls)

    def follow(self, d: Vector, gamma: float) -> None:
        alpha, trials = self.searched(d, gamma, self.value)
        self.x = self.z = self.x + alpha * d
        self.value, self.grad, self.t = self.f.value(self.x), self.f.gradient(self.x), 1.0
        self.arrive(alpha, trials, 1, 0)


class Spectral(Gradient):
    """SPG2 (Birgin, Martinez, Raydan 2000): Barzilai-Borwein lengths and the worst of the last `memory` values."""

    memory, gamma = 10, 1e-4

    def __init__(self, f: Objective, x: Vector, nearest: Nearest = projection, oracle: str = "projections") -> None:
        super().__init__(f, x, nearest, oracle)
        self.recent = [self.value]

    def step(self) -> None:
        end, calls = self.nearest(self.f, self.x - self.grad / self.L, self.x)
        self._along(end - self.x, self.gamma, max(self.recent), calls)

    def follow(self, d: Vector, gamma: float) -> None:
        self._along(d, gamma, self.value, 0)

    def _along(self, d: Vector, gamma: float, worst: float, calls: int) -> None:
        course = self.course
        alpha, trials = self.searched(d, gamma, worst)
        last, old = self.value, self.grad
        self.x = self.x + alpha * d
        self.value, self.grad = self.f.value(self.x), self.f.gradient(self.x)
        course.events.add("rise" if self.value > last else "fall")
        curved = float(d @ (self.grad - old))
        course.events.add("curved" if curved > 0 else "bent down")
        length = alpha * float(d @ d) / curved if curved > 0 else 2 / self.L
        size = math.sqrt(max(float(self.x @ self.x), float(d @ d)) / float(self.grad @ self.grad))
        self.L = 1 / min(length, 1e6 * size)
        self.recent = [*self.recent, self.value][-self.memory :]
        self.arrive(alpha, trials, 1, calls)


def taken(method: Gradient, n: int) -> Course:
    """`n` iterations."""
    for _ in range(n):
        method.step()
    return method.course


def accelerated(f: Objective, x: Vector, n: int) -> Course:
    """Steps of `Accelerated`."""
    return taken(Accelerated(f, x), n)


def spectral(f: Objective, x: Vector, n: int, memory: int = 10) -> Course:
    """Steps of `Spectral`."""
    method = Spectral(f, x)
    method.memory = memory
    return taken(method, n)


# -- Frank-Wolfe that takes mass away ----------------------------------------------------------------------------------


def active_set(f: Objective, x: Vector, n: int, correction: str = "blended", capacity: int = 128) -> Course:
    """``x = sum w_i a_i``: "away" (Guelat, Marcotte 1986), "pairwise" (Lacoste-Julien, Jaggi 2015, algorithms 1 and 2)
    or "blended" (Tsuji, Tanaka, Pokutta 2022, algorithm 1), with the adaptive short step.

    Where an atom more than `capacity` would be needed, the two lightest ones become one, their mean.
    """
    course, value, grad, d = begin(f, x)
    L, drop = first_curvature(f, x, d, course), 0.0
    atoms, weights = [x], [1.0]
    for _ in range(n):
        scores = [float(grad @ a) for a in atoms]
        worst, best = int(np.argmax(scores)), int(np.argmin(scores))
        a, v = atoms[worst], x + d
        size = float(np.linalg.norm(grad))
        enters, leaves, cap = True, False, 1.0
        if correction == "pairwise":
            way, leaves, cap = v - a, True, weights[worst]
        elif correction == "away":
            if not course.decide(float(grad @ (x - v) - grad @ (a - x)), size):
                way, enters, leaves, cap = x - a, False, True, weights[worst] / (1 - weights[worst])
        elif len(atoms) > 1 and course.decide(float(grad @ (a - atoms[best]) - grad @ (x - v)), size):
            way, enters, leaves, cap = atoms[best] - a, False, True, weights[worst]
        if not leaves:
            way = v - x
        found, L = adaptive_step(along(f, x, value, grad, way, cap), L, drop)
        alpha, drop = found.alpha, value - found.value
        dropped = leaves and alpha >= cap
        if correction == "away" and leaves:
            weights = [(1 + alpha) * w for w in weights]
        elif not leaves:
            weights = [(1 - alpha) * w for w in weights]
        if leaves:
            weights[worst] = 0.0 if dropped else weights[worst] - alpha
        if leaves and not enters and correction == "blended":
            weights[best] += alpha
        if enters:
            for i, atom in enumerate(atoms):
                if np.allclose(atom, v, rtol=0, atol=1e-12):
                    weights[i] += alpha
                    break
            else:
                full = sum(w > 0 for w in weights) == capacity
                course.events.add("merger" if full else "room")
                atoms, weights = _merged(atoms, weights) if full else (atoms, weights)
                atoms, weights = [*atoms, v], [*weights, alpha]
        course.events.add(f"{'pair' if enters and leaves else 'enter' if enters else 'away'}{' drop' * dropped}")
        kept = [i for i, w in enumerate(weights) if w > 2 * EPS]
        atoms, weights = [atoms[i] for i in kept], [weights[i] for i in kept]
        x = x + alpha * way
        value, grad = f.value(x), f.gradient(x)
        d, *gaps = f.direction(x, grad)
        work = {"values": found.trials, "gradients": 1 + found.gradients, "lmos": 1 + enters}
        course.add(x, value, (gaps[0], gaps[1]), (alpha, 0.0), **work)
    return course


def _merged(atoms: list[Vector], weights: list[float]) -> tuple[list[Vector], list[float]]:
    i, j, *rest = np.argsort(weights)
    total = weights[i] + weights[j]
    mean = (weights[i] * atoms[i] + weights[j] * atoms[j]) / total
    return [*(atoms[k] for k in rest), mean], [*(weights[k] for k in rest), total]


# -- Levenberg-Marquardt -----------------------------------------------------------------------------------------------


def jacobian(f: Objective, theta: Vector) -> Matrix:
    """Kaufman's (1975), a row per entry of theta: the part of ``[dM w; 0]`` orthogonal to ``[M; sqrt(lam) I]``."""
    K, w = f.stacked(theta), f.w(theta)
    Q, _ = np.linalg.qr(K)
    M, rows = f.lower.matrix(theta), []
    columns = [f.lower.pull(theta, G) for G in _units(M.shape)]
    dM = np.array(columns).reshape(*M.shape, theta.size)  # dM[..., j] is the derivative by theta_j
    for j in range(theta.size):
        moved = np.zeros((K.shape[0], w.shape[1]))
        moved[: M.shape[0]] = dM[..., j] @ w
        rows.append((moved - Q @ (Q.T @ moved)).ravel())
    return np.array(rows)


def _units(shape: tuple[int, ...]) -> list[Matrix]:
    return [e.reshape(shape) for e in np.eye(math.prod(shape))]


def least_model(f: Objective, theta: Vector, grad: Vector, B: Matrix) -> tuple[Vector, float]:
    """``min <grad, s> + 1/2 <s, B s>`` with theta + s in a box, by trying its faces; and how far it is below 0."""
    (lower, upper) = f.sets[0][1].bounds or (-math.inf, math.inf)
    best, depth = np.zeros_like(theta), 0.0
    for face in itertools.product((None, lower, upper), repeat=theta.size):
        s = np.array([0.0 if end is None else end - x for end, x in zip(face, theta, strict=True)])
        inside = np.array([end is None for end in face])
        if not np.isfinite(s).all():
            continue
        if inside.any():
            s[inside] = -np.linalg.solve(
                B[np.ix_(inside, inside)], grad[inside] + B[np.ix_(inside, ~inside)] @ s[~inside]
            )
        found = -float(grad @ s + 0.5 * s @ B @ s)
        if found > depth and (theta + s >= lower - 1e-12).all() and (theta + s <= upper + 1e-12).all():
            best, depth = s, found
    return best, depth


def marquardt(f: Objective, theta: Vector, n: int, tol: float = 0.0, damping: float = 1e-3) -> Course:
    """Damping by the ratio of the decreases (Nielsen 1999), the matrix by the better prediction of the change of the
    gradient (Fletcher, Xu 1987): that of Gauss and Newton, or BFGS built upon it. Ends where the model promises less
    than ``tol^2/100 |f|``, or rounding.
    """
    floor = f.floor(theta)

    def local(theta: Vector) -> tuple[float, Vector, Matrix, float]:
        value, grad, J = f.value(theta), f.gradient(theta), jacobian(f, theta)
        H = J @ J.T
        _, promise = least_model(f, theta, grad, H + 10 * EPS * np.diag(np.diag(H)))
        return value, grad, H, min(promise, value)  # no sum of squares is below 0

    course, *_ = begin(f, theta)
    value, grad, H, left = local(theta)
    course.decreases.append(left)
    Q, quasi, scale, growth = H, False, np.diag(H), 4.0
    for _ in range(n):
        if course.decreases[-1] <= max((0.1 * tol) ** 2 * abs(value), (10 * EPS) ** 2 * floor):
            break
        added = damping * scale
        s, promise = least_model(f, theta, grad, (Q if quasi else H) + np.diag(added))
        promise += 0.5 * float(s @ (added * s))
        new = theta + s
        f_new, g_new, H_new, left = local(new)
        ratio = (value - f_new) / promise
        accepted = course.decide(ratio - 1e-4, 1.0)
        course.events.add(f"{'accepted' if accepted else 'refused'} {'BFGS' if quasi else 'Gauss-Newton'}")
        if accepted:
            change = g_new - grad
            by_gauss, by_secant = ((change - B @ s) / np.sqrt(scale) for B in (H, Q))
            ahead = float(by_secant @ by_secant) - 0.25 * float(by_gauss @ by_gauss)
            now_quasi = not course.decide(ahead, float(by_gauss @ by_gauss) or 1.0)
            Q = Q if now_quasi else H_new
            Qs = Q @ s
            if s @ change > 100 * EPS * np.linalg.norm(s * np.sqrt(scale)) * np.linalg.norm(change / np.sqrt(scale)):
                Q = Q + np.outer(change, change) / (s @ change) - np.outer(Qs, Qs) / (s @ Qs)
            quasi, scale, growth = now_quasi, np.maximum(scale, np.diag(H_new)), 4.0
            damping *= min(max(1 - (2 * ratio - 1) ** 3, 0.1), 2.0)
            theta, value, grad, H = new, f_new, g_new, H_new
            course.decreases.append(left)
        else:
            if quasi:
                quasi = False
            else:
                # the parabola through both values leaves alpha of the step, in directions of 0.15 of its curvature
                slope = -float(grad @ s)
                alpha = min(max(slope / (2 * (slope - value + f_new)), 0.1), 0.5)
                bend = 2 * (slope - promise) / float(s @ (scale * s))
                damping, growth = max(growth * damping, 0.15 * bend * (1 / alpha - 1)), 4 * growth
            course.decreases.append(course.decreases[-1])
        gaps = f.direction(theta, grad)[1:]
        alphas = (float(accepted), 0.0)
        course.add(theta, value, gaps, alphas, values=1, gradients=1, lmos=1)
    return course


# -- where a solve ends ------------------------------------------------------------------------------------------------


def bound(f: Objective, theta0: Vector, value: float, tol: float) -> float:
    """The gap below which a solve has converged: ``tol |f|``, and at least 10 eps of what is rounded."""
    return max(tol * abs(value), 10 * EPS * f.floor(theta0))


def end_by_gap(f: Objective, course: Course, tol: float) -> int:
    """The first iterate whose gap is below the bound: where methods without a projection end."""
    theta0 = course.thetas[0]
    return next(i for i, row in enumerate(course.rows) if row["gap_A"] <= bound(f, theta0, row["value"], tol))


def end_by_promise(f: Objective, course: Course, tol: float) -> int:
    """The first iterate with a gap below the bound at which parabolas promise less than ``tol^2 |f|``.

    They are looked at where all seems well, and hold, as the square of the gap, until the next look.
    """
    theta0, share = course.thetas[0], 0.0
    for i, (row, theta) in enumerate(zip(course.rows, course.thetas, strict=True)):
        gap, value = row["gap_A"], row["value"]
        least = max(tol**2 * abs(value), (10 * EPS) ** 2 * f.floor(theta0))
        if gap <= bound(f, theta0, value, tol) and share * gap**2 <= least:
            found = promise(f, theta)
            if found <= least:
                return i
            share = found / gap**2
    raise AssertionError("a course that ends is required")


def promise(f: Objective, theta: Vector) -> float:
    """The larger decrease of two parabolas: toward the vertex, and along the projected gradient."""
    grad = f.gradient(theta)
    d, *_ = f.direction(theta, grad)

    def parabola(d: Vector) -> tuple[float, float]:
        h = 1e-5 / float(np.linalg.norm(d))
        bend = float((f.gradient(theta + h * d) - f.gradient(theta - h * d)) @ d) / (2 * h)
        slope = -float(grad @ d)
        alpha = slope / bend if bend > slope else 1.0
        return alpha * (slope - 0.5 * alpha * bend), bend

    first, bend = parabola(d)
    length = float(d @ d) / bend if bend > 0 else 1.0
    return max(first, parabola(f.project(theta - length * grad) - theta)[0])
