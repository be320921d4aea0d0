"""Certificates against brute force, and how far they come: `xv.certify`.

The first part has small random problems, free, nonnegative and bounded w, with and without a ridge, some of them
hostile: columns that cancel, quotients, poles at the border of the box and in it, equal columns, conditions up to 1e12.
The bound of a random box is compared with the least objective on a grid in it; every fortieth problem is certified as a
whole, too, where its entries are alike. The exit status is 1 where a bound is above such an objective. The second has
the single and the double diode of a solar cell (57 mm, R.T.C. France; Easwarakhanthan et al. 1986), and the NIST
problems of up to four entries of theta whose files are in the folder, in boxes of 10^(e-1) to 10^(e+1) around certified
entries of size 10^e, with their signs.

    XVARPRO_DATA=<folder> python benchmarks/certificate.py [--problems 2000] [--time-limit 60] [--names Misra1a ...]

It takes some five minutes of a processor.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import nist
import numpy as np

import xvarpro as xv
from xvarpro.certificate.designs import Design
from xvarpro.core import trees

CELL = """
-.2057 .764 -.1291 .762 -.0588 .7605 .0057 .7605 .0646 .76 .1185 .759 .1678 .757 .2132 .757 .2545 .7555 .2924 .754
.3269 .7505 .3585 .7465 .3873 .7385 .4137 .728 .4373 .7065 .459 .6755 .4784 .632 .496 .573 .5119 .499 .5265 .413 .5398
.3165 .5521 .212 .5633 .1035 .5736 -.01 .5833 -.123 .59 -.21
"""
VOLTS, AMPERES = np.asarray(CELL.split(), dtype=float).reshape(-1, 2).T
THERMAL = 1.380649e-23 * 306.15 / 1.602176634e-19  # at 33 degrees Celsius
t = np.linspace(0.05, 1.0, 9)


def diodes(theta: Any, data: Any) -> Any:
    """Columns of the light, of a diode for each ideality factor, and of the shunt resistance.

    A diode's currents are divided by the exponential of the last one, which changes nothing but the unit of its w.
    """
    xp = xv.array_namespace(theta)
    volts, amperes = data
    x, last = volts + amperes * theta[0], volts[-1] + amperes[-1] * theta[0]
    since = (volts - volts[-1]) + (amperes - amperes[-1]) * theta[0]
    scales = [theta[k] * THERMAL for k in range(1, theta.shape[0])]
    return xp.stack([xp.ones_like(x), *(xp.exp(-last / u) - xp.exp(since / u) for u in scales), -x], axis=1)


# NIST's columns, times what is free of x
DESIGNS = {
    "Eckerle4": lambda xp, x, b: xp.exp((x - 450) * (b[1] - 450 - (x - 450) / 2) / b[0] ** 2),
    "Rat43": lambda xp, x, b: xp.exp(-xp.logaddexp(b[0] - b[1] * x, 0.0 * x) / b[2]),
}
FAMILIES = {  # columns, and the box of an entry of theta
    "exponentials": (lambda xp, th, x: xp.exp(-x * th), 0.1, 8.0),
    "close": (lambda xp, th, x: xp.exp(-x * (1 + 1e-6 * th)), 0.0, 1.0),
    "closest": (lambda xp, th, x: xp.exp(-x * (1 + 1e-12 * th)), 0.0, 1.0),
    "waves": (lambda xp, th, x: xp.sin(6 * x * th) + 0.5 * xp.cos(x * th), 0.2, 4.0),
    "peaks": (lambda xp, th, x: xp.exp(-(((x - th) / 0.2) ** 2)), 0.0, 1.0),
    "powers": (lambda xp, th, x: x**th / (1 + th * x), 0.3, 3.0),
    "poles": (lambda xp, th, x: 1 / (x - th + 0.05), -1.0, 0.1),
    "crossings": (lambda xp, th, x: 1 / (x - th), 0.0, 1.0),
    "quotients": (lambda xp, th, x: xp.exp(th * x - 1e2 * th) * xp.log(th + x) / th, 0.5, 3.0),
    "arcs": (lambda xp, th, x: xp.atan(x / th) - xp.tanh(x * th), 0.05, 2.0),
    "cancelling": (lambda xp, th, x: (1e4 + xp.exp(x * th)) - 1e4, 0.1, 3.0),
}


def random_problem(rng: np.random.Generator) -> tuple[xv.Problem, np.ndarray, np.ndarray, Any]:
    """A problem, a box in its domain and its model of NumPy's arrays."""
    column, low, high = FAMILIES[rng.choice(list(FAMILIES))]
    W = [None, xv.lower.Nonnegative(), xv.lower.Bounded(-1.0, 2.0)][rng.integers(3)]
    p, offset, scale = int(rng.integers(1, 3 + (W is None))), bool(rng.integers(2)), 10.0 ** rng.integers(-9, 9)
    kind = rng.choice(["plain", "scaled", "quotient"])  # a quotient has a pole where x is the first entry of theta

    def M(theta: Any, x: Any) -> Any:
        xp = xv.array_namespace(theta)
        columns = column(xp, theta, x[:, None])
        columns = columns * scale if kind == "scaled" else columns
        columns = xp.concat([columns, x[:, None] ** 0], axis=1) if offset else columns
        return columns / (x - theta[0])[:, None] if kind == "quotient" else columns

    truth = rng.uniform(low, high, p)
    made = M(truth, t)
    y = made @ (rng.normal(size=made.shape[1]) / np.abs(made).max(0))
    y = y + 10.0 ** rng.integers(-6, 1) * rng.normal(size=t.size)
    lam = float(rng.choice([0.0, 1e-3])) if W is None else 0.0
    centre, size = rng.uniform(low, high, p), (high - low) * 10.0 ** rng.uniform(-4, 0)
    centre[:] = centre[0] if rng.integers(3) == 0 else centre  # where columns are equal
    lower, upper = np.clip(centre - size, low, high), np.clip(centre + size, low, high)
    return xv.separable(M, y, data=t, W=W, lam=lam), lower, upper, M


