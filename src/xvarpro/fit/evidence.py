"""Models of the same data, compared by their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xvarpro.errors import ProblemError
from xvarpro.fit.laplace_approximation import Laplace, laplace
from xvarpro.results.outcome import Outcome
from xvarpro.statistics.frames import aligned


@dataclass(frozen=True, eq=False)
class ModelComparison:
    """Models of the same data, from `compare_models`; prints as a table.

    Attributes
    ----------
    names : list of str
    models : list of Laplace
    """

    names: list[str]
    models: list[Laplace]

    @property
    def best(self) -> str:
        """The name of the model with the largest evidence."""
        return self.names[int(np.argmax([m.log_evidence for m in self.models]))]

    @property
    def probabilities(self) -> np.ndarray:
        """Of the models, if they were equally probable before the data."""
        logs = np.array([m.log_evidence for m in self.models])
        odds = np.exp(logs - np.max(logs))
        found: np.ndarray = odds / np.sum(odds)
        return found

    def __str__(self) -> str:
        head = ("model", "log evidence", "probability", "AIC", "BIC", "effective parameters")
        pairs = zip(self.names, self.models, self.probabilities, strict=True)
        rows = [
            (name, f"{m.log_evidence:.2f}", f"{p:.3g}", f"{m.aic:.2f}", f"{m.bic:.2f}", f"{m.effective_parameters:.2f}")
            for name, m, p in pairs
        ]
        return "\n".join(aligned([head, *rows]))


def compare_models(models: Sequence[Outcome | Laplace] | Mapping[str, Outcome | Laplace]) -> ModelComparison:
    """A table of models of the same data: log evidence, AIC, BIC, effective parameters.

    Parameters
    ----------
    models : sequence or dict of Result or Laplace
        Fits of `marginal`, of which `Result.laplace` is taken, or what that has returned, as with ``components=``. The
        keys of a dict name them.

    Returns
    -------
    ModelComparison

    Raises
    ------
    ProblemError
        They are of different data, or of a target that is a function; amplitudes have a flat prior, with which the
        evidence depends on the scale of the columns of M; the noise has Jeffreys'
        density in some only; or as from `Result.laplace`.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> t = np.linspace(0.1, 2.0, 40)
    >>> y = 2.0 * t**1.5 + 0.01 * np.sin(40 * t)
    >>> def fit(*powers):
    ...     def M(theta, t):
    ...         xp = xv.array_namespace(theta)
    ...         return xp.stack([t**theta[0], *(t**p for p in powers)], axis=1)
    ...     m = xv.marginal(xv.separable(M, y, data=t, lam=1e-4), noise=0.01)
    ...     return xv.solve(m, np.array([1.2]), over=xv.sets.Box(0.5, 3.0))
    >>> xv.compare_models({"power": fit(), "power and constant": fit(0)}).best
    'power'
    """
    named = dict(models) if isinstance(models, Mapping) else {f"model {i}": m for i, m in enumerate(models)}
    found = [m if isinstance(m, Laplace) else laplace(m) for m in named.values()]
    if not found:
        raise ProblemError("compare_models needs one model or more; got none")
    flat = [name for name, m in zip(named, found, strict=True) if m.flat]
    if flat:
        raise ProblemError(
            "models are compared with proper priors of w: with a flat one the evidence depends on the scale of the "
            f"columns of M; got lam = 0 in {', '.join(flat)}. Pass lam > 0 to their problems"
        )
    unscaled = [name for name, m in zip(named, found, strict=True) if m.unscaled]
    if 0 < len(unscaled) < len(found):
        raise ProblemError(
            "models with Jeffreys' density of the noise, noise=None, are compared with each other alone: it has no "
            f"normalisation; got it in {', '.join(unscaled)} and not in the others. Give all of them one noise="
        )
    first = found[0]
    for name, m in zip(named, found, strict=True):
        alike = m.data == first.data and m.target is not None and first.target is not None
        if not alike or not np.array_equal(m.target, first.target, equal_nan=True):
            raise ProblemError(
                f"models are compared on the same data, in arrays y; got another target in {name} than in "
                f"{next(iter(named))}, or one that is a function. Fit them to one array, with the same weights of 0"
            )
    return ModelComparison(list(named), found)
