"""Blind deblurring of photographs: the model of `edges`, the methods that compete on it, and what it is worth in dB."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro import Result
from xvarpro.core.progress import Bar
from xvarpro.errors import ProblemError
from xvarpro_experiments import deconvolution, race
from xvarpro_experiments.datasets import Photograph, scene
from xvarpro_experiments.edges import RIDGE, differences, problem, start
from xvarpro_experiments.methods import DEFAULT, Measure, Method, Solver, Task
from xvarpro_experiments.pyramid import Estimate, before, estimate, resized, scales
from xvarpro_experiments.restoration import restore
from xvarpro_experiments.sharpening import psnr, sharpen

__all__ = [
    "METHODS",
    "Deblurred",
    "Estimate",
    "deblur",
    "differences",
    "estimate",
    "experiment",
    "kernel_match",
    "photographs_table",
    "problem",
    "restore",
    "scenes",
    "start",
]

PAPER = Solver("CR-VarPro (the paper)", xv.algorithms.cr_varpro(), "paper")
OURS = (
    Solver(DEFAULT),
    Solver("spectral projected gradient", xv.algorithms.SpectralProjectedGradient()),
    Solver("Frank-Wolfe, adaptive L", xv.algorithms.FrankWolfe()),
)
METHODS: tuple[Method, ...] = (PAPER, *OURS, *deconvolution.RIVALS)


@dataclass(frozen=True)
class Deblurred:
    """A photograph before and after, in dB where the sharp one is known; NaN elsewhere.

    Attributes
    ----------
    name : str
    blurred, deblurred, known : float
        PSNR of the photograph, of what came out, and of what comes out with the true kernel.
    match : float
        Of the kernel, as `kernel_match`.
    trust : float
        As of `restoration.Restoration`.
    seconds : float
        For all kernels and the sharpening.
    image, kernel : arrays
        What came out.
    photograph : Photograph
    """

    name: str
    blurred: float
    deblurred: float
    known: float
    match: float
    trust: float
    seconds: float
    image: np.ndarray
    kernel: np.ndarray
    photograph: Photograph

    def record(self) -> dict[str, Any]:
        """For a table."""
        return {
            key: getattr(self, key) for key in ("name", "blurred", "deblurred", "known", "match", "trust", "seconds")
        }


def deblur(photograph: Photograph, size: int = 27, weight: float = 5e-4, **options: Any) -> Deblurred:
    """Estimate the blur of a photograph, undo what is sure of it, and compare with the truth where that is known.

    Parameters
    ----------
    photograph : Photograph
        Only its blurred image is used before the comparison.
    size, weight, **options
        As in `restoration.restore`.
    """
    began = time.perf_counter()
    image, kernel, trust = restore(photograph.blurred, size, weight, **options)
    seconds = time.perf_counter() - began
    sharp, true = photograph.sharp, photograph.kernel
    border = min(30, photograph.blurred.shape[0] // 4)
    shift = min(8, border)

    def dB(x: np.ndarray) -> float:
        return float("nan") if sharp is None else psnr(x, sharp, shift, border)

    return Deblurred(
        photograph.name,
        dB(photograph.blurred),
        dB(image),
        float("nan") if true is None else dB(sharpen(photograph.blurred, true, weight)),
        float("nan") if true is None else kernel_match(kernel, true),
        trust,
        seconds,
        image,
        kernel,
        photograph,
    )


def photographs_table(photographs: Sequence[Photograph], size: int = 27, **options: Any) -> list[Deblurred]:
    """`deblur` for each of them.

    Examples
    --------
    >>> from xvarpro_experiments import deblurring
    >>> (row,) = deblurring.photographs_table(deblurring.scenes(1, side=64), size=7, iterations=5)
    >>> sorted(row.record())
    ['blurred', 'deblurred', 'known', 'match', 'name', 'seconds', 'trust']
    """
    rows = []
    with Bar(len(photographs), None, "photograph", "photographs") as bar:
        for each in photographs:
            rows.append(deblur(each, size, **options))
            bar.update()
    return rows


def scenes(n: int = 4, side: int = 255, size: int = 15) -> list[Photograph]:
    """Photographs blurred here, where there are no real ones: one image, another path of the camera for each."""
    return [scene(side, size, seed=i) for i in range(n)]


def kernel_match(found: np.ndarray, true: np.ndarray) -> float:
    """Cosine of two kernels, whatever their sizes, at the best shift; negative entries of `found` count as 0.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro_experiments import deblurring
    >>> round(deblurring.kernel_match(np.eye(3), np.eye(5)), 6)
    0.774597
    """
    side = found.shape[0] + true.shape[0]
    a, b = (np.zeros((side, side)) for _ in range(2))
    a[: found.shape[0], : found.shape[1]] = np.maximum(found, 0.0)
    b[: true.shape[0], : true.shape[1]] = true
    return deconvolution.match(a, b)


def experiment(
    photographs: Sequence[Photograph] | None = None,
    size: int = 27,
    scale: int = 13,
    ridge: float = RIDGE,
    units: float = 1.0,
    dtype: str = "float64",
    backend: str | None = None,
    device: str | None = None,
    methods: Sequence[Method] = METHODS,
) -> race.Experiment:
    """All methods on one scale of the pyramid of a photograph, the one that the seed counts off, from where the coarser
    scales lead.

    Parameters
    ----------
    photographs : sequence of Photograph, optional
        Such as ``datasets.photographs()``; `scenes` if None.
    size : int
        Of the kernel in the photograph, odd.
    scale : int
        Of the kernel at the scale of the race, one of ``pyramid.scales(size)``; `size` itself is full resolution.
    ridge : float
        As in `edges.problem`.
    units : float
        Factor on the image, > 0: the reduced problem stays the same.
    dtype, backend, device : str, optional
        As in `xvarpro.solve`.
    methods : sequence of Method
    """
    deconvolution.positive("units", units)
    if dtype not in ("float64", "float32"):
        raise ProblemError(f"dtype must be float64 or float32, got {dtype!r}")
    if scale not in scales(size):
        raise ProblemError(f"scale must be one of {scales(size)} for a kernel of size {size}, got {scale}")
    given = scenes() if photographs is None else list(photographs)
    if not given:
        raise ProblemError("photographs must not be empty")

    def task(seed: int) -> Task:
        photograph = given[seed % len(given)]
        g, u = before(photograph.blurred, size, scale, ridge)
        measures: dict[str, Measure] = {}
        if photograph.kernel is not None:
            measures[deconvolution.KERNEL] = _matching(scaled(photograph.kernel, size, scale))
        return Task(
            problem((units * g).astype(dtype), scale, ridge),
            u.astype(dtype),
            xv.sets.L1Ball(1.0),
            measures=measures,
            backend=backend,
            device=device,
        )

    config = {
        "photographs": [deconvolution.digest(p.blurred) for p in given], "size": size, "scale": scale, "ridge": ridge,
        "units": units, "dtype": dtype, "backend": backend, "device": device,
    }  # fmt: skip
    height, width = (round(n * scale / size) for n in given[0].blurred.shape)
    facts = {
        "data": f"{given[0].source}: {len(given)} photographs, one a seed, at {height} x {width}; times {units:g}",
        "problem": "min 1/2 |w * u - g|^2 + lambda/2 |w|^2 over w and |u|_1 <= 1, g the differences of the photograph; "
        f"w {scale} x {scale}, lambda = {ridge:g} |g|_2^2 / |g|_1^2",
        "start": "the edges that the coarser scales found",
    }
    return race.Experiment(
        "deblurring", "blind deblurring (Example 3 in two dimensions)", task, tuple(methods), config, facts,
        "reduced objective", _figures, notes=notes,
    )  # fmt: skip


def scaled(kernel: np.ndarray, size: int, scale: int) -> np.ndarray:
    """A kernel as it is at another scale of the pyramid, sum 1."""
    if max(kernel.shape) > size:
        return scaled(kernel, max(kernel.shape), round(scale * max(kernel.shape) / size))
    spare = [(size - n) // 2 for n in kernel.shape]
    whole = np.pad(kernel, [(s, size - n - s) for s, n in zip(spare, kernel.shape, strict=True)])
    smaller = resized(whole, (scale, scale))
    return smaller / smaller.sum()


def _matching(true: np.ndarray) -> Measure:
    def measure(fit: Result) -> float:
        w = np.asarray(fit.w, np.float64)
        side = math.isqrt(w.size)
        return kernel_match(w.reshape(side, side), true)

    return measure


def notes(found: race.Race) -> list[str]:
    """What the table does not say by itself."""
    best = found.best()
    matches = [float(o.measured[deconvolution.KERNEL].value[-1]) for o in found.of(best.method) if o.measured]
    told = [
        "The kernel is identified up to a shift: the l1 ball and the small support take the place of what is not known."
    ]
    if matches:
        told.append(f"Cosine of the recovered and the true kernel: {np.median(matches):.2f} (median, {best.method}).")
    return told


def _figures(found: race.Race) -> Mapping[str, Any]:
    from xvarpro_experiments import figures_deblurring  # matplotlib: only where a figure is drawn

    return figures_deblurring.figures(found)
