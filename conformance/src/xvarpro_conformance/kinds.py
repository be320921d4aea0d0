"""A problem of every kind, of few shapes, which compile."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import xvarpro as xv
from xvarpro.core.struct import Array
from xvarpro_conformance import problems
from xvarpro_conformance.problems import Data, Reference, decays, energy, held
from xvarpro_conformance.suite import named

RATES = np.array([0.75, 2.0, 4.5])
BOX = xv.sets.Box(0.0, 10.0)


def draw(*shape: int, seed: int) -> np.ndarray:
    """Normal numbers that every precision holds."""
    return held(np.random.default_rng(seed).normal(size=shape))


T = {"lower": held(np.linspace(0.0, 2.0, 24)), "upper": held(np.linspace(0.1, 1.9, 12))}
Y = {"lower": draw(24, seed=4), "upper": draw(12, seed=5)}
MANY = {"lower": draw(24, 4, seed=6), "upper": draw(12, 4, seed=7)}
OMEGA = held(np.eye(3) + 0.3 * np.random.default_rng(8).normal(size=(3, 3)))
TURNED = OMEGA + 0.5j * draw(3, 3, seed=17)
HEAVY = np.abs(draw(24, seed=18))


def lower_decays(theta: Array, data: Data) -> Array:
    """Decays at the times of the lower level."""
    return decays(theta, data["lower"])


def upper_decays(theta: Array, data: Data) -> Array:
    """Decays at the times of the upper level."""
    return decays(theta, data["upper"])


def moving(theta: Array, data: Data) -> Array:
    """A target that depends on theta."""
    xp = xv.array_namespace(theta)
    return xp.sin(data["lower"] * xp.sum(theta))


def moving_above(theta: Array, data: Data) -> Array:
    """Another one, of the upper level."""
    xp = xv.array_namespace(theta)
    return xp.cos(data["upper"] * theta[0])


def _separable(y: np.ndarray | Callable[..., Array] = Y["lower"], **keywords: Any) -> Reference:
    return Reference(xv.separable(lower_decays, y, data=T, **keywords), RATES, BOX)


def _bilevel(lower: dict[str, Any], upper: dict[str, Any], **keywords: Any) -> Reference:
    below = xv.Level(lower_decays, **{"y": Y["lower"], "lam": 0.05, **lower})
    above = xv.Level(upper_decays, **{"y": Y["upper"], **upper})
    return Reference(xv.bilevel(lower=below, upper=above, data=T, **keywords), RATES, BOX)


def smoothed() -> Reference:
    """A ridge with an Omega, a penalty on theta, a target that depends on theta."""
    return _separable(moving, lam=0.1, Omega=OMEGA, R=energy, mu=0.02)


def ridge_by_theta(theta: Array, data: Data) -> Array:
    """``exp(-theta_0)``."""
    return xv.array_namespace(theta).exp(-theta[0])


def chosen_ridge() -> Reference:
    """Two levels, of which the upper one chooses the ridge, with an Omega."""
    return _bilevel({"lam": ridge_by_theta, "Omega": OMEGA}, {})


def own_ridge() -> Reference:
    """One level that chooses its ridge, with an Omega."""
    return _separable(lam=ridge_by_theta, Omega=OMEGA)


def two_chosen_ridges() -> Reference:
    """Each level with a ridge by theta, the upper one with an Omega."""
    return _bilevel({"lam": ridge_by_theta}, {"lam": ridge_by_theta, "Omega": OMEGA})


def weighted() -> Reference:
    """A weight for every entry of the target, and entries that are missing."""
    weights = np.abs(draw(24, 4, seed=9))
    weights[::5, 1] = 0.0
    y = np.where(weights > 0, MANY["lower"], np.nan)
    return _separable(y, lam=0.1, weights=weights)


def heavy_rows() -> Reference:
    """A weight for every row, of a target that depends on theta; a mask above, where what is missing is NaN."""
    seen = np.arange(12) % 5 > 0
    return _bilevel(
        {"y": moving, "weights": HEAVY}, {"y": np.where(seen, Y["upper"], np.nan), "weights": seen, "lam": 0.2}
    )


def heavy_levels() -> Reference:
    """Weights by entry in both levels: a design for each right-hand side."""
    below, above = np.abs(draw(24, 4, seed=19)), np.abs(draw(12, 4, seed=20))
    return _bilevel({"y": MANY["lower"], "weights": below}, {"y": MANY["upper"], "weights": above})


def nonnegative() -> Reference:
    """``w >= 0``, active in some columns."""
    return _separable(MANY["lower"], lam=0.1, W=xv.lower.Nonnegative())


def bounded() -> Reference:
    """Weights between bounds below another level: some at either bound, some free."""
    return _bilevel({"y": MANY["lower"], "W": xv.lower.Bounded(-0.25, 0.5)}, {"y": MANY["upper"]})


def bounded_entries() -> Reference:
    """Weights between bounds with a design for each right-hand side, below another level: entries are missing."""
    heavy = np.abs(draw(24, 4, seed=23))
    heavy[::5, 1] = 0.0
    y = np.where(heavy > 0, MANY["lower"], np.nan)
    return _bilevel({"y": y, "weights": heavy, "W": xv.lower.Bounded(-0.25, 0.5)}, {"y": MANY["upper"]})


def mixtures() -> Reference:
    """Weights on a simplex, many of them 0, with a design for each right-hand side: entries have weights."""
    heavy = np.abs(draw(24, 4, seed=24))
    return _separable(MANY["lower"], weights=heavy, W=xv.lower.Simplex(0.5))


def mixtures_below() -> Reference:
    """Weights on a simplex below another level."""
    return _bilevel({"y": MANY["lower"], "W": xv.lower.Simplex(0.5)}, {"y": MANY["upper"]})


def sparse() -> Reference:
    """Weights with an l1 penalty, which is part of the objective; some are 0."""
    return _separable(MANY["lower"], lam=0.1, W=xv.lower.L1(0.5))


def sparse_below() -> Reference:
    """Nonnegative weights with an l1 penalty below another level, which has none."""
    return _bilevel({"y": MANY["lower"], "W": xv.lower.L1(0.3, nonnegative=True)}, {"y": MANY["upper"]})


def tied() -> Reference:
    """Weights with equations between them, for each right-hand side others, below another level."""
    W = xv.lower.Equality(draw(1, 3, seed=21), draw(1, 4, seed=22))
    return _bilevel({"y": MANY["lower"], "W": W}, {"y": MANY["upper"]})


def on_a_plane() -> Reference:
    """W in an affine subspace, the paper's section 3.3."""
    return _separable(lam=0.1, W=xv.lower.Affine(held(np.full(3, 1 / 3)), draw(3, 2, seed=10)))