def brute_force(problem: xv.Problem, theta: np.ndarray, M: Any) -> float:
    """The objective at theta, the least over all faces of the set of w."""
    A, y = np.asarray(M(theta, t)), np.asarray(problem.lower.y)
    n = A.shape[1]
    if problem.lower.lam:
        A, y = np.concatenate([A, problem.lower.lam**0.5 * np.eye(n)]), np.concatenate([y, np.zeros(n)])
    W, best = problem.lower.W, np.inf
    ends = (-np.inf, np.inf) if W is None else (getattr(W, "lower", 0.0), getattr(W, "upper", np.inf))
    for face in itertools.product(*[(None, *(e for e in ends if np.isfinite(e)))] * n):
        free = np.asarray([end is None for end in face])
        w = np.asarray([0.0 if end is None else end for end in face])
        if free.any():
            w[free] = np.linalg.lstsq(A[:, free], y - A[:, ~free] @ w[~free], rcond=None)[0]
        w = np.clip(w, *ends)
        best = min(best, 0.5 * float(np.sum((A @ w - y) ** 2)))
    return best


@np.errstate(divide="ignore")
def soundness(problems: int) -> int:
    rng, wrong, useful = np.random.default_rng(0), 0, 0
    for k in range(problems):
        problem, lower, upper, M = random_problem(rng)
        grid = itertools.product(*(np.linspace(a, b, 5) for a, b in zip(lower, upper, strict=True)))
        places = (theta for theta in map(np.asarray, grid) if np.isfinite(M(theta, t)).all())  # not at a pole
        least = min(brute_force(problem, theta, M) for theta in places)
        shapes = trees.flatten(lower)[1], [(slice(0, lower.size), lower.shape)]
        design = Design(problem, shapes, alike=range(lower.size))
        found = design.bounds(lower[None], upper[None], np.sqrt(2 * least))
        bound, noise = float(found.lower[0]), 1e-15 * float(np.sum(problem.lower.y**2))
        useful += bound > 0
        if k % 40 == 0:
            box = xv.sets.Box(np.full_like(lower, lower.min()), np.full_like(upper, upper.max()))
            bound = max(bound, xv.certify(problem, box, within=0.5, time_limit=0.3, alike=range(lower.size)).bound)
        if bound > least + noise:
            wrong += 1
            print(f"problem {k}: bound {bound!r} above {least!r}, {problem.lower.W!r}")
    print(f"{problems} problems: {wrong} bounds too high, {useful} boxes with one above 0")
    return wrong


def line(name: str, problem: xv.Problem, box: xv.sets.Box, **options: Any) -> None:
    begun = time.process_time()
    found = xv.certify(problem, box, **options)
    spent, gap = time.process_time() - begun, 100 * found.gap / found.value
    numbers = f"{found.value:.6g} | {found.bound:.6g} | {gap:.2g} % | {found.n_boxes}"
    print(f"| {name} | {numbers} | {found.seconds:.1f} | {spent:.1f} | {found.status.name} |", flush=True)


def of_nist(name: str, folder: Path, **options: Any) -> None:
    given, fit = nist.read(name, folder), nist.FITS[name]
    known: Any = fit.known
    design = DESIGNS.get(name, fit.design)

    def M(theta: Any, data: Any) -> Any:
        return design(xv.array_namespace(theta), data[0], theta)

    def target(theta: Any, data: Any) -> Any:
        return data[1] - known(xv.array_namespace(theta), data[0], theta)

    b = fit.start(given.b)
    factors = 10.0 ** (np.round(np.log10(np.abs(b))) + np.asarray([[-1.0], [1.0]]))
    box = xv.sets.Box(*np.sort(np.sign(b) * factors, axis=0))
    alike = [fit.nonlinear.index(i) for term in fit.alike for i in term if i in fit.nonlinear]
    problem = xv.separable(M, target if known else given.y, data=(given.x, given.y))
    line(name, problem, box, alike=alike, **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--names", nargs="*", default=["diodes", *nist.FITS], help="of NIST; or diodes")
    args = parser.parse_args()
    wrong = soundness(args.problems)
    print("| problem | value | bound | gap | boxes | seconds | of the processor | status |\n" + 8 * "|---" + "|")
    for count, within, alike in ((1, 0.01, ()), (1, 0.001, ()), (2, 0.1, (1, 2)), (2, 0.01, (1, 2))):
        if "diodes" in args.names:
            problem = xv.separable(diodes, AMPERES, data=(VOLTS, AMPERES), W=xv.lower.Nonnegative())
            box = xv.sets.Box(np.asarray([0.0] + [1.0] * count), np.asarray([0.5] + [2.0] * count))
            line(f"{count} diode, {within}", problem, box, within=within, alike=alike, time_limit=args.time_limit)
    folder = Path(os.environ.get("XVARPRO_DATA", "data"))
    for name, fit in nist.FITS.items():
        there = (folder / "nist_strd" / f"{name}.dat").exists()
        if there and name in args.names and len(fit.nonlinear) <= 4:
            of_nist(name, folder, time_limit=args.time_limit)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
