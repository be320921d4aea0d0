"""Where factorisations start from."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.extmath import randomized_svd

from xvarpro.sklearn._sweeps import Atoms


def samples(X: np.ndarray, n: int, atoms: Atoms, draw: np.random.RandomState) -> Any:
    """Samples, with a little noise, where they are in the set; random points of one that does not project.

    X is (n_features, n_samples), the dictionary (n_features, n).
    """
    m, k = X.shape
    size = np.sqrt(np.mean(X**2)) or 1.0
    D = X[:, draw.choice(k, n, replace=n > k)] + 0.01 * size * draw.normal(size=(m, n))
    if not atoms.C.has_projection:
        return atoms.dictionary(atoms.C.random_point(atoms.points(D), draw.randint(2**31 - 1)), D)
    # as long as the set is wide: shorter ones would be inside of it
    span = atoms.over.diameter(D.ravel() if atoms.shared else D)
    if np.isfinite(span):
        D *= span / (np.linalg.norm(D) if atoms.together else np.sqrt(n) * np.linalg.norm(D, axis=0))
    if atoms.together:  # a ball shrinks to them, where a projection would take most of them away
        D /= 1.0 + float(atoms.C.violation(atoms.points(D)))
    return atoms.project(D)


def nndsvd(X: np.ndarray, n: int, draw: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Nonnegative parts of singular vectors, zeros filled with the mean of X (NNDSVDa: Boutsidis, Gallopoulos 2008).

    Shapes (m, n) and (n, k) for X of shape (m, k). Beyond the rank of X the factors are random.
    """
    m, k = X.shape
    most = min(n, m, k)
    U, s, Vt = randomized_svd(X, most, random_state=draw)
    D, W = np.zeros((m, n)), np.zeros((n, k))
    D[:, 0], W[0] = np.sqrt(s[0]) * np.abs(U[:, 0]), np.sqrt(s[0]) * np.abs(Vt[0])
    for j in range(1, most):
        parts = [(np.maximum(sign * U[:, j], 0), np.maximum(sign * Vt[j], 0)) for sign in (1, -1)]
        lengths = [(np.linalg.norm(u), np.linalg.norm(v)) for u, v in parts]
        best = int(np.argmax([a * b for a, b in lengths]))
        (u, v), (a, b) = parts[best], lengths[best]
        if a * b > 0:
            scale = np.sqrt(s[j] * a * b)
            D[:, j], W[j] = scale * u / a, scale * v / b
    fill = np.sqrt(X.mean() / n) or 1.0
    D[:, most:], W[most:] = fill * draw.uniform(size=(m, n - most)), fill * draw.uniform(size=(n - most, k))
    return np.where(1e-6 * fill > D, fill, D), np.where(1e-6 * fill > W, fill, W)
