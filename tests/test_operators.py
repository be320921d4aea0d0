"""Designs beyond the suite: their solvers, loss of rank, dead columns, mistakes that `dottest` finds."""

import inspect
from dataclasses import dataclass

import numpy as np
import pytest

import xvarpro as xv
from xvarpro import lower, operators
from xvarpro.core import trees
from xvarpro.driver.prepare import prepare
from xvarpro.errors import ModelError, ProblemError
from xvarpro.lower.interface import Ridge, System
from xvarpro.operators import Dense, Kronecker
from xvarpro.operators.interface import Operator

from .support import host, interpreted, rng, send

EXPORTED = [getattr(operators, name) for name in operators.__all__]
OPERATORS = [x for x in EXPORTED if inspect.isclass(x) and issubclass(x, Operator) and not inspect.isabstract(x)]
EXAMPLES = [M for kind in OPERATORS for shape in ((8, 4), (6, 6), (4, 8)) for M in kind.examples(shape)]
NUMPY = xv.backends.get("numpy")


def numbers(shape, kind, seed=0):
    draw = rng([seed, *shape])
    x = draw.normal(size=shape)
    return (x + 1j * draw.normal(size=shape) if kind.startswith("complex") else x).astype(kind)


def close(got, want, tolerance, scale=None):
    got = host(got)
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= tolerance * (np.linalg.norm(want) if scale is None else scale)


def test_structured_solvers_are_taken():
    own = {"BlockDiagonal": "Blockwise", "Kronecker": ("KroneckerSVD", "Folded"), "Diagonal": "Division",
           "LowRankPlusDiagonal": "LowRankQR", "Circulant": "FourierDivision",
           "CirculantPerColumn": "FourierDivision", "StackedCirculant": "FourierDivision"}  # fmt: skip
    for M in EXAMPLES:
        solver = type(lower.choose(M, Ridge(0.3))).__name__
        assert solver in (own.get(type(M).__name__, ("QR", "DualQR")) if M.explicit else "LSMR")


def test_a_ridge_may_be_an_array():
    for M in EXAMPLES:
        y, c = (numbers((size, M.columns or 2), "float64") for size in M.shape)
        one, other = (answers(M, lam, y, c) for lam in (0.25, np.array(0.25)))
        assert all(map(np.array_equal, one[:3], other[:3]))


def test_a_ridge_on_a_square_design_leaves_it_its_rows():
    sizes = {(3, 4): lower.DualQR(), (4, 4): lower.QR(), (5, 4): lower.QR()}
    assert {shape: lower.choose(Dense(np.ones(shape)), Ridge(1e-3)) for shape in sizes} == sizes


def test_one_part_of_a_design_that_is_not_finite_is_enough():
    def design(theta, _):
        return Kronecker(A * theta, A / (1 - theta))

    prepared = prepare(xv.separable(design, np.ones((16, 1)), lam=0.1), np.zeros(1))
    objective = prepared.assemble(prepared.problem)
    with np.errstate(all="ignore"):
        assert [bool(objective.diagnose((x,)).finite) for x in (np.zeros(1), np.ones(1))] == [True, False]


A = np.arange(1.0, 13.0).reshape(4, 3)
DYING = {  # designs of theta = (1, 0, 2), and how many of their columns are zero
    "Dense": (lambda x: Dense(A * x), 1),
    "a matrix per column": (lambda x: Dense(xv.array_namespace(x).stack([A * x, x * A[::-1]])), 1),
    "zero for one right-hand side": (lambda x: Dense(xv.array_namespace(x).stack([A * x, A + x])), 0),
    "Diagonal": (operators.Diagonal, 1),
    "Kronecker": (lambda x: Kronecker(A * x, A[:, 1:] + x[:1]), 2),
    "BlockDiagonal": (lambda x: operators.BlockDiagonal([A * x, A + x]), 1),
    "Stacked": (lambda x: operators.Stacked([A * x, A * x]), 1),
    "Sparse": (lambda x: operators.Sparse(x, np.arange(3), np.arange(3), (4, 3)), 1),
    "MatrixFree": (lambda x: operators.MatrixFree(lambda p, w: A @ (p[:, None] * w), None, (4, 3), x), 1),
    "Circulant": (lambda x: operators.Circulant(0 * x), 3),
}


