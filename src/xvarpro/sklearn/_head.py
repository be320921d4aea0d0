"""A small network whose last layer is eliminated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state, compute_class_weight
from sklearn.utils.extmath import softmax
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from xvarpro.algorithms import choose
from xvarpro.algorithms.interface import Algorithm
from xvarpro.core.struct import Array, Tree
from xvarpro.core.trees import array_namespace
from xvarpro.driver.evaluate import project
from xvarpro.errors import ProblemError
from xvarpro.problem.problem import separable
from xvarpro.sets.region import resolve
from xvarpro.sklearn._base import nonnegative, solved, warn_unless_converged, whole
from xvarpro.sklearn._regressor import product


def features(theta: Tree, X: Array) -> Array:
    """The last hidden layer, tanh after tanh, shape (n_samples, width)."""
    xp = array_namespace(theta)
    for i in range(len(theta) // 2):
        X = xp.tanh(X @ theta[f"A{i}"] + theta[f"b{i}"])
    return X


def design(theta: Tree, X: Array) -> Array:
    """The last hidden layer and a column of ones, for the offset of the head."""
    xp = array_namespace(theta)
    hidden = features(theta, X)
    return xp.concat([hidden, xp.ones_like(hidden[:, :1])], axis=1)


def squared_layers(theta: Tree) -> Array:
    """``|A0|^2 + |A1|^2 + ...``, 0-d."""
    xp = array_namespace(theta)
    total = 0 * xp.sum(theta["A0"])
    for i in range(len(theta) // 2):
        total = total + xp.sum(theta[f"A{i}"] ** 2)
    return total


def layers(widths: tuple[int, ...], draw: np.random.RandomState) -> dict[str, np.ndarray]:
    """Gaussian layers whose outputs have about the variance of their inputs, no offsets."""
    theta = {}
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        theta[f"A{i}"] = draw.normal(size=(inputs, outputs)) / np.sqrt(inputs)
        theta[f"b{i}"] = np.zeros(outputs)
    return theta


def check_widths(owner: object, widths: Any) -> tuple[int, ...]:
    """Widths of hidden layers, as a tuple."""
    found = tuple(widths) if isinstance(widths, tuple | list) else (widths,)
    if not found or not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0 for n in found):
        raise ProblemError(f"{type(owner).__name__}: hidden must be one or more whole numbers >= 1, got {widths!r}")
    return found


@dataclass(eq=False, repr=False)
class NeuralHead(BaseEstimator):
    """Base of networks ``[h(theta, X), 1] w`` with tanh layers h, whose last layer w is solved for exactly.

    ``min 1/2 |[h(theta, X), 1] w - Y|^2 + lam/2 (n |w|^2 + s (|A0|^2 + |A1|^2 + ...))`` over w, whose last row has no
    ridge, and theta, for n samples and ``s = |Y - mean|^2``, which makes lam independent of the units of y. Without the
    ridge on the layers the valleys of the objective would have no floor: weights grow, and descent goes on and on for
    little. Columns of X should have similar sizes, about 1.

    Parameters
    ----------
    hidden : int or tuple of int
        Widths of the hidden layers, >= 1.
    lam : float
        Ridge on the head and the layers, but for offsets, per sample, >= 0. The default is nearly none for noisy data:
        search for it.
    over : tree of sets, optional
        For the layers ``A0``, ``b0``, ``A1``, ..., as in `xvarpro.solve`; they project. The others are free.
    algorithm : Algorithm, optional
        Of `xvarpro.algorithms`; None is the default, without Levenberg-Marquardt.
    tol : float
        Of the solve, relative: a training ends where a quadratic model promises less than ``tol^2`` of the objective.
    max_iter, backend, device
        As of `xvarpro.solve`; arrays in and out are NumPy's.
    random_state : int, RandomState or None
        Of the start.

    Attributes
    ----------
    theta_ : dict of arrays
        ``A0`` (n_features, hidden[0]), ``b0``, ``A1``, ...
    w_ : array, shape (hidden[-1] + 1,) or (hidden[-1] + 1, k)
        The head; its last row is the offset.
    objective_, gap_, status_, n_iter_, n_features_in_, feature_names_in_
        As those of `ConstrainedDictionary`.
    """

    hidden: int | tuple[int, ...] = (16,)
    _: KW_ONLY
    lam: float = 1e-3
    over: Any = None
    algorithm: Algorithm | None = None
    max_iter: int = 500
    tol: float = 0.1
    random_state: Any = None
    backend: Any = None
    device: Any = None

    def _fit(self, X: np.ndarray, Y: np.ndarray, **level: Any) -> None:
        whole(self, "max_iter", least=0)
        nonnegative(self, "lam", "tol")
        widths = (X.shape[1], *check_widths(self, self.hidden))
        lam = np.append(np.full(widths[-1], self.lam * len(X)), 0.0)[:, None]
        theta0 = project(layers(widths, check_random_state(self.random_state)), self.over)
        spread = float(np.sum((Y - Y.mean(axis=0)) ** 2))
        problem = separable(design, Y, data=X, lam=lam, R=squared_layers, mu=self.lam * spread, **level)
        fit = solved(self, problem, theta0, self.over, self.algorithm or self._default(theta0))
        self.theta_, self.w_, self.n_iter_ = fit.theta, np.array(fit.w), max(1, fit.n_iter)
        self.objective_, self.gap_, self.status_ = float(fit.value), float(fit.gap), fit.status
        warn_unless_converged(self, fit.status, self.gap_, self.objective_)

    def _default(self, theta0: dict[str, np.ndarray]) -> Algorithm:
        """The default without Levenberg-Marquardt, whose matrix does not know how the ridge on the layers bends."""
        region = resolve(self.over, theta0)
        size = sum(x.size for x in theta0.values())
        return choose([C for _, C in region.constrained], size, free=bool(region.free))

    def _output(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return product(design, self.theta_, self.w_, X, self.backend, self.device)

    def hidden_features(self, X: Any) -> np.ndarray:
        """The last hidden layer, shape (n_samples, hidden[-1])."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return np.asarray(features(self.theta_, X))


