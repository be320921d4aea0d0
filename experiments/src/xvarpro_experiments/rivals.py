"""Joint baselines: theta and w as variables, nothing eliminated.

The joint objective of a separable problem is ``J = 1/2 |M w - y|^2 + lam/2 |w|^2 + mu/2 R``. A bilevel problem has no
joint form: its baselines are given both splits in one level, as a user without the second level would run them. They
start from theta0 and the w that is optimal for it.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast, final

import numpy as np
from array_api_compat import device

import xvarpro as xv
from xvarpro import Problem
from xvarpro.algorithms import AcceleratedProjectedGradient, Algorithm
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import Ridge, System
from xvarpro.operators import Dense, Operator
from xvarpro_experiments import descent
from xvarpro_experiments.checks import positive, whole
from xvarpro_experiments.descent import Budget, Descent, Machine
from xvarpro_experiments.methods import Kept, Method, Outcome, Repeated, Task, Tuned
from xvarpro_experiments.trees import Array, Rest, Tree, arrays, axpy, dot, mapped, partition

_EVERY, _POWERS = 10, 5  # iterations between refreshes of a joint L, power iterations for each; 30 at the start


class Parts(NamedTuple):
    """What the user's functions return at one theta: design, target if it depends on theta, and penalty."""

    M: Operator
    y: Array | None
    R: Array | None


class Joint:
    """J of a problem whose arrays are on a backend: its gradients, and what steps of length 1/L need."""

    def __init__(self, problem: Problem, backend: xv.backends.Backend, over: Any = None) -> None:
        level = problem.lower
        fixed = level.W is None and level.weights is None and not callable(level.lam) and level.ridge.plain
        if not problem.is_separable or not fixed:
            raise ProblemError(
                "a joint method needs one level with a free w, no weights, no Omega and a number lam; got two levels, "
                "or W, weights, Omega or lam(theta): pass a problem without"
            )
        self.problem, self.backend, self.over = problem, backend, over
        self.lam = cast("float", level.lam)

    def parts(self, theta: Tree, problem: Problem | None = None) -> Parts:
        """Design, target and penalty at theta."""
        p = problem or self.problem
        M, y = p.lower.M(theta, p.data), p.lower.y
        M = M if isinstance(M, xv.operators.Operator) else xv.operators.Dense(M)
        return Parts(M, y(theta, p.data) if callable(y) else None, p.R(theta) if p.R is not None and p.mu else None)

    def residual(self, parts: Parts, w: Array) -> Array:
        """``M w - y``."""
        return parts.M.residual(w, self.target(parts))

    def target(self, parts: Parts) -> Array:
        """y, as a matrix."""
        y = cast("Array", self.problem.lower.y) if parts.y is None else parts.y
        return xv.array_namespace(y).expand_dims(y, axis=1) if y.ndim == 1 else y

    def by_theta(self, theta: Tree, w: Array) -> tuple[Parts, Array, Tree]:
        """What the functions return, the residual, and the gradient in theta: one VJP of the functions alone."""
        (x, rest), (given, stated) = partition(theta), partition(self.problem)
        shape: list[Rest] = []

        def outputs(*leaves: Array) -> tuple[Array, ...]:
            out, own = partition(self.parts(rest.fill(leaves[: len(x)]), stated.fill(leaves[len(x) :])))
            shape[:] = [own]
            return out

        out, pull = self.backend.vjp(outputs, x, given)
        parts = shape[0].fill(out)
        r = self.residual(parts, w)
        y = None if parts.y is None else xv.array_namespace(r).reshape(-r, parts.y.shape)
        R = None if parts.R is None else 0.5 * self.problem.mu * xv.array_namespace(parts.R).ones_like(parts.R)
        return parts, r, rest.fill(pull(arrays(Parts(parts.M.outer(r, w), y, R))))

    def slope_w(self, parts: Parts, w: Array, r: Array) -> Array:
        """The gradient in w."""
        return parts.M.rmatvec(r) + self.lam * w

    def gradient(self, theta: Tree, w: Array) -> tuple[Tree, Array]:
        """Both gradients."""
        parts, r, slope = self.by_theta(theta, w)
        return slope, self.slope_w(parts, w, r)

    def project(self, theta: Tree) -> Tree:
        """The nearest feasible theta."""
        return xv.project(theta, self.over)

    def best_w(self, theta: Tree) -> Array:
        """The w that minimises J at theta."""
        parts = self.parts(theta)
        system = System(parts.M, Ridge(self.lam))
        solver = self.problem.lower.solver or xv.lower.choose(*system)
        return solver.argmin(self.backend, system, solver.factor(self.backend, system), self.target(parts))

    def form(self, theta: Tree) -> str:
        """``"dictionary"`` where the design is theta itself, ``"convolution"`` where it is made of convolutions with
        theta, and nothing else depends on theta: J is then quadratic in theta, with a curvature that has a formula.
        """
        x, (M, y, R) = arrays(theta), self.parts(theta)
        inside = arrays(M)
        if len(x) > 1 or R is not None or y is not None or len(inside) != 1 or inside[0] is not x[0]:
            return ""
        return "dictionary" if isinstance(M, Dense) else "convolution" if hasattr(M, "spectrum") else ""

    def curvature_theta(self, form: str, parts: Parts, w: Array) -> Array:
        """The largest eigenvalue of the Hessian in theta of such a problem; for convolutions that are not periodic, the
        bound that the circulant matrix around them gives.
        """
        if form == "dictionary":
            return top(w @ w.mT)
        M: Any = parts.M
        xp, layout = xv.array_namespace(w), M.layout
        axes = tuple(range(1, 1 + len(layout.grid)))
        W = xp.fft.rfftn(xp.reshape(w.mT, (-1, *layout.grid)), s=layout.period, axes=axes)
        return xp.max(xp.sum(xp.abs(W) ** 2, axis=0))

    def curvature_w(self, parts: Parts) -> Array:
        """The largest eigenvalue of the Hessian in w, or the bound of `curvature_theta`."""
        M: Any = parts.M
        if hasattr(M, "spectrum"):
            X = M.spectrum(True)
            xp = xv.array_namespace(X)
            power = xp.sum(xp.abs(X) ** 2, axis=0)
            for axis, length in enumerate(M.layout.grid[:-1]):  # along which w is alone, and so its spectrum flat
                power = xp.mean(power, axis=axis, keepdims=True) if length == 1 else power
            return xp.max(power) + self.lam
        A = M.dense()
        return top(A @ A.mT if A.shape[1] > A.shape[0] else A.mT @ A) + self.lam