@pytest.mark.parametrize("name", DYING)
@pytest.mark.filterwarnings("ignore::xvarpro.DeadUnitsWarning")
def test_zero_columns_are_counted(name):
    design, dead = DYING[name]
    theta = np.array([1.0, 0.0, 2.0])
    M = design(theta)
    y = numbers((M.shape[0], M.columns or 1), "float64")
    fit = xv.solve(xv.separable(lambda theta, _: design(theta), y, lam=0.1), theta, max_iter=0)
    assert (fit.verified.dead_units, fit.verified.units) == (dead, M.shape[1])


def answers(M, lam, y, c, backend=NUMPY):
    """What the solver that fits has to say, as NumPy arrays."""
    solver, system = lower.choose(M, Ridge(lam)), System(M, Ridge(lam))
    with backend.scope("float64"):
        factor = solver.factor(backend, system)
        w = solver.argmin(backend, system, factor, y)
        w, r = solver.refine(backend, system, factor, y, w, M.residual(w, y))
        q, pairs, *_ = solver.adjoint(backend, system, factor, c, y, w, r)
        deficient, condition, *_ = solver.diagnose(backend, system, factor, y)
        return w, r, q, pairs, bool(deficient), float(condition)


def kronecker(mA, nA, mB, nB):
    return Kronecker(numbers((mA, nA), "float64"), numbers((mB, nB), "float64", 1))


@pytest.mark.parametrize("make", [lambda: kronecker(2, 4, 3, 5), lambda: Dense(numbers((1, 6, 15), "float64"))])
def test_wide_structured_designs_lose_nothing_as_the_ridge_goes_to_zero(make):
    M = make()
    A = M.dense()[0] if M.columns else M.dense()
    y, c = numbers((6, 1), "float64", 2), numbers((M.shape[1], 1), "float64", 3)
    w, r, q, pairs, _, _ = answers(M, 1e-20, y, c)
    P = np.linalg.pinv(A)
    close(w, P @ y, 1e-12)
    close(r / -1e-20, np.linalg.solve(A @ A.T, y), 1e-11)
    close(q, P.T @ c, 1e-12)
    close(sum(s @ v.T for s, v in pairs), -np.linalg.solve(A @ A.T, y) @ (c - P @ A @ c).T, 1e-11)


def test_low_rank_plus_a_diagonal_with_zeros_and_a_tiny_ridge():
    """The scaling by the diagonal must not cost what the low rank gives back."""
    n, lam = 30, 1e-14
    U, V, d = numbers((n, 2), "float64"), numbers((n, 2), "float64", 1), 2 + numbers((n,), "float64", 2) ** 2
    d[:2] = 0
    M, w = operators.LowRankPlusDiagonal(U, d, V), numbers((n, 1), "float64", 3)
    kappa = np.linalg.cond(M.dense())
    found, *_ = answers(M, lam, M.dense() @ w, w)
    close(found, w, 1e2 * kappa * np.finfo(float).eps + 1e2 * lam * kappa**2)


ONE_BAD = np.stack([np.eye(4)[:, :2], np.ones((4, 2)), np.eye(4)[:, 2:]])
SINGULAR = {
    "Kronecker, left": Kronecker(np.ones((3, 2)), np.eye(2)),
    "Kronecker, right": Kronecker(np.eye(2), np.ones((3, 2))),
    "Kronecker, wide": Kronecker(np.ones((2, 3)), np.ones((4, 1))),
    "A x I": Kronecker(np.ones((3, 2)), None, 4),
    "one block": operators.BlockDiagonal([np.eye(3), np.ones((3, 2))]),
    "one right-hand side": Dense(ONE_BAD),
    "diagonal": operators.Diagonal(np.array([1.0, 0.0])),
    "diagonal, one right-hand side": operators.Diagonal(np.array([[1.0, 1.0], [1.0, 0.0]])),
}