def unequal_splits() -> Reference:
    """Two levels of different heights; the upper one has no ridge."""
    return _bilevel({}, {})


def two_ridges() -> Reference:
    """Two levels, each with a ridge, one with an Omega, and with targets that depend on theta; a penalty."""
    return _bilevel({"y": moving, "Omega": OMEGA}, {"y": moving_above, "lam": 0.4}, R=energy, mu=0.02)


def ridges_of_arrays() -> Reference:
    """A ridge for each weight and right-hand side, some of them 0, below one for each weight, with another Omega."""
    below, above = np.abs(draw(3, 4, seed=34)), held(np.array([[0.4], [0.0], [0.1]]))
    below[1, ::2] = 0.0
    return _bilevel(
        {"y": MANY["lower"], "lam": below, "Omega": OMEGA}, {"y": MANY["upper"], "lam": above, "Omega": OMEGA.T}
    )


def waves(theta: Array, data: Data) -> Array:
    """``exp((i omega - rate) t)`` for rates 0.5, 1, 1.5."""
    xp = xv.array_namespace(theta)
    t = xp.expand_dims(data["lower"], axis=1)
    phase = t * theta
    return xp.exp(-t * data["rates"]) * (xp.cos(phase) + 1j * xp.sin(phase))


WAVES = {**T, "rates": np.array([0.5, 1.0, 1.5])}


