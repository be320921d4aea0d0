"""Time to the joint baselines' final objective, on MNIST (784 x 3000) with 128 atoms, at two scalings of the units.

A race of three methods of `xvarpro run dictionary`. The rivals run uncompressed, as a user would write them, and iPALM
is tuned on start 0. What has to be reached is the reduced objective at a rival's last D, which is never above the
rival's own; its time is when this came to within a small share (`--within`) of where it ended. The default's time
includes compression and all other set-up.

    XVARPRO_DATA=<folder> python benchmarks/rivals.py [--seconds 30] [--starts 3] [--backend numpy]
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from xvarpro_experiments import datasets, dictionary, race
from xvarpro_experiments.descent import Budget
from xvarpro_experiments.methods import DEFAULT

RIVALS = ("joint projected gradient, 1/L", "iPALM, tuned")
UNITS = (1.0, 1000.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--within", type=float, default=1e-3)
    args = parser.parse_args()
    images = datasets.images(3000)
    print(f"{images.source}, X {images.X.shape}, 128 atoms, {args.backend}, {args.seconds:g} s each")
    print("| units | rival | start | its objective | its time, s | iterations | default's time to it, s | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for units in UNITS:
        stated = dictionary.experiment(images.X, units=units, backend=args.backend)
        methods = tuple(m for m in stated.methods if m.name in (DEFAULT, *RIVALS))
        found = race.run(replace(stated, methods=methods), Budget(None, args.seconds, 1.05), range(args.starts))
        for name in RIVALS:
            ratios = []
            for seed, (ours, rival) in enumerate(zip(found.of(DEFAULT), found.of(name), strict=True)):
                near = rival.curve.reached((1 + args.within) * rival.objective)
                time = ours.setup_seconds + ours.curve.reached(rival.objective)
                ratios.append(time / near)
                numbers = f"{rival.objective:.0f} | {near:.2f} | {rival.iterations} | {time:.2f} | {ratios[-1]:.3f}"
                print(f"| {units:g} | {rival.run_as} | {seed} | {numbers} |", flush=True)
            print(f"| {units:g} | {name} | median | | | | | {np.median(ratios):.3f} |", flush=True)


if __name__ == "__main__":
    main()