@pytest.mark.parametrize("kind", SINGULAR)
def test_loss_of_rank_is_seen(kind, backend):
    M, there = SINGULAR[kind], interpreted(backend)
    k = M.columns or 2
    M = trees.map_arrays(lambda x: send(backend, x), M)
    y, c = (send(backend, np.ones((size, k))) for size in M.shape)
    assert answers(M, 0.0, y, c, there)[4]


# -- whole objectives --------------------------------------------------------------------------------------------------


def decaying(theta, data):
    xp = xv.array_namespace(theta)
    A = xp.exp(-xp.expand_dims(data["t"], axis=1) * theta)
    return A if data["copies"] is None else Kronecker(A, None, int(data["copies"].shape[0]))


def test_a_kronecker_product_is_never_formed(backend):
    """Its dense form has 10^11 entries."""
    p, t = 40_000, np.linspace(0.0, 2.0, 12)
    Y = np.exp(-np.outer(t, [1.0, 4.0])) @ rng(0).normal(size=(2, p)) + 0.01 * rng(1).normal(size=(12, p))
    start, box, method = np.array([0.6, 6.0]), xv.sets.Box(0.0, 10.0), xv.algorithms.ProjectedQuasiNewton()
    fits = []
    for y, copies in ((Y, None), (Y.reshape(-1), np.zeros(p))):
        problem = xv.separable(decaying, y, data={"t": t, "copies": copies}, compress=False)
        fits.append(xv.solve(problem, start, over=box, max_iter=3, backend=backend, algorithm=method))
    one, two = fits
    assert one.value == pytest.approx(two.value, rel=1e-10)
    close(two.theta, host(one.theta), 1e-9)
    close(np.reshape(host(two.w), (2, p)), host(one.w), 1e-8)
    assert two.verified.units == 2 * p
    assert two.verified.dead_units == 0
    assert two.verified.condition == pytest.approx(one.verified.condition, rel=1e-9)


# -- dottest -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Own(Operator):
    """A user's operator; `wrong` names the method that lies."""

    array: object = None
    wrong: str = ""

    @property
    def shape(self):
        return self.array.shape

    def matvec(self, w):
        return self.array @ w + (1 if self.wrong == "affine" else 0)

    def rmatvec(self, r):
        if self.wrong == "shape":
            return r
        adjoint = self.array.mT if self.wrong == "transpose" else trees.adjoint(self.array)
        return (-1 if self.wrong == "sign" else 1) * adjoint @ r

    def outer(self, r, w):
        return Own((-1 if self.wrong == "outer" else 1) * r @ trees.adjoint(w))

    def dense(self):
        return 2 * self.array if self.wrong == "dense" else self.array


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("affine", r"Own: rmatvec is not the adjoint of matvec.*matvec must be linear"),
        ("transpose", r"Own: rmatvec is not the adjoint of matvec.*conjugate transpose"),
        ("shape", r"Own\.rmatvec must return an array of shape \(4, 8\), got \(6, 8\)"),
        ("outer", r"Own: outer is not the gradient"),
        ("dense", r"Own: dense\(\) times w is off"),
    ],
)
def test_dottest_names_what_does_not_fit(wrong, said):
    A = numbers((6, 4), "complex128")
    operators.dottest(Own(A))
    with pytest.raises(ProblemError, match=said):
        operators.dottest(Own(A, wrong))


def averages(theta, data):
    """Its functions close over arrays of the data, and over what was made of these."""
    A, order, small = data["A"], data["order"], data["A"] < 0.0

    def forward(p, w):
        xp = xv.array_namespace(w)
        return p[0] * xp.where(small, 0.0 * A, xp.exp(A)) @ xp.take(w, order, axis=0)

    return operators.MatrixFree(forward, None, tuple(A.shape), theta)


