"""A sparse autoencoder that selects its latent dimensions, the paper's Example 1: the linear decoder is eliminated.

``min over s >= 0, sum s <= rho, phi of 1/2 |M_U(s, phi) W - X_U|^2 + mu/2 |s|^2``, where W minimises
``1/2 |M_L(s, phi) W - X_L|^2 + lam/2 |W|^2`` and ``M(s, phi) = E_phi(X) diag(s)``: images are rows, the latents of an
image a row of M, and W has a column for every pixel. Half of the paper's objective, with its mu = 1e-5. The ridge lam
is ours: without one only the span of the latents counts, the data term does not depend on s > 0 and jumps where an
entry reaches 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro import Problem
from xvarpro.errors import ProblemError
from xvarpro_experiments.autoencoder.data import Data
from xvarpro_experiments.checks import generator, positive
from xvarpro_experiments.trees import Array, Tree

MU = 1e-5  # the paper's lambda on |s|^2
RIDGE = 1e-8  # of the decoder, per image of the level
RHO = 1.0
ACTIVE = 1e-3  # of the largest s_i: what is larger counts as an active latent
GAIN = 0.1  # of the first layer: the start is in the range where tanh is nearly linear, and every method ends lower


def encode(phi: Sequence[dict[str, Array]], X: Array, scale: float = 1.0) -> Array:
    """Latents ``E_phi(scale X)``, one tanh layer after the other."""
    xp = xv.array_namespace(X)
    first, *rest = phi
    h = xp.tanh(scale * (X @ first["A"]) + first["b"])
    for layer in rest:
        h = xp.tanh(h @ layer["A"] + layer["b"])
    return h


def design(theta: Tree, data: Any) -> Array:
    """``M = E_phi(X) diag(s)`` of one set of images, ``data = {"X": images, "scale": number}``."""
    return encode(theta["phi"], data["X"], data["scale"]) * theta["s"]


def lower_design(theta: Tree, data: Any) -> Array:
    """The design of the images that the decoder is fitted to."""
    return design(theta, data["lower"])


def upper_design(theta: Tree, data: Any) -> Array:
    """The design of the images of the upper level."""
    return design(theta, data["upper"])


def penalty(theta: Tree) -> Array:
    """``|s|^2``."""
    return xv.array_namespace(theta["s"]).sum(theta["s"] ** 2)


def problem(
    X: Array, ridge: float = RIDGE, mu: float = MU, splits: int = 2, scale: float = 1.0, rows: int | None = None
) -> Problem:
    """The autoencoder of images X.

    Parameters
    ----------
    X : array, shape (images, pixels)
        Best centred: the decoder has no offset.
    ridge : float
        On the decoder, per image that it is fitted to: ``lam = ridge * images``; > 0.
    mu : float
        Of ``mu/2 |s|^2``, >= 0.
    splits : int
        2 for the paper's two levels, the first half of the images below and the rest above; 1 for one level with all.
    scale : float
        What the encoder multiplies the pixels by, > 0.
    rows : int, optional
        Images at a time, where not all latents fit in memory at once: the levels are then `xvarpro.RowChunks`.

    Examples
    --------
    >>> import numpy as np, xvarpro as xv
    >>> from xvarpro_experiments import autoencoder
    >>> X = np.random.default_rng(0).normal(size=(40, 6))
    >>> theta0 = autoencoder.start(6, [4, 3])
    >>> fit = xv.solve(autoencoder.problem(X, ridge=1e-4), theta0, over=autoencoder.over(), max_iter=30)
    >>> bool(fit.value < fit.trace.value[0]), bool(fit.theta["s"].sum() <= 1 + 1e-12)
    (True, True)
    """
    if not 0 < ridge < math.inf:
        raise ProblemError(
            f"ridge must be a finite number > 0, got {ridge}: without one the data term does not depend on s"
        )
    positive(scale=scale)
    if splits not in (1, 2):
        raise ProblemError(f"splits must be 1 or 2, got {splits!r}")
    if X.ndim != 2 or X.shape[0] < splits:
        raise ProblemError(f"X must have shape (images, pixels) with an image for every split, got {tuple(X.shape)}")
    half = X.shape[0] // splits
    parts = {"lower": X[:half, :]} | ({"upper": X[half:, :]} if splits == 2 else {})
    lam = ridge * half
    if rows is not None:
        stated: Tree = {
            name: xv.RowChunks.cut({"X": part, "scale": scale}, part, rows=min(rows, part.shape[0]))
            for name, part in parts.items()
        }
        lower, upper, data = design, design, None
    else:
        stated, lower, upper = parts, lower_design, upper_design
        data = {name: {"X": part, "scale": scale} for name, part in parts.items()}
    if splits == 1:
        return xv.separable(lower, stated["lower"], data=data, lam=lam, R=penalty, mu=mu, compress=False)
    return xv.bilevel(
        lower=xv.Level(lower, stated["lower"], lam=lam),
        upper=xv.Level(upper, stated["upper"]),
        data=data,
        R=penalty,
        mu=mu,
        compress=False,
    )


def over(rho: float = RHO) -> dict[str, Any]:
    """The feasible set: s in ``{s >= 0, sum s <= rho}``, phi free."""
    return {"s": xv.sets.CappedSimplex(rho)}


def start(
    pixels: int, widths: Sequence[int], seed: int = 0, rho: float = RHO, gain: float = GAIN, dtype: str = "float64"
) -> dict[str, Any]:
    """Gaussian layers, no offsets, every latent with the same share of rho; drawn with NumPy.

    Weights have the standard deviation ``1/sqrt(inputs)``, in the first layer `gain` > 0 times that. Of the `widths`
    of layers, each >= 1, the last one is that of the latents.
    """
    sizes = [pixels, *widths]
    if not widths or min(sizes) < 1:
        raise ProblemError(f"pixels and widths must be whole numbers >= 1, got {pixels} and {list(widths)}")
    positive(rho=rho, gain=gain)
    rng = generator(seed)
    phi = [
        {"A": (rng.normal(size=(n, m)) / math.sqrt(n)).astype(dtype), "b": np.zeros(m, dtype)}
        for n, m in itertools.pairwise(sizes)
    ]
    phi[0]["A"] *= gain
    # a sum that rounding carries past rho is infeasible
    s = np.full(widths[-1], rho / widths[-1])
    return {"phi": phi, "s": np.asarray(xv.sets.CappedSimplex(rho).project(s)).astype(dtype)}


def reconstruct(theta: Tree, w: Array, X: Array, scale: float = 1.0) -> Array:
    """``E_phi(X) diag(s) W``."""
    return design(theta, {"X": X, "scale": scale}) @ w


def active(theta: Tree) -> int:
    """Number of latents with ``s_i > ACTIVE max s``."""
    return int(np.count_nonzero(theta["s"] > ACTIVE * np.max(theta["s"])))


def reconstruction_loss(theta: Tree, w: np.ndarray, data: Data, units: float = 1.0) -> float:
    """Mean of ``1/2 |x - xhat|^2`` over the test images, in intensities squared."""
    X = data.test.astype(theta["s"].dtype)
    R = reconstruct(theta, w, X, 1 / data.rms) / units - X
    return 0.5 * float(np.sum(R * R)) / len(X)


def decoder(theta: Tree, data: Data, ridge: float) -> np.ndarray:
    """The W that is optimal for all training images."""
    M, X = design(theta, {"X": data.train, "scale": 1 / data.rms}), data.train
    return np.linalg.solve(M.T @ M + ridge * len(M) * np.eye(M.shape[1]), M.T @ X)


def principal_axes(X: np.ndarray) -> np.ndarray:
    """Right singular vectors of X as columns, the largest singular value first."""
    return np.linalg.eigh(X.T @ X)[1][:, ::-1]


def pca_loss(V: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Mean of ``1/2 |x - V_k V_k^T x|^2`` over the images, for each number k = 0 ... of leading columns of V."""
    captured = np.cumsum(np.mean((X @ V) ** 2, axis=0))
    whole = np.mean(np.sum(X * X, axis=1))
    return 0.5 * np.maximum(whole - np.concatenate([[0.0], captured]), 0.0)
