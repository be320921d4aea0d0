"""Ridges of several blocks that depend on theta, and an Omega of any number of rows."""

import mpmath
import numpy as np
import pytest
import torch

import xvarpro as xv
from xvarpro.errors import ProblemError
from xvarpro.lower.interface import Ridge

from .support import error, host, rng, send

T = np.linspace(0.0, 1.0, 24)
CENTRES = np.linspace(0.0, 1.0, 7)
Y = np.sin(6 * T) + 0.1 * rng(0).normal(size=24)
D1, D2 = (np.diff(np.eye(7), i, axis=0) for i in (1, 2))
DATA = {"t": T, "centres": CENTRES, "D1": D1, "D2": D2}
THETA = np.array([2.0, 0.3, -3.0, -6.0])  # a width, what bends Omega, and logarithms of ridges


def bumps(theta, data):
    xp = xv.array_namespace(theta)
    return xp.exp(-xp.exp(theta[0]) * (data["t"][:, None] - data["centres"]) ** 2)


def penalties(theta, data):
    xp = xv.array_namespace(theta)
    steps = data["D1"].shape[0]
    tilt = theta[1] * xp.arange(steps, dtype=theta.dtype)
    return [data["D2"], data["D1"] * xp.exp(xp.expand_dims(tilt, axis=1))]


def ridges(theta, data):
    return xv.array_namespace(theta).exp(theta[2:])


def some(design, rows):
    return lambda theta, data: design(theta, data)[rows, :]


def two_levels(**ridge):
    below, above = slice(0, 16), slice(16, None)
    lower = xv.Level(some(bumps, below), Y[below], **ridge)
    return xv.bilevel(lower=lower, upper=xv.Level(some(bumps, above), Y[above]), data=DATA)


def by_autograd(theta, separable):
    """The same objectives in PyTorch, whose derivatives pass through the solve of a QR."""
    theta = torch.tensor(theta, requires_grad=True)
    data = {name: torch.tensor(x) for name, x in DATA.items()}
    M, y = bumps(theta, data), torch.tensor(Y)
    rows = [torch.sqrt(s) * P for s, P in zip(ridges(theta, data), penalties(theta, data), strict=True)]
    low = slice(None) if separable else slice(0, 16)
    A = torch.cat([M[low], *rows])
    Q, R = torch.linalg.qr(A)
    w = torch.linalg.solve_triangular(R, Q[: len(y[low])].T @ y[low, None], upper=True)[:, 0]
    off = (torch.cat([M, *rows]) @ w - torch.cat([y, torch.zeros(len(A) - len(y[low]))])) if separable else None
    off = (M @ w - y)[16:] if off is None else off
    value = 0.5 * off @ off
    value.backward()
    return value.item(), theta.grad.numpy(), torch.linalg.cond(A.detach()).item()


@pytest.mark.parametrize("theta", [THETA, np.array([-2.0, 0.3, -28.0, -30.0])], ids=["good", "1e6"])
def test_value_and_gradient_are_those_of_autograd(theta, backend):
    for separable in (True, False):
        ridge = {"lam": ridges, "Omega": penalties}
        problem = xv.separable(bumps, Y, data=DATA, **ridge) if separable else two_levels(**ridge)
        value, gradient = xv.value_and_gradient(problem, theta, backend=backend.name)
        want, slope, condition = by_autograd(theta, separable)
        bound = 100 * np.finfo(float).eps * condition
        assert abs(float(value) - want) <= bound * max(want, 1.0)
        assert error(host(gradient), slope) <= bound


@pytest.mark.parametrize(
    ("level", "bound"),
    [
        ({"solver": xv.lower.QR()}, 1e-11),
        ({"solver": xv.lower.SVD()}, 1e-11),
        ({"solver": xv.lower.LSMR()}, 1e-6),
        ({"W": xv.lower.Nonnegative()}, 1e-11),
        ({"loss": xv.losses.Huber(0.1)}, 1e-6),
    ],
    ids=["QR", "SVD", "LSMR", "nonnegative", "Huber"],
)
def test_a_constant_ridge_may_be_a_function_or_blocks(level, bound):
    """Against the rows of both blocks as one square Omega with the same form."""
    numbers = np.array([0.3, 0.02])
    root = np.linalg.cholesky(0.3 * D2.T @ D2 + 0.02 * D1.T @ D1 + 0.1 * np.eye(7)).T
    given = [
        {"lam": 1.0, "Omega": root},
        {"lam": [*numbers, 0.1], "Omega": [D2, D1, np.eye(7)]},
        {
            "lam": lambda theta, data: xv.array_namespace(theta).asarray([*numbers, 0.1]) + 0 * theta[0],
            "Omega": lambda theta, data: [data["D2"], data["D1"], np.eye(7)],
        },
    ]
    found = [xv.value_and_gradient(two_levels(**ridge, **level), THETA[:1]) for ridge in given]
    for value, gradient in found[1:]:
        assert error(value, found[0][0]) < bound
        assert error(gradient, found[0][1]) < bound