def closed_over_theta(theta, data):
    A = theta[0] * data["A"]
    return operators.MatrixFree(lambda p, w: A @ w, lambda p, r: A.mT @ r, tuple(A.shape), theta)


DATA = {"A": numbers((8, 4), "float64"), "order": np.array([2, 0, 3, 1])}


def test_functions_of_a_design_may_close_over_data(backend):
    def dense(theta, data):
        return theta[0] * np.where(DATA["A"] < 0.0, 0.0, np.exp(DATA["A"]))[:, np.argsort(DATA["order"])]

    y, theta = numbers((8,), "float64", 1), np.array([0.7])
    value, gradient = xv.value_and_gradient(xv.separable(averages, y, data=DATA, lam=0.2), theta, backend=backend.name)
    w = np.linalg.solve(dense(theta, None).T @ dense(theta, None) + 0.2 * np.eye(4), dense(theta, None).T @ y)
    r = dense(theta, None) @ w - y
    np.testing.assert_allclose(host(value), 0.5 * r @ r + 0.1 * w @ w, rtol=1e-10)
    np.testing.assert_allclose(host(gradient), [r @ dense(theta, None) @ w / 0.7], rtol=1e-8)


def test_functions_of_a_design_may_not_close_over_theta():
    problem = xv.separable(closed_over_theta, numbers((8,), "float64", 1), data=DATA, lam=0.2)
    with pytest.raises(ModelError, match=r"MatrixFree .* depends on theta as its arguments and not close over it"):
        xv.value_and_gradient(problem, np.array([0.7]))


def test_dottest_finds_a_small_mistake_in_single_precision():
    A = numbers((6, 4), "float32")
    wrong = operators.MatrixFree(lambda p, w: p @ w, lambda p, r: 1.001 * (p.mT @ r), (6, 4), A)
    with pytest.raises(ProblemError, match="MatrixFree: rmatvec is not the adjoint"):
        operators.dottest(wrong)


def test_dottest_takes_complex_products_of_real_arrays(backend):
    a = send(backend, np.ones((3, 1)))
    operators.dottest(operators.MatrixFree(lambda p, w: 1j * p * w, lambda p, r: -1j * p * r, (3, 3), a))


def test_dottest_needs_a_framework():
    with pytest.raises(ProblemError, match="like="):
        operators.dottest(operators.MatrixFree(lambda p, w: w, lambda p, r: r, (3, 3)))
    with pytest.raises(ProblemError, match="needs an operator, got ndarray"):
        operators.dottest(np.eye(2))


def test_dottest_does_not_look_at_a_dense_form_that_is_large(monkeypatch):
    monkeypatch.setattr(operators.Diagonal, "dense", lambda self: pytest.fail("made dense"))
    operators.dottest(operators.Diagonal(np.ones(2000)))


# -- debug mode --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [1, 2])
def test_debug_finds_a_wrong_adjoint_before_the_first_step(levels, backend):
    def M(theta, A):
        return Own(A * theta, "sign")

    A, y = numbers((6, 2), "float64"), np.ones(6)
    problem = xv.separable(M, y, data=A, lam=1.0)
    if levels == 2:
        right = xv.Level(lambda theta, A: A * theta, y, lam=1.0)
        problem = xv.bilevel(lower=right, upper=xv.Level(M, y), data=A)
    with pytest.raises(ProblemError, match="Own: rmatvec"):
        xv.solve(problem, np.array([1.0]), max_iter=1, debug=True, backend=backend.name)


def test_debug_passes_what_is_right(backend):
    problem = xv.separable(lambda theta, A: Dense(A * theta), np.ones(6), data=numbers((6, 2), "float64"), lam=1.0)
    fits = [xv.solve(problem, np.array([1.0]), max_iter=3, debug=d, backend=backend.name) for d in (True, False)]
    assert fits[0].value == fits[1].value
