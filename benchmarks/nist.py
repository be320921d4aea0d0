"""Nonlinear fits with certified answers (NIST Statistical Reference Datasets), by the default, in any units of theta.

Each problem whose file is in the folder, from both of its starts, with theta measured in units of 1e-6, 1 and 1e6. Of
all three, a cell has the statuses, how far the residual sum is off the certified one, relative, the digits that agree
with the certified parameters and standard deviations (which have 11), theta's and w's, and the iterations. The exit
status is 1 where a success has another residual sum.

    XVARPRO_DATA=<folder> python benchmarks/nist.py [--backends numpy torch jax] [--dtypes float64] [--tol 1e-8]

It takes about ten minutes of a processor, most of it for JAX's compilations, and on NumPy alone about ten seconds.
The files are at https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml and belong into ``<folder>/nist_strd``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv


class Fit(NamedTuple):
    """A problem."""

    design: Callable[[Any, Any, Any], Any]  # of xp, the predictors x (m, q) and theta
    nonlinear: tuple[int, ...]  # which of the certified parameters theta is; w is the others
    known: Callable[[Any, Any, Any], Any] | None = None  # what the model adds to the columns, (m,)
    alike: tuple[tuple[int, ...], ...] = ()  # parameters of terms that may change places

    def start(self, b: np.ndarray) -> np.ndarray:
        return b[list(self.nonlinear)]

    def certified(self, theta: Any, w: Any) -> Any:
        """The parameters in the order of the certificate."""
        rest = [i for i in range(len(theta) + len(w)) if i not in self.nonlinear]
        at = np.argsort([*self.nonlinear, *rest]).tolist()
        values = [*theta, *w]
        return xv.array_namespace(theta).stack([values[i] for i in at])


class Reciprocal(Fit):
    """Chwirut's ``exp(-b1 x) / (b2 + b3 x)``, where w is ``1 / b2`` and theta ``(b1, b3 / b2)``."""

    def start(self, b: np.ndarray) -> np.ndarray:
        return np.array([b[0], b[2] / b[1]])

    def certified(self, theta: Any, w: Any) -> Any:
        return xv.array_namespace(theta).stack([theta[0], 1 / w[0], theta[1] / w[0]])


class Peak(Fit):
    """A peak, whose width comes out negative where its height does."""

    def certified(self, theta: Any, w: Any) -> Any:
        xp = xv.array_namespace(theta)
        sign = xp.sign(theta[0])
        return xp.stack([sign * w[0], sign * theta[0], theta[1]])


def _rational(xp: Any, x: Any, b: Any) -> Any:
    """A polynomial over another, of the same degree; the latter begins with 1."""
    powers = xp.concat([x**i for i in range(len(b) + 1)], axis=1)
    return powers / (1 + powers[:, 1:] @ b)[:, None]


def _peaks(xp: Any, x: Any, b: Any) -> Any:
    peaks = [xp.exp(-(((x - b[i]) / b[i + 1]) ** 2)) for i in (1, 3)]
    return xp.concat([xp.exp(-b[0] * x), *peaks], axis=1)


def _periods(xp: Any, x: Any, b: Any) -> Any:
    waves = [f(2 * np.pi * x / period) for period in (12, b[0], b[1]) for f in (xp.cos, xp.sin)]
    return xp.concat([x**0, *waves], axis=1)


_saturation = Fit(lambda xp, x, b: 1 - xp.exp(-b[0] * x), (1,))
_lanczos = Fit(lambda xp, x, b: xp.exp(-x * b), (1, 3, 5), alike=((0, 1), (2, 3), (4, 5)))
_chwirut = Reciprocal(lambda xp, x, b: xp.exp(-b[0] * x) / (1 + b[1] * x), (0, 2))
_gauss = Fit(_peaks, (1, 3, 4, 6, 7), alike=((2, 3, 4), (5, 6, 7)))
FITS = {
    "Bennett5": Fit(lambda xp, x, b: (b[0] + x) ** (-1 / b[1]), (1, 2)),
    "BoxBOD": _saturation,
    "Chwirut1": _chwirut,
    "Chwirut2": _chwirut,
    "DanWood": Fit(lambda xp, x, b: x ** b[0], (1,)),
    "ENSO": Fit(_periods, (3, 6), alike=((3, 4, 5), (6, 7, 8))),
    "Eckerle4": Peak(lambda xp, x, b: xp.exp(-0.5 * ((x - b[1]) / b[0]) ** 2) / b[0], (1, 2)),
    "Gauss1": _gauss,
    "Gauss2": _gauss,
    "Gauss3": _gauss,
    "Hahn1": Fit(_rational, (4, 5, 6)),
    "Kirby2": Fit(_rational, (3, 4)),
    "Lanczos1": _lanczos,
    "Lanczos2": _lanczos,
    "Lanczos3": _lanczos,
    "MGH09": Fit(lambda xp, x, b: (x**2 + b[0] * x) / (x**2 + b[1] * x + b[2]), (1, 2, 3)),
    "MGH10": Fit(lambda xp, x, b: xp.exp(b[0] / (x + b[1])), (1, 2)),
    "MGH17": Fit(lambda xp, x, b: xp.concat([x**0, xp.exp(-x * b)], axis=1), (3, 4), alike=((1, 3), (2, 4))),
    "Misra1a": _saturation,
    "Misra1b": Fit(lambda xp, x, b: 1 - (1 + b[0] * x / 2) ** -2, (1,)),
    "Misra1c": Fit(lambda xp, x, b: 1 - (1 + 2 * b[0] * x) ** -0.5, (1,)),
    "Misra1d": Fit(lambda xp, x, b: b[0] * x / (1 + b[0] * x), (1,)),
    "Nelson": Fit(lambda xp, x, b: xp.stack([x[:, 0] ** 0, -x[:, 0] * xp.exp(-b[0] * x[:, 1])], axis=1), (2,)),
    "Rat42": Fit(lambda xp, x, b: 1 / (1 + xp.exp(b[0] - b[1] * x)), (1, 2)),
    "Rat43": Fit(lambda xp, x, b: (1 + xp.exp(b[0] - b[1] * x)) ** (-1 / b[2]), (1, 2, 3)),
    "Roszman1": Fit(
        lambda xp, x, b: xp.concat([x**0, -x], axis=1),
        (2, 3),
        known=lambda xp, x, b: -xp.atan(b[0] / (x[:, 0] - b[1])) / np.pi,
    ),
    "Thurber": Fit(_rational, (4, 5, 6)),
}
UNITS = (1e-6, 1.0, 1e6)


