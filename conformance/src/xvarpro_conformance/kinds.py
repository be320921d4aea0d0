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

RATES = np.array([0.75, 2.0, 4.5])
FOUR = np.array([0.5, 1.0, 1.5, 2.0])
BOX = xv.sets.Box(0.0, 10.0)


def draw(*shape: int, seed: int) -> np.ndarray:
    """Normal numbers that every precision holds."""
    return held(np.random.default_rng(seed).normal(size=shape))


T = {"lower": held(np.linspace(0.0, 2.0, 24)), "upper": held(np.linspace(0.1, 1.9, 12))}
Y = {"lower": draw(24, seed=4), "upper": draw(12, seed=5)}
MANY = {"lower": draw(24, 4, seed=6), "upper": draw(12, 4, seed=7)}
WAVY = MANY["lower"] + 1j * draw(24, 4, seed=24)
OMEGA = held(np.eye(3) + 0.3 * np.random.default_rng(8).normal(size=(3, 3)))
TURNED = OMEGA + 0.5j * draw(3, 3, seed=17)
HEAVY = np.abs(draw(24, 4, seed=9))
MISSING = np.where(np.arange(96).reshape(24, 4) % 20 == 1, 0.0, HEAVY)  # some of the second column
SEEN = np.arange(12) % 5 > 0

# -- models ------------------------------------------------------------------------------------------------------------


def at(name: str, model: Callable[..., Any]) -> Callable[..., Any]:
    """A model at a part of the data."""
    return lambda theta, data: model(theta, data[name])


def rising(theta: Array, t: Array) -> Array:
    """A target that depends on theta."""
    xp = xv.array_namespace(theta)
    return xp.sin(t * xp.sum(theta))


def swinging(theta: Array, t: Array) -> Array:
    """Another one."""
    return xv.array_namespace(theta).cos(t * theta[0])


def turning(theta: Array, t: Array) -> Array:
    """A complex one."""
    xp = xv.array_namespace(theta)
    return xp.cos(t * theta[0]) + 1j * xp.sin(t * theta[1])


def waves(theta: Array, t: Array) -> Array:
    """``exp((i theta - 1) t)``."""
    xp = xv.array_namespace(theta)
    t = xp.expand_dims(t, axis=1)
    return xp.exp(-t) * (xp.cos(t * theta) + 1j * xp.sin(t * theta))


def ridge_by_theta(theta: Array, data: Data) -> Array:
    """``exp(-theta_0)``."""
    return xv.array_namespace(theta).exp(-theta[0])


def wide(theta: Array, A: Array) -> Array:
    """A wide design of which every entry moves with theta."""
    xp = xv.array_namespace(theta)
    return xp.sin(A * xp.expand_dims(theta, axis=1))


def wide_waves(theta: Array, A: Array) -> Array:
    """A wide complex design."""
    xp = xv.array_namespace(theta)
    return xp.cos(A * theta[0]) * theta[1] + 1j * xp.sin(A * theta[0])


def dependent(theta: Array, t: Array) -> Array:
    """Two decays, and a third column that is a sum of them, another one at every theta: the null space moves."""
    xp = xv.array_namespace(theta)
    two = decays(theta[:2], t)
    return xp.concat([two, two @ xp.expand_dims(theta[1:], axis=1)], axis=1)


def orthogonal(theta: Array, t: Array) -> Array:
    """An orthonormal basis of the decays, by QR."""
    return xv.array_namespace(theta).linalg.qr(decays(theta, t))[0]


def principal(theta: Array, t: Array) -> Array:
    """Decays with singular values s in the place of which there are ``s^2 + s``."""
    U, s, Vh = xv.array_namespace(theta).linalg.svd(decays(theta, t), full_matrices=False)
    return (U * (s * s + s)) @ Vh


def still(theta: Array, A: Array) -> Array:
    """A design that theta does not move, of columns that are no constants to a compiler."""
    return A


def per_column(theta: Array, t: Array) -> xv.operators.Dense:
    """A design of decays for each right-hand side, at times of its own."""
    xp = xv.array_namespace(theta)
    return xv.operators.Dense(xp.exp(-xp.expand_dims(t, axis=2) * theta))


def periodic(theta: Array, data: object) -> xv.operators.Circulant:
    """Convolution with theta."""
    return xv.operators.Circulant(theta)


def turned_over(theta: Array, data: object) -> Array:
    """`periodic` as a matrix."""
    n = theta.shape[0]
    return xv.array_namespace(theta).stack([theta[(i - np.arange(n)) % n] for i in range(n)])


def turned_rows(theta: Array, data: object) -> Array:
    """Fewer rows than there are weights."""
    xp = xv.array_namespace(theta)
    return xp.stack([theta, xp.stack([theta[2], theta[0], theta[1]])])


def product(theta: Array, data: Data) -> xv.operators.Kronecker:
    """``A(theta) x B(theta)``: decays at two sets of times."""
    return xv.operators.Kronecker(decays(theta, data["lower"]), decays(2.0 * theta, data["upper"]))


