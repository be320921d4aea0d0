"""Dynamic mode decomposition: snapshots as a few modes that oscillate, grow and decay, with eigenvalues in bounds."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from typing import Any, final

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from xvarpro import sets
from xvarpro.algorithms import LevenbergMarquardt
from xvarpro.core.checks import described
from xvarpro.core.namespace import namespace_of
from xvarpro.core.struct import Array
from xvarpro.errors import ProblemError
from xvarpro.models import exponentials, oscillations
from xvarpro.problem.column_chunks import ColumnChunks
from xvarpro.problem.problem import separable
from xvarpro.sklearn._base import Factorisation, solved, whole

DELAYS = (1, 2, 4)  # snapshots side by side in a start: a standing wave has one shape for two eigenvalues
EXPONENT = 30.0  # up to which a mode of a start may grow
NEAR = 1e-6  # of half a turn within the data: eigenvalues so near to each other have one mode


def conjugate(theta: dict[str, Array], t: Array) -> Array:
    """Cosines and sines of each pair, then the exponentials of eigenvalues that are real; all have real weights."""
    real, imag = theta["real"], theta.get("imag")
    if imag is None:
        return exponentials(t, -real)
    n = imag.shape[0]
    pairs = oscillations(t, imag / (2 * math.pi), -real[:n])
    return namespace_of(t).concat([pairs, exponentials(t, -real[n:])], axis=1) if real.shape[0] > n else pairs


def separate(theta: dict[str, Array], t: Array) -> Array:
    """One complex exponential for each eigenvalue."""
    xp = namespace_of(t)
    angle = t[:, None] * theta["imag"]
    return xp.exp(t[:, None] * theta["real"]) * (xp.cos(angle) + 1j * xp.sin(angle))


@final
@dataclass(eq=False, repr=False)
class DMD(Factorisation):
    """Optimised dynamic mode decomposition (Askham, Kutz 2018) with bounds on the eigenvalues.

    Snapshots X, one in each row, are approximated by ``sum_j amplitude_j exp(eigenvalue_j (t - t_0)) mode_j``, all at
    once and at any times. Modes are eliminated exactly; eigenvalues are a minimum over their bounds, not one without
    bounds that is moved there.

    Parameters
    ----------
    n_components : int or float
        Number of eigenvalues, >= 1; or a share in (0, 1): as many as principal components that have it of ``|X|^2``.
        At most half as many as snapshots.
    real, imag : tuple of two numbers
        Bounds of real and imaginary parts, in the units of ``1 / t``; radians, not cycles. ``real=(-inf, 0)`` has no
        mode grow, ``real=(0, 0)`` puts eigenvalues on the imaginary axis.
    conjugate : bool
        X is real, and eigenvalues are real or conjugate pairs, as many of each as the start has; `imag` bounds sizes
        of imaginary parts, and a lower bound above 0 has pairs only. False: X may be complex, eigenvalues are free.
    rank : int, optional
        Fit so many principal components in the place of X. None fits X itself, compressed exactly where it has more
        columns than rows.
    max_iter, tol, backend, device
        As of `xvarpro.solve`; arrays in and out are NumPy's.

    Attributes
    ----------
    eigenvalues_ : array, shape (n_modes,), complex
        Continuous in time; both of each pair.
    modes_ : array, shape (n_modes, n_features), complex
        Of length 1.
    amplitudes_ : array, shape (n_modes,)
        Sizes of modes at the first time.
    components_ : array, shape (n_modes, n_features)
        What `transform` gives the weights of: of pairs all cosines, then all sines, then modes that are real.
    t_ : array, shape (n_samples,)
    result_ : xvarpro.Result
        Of the solve, with theta ``{"real": ..., "imag": ...}``.
    objective_, gap_, status_, n_iter_, n_features_in_, feature_names_in_
        As those of `ConstrainedDictionary`.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro.sklearn import DMD
    >>> t, x = np.linspace(0.0, 6.0, 40), np.linspace(0.0, 1.0, 12)
    >>> X = np.outer(np.exp(-0.1 * t) * np.cos(2.0 * t), x) + np.outer(np.exp(-0.1 * t) * np.sin(2.0 * t), x**2)
    >>> model = DMD(2, real=(-np.inf, 0.0)).fit(X, t=t)
    >>> np.round(model.eigenvalues_, 4)
    array([-0.1+2.j, -0.1-2.j])
    >>> bool(np.allclose(model.forecast([7.0])[0, -1], np.exp(-0.7) * (np.cos(14.0) + np.sin(14.0))))
    True
    """

    n_components: int | float = 2
    _: KW_ONLY
    real: tuple[float, float] = (-math.inf, math.inf)
    imag: tuple[float, float] = (-math.inf, math.inf)
    conjugate: bool = True
    rank: int | None = None
    max_iter: int = 200
    tol: float = 1e-6
    backend: Any = None
    device: Any = None

    def fit(self, X: Any, y: Any = None, *, t: Any = None, weights: Any = None) -> DMD:
        """Find eigenvalues and modes of the snapshots X, (n_samples, n_features), at ascending times t, (n_samples,).

        None is 0, 1, 2, ...; `weights`, (n_samples,), are those of squared residuals.
        """
        self._check()
        X = self._checked(X, reset=True)
        t = np.arange(float(len(X))) if t is None else np.asarray(t, dtype=np.float64)
        if t.shape != (len(X),) or not np.all(np.diff(t) > 0):
            i = int(np.argmin(np.diff(t) > 0)) if t.shape == (len(X),) else None
            where = "" if i is None else f", where t[{i}] = {t[i]} and t[{i + 1}] = {t[i + 1]}"
            raise ProblemError(
                f"DMD: t must be {len(X)} ascending times, one for each row of X; got {described(t)}{where}"
            )
        self.t_ = t
        U, sizes, Vh = np.linalg.svd(X, full_matrices=False)
        theta0 = self._start(U * sizes, t - t[0], min(self._number(sizes), len(X) // 2))
        target = X if self.rank is None else (U * sizes)[:, : self.rank]
        over = {"real": sets.Box(*self.real), "imag": sets.Box(*self._imag)}
        problem = separable(self._model, ColumnChunks([target]), data=t - t[0], weights=weights)
        fit = solved(self, problem, theta0, {name: over[name] for name in theta0}, LevenbergMarquardt())
        w = np.asarray(fit.w) if self.rank is None else np.asarray(fit.w) @ Vh[: self.rank]
        self.result_, self.components_ = fit, w
        shapes, self.eigenvalues_ = self._shapes(w), self._eigenvalues(fit.theta)
        self.amplitudes_ = np.linalg.norm(shapes, axis=1)
        self.modes_ = shapes / np.where(self.amplitudes_ > 0, self.amplitudes_, 1.0)[:, None]
        self._keep(fit)
        return self

    def forecast(self, t: Any) -> np.ndarray:
        """Snapshots at times t, (n_times,), before, within or after those of the fit: (n_times, n_features)."""
        check_is_fitted(self)
        design = self._model(self.result_.theta, np.asarray(t, dtype=np.float64) - self.t_[0])
        return np.asarray(design @ self.components_)

    @property
    def stderr_(self) -> np.ndarray:
        """Standard errors of real and of imaginary parts of `eigenvalues_`, (n_modes,), complex; 0 of what is held."""
        found = self._eigenvalues(self.result_.statistics().theta_stderr)
        return found.real + 1j * np.abs(found.imag)

    def _shapes(self, w: np.ndarray) -> np.ndarray:
        """Modes with their amplitudes."""
        n = len(self.result_.theta.get("imag", ()))
        if not self.conjugate:
            return w
        upper = 0.5 * (w[:n] - 1j * w[n : 2 * n])
        return np.concatenate([np.stack([upper, upper.conj()], axis=1).reshape(2 * n, w.shape[1]), w[2 * n :]])

    def _eigenvalues(self, theta: dict[str, np.ndarray]) -> np.ndarray:
        """Complex numbers of a theta: of each pair both."""
        real, imag = theta["real"], theta.get("imag", np.zeros(0))
        if not self.conjugate:
            return real + 1j * imag
        n = len(imag)
        upper = real[:n] + 1j * imag
        return np.concatenate([np.stack([upper, upper.conj()], axis=1).ravel(), real[n:]])

    # -- parts of a fit

    @property
    def _model(self) -> Any:
        return conjugate if self.conjugate else separate

    @property
    def _imag(self) -> tuple[float, float]:
        """Bounds of the imaginary parts that are parameters."""
        return (max(self.imag[0], 0.0), self.imag[1]) if self.conjugate else self.imag

    def _check(self) -> None:
        if not (isinstance(self.n_components, float) and 0 < self.n_components < 1):
            whole(self, "n_components")
        if self.rank is not None:
            whole(self, "rank")
        for name, bounds in (("real", self.real), ("imag", self.imag)):
            wrong = np.shape(bounds) != (2,) or not bounds[0] <= bounds[1]
            if wrong or (name == "imag" and self._imag[1] < self._imag[0]):
                raise ProblemError(f"DMD: {name} must be bounds (lower, upper), of sizes for pairs; got {bounds!r}")

    def _checked(self, X: Any, reset: bool) -> np.ndarray:
        least = 2 if reset else 1
        if self.conjugate or not np.iscomplexobj(X):
            return validate_data(self, X, reset=reset, dtype=np.float64, ensure_min_samples=least)
        X = np.asarray(X)
        real = validate_data(self, X.real, reset=reset, dtype=np.float64, ensure_min_samples=least)
        return real + 1j * validate_data(self, X.imag, reset=False, dtype=np.float64)

    def _codes(self, X: np.ndarray) -> np.ndarray:
        return X @ np.linalg.pinv(self.components_)

    def _number(self, sizes: np.ndarray) -> int:
        """Of eigenvalues, from the singular values of X."""
        if isinstance(self.n_components, float):
            total = float(np.sum(sizes**2)) or 1.0
            return 1 + int(np.searchsorted(np.cumsum(sizes**2) / total, self.n_components))
        return int(self.n_components)

    def _start(self, Z: np.ndarray, t: np.ndarray, r: int) -> dict[str, np.ndarray]:
        """The best of several starts, from principal components Z, (n_samples, .)."""
        least, best = math.inf, dict[str, np.ndarray]()
        even, series = np.linspace(t[0], t[-1], len(t)), [(Z, t)]
        if not np.allclose(t, even, rtol=0.0, atol=1e-6 * even[1]):  # differences of rows near in time are noise
            series.append((np.stack([np.interp(even, t, z) for z in Z.T], axis=1), even))
        tried = (guesses(*one, r, delays) for one in series for delays in DELAYS if len(Z) - delays >= r)
        for values in chain.from_iterable(tried):
            theta = self._feasible(values, t[-1])
            E = self._model(theta, t)
            off = float(np.linalg.norm(Z - E @ np.linalg.lstsq(E, Z, rcond=None)[0]))
            if off < least or not best:
                least, best = off, theta
        return best

    def _feasible(self, values: np.ndarray, span: float) -> dict[str, np.ndarray]:
        """Parameters within their bounds; eigenvalues that would coincide there are moved apart, or made a pair."""
        (low, high), step = self._imag, math.pi / span
        real = np.clip(np.minimum(values.real, EXPONENT / span), *self.real)
        paired = (values.imag > 0) & (high > 0) if self.conjugate else np.full(len(values), True)
        a, b = real[paired], np.clip(values.imag[paired], low, high)
        alone = np.sort(real[~paired & ((values.imag == 0) | (high <= 0))])
        while len(alone) > 1 and high > 0 and (low > 0 or np.min(np.diff(alone)) < NEAR * step):
            i = int(np.argmin(np.diff(alone)))
            a, b = np.append(a, alone[i : i + 2].mean()), np.append(b, np.clip(step, low, high))
            alone = np.delete(alone, [i, i + 1])
        if low > 0 and len(alone):
            raise ProblemError(f"DMD: n_components must be even where imag has only pairs; got {self.n_components!r}")
        for x, other, (least, most) in ((b, a, (low, high)), (alone, 0 * alone, self.real)):
            for j in range(1, len(x)):
                by = step if x[j] + step <= most else -step
                while np.any(np.hypot(x[:j] - x[j], other[:j] - other[j]) < NEAR * step) and x[j] + by >= least:
                    x[j] += by
        return {"real": np.concatenate([a, alone]), **({"imag": b} if len(b) else {})}


def guesses(Z: np.ndarray, t: np.ndarray, r: int, delays: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of snapshots next to later ones, by the trapezoid rule, and as they are for even times."""
    rows = len(Z) - delays + 1
    U, sizes, _ = np.linalg.svd(np.hstack([Z[i : i + rows] for i in range(delays)]), full_matrices=False)
    H, step = (U * sizes)[:, :r], np.diff(t[:rows])
    A = np.linalg.lstsq((H[1:] + H[:-1]) / 2, np.diff(H, axis=0) / step[:, None], rcond=None)[0]
    values = np.append(np.linalg.eigvals(A), np.zeros(r - len(A))).astype(np.complex128)
    h = float(np.median(step)) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        even = np.log((1 + h * values) / (1 - h * values)) / (2 * h)
    even = np.where(values.imag == 0, even.real, even)  # one that turns by pi in a step has no partner
    return values, np.where(np.isfinite(even), even, values)