def top(A: Array) -> Array:
    """Largest eigenvalue of a symmetric matrix."""
    xp = xv.array_namespace(A)
    return xp.max(xp.linalg.eigvalsh(A))


class State(NamedTuple):
    """What a joint method iterates."""

    theta: Tree
    w: Array
    memory: Tree = ()

    def read(self) -> tuple[Tree, None]:
        """What is kept of an iterate."""
        return self.theta, None


@dataclass(frozen=True)
class JointMethod(Repeated):
    """A method on the joint objective."""

    family: str = "rival"

    def measured_by(self, task: Task) -> Problem | None:
        return task.joint

    def descend(self, task: Task, budget: Budget) -> Descent:
        machine = task.machine
        given = machine.to_backend((task.together, task.over))
        with machine.scope():
            theta = machine.to_backend(task.theta0)
            J = Joint(given[0], machine.backend, given[1])
            form = J.form(theta)
            state = State(theta, J.best_w(theta))
            state = state._replace(memory=self.memory(J, state, form))
            return machine.iterate(_Step(self, machine, form), state, given, budget, State.read)

    def memory(self, J: Joint, at: State, form: str) -> Tree:
        """What the method carries from the start."""
        return ()

    @abstractmethod
    def step(self, J: Joint, at: State, k: Array, form: str) -> State:
        """Iteration k, from 1."""


