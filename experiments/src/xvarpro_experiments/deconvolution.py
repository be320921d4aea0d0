"""Blind deconvolution of signals that share one unknown kernel, the paper's Example 3, and the methods that compete.

``min 1/2 |w * X - Y|^2 + lam/2 |w|^2  over w and over |X|_F <= rho``, ``*`` the periodic convolution of the kernel w
with every signal, a row of X: w is eliminated by division of spectra, X is theta. The paper drops the factor 1/2, and
writes signals as columns. Its minimum has a closed form, `optimum`, which shows what the model can and cannot tell.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv
from xvarpro import Problem
from xvarpro.errors import ProblemError
from xvarpro_experiments import race
from xvarpro_experiments.checks import generator, one_of, positive, whole
from xvarpro_experiments.methods import OURS, Measure, Method, Solver, Task, quasi_newton
from xvarpro_experiments.rivals import IPALM, RIVALS
from xvarpro_experiments.trees import Array

KERNEL = "kernel match"
RHO, RIDGE, NOISE = 1.0, 1e-3, 0.01


def design(X: Array, data: Any) -> xv.operators.StackedCirculant:
    """``M(X)``, a circulant matrix for every signal; one function for all problems: a compiled loop is used again."""
    return xv.operators.StackedCirculant(X)


def problem(Y: Array, lam: float = RIDGE) -> Problem:
    """The deconvolution problem of measured signals Y, (signals, *grid), with a ridge `lam` >= 0 on the kernel.

    Examples
    --------
    >>> import xvarpro as xv
    >>> from xvarpro_experiments import deconvolution
    >>> Y = deconvolution.signals(3, 12, seed=0).Y
    >>> X0 = deconvolution.start(Y, rho=1.0, seed=0)
    >>> fit = xv.solve(deconvolution.problem(Y), X0, over=xv.sets.L2Ball(1.0), tol=1e-9)
    >>> round(fit.value / deconvolution.optimum(Y, rho=1.0, lam=1e-3).value, 6)
    1.0
    """
    if getattr(Y, "ndim", 0) < 2:
        raise ProblemError(f"Y must be an array of shape (signals, *grid), got {getattr(Y, 'shape', type(Y).__name__)}")
    return xv.separable(design, xv.array_namespace(Y).reshape(Y, (-1,)), lam=lam)


def start(Y: Array, rho: float = RHO, seed: int = 0) -> np.ndarray:
    """Gaussian signals with ``|X|_F = rho``, drawn with NumPy: every backend starts from the same bits."""
    positive(rho=rho)
    X = generator(seed, 1).normal(size=tuple(Y.shape))
    return X * (rho / np.linalg.norm(X))


class Signals(NamedTuple):
    """Measured signals Y, shape (signals, length), and what they were made of: X, and the kernel w."""

    Y: np.ndarray
    X: np.ndarray
    w: np.ndarray


def signals(n: int = 50, length: int = 128, seed: int = 0, noise: float = NOISE) -> Signals:
    """Spikes, blurred by one smooth, lopsided kernel of sum one, with noise. The paper does not say what its are.

    Parameters
    ----------
    n, length : int
        >= 1.
    seed : int
        >= 0.
    noise : float
        Norm of the noise over that of the spikes, >= 0.

    Returns
    -------
    Signals
        ``|X|_F = 1``: 15 % of the entries are Gaussian, the others 0. The kernel rises like a Gaussian of width 2 and
        falls like one of width 6, and is the same for all seeds.
    """
    whole(n=n, length=length)
    if not 0 <= noise < math.inf:
        raise ProblemError(f"noise must be a finite number >= 0, got {noise}")
    rng = generator(seed, 0)
    X = rng.normal(size=(n, length)) * (rng.random((n, length)) < 0.15)
    X /= np.linalg.norm(X) or 1.0
    t = (np.arange(length) + length // 2) % length - length // 2
    w = np.exp(-0.5 * (t / np.where(t < 0, 2.0, 6.0)) ** 2)
    w /= w.sum()
    Y = np.fft.irfft(np.fft.rfft(X) * np.fft.rfft(w), length)
    return Signals(Y + noise / math.sqrt(X.size) * rng.normal(size=X.shape), X, w)


class Optimum(NamedTuple):
    """A global minimum; the spectrum of w is real and nonnegative, any other phases, moved to X, do as well."""

    value: float
    X: np.ndarray
    w: np.ndarray


def optimum(Y: np.ndarray, rho: float = RHO, lam: float = RIDGE) -> Optimum:
    """The global minimum over the Frobenius ball, by water-filling.

    With ``e_k = sum_i |Y^_ik|^2`` and ``u_k = sum_i |X^_ik|^2`` at frequency k, the reduced objective is smallest where
    the spectra of X are those of Y times a number, and is then ``1/(2 D) sum_k e_k lam / (u_k + lam)``. It is convex in
    u, and ``sum_k u_k <= D rho^2`` gives ``u_k = max(0, sqrt(e_k lam / nu) - lam)``: frequencies with little energy are
    left dry. So X is Y, filtered, and the phases of the kernel are free: the model does not identify it.

    Y is real, of shape (signals, *grid), and rho and lam are > 0.
    """
    positive(rho=rho, lam=lam)
    if Y.ndim < 2 or Y.dtype.kind != "f":
        raise ProblemError(f"Y must be a real array of shape (signals, *grid), got {Y.dtype} of shape {Y.shape}")
    axes, D = tuple(range(1, Y.ndim)), math.prod(Y.shape[1:])
    spectra = np.fft.fftn(np.asarray(Y, np.float64), axes=axes)
    e = np.sum(np.abs(spectra) ** 2, axis=0)
    # sqrt(e_k) t > sqrt(lam) where wet; with m of them wet, t = (D rho^2 + m lam) / (sqrt(lam) sum sqrt(e_k))
    root = np.sqrt(e)
    sorted_ = np.sort(root.ravel())[::-1]
    sums = np.cumsum(sorted_)
    m = np.arange(1, D + 1)
    levels = (D * rho**2 + m * lam) / np.where(sums > 0, sums, 1.0)
    wet = np.flatnonzero(sorted_ * levels > lam)
    u = np.maximum(0.0, root * levels[wet[-1]] - lam) if wet.size else np.zeros_like(e)
    value = float(np.sum(e * (lam / (u + lam)))) / (2 * D)
    gains = np.sqrt(u) / np.where(root > 0, root, 1.0)
    X, w = np.fft.ifftn(gains * spectra, axes=axes).real, np.fft.ifftn(np.sqrt(u) * root / (u + lam)).real
    return Optimum(value, X, w)


def match(found: np.ndarray, true: np.ndarray) -> float:
    """Cosine of two kernels at the best shift and sign, in [0, 1]; 1 where they are the same up to those and scale."""
    size = float(np.linalg.norm(found) * np.linalg.norm(true))
    products = np.fft.ifftn(np.fft.fftn(found) * np.conj(np.fft.fftn(true))).real  # at every periodic shift
    return float(np.max(np.abs(products))) / size if size else 0.0


METHODS: tuple[Method, ...] = (
    *OURS,
    Solver("quasi-Newton from the start", algorithm=quasi_newton(5)),
    *RIVALS,
    IPALM("PALM", inertia=0.0),
    IPALM("iPALM"),
)


def experiment(
    n: int = 50,
    length: int = 128,
    units: float = 1.0,
    dtype: str = "float64",
    backend: str | None = None,
    device: str | None = None,
) -> race.Experiment:
    """Example 3 with the paper's sizes; its budget is 5000 iterations.

    Parameters
    ----------
    n, length : int
        As in `signals`, other ones for every seed.
    units : float
        Factor on Y, > 0. The reduced problem stays the same: its objective is multiplied by ``units**2``, its minimiser
        and its kernel's shape are what they were. A joint method meets another balance of its two blocks.
    dtype, backend, device : str, optional
        As in `xvarpro.solve`.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from xvarpro_experiments import deconvolution, race
    >>> from xvarpro_experiments.descent import Budget
    >>> made = deconvolution.experiment(n=3, length=12)
    >>> found = race.run(replace(made, methods=made.methods[:2]), Budget(3, 5.0))
    >>> found.best().objective >= found.optima[0]
    True
    """
    positive(units=units)
    one_of("dtype", dtype, ("float64", "float32"))

    def task(seed: int) -> Task:
        made = signals(n, length, seed)
        measured = units * made.Y
        measures: dict[str, Measure] = {KERNEL: lambda fit: match(np.asarray(fit.w, np.float64), made.w)}
        stated, theta0 = problem(measured.astype(dtype)), start(measured, seed=seed).astype(dtype)
        least = optimum(measured).value
        return Task(stated, theta0, xv.sets.L2Ball(RHO), measures=measures, optimum=least, **place)

    place: dict[str, Any] = {"backend": backend, "device": device}
    config = {"n": n, "length": length, "rho": RHO, "lam": RIDGE, "units": units, "dtype": dtype, **place}
    facts = {
        "data": f"{n} signals of {length} samples, spikes blurred by one kernel, noise {NOISE:g} of their norm, other "
        f"for each seed; multiplied by {units:g}",
        "problem": f"min 1/2 |w * X - Y|^2 + lambda/2 |w|^2 over w and |X|_F <= {RHO:g}; lambda = {RIDGE:g}",
        "start": f"Gaussian, |X|_F = {RHO:g}",
        "optimum": "known in closed form, by water-filling",
    }
    title = "blind deconvolution (Example 3)"
    return race.Experiment("deconvolution", title, task, METHODS, config, facts, notes=notes)


def notes(found: race.Race) -> list[str]:
    """What the table does not say by itself."""
    best = found.best()
    runs = zip(found.of(best.method), found.optima.values(), strict=True)
    left = [(o.objective - least) / (o.curve.value[0] - least) for o, least in runs if least is not None]
    matches = [float(o.measured[KERNEL].value[-1]) for o in found.of(best.method)]
    return [
        f"{best.method} ends {max(0.0, float(np.median(left))):.1e} above the global optimum, relative to its start "
        "(median over seeds; closed form).",
        "The model does not identify the kernel: at the optimum the signals are the measured ones, filtered, and the "
        "phases of the kernel are free.",
        f"Cosine of the recovered and the true kernel at the best shift: {np.median(matches):.2f}; 1 is the same.",
    ]
