"""The methods that compete on one scale of a photograph, and what deblurring is worth in dB."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from xvarpro_experiments import deconvolution, race
from xvarpro_experiments.checks import one_of, positive
from xvarpro_experiments.methods import Measure, Task

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro_deblurring.blur import RIDGE, problem
from xvarpro_deblurring.data import Photograph, scene
from xvarpro_deblurring.estimate import before, resized, scales
from xvarpro_deblurring.restore import kernel_match


def scenes(n: int = 4, side: int = 255, size: int = 15) -> list[Photograph]:
    """Photographs blurred here, where there are no real ones: one image, another path of the camera for each."""
    return [scene(side, size, seed=i) for i in range(n)]


def experiment(
    photographs: Sequence[Photograph] | None = None,
    size: int = 27,
    scale: int = 13,
    units: float = 1.0,
    dtype: str = "float64",
    backend: str | None = None,
    device: str | None = None,
) -> race.Experiment:
    """All methods on one scale of the pyramid of a photograph, the one that the seed counts off, from where the coarser
    scales lead.

    `photographs` are such as those of the function of that name, by default `scenes`; `size`, odd, is that of the
    kernel in them, `scale` that at the scale of the race, one of ``scales(size)``, `size` itself at full resolution.
    `units` > 0 is a factor on the image, which leaves the reduced problem as it is. The others are as in
    `xvarpro.solve`.
    """
    positive(units=units)
    one_of("dtype", dtype, ("float64", "float32"))
    if scale not in scales(size):
        raise ProblemError(f"scale must be one of {scales(size)} for a kernel of size {size}, got {scale}")
    given = scenes() if photographs is None else list(photographs)
    if not given:
        raise ProblemError("photographs must not be empty")

    def task(seed: int) -> Task:
        photograph = given[seed % len(given)]
        g, u = before(photograph.blurred, size, scale)
        measures: dict[str, Measure] = {}
        if photograph.kernel is not None:
            true = scaled(photograph.kernel, size, scale)
            measures[deconvolution.KERNEL] = lambda found: kernel_match(np.reshape(found.w, true.shape), true)
        stated = problem((units * g).astype(dtype), scale)
        return Task(stated, u.astype(dtype), xv.sets.L1Ball(1.0), measures=measures, **place)

    place: dict[str, Any] = {"backend": backend, "device": device}
    digests = [hashlib.sha256(p.blurred.tobytes()).hexdigest()[:16] for p in given]
    config = {"photographs": digests, "size": size, "scale": scale, "units": units, "dtype": dtype, **place}
    height, width = (round(n * scale / size) for n in given[0].blurred.shape)
    facts = {
        "data": f"{given[0].source}: {len(given)} photographs, one a seed, at {height} x {width}; times {units:g}",
        "problem": "min 1/2 |w * u - g|^2 + lambda/2 |w|^2 over w and |u|_1 <= 1, g the differences of the photograph; "
        f"w {scale} x {scale}, lambda = {RIDGE:g} |g|_2^2 / |g|_1^2",
        "start": "the edges that the coarser scales found",
    }
    title, methods = "blind deblurring (Example 3 in two dimensions)", deconvolution.METHODS
    return race.Experiment("deblurring", title, task, methods, config, facts, notes=notes)


def scaled(kernel: np.ndarray, size: int, scale: int) -> np.ndarray:
    """A kernel as it is at another scale of the pyramid, sum 1."""
    if max(kernel.shape) > size:
        return scaled(kernel, max(kernel.shape), round(scale * max(kernel.shape) / size))
    spare = [(size - n) // 2 for n in kernel.shape]
    whole = np.pad(kernel, [(s, size - n - s) for s, n in zip(spare, kernel.shape, strict=True)])
    smaller = resized(whole, (scale, scale))
    return smaller / smaller.sum()


def notes(found: race.Race) -> list[str]:
    """What the table does not say by itself."""
    best = found.best()
    matches = [float(o.measured[deconvolution.KERNEL].value[-1]) for o in found.of(best.method) if o.measured]
    said = [
        "The kernel is identified up to a shift: the l1 ball and the small support take the place of what is not known."
    ]
    if matches:
        said.append(f"Cosine of the recovered and the true kernel: {np.median(matches):.2f} (median, {best.method}).")
    return said