# -- problems ----------------------------------------------------------------------------------------------------------


def one(M: Callable[..., Any] = decays, y: Any = Y["lower"], data: Any = T, **keywords: Any) -> Reference:
    """One level."""
    return Reference(xv.separable(at("lower", M), y, data=data, **keywords), RATES, BOX)


def two(
    lower: dict[str, Any],
    upper: dict[str, Any],
    data: Any = T,
    theta0: Any = RATES,
    inner: float = 1.0,
    **more: Any,
) -> Reference:
    """One level below another one."""
    lower, upper = {"M": decays, "y": Y["lower"], "lam": 0.05, **lower}, {"M": decays, "y": Y["upper"], **upper}
    below, above = (xv.Level(**{**x, "M": at(name, x["M"])}) for name, x in (("lower", lower), ("upper", upper)))
    return Reference(xv.bilevel(lower=below, upper=above, data=data, **more), theta0, BOX, inner=inner)


def chunks(name: str, y: Any, rows: int) -> xv.RowChunks:
    """The rows of a level in chunks."""
    return xv.RowChunks.cut(T[name], y, rows=rows)


def streamed() -> Reference:
    """One level whose rows come in chunks of 7, the last of fewer."""
    rows = chunks("lower", MANY["lower"], 7)
    return Reference(xv.separable(decays, rows, lam=0.1, Omega=OMEGA, R=energy, mu=0.02), RATES, BOX)


def streamed_levels() -> Reference:
    """Two levels in chunks of rows, with targets that depend on theta, the upper one with a ridge."""
    problem = xv.bilevel(
        lower=xv.Level(decays, chunks("lower", swinging, 10), lam=0.1),
        upper=xv.Level(decays, chunks("upper", Y["upper"], 5), lam=0.2, Omega=OMEGA),
    )
    return Reference(problem, RATES, BOX)


def circulant() -> Reference:
    """A circulant design, solved by division of spectra."""
    theta = draw(12, seed=14)
    problem = xv.separable(periodic, MANY["upper"], lam=0.1)
    return Reference(problem, held(0.9 * theta / np.linalg.norm(theta)), xv.sets.L2Ball(1.0), turned_over)


def kronecker() -> Reference:
    """A Kronecker product of two moving factors at two sets of times."""
    times = {name: t[::4] for name, t in T.items()}
    return Reference(xv.separable(product, draw(18, seed=15), data=times, lam=0.05), RATES[:2], BOX)


def _ridges() -> tuple[np.ndarray, np.ndarray]:
    """One for each weight and right-hand side, some of them 0; one for each weight."""
    below = np.abs(draw(3, 4, seed=34))
    below[1, ::2] = 0.0
    return below, held(np.array([[0.4], [0.0], [0.1]]))


INNER = float(np.linalg.cond(np.asarray(decays(RATES, T["lower"]))))  # of what two models factorise themselves
WIDE = {"lower": draw(4, 12, seed=12), "upper": draw(6, 12, seed=13)}
TINY = {"lower": draw(3, 7, seed=28), "upper": draw(5, 7, seed=29)}
BELOW, ABOVE = {"M": wide, "y": Y["lower"][:4]}, {"M": rising, "y": Y["upper"][:6]}
TILTED = held(np.eye(7) + 0.25 * draw(7, 7, seed=25) + 0.5j * draw(7, 7, seed=26))
LOWER, UPPER = xv.lower, {"y": MANY["upper"]}