@final
class NeuralHeadRegressor(MultiOutputMixin, RegressorMixin, NeuralHead):
    """A network with tanh layers whose last layer is solved for exactly, for regression; see `NeuralHead`.

    Y there is y; y plus a number gives predictions plus it.

    Examples
    --------
    >>> import numpy as np
    >>> from xvarpro.sklearn import NeuralHeadRegressor
    >>> X = np.linspace(-1.0, 1.0, 80)[:, None]
    >>> y = np.sin(4 * X[:, 0])
    >>> bool(NeuralHeadRegressor(8, lam=1e-4, random_state=0).fit(X, y).score(X, y) > 0.99)
    True
    """

    def fit(self, X: Any, y: Any) -> NeuralHeadRegressor:
        """Find layers and head for X, (n_samples, n_features), and y, (n_samples,) or (n_samples, n_targets)."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self._fit(X, np.asarray(y, dtype=np.float64))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The output of the head, shape (n_samples,) or (n_samples, n_targets)."""
        return self._output(X)


def encoded(owner: object, y: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Classes, their number at each sample, and a column for each; of two classes the second alone, (n_samples,)."""
    check_classification_targets(y)
    classes, at = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ProblemError(f"{type(owner).__name__} needs two classes or more; got one class, {classes[0]}")
    Y = np.eye(len(classes))[at]
    return classes, at, Y[:, 1] if len(classes) == 2 else Y


class OfClasses(ClassifierMixin):
    """Classifiers with outputs `_output`: one for two classes, (n_samples,), else one for each."""

    def decision_function(self, X: Any) -> np.ndarray:
        """Output of the head: (n_samples,) for two classes, > 0 for the second, else (n_samples, n_classes)."""
        return self._output(X)

    def predict(self, X: Any) -> np.ndarray:
        """The class with the largest output."""
        output = self._output(X)
        return self.classes_[(output > 0).astype(int) if output.ndim == 1 else np.argmax(output, axis=1)]

    def _probabilities(self, X: Any) -> np.ndarray:
        output = self._output(X)
        return softmax(np.stack([0 * output, output], axis=1) if output.ndim == 1 else output)


@final
@dataclass(eq=False, repr=False)
class NeuralHeadClassifier(OfClasses, NeuralHead):
    """A network with tanh layers whose last layer is solved for exactly, for classification; see `NeuralHead`.

    The class with the largest output wins.

    Parameters
    ----------
    hidden : int or tuple of int
    loss : {"squares", "softmax"}
        What the head is fitted by: least squares to one-hot labels, as `sklearn.linear_model.RidgeClassifier` is, whose
        outputs are no probabilities; or the cross-entropy of classes, as `sklearn.linear_model.LogisticRegression` is.
    class_weight : dict, "balanced" or None
        Weights of classes, which multiply the loss of their samples; "balanced" gives all the same total.
    lam, over, algorithm, max_iter, tol, random_state, backend, device
        As those of `NeuralHead`.

    Attributes
    ----------
    classes_ : array
    theta_, w_, objective_, gap_, status_, n_iter_, n_features_in_, feature_names_in_
        As those of `NeuralHead`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from xvarpro.sklearn import NeuralHeadClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(NeuralHeadClassifier(8, random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    >>> model = NeuralHeadClassifier(8, loss="softmax", random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape
    (150, 3)
    """

    _: KW_ONLY
    loss: str = "squares"
    class_weight: Any = None

    def fit(self, X: Any, y: Any) -> NeuralHeadClassifier:
        """Find layers and head for X, (n_samples, n_features), and labels y, (n_samples,)."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        if self.loss not in ("squares", "softmax"):
            raise ProblemError(f"NeuralHeadClassifier: loss must be 'squares' or 'softmax', got {self.loss!r}")
        cross = self.loss == "softmax"
        self.classes_, at, Y = encoded(self, y)
        two = Y.ndim == 1
        if two and not cross:
            Y = 2.0 * Y - 1.0
        weights = None
        if self.class_weight is not None:
            weights = compute_class_weight(self.class_weight, classes=self.classes_, y=y)[at]
        self._fit(X, Y, weights=weights, loss=("logistic" if two else "softmax") if cross else None)
        return self

    @property
    def predict_proba(self) -> Callable[[Any], np.ndarray]:
        """Function of X: probabilities of the classes, (n_samples, n_classes); of ``loss="softmax"`` alone."""
        if self.loss != "softmax":
            raise AttributeError(
                f'predict_proba needs loss="softmax", whose outputs are probabilities; got loss={self.loss!r}'
            )
        return self._probabilities
