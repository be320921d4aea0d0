"""Nonlinear fits with certified answers (NIST Statistical Reference Datasets), by the default, in any units of theta.

Each problem from both of its starts, with theta measured in units of 1e-6, 1 and 1e6. Of all three, a cell has the
statuses, how far the residual sum is off the certified one, relative, the digits of theta that agree with the certified
one (which has 11), and the iterations. The exit status is 1 where a success has another
residual sum.

    XVARPRO_DATA=<folder> python benchmarks/nist.py [--backends numpy torch jax] [--dtypes float64] [--algorithm NAME]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import xvarpro as xv

UNITS = (1e-6, 1.0, 1e6)


class Fit(NamedTuple):
    """A problem: its design in xp, x (m, 1) and the nonlinear parameters, and which of all parameters these are."""

    design: Callable[[Any, Any, Any], Any]
    nonlinear: tuple[int, ...]


def _thurber(xp: Any, x: Any, b: Any) -> Any:
    return xp.concat([x**0, x, x**2, x**3], axis=1) / (1 + b[0] * x + b[1] * x**2 + b[2] * x**3)


FITS = {
    "Misra1a": Fit(lambda xp, x, b: 1 - xp.exp(-x * b[0]), (1,)),
    "Lanczos3": Fit(lambda xp, x, b: xp.exp(-x * b), (1, 3, 5)),
    "Thurber": Fit(_thurber, (4, 5, 6)),
    "Eckerle4": Fit(lambda xp, x, b: xp.exp(-0.5 * ((x - b[1]) / b[0]) ** 2) / b[0], (1, 2)),
}


class Reference(NamedTuple):
    """What the file of a problem states."""

    x: np.ndarray
    y: np.ndarray
    starts: tuple[np.ndarray, np.ndarray]
    theta: np.ndarray
    residual_sum: float


def read(name: str, folder: Path) -> Reference:
    text = (folder / "nist_strd" / f"{name}.dat").read_text()
    rows = re.findall(r"^\s*b\d+ =\s+(\S+)\s+(\S+)\s+(\S+)", text, re.MULTILINE)
    parameters = np.asarray(rows, float)[list(FITS[name].nonlinear)]
    (total,) = re.findall(r"Residual Sum of Squares:\s+(\S+)", text)
    y, x = np.asarray(
        [line.split() for line in text.partition("Data:  ")[2].rpartition("Data:")[2].splitlines()[1:] if line.strip()],
        float,
    ).T
    return Reference(x[:, None], y, (parameters[:, 0], parameters[:, 1]), parameters[:, 2], float(total))


def solved(name: str, given: Reference, start: int, units: float, dtype: str, **options: Any) -> xv.Result:
    """The fit with theta measured in `units`."""

    def M(theta: Any, data: Any) -> Any:
        return FITS[name].design(xv.array_namespace(theta), data["x"], theta * units)

    problem = xv.separable(M, given.y.astype(dtype), data={"x": given.x.astype(dtype)})
    return xv.solve(problem, (given.starts[start] / units).astype(dtype), progress=False, **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch", "jax"])
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"])
    parser.add_argument("--algorithm", help="a name in xvarpro.algorithms; the default unless one is given")
    args = parser.parse_args()
    folder = Path(os.environ.get("XVARPRO_DATA", "data"))
    algorithm = getattr(xv.algorithms, args.algorithm)() if args.algorithm else None
    print(f"| problem | start | dtype | {' | '.join(args.backends)} |")
    print("|---|---|---|" + "---|" * len(args.backends))
    wrong = 0
    for name in FITS:
        given = read(name, folder)
        for start in (0, 1):
            for dtype in args.dtypes:
                # residuals are differences of numbers as large as y, which are rounded
                noise = np.finfo(dtype).eps * np.sqrt(np.sum(given.y**2) / given.residual_sum)
                cells = []
                for backend in args.backends:
                    fits = [solved(name, given, start, u, dtype, backend=backend, algorithm=algorithm) for u in UNITS]
                    off = [2 * float(fit.value) / given.residual_sum - 1 for fit in fits]
                    wrong += sum(
                        fit.status.success and abs(x) > 1e-6 + 10 * noise for fit, x in zip(fits, off, strict=True)
                    )
                    errors = [
                        np.max(np.abs(np.sort(np.asarray(fit.theta, float) * u) / np.sort(given.theta) - 1))
                        for fit, u in zip(fits, UNITS, strict=True)
                    ]
                    statuses, iterations = (
                        " or ".join(dict.fromkeys(str(x) for x in found))
                        for found in ([fit.status.name for fit in fits], sorted(fit.n_iter for fit in fits))
                    )
                    digits = max(0.0, -np.log10(max(errors)))
                    cells.append(f"{statuses}, {max(map(abs, off)):.0e}, {digits:.1f}, {iterations}")
                print(f"| {name} | {start + 1} | {dtype} | {' | '.join(cells)} |", flush=True)
    print(f"\n{wrong} successes with another residual sum than the certified one")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