def waves_above(theta: Array, data: Data) -> Array:
    """The same at the times of the upper level."""
    return waves(theta, {"lower": data["upper"], "rates": data["rates"]})


def moving_wave(theta: Array, data: Data) -> Array:
    """A complex target that depends on theta."""
    xp = xv.array_namespace(theta)
    return xp.cos(data["lower"] * theta[0]) + 1j * xp.sin(data["lower"] * theta[1])


def complex_waves() -> Reference:
    """A complex design and target, real frequencies."""
    y = Y["lower"] + 1j * draw(24, seed=11)
    return Reference(xv.separable(waves, y, data=WAVES, lam=0.1), RATES, BOX)


def complex_target() -> Reference:
    """A complex target that depends on theta, in both levels, a complex Omega below, a real one above."""
    problem = xv.bilevel(
        lower=xv.Level(waves, moving_wave, lam=0.1, Omega=TURNED),
        upper=xv.Level(waves_above, moving_above, lam=0.2, Omega=OMEGA),
        data=WAVES,
    )
    return Reference(problem, RATES, BOX)


def one_complex_target() -> Reference:
    """One level with a complex target that depends on theta, its rows weighted, and a ridge by theta."""
    problem = xv.separable(
        waves, moving_wave, data=WAVES, lam=ridge_by_theta, Omega=TURNED, weights=HEAVY, R=energy, mu=0.02
    )
    return Reference(problem, RATES, BOX)


def real_target() -> Reference:
    """A complex design below a real target that depends on theta."""
    return Reference(xv.separable(waves, moving, data=WAVES, lam=0.1), RATES, BOX)


def real_weights() -> Reference:
    """A complex design and target, fitted by real weights >= 0."""
    y = MANY["lower"] + 1j * draw(24, 4, seed=23)
    return Reference(xv.separable(waves, y, data=WAVES, lam=0.1, W=xv.lower.Nonnegative()), RATES, BOX)


def complex_entries() -> Reference:
    """A complex design and target with weights by entry."""
    y, weights = MANY["lower"] + 1j * draw(24, 4, seed=24), np.abs(draw(24, 4, seed=9))
    return Reference(xv.separable(waves, y, data=WAVES, lam=0.1, weights=weights), RATES, BOX)


def wide_above(theta: Array, data: Data) -> Array:
    """The upper level of `wide_levels`."""
    xp = xv.array_namespace(theta)
    return xp.cos(data["upper"] * xp.sum(theta))


def wide_below(theta: Array, data: Data) -> Array:
    """The lower level of `wide_levels`: every entry moves with theta."""
    xp = xv.array_namespace(theta)
    return xp.sin(data["lower"] * xp.expand_dims(theta, axis=1))


def wide_levels() -> Reference:
    """A wide lower level below another design: both solves in the dual form."""
    problem = xv.bilevel(
        lower=xv.Level(wide_below, Y["lower"][:4], lam=0.1),
        upper=xv.Level(wide_above, Y["upper"][:6], lam=0.2),
        data={"lower": draw(4, 12, seed=12), "upper": draw(6, 12, seed=13)},
    )
    return Reference(problem, np.array([0.5, 1.0, 1.5, 2.0]), BOX)


def chosen_wide_ridge() -> Reference:
    """A wide lower level whose ridge, with an Omega, depends on theta: the adjoint in the dual form."""
    problem = xv.bilevel(
        lower=xv.Level(wide_below, Y["lower"][:4], lam=ridge_by_theta, Omega=np.eye(12) - 0.5 * np.eye(12, k=1)),
        upper=xv.Level(wide_above, Y["upper"][:6]),
        data={"lower": draw(4, 12, seed=12), "upper": draw(6, 12, seed=13)},
    )
    return Reference(problem, np.array([0.5, 1.0, 1.5, 2.0]), BOX)


def wide_waves(theta: Array, data: Data) -> Array:
    """A wide complex design."""
    xp = xv.array_namespace(theta)
    phase = data["lower"] * theta[0]
    return xp.cos(phase) * theta[1] + 1j * xp.sin(phase)