@dataclass(frozen=True)
class _Step:
    """A method's step; equal ones share a compiled program."""

    method: JointMethod
    machine: Machine
    form: str

    def __call__(self, given: tuple[Problem, Any], k: Array, state: State, fed: Tree) -> State:
        return self.method.step(Joint(given[0], self.machine.backend, given[1]), state, k, self.form)


@final
@dataclass(frozen=True)
class JointProjectedGradient(JointMethod):
    """Simultaneous projected gradient on (theta, w) with one step for both, the paper's baseline.

    Its step is 1/L, L the largest eigenvalue of the joint Hessian, refreshed by power iterations.
    """

    scale: float | None = None  # > 0: a fixed step instead, times the 1/L of the start, whatever the problem's units

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale is not None:
            positive(scale=self.scale)

    def memory(self, J: Joint, at: State, form: str) -> Tree:
        z = (at.theta, at.w)
        noise = _noise(J.backend, z)
        one = dot(at.w, at.w) * 0 + 1
        return self._powers(J, z, J.gradient(*z), 30 * one, (noise, one), form)

    def step(self, J: Joint, at: State, k: Array, form: str) -> State:
        z, memory = (at.theta, at.w), at.memory
        grad = J.gradient(*z)
        if self.scale is None:
            xp = xv.array_namespace(k)
            due = (k > 1) & ((k - 1) % _EVERY == 0)
            memory = self._powers(J, z, grad, xp.where(due, 0 * k + _POWERS, 0 * k), memory, form)
        theta, w = axpy(-(self.scale or 1.0) / memory[1], grad, z)
        return State(J.project(theta), w, memory)

    def _powers(
        self, J: Joint, z: Tree, grad: Tree, n: Array, memory: tuple[Tree, Array], form: str
    ) -> tuple[Tree, Array]:
        """`n` power iterations with the Hessian of J at z: the last image and its length."""
        u, rest = partition(memory[0])

        def body(state: tuple[Array, ...]) -> tuple[Array, ...]:
            i, _, *u = state
            v = rest.fill(u)
            image = hessian(J, z, grad, mapped(lambda x: x / dot(v, v) ** 0.5, v), form)
            return (i + 1, dot(image, image) ** 0.5, *arrays(image))

        _, L, *u_ = J.backend.while_loop(lambda state: state[0] < n, body, (0 * n, memory[1], *u))
        return rest.fill(u_), L


def hessian(J: Joint, z: Tree, grad: Tree, u: Tree, form: str) -> Tree:
    """Product with the Hessian of J: exact where the design is linear in theta, else a difference of gradients.

    The two blocks may differ by many orders of magnitude in size: the difference moves each of them by little.
    """
    if form:
        parts, w, dw = J.parts(z[0]), z[1], u[1]
        M, dM = parts.M, partition(parts.M)[1].fill(arrays(u[0]))
        E, dE = J.residual(parts, w), dM.matvec(w) + M.matvec(dw)
        dX = arrays(M.outer(dE, w))[0] + arrays(M.outer(E, dw))[0]
        return mapped(lambda _: dX, u[0]), M.rmatvec(dE) + dM.rmatvec(E) + J.lam * dw
    xp = xv.array_namespace(z[1])
    lengths = [(dot(x, x) ** 0.5, dot(d, d) ** 0.5) for x, d in zip(arrays(z), arrays(u), strict=True)]
    h = lengths[0][0] * 0 + xp.inf
    for size, length in lengths:
        bound = size / xp.where(length > 0, length, xp.ones_like(length))
        h = xp.where((length > 0) & (size > 0), xp.minimum(h, bound), h)
    h = xp.finfo(z[1].dtype).eps ** (1 / 3) * xp.where(xp.isfinite(h), h, xp.ones_like(h))
    return mapped(lambda a, b: (b - a) / h, grad, J.gradient(*axpy(h, u, z)))


@final
@dataclass(frozen=True)
class JointAdam(JointMethod):
    """Adam (Kingma, Ba 2015) on (theta, w), projected after every step."""

    rate: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(rate=self.rate)

    def memory(self, J: Joint, at: State, form: str) -> Tree:
        return descent.means((at.theta, at.w))

    def step(self, J: Joint, at: State, k: Array, form: str) -> State:
        z = (at.theta, at.w)
        (theta, w), means = descent.adam(z, J.gradient(*z), at.memory, k, self.rate)
        return State(J.project(theta), w, means)