# by what of them is out of the ordinary; those of `COMPILED` are compiled, where problems are
KINDS: dict[str, Callable[[], Reference]] = {
    # a penalty, a target that depends on theta, ridges with an Omega, ridges that theta chooses
    "smoothed": lambda: one(y=at("lower", rising), lam=0.1, Omega=OMEGA, R=energy, mu=0.02),
    "chosen_ridge": lambda: two({"lam": ridge_by_theta, "Omega": OMEGA}, {}),
    "own_ridge": lambda: one(lam=ridge_by_theta, Omega=OMEGA),
    "two_chosen_ridges": lambda: two({"lam": ridge_by_theta}, {"lam": ridge_by_theta, "Omega": OMEGA}),
    "ridge_of_blocks": lambda: one(lam=[0.25, 0.125], Omega=[OMEGA[:2], OMEGA]),
    "moving_omega": lambda: two({"lam": ridge_by_theta, "Omega": turned_rows}, {"Omega": OMEGA[:1], "lam": 0.2}),
    "unequal_splits": lambda: two({}, {}),
    "two_ridges": lambda: two(
        {"y": at("lower", rising), "Omega": OMEGA}, {"y": at("upper", swinging), "lam": 0.4}, R=energy, mu=0.02
    ),
    "ridges_of_arrays": lambda: two(
        {"y": MANY["lower"], "lam": _ridges()[0], "Omega": OMEGA}, {**UPPER, "lam": _ridges()[1], "Omega": OMEGA.T}
    ),
    # weights by row and by entry, which give a design to each right-hand side, and what is missing
    "weighted": lambda: one(y=np.where(MISSING > 0, MANY["lower"], np.nan), lam=0.1, weights=MISSING),
    "heavy_rows": lambda: two(
        {"y": at("lower", rising), "weights": HEAVY[:, 0]},
        {"y": np.where(SEEN, Y["upper"], np.nan), "weights": SEEN, "lam": 0.2},
    ),
    "heavy_levels": lambda: two({"y": MANY["lower"], "weights": HEAVY}, {**UPPER, "weights": HEAVY[:12]}),
    "own_designs": lambda: two(
        {"M": per_column, "y": MANY["lower"]},
        {"M": per_column, **UPPER},
        data={"lower": np.abs(draw(4, 24, seed=32)), "upper": np.abs(draw(4, 12, seed=33))},
    ),
    # w in sets, where some of it is at a bound, and with an l1 penalty, which is part of the objective
    "nonnegative": lambda: one(y=MANY["lower"], lam=0.1, W=LOWER.Nonnegative()),
    "bounded": lambda: two({"y": MANY["lower"], "W": LOWER.Bounded(-0.25, 0.5)}, UPPER),
    "bounded_entries": lambda: two(
        {"y": np.where(MISSING > 0, MANY["lower"], np.nan), "weights": MISSING, "W": LOWER.Bounded(-0.25, 0.5)}, UPPER
    ),
    "mixtures": lambda: one(y=MANY["lower"], weights=HEAVY, W=LOWER.Simplex(0.5)),
    "mixtures_below": lambda: two({"y": MANY["lower"], "W": LOWER.Simplex(0.5)}, UPPER),
    "sparse": lambda: one(y=MANY["lower"], lam=0.1, W=LOWER.L1(0.5)),
    "sparse_below": lambda: two({"y": MANY["lower"], "W": LOWER.L1(0.3, nonnegative=True)}, UPPER),
    "tied": lambda: two({"y": MANY["lower"], "W": LOWER.Equality(draw(1, 3, seed=21), draw(1, 4, seed=22))}, UPPER),
    "on_a_plane": lambda: one(lam=0.1, W=LOWER.Affine(held(np.full(3, 1 / 3)), draw(3, 2, seed=10))),
    # complex designs and targets
    "complex_waves": lambda: one(waves, WAVY[:, 0], lam=0.1),
    "complex_entries": lambda: one(waves, WAVY, lam=0.1, weights=HEAVY),
    "complex_target": lambda: two(
        {"M": waves, "y": at("lower", turning), "lam": 0.1, "Omega": TURNED},
        {"M": waves, "y": at("upper", swinging), "lam": 0.2, "Omega": OMEGA},
    ),
    "one_complex_target": lambda: one(
        waves, at("lower", turning), lam=ridge_by_theta, Omega=TURNED, weights=HEAVY[:, 0], R=energy, mu=0.02
    ),
    "real_target": lambda: one(waves, at("lower", rising), lam=0.1),
    "real_weights": lambda: one(waves, WAVY, lam=0.1, W=LOWER.Nonnegative()),
    # wide levels, in the dual form
    "wide_levels": lambda: two({**BELOW, "lam": 0.1}, {**ABOVE, "lam": 0.2}, WIDE, FOUR),
    "chosen_wide_ridge": lambda: two(
        {**BELOW, "lam": ridge_by_theta, "Omega": np.eye(12) - 0.5 * np.eye(12, k=1)}, ABOVE, WIDE, FOUR
    ),
    "complex_wide": lambda: two(
        {"M": wide_waves, "y": WAVY[:3], "lam": 0.1, "Omega": TILTED},
        {"M": wide_waves, "y": MANY["upper"][:5] + 0.5j},
        TINY,
        FOUR[:2],
    ),
    # designs that are factors of another, that do not move, without full rank, in chunks, and of a structure
    "rank_deficient": lambda: two({"M": dependent, "lam": 0.0, "solver": LOWER.SVD()}, {}),
    "by_qr": lambda: two({"M": orthogonal}, {}, inner=INNER),
    "by_svd": lambda: two({"M": principal}, {}, inner=INNER),
    "still_design": lambda: two(
        {"M": still, "y": at("times", rising), "lam": 0.1},
        {"y": at("upper", swinging)},
        {"lower": draw(24, 3, seed=31), "times": T["lower"], "upper": T["upper"]},
    ),
    "streamed": streamed,
    "streamed_levels": streamed_levels,
    "in_columns": lambda: one(y=xv.ColumnChunks([draw(24, 17, seed=34), draw(24, 13, seed=35)]), lam=0.1),
    "circulant": circulant,
    "kronecker": kronecker,
}

COMPILED = (
    "smoothed", "chosen_ridge", "weighted", "nonnegative", "on_a_plane", "two_ridges", "complex_waves", "wide_levels",
    "circulant", "kronecker", "complex_target", "own_designs", "streamed_levels", "in_columns",
)  # fmt: skip


@cache
def every() -> dict[str, Callable[[], Reference]]:
    """All of them by name, and those that whole solves run on."""
    return {make.__name__: make for make in problems.ALL} | KINDS
