"""What a summary has to show, whatever the machine was doing: descent, a certificate, feasibility, agreement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# of the violation of a set, relative to its size: rounding in the sums that measure it
_FEASIBLE = {"float64": 1e-12, "float32": 1e-5}
_CERTIFIED = 0.1  # of the gap at the start: what the best method of the package has to bring it below
_EXCESS = 30.0  # of two backends at one point, in machine epsilons times the condition: more is an error
_OWN = ("paper", "ours")


class Check(NamedTuple):
    """One line of the sanity table."""

    what: str
    worst: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether it holds; NaN does not."""
        return self.worst <= self.bound


def checks(summary: Mapping[str, Any]) -> Iterator[Check]:
    """The checks of one experiment's summary, as `Race.record` and the command line make it."""
    runs = [r for r in summary["runs"] if r["family"] in _OWN]
    starts = {str(seed): value for seed, value in summary["start_objective"].items()}
    ratios = [_number(r["objective"]) / starts[str(r["seed"])] for r in runs]
    yield Check("objective at the end over the start, worst method", _worst(ratios), 1 - 1e-6)
    gaps = [_number(r["gap"]) / _number(r["start_gap"]) for r in runs if _number(r["start_gap"]) > 0]
    yield Check("gap at the end over the start, best method", min(gaps, default=math.nan), _CERTIFIED)
    dtype = summary["config"].get("dtype", "float64")
    every = [_number(r["infeasibility"]) for r in summary["runs"] if r["family"] != "floor"]
    yield Check("infeasibility, relative, worst method", _worst(every), _FEASIBLE[dtype])
    compare = summary["compare"]
    if compare is not None:
        excess = [_number(relation["excess"]) for relation in compare["relations"].values()]
        yield Check("objectives and gradients of the backends, eps x condition", _worst(excess), _EXCESS)


def _number(x: Any) -> float:
    return math.nan if x is None else float(x)


def _worst(values: list[float]) -> float:
    return math.nan if any(math.isnan(x) for x in values) else max(values, default=math.nan)
