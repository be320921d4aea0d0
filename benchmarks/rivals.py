"""The default against joint methods on MNIST (784 x 3000) with 128 atoms, at two scalings of the units.

A race of `xvarpro run dictionary`: every method is measured by the lowest reduced objective so far on one axis of time,
set-up and compression included. Rivals run uncompressed, as a user would write them, tuned at this budget by the worst
of three starts. Targets are 1.1, 1.01 and 1.001 times the lowest value that any method found from the same start.

    XVARPRO_DATA=<folder> python benchmarks/rivals.py [--seconds 12] [--starts 5] [--backend numpy]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace

from xvarpro_experiments import datasets, dictionary, race
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.methods import DEFAULT

RIVALS = ("joint projected gradient, tuned", "iPALM, tuned")
UNITS = (1.0, 1000.0)


def spread(values: Sequence[float], form: str = "{:.2f}") -> str:
    """Median and range; what never came is later than all others."""
    low, *_, high = ordered = sorted(values)
    said = [form.format(x) if math.isfinite(x) else "never" for x in (ordered[len(ordered) // 2], low, high)]
    return f"{said[0]} ({said[1]} to {said[2]})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--backend", default="numpy")
    args = parser.parse_args()
    images = datasets.images(3000)
    print(f"{images.source}, X {images.X.shape}, 128 atoms, {args.backend}, {args.seconds:g} s, {args.starts} starts")
    heads = [f"s to {1 + above:g}" for above in race.TARGETS]
    print(f"| units | method | {' | '.join(heads)} | over the best, at equal time |")
    print("|---|---|" + "---|" * len(heads) + "---|")
    for units in UNITS:
        stated = dictionary.experiment(images.X, units=units, backend=args.backend)
        methods = tuple(m for m in stated.methods if m.name in (DEFAULT, *RIVALS))
        found = race.run(replace(stated, methods=methods), Budget(None, args.seconds, 1.05), range(args.starts))
        times = {
            name: [
                [o.setup_seconds + t for o, t in zip(found.of(name), found.seconds_to(name, above), strict=True)]
                for above in race.TARGETS
            ]
            for name in found.names
        }
        best = [found.target(seed, 0.0) for seed in found.outcomes]
        for name in found.names:
            cells = [spread(column) for column in times[name]]
            over = [x / b - 1 for x, b in zip(found.readings(name, "seconds"), best, strict=True)]
            print(
                f"| {units:g} | {found.of(name)[0].run_as} | {' | '.join(cells)} | {spread(over, '{:.2%}')} |",
                flush=True,
            )
        for rival in RIVALS:
            # where a rival never arrives, the length of its run makes an upper bound of the ratio
            runs = [
                [a / min(b, args.seconds) for a, b in zip(*columns, strict=True)]
                for columns in zip(times[DEFAULT], times[rival], strict=True)
            ]
            ratios = [
                ("at most " if math.inf in theirs else "") + spread(column, "{:.3f}")
                for column, theirs in zip(runs, times[rival], strict=True)
            ]
            print(f"| {units:g} | default's time over that of {rival} | {' | '.join(ratios)} | |", flush=True)


if __name__ == "__main__":
    main()
