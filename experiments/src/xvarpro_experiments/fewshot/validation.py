"""Methods whose numbers, and numbers of iterations, are chosen on validation episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from xvarpro_experiments.fewshot.tasks import LARGE, entries
from xvarpro_experiments.methods import Budget, Method, Outcome, Task


@dataclass(frozen=True)
class Within(Method):
    """A method whose steps keep to other balls than those of the task.

    Parameters
    ----------
    method : Method
    over : Set, Free or tree of them
    """

    method: Method
    over: Any
    name: str = ""
    family: str = "ours"

    def run(self, task: Task, budget: Budget, progress: bool | None = None) -> Outcome:
        done = self.method.run(replace(task, over=self.over), budget, progress)
        return replace(done, told=f"{done.told}, {self.name}")


@dataclass(frozen=True)
class Validated(Method):
    """A method with numbers, and with a last iteration, that did best on validation episodes: early stopping for all.

    Parameters
    ----------
    name, family : str
    candidates : tuple of Method
        One where there is nothing but the iterations to choose.
    episodes : callable
        Tasks of other images than any that is reported on.
    measure : str
        Of those tasks, the larger the better.
    limit : int, optional
        Iterations instead of the budget's, of a method whose iterations cost next to nothing.
    """

    name: str
    family: str
    candidates: tuple[Method, ...] = field(repr=False)
    episodes: Callable[[], Sequence[Task]] = field(repr=False)
    measure: str
    limit: int | None = None
    _found: list[tuple[Method, int, float]] = field(default_factory=list, compare=False, repr=False)

    def chosen(self, budget: Budget) -> tuple[Method, int, float]:
        """Candidate, iterations and mean measure, found once, within the budget of the first call; the first of equals,
        and of its iterations the fewest.
        """
        if not self._found:
            budget = replace(budget, iterations=self.limit or budget.iterations)
            best: tuple[Method, int, float] | None = None
            for candidate in self.candidates:
                curves = [candidate.run(task, budget, False).measured[self.measure] for task in self.episodes()]
                for n in sorted({int(n) for c in curves for n in c.iterations if n > 0}):
                    mean = float(np.mean([c.at("iterations", n) for c in curves]))
                    if best is None or mean > best[2]:
                        best = candidate, n, mean
            assert best is not None
            self._found.append(best)
        return self._found[0]

    def run(self, task: Task, budget: Budget, progress: bool | None = None) -> Outcome:
        method, n, _ = self.chosen(budget)
        done = method.run(task, replace(budget, iterations=n), progress)
        done = replace(done, method=self.name, family=self.family, told=f"{done.told}, {n} iterations")
        large = done.theta is not None and entries(done.theta) > LARGE
        return replace(done, theta=None, fit=None) if large else done
