"""`find_components`: the number, places and amplitudes of components."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from xvarpro.algorithms import LevenbergMarquardt
from xvarpro.backends import Backend
from xvarpro.bayes.likelihood import marginal
from xvarpro.components.atoms import Atom, Atoms, Design
from xvarpro.components.result import Components, FoundComponents
from xvarpro.components.search import EXACT, Search, State
from xvarpro.core.checks import described, number
from xvarpro.core.struct import Array, Tree
from xvarpro.errors import ProblemError
from xvarpro.fit.result import Result
from xvarpro.fit.ridges import dealt
from xvarpro.fit.solve import solve
from xvarpro.lower import Bounded, Nonnegative
from xvarpro.problem.problem import Problem, separable

CHOOSING = "extended BIC", "minus log evidence", "mean square of rows left out"  # criteria with a minimum
PATIENCE = 2  # orders that may be worse before the search ends
BEYOND = 2  # components more than asked for, of which the least useful are removed again
NONE = 1e12  # ridge of a component that is not there
DISCREPANCY = 2.0  # standard deviations of chi2 that a residual may be above its mean


def find_components(
    atom: Atom,
    y: Array,
    over: Tree,
    *,
    data: Tree = None,
    weight: float | None = None,
    max_components: int | None = None,
    noise: float | None = None,
    evidence: float | None = None,
    folds: int | Array | None = None,
    W: Nonnegative | None = None,
    weights: Array | None = None,
    columns: Array | None = None,
    normalise: bool = True,
    tol: float = 1e-3,
    backend: str | Backend | None = None,
    device: Any = None,
    dtype: str | None = None,
) -> FoundComponents:
    """How many components the data hold, where they are, and how strong, without a start and without a grid of columns.

    Sliding Frank-Wolfe (ADCG) adds the atom that takes most of the residual, anywhere in the box, solves all amplitudes
    and moves all places by Levenberg-Marquardt. By default it goes on through 0, 1, 2, ... components, and the number
    with the smallest extended BIC is taken: BIC, and the number of ways to choose so many distinct places.

    Parameters
    ----------
    atom : callable
        ``atom(theta, data)`` -> (m, n): a column for each of n components, which depends on its own entries alone, as
        the M of `separable`. Leaves of theta have the components along their first axis. Of shape (m, n, b), each is a
        block of b columns: a pole and its conjugate, a peak and its derivative.
    y : array, shape (m,) or (m, k)
        Data; k responses share the places. They may be complex, and so are the amplitudes then.
    over : Box, pair of bounds, or dict of these
        Finite bounds of the theta of one component. A Box of numbers makes theta an array (n,).
    data : pytree, optional
        What `atom` reads.
    weight : float, optional
        tau > 0: minimise ``1/2 |sum_j w_j a(theta_j) - y|^2 + tau sum_j |w_j|`` over number, places and amplitudes, a
        convex problem in the measure that components are. By default each column of a here is divided by its norm,
        and w, in `FoundComponents.penalised`, counts these. The lengths |w_j| go over the block and the responses.
    max_components : int, optional
        So many, fewer where no more are found: two more are sought, and the least useful ones removed.
    noise : float, optional
        The standard deviation of the noise, of complex data that of each part: the fewest components whose residual is
        no larger than it explains, at two standard deviations of chi2, and of which the last takes more than noise.
    evidence : float, optional
        Choose by the evidence, with Laplace's method. The number is the ridge of `marginal`: amplitudes of unit atoms
        have a standard deviation of that of the noise over its root. The density of places is uniform. A number whose
        most probable components coincide, as where the prior is too narrow for one, has minus infinity.
    folds : int or array of int, shape (m,), optional
        Choose by cross-validation: how many folds, into which rows are dealt at random, or the fold of each row. It
        takes the fewest components that predict rows left out as well as the best, within a standard error.
    W : Nonnegative, optional
        ``xv.lower.Nonnegative()`` for amplitudes >= 0. Those of fixed columns stay free.
    weights : array, shape (m,), optional
        Of the squared residuals.
    columns : array, shape (m,) or (m, f), optional
        Fixed columns next to the components, such as an offset or a background; they pay nothing.
    normalise : bool
        Whether a `weight` counts amplitudes of atoms of norm 1, or as they are.
    tol : float
        With a `weight`, the search ends where the certificate is at most ``1 + tol`` everywhere that was looked at, and
        then proves, where it can, that it is so all over the box.
    backend, device, dtype : optional
        Where and in what precision atoms are computed; those of y by default. Small algebra is done by NumPy.

    Returns
    -------
    FoundComponents
        The components with standard errors, an ordinary fit of them, None where there is none, whose data with
        `columns` are the pair ``(data, columns)``, the certificate, and how the number was chosen.
        Without a `weight` the search is greedy: what it finds is a local minimum for its number of components.

    Raises
    ------
    ProblemError
        Arguments do not fit together; two criteria at once; bounds that are not finite; NaN in the data.
    ModelError
        `atom` returns no columns, or columns that depend on other components.

    References
    ----------
    N. Boyd, G. Schiebinger, B. Recht, SIAM Journal on Optimization 27 (2017) on ADCG. J. Chen, Z. Chen, Biometrika 95
    (2008) on extended BIC. Q. Denoyelle, V. Duval, G. Peyre, E. Soubies, Inverse Problems 36 (2019).

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> x = np.linspace(0.0, 10.0, 100)
    >>> def lines(centres, x):
    ...     return xv.models.gaussians(x, centres, 0.4)
    >>> noise = 0.02 * np.random.default_rng(0).normal(size=100)
    >>> y = lines(np.array([3.0, 3.7, 8.0]), x) @ np.array([1.0, 0.8, 0.5]) + noise
    >>> found = xv.find_components(lines, y, over=(0.0, 10.0), data=x)
    >>> found.n, np.round(found.components.places[:, 0], 2)
    (3, array([3.  , 3.71, 7.99]))
    """
    given = {"weight": weight, "max_components": max_components, "noise": noise, "evidence": evidence, "folds": folds}
    asked = [name for name, x in given.items() if x is not None]
    if len(asked) > 1:
        raise ProblemError(f"give at most one of {', '.join(given)}; got {', '.join(asked)}")
    for name in set(asked) - {"folds"}:
        x, whole = number(given[name]), name == "max_components"
        if not 0 < x < math.inf or (whole and x != int(x)):
            kind = "a whole number >= 1" if whole else "a finite number > 0"
            raise ProblemError(f"{name} must be {kind}; got {described(given[name])}")
    if not 0 < number(tol) < 1:
        raise ProblemError(f"tol must be a number in (0, 1); got {described(tol)}")
    positive = W is not None
    if positive and (not isinstance(W, Nonnegative) or evidence is not None):
        raise ProblemError(f"W must be xv.lower.Nonnegative() or None, and None with evidence; got {W!r:.80}")
    atoms = Atoms(atom, y, data, over, weights, columns, positive, normalise, backend, device, dtype)
    search = Search(atoms, positive, 0.0 if weight is None else float(weight))
    score: Callable[[State], float] = search.bic
    criterion = CHOOSING[0]
    if max_components is not None:
        score, criterion = (lambda state: math.sqrt(2 * state.value / atoms.numbers)), "rms"
    elif noise is not None:
        score, criterion = (lambda state: 2 * state.value / float(noise) ** 2), "chi2"
    elif evidence is not None:
        score, criterion = (lambda state: -_log_evidence(atoms, state, float(evidence))), CHOOSING[1]
    elif folds is not None:
        squares = search.held_out(dealt(folds, len(atoms.root)))
        score, criterion = (lambda state: float(np.sum(squares(state.n))) / atoms.numbers), CHOOSING[2]
    if weight is None:
        found, scores = _orders(search, score, criterion, max_components)
        best = int(np.argmin(scores)) if criterion in CHOOSING else -1
        state = found[best if folds is None else _fewest(squares, best)]
        X, penalised = state.X, None
    else:
        state = search.with_weight(tol)
        found, scores, criterion = [state], [state.value], "penalised objective"
        caption = "amplitudes w of unit atoms" if normalise else ""
        X, penalised = search.debiased(state).X, Components.of(atoms, atoms.tree(state.X), state.w, caption=caption)
    fit = _fit(atoms, X, positive) if len(X) else None
    return FoundComponents(
        components=Components.of(atoms, fit.theta, fit.w, fit) if fit else Components.of(atoms, atoms.tree(X), None),
        fit=fit,
        certificate=search.certificate(state, tol),
        criterion=criterion,
        tried=np.array([s.n for s in found]),
        scores=np.array(scores),
        penalised=penalised,
    )


def _fewest(squares: Callable[[int], np.ndarray], best: int) -> int:
    """Components whose squares are above those of the best by one standard error of the difference at most."""
    for n in range(best):
        more = squares(n) - squares(best)
        if more.sum() <= math.sqrt(more.size) * more.std():
            return n
    return best


def _orders(
    search: Search, score: Callable[[State], float], criterion: str, most: int | None
) -> tuple[list[State], list[float]]:
    """States of 0, 1, 2, ... components, as far as the criterion asks for, and what it says of them."""
    N, choosing = search.atoms.numbers, criterion in CHOOSING
    found, scores = [search.none], [score(search.none)]
    limit = search.most if most is None else min(int(most) + BEYOND, search.most)
    while found[-1].n < limit and found[-1].value > EXACT * search.energy:
        free = max(N - search.fixed - found[-1].n * search.each, 1)
        if criterion == "chi2" and scores[-1] <= free + DISCREPANCY * math.sqrt(2 * free):
            break
        state = search.grown(found[-1])
        if state is None or not state.value < found[-1].value:
            break
        found.append(state)
        scores.append(score(state))
        if choosing and len(scores) - 1 - int(np.argmin(scores)) >= PATIENCE:
            break
    while criterion == "chi2" and len(scores) > 1 and scores[-2] - scores[-1] < math.log(N) * search.each:
        found.pop(), scores.pop()  # what noise alone would give, where it is larger than it mostly is
    # the greedy way to an order is not the only one: from more components down to fewer
    wanted = int(np.argmin(scores)) if choosing else len(found) if most is None else int(most)
    for n in range(len(found) - 1, 0 if choosing else wanted, -1):
        less = search.without(found[n])
        if less is not None and less.value < found[n - 1].value * (1 - 1e-6):
            found[n - 1], scores[n - 1] = less, score(less)
        elif n <= wanted + 1:
            break
    end = None if most is None else int(most) + 1
    return found[:end], scores[:end]


def _problem(atoms: Atoms, normalise: bool, **options: Any) -> Problem:
    fixed = atoms.given.shape[1]
    plain = atoms.block == 1 and not fixed and not normalise
    design: Any = atoms.atom if plain else Design(atoms.atom, normalise, fixed)
    data = (atoms.data, atoms.given) if fixed else atoms.data
    return separable(design, atoms.y, data=data, weights=atoms.weights, **options)


def _fit(atoms: Atoms, X: np.ndarray, positive: bool) -> Result:
    """Without a penalty, as an ordinary result."""
    low = np.repeat([0.0, -np.inf], [len(X) * atoms.block, atoms.given.shape[1]])
    problem = _problem(atoms, False, W=Bounded(low, np.inf) if positive else None)
    place: Any = {"backend": atoms.backend, "device": atoms.device, "dtype": atoms.dtype}
    return solve(problem, atoms.tree(X), atoms.sets, algorithm=LevenbergMarquardt(), progress=False, **place)


def _log_evidence(atoms: Atoms, state: State, lam: float) -> float:
    X = state.X if state.n else 0.5 * (atoms.lower + atoms.upper)[None]
    lam = lam if state.n else NONE  # leaves no amplitude
    ridge = np.repeat([lam, 0.0], [len(X) * atoms.block, atoms.given.shape[1]])[:, None]
    density = marginal(_problem(atoms, True, lam=ridge if atoms.given.shape[1] else lam))
    if not state.n:
        return float(density.log_density(atoms.tree(X)))
    try:
        found = solve(density, atoms.tree(X), atoms.sets, progress=False).laplace(components=state.n)
    except ProblemError:  # components that the data do not tell apart have no maximum
        return -math.inf
    return -math.inf if found._together else found.log_evidence  # fewer components, of another prior of amplitudes
