"""Dictionaries with atoms in a set, and nonnegative matrix factorisation."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, final

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from xvarpro import algorithms, lower, sets
from xvarpro.algorithms.interface import Algorithm
from xvarpro.core.checks import switch
from xvarpro.core.namespace import namespace_of
from xvarpro.core.status import Status
from xvarpro.core.struct import Array
from xvarpro.driver.outcome import DeadUnitsWarning
from xvarpro.errors import ProblemError, warn_caller
from xvarpro.lower.weight_sets.interface import WeightSet
from xvarpro.problem.column_chunks import compress
from xvarpro.problem.problem import Problem, separable
from xvarpro.sets import Set
from xvarpro.sklearn._base import ITERATIONS, Factorisation, computed, design, exact_codes, nonnegative, solved, whole
from xvarpro.sklearn._starts import nndsvd, samples
from xvarpro.sklearn._sweeps import Atoms, Factors, best_atoms, factorise, sweepable

# Shares of the tolerance of the solve that ten sweeps end at: where starts are compared, and before the solve. What a
# start has come to earlier says nothing of where it ends.
ROUGH, FINE = 0.1, 1e-4

LARGE = 1e6  # samples times atoms^3, above which iterations may take over a second where the lower level is singular


def _longest(X: np.ndarray) -> float:
    return float(np.max(np.linalg.norm(X, axis=1))) or 1.0


class _Dictionary(Factorisation):
    """Sweeps, then the exact solve; mini-batches by sufficient statistics."""

    @abstractmethod
    def _atoms(self) -> Atoms:
        """Where the dictionary lies."""

    @abstractmethod
    def _seeds(self, X: np.ndarray, draw: np.random.RandomState, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Atoms and codes to start from, the first, the second, ...; X is (n_features, n_samples)."""

    @abstractmethod
    def _sweep(self, X: Array, D: Array, W: Array, tol: float) -> Factors:
        """Sweeps from atoms and codes, to a tolerance."""

    def _moving(self) -> Atoms:
        """Where the dictionary moves: its set, or a larger one out of which `_scaled` brings it back."""
        return self._atoms()

    def _scaled(self, D: Array) -> tuple[Array, Array]:
        """A dictionary in its set, and by what the codes grow for the same products, shape (n_components,)."""
        return D, namespace_of(D).ones_like(D[0, :])

    def _swept(self, X: np.ndarray, D: Any, W: Any, share: float) -> Factors:
        """The same for NumPy's arrays, on the backend, to a share of the tolerance of the solve."""
        return Factors(*computed(self.backend, self.device, partial(self._sweep, tol=share * self.tol), X, D, W))

    @abstractmethod
    def _weights(self) -> WeightSet | None:
        """Where codes lie."""

    def _codes(self, X: np.ndarray) -> np.ndarray:
        return exact_codes(self._problem(X), self.components_, self.backend, self.device)

    def _check(self) -> None:
        whole(self, "n_components", "n_init")
        whole(self, "sweeps", *(["max_iter"] if self.max_iter is not None else []), least=0)
        nonnegative(self, "lam", "tol")

    def _problem(self, X: np.ndarray) -> Problem:
        return separable(design, np.ascontiguousarray(X.T), lam=self.lam, W=self._weights())

    def _fit(self, X: Any) -> Any:
        self._check()
        X = self._checked(X, reset=True)
        self._statistics: Any = None
        self._longest = _longest(X)
        Y, draw = np.ascontiguousarray(X.T), check_random_state(self.random_state)
        starts = [self._seeds(Y, draw, i) for i in range(self.n_init)]
        ends = [self._swept(Y, *start, ROUGH) for start in starts] if self.n_init > 1 else [Factors(*starts[0], 0.0, 0)]
        best = min(ends, key=lambda end: end.value)
        end = self._swept(Y, best.D, best.W, FINE)
        self.n_sweeps_ = end.sweeps + sum(other.sweeps for other in ends)
        exact = end.value <= self.tol**2 * 0.5 * np.sum(X * X)  # no more can be gained
        left_out = self.max_iter is None and not exact and self._singular(X)
        if end.sweeps and (exact or left_out or self.max_iter == 0):
            self.components_ = np.ascontiguousarray(end.D.T)
            claim = (end.value, Status.CONVERGED) if exact else (math.nan, Status.MAX_ITER)
            self._claim(end.value, *claim, self.n_sweeps_)
            if left_out:
                warn_caller(
                    f"{type(self).__name__}: the sweeps ended the fit, without a certificate: with no fewer atoms than "
                    f"features it may take many times as long. max_iter={ITERATIONS} asks for it, max_iter=0 does not.",
                    ConvergenceWarning,
                )
            return self
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeadUnitsWarning)  # it speaks of M, starts and caps
            fit = solved(self, self._problem(X), end.D, self._atoms().over, self._algorithm(end.D.size))
        if dead := fit.verified.dead_units:
            warn_caller(
                f"{type(self).__name__}: {dead} of {self.n_components} atoms are zero, and no step moves them again, "
                "whatever they could gain. Take fewer n_components, or a larger set of atoms"
                f"{', or shared=False' if self._atoms().shared else ''}.",
                DeadUnitsWarning,
            )
        self.components_ = np.ascontiguousarray(fit.theta.T)
        self._keep(fit)
        self.n_iter_ = max(1, self.n_sweeps_ + fit.n_iter)
        return self

    def _singular(self, X: np.ndarray) -> bool:
        """Whether atoms have to be linearly dependent, nearly so but for the ridge, and that is slow.

        Pivoting then exchanges entries of codes many times in each of the solve's evaluations.
        """
        n, used = self.n_components, np.count_nonzero(X.any(axis=0))
        return self._weights() is not None and n >= used and len(X) * n**3 > LARGE

    def _algorithm(self, size: int) -> Algorithm:
        """The default for the set, with re-seeding of atoms that die."""
        return algorithms.Reseeded(algorithms.choose([self._atoms().over], size))

    def partial_fit(self, X: Any, y: Any = None) -> Any:
        """Go on with a mini-batch X, shape (n_samples, n_features), by one pass over the atoms.

        The atoms minimise the objective summed over the batches seen, each with the codes of its time (online
        dictionary learning: Mairal, Bach, Ponce, Sapiro 2010). Batch t counts with the weight ``t^(-3/5)`` in a mean:
        old codes fade.
        """
        self._check()
        first = not hasattr(self, "components_")
        X = self._checked(X, reset=first)
        if first:
            draw, self._longest = check_random_state(self.random_state), _longest(X)
            self.components_ = np.ascontiguousarray(self._atoms().project(self._seeds(X.T, draw)[0]).T)
            self.n_iter_ = 0
        W = self._codes(X).T
        A, B = W @ W.T / len(X), X.T @ W.T / len(X)
        if first or self._statistics is None:
            t = 1
        else:
            t, old_A, old_B = self._statistics
            t += 1
            rho = t**-0.6
            A, B = (1 - rho) * old_A + rho * A, (1 - rho) * old_B + rho * B
        D, scale = computed(
            self.backend,
            self.device,
            lambda A, B, D: self._scaled(best_atoms(A, B, D, self._moving())),
            *(A, B, self.components_.T),
        )
        self._statistics = t, scale[:, None] * A * scale, B * scale
        self.components_ = np.ascontiguousarray(D.T)
        self.n_iter_ += 1
        return self


