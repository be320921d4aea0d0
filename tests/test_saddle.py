"""The curvature of an objective from differences of its gradient, against quadratic functions."""

import numpy as np
import pytest

from xvarpro.driver.restarts import STEPS, curvature

from .support import rng

EPS = 1e-9  # differences are then taken at a thousandth of the size of theta


class Quadratic:
    """The gradient ``H x + b``; points where it is asked for are kept."""

    def __init__(self, H, b=0.0):
        self.H, self.b = np.asarray(H, dtype=np.float64), b
        self.asked = []

    def __call__(self, step):
        self.asked.append(step)
        return self.H @ step + self.b


def spd(eigenvalues, seed=0):
    Q = np.linalg.qr(rng(seed).normal(size=(len(eigenvalues),) * 2))[0]
    return (Q * eigenvalues) @ Q.T


@pytest.mark.parametrize("size", [1, 4, STEPS])
def test_the_curvature_of_a_quadratic_is_known_from_its_gradients(size):
    """In units of each entry: what is left, the slope, and where it bends down the steps that follow it."""
    draw = rng(size)
    A, g, scale = draw.normal(size=(size, size)), draw.normal(size=size), draw.uniform(0.5, 2.0, size)
    H = A @ A.T + np.eye(size)
    found = curvature(Quadratic(H, g), scale, EPS)
    assert found.steps == []
    assert found.slope == pytest.approx(np.linalg.norm(scale * g), rel=1e-12)
    assert found.left == pytest.approx(0.5 * g @ np.linalg.solve(H, g), rel=1e-8)
    np.testing.assert_allclose(found.step, -np.linalg.solve(H, g), rtol=1e-6)
    vectors = np.linalg.eigh(-H * np.outer(scale, scale))[1]
    found = curvature(Quadratic(-H, g), scale, EPS)
    assert found.left == np.inf
    down = scale * vectors[:, 0]
    want = [sign * 0.25**j * 0.5 for j in range(5) for sign in (1, -1)]
    assert [d @ down / (down @ down) for d in found.steps] in (
        pytest.approx(want, rel=1e-8),
        pytest.approx([-x for x in want], rel=1e-8),
    )


def test_differences_are_taken_at_a_step_of_the_size_of_theta():
    f, sizes = Quadratic(spd([1.0, 2.0, 3.0]), np.ones(3)), np.array([0.5, 1.0, 3.0])
    curvature(f, sizes, EPS)
    start, *steps = f.asked
    assert (start == 0).all()
    assert [np.linalg.norm(step / sizes) for step in steps] == pytest.approx([1e-3] * 3, rel=1e-6)


@pytest.mark.parametrize(
    ("bend", "goes_down", "promises"),
    [(-1.5e-3, True, False), (-7e-4, False, False), (0.0, False, False), (7e-4, False, False), (1.5e-3, False, True)],
)
@pytest.mark.parametrize("unit", [1.0, 1e4])
def test_a_bend_within_the_error_of_differences_says_nothing(unit, bend, goes_down, promises):
    H = unit * np.diag([1.0, 0.3, bend])
    found = curvature(Quadratic(H, np.ones(3)), np.ones(3), EPS)
    assert bool(found.steps) is goes_down
    assert (found.left < np.inf) is promises
    assert found.slope == pytest.approx(np.sqrt(3.0))


@pytest.mark.parametrize("bends", [[-1.0, -0.3, -1e-4], [-1.0, 0.3, 1e-4], [-1.0, -0.9, 0.9]])
def test_a_bend_down_is_none_of_noise_where_it_is_the_largest(bends):
    assert len(curvature(Quadratic(np.diag(bends), np.ones(3)), np.ones(3), EPS).steps) == 10


@pytest.mark.parametrize(("p", "products", "promises"), [(STEPS, STEPS, True), (STEPS + 1, STEPS, False)])
def test_a_few_products_with_the_hessian_are_all_of_it(p, products, promises):
    H = spd(np.linspace(1.0, 4.0, p))
    f = Quadratic(H, np.ones(p))
    found = curvature(f, np.ones(p), EPS)
    assert len(f.asked) == 1 + products
    want = 0.5 * np.ones(p) @ np.linalg.solve(H, np.ones(p)) if promises else np.inf
    assert found.left == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize(("apart", "products"), [(0.0, 1), (1e-4, 1), (1e-1, 2)])
@pytest.mark.parametrize("unit", [1.0, 1e4])
def test_directions_that_differences_cannot_tell_apart_are_not_asked(unit, apart, products):
    f = Quadratic(unit * np.diag([1.0, 1.0, 1.0 + apart]), np.ones(3))
    found = curvature(f, np.ones(3), EPS)
    assert len(f.asked) == 1 + products
    want = 0.5 / unit * (2 + 1 / (1 + apart))  # also of the part of the gradient in the others, which bend as these do
    assert found.left == pytest.approx(want, rel=1.5e-4)


@pytest.mark.parametrize(("bend", "promises"), [(0.04, True), (0.02, False)])
def test_directions_that_are_not_asked_promise_nothing_where_a_bend_is_small(bend, promises):
    """To the root of a thousandth: how well a part of a thousandth of the first vector shows what bends."""
    f = Quadratic(np.diag([1.0, 1.0, bend]), np.ones(3))
    assert (curvature(f, np.ones(3), EPS).left < np.inf) is promises
    assert len(f.asked) == 1 + 2


def test_gradients_that_are_not_finite_say_nothing():
    for gradient in (np.nan, np.inf):
        for place in (1, 2):  # of two products with the Hessian
            f = Quadratic(np.diag([1.0, 2.0]), np.ones(2))

            def probe(step, f=f, place=place, gradient=gradient):
                found = f(step)
                return found if len(f.asked) <= place else np.array([found[0], gradient])

            assert curvature(probe, np.ones(2), EPS) == ([], np.inf, np.inf, None)
            assert len(f.asked) == 1 + place