@final
@dataclass(frozen=True)
class IPALM(JointMethod):
    """Inertial proximal alternating linearised minimisation (Pock, Sabach 2016); with inertia 0, PALM (Bolte,
    Sabach, Teboulle 2014).

    Each block steps with 1/L of its own partial gradient. In w, and in a dictionary, L is the largest eigenvalue of a
    Gram matrix, in convolutions that of a spectrum; any other theta is refused.
    """

    inertia: float | None = None  # constant extrapolation in [0, 1); None is ``(k - 1)/(k + 2)``
    scale: float = 1.0  # factor on the step lengths that come from an eigenvalue, > 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inertia is not None and not 0 <= self.inertia < 1:
            raise ProblemError(f"inertia must be None or in [0, 1), got {self.inertia!r}")
        positive(scale=self.scale)

    def memory(self, J: Joint, at: State, form: str) -> Tree:
        _quadratic(form)
        return at.theta, at.w

    def step(self, J: Joint, at: State, k: Array, form: str) -> State:
        old_theta, old_w = at.memory
        beta = (k - 1) / (k + 2) if self.inertia is None else self.inertia + 0 * k
        ahead = mapped(lambda x, old: x + beta * (x - old), at.theta, old_theta)
        parts, _, slope = J.by_theta(ahead, at.w)
        theta = J.project(axpy(-self.scale / J.curvature_theta(form, parts, at.w), slope, ahead))
        w = at.w + beta * (at.w - old_w)
        parts = J.parts(theta)
        w = w - (self.scale / J.curvature_w(parts)) * J.slope_w(parts, w, J.residual(parts, w))
        return State(theta, w, (at.theta, at.w))


@final
@dataclass(frozen=True)
class AlternatingLeastSquares(JointMethod):
    """Alternating least squares: FISTA steps in theta at fixed w, then the w that is optimal for it.

    For a dictionary the steps share one Gram matrix of w and one product with the data; for it and for convolutions 1/L
    comes from the largest eigenvalue, and `sweeps` large enough makes them the exact constrained minimum. Any other
    theta is refused.
    """

    sweeps: int = 10  # steps in theta per iteration, >= 1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(sweeps=self.sweeps)

    def memory(self, J: Joint, at: State, form: str) -> Tree:
        _quadratic(form)
        return ()

    def step(self, J: Joint, at: State, k: Array, form: str) -> State:
        w, parts = at.w, J.parts(at.theta)
        L = J.curvature_theta(form, parts, w)
        gram, data = (w @ w.mT, J.target(parts) @ w.mT) if form == "dictionary" else (None, None)

        def slope(ahead: Tree) -> Tree:
            return J.by_theta(ahead, w)[2] if gram is None else mapped(lambda D: D @ gram - data, ahead)

        (x,), rest = partition(at.theta)

        def sweep(state: tuple[Array, ...]) -> tuple[Array, ...]:
            i, t, old, ahead = state
            ahead = rest.fill([ahead])
            (new,) = arrays(J.project(axpy(-1 / L, slope(ahead), ahead)))
            t_new = 0.5 * (1 + (1 + 4 * t * t) ** 0.5)
            return i + 1, t_new, new, new + (t - 1) / t_new * (new - old)

        _, _, x, _ = J.backend.while_loop(lambda state: state[0] < self.sweeps, sweep, (0 * k, 0 * k + 1, x, x))
        theta = rest.fill([x])
        return State(theta, J.best_w(theta))


def _quadratic(form: str) -> None:
    if not form:
        raise ProblemError("steps of a block need a J quadratic in theta: a dictionary, or convolutions with it")