@final
@dataclass(eq=False, repr=False)
class ConstrainedDictionary(_Dictionary):
    """Dictionary learning with atoms in any set: ``min 1/2 |codes D - X|^2 + lam/2 |codes|^2`` over codes and D.

    Codes are eliminated: `components_` are a stationary point of the reduced problem, whose certificate the attributes
    hold. It is found by sweeps of block coordinate descent, then by `xvarpro.solve`.

    Parameters
    ----------
    n_components : int
        Number of atoms, >= 1.
    atoms : Set, optional
        Of `xvarpro.sets`: where each atom lies, or, if it is a set of matrices of shape (n_features, n_components),
        all of them; None is the unit ball, for codes on a simplex the ball that holds all samples.
    codes : WeightSet, optional
        Of `xvarpro.lower`: ``Nonnegative()``, ``Simplex()``, ``L1(alpha)``, ...; None leaves the codes free.
    lam : float
        Ridge on the codes, >= 0, which adds to the squared lengths of atoms. With 0, atoms that are linearly
        dependent have no unique codes.
    shared : bool
        Whether a set of vectors holds the whole dictionary, flattened: a budget that all atoms share.
    n_init : int
        Starts of the sweeps, >= 1, of which the lowest goes on.
    sweeps : int
        At most so many, >= 0.
    max_iter : int, optional
        Iterations of the solve after them, >= 0. With 0 sweeps end the fit, and it has no certificate. None is 20, but
        0, with a warning, where `codes` are given, atoms are no fewer than the features in use, and
        ``n_samples n_components^3 > 1e6``: a certificate then takes many times as long as the sweeps.
    tol : float
        Of the solve, relative: `xvarpro.solve`.
    algorithm : Algorithm, optional
        Of `xvarpro.algorithms`; None is the default for the set, with `Reseeded` atoms.
    random_state : int, RandomState or None
    backend, device : str, optional
        Where to compute, such as "jax" and "cuda:0"; arrays in and out are NumPy's.

    Attributes
    ----------
    components_ : array, shape (n_components, n_features)
        Atoms.
    objective_, gap_ : float
        Reduced objective and gap of the solve, for the codes that are exact there; without a solve the objective with
        the codes of the sweeps, and NaN. A fit is done where sweeps end below ``tol^2 |X|^2 / 2``, and that is the gap.
    status_ : Status
        Of the solve.
    n_iter_, n_sweeps_ : int
        Sweeps and iterations; sweeps.
    n_features_in_, feature_names_in_
        As scikit-learn has them.

    Raises
    ------
    ProblemError
        A parameter is out of range, or the data do not fit the set.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro.sklearn import ConstrainedDictionary
    >>> X = np.random.default_rng(0).normal(size=(60, 8))
    >>> learner = ConstrainedDictionary(4, atoms=xv.sets.L1Ball(), codes=xv.lower.L1(0.1), random_state=0, max_iter=200)
    >>> codes = learner.fit_transform(X)
    >>> codes.shape, bool((abs(learner.components_).sum(axis=1) <= 1 + 1e-9).all()), learner.status_.name
    ((60, 4), True, 'CONVERGED')
    """

    n_components: int = 8
    _: KW_ONLY
    atoms: Set | None = None
    codes: WeightSet | None = None
    lam: float = 1e-8
    shared: bool = False
    n_init: int = 1
    sweeps: int = 1000
    max_iter: int | None = None
    tol: float = 1e-3
    algorithm: Algorithm | None = None
    random_state: Any = None
    backend: Any = None
    device: Any = None

    def fit(self, X: Any, y: Any = None) -> ConstrainedDictionary:
        """Find atoms for the samples X, shape (n_samples, n_features)."""
        return self._fit(X)

    def _check(self) -> None:
        super()._check()
        switch("ConstrainedDictionary: shared", self.shared)
        for name, kind, room in (("atoms", Set, "sets"), ("codes", WeightSet, "lower")):
            value = getattr(self, name)
            if not (value is None or isinstance(value, kind)):
                raise ProblemError(
                    f"ConstrainedDictionary: {name} must be a set of xvarpro.{room} or None, got {value!r}"
                )

    def _weights(self) -> WeightSet | None:
        return self.codes

    def _atoms(self) -> Atoms:
        if self.atoms is not None:
            return Atoms(self.atoms, self.shared)
        # mixtures of atoms are no longer than these
        longest = self._longest / self.codes.total if isinstance(self.codes, lower.Simplex) else 1.0
        return Atoms(sets.L2Ball(longest), self.shared)

    def _algorithm(self, size: int) -> Algorithm:
        return self.algorithm or super()._algorithm(size)

    def _seeds(self, X: np.ndarray, draw: np.random.RandomState, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
        n = self.n_components
        return samples(X, n, self._atoms(), draw), np.full((n, X.shape[1]), 1.0 / n)

    def _sweep(self, X: Array, D: Array, W: Array, tol: float) -> Factors:
        if not sweepable(self._atoms(), self.codes):
            return Factors(D, W, math.inf, 0)
        if self.codes is None and self.lam > 0:  # codes are those of least squares: X counts by its Gram matrix
            X = compress(X)
            W = W[:, : X.shape[1]]
        return factorise(X, D, W, self._atoms(), self.codes, lam=self.lam, sweeps=self.sweeps, tol=tol)


@final
@dataclass(eq=False, repr=False)
class NMF(_Dictionary):
    """Nonnegative matrix factorisation, ``min 1/2 |codes D - X|^2 + lam/2 |codes|^2`` over ``codes, D >= 0``.

    Atoms have the sum 1: the lengths of atoms are the codes' to choose. It starts from NNDSVDa, as scikit-learn's, goes
    on by its coordinate descent with momentum, and ends with the exact solve, whose certificate the attributes hold.

    Parameters
    ----------
    n_components : int
        Number of atoms, >= 1.
    lam : float
        Ridge on the codes, >= 0; see `ConstrainedDictionary`.
    n_init : int
        Starts of the sweeps, of which the lowest goes on: the first is NNDSVDa, others are random.
    sweeps, max_iter, tol, random_state, backend, device
        As in `ConstrainedDictionary`.

    Attributes
    ----------
    components_, objective_, gap_, status_, n_iter_, n_sweeps_, n_features_in_, feature_names_in_
        As those of `ConstrainedDictionary`.

    Raises
    ------
    ValueError
        Negative entries of X.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro.sklearn import NMF
    >>> draw = np.random.default_rng(0)
    >>> X = draw.uniform(size=(50, 2)) @ draw.uniform(size=(2, 6)) + 0.01 * draw.uniform(size=(50, 6))
    >>> model = NMF(2, random_state=0).fit(X)
    >>> bool(model.score(X) > 0.999), bool((model.components_ >= 0).all())
    (True, True)
    """

    nonnegative_data = True

    n_components: int = 8
    _: KW_ONLY
    lam: float = 1e-8
    n_init: int = 2
    sweeps: int = 1000
    max_iter: int | None = None
    tol: float = 1e-3
    random_state: Any = None
    backend: Any = None
    device: Any = None

    def fit(self, X: Any, y: Any = None) -> NMF:
        """Find atoms for the samples X, shape (n_samples, n_features), nonnegative."""
        return self._fit(X)

    def _weights(self) -> WeightSet:
        return lower.Nonnegative()

    def _atoms(self) -> Atoms:
        return Atoms(sets.Simplex())

    def _moving(self) -> Atoms:
        return Atoms(sets.Box(0.0, math.inf))  # where coordinate descent is not held by the scale of an atom

    def _scaled(self, D: Array) -> tuple[Array, Array]:
        xp = namespace_of(D)
        length = xp.sum(D, axis=0)
        used = length > 0
        scale = xp.where(used, length, xp.ones_like(length))
        return xp.where(used, D / scale, xp.full_like(D, 1.0 / D.shape[0])), scale

    def _seeds(self, X: np.ndarray, draw: np.random.RandomState, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
        if start:
            n, size = self.n_components, 2.0 * np.sqrt(X.mean() / self.n_components)
            return size * draw.uniform(size=(X.shape[0], n)), size * draw.uniform(size=(n, X.shape[1]))
        return nndsvd(X, self.n_components, draw)

    def _sweep(self, X: Array, D: Array, W: Array, tol: float) -> Factors:
        D, W, value, sweeps = factorise(X, D, W, self._moving(), lower.Nonnegative(), sweeps=self.sweeps, tol=tol)
        D, scale = self._scaled(D)
        W = W * scale[:, None]
        return Factors(D, W, value + 0.5 * self.lam * float(namespace_of(W).sum(W * W)), sweeps)