class Reference(NamedTuple):
    """What the file of a problem states: predictors, target, starts, parameters, deviations."""

    x: np.ndarray
    y: np.ndarray
    starts: tuple[np.ndarray, np.ndarray]
    b: np.ndarray
    deviations: np.ndarray
    residual_sum: float


def read(name: str, folder: Path) -> Reference:
    text = (folder / "nist_strd" / f"{name}.dat").read_text()
    rows = np.asarray(re.findall(r"^\s*b\d+ =" + r"\s+(\S+)" * 4, text, re.MULTILINE), float)
    (total,) = re.findall(r"Residual Sum of Squares:\s+(\S+)", text)
    lines = text.partition("Data:  ")[2].rpartition("Data:")[2].splitlines()[1:]
    numbers = np.asarray([line.split() for line in lines if line.strip()], float)
    y = np.log(numbers[:, 0]) if name == "Nelson" else numbers[:, 0]
    return Reference(numbers[:, 1:], y, (rows[:, 0], rows[:, 1]), rows[:, 2], rows[:, 3], float(total))


def solved(name: str, given: Reference, start: int, units: float, dtype: str, **options: Any) -> xv.Result:
    """The fit with theta measured in `units`."""
    fit = FITS[name]
    data = {"x": given.x.astype(dtype), "y": given.y.astype(dtype)}

    def M(theta: Any, data: Any) -> Any:
        return fit.design(xv.array_namespace(theta), data["x"], theta * units)

    def target(theta: Any, data: Any) -> Any:
        return data["y"] - fit.known(xv.array_namespace(theta), data["x"], theta * units)  # type: ignore[misc]

    problem = xv.separable(M, target if fit.known else data["y"], data=data)
    theta0 = (fit.start(given.starts[start]) / units).astype(dtype)
    return xv.solve(problem, theta0, progress=False, **options)


def digits(name: str, given: Reference, found: xv.Result, units: float) -> tuple[float, float]:
    """Of parameters and standard deviations, the least, with terms that are alike in the order that agrees best."""
    fit = FITS[name]
    try:
        b, errors, _ = found.statistics().propagate(lambda theta, w: fit.certified(theta * units, w))
    except xv.errors.ProblemError:  # where single precision ends without a value
        return 0.0, 0.0
    best = (0.0, 0.0)
    for order in itertools.permutations(fit.alike):
        at = np.arange(len(b))
        at[[i for term in fit.alike for i in term]] = [i for term in order for i in term]
        best = max(best, (_agreeing(b[at], given.b), _agreeing(errors[at], given.deviations)))
    return best


def _agreeing(found: np.ndarray, certified: np.ndarray) -> float:
    with np.errstate(divide="ignore"):
        return max(0.0, min(11.0, -np.log10(np.max(np.abs(found / certified - 1)))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch", "jax"])
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"])
    parser.add_argument("--tol", type=float, default=1e-6)
    args = parser.parse_args()
    folder = Path(os.environ.get("XVARPRO_DATA", "data"))
    print(f"| problem | start | dtype | {' | '.join(args.backends)} |")
    print("|---|---|---|" + "---|" * len(args.backends))
    wrong = 0
    for name in FITS:
        if not (folder / "nist_strd" / f"{name}.dat").exists():
            continue
        given = read(name, folder)
        for start, dtype in itertools.product((0, 1), args.dtypes):
            # residuals are differences of numbers as large as y, which are rounded
            far = 1e-6 + 10 * np.finfo(dtype).eps * np.sqrt(np.sum(given.y**2) / given.residual_sum)
            cells = []
            for backend in args.backends:
                solve = partial(solved, name, given, start, tol=args.tol)
                fits = [solve(u, dtype, backend=backend) for u in UNITS]
                off = [2 * float(fit.value) / given.residual_sum - 1 for fit in fits]
                wrong += sum(fit.status.success and abs(x) > far for fit, x in zip(fits, off, strict=True))
                agree = np.min([digits(name, given, fit, u) for fit, u in zip(fits, UNITS, strict=True)], axis=0)
                ends = [fit.status.name for fit in fits], map(str, sorted(fit.n_iter for fit in fits))
                statuses, iterations = (" or ".join(dict.fromkeys(found)) for found in ends)
                cells.append(f"{statuses}, {max(map(abs, off)):.0e}, {agree[0]:.1f}, {agree[1]:.1f}, {iterations}")
            print(f"| {name} | {start + 1} | {dtype} | {' | '.join(cells)} |", flush=True)
    print(f"\n{wrong} successes with another residual sum than the certified one")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