def test_an_omega_without_a_row_for_the_mean_is_flat_on_straight_lines():
    line = 3.0 - 2.0 * T

    def hats(theta, data):  # linear splines
        xp = xv.array_namespace(theta)
        away = 6 * xp.abs(data["t"][:, None] - data["centres"])
        return xp.where(away < 1, 1 - away, 0 * away) * theta[0]

    fit = xv.solve(xv.separable(hats, line, data=DATA, lam=1e6, Omega=D2), np.ones(1), over=xv.sets.Box(1.0, 1.0))
    assert error(fit.w, 3.0 - 2.0 * CENTRES) < 1e-9


def test_what_is_not_supported_is_said():
    few = xv.separable(some(bumps, slice(0, 1)), Y[:1], data=DATA, lam=1.0, Omega=D2)
    with pytest.raises(ProblemError, match=r"as many rows as unknowns; got 1 and 5 rows and 7"):
        xv.value_and_gradient(few, THETA)
    dual = xv.separable(bumps, Y, data=DATA, lam=1.0, Omega=D2, solver=xv.lower.DualQR())
    with pytest.raises(ProblemError, match=r"DualQR needs .* an Omega with an inverse"):
        xv.value_and_gradient(dual, THETA)
    moving = xv.separable(bumps, Y, data=DATA, lam=1.0, Omega=penalties)
    with pytest.raises(ProblemError, match=r"a ridge Omega that is a matrix; got a function"):
        xv.statistics.linear_theory(moving, THETA)
    for Omega in (D2, penalties):
        with pytest.raises(ProblemError, match="square Omega"):
            xv.separable(bumps, xv.RowChunks.cut(T, Y, rows=6), lam=1.0, Omega=Omega)


# -- the determinant of the prior


def exact_log_det(lam, blocks):
    """Half the log determinant of ``sum of lam_k D_k^T D_k`` on what is orthogonal to ones, in fifty digits."""
    S = sum((s * D.T * D for s, D in zip(lam, blocks, strict=True)), mpmath.zeros(7))
    B = mpmath.matrix(np.eye(7)[:, 1:].tolist()) - mpmath.matrix(np.eye(7)[:, :-1].tolist())
    return (mpmath.log(mpmath.det(B.T * S * B)) - mpmath.log(mpmath.det(B.T * B))) / 2


def test_the_determinant_of_a_sum_of_blocks_on_its_range(backend):
    """Of rows that depend on each other, with ridges from 1e-9 to 1."""
    with mpmath.workdps(50), backend.scope("float64"):
        lam, step = [1.0, 1e-9], mpmath.mpf(10) ** -20
        rows = np.repeat(lam, [5, 6])[:, None]
        ridge = Ridge(send(backend, rows), send(backend, np.concatenate([D2, D1])))
        value, by_lam, by_Omega, _ = ridge.log_det(backend)
        blocks = [mpmath.matrix(D.tolist()) for D in (D2, D1)]
        want = exact_log_det(lam, blocks)
        bound = 100 * np.finfo(float).eps * 1e5  # the condition of the rows on their range is less
        assert abs(float(value) - float(want)) < bound
        for k, own in enumerate((slice(0, 5), slice(5, 11))):
            moved = [s * (1 + step * (i == k)) for i, s in enumerate(lam)]
            slope = float((exact_log_det(moved, blocks) - want) / step)
            assert abs(np.sum((rows * host(by_lam))[own]) - slope) < bound
        E = rng(3).normal(size=(5, 6)) @ D1
        moved = [blocks[0] + step * mpmath.matrix(E.tolist()), blocks[1]]
        slope = float((exact_log_det(lam, moved) - want) / step)
        assert abs(np.sum(host(by_Omega)[:5] * E) - slope) < bound * abs(E).max()