def wide_waves_above(theta: Array, data: Data) -> Array:
    """Another one."""
    return wide_waves(theta, {"lower": data["upper"]})


def complex_wide() -> Reference:
    """Wide complex levels with a complex Omega, in the dual form."""
    Omega = np.eye(7) + 0.25 * draw(7, 7, seed=25) + 0.5j * draw(7, 7, seed=26)
    y = MANY["lower"][:3] + 1j * draw(3, 4, seed=27)
    problem = xv.bilevel(
        lower=xv.Level(wide_waves, y, lam=0.1, Omega=held(Omega)),
        upper=xv.Level(wide_waves_above, MANY["upper"][:5] + 0.5j),
        data={"lower": draw(3, 7, seed=28), "upper": draw(5, 7, seed=29)},
    )
    return Reference(problem, np.array([0.5, 1.0]), BOX)


def dependent(theta: Array, data: Data) -> Array:
    """Two decays, and a third column that is a sum of them, another one at every theta: the null space moves."""
    xp = xv.array_namespace(theta)
    two = decays(theta[:2], data["lower"])
    return xp.concat([two, two @ xp.expand_dims(theta[1:], axis=1)], axis=1)


def rank_deficient() -> Reference:
    """A lower design without full rank at any theta, solved by the w of least norm."""
    problem = xv.bilevel(
        lower=xv.Level(dependent, Y["lower"], solver=xv.lower.SVD()),
        upper=xv.Level(upper_decays, Y["upper"]),
        data=T,
    )
    return Reference(problem, RATES, BOX)


def orthogonal(theta: Array, data: Data) -> Array:
    """An orthonormal basis of the decays, by QR."""
    return xv.array_namespace(theta).linalg.qr(lower_decays(theta, data))[0]


def by_qr() -> Reference:
    """A design that is a factor of another one."""
    return _bilevel_of(orthogonal)


def principal(theta: Array, data: Data) -> Array:
    """Decays with singular values s in the place of which there are ``s^2 + s``."""
    xp = xv.array_namespace(theta)
    U, s, Vh = xp.linalg.svd(lower_decays(theta, data), full_matrices=False)
    return (U * (s * s + s)) @ Vh


def by_svd() -> Reference:
    """A design made of singular values and vectors."""
    return _bilevel_of(principal)


def _bilevel_of(M: Callable[..., Array]) -> Reference:
    problem = xv.bilevel(lower=xv.Level(M, Y["lower"], lam=0.05), upper=xv.Level(upper_decays, Y["upper"]), data=T)
    return Reference(problem, RATES, BOX, inner=float(np.linalg.cond(np.asarray(lower_decays(RATES, T)))))


def still(theta: Array, data: Data) -> Array:
    """A design that theta does not move, of columns that are no constants to a compiler."""
    return data["still"]


def still_design() -> Reference:
    """A constant design in both levels, under targets that depend on theta."""
    problem = xv.bilevel(
        lower=xv.Level(still, moving, lam=0.1),
        upper=xv.Level(upper_decays, moving_above),
        data={**T, "still": draw(24, 3, seed=31)},
    )
    return Reference(problem, RATES, BOX)


def per_column(theta: Array, data: Data) -> xv.operators.Dense:
    """A design of decays for each right-hand side, at times of its own."""
    xp = xv.array_namespace(theta)
    t = xp.expand_dims(data["each"], axis=2)
    return xv.operators.Dense(xp.exp(-t * theta))


def per_column_above(theta: Array, data: Data) -> xv.operators.Dense:
    """Another one for each."""
    return per_column(theta, {"each": data["above"]})


def own_designs() -> Reference:
    """A design of its own for every right-hand side, in both levels."""
    data = {"each": np.abs(draw(4, 24, seed=32)), "above": np.abs(draw(4, 12, seed=33))}
    problem = xv.bilevel(
        lower=xv.Level(per_column, MANY["lower"], lam=0.1), upper=xv.Level(per_column_above, MANY["upper"]), data=data
    )
    return Reference(problem, RATES, BOX)