def _noise(backend: xv.backends.Backend, like: Tree) -> Tree:
    """The same Gaussian numbers on every backend."""
    own, rest = partition(like)
    drawn = [np.random.default_rng(seed).normal(size=tuple(x.shape)) for seed, x in enumerate(own)]
    kinds = ({"dtype": str(x.dtype).rpartition(".")[2], "device": device(x)} for x in own)
    return rest.fill(backend.asarray(x, **kind) for x, kind in zip(drawn, kinds, strict=True))


@dataclass(frozen=True)
class _Penalty:
    """Twice what J has besides residuals: ``mu R(theta)`` and the ridges."""

    R: Callable[[Tree], Array] | None
    mu: float
    lam: float

    def __call__(self, z: Tree) -> Array:
        ridge = self.lam * dot(z["w"], z["w"])
        return ridge if self.R is None or not self.mu else ridge + self.mu * self.R(z["theta"])


def _zero(z: Tree, data: Tree) -> Array:
    return data["zero"]


def _residual(z: Tree, data: Tree) -> Array:
    problem, w = data["problem"], z["w"]
    J = Joint(problem, xv.backends.get("numpy"))  # asks its backend for nothing here
    return J.residual(J.parts(z["theta"]), w)


def lifted(problem: Problem, theta: Tree, w: np.ndarray) -> Problem:
    """J as a problem in ``{"theta": theta, "w": w}``, for any algorithm of xvarpro.

    Its design is 0 and its target the residual: nothing is eliminated, and the reduced objective is half the square of
    the target.
    """
    rows = _residual({"theta": theta, "w": w}, {"problem": problem}).shape[0]
    data = {"problem": problem, "zero": np.zeros((rows, 1), w.dtype)}
    penalty = _Penalty(problem.R, problem.mu, cast("float", problem.lower.lam))
    return xv.separable(_zero, _residual, data=data, lam=1.0, R=penalty, mu=1.0)


@final
@dataclass(frozen=True)
class Jointly(Method):
    """An algorithm of xvarpro on the joint problem: the same text, nothing eliminated.

    With the default it is FISTA on (theta, w), with restart and backtracking. What it gains on the reduced objective
    over this is the gain of elimination alone.
    """

    family: str = "rival"
    inner: Algorithm = field(default_factory=AcceleratedProjectedGradient)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, Algorithm):
            raise ProblemError(f"inner must be one of xvarpro.algorithms, got {self.inner!r}")

    def run(self, task: Task, budget: Budget) -> Outcome:
        machine = Machine(None, None, task.machine.dtype)
        with machine.scope():
            w = machine.to_caller(Joint(task.together, machine.backend).best_w(task.theta0))
        kept = Kept(budget, lambda z: z["theta"])
        stated, z = lifted(task.together, task.theta0, w), {"theta": task.theta0, "w": w}
        fit = task.solve(self.inner, stated, z, over={"theta": task.over}, tol=0.0, callback=kept, **budget.limits)
        points = kept.points(task.theta0, fit.n_iter, fit.seconds, fit.theta["theta"])
        return self.outcome(task, points, fit.status, task.joint, fit.setup_seconds, fit.value)


# with parameters that have to be tried
GRIDS: dict[str, tuple[Method, ...]] = {
    "joint PG, best fixed step": tuple(JointProjectedGradient(scale=10.0 ** (k / 2)) for k in range(-6, 3)),
    "joint Adam, best rate": tuple(JointAdam(rate=10.0 ** (k / 2)) for k in range(-10, 1)),
    "iPALM, tuned": tuple(IPALM(inertia=b, scale=s) for b, s in itertools.product((0.0, 0.3, 0.6, None), (0.9, 1.5))),
}

# of every experiment whose problem has a joint form
RIVALS: tuple[Method, ...] = (
    JointProjectedGradient("joint projected gradient, 1/L"),
    Tuned("joint projected gradient, tuned", candidates=GRIDS["joint PG, best fixed step"]),
    Jointly("joint accelerated gradient"),
    Tuned("joint Adam, tuned", candidates=GRIDS["joint Adam, best rate"]),
    Tuned("iPALM, tuned", candidates=GRIDS["iPALM, tuned"]),
    AlternatingLeastSquares("alternating least squares"),
)