def rows_at(theta: Array, t: Array) -> Array:
    """Decays at the times of a chunk."""
    return decays(theta, t)


def target_at(theta: Array, t: Array) -> Array:
    """A target that depends on theta, at the times of a chunk."""
    xp = xv.array_namespace(theta)
    return xp.cos(t * theta[0])


def streamed() -> Reference:
    """One level whose rows come in chunks of 7, the last of fewer."""
    rows = xv.RowChunks.cut(T["lower"], MANY["lower"], rows=7)
    problem = xv.separable(rows_at, rows, lam=0.1, Omega=OMEGA, R=energy, mu=0.02)
    return Reference(problem, RATES, BOX)


def streamed_levels() -> Reference:
    """Two levels in chunks of rows, with targets that depend on theta, the upper one with a ridge."""
    problem = xv.bilevel(
        lower=xv.Level(rows_at, xv.RowChunks.cut(T["lower"], target_at, rows=10), lam=0.1),
        upper=xv.Level(rows_at, xv.RowChunks.cut(T["upper"], Y["upper"], rows=5), lam=0.2, Omega=OMEGA),
    )
    return Reference(problem, RATES, BOX)


def in_columns() -> Reference:
    """A target in chunks of columns, more of them than rows."""
    y = xv.ColumnChunks([draw(24, 17, seed=34), draw(24, 13, seed=35)])
    return Reference(xv.separable(lower_decays, y, data=T, lam=0.1), RATES, BOX)


def periodic(theta: Array, data: object) -> xv.operators.Circulant:
    """Convolution with theta."""
    return xv.operators.Circulant(theta)


def circulant() -> Reference:
    """A circulant design, solved by division of spectra."""
    theta = draw(12, seed=14)
    problem = xv.separable(periodic, MANY["upper"], lam=0.1)
    return Reference(problem, held(0.9 * theta / np.linalg.norm(theta)), xv.sets.L2Ball(1.0), turned_over)


def turned_over(theta: Array, data: object) -> Array:
    """`periodic` as a matrix."""
    xp = xv.array_namespace(theta)
    n = theta.shape[0]
    return xp.stack([theta[(i - np.arange(n)) % n] for i in range(n)])


def product(theta: Array, data: Data) -> xv.operators.Kronecker:
    """``A(theta) x B(theta)``: decays at two sets of times."""
    return xv.operators.Kronecker(decays(theta, data["left"]), decays(2.0 * theta, data["right"]))


def kronecker() -> Reference:
    """A Kronecker product of two moving factors at two sets of times."""
    times = {name: held(np.linspace(0.0, end, m)) for name, end, m in (("left", 2.0, 6), ("right", 1.0, 5))}
    problem = xv.separable(product, draw(30, seed=15), data=times, lam=0.05)
    return Reference(problem, np.array([0.75, 2.5]), BOX)


KINDS = (
    smoothed, chosen_ridge, weighted, nonnegative, on_a_plane, unequal_splits, two_ridges, complex_waves, wide_levels,
    circulant, kronecker, own_ridge, two_chosen_ridges, heavy_rows, heavy_levels, bounded, tied, complex_target,
    bounded_entries, mixtures, mixtures_below, sparse, sparse_below, ridges_of_arrays,
    one_complex_target, real_target, real_weights, complex_entries, chosen_wide_ridge, complex_wide,
    rank_deficient, by_qr, by_svd, still_design, own_designs, streamed, streamed_levels, in_columns,
)  # fmt: skip

# those that are compiled, where problems are: the others differ in what is around the programs
COMPILED = (
    smoothed, chosen_ridge, weighted, nonnegative, on_a_plane, two_ridges, complex_waves, wide_levels, circulant,
    kronecker, complex_target, own_designs, streamed_levels, in_columns,
)  # fmt: skip


@cache
def every() -> dict[str, Callable[[], Reference]]:
    """All of them by name."""
    return named((*problems.ALL, *KINDS))
